//! Float weights on AVX-512: 32 lanes are two vectors.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m512, _mm512_add_ps, _mm512_castsi512_ps, _mm512_cvtepu16_epi32, _mm512_cvtph_ps,
    _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_setzero_ps, _mm512_slli_epi32,
};

use half::{bf16, f16};

use super::{Element, LANES, filled_up};
use crate::formats::avx512::{PREFETCH_BYTES, load_32, prefetch, sum16};
use crate::isa::Avx512;
use crate::kernel::{Block, Out, Products, Tile};

/// Reads stored floats into a vector; callers have the features of [`Avx512`].
pub(in crate::formats) trait Load: Element {
    /// Reads the 16 floats that start at element `at`.
    unsafe fn load(bytes: &[u8], at: usize) -> __m512;
}

impl Load for f32 {
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn load(bytes: &[u8], at: usize) -> __m512 {
        let bytes: &[u8; 64] = crate::formats::array_at(bytes, at * 4);
        // SAFETY: the array has the 64 bytes that are read.
        unsafe { _mm512_loadu_ps(bytes.as_ptr().cast()) }
    }
}

impl Load for f16 {
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn load(bytes: &[u8], at: usize) -> __m512 {
        _mm512_cvtph_ps(load_32(bytes, at * 2))
    }
}

impl Load for bf16 {
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn load(bytes: &[u8], at: usize) -> __m512 {
        let words = _mm512_cvtepu16_epi32(load_32(bytes, at * 2));
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words))
    }
}

/// Computes a block.
pub(in crate::formats) fn block<E: Load>(_: Avx512, block: &Block<'_>, out: &mut Out<'_, '_>) {
    // SAFETY: the token proves that the machine has every feature the function enables.
    block.in_tiles(out, |tile, products| unsafe { cut::<E>(tile, products) });
}

/// Cuts a tile into blocks of as many rows and tokens as there are registers for.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
fn cut<E: Load>(tile: &Tile<'_>, products: &mut Products) {
    match tile.tokens {
        1 => blocks::<E, 2, 1>(tile, products),
        2 => blocks::<E, 2, 2>(tile, products),
        _ => blocks::<E, 2, 4>(tile, products),
    }
}

/// Computes a tile in blocks of `R` rows and `B` tokens; what juts out repeats the last row or token.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
fn blocks<E: Load, const R: usize, const B: usize>(tile: &Tile<'_>, products: &mut Products) {
    for row in (0..tile.rows).step_by(R) {
        let rows = tile.rows_from(row);
        for token in (0..tile.tokens).step_by(B) {
            let tokens = tile.values_from(token);
            let mut acc = [[[_mm512_setzero_ps(); 2]; B]; R];
            dots::<E, R, B>(&rows, &tokens, &mut acc);
            for (products, acc) in products[row..].iter_mut().zip(acc) {
                for (product, acc) in products[token..].iter_mut().zip(acc) {
                    let [low, high] = acc;
                    *product = sum16(_mm512_add_ps(low, high));
                }
            }
        }
    }
}

/// Adds all weights of `R` rows times `B` tokens, 32 at a time.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
#[expect(clippy::needless_range_loop, reason = "several arrays have the index")]
fn dots<E: Load, const R: usize, const B: usize>(
    rows: &[&[u8]; R],
    tokens: &[&[f32]; B],
    acc: &mut [[[__m512; 2]; B]; R],
) {
    let whole = tokens[0].len() / LANES;
    let rests = rows.map(|row| filled_up::<u8, { LANES * 4 }>(&row[whole * LANES * E::BYTES..]));
    let x_rests = tokens.map(|x| filled_up::<f32, LANES>(&x[whole * LANES..]));
    let rests = (rests.each_ref().map(|row| &row[..]), x_rests.each_ref().map(|x| &x[..]));
    let has_rest = usize::from(!tokens[0].len().is_multiple_of(LANES));
    for ((rows, tokens), steps) in [((*rows, *tokens), whole), (rests, has_rest)] {
        for first in (0..steps).map(|step| step * LANES) {
            for r in 0..R {
                let weights = &rows[r][first * E::BYTES..][..LANES * E::BYTES];
                prefetch(weights, PREFETCH_BYTES);
                for part in 0..2 {
                    // SAFETY: this function has the features that `Load` asks of its callers.
                    let w = unsafe { E::load(weights, part * 16) };
                    for b in 0..B {
                        let x = load_floats(&tokens[b][first..][..LANES].as_chunks().0[part]);
                        acc[r][b][part] = _mm512_fmadd_ps(w, x, acc[r][b][part]);
                    }
                }
            }
        }
    }
}

/// Reads 16 floats.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
fn load_floats(floats: &[f32; 16]) -> __m512 {
    // SAFETY: the array has the sixteen floats that are read.
    unsafe { _mm512_loadu_ps(floats.as_ptr()) }
}
