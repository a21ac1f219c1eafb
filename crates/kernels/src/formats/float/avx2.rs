//! Float weights on AVX2: 32 lanes are four vectors.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m256, _mm256_add_ps, _mm256_castsi256_ps, _mm256_cvtepu16_epi32, _mm256_cvtph_ps,
    _mm256_loadu_ps, _mm256_mul_ps, _mm256_setzero_ps, _mm256_slli_epi32,
};
use std::array::from_fn;

use half::{bf16, f16};

use super::{Element, LANES, filled_up};
use crate::formats::avx2::{load_16, load_floats, prefetch, sum16};
use crate::isa::Avx2;
use crate::kernel::{Products, Tile};

/// Reads stored floats into a vector; callers have the features of [`Avx2`].
pub(in crate::formats) trait Load: Element {
    /// Reads the eight floats that start at element `at`.
    unsafe fn load(bytes: &[u8], at: usize) -> __m256;
}

impl Load for f32 {
    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    unsafe fn load(bytes: &[u8], at: usize) -> __m256 {
        let bytes: &[u8; 32] = crate::formats::array_at(bytes, at * 4);
        // SAFETY: the array has the 32 bytes that are read.
        unsafe { _mm256_loadu_ps(bytes.as_ptr().cast()) }
    }
}

impl Load for f16 {
    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    unsafe fn load(bytes: &[u8], at: usize) -> __m256 {
        _mm256_cvtph_ps(load_16(bytes, at * 2))
    }
}

impl Load for bf16 {
    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    unsafe fn load(bytes: &[u8], at: usize) -> __m256 {
        let words = _mm256_cvtepu16_epi32(load_16(bytes, at * 2));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
    }
}

/// Computes a tile.
pub(in crate::formats) fn tile<E: Load>(_: Avx2, tile: &Tile<'_>, products: &mut Products) {
    // SAFETY: the token proves that the machine has every feature these functions enable.
    unsafe {
        match tile.tokens {
            1 => blocks::<E, 2, 1>(tile, products),
            _ => blocks::<E, 1, 2>(tile, products),
        }
    }
}

/// Cuts a tile into blocks of `R` rows and `B` tokens; what juts out repeats the last row or token.
#[target_feature(enable = "avx2,f16c")]
fn blocks<E: Load, const R: usize, const B: usize>(tile: &Tile<'_>, products: &mut Products) {
    for row in (0..tile.rows()).step_by(R) {
        let rows = from_fn(|r| tile.row(row + r));
        for token in (0..tile.tokens).step_by(B) {
            let dots = dots::<E, R, B>(rows, from_fn(|b| tile.token_values(token + b)));
            for (products, dots) in products[row..].iter_mut().zip(dots) {
                products[token..token + B].copy_from_slice(&dots);
            }
        }
    }
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn dots<E: Load, const R: usize, const B: usize>(
    rows: [&[u8]; R],
    tokens: [&[f32]; B],
) -> [[f32; B]; R] {
    let mut acc = [[[_mm256_setzero_ps(); 4]; B]; R];
    let whole = tokens[0].len() / LANES;
    let mut add = |rows: [&[u8]; R], tokens: [&[f32]; B], at: usize| {
        for quarter in 0..4 {
            let at = at + quarter * 8;
            // SAFETY: this function has the features that `Load` asks of its callers.
            let w: [__m256; R] = from_fn(|r| unsafe { E::load(rows[r], at) });
            for b in 0..B {
                let x = load_floats(tokens[b][at..].first_chunk().expect("lanes lie in a row"));
                for r in 0..R {
                    acc[r][b][quarter] = _mm256_add_ps(acc[r][b][quarter], _mm256_mul_ps(w[r], x));
                }
            }
        }
    };
    for step in 0..whole {
        for row in rows {
            prefetch(&row[step * LANES * E::BYTES]);
        }
        add(rows, tokens, step * LANES);
    }
    if !tokens[0].len().is_multiple_of(LANES) {
        let rows = rows.map(|row| filled_up::<u8, { LANES * 4 }>(&row[whole * LANES * E::BYTES..]));
        let tokens = tokens.map(|x| filled_up::<f32, LANES>(&x[whole * LANES..]));
        add(from_fn(|r| &rows[r][..]), from_fn(|b| &tokens[b][..]), 0);
    }
    acc.map(|acc| acc.map(|[a, b, c, d]| sum16([_mm256_add_ps(a, c), _mm256_add_ps(b, d)])))
}
