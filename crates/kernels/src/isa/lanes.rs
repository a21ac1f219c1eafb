//! Sixteen f32 lanes as each instruction set holds them, for loops that the compiler does not
//! vectorize well by itself.
//!
//! Invariant: lane by lane the same IEEE operations on every tier, with products and sums rounded
//! separately and one fixed tree for the sum of the lanes. A value exists only where its
//! instructions do, since making one takes the proof token.

use half::f16;

use crate::convert::widen;

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

    /// Returns `value` in every lane.
    fn splat(isa: Self::Isa, value: f32) -> Self;
    /// Returns the values.
    fn load(isa: Self::Isa, values: &[f32; LANES]) -> Self;
    /// Returns the values, widened exactly.
    fn load_f16(isa: Self::Isa, values: &[f16; LANES]) -> Self;
    /// Returns `scale` times each signed byte, which is exact.
    fn load_codes(isa: Self::Isa, codes: &[u8; LANES], scale: f16) -> Self;
    /// Writes the values to `out`.
    fn store(self, out: &mut [f32; LANES]);
    /// Returns `self + a · b`; the product is rounded before the addition.
    fn add_product(self, a: Self, b: Self) -> Self;
    /// Returns the sum: the upper half is added to the lower until one lane is left.
    fn sum(self) -> f32;
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
    fn load_codes((): (), codes: &[u8; LANES], scale: f16) -> Self {
        let scale = widen(scale.to_bits());
        Self(codes.map(|code| f32::from(code.cast_signed()) * scale))
    }

    #[inline(always)]
    fn store(self, out: &mut [f32; LANES]) {
        *out = self.0;
    }

    #[inline(always)]
    fn add_product(mut self, a: Self, b: Self) -> Self {
        for ((sum, a), b) in self.0.iter_mut().zip(a.0).zip(b.0) {
            *sum += a * b;
        }
        self
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        crate::lanes::sum16(self.0)
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
        __m128i, __m256, __m512, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32, _mm_loadl_epi64,
        _mm_loadu_si128, _mm_movehdup_ps, _mm_movehl_ps, _mm_set1_epi16, _mm256_add_ps,
        _mm256_castps256_ps128, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps, _mm256_cvtph_ps,
        _mm256_extractf128_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_mul_ps,
        _mm256_set1_epi16, _mm256_set1_ps, _mm256_storeu_ps, _mm512_add_ps, _mm512_castps512_ps256,
        _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_cvtph_ps, _mm512_extractf32x8_ps,
        _mm512_loadu_ps, _mm512_mul_ps, _mm512_set1_ps, _mm512_storeu_ps,
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
        fn load_codes(_: Avx2, codes: &[u8; LANES], scale: f16) -> Self {
            let (low, high) = codes.split_at(8);
            let bits = scale.to_bits().cast_signed();
            let scale = proven!(_mm256_cvtph_ps(_mm_set1_epi16(bits)));
            proven!(Self(
                _mm256_mul_ps(scale, widened(_mm_loadl_epi64(low.as_ptr().cast()))),
                _mm256_mul_ps(scale, widened(_mm_loadl_epi64(high.as_ptr().cast()))),
            ))
        }

        #[inline(always)]
        fn store(self, out: &mut [f32; LANES]) {
            let (low, high) = out.split_at_mut(8);
            proven!(_mm256_storeu_ps(low.as_mut_ptr(), self.0));
            proven!(_mm256_storeu_ps(high.as_mut_ptr(), self.1));
        }

        #[inline(always)]
        fn add_product(self, a: Self, b: Self) -> Self {
            proven!(Self(
                _mm256_add_ps(self.0, _mm256_mul_ps(a.0, b.0)),
                _mm256_add_ps(self.1, _mm256_mul_ps(a.1, b.1)),
            ))
        }

        #[inline(always)]
        fn sum(self) -> f32 {
            proven!(sum_of_eight(_mm256_add_ps(self.0, self.1)))
        }
    }

    /// One vector.
    #[derive(Clone, Copy)]
    pub(crate) struct Lanes512(__m512);

    #[expect(clippy::inline_always, reason = "compiled into the loops of each tier")]
    impl Lanes for Lanes512 {
        type Isa = Avx512;

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
        fn load_codes(_: Avx512, codes: &[u8; LANES], scale: f16) -> Self {
            let bits = scale.to_bits().cast_signed();
            let scale = proven!(_mm512_cvtph_ps(_mm256_set1_epi16(bits)));
            let codes = proven!(_mm512_cvtepi8_epi32(_mm_loadu_si128(codes.as_ptr().cast())));
            proven!(Self(_mm512_mul_ps(scale, _mm512_cvtepi32_ps(codes))))
        }

        #[inline(always)]
        fn store(self, out: &mut [f32; LANES]) {
            proven!(_mm512_storeu_ps(out.as_mut_ptr(), self.0));
        }

        #[inline(always)]
        fn add_product(self, a: Self, b: Self) -> Self {
            proven!(Self(_mm512_add_ps(self.0, _mm512_mul_ps(a.0, b.0))))
        }

        #[inline(always)]
        fn sum(self) -> f32 {
            let high = proven!(_mm512_extractf32x8_ps::<1>(self.0));
            proven!(sum_of_eight(_mm256_add_ps(_mm512_castps512_ps256(self.0), high)))
        }
    }

    /// The lower eight bytes as numbers.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn widened(codes: __m128i) -> __m256 {
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes))
    }

    #[inline]
    #[target_feature(enable = "avx")]
    fn sum_of_eight(lanes: __m256) -> f32 {
        let four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps::<1>(lanes));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
}

#[cfg(target_arch = "aarch64")]
#[expect(unsafe_code, reason = "instructions of a detected set, loads and stores of whole vectors")]
mod aarch64 {
    use std::arch::aarch64::{
        float32x4_t, vadd_f32, vaddq_f32, vcvt_f32_f16, vcvtq_f32_s32, vdup_n_u16, vdupq_n_f32,
        vget_high_f32, vget_low_f32, vget_low_s8, vget_low_s16, vld1_u16, vld1q_f32, vld1q_s8,
        vmovl_high_s8, vmovl_high_s16, vmovl_s8, vmovl_s16, vmulq_f32, vpadds_f32,
        vreinterpret_f16_u16, vst1q_f32,
    };

    use half::f16;

    use super::{LANES, Lanes};
    use crate::isa::Neon;

    /// Four vectors of four.
    #[derive(Clone, Copy)]
    pub(crate) struct Lanes128([float32x4_t; 4]);

    #[expect(clippy::inline_always, reason = "compiled into the loops of each tier")]
    impl Lanes for Lanes128 {
        type Isa = Neon;

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
        fn load_codes(_: Neon, codes: &[u8; LANES], scale: f16) -> Self {
            let bits = proven!(vdup_n_u16(scale.to_bits()));
            let scale = proven!(vcvt_f32_f16(vreinterpret_f16_u16(bits)));
            let codes = proven!(vld1q_s8(codes.as_ptr().cast()));
            let low = proven!(vmovl_s8(vget_low_s8(codes)));
            let high = proven!(vmovl_high_s8(codes));
            let fours = proven!([
                vmovl_s16(vget_low_s16(low)),
                vmovl_high_s16(low),
                vmovl_s16(vget_low_s16(high)),
                vmovl_high_s16(high),
            ]);
            Self(fours.map(|four| proven!(vmulq_f32(scale, vcvtq_f32_s32(four)))))
        }

        #[inline(always)]
        fn store(self, out: &mut [f32; LANES]) {
            for (four, out) in self.0.into_iter().zip(out.as_chunks_mut::<4>().0) {
                proven!(vst1q_f32(out.as_mut_ptr(), four));
            }
        }

        #[inline(always)]
        fn add_product(self, a: Self, b: Self) -> Self {
            let mut sums = self.0;
            for ((sum, a), b) in sums.iter_mut().zip(a.0).zip(b.0) {
                *sum = proven!(vaddq_f32(*sum, vmulq_f32(a, b)));
            }
            Self(sums)
        }

        #[inline(always)]
        fn sum(self) -> f32 {
            let [a, b, c, d] = self.0;
            let four = proven!(vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d)));
            proven!(vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four))))
        }
    }

    fn quarters<T>(values: &[T; LANES]) -> [&[T; 4]; 4] {
        let quarters = values.as_chunks().0;
        [&quarters[0], &quarters[1], &quarters[2], &quarters[3]]
    }
}
