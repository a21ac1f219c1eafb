//! Float weights on AVX2: 32 lanes are four vectors.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m256, _mm256_add_ps, _mm256_castsi256_ps, _mm256_cvtepu16_epi32, _mm256_cvtph_ps,
    _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_setzero_ps, _mm256_slli_epi32,
};

use half::{bf16, f16};

use super::{Element, LANES, filled_up};
use crate::formats::avx2::{load_16, load_floats, prefetch, sum16};
use crate::isa::Avx2;
use crate::kernel::{Block, Out, Products, Tile};

/// Reads stored floats into a vector; callers have the features of [`Avx2`].
pub(in crate::formats) trait Load: Element {
    /// Reads the eight floats that start at element `at`.
    unsafe fn load(bytes: &[u8], at: usize) -> __m256;
}

impl Load for f32 {
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn load(bytes: &[u8], at: usize) -> __m256 {
        let bytes: &[u8; 32] = crate::formats::array_at(bytes, at * 4);
        // SAFETY: the array has the 32 bytes that are read.
        unsafe { _mm256_loadu_ps(bytes.as_ptr().cast()) }
    }
}

impl Load for f16 {
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn load(bytes: &[u8], at: usize) -> __m256 {
        _mm256_cvtph_ps(load_16(bytes, at * 2))
    }
}

impl Load for bf16 {
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn load(bytes: &[u8], at: usize) -> __m256 {
        let words = _mm256_cvtepu16_epi32(load_16(bytes, at * 2));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
    }
}

/// Computes a block.
pub(in crate::formats) fn block<E: Load>(_: Avx2, block: &Block<'_>, out: &mut Out<'_, '_>) {
    // SAFETY: the token proves that the machine has every feature the function enables.
    block.in_tiles(out, |tile, products| unsafe { cut::<E>(tile, products) });
}

/// Cuts a tile into blocks of as many rows and tokens as there are registers for.
#[target_feature(enable = "avx2,fma,f16c")]
fn cut<E: Load>(tile: &Tile<'_>, products: &mut Products) {
    match tile.tokens {
        1 => blocks::<E, 2, 1>(tile, products),
        _ => blocks::<E, 1, 2>(tile, products),
    }
}

/// Computes a tile in blocks of `R` rows and `B` tokens; what juts out repeats the last row or token.
#[target_feature(enable = "avx2,fma,f16c")]
fn blocks<E: Load, const R: usize, const B: usize>(tile: &Tile<'_>, products: &mut Products) {
    for row in (0..tile.rows).step_by(R) {
        let rows = tile.rows_from(row);
        for token in (0..tile.tokens).step_by(B) {
            let tokens = tile.values_from(token);
            let mut acc = [[[_mm256_setzero_ps(); 4]; B]; R];
            dots::<E, R, B>(&rows, &tokens, &mut acc);
            for (products, acc) in products[row..].iter_mut().zip(acc) {
                for (product, acc) in products[token..].iter_mut().zip(acc) {
                    let [a, b, c, d] = acc;
                    *product = sum16([_mm256_add_ps(a, c), _mm256_add_ps(b, d)]);
                }
            }
        }
    }
}

/// Adds all weights of `R` rows times `B` tokens, 32 at a time.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
#[expect(clippy::needless_range_loop, reason = "several arrays have the index")]
fn dots<E: Load, const R: usize, const B: usize>(
    rows: &[&[u8]; R],
    tokens: &[&[f32]; B],
    acc: &mut [[[__m256; 4]; B]; R],
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
                prefetch(weights);
                for part in 0..4 {
                    // SAFETY: this function has the features that `Load` asks of its callers.
                    let w = unsafe { E::load(weights, part * 8) };
                    for b in 0..B {
                        let x = load_floats(&tokens[b][first..][..LANES].as_chunks().0[part]);
                        acc[r][b][part] = _mm256_fmadd_ps(w, x, acc[r][b][part]);
                    }
                }
            }
        }
    }
}
