//! Four rows times one or two tokens, read once from front to back.
//!
//! Invariant: an accumulator has two rows, one in each half; lane q of a half belongs to the chunks
//! whose number is q modulo 4.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m128, __m256, __m256i, _mm_loadu_ps, _mm_set1_ps, _mm_setr_ps, _mm256_cvtepi32_ps,
    _mm256_fmadd_ps, _mm256_fnmadd_ps, _mm256_mul_ps, _mm256_set_m128, _mm256_setzero_ps,
    _mm256_setzero_si256, _mm256_storeu_ps,
};

use super::lanes::{add_turns, sum_quads};
use super::{Multiply, Unpack, load_32, prefetch};
use crate::formats::StepBytes;
use crate::kernel::{Block, Out};
use crate::quantized::{GROUP, Group};

/// Rows multiplied at once.
const ROWS: usize = 4;

/// The most steps in a span.
const SPAN_STEPS: usize = 4;

/// The most groups in a span.
const SPAN_GROUPS: usize = 4;

/// Weights multiplied at once: whole steps with four chunks or a multiple of that.
const fn span<U: Unpack>() -> usize {
    if U::STEP < 4 * U::CHUNK { 4 * U::CHUNK } else { U::STEP }
}

/// The scales or minima of the chunks of a span, with room for two vectors behind the last step's.
type OfChunks = [f32; 16 + SPAN_STEPS];

/// Computes a block of one or two tokens.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn rows<U: Unpack, M: Multiply>(block: &Block<'_>, out: &mut Out<'_, '_>) {
    for row in (0..block.rows).step_by(ROWS) {
        let last = block.rows - 1;
        let rows = [row, row + 1, row + 2, row + 3].map(|row| block.row(row.min(last)));
        match block.tokens {
            1 => store(four_rows::<U, M, 1>(&rows, &[block.token(0)]), row, out),
            _ => store(four_rows::<U, M, 2>(&rows, &[block.token(0), block.token(1)]), row, out),
        }
    }
}

fn store<const B: usize>(products: [[f32; ROWS]; B], row: usize, out: &mut Out<'_, '_>) {
    for (token, products) in products.iter().enumerate() {
        for (out, product) in out.token(token)[row..].iter_mut().zip(products) {
            *out = *product;
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn four_rows<U: Unpack, M: Multiply, const B: usize>(
    rows: &[&[u8]; ROWS],
    tokens: &[&[Group]; B],
) -> [[f32; ROWS]; B] {
    let (steps, groups) = (span::<U>() / U::STEP, span::<U>() / GROUP);
    let whole = steps_of::<U>(rows);
    let spans = whole[0].len() / steps;
    let rest = (whole[0].len() * U::Step::LEN < rows[0].len() || spans * steps < whole[0].len())
        .then(|| rest::<U, B>(rows, tokens, spans));
    let mut acc = [[_mm256_setzero_ps(); 2]; B];
    // One call for all spans, so that it is compiled into here.
    for span in 0..spans + usize::from(rest.is_some()) {
        let (rows, tokens) = match &rest {
            Some((rows, tokens)) if span == spans => {
                (part(&slices(rows), 0, steps), part(&slices(tokens), 0, groups))
            }
            _ => (part(&whole, span * steps, steps), part(tokens, span * groups, groups)),
        };
        for pair in 0..2 {
            let rows = [rows[2 * pair], rows[2 * pair + 1]];
            add_span::<U, M, B>(&rows, &tokens, &mut acc, pair);
        }
    }
    let mut products = [[0.0; ROWS]; B];
    for b in 0..B {
        let ([first, second], [third, fourth]) = (add_turns(acc[b][0]), add_turns(acc[b][1]));
        products[b] = [first, second, third, fourth];
    }
    products
}

/// Returns the whole steps of each row.
#[inline]
fn steps_of<'a, U: Unpack>(rows: &[&'a [u8]; ROWS]) -> [&'a [U::Step]; ROWS] {
    rows.map(|row| U::Step::split(row).0)
}

/// Returns the same part of each slice.
#[inline]
fn part<'a, T, const N: usize>(all: &[&'a [T]; N], first: usize, count: usize) -> [&'a [T]; N] {
    let mut parts = [&[][..]; N];
    for (part, all) in parts.iter_mut().zip(all) {
        *part = &all[first..][..count];
    }
    parts
}

/// Returns the arrays as slices.
#[inline]
fn slices<T, const L: usize, const N: usize>(arrays: &[[T; L]; N]) -> [&[T]; N] {
    arrays.each_ref().map(|array| &array[..])
}

/// What lies behind the whole spans, filled up with zeros.
type Rest<U, const B: usize> =
    ([[<U as crate::formats::Layout>::Step; SPAN_STEPS]; ROWS], [[Group; SPAN_GROUPS]; B]);

#[cold]
fn rest<U: Unpack, const B: usize>(
    rows: &[&[u8]; ROWS],
    tokens: &[&[Group]; B],
    spans: usize,
) -> Rest<U, B> {
    let (steps, groups) = (span::<U>() / U::STEP, span::<U>() / GROUP);
    let rows = rows.map(|row| {
        let row = &row[spans * steps * U::Step::LEN..];
        std::array::from_fn(|step| {
            let from = row.len().min(step * U::Step::LEN);
            U::Step::padded(&row[from..row.len().min(from + U::Step::LEN)])
        })
    });
    let tokens = tokens.map(|token| {
        let rest = &token[spans * groups..];
        std::array::from_fn(|group| rest.get(group).copied().unwrap_or(Group::ZERO))
    });
    (rows, tokens)
}

/// Adds a span of the `pair`-th two rows times `B` tokens.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
#[expect(clippy::needless_range_loop, reason = "several arrays have the index")]
fn add_span<U: Unpack, M: Multiply, const B: usize>(
    rows: &[&[U::Step]; 2],
    tokens: &[&[Group]; B],
    acc: &mut [[__m256; 2]; B],
    pair: usize,
) {
    let mut scales = [[0.0; 16 + SPAN_STEPS]; 2];
    let mut mins = [[0.0; 16 + SPAN_STEPS]; 2];
    for r in 0..2 {
        for (s, step) in rows[r].iter().enumerate() {
            prefetch(step.as_ref());
            let chunk = s * (U::STEP / U::CHUNK);
            // SAFETY: this function has the features that `Unpack` asks of its callers.
            put(unsafe { U::scales(step) }, &mut scales[r], chunk);
            if U::MINS {
                // SAFETY: as above.
                put(unsafe { U::mins(step) }, &mut mins[r], chunk);
            }
        }
    }
    for q in 0..span::<U>() / (4 * U::CHUNK) {
        let mut sums = [[[_mm256_setzero_si256(); 4]; 2]; B];
        for r in 0..2 {
            for c in 0..4 {
                let chunk: [__m256i; B] = chunk::<U, M, B>(rows[r], tokens, 4 * q + c);
                for b in 0..B {
                    sums[b][r][c] = chunk[b];
                }
            }
        }
        let scale = quads(&scales, q);
        for b in 0..B {
            let sum = _mm256_cvtepi32_ps(sum_quads(sums[b]));
            let x_scale = x_scales::<U>(tokens[b], q);
            let scale = _mm256_mul_ps(scale, _mm256_set_m128(x_scale, x_scale));
            acc[b][pair] = _mm256_fmadd_ps(scale, sum, acc[b][pair]);
            if U::MINS {
                let x_sum = x_scaled::<U>(tokens[b], q);
                let x_sum = _mm256_set_m128(x_sum, x_sum);
                acc[b][pair] = _mm256_fnmadd_ps(quads(&mins, q), x_sum, acc[b][pair]);
            }
        }
    }
}

/// Writes the values of a step's chunks, and anything behind them, from chunk number `chunk` on.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn put(values: [__m256; 2], to: &mut OfChunks, chunk: usize) {
    let to = to[chunk..][..16].as_chunks_mut::<8>().0;
    for (to, eight) in to.iter_mut().zip(values) {
        // SAFETY: the array has room for the eight floats that are written.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), eight) };
    }
}

/// Returns sums whose lanes add up to the sum of a chunk's products with each token.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn chunk<U: Unpack, M: Multiply, const B: usize>(
    row: &[U::Step],
    tokens: &[&[Group]; B],
    chunk: usize,
) -> [__m256i; B] {
    let mut sums = [_mm256_setzero_si256(); B];
    for first in (chunk * U::CHUNK..(chunk + 1) * U::CHUNK).step_by(16) {
        let step = &row[first / U::STEP];
        // SAFETY: this function has the features that `Unpack` asks of its callers.
        let codes = unsafe { U::codes(step, first % U::STEP / 32, first / 16 % 2) };
        for (sum, x) in sums.iter_mut().zip(tokens) {
            let x = load_32(&x[first / GROUP].codes, first % GROUP * 2);
            // SAFETY: the token of `M` came with the block.
            *sum = unsafe { M::add_products(*sum, codes, x) };
        }
    }
    sums
}

/// Returns the values of the `quad`-th four chunks of each row, one row to a half.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn quads(rows: &[OfChunks; 2], quad: usize) -> __m256 {
    let (low, high) = (&rows[0].as_chunks().0[quad], &rows[1].as_chunks().0[quad]);
    _mm256_set_m128(load_four(high), load_four(low))
}

/// Returns the scales of the activations of a quad's chunks.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn x_scales<U: Unpack>(x: &[Group], quad: usize) -> __m128 {
    match U::CHUNK {
        16 => _mm_set1_ps(x[quad / 2].scale),
        32 => _mm_set1_ps(x[quad].scale),
        64 => _mm_setr_ps(
            x[2 * quad].scale,
            x[2 * quad].scale,
            x[2 * quad + 1].scale,
            x[2 * quad + 1].scale,
        ),
        _ => _mm_setr_ps(x[0].scale, x[1].scale, x[2].scale, x[3].scale),
    }
}

/// Returns the scaled sums of the codes of a quad's chunks.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn x_scaled<U: Unpack>(x: &[Group], quad: usize) -> __m128 {
    match U::CHUNK {
        16 => load_four(&x[quad / 2].scaled_16.as_chunks().0[quad % 2]),
        _ => load_four(&x[quad].scaled_32),
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn load_four(values: &[f32; 4]) -> __m128 {
    // SAFETY: the array has the four floats that are read.
    unsafe { _mm_loadu_ps(values.as_ptr()) }
}
