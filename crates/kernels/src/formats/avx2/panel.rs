//! Many rows times many tokens: the codes of 16 rows are laid side by side once and meet all tokens.
//!
//! Invariant: a vector of sums has a row in each lane, and a chunk is added to the accumulator of
//! its number modulo 4, in the order of the row.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m256, __m256i, _mm256_add_ps, _mm256_castps_si256, _mm256_castsi256_ps, _mm256_cvtepi32_ps,
    _mm256_fmadd_ps, _mm256_fnmadd_ps, _mm256_loadu_si256, _mm256_mul_ps, _mm256_set1_epi32,
    _mm256_set1_ps, _mm256_setzero_si256, _mm256_storeu_ps, _mm256_storeu_si256,
};

use super::lanes::transpose;
use super::{Multiply, Unpack, load_floats};
use crate::formats::StepBytes;
use crate::kernel::{BLOCK_TOKENS, Block, Out};
use crate::quantized::{GROUP, Group};

/// Rows laid side by side.
const ROWS: usize = 16;

/// Weights of a row laid out at once: they stay in the first cache while the tokens pass.
const DEPTH: usize = 512;

/// The most chunks in so many weights.
const CHUNKS: usize = DEPTH / 16;

/// Tokens multiplied at once: with two vectors each, as many sums as there are registers for.
const TOKENS: usize = 6;

/// Two codes of each row.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Pairs([i32; ROWS]);

/// Some weights of 16 rows.
struct Panel {
    pairs: [Pairs; DEPTH / 2],
    /// The scales of the rows' first chunks, then of their second ones, and so on.
    scales: [[f32; ROWS]; CHUNKS],
    mins: [[f32; ROWS]; CHUNKS],
    /// Scales and minima of eight rows, as they come, with room for two vectors behind the last
    /// chunk.
    of_rows: [[[f32; CHUNKS + 16]; 8]; 2],
}

/// The accumulators of a token: four for each row.
type Sums = [[f32; ROWS]; 4];

/// Computes a block.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn rows<U: Unpack, M: Multiply>(block: &Block<'_>, out: &mut Out<'_, '_>) {
    if block.tokens <= 16 {
        rows_with::<U, M, 16>(block, out);
    } else {
        rows_with::<U, M, BLOCK_TOKENS>(block, out);
    }
}

/// Computes a block of at most `MAX` tokens.
#[target_feature(enable = "avx2,fma,f16c")]
fn rows_with<U: Unpack, M: Multiply, const MAX: usize>(block: &Block<'_>, out: &mut Out<'_, '_>) {
    let mut sums = [[[0.0; ROWS]; 4]; MAX];
    let mut panel = Panel {
        pairs: [Pairs([0; ROWS]); DEPTH / 2],
        scales: [[0.0; ROWS]; CHUNKS],
        mins: [[0.0; ROWS]; CHUNKS],
        of_rows: [[[0.0; CHUNKS + 16]; 8]; 2],
    };
    let depth_bytes = DEPTH / U::STEP * U::Step::LEN;
    let each = block.tokens.div_ceil(block.tokens.div_ceil(TOKENS));
    for first_row in (0..block.rows).step_by(ROWS) {
        let sums = &mut sums[..block.tokens];
        sums.fill([[0.0; ROWS]; 4]);
        for (depth, from) in (0..block.row_bytes).step_by(depth_bytes).enumerate() {
            let chunks = lay_out::<U>(&mut panel, block, first_row, from);
            let first_group = depth * DEPTH / GROUP;
            for (i, sums) in sums.chunks_mut(each).enumerate() {
                let token = |t: usize| &block.token(i * each + t)[first_group..];
                match sums.len() {
                    6 => add::<U, M, 6>(&panel, chunks, token, sums),
                    5 => add::<U, M, 5>(&panel, chunks, token, sums),
                    4 => add::<U, M, 4>(&panel, chunks, token, sums),
                    3 => add::<U, M, 3>(&panel, chunks, token, sums),
                    2 => add::<U, M, 2>(&panel, chunks, token, sums),
                    _ => add::<U, M, 1>(&panel, chunks, token, sums),
                }
            }
        }
        store(sums, first_row, block.rows, out);
    }
}

/// Lays out the weights of 16 rows that begin `from` bytes into each; what juts out repeats the last
/// row. Returns the number of chunks.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline(never)]
fn lay_out<U: Unpack>(
    panel: &mut Panel,
    block: &Block<'_>,
    first_row: usize,
    from: usize,
) -> usize {
    let steps = (block.row_bytes - from).div_ceil(U::Step::LEN).min(DEPTH / U::STEP);
    let chunks = steps * (U::STEP / U::CHUNK);
    for half in 0..2 {
        let rows: [&[u8]; 8] = std::array::from_fn(|r| {
            &block.row((first_row + half * 8 + r).min(block.rows - 1))[from..]
        });
        let [scales, mins] = &mut panel.of_rows;
        for s in 0..steps {
            let mut padded = [None; 8];
            if rows[0].len() < (s + 1) * U::Step::LEN {
                padded = rows.map(|row| Some(U::Step::padded(&row[s * U::Step::LEN..])));
            }
            let steps: [&U::Step; 8] = std::array::from_fn(|r| match &padded[r] {
                Some(padded) => padded,
                None => &U::Step::split(rows[r]).0[s],
            });
            for (r, step) in steps.into_iter().enumerate() {
                let chunk = s * (U::STEP / U::CHUNK);
                // SAFETY: this function has the features that `Unpack` asks of its callers.
                put(unsafe { U::scales(step) }, &mut scales[r], chunk);
                if U::MINS {
                    // SAFETY: as above.
                    put(unsafe { U::mins(step) }, &mut mins[r], chunk);
                }
            }
            for i in 0..U::STEP / 16 {
                let mut codes = [_mm256_setzero_si256(); 8];
                for (codes, step) in codes.iter_mut().zip(steps) {
                    // SAFETY: this function has the features that `Unpack` asks of its callers.
                    *codes = unsafe { U::codes(step, i / 2, i % 2) };
                }
                let to = &mut panel.pairs[s * U::STEP / 2 + i * 8..][..8];
                for (column, to) in transpose(&codes).into_iter().zip(to) {
                    let to: &mut [i32; 8] = &mut to.0.as_chunks_mut().0[half];
                    // SAFETY: the array has room for the 32 bytes that are written.
                    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), column) };
                }
            }
        }
        side_by_side(scales, chunks, &mut panel.scales, half);
        if U::MINS {
            side_by_side(mins, chunks, &mut panel.mins, half);
        }
    }
    chunks
}

/// Writes the values of a step's chunks, and anything behind them, from chunk number `chunk` on.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn put(values: [__m256; 2], to: &mut [f32; CHUNKS + 16], chunk: usize) {
    for (eight, to) in values.into_iter().zip(to[chunk..].as_chunks_mut().0) {
        store_floats(eight, to);
    }
}

/// Writes the values of eight rows to their lanes of each chunk.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn side_by_side(
    rows: &[[f32; CHUNKS + 16]; 8],
    count: usize,
    chunks: &mut [[f32; ROWS]; CHUNKS],
    half: usize,
) {
    for first in (0..count).step_by(8) {
        let mut vectors = [_mm256_setzero_si256(); 8];
        for (vector, row) in vectors.iter_mut().zip(rows) {
            let eight = row[first..].first_chunk().expect("eight to spare");
            *vector = _mm256_castps_si256(load_floats(eight));
        }
        for (vector, to) in transpose(&vectors).into_iter().zip(&mut chunks[first..][..8]) {
            store_floats(_mm256_castsi256_ps(vector), &mut to.as_chunks_mut().0[half]);
        }
    }
}

/// Adds the chunks of a panel times `T` tokens.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline(never)]
#[expect(clippy::needless_range_loop, reason = "several arrays have the index")]
fn add<'a, U: Unpack, M: Multiply, const T: usize>(
    panel: &Panel,
    chunks: usize,
    token: impl Fn(usize) -> &'a [Group],
    sums: &mut [Sums],
) {
    let tokens: [&[Group]; T] = std::array::from_fn(token);
    for chunk in 0..chunks {
        let group = chunk * U::CHUNK / GROUP;
        let mut groups = [&tokens[0][group]; T];
        for t in 1..T {
            groups[t] = &tokens[t][group];
        }
        let totals = totals::<U, M, T>(panel, chunk, &groups);
        for t in 0..T {
            let x_scale = _mm256_set1_ps(groups[t].scale);
            for half in 0..2 {
                let acc = &mut sums[t][chunk % 4].as_chunks_mut().0[half];
                let scale = _mm256_mul_ps(load(&panel.scales[chunk], half), x_scale);
                let total = _mm256_cvtepi32_ps(totals[t][half]);
                let mut sum = _mm256_fmadd_ps(scale, total, load_floats(acc));
                if U::MINS {
                    let x_sum = _mm256_set1_ps(scaled::<U>(groups[t], chunk));
                    sum = _mm256_fnmadd_ps(load(&panel.mins[chunk], half), x_sum, sum);
                }
                store_floats(sum, acc);
            }
        }
    }
}

/// Returns the sums of products of a chunk of 16 rows times `T` groups of activations.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn totals<U: Unpack, M: Multiply, const T: usize>(
    panel: &Panel,
    chunk: usize,
    groups: &[&Group; T],
) -> [[__m256i; 2]; T] {
    let pairs = &panel.pairs[chunk * (U::CHUNK / 2)..][..U::CHUNK / 2];
    let at = chunk * U::CHUNK % GROUP / 2;
    let mut x = [pairs_of(groups[0], at); T];
    for t in 1..T {
        x[t] = pairs_of(groups[t], at);
    }
    let mut totals = [[_mm256_setzero_si256(); 2]; T];
    for (i, pairs) in pairs.iter().enumerate() {
        let halves = pairs.0.as_chunks().0;
        let pairs = [load_pairs(&halves[0]), load_pairs(&halves[1])];
        for t in 0..T {
            // SAFETY: the group has as many codes from there on as `pairs` has.
            let x = unsafe { x[t].wrapping_add(i).read() };
            let x = _mm256_set1_epi32(i32::from_le_bytes(x));
            for half in 0..2 {
                // SAFETY: the token of `M` came with the block.
                totals[t][half] = unsafe { M::add_products(totals[t][half], pairs[half], x) };
            }
        }
    }
    totals
}

/// Returns where the `at`-th pair of codes of a group lies.
#[inline]
fn pairs_of(group: &Group, at: usize) -> *const [u8; 4] {
    group.codes.as_chunks().0[at..].as_ptr()
}

/// Returns the scaled sum of the codes that a chunk meets.
#[inline]
fn scaled<U: Unpack>(group: &Group, chunk: usize) -> f32 {
    match U::CHUNK {
        16 => group.scaled_16[chunk % 8],
        _ => group.scaled_32[chunk % 4],
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn load(rows: &[f32; ROWS], half: usize) -> __m256 {
    load_floats(&rows.as_chunks().0[half])
}

/// Reads the pairs of eight rows.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn load_pairs(pairs: &[i32; 8]) -> __m256i {
    // SAFETY: the array has the 32 bytes that are read.
    unsafe { _mm256_loadu_si256(pairs.as_ptr().cast()) }
}

/// Writes eight floats.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn store_floats(vector: __m256, floats: &mut [f32; 8]) {
    // SAFETY: the array has room for the eight floats that are written.
    unsafe { _mm256_storeu_ps(floats.as_mut_ptr(), vector) };
}

/// Writes the products of 16 rows, or of as many as there are.
#[target_feature(enable = "avx2,fma,f16c")]
fn store(sums: &[Sums], first_row: usize, rows: usize, out: &mut Out<'_, '_>) {
    for (token, sums) in sums.iter().enumerate() {
        let mut products = [0.0; ROWS];
        for (half, to) in products.as_chunks_mut().0.iter_mut().enumerate() {
            let [a, b, c, d] = [0, 1, 2, 3].map(|turn| load(&sums[turn], half));
            store_floats(_mm256_add_ps(_mm256_add_ps(a, c), _mm256_add_ps(b, d)), to);
        }
        let count = ROWS.min(rows - first_row);
        out.token(token)[first_row..][..count].copy_from_slice(&products[..count]);
    }
}
