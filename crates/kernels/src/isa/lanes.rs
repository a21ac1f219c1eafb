//! Sixteen f32 lanes as each instruction set holds them, for loops that the compiler does not
//! vectorize well by itself.
//!
//! Invariant: lane by lane the same IEEE operations on every tier, with the product inside a
//! multiply-add not rounded and one fixed tree for the sum of the lanes. A value exists only where its
//! instructions do, since making one takes the proof token.

use std::array::from_fn;

use half::f16;

use crate::convert::widen;
use crate::exp::times_power_of_two;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::Lanes128;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{Lanes256, Lanes512};

/// How many lanes there are.
pub(crate) const LANES: usize = 16;

/// Sixteen f32 values.
pub(crate) trait Lanes: Copy {
    /// The proof that the instructions exist.
    type Isa: Copy;
    /// Whether the registers hold some thirty of these at once.
    const MANY: bool;

    /// Returns `value` in every lane.
    fn splat(isa: Self::Isa, value: f32) -> Self;
    /// Returns the values.
    fn load(isa: Self::Isa, values: &[f32; LANES]) -> Self;
    /// Returns the values, widened exactly.
    fn load_f16(isa: Self::Isa, values: &[f16; LANES]) -> Self;
    /// Returns the bytes as numbers.
    fn load_i8(isa: Self::Isa, values: &[i8; LANES]) -> Self;
    /// Fetches the cache line that `place` begins in, where the processor can be told to.
    fn prefetch<T>(isa: Self::Isa, place: &T);
    /// Writes the values to `out`.
    fn store(self, out: &mut [f32; LANES]);
    /// Returns `self + a · b`, rounded once.
    fn add_product(self, a: Self, b: Self) -> Self;
    /// Returns `self + other`.
    fn add(self, other: Self) -> Self;
    /// Returns `self · other`.
    fn mul(self, other: Self) -> Self;
    /// Returns `self` where it is smaller and `other` elsewhere, also where one is NaN.
    fn min(self, other: Self) -> Self;
    /// Returns `self` where it is larger and `other` elsewhere, also where one is NaN.
    fn max(self, other: Self) -> Self;
    /// Returns `self · 2ⁿ`, rounded once; `n` is whole and within ±150, `self` near 1.
    fn times_power_of_two(self, n: Self) -> Self;
}

/// Returns up to sixteen values with zeros behind them, whose products with zeros add nothing.
#[expect(clippy::inline_always, reason = "each tier compiles its own copy into its loops")]
#[inline(always)]
pub(crate) fn padded<T: Copy>(values: &[T], zero: T) -> [T; LANES] {
    let mut padded = [zero; LANES];
    padded[..values.len()].copy_from_slice(values);
    padded
}

/// The lanes of the reference.
#[derive(Clone, Copy)]
pub(crate) struct Plain([f32; LANES]);

#[expect(clippy::inline_always, reason = "compiled into the loops of each tier")]
impl Lanes for Plain {
    type Isa = ();
    const MANY: bool = false;

    #[inline(always)]
    fn splat((): (), value: f32) -> Self {
        Self([value; LANES])
    }

    #[inline(always)]
    fn load((): (), values: &[f32; LANES]) -> Self {
        Self(*values)
    }

    #[inline(always)]
    fn load_f16((): (), values: &[f16; LANES]) -> Self {
        Self(values.map(|value| widen(value.to_bits())))
    }

    #[inline(always)]
    fn load_i8((): (), values: &[i8; LANES]) -> Self {
        Self(values.map(f32::from))
    }

    #[inline(always)]
    fn prefetch<T>((): (), _: &T) {}

    #[inline(always)]
    fn store(self, out: &mut [f32; LANES]) {
        *out = self.0;
    }

    #[inline(always)]
    fn add_product(self, a: Self, b: Self) -> Self {
        Self(from_fn(|i| a.0[i].mul_add(b.0[i], self.0[i])))
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(from_fn(|i| self.0[i] + other.0[i]))
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Self(from_fn(|i| self.0[i] * other.0[i]))
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        Self(from_fn(|i| if self.0[i] < other.0[i] { self.0[i] } else { other.0[i] }))
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        Self(from_fn(|i| if self.0[i] > other.0[i] { self.0[i] } else { other.0[i] }))
    }

    #[inline(always)]
    fn times_power_of_two(self, n: Self) -> Self {
        Self(from_fn(|i| times_power_of_two(self.0[i], n.0[i])))
    }
}

/// Runs intrinsics of the instruction set that a value's existence proves.
macro_rules! proven {
    ($intrinsics:expr) => {{
        // SAFETY: the type's values are made from the token of the set the intrinsics belong
        // to, and addresses come from references to arrays of the length they access.
        unsafe { $intrinsics }
    }};
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "instructions of detected sets, loads and stores of whole vectors")]
mod x86_64 {
    use std::arch::x86_64::{
        __m128i, __m256, __m512, _MM_HINT_T0, _mm_loadl_epi64, _mm_loadu_si128, _mm_prefetch,
        _mm256_add_epi32, _mm256_add_ps, _mm256_castsi256_ps, _mm256_cvtepi8_epi32,
        _mm256_cvtepi32_ps, _mm256_cvtph_ps, _mm256_cvtps_epi32, _mm256_fmadd_ps, _mm256_loadu_ps,
        _mm256_loadu_si256, _mm256_max_ps, _mm256_min_ps, _mm256_mul_ps, _mm256_set1_epi32,
        _mm256_set1_ps, _mm256_slli_epi32, _mm256_srai_epi32, _mm256_storeu_ps, _mm256_sub_epi32,
        _mm512_add_ps, _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_cvtph_ps, _mm512_fmadd_ps,
        _mm512_loadu_ps, _mm512_max_ps, _mm512_min_ps, _mm512_mul_ps, _mm512_scalef_ps,
        _mm512_set1_ps, _mm512_storeu_ps,
    };

    use half::f16;

    use super::{LANES, Lanes};
    use crate::isa::{Avx2, Avx512};

    /// Two vectors of eight.
    #[derive(Clone, Copy)]
    pub(crate) struct Lanes256(__m256, __m256);

    #[expect(clippy::inline_always, reason = "compiled into the loops of each tier")]
    impl Lanes for Lanes256 {
        type Isa = Avx2;
        const MANY: bool = false;

        #[inline(always)]
        fn splat(_: Avx2, value: f32) -> Self {
            let half = proven!(_mm256_set1_ps(value));
            Self(half, half)
        }

        #[inline(always)]
        fn load(_: Avx2, values: &[f32; LANES]) -> Self {
            let (low, high) = values.split_at(8);
            proven!(Self(_mm256_loadu_ps(low.as_ptr()), _mm256_loadu_ps(high.as_ptr())))
        }

        #[inline(always)]
        fn load_f16(_: Avx2, values: &[f16; LANES]) -> Self {
            let (low, high) = values.split_at(8);
            proven!(Self(
                _mm256_cvtph_ps(_mm_loadu_si128(low.as_ptr().cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(high.as_ptr().cast())),
            ))
        }

        #[inline(always)]
        fn load_i8(_: Avx2, values: &[i8; LANES]) -> Self {
            let (low, high) = values.split_at(8);
            proven!(Self(
                widened(_mm_loadl_epi64(low.as_ptr().cast())),
                widened(_mm_loadl_epi64(high.as_ptr().cast())),
            ))
        }

        #[inline(always)]
        fn prefetch<T>(_: Avx2, place: &T) {
            proven!(_mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast()));
        }

        #[inline(always)]
        fn store(self, out: &mut [f32; LANES]) {
            let (low, high) = out.split_at_mut(8);
            proven!(_mm256_storeu_ps(low.as_mut_ptr(), self.0));
            proven!(_mm256_storeu_ps(high.as_mut_ptr(), self.1));
        }

        #[inline(always)]
        fn add_product(self, a: Self, b: Self) -> Self {
            proven!(Self(_mm256_fmadd_ps(a.0, b.0, self.0), _mm256_fmadd_ps(a.1, b.1, self.1),))
        }

        #[inline(always)]
        fn add(self, other: Self) -> Self {
            proven!(Self(_mm256_add_ps(self.0, other.0), _mm256_add_ps(self.1, other.1)))
        }

        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            proven!(Self(_mm256_mul_ps(self.0, other.0), _mm256_mul_ps(self.1, other.1)))
        }

        #[inline(always)]
        fn min(self, other: Self) -> Self {
            proven!(Self(_mm256_min_ps(self.0, other.0), _mm256_min_ps(self.1, other.1)))
        }

        #[inline(always)]
        fn max(self, other: Self) -> Self {
            proven!(Self(_mm256_max_ps(self.0, other.0), _mm256_max_ps(self.1, other.1)))
        }

        #[inline(always)]
        fn times_power_of_two(self, n: Self) -> Self {
            proven!(Self(scaled(self.0, n.0), scaled(self.1, n.1)))
        }
    }

    /// One vector.
    #[derive(Clone, Copy)]
    pub(crate) struct Lanes512(__m512);

    #[expect(clippy::inline_always, reason = "compiled into the loops of each tier")]
    impl Lanes for Lanes512 {
        type Isa = Avx512;
        const MANY: bool = true;

        #[inline(always)]
        fn splat(_: Avx512, value: f32) -> Self {
            proven!(Self(_mm512_set1_ps(value)))
        }

        #[inline(always)]
        fn load(_: Avx512, values: &[f32; LANES]) -> Self {
            proven!(Self(_mm512_loadu_ps(values.as_ptr())))
        }

        #[inline(always)]
        fn load_f16(_: Avx512, values: &[f16; LANES]) -> Self {
            proven!(Self(_mm512_cvtph_ps(_mm256_loadu_si256(values.as_ptr().cast()))))
        }

        #[inline(always)]
        fn load_i8(_: Avx512, values: &[i8; LANES]) -> Self {
            let wide = proven!(_mm512_cvtepi8_epi32(_mm_loadu_si128(values.as_ptr().cast())));
            proven!(Self(_mm512_cvtepi32_ps(wide)))
        }

        #[inline(always)]
        fn prefetch<T>(_: Avx512, place: &T) {
            proven!(_mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast()));
        }

        #[inline(always)]
        fn store(self, out: &mut [f32; LANES]) {
            proven!(_mm512_storeu_ps(out.as_mut_ptr(), self.0));
        }

        #[inline(always)]
        fn add_product(self, a: Self, b: Self) -> Self {
            proven!(Self(_mm512_fmadd_ps(a.0, b.0, self.0)))
        }

        #[inline(always)]
        fn add(self, other: Self) -> Self {
            proven!(Self(_mm512_add_ps(self.0, other.0)))
        }

        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            proven!(Self(_mm512_mul_ps(self.0, other.0)))
        }

        #[inline(always)]
        fn min(self, other: Self) -> Self {
            proven!(Self(_mm512_min_ps(self.0, other.0)))
        }

        #[inline(always)]
        fn max(self, other: Self) -> Self {
            proven!(Self(_mm512_max_ps(self.0, other.0)))
        }

        #[inline(always)]
        fn times_power_of_two(self, n: Self) -> Self {
            proven!(Self(_mm512_scalef_ps(self.0, n.0)))
        }
    }

    /// The lower eight bytes as numbers.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn widened(codes: __m128i) -> __m256 {
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes))
    }

    /// `p · 2ⁿ` in two factors, each of which is a normal number.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn scaled(p: __m256, n: __m256) -> __m256 {
        let n = _mm256_cvtps_epi32(n);
        let half = _mm256_srai_epi32::<1>(n);
        let rest = _mm256_sub_epi32(n, half);
        let bias = _mm256_set1_epi32(127);
        let [first, second] = [half, rest]
            .map(|n| _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, bias))));
        _mm256_mul_ps(_mm256_mul_ps(p, first), second)
    }
}

#[cfg(target_arch = "aarch64")]
#[expect(unsafe_code, reason = "instructions of a detected set, loads and stores of whole vectors")]
mod aarch64 {
    use std::arch::aarch64::{
        float32x4_t, vaddq_f32, vaddq_s32, vbslq_f32, vcgtq_f32, vcltq_f32, vcvt_f32_f16,
        vcvtq_f32_s32, vcvtq_s32_f32, vdupq_n_f32, vdupq_n_s32, vfmaq_f32, vget_low_s8,
        vget_low_s16, vld1_u16, vld1q_f32, vld1q_s8, vmovl_high_s8, vmovl_high_s16, vmovl_s8,
        vmovl_s16, vmulq_f32, vreinterpret_f16_u16, vreinterpretq_f32_s32, vshlq_n_s32,
        vshrq_n_s32, vst1q_f32, vsubq_s32,
    };
    use std::arch::asm;
    use std::array::from_fn;

    use half::f16;

    use super::{LANES, Lanes};
    use crate::isa::Neon;

    /// Four vectors of four.
    #[derive(Clone, Copy)]
    pub(crate) struct Lanes128([float32x4_t; 4]);

    #[expect(clippy::inline_always, reason = "compiled into the loops of each tier")]
    impl Lanes for Lanes128 {
        type Isa = Neon;
        const MANY: bool = false;

        #[inline(always)]
        fn splat(_: Neon, value: f32) -> Self {
            Self([proven!(vdupq_n_f32(value)); 4])
        }

        #[inline(always)]
        fn load(_: Neon, values: &[f32; LANES]) -> Self {
            let [a, b, c, d] = quarters(values);
            proven!(Self([
                vld1q_f32(a.as_ptr()),
                vld1q_f32(b.as_ptr()),
                vld1q_f32(c.as_ptr()),
                vld1q_f32(d.as_ptr()),
            ]))
        }

        #[inline(always)]
        fn load_f16(_: Neon, values: &[f16; LANES]) -> Self {
            Self(quarters(values).map(|four| {
                let bits = proven!(vld1_u16(four.as_ptr().cast()));
                proven!(vcvt_f32_f16(vreinterpret_f16_u16(bits)))
            }))
        }

        #[inline(always)]
        fn load_i8(_: Neon, values: &[i8; LANES]) -> Self {
            let values = proven!(vld1q_s8(values.as_ptr()));
            let low = proven!(vmovl_s8(vget_low_s8(values)));
            let high = proven!(vmovl_high_s8(values));
            let fours = proven!([
                vmovl_s16(vget_low_s16(low)),
                vmovl_high_s16(low),
                vmovl_s16(vget_low_s16(high)),
                vmovl_high_s16(high),
            ]);
            Self(fours.map(|four| proven!(vcvtq_f32_s32(four))))
        }

        #[inline(always)]
        fn prefetch<T>(_: Neon, place: &T) {
            // The intrinsic is not stable.
            proven!(asm!(
                "prfm pldl1keep, [{}]",
                in(reg) std::ptr::from_ref(place),
                options(nostack, readonly, preserves_flags)
            ));
        }

        #[inline(always)]
        fn store(self, out: &mut [f32; LANES]) {
            for (four, out) in self.0.into_iter().zip(out.as_chunks_mut::<4>().0) {
                proven!(vst1q_f32(out.as_mut_ptr(), four));
            }
        }

        #[inline(always)]
        fn add_product(self, a: Self, b: Self) -> Self {
            Self(from_fn(|i| proven!(vfmaq_f32(self.0[i], a.0[i], b.0[i]))))
        }

        #[inline(always)]
        fn add(self, other: Self) -> Self {
            Self(from_fn(|i| proven!(vaddq_f32(self.0[i], other.0[i]))))
        }

        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            Self(from_fn(|i| proven!(vmulq_f32(self.0[i], other.0[i]))))
        }

        #[inline(always)]
        fn min(self, other: Self) -> Self {
            let pair = |i: usize| (self.0[i], other.0[i]);
            Self(from_fn(pair).map(|(a, b)| proven!(vbslq_f32(vcltq_f32(a, b), a, b))))
        }

        #[inline(always)]
        fn max(self, other: Self) -> Self {
            let pair = |i: usize| (self.0[i], other.0[i]);
            Self(from_fn(pair).map(|(a, b)| proven!(vbslq_f32(vcgtq_f32(a, b), a, b))))
        }

        #[inline(always)]
        fn times_power_of_two(self, n: Self) -> Self {
            Self(from_fn(|i| scaled(self.0[i], n.0[i])))
        }
    }

    /// `p · 2ⁿ` in two factors, each of which is a normal number.
    fn scaled(p: float32x4_t, n: float32x4_t) -> float32x4_t {
        let n = proven!(vcvtq_s32_f32(n));
        let half = proven!(vshrq_n_s32::<1>(n));
        let rest = proven!(vsubq_s32(n, half));
        let [first, second] = [half, rest].map(|n| {
            proven!(vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(n, vdupq_n_s32(127)))))
        });
        proven!(vmulq_f32(vmulq_f32(p, first), second))
    }

    fn quarters<T>(values: &[T; LANES]) -> [&[T; 4]; 4] {
        let quarters = values.as_chunks().0;
        [&quarters[0], &quarters[1], &quarters[2], &quarters[3]]
    }
}
