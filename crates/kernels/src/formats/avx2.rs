//! The AVX2 tier: a unit of 32 codes is two vectors, its 16 pair sums are two `vpmaddwd`.
//!
//! Invariant: the lanes of the accumulators are those of the reference, operation by operation; the
//! first vector has the lanes of a unit's lower half. Formats supply [`Unpack`]; the order of
//! operations is here only.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _MM_HINT_T0, _mm_add_ps, _mm_add_ss, _mm_cvtsi64_si128,
    _mm_cvtss_f32, _mm_loadu_si128, _mm_movehdup_ps, _mm_movehl_ps, _mm_prefetch, _mm_set1_epi16,
    _mm_unpacklo_epi16, _mm256_add_epi32, _mm256_add_ps, _mm256_castps256_ps128,
    _mm256_cvtepi32_ps, _mm256_cvtph_ps, _mm256_extractf128_ps, _mm256_loadu_ps,
    _mm256_loadu_si256, _mm256_madd_epi16, _mm256_mul_ps, _mm256_set1_ps, _mm256_setzero_ps,
    _mm256_setzero_si256, _mm256_storeu_ps, _mm256_sub_ps,
};

use super::{
    Decoded, HALF, Layout, Rows, UNIT, array_at, dispatch, f16_bits, float, q2_k, q3_k, q5_0, q5_1,
    q5_k, tq1_0,
};
use crate::format::Format;
use crate::isa::Avx2;
use crate::kernel::{Products, Tile, TileFn};
use crate::quantized::{GROUP, Group};

/// How far ahead of its use a row is fetched.
const PREFETCH_BYTES: usize = 4096;

/// Unpacks the steps of a format into vectors; callers have the features of [`Avx2`].
pub(super) trait Unpack: Layout {
    /// What units are unpacked from: the step itself, or the decoded step.
    type View;

    /// Decodes a step to `room` if the view is to be the decoded step.
    unsafe fn prepare(_step: &Self::Step, _room: &mut Decoded) {}

    /// Returns the view of a prepared step.
    fn view<'a>(step: &'a Self::Step, room: &'a Decoded) -> &'a Self::View;

    /// Returns the scales of the step's half units; a step of 128 has eight.
    unsafe fn scales(view: &Self::View) -> [__m256; 2];

    /// Returns the minima of the step's half units; a step of 128 has eight.
    unsafe fn mins(_view: &Self::View) -> [__m256; 2] {
        unreachable!("only formats with minima are asked for them")
    }

    /// Returns the 16 codes of the lower (0) or upper (1) half of a unit.
    unsafe fn codes(view: &Self::View, unit: usize, half: usize) -> __m256i;
}

/// Returns this tier's code for a format.
pub(crate) fn tile_fn(format: Format) -> TileFn<Avx2> {
    dispatch!(format, L => tile::<L>, E => float::avx2::tile::<E>)
}

fn tile<U: Unpack>(_: Avx2, tile: &Tile<'_>, products: &mut Products) {
    // SAFETY: the token proves that the machine has every feature the function enables.
    unsafe { cut::<U>(tile, products) }
}

/// Cuts a tile into blocks of as many rows and tokens as there are registers for.
#[target_feature(enable = "avx2,f16c")]
fn cut<U: Unpack>(tile: &Tile<'_>, products: &mut Products) {
    match tile.tokens {
        1 => blocks::<U, 2, 1>(tile, products),
        2 => blocks::<U, 2, 2>(tile, products),
        _ => blocks::<U, 1, 4>(tile, products),
    }
}

/// Computes a tile in blocks of `R` rows and `B` tokens; what juts out repeats the last row or token.
#[target_feature(enable = "avx2,f16c")]
fn blocks<U: Unpack, const R: usize, const B: usize>(tile: &Tile<'_>, products: &mut Products) {
    for row in (0..tile.rows).step_by(R) {
        let rows = tile.rows_from(row);
        for token in (0..tile.tokens).step_by(B) {
            let tokens = tile.groups_from(token);
            let mut acc = [[[_mm256_setzero_ps(); 2]; B]; R];
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
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn dots<U: Unpack, const R: usize, const B: usize>(
    rows: &[&[u8]; R],
    tokens: &[&[Group]; B],
    acc: &mut [[[__m256; 2]; B]; R],
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
#[target_feature(enable = "avx2,f16c")]
#[inline]
#[expect(clippy::needless_range_loop, reason = "several arrays have the index")]
fn accumulate<U: Unpack, const R: usize, const B: usize>(
    steps: &[&U::Step; R],
    groups: &[&[Group]; B],
    rooms: &mut [Decoded; R],
    acc: &mut [[[__m256; 2]; B]; R],
) {
    for (step, room) in steps.iter().zip(&mut *rooms) {
        prefetch(step.as_ref());
        // SAFETY: this function has the features that `Unpack` asks of its callers.
        unsafe { U::prepare(step, room) };
    }
    let mut scales = [[[[0.0; 8]; 2]; B]; R];
    for r in 0..R {
        // SAFETY: as above.
        let of_weights = unsafe { U::scales(U::view(steps[r], &rooms[r])) };
        for b in 0..B {
            for (h, group) in groups[b].iter().enumerate() {
                let product = _mm256_mul_ps(of_weights[h], _mm256_set1_ps(group.scale));
                store_floats(product, &mut scales[r][b][h]);
            }
        }
    }
    for first in (0..U::STEP / UNIT).step_by(U::CHUNK / UNIT) {
        for h in 0..2 {
            let mut sums = [[_mm256_setzero_si256(); B]; R];
            for unit in first..first + U::CHUNK / UNIT {
                for r in 0..R {
                    // SAFETY: as above.
                    let codes = unsafe { U::codes(U::view(steps[r], &rooms[r]), unit, h) };
                    for b in 0..B {
                        let x = load_codes(&groups[b][unit / 4].codes[unit % 4], h);
                        let products = _mm256_madd_epi16(codes, x);
                        sums[r][b] = _mm256_add_epi32(sums[r][b], products);
                    }
                }
            }
            for r in 0..R {
                for b in 0..B {
                    let half = 2 * first + h;
                    let scale = _mm256_set1_ps(scales[r][b][half / 8][half % 8]);
                    let product = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(sums[r][b]));
                    acc[r][b][h] = _mm256_add_ps(acc[r][b][h], product);
                }
            }
        }
    }
    if U::MINS {
        for r in 0..R {
            // SAFETY: as above.
            let mins = unsafe { U::mins(U::view(steps[r], &rooms[r])) };
            for b in 0..B {
                for (h, group) in groups[b].iter().enumerate() {
                    let product = _mm256_mul_ps(mins[h], load_floats(&group.sums));
                    acc[r][b][h] = _mm256_sub_ps(acc[r][b][h], product);
                }
            }
        }
    }
}

/// Adds the lanes as a tree, in the order of `lanes::sum16`.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn sum16(lanes: [__m256; 2]) -> f32 {
    let sum = _mm256_add_ps(lanes[0], lanes[1]);
    let sum = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps::<1>(sum));
    let sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)))
}

/// Fetches what lies `PREFETCH_BYTES` beyond `bytes` into the cache; it need not be in any object.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn prefetch(bytes: &[u8]) {
    for line in (0..bytes.len()).step_by(64) {
        let ahead = bytes.as_ptr().cast::<i8>().wrapping_add(line + PREFETCH_BYTES);
        _mm_prefetch::<_MM_HINT_T0>(ahead);
    }
}

/// Reads half the codes of a unit of activations, or decoded ones.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn load_codes(codes: &[i16; UNIT], half: usize) -> __m256i {
    let codes: &[i16; HALF] = &codes.as_chunks().0[half];
    // SAFETY: the array has the 32 bytes that are read.
    unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) }
}

/// Writes eight floats.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn store_floats(vector: __m256, floats: &mut [f32; 8]) {
    // SAFETY: the array has room for the eight floats that are written.
    unsafe { _mm256_storeu_ps(floats.as_mut_ptr(), vector) };
}

/// Reads eight floats.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn load_floats(floats: &[f32; 8]) -> __m256 {
    // SAFETY: the array has the eight floats that are read.
    unsafe { _mm256_loadu_ps(floats.as_ptr()) }
}

/// Reads 16 bytes.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn load_16(bytes: &[u8], at: usize) -> __m128i {
    let bytes: &[u8; 16] = array_at(bytes, at);
    // SAFETY: the array has the 16 bytes that are read.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// Returns the half at `at` in every lane.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn one_scale(step: &[u8], at: usize) -> [__m256; 2] {
    [_mm256_cvtph_ps(_mm_set1_epi16(f16_bits(step, at).cast_signed())); 2]
}

/// Returns the halves at `at` in each of four blocks of `block` bytes, each in two of eight lanes.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn four_scales(step: &[u8], at: usize, block: usize) -> [__m256; 2] {
    let bits = |i: usize| u64::from(f16_bits(step, at + i * block)) << (16 * i);
    let bits = _mm_cvtsi64_si128((bits(0) | bits(1) | bits(2) | bits(3)).cast_signed());
    [_mm256_cvtph_ps(_mm_unpacklo_epi16(bits, bits)), _mm256_setzero_ps()]
}

/// The formats that are decoded by the scalar code first.
macro_rules! unpack_by_decoding {
    ($($layout:ty),*) => {$(
        impl Unpack for $layout {
            type View = Decoded;

            #[target_feature(enable = "avx2,f16c")]
            #[inline]
            unsafe fn prepare(step: &Self::Step, room: &mut Decoded) {
                Self::decode(step, room);
            }

            #[inline]
            fn view<'a>(_: &'a Self::Step, room: &'a Decoded) -> &'a Decoded {
                room
            }

            #[target_feature(enable = "avx2,f16c")]
            #[inline]
            unsafe fn scales(view: &Decoded) -> [__m256; 2] {
                let scales = view.scales.as_chunks().0;
                [load_floats(&scales[0]), load_floats(&scales[1])]
            }

            #[target_feature(enable = "avx2,f16c")]
            #[inline]
            unsafe fn mins(view: &Decoded) -> [__m256; 2] {
                let mins = view.mins.as_chunks().0;
                [load_floats(&mins[0]), load_floats(&mins[1])]
            }

            #[target_feature(enable = "avx2,f16c")]
            #[inline]
            unsafe fn codes(view: &Decoded, unit: usize, half: usize) -> __m256i {
                load_codes(&view.codes.as_chunks().0[unit], half)
            }
        }
    )*};
}
unpack_by_decoding!(tq1_0::Tq1_0, q5_0::Q5_0, q5_1::Q5_1, q2_k::Q2K, q3_k::Q3K, q5_k::Q5K);
