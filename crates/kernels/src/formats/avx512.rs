//! The AVX-512 tier: a unit of 32 codes is one vector, its 16 pair sums are one `vpdpwssd`.
//!
//! Invariant: the lanes of the accumulators are those of the reference, operation by operation.
//! Formats supply [`Unpack`]; the order of operations is here only.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::asm;
use std::arch::x86_64::{
    __m128i, __m256i, __m512, __m512i, _MM_HINT_T0, _mm_add_ps, _mm_add_ss, _mm_cvtsi64_si128,
    _mm_cvtss_f32, _mm_loadu_si128, _mm_movehdup_ps, _mm_movehl_ps, _mm_prefetch,
    _mm_unpacklo_epi16, _mm256_add_ps, _mm256_castps256_ps128, _mm256_cvtph_ps,
    _mm256_extractf128_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_set1_epi16, _mm512_add_ps,
    _mm512_castps512_ps256, _mm512_cvtepi32_ps, _mm512_cvtph_ps, _mm512_extractf32x8_ps,
    _mm512_insertf32x8, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mask_blend_ps, _mm512_mul_ps,
    _mm512_permutexvar_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_sub_ps,
    _mm512_zextps256_ps512,
};

use super::{
    Decoded, Layout, Rows, UNIT, array_at, dispatch, f16_bits, float, q2_k, q3_k, q5_0, q5_1, q5_k,
    tq1_0,
};
use crate::format::Format;
use crate::isa::Avx512;
use crate::kernel::{Products, Tile, TileFn};
use crate::quantized::{GROUP, Group};

/// How far ahead of its use a row is fetched.
const PREFETCH_BYTES: usize = 4096;

/// Unpacks the steps of a format into vectors; callers have the features of [`Avx512`].
pub(super) trait Unpack: Layout {
    /// What units are unpacked from: the step itself, or the decoded step.
    type View;

    /// Decodes a step to `room` if the view is to be the decoded step.
    unsafe fn prepare(_step: &Self::Step, _room: &mut Decoded) {}

    /// Returns the view of a prepared step.
    fn view<'a>(step: &'a Self::Step, room: &'a Decoded) -> &'a Self::View;

    /// Returns the scales of the step's half units; a step of 128 has eight.
    unsafe fn scales(view: &Self::View) -> __m512;

    /// Returns the minima of the step's half units, zeros beyond the eighth in a step of 128.
    unsafe fn mins(_view: &Self::View) -> __m512 {
        unreachable!("only formats with minima are asked for them")
    }

    /// Returns the 32 codes of a unit.
    unsafe fn codes(view: &Self::View, unit: usize) -> __m512i;
}

/// Returns this tier's code for a format.
pub(crate) fn tile_fn(format: Format) -> TileFn<Avx512> {
    dispatch!(format, L => tile::<L>, E => float::avx512::tile::<E>)
}

fn tile<U: Unpack>(_: Avx512, tile: &Tile<'_>, products: &mut Products) {
    // SAFETY: the token proves that the machine has every feature the function enables.
    unsafe { cut::<U>(tile, products) }
}

/// Cuts a tile into blocks of as many rows and tokens as there are registers for.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn cut<U: Unpack>(tile: &Tile<'_>, products: &mut Products) {
    match tile.tokens {
        1 => blocks::<U, 2, 1>(tile, products),
        2 => blocks::<U, 2, 2>(tile, products),
        _ => blocks::<U, 2, 4>(tile, products),
    }
}

/// Computes a tile in blocks of `R` rows and `B` tokens; what juts out repeats the last row or token.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
fn blocks<U: Unpack, const R: usize, const B: usize>(tile: &Tile<'_>, products: &mut Products) {
    for row in (0..tile.rows).step_by(R) {
        let rows = tile.rows_from(row);
        for token in (0..tile.tokens).step_by(B) {
            let tokens = tile.groups_from(token);
            let mut acc = [[_mm512_setzero_ps(); B]; R];
            dots::<U, R, B>(&rows, &tokens, &mut acc);
            for (products, acc) in products[row..].iter_mut().zip(acc) {
                for (product, acc) in products[token..].iter_mut().zip(acc) {
                    *product = sum16(acc);
                }
            }
        }
    }
}

/// Adds all steps of `R` rows times `B` tokens.
///
/// Loops over arrays are written out, since closures that the library calls may be compiled apart
/// from their vectors, and `accumulate` is called in one place, so that it is compiled into here.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn dots<U: Unpack, const R: usize, const B: usize>(
    rows: &[&[u8]; R],
    tokens: &[&[Group]; B],
    acc: &mut [[__m512; B]; R],
) {
    let mut rooms = [Decoded::ZERO; R];
    let rows = Rows::<U, R>::cut(rows);
    let mut groups = 0..0;
    for rows in rows.segments() {
        for (s, step) in rows[0].iter().enumerate() {
            groups = groups.end..groups.end + U::STEP / GROUP;
            let mut steps = [step; R];
            let mut xs = [&tokens[0][groups.clone()]; B];
            for r in 1..R {
                steps[r] = &rows[r][s];
            }
            for b in 1..B {
                xs[b] = &tokens[b][groups.clone()];
            }
            accumulate::<U, R, B>(&steps, &xs, &mut rooms, acc);
        }
    }
}

/// Adds one step of `R` rows times `B` tokens.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn accumulate<U: Unpack, const R: usize, const B: usize>(
    steps: &[&U::Step; R],
    groups: &[&[Group]; B],
    rooms: &mut [Decoded; R],
    acc: &mut [[__m512; B]; R],
) {
    for (step, room) in steps.iter().zip(&mut *rooms) {
        prefetch(step.as_ref());
        // SAFETY: this function has the features that `Unpack` asks of its callers.
        unsafe { U::prepare(step, room) };
    }
    let mut scales = [[_mm512_setzero_ps(); B]; R];
    for r in 0..R {
        // SAFETY: as above.
        let of_weights = unsafe { U::scales(U::view(steps[r], &rooms[r])) };
        for b in 0..B {
            scales[r][b] = _mm512_mul_ps(of_weights, x_scales(groups[b]));
        }
    }
    for first in (0..U::STEP / UNIT).step_by(U::CHUNK / UNIT) {
        let mut sums = [[_mm512_setzero_si512(); B]; R];
        for unit in first..first + U::CHUNK / UNIT {
            for r in 0..R {
                // SAFETY: as above.
                let codes = unsafe { U::codes(U::view(steps[r], &rooms[r]), unit) };
                for b in 0..B {
                    let x = load_codes(&groups[b][unit / 4].codes[unit % 4]);
                    sums[r][b] = add_pair_products(sums[r][b], codes, x);
                }
            }
        }
        for r in 0..R {
            for b in 0..B {
                let scale = if U::CHUNK == U::STEP {
                    scales[r][b] // the step has one scale
                } else {
                    _mm512_permutexvar_ps(halves_of(first), scales[r][b])
                };
                let product = _mm512_mul_ps(scale, _mm512_cvtepi32_ps(sums[r][b]));
                acc[r][b] = _mm512_add_ps(acc[r][b], product);
            }
        }
    }
    if U::MINS {
        for r in 0..R {
            // SAFETY: as above.
            let mins = unsafe { U::mins(U::view(steps[r], &rooms[r])) };
            for b in 0..B {
                let product = _mm512_mul_ps(mins, x_sums(groups[b]));
                acc[r][b] = _mm512_sub_ps(acc[r][b], product);
            }
        }
    }
}

/// Adds to each sum the products of a pair of codes.
///
/// As assembly, because the compiler would make the intrinsic two instructions, for a latency that
/// independent rows hide anyway.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn add_pair_products(mut sums: __m512i, codes: __m512i, x: __m512i) -> __m512i {
    // SAFETY: the instruction changes its first operand only, and this function has its feature.
    unsafe {
        asm!(
            "vpdpwssd {sums}, {codes}, {x}",
            sums = inout(zmm_reg) sums,
            codes = in(zmm_reg) codes,
            x = in(zmm_reg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// Returns the scale of the activations in the lane of each half unit.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn x_scales(groups: &[Group]) -> __m512 {
    match groups {
        [low, high] => {
            let (low, high) = (_mm512_set1_ps(low.scale), _mm512_set1_ps(high.scale));
            _mm512_mask_blend_ps(0xff00, low, high)
        }
        _ => _mm512_set1_ps(groups[0].scale),
    }
}

/// Returns the sum of the activations in the lane of each half unit.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn x_sums(groups: &[Group]) -> __m512 {
    let of = |group: &Group| {
        // SAFETY: the array has the eight floats that are read.
        unsafe { _mm256_loadu_ps(group.sums.as_ptr()) }
    };
    let low = _mm512_zextps256_ps512(of(&groups[0]));
    match groups {
        [_, high] => _mm512_insertf32x8::<1>(low, of(high)),
        _ => low,
    }
}

/// Returns the lane numbers that spread the scales of a unit's halves over the lanes.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn halves_of(unit: usize) -> __m512i {
    const LANES: [[i32; 16]; 8] = {
        let mut lanes = [[0; 16]; 8];
        let mut i = 0;
        let mut unit = 0;
        while unit < 8 {
            let mut lane = 0;
            while lane < 16 {
                lanes[unit][lane] = i + (lane >= 8) as i32;
                lane += 1;
            }
            i += 2;
            unit += 1;
        }
        lanes
    };
    // SAFETY: the array has the sixteen integers that are read.
    unsafe { _mm512_loadu_si512(LANES[unit].as_ptr().cast()) }
}

/// Adds the lanes as a tree, in the order of `lanes::sum16`.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
pub(super) fn sum16(lanes: __m512) -> f32 {
    let sum = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps::<1>(lanes));
    let sum = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps::<1>(sum));
    let sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)))
}

/// Fetches what lies `PREFETCH_BYTES` beyond `bytes` into the cache; it need not be in any object.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
pub(super) fn prefetch(bytes: &[u8]) {
    for line in (0..bytes.len()).step_by(64) {
        let ahead = bytes.as_ptr().cast::<i8>().wrapping_add(line + PREFETCH_BYTES);
        _mm_prefetch::<_MM_HINT_T0>(ahead);
    }
}

/// Reads the codes of a unit of activations, or decoded ones.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
pub(super) fn load_codes(codes: &[i16; UNIT]) -> __m512i {
    // SAFETY: the array has the 64 bytes that are read.
    unsafe { _mm512_loadu_si512(codes.as_ptr().cast()) }
}

/// Reads 16 bytes.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
pub(super) fn load_16(bytes: &[u8], at: usize) -> __m128i {
    let bytes: &[u8; 16] = array_at(bytes, at);
    // SAFETY: the array has the 16 bytes that are read.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// Reads 32 bytes.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
pub(super) fn load_32(bytes: &[u8], at: usize) -> __m256i {
    let bytes: &[u8; 32] = array_at(bytes, at);
    // SAFETY: the array has the 32 bytes that are read.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// Returns the half at `at` in every lane.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
pub(super) fn one_scale(step: &[u8], at: usize) -> __m512 {
    _mm512_cvtph_ps(_mm256_set1_epi16(f16_bits(step, at).cast_signed()))
}

/// Returns the halves at `at` in each of four blocks of `block` bytes, each in two lanes, and zeros.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
pub(super) fn four_scales(step: &[u8], at: usize, block: usize) -> __m512 {
    let bits = |i: usize| u64::from(f16_bits(step, at + i * block)) << (16 * i);
    let bits = _mm_cvtsi64_si128((bits(0) | bits(1) | bits(2) | bits(3)).cast_signed());
    _mm512_zextps256_ps512(_mm256_cvtph_ps(_mm_unpacklo_epi16(bits, bits)))
}

/// The formats that are decoded by the scalar code first.
macro_rules! unpack_by_decoding {
    ($($layout:ty),*) => {$(
        impl Unpack for $layout {
            type View = Decoded;

            #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
            #[inline]
            unsafe fn prepare(step: &Self::Step, room: &mut Decoded) {
                Self::decode(step, room);
            }

            #[inline]
            fn view<'a>(_: &'a Self::Step, room: &'a Decoded) -> &'a Decoded {
                room
            }

            #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
            #[inline]
            unsafe fn scales(view: &Decoded) -> __m512 {
                // SAFETY: the array has the sixteen floats that are read.
                unsafe { _mm512_loadu_ps(view.scales.as_ptr()) }
            }

            #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
            #[inline]
            unsafe fn mins(view: &Decoded) -> __m512 {
                // SAFETY: the array has the sixteen floats that are read.
                unsafe { _mm512_loadu_ps(view.mins.as_ptr()) }
            }

            #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
            #[inline]
            unsafe fn codes(view: &Decoded, unit: usize) -> __m512i {
                load_codes(&view.codes.as_chunks().0[unit])
            }
        }
    )*};
}
unpack_by_decoding!(tq1_0::Tq1_0, q5_0::Q5_0, q5_1::Q5_1, q2_k::Q2K, q3_k::Q3K, q5_k::Q5K);
