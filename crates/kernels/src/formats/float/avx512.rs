//! Float weights on AVX-512: 32 lanes are two vectors.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m512, _mm512_add_ps, _mm512_castsi512_ps, _mm512_cvtepu16_epi32, _mm512_cvtph_ps,
    _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_setzero_ps, _mm512_slli_epi32, _mm512_storeu_ps,
};

use half::{bf16, f16};

use super::{Element, LANES, filled_up};
use crate::formats::avx512::{PREFETCH_BYTES, load_32, prefetch, sum16};
use crate::isa::Avx512;
use crate::kernel::{BLOCK_TOKENS, Block, Out, Products, Tile};

/// The most tokens that are multiplied row by row.
const DOT_TOKENS: usize = 2;

/// Rows that become floats together.
const ROWS: usize = 4;

/// Weights of a row that become floats at once: with the values of the tokens that they meet together
/// they fit into the first cache.
const DEPTH: usize = 512;

/// Tokens multiplied at once: with the rows, as many sums as there are registers for.
const TOKENS: usize = 6;

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
    if block.tokens <= DOT_TOKENS {
        // SAFETY: the token proves that the machine has every feature the function enables.
        block.in_tiles(out, |tile, products| unsafe { cut::<E>(tile, products) });
    } else if block.tokens <= 16 {
        // SAFETY: as above.
        unsafe { panels::<E, 16>(block, out) }
    } else {
        // SAFETY: as above.
        unsafe { panels::<E, BLOCK_TOKENS>(block, out) }
    }
}

/// Some weights of each of a panel's rows, as floats.
type Panel = [[f32; DEPTH]; ROWS];

/// The lanes of a token, for each row of a panel.
type Sums = [[f32; LANES]; ROWS];

/// Computes a block of at most `MAX` tokens: some weights of some rows become floats and meet all
/// tokens, then the next weights.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
fn panels<E: Load, const MAX: usize>(block: &Block<'_>, out: &mut Out<'_, '_>) {
    let mut sums = [[[0.0; LANES]; ROWS]; MAX];
    let mut panel = [[0.0; DEPTH]; ROWS];
    let cols = block.values.len() / block.tokens;
    let each = block.tokens.div_ceil(block.tokens.div_ceil(TOKENS));
    for first_row in (0..block.rows).step_by(ROWS) {
        let sums = &mut sums[..block.tokens];
        sums.fill([[0.0; LANES]; ROWS]);
        for from in (0..cols).step_by(DEPTH) {
            let depth = DEPTH.min(cols - from);
            for (r, to) in panel.iter_mut().enumerate() {
                let row = block.row((first_row + r).min(block.rows - 1));
                widen::<E>(&row[from * E::BYTES..(from + depth) * E::BYTES], to);
            }
            for (i, sums) in sums.chunks_mut(each).enumerate() {
                let values = &block.values[i * each * cols + from..];
                match sums.len() {
                    6 => add::<6>(&panel, values, cols, depth, sums),
                    5 => add::<5>(&panel, values, cols, depth, sums),
                    4 => add::<4>(&panel, values, cols, depth, sums),
                    3 => add::<3>(&panel, values, cols, depth, sums),
                    2 => add::<2>(&panel, values, cols, depth, sums),
                    _ => add::<1>(&panel, values, cols, depth, sums),
                }
            }
        }
        for (token, sums) in sums.iter().enumerate() {
            for (out, lanes) in out.token(token)[first_row..].iter_mut().zip(sums) {
                *out = sum_lanes(lanes);
            }
        }
    }
}

/// Writes the weights of part of a row as floats, with zeros behind them up to whole lanes.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
fn widen<E: Load>(bytes: &[u8], to: &mut [f32; DEPTH]) {
    prefetch(bytes, bytes.len());
    let whole = bytes.len() / (LANES * E::BYTES) * LANES;
    let (weights, rest) = bytes.split_at(whole * E::BYTES);
    for (i, to) in to[..whole].as_chunks_mut().0.iter_mut().enumerate() {
        // SAFETY: this function has the features that `Load` asks of its callers.
        store_floats(unsafe { E::load(weights, i * 16) }, to);
    }
    if !rest.is_empty() {
        let rest = filled_up::<u8, { LANES * 4 }>(rest);
        for (i, to) in to[whole..][..LANES].as_chunks_mut().0.iter_mut().enumerate() {
            // SAFETY: as above.
            store_floats(unsafe { E::load(&rest, i * 16) }, to);
        }
    }
}

/// Adds the products of `depth` weights of each row and the values of `T` tokens, which lie `cols`
/// apart; each vector of the lanes is added to by itself, in registers.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline(never)]
#[expect(clippy::needless_range_loop, reason = "several arrays have the index")]
fn add<const T: usize>(
    panel: &Panel,
    values: &[f32],
    cols: usize,
    depth: usize,
    sums: &mut [Sums],
) {
    let (whole, has_rest) = (depth / LANES * LANES, !depth.is_multiple_of(LANES));
    let mut rests = [[0.0; LANES]; T];
    for (t, rest) in rests.iter_mut().enumerate() {
        *rest = filled_up(&values[t * cols..][whole..depth]);
    }
    for part in 0..LANES / 16 {
        let mut acc = [[_mm512_setzero_ps(); ROWS]; T];
        for t in 0..T {
            for r in 0..ROWS {
                acc[t][r] = load_floats(&sums[t][r].as_chunks().0[part]);
            }
        }
        for first in (0..whole).step_by(LANES) {
            let mut x = [_mm512_setzero_ps(); T];
            for t in 0..T {
                let at = values.as_ptr().wrapping_add(t * cols + first + part * 16);
                // SAFETY: the 16 floats lie within the first `whole` of the token's values, and those
                // within the slice, or the rests would have panicked.
                x[t] = unsafe { _mm512_loadu_ps(at) };
            }
            multiply::<T>(panel, first + part * 16, &x, &mut acc);
        }
        if has_rest {
            let mut x = [_mm512_setzero_ps(); T];
            for t in 0..T {
                x[t] = load_floats(&rests[t].as_chunks().0[part]);
            }
            multiply::<T>(panel, whole + part * 16, &x, &mut acc);
        }
        for t in 0..T {
            for r in 0..ROWS {
                store_floats(acc[t][r], &mut sums[t][r].as_chunks_mut().0[part]);
            }
        }
    }
}

/// Adds the products of a vector of weights of each row and one of values of each token.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
fn multiply<const T: usize>(
    panel: &Panel,
    at: usize,
    x: &[__m512; T],
    acc: &mut [[__m512; ROWS]; T],
) {
    for r in 0..ROWS {
        let w = load_floats(panel[r][at..].first_chunk().expect("the panel has the depth"));
        for t in 0..T {
            acc[t][r] = _mm512_fmadd_ps(w, x[t], acc[t][r]);
        }
    }
}

/// Returns the sum of the lanes in the order that all tiers share.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
fn sum_lanes(lanes: &[f32; LANES]) -> f32 {
    let parts = lanes.as_chunks().0;
    sum16(_mm512_add_ps(load_floats(&parts[0]), load_floats(&parts[1])))
}

/// Writes a vector.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
fn store_floats(vector: __m512, floats: &mut [f32; 16]) {
    // SAFETY: the array has room for the floats that are written.
    unsafe { _mm512_storeu_ps(floats.as_mut_ptr(), vector) };
}

/// Cuts a tile of one or two tokens into blocks.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
fn cut<E: Load>(tile: &Tile<'_>, products: &mut Products) {
    match tile.tokens {
        1 => blocks::<E, 2, 1>(tile, products),
        _ => blocks::<E, 2, 2>(tile, products),
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
