//! Four rows times one or two tokens at a time, read from front to back.
//!
//! Invariant: lane r of quarter q of an accumulator belongs to row r and to the chunks whose number
//! is q modulo 4.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m512, __m512i, _mm_loadu_ps, _mm_loadu_si128, _mm_storeu_ps, _mm512_castps128_ps512,
    _mm512_castsi128_si512, _mm512_cvtepi32_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps,
    _mm512_fnmadd_ps, _mm512_mask_expand_ps, _mm512_mul_ps, _mm512_permutexvar_epi32,
    _mm512_permutexvar_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512,
    _mm512_slli_epi32, _mm512_sub_epi32,
};

use super::lanes::{
    QUARTERS, add_quarters, halves_to_quarters, lanes, sum_quarters, transpose_quads,
    wholes_to_halves,
};
use super::{PREFETCH_BYTES, Unpack, load_64, prefetch};
use crate::formats::{Layout, StepBytes};
use crate::kernel::{Block, Out};
use crate::quantized::{GROUP, Group};

/// Rows multiplied at once.
const ROWS: usize = 4;

/// The most steps in a span.
const SPAN_STEPS: usize = 4;

/// Weights multiplied at once: whole steps with four chunks or a multiple of that.
const fn span<U: Unpack>() -> usize {
    if U::STEP < 4 * U::CHUNK { 4 * U::CHUNK } else { U::STEP }
}

/// What lies behind the whole spans of rows, filled up with zeros.
type Rests<U> = [[<U as Layout>::Step; SPAN_STEPS]; ROWS];

/// Computes a block of a few tokens.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
pub(super) fn rows<U: Unpack>(block: &Block<'_>, out: &mut Out<'_, '_>) {
    let mut rests = [[U::Step::padded(&[]); SPAN_STEPS]; ROWS];
    for row in (0..block.rows).step_by(ROWS) {
        let last = block.rows - 1;
        let of = |r: usize| block.row((row + r).min(last));
        let rows = [of(0), of(1), of(2), of(3)];
        for first in (0..block.tokens).step_by(2) {
            if first + 1 == block.tokens {
                store(four_rows::<U, 1>(&rows, &[block.token(first)], &mut rests), row, first, out);
            } else {
                let tokens = [block.token(first), block.token(first + 1)];
                store(four_rows::<U, 2>(&rows, &tokens, &mut rests), row, first, out);
            }
        }
    }
}

/// Hands over the products of four rows from `row` on with `B` tokens from `first` on.
pub(super) fn store<const B: usize>(
    products: [[f32; ROWS]; B],
    row: usize,
    first: usize,
    out: &mut Out<'_, '_>,
) {
    for (token, products) in products.iter().enumerate() {
        for (out, product) in out.token(first + token)[row..].iter_mut().zip(products) {
            *out = *product;
        }
    }
}

#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
fn four_rows<U: Unpack, const B: usize>(
    rows: &[&[u8]; ROWS],
    tokens: &[&[Group]; B],
    rests: &mut Rests<U>,
) -> [[f32; ROWS]; B] {
    let (steps, groups) = (span::<U>() / U::STEP, span::<U>() / GROUP);
    let spans = rows[0].len() / (steps * U::Step::LEN);
    let mut acc = [_mm512_setzero_ps(); B];
    let whole = spans * steps * U::Step::LEN;
    let has_rest = whole < rows[0].len();
    if has_rest {
        for (rest, row) in rests.iter_mut().zip(rows) {
            for (to, step) in rest.iter_mut().zip(row[whole..].chunks(U::Step::LEN)) {
                *to = U::Step::padded(step);
            }
        }
    }
    // One call for all spans, so that it is compiled into here.
    for span in 0..spans + usize::from(has_rest) {
        let mut span_rows = [&[][..]; ROWS];
        for r in 0..ROWS {
            span_rows[r] = if span < spans {
                &U::Step::split(rows[r]).0[span * steps..][..steps]
            } else {
                &rests[r][..steps]
            };
        }
        let mut span_tokens = [&[][..]; B];
        for b in 0..B {
            span_tokens[b] = &tokens[b][span * groups..][..groups];
        }
        add_span::<U, B>(&span_rows, &span_tokens, &mut acc);
    }
    let mut products = [[0.0; ROWS]; B];
    for b in 0..B {
        let sum = add_quarters(acc[b]);
        // SAFETY: the array has room for the four floats that are written.
        unsafe { _mm_storeu_ps(products[b].as_mut_ptr(), sum) };
    }
    products
}

/// What a row of a span comes to.
#[derive(Clone, Copy)]
struct OfRow<const B: usize> {
    /// The scales and minima of the span's chunks.
    scales: __m512,
    mins: __m512,
    /// By token and quad of chunks: a quarter for each chunk, to be summed.
    quarters: [[__m512i; 4]; B],
}

/// Adds a span of `ROWS` rows times `B` tokens.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
fn add_span<U: Unpack, const B: usize>(
    rows: &[&[U::Step]; ROWS],
    tokens: &[&[Group]; B],
    acc: &mut [__m512; B],
) {
    let rows = [
        of_row::<U, B>(rows[0], tokens),
        of_row::<U, B>(rows[1], tokens),
        of_row::<U, B>(rows[2], tokens),
        of_row::<U, B>(rows[3], tokens),
    ];
    let scales = [rows[0].scales, rows[1].scales, rows[2].scales, rows[3].scales];
    let mins = [rows[0].mins, rows[1].mins, rows[2].mins, rows[3].mins];
    for q in 0..span::<U>() / (4 * U::CHUNK) {
        let scale = transpose_quads(scales, q);
        for b in 0..B {
            let mut sum = sum_quarters([
                rows[0].quarters[b][q],
                rows[1].quarters[b][q],
                rows[2].quarters[b][q],
                rows[3].quarters[b][q],
            ]);
            if let Some(zero) = U::ZERO_LOG2 {
                sum = _mm512_sub_epi32(sum, shifted(x_sums::<U>(tokens[b], q), zero));
            }
            let scale = _mm512_mul_ps(scale, x_scales::<U>(tokens[b], q));
            acc[b] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sum), acc[b]);
            if U::MINS {
                let min = transpose_quads(mins, q);
                acc[b] = _mm512_fnmadd_ps(min, x_scaled::<U>(tokens[b], q), acc[b]);
            }
        }
    }
}

/// Multiplies a span of one row.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
fn of_row<U: Unpack, const B: usize>(row: &[U::Step], tokens: &[&[Group]; B]) -> OfRow<B> {
    let mut scales = _mm512_setzero_ps();
    let mut mins = _mm512_setzero_ps();
    let mut sums = [[_mm512_setzero_si512(); 4]; B];
    for (s, step) in row.iter().enumerate() {
        prefetch(step.as_ref(), PREFETCH_BYTES);
        // SAFETY: this function has the features that `Unpack` asks of its callers.
        scales = behind::<U>(scales, unsafe { U::scales(step) }, s);
        if U::MINS {
            // SAFETY: as above.
            mins = behind::<U>(mins, unsafe { U::mins(step) }, s);
        }
        sum_step::<U, B>(step, tokens, s, &mut sums);
    }
    let mut quarters = sums;
    for b in 0..B {
        quarters[b] = to_quarters::<U>(sums[b]);
    }
    OfRow { scales, mins, quarters }
}

/// Returns `all` with the values of the chunks of step `s` in their lanes.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
fn behind<U: Unpack>(all: __m512, of_step: __m512, s: usize) -> __m512 {
    match s {
        0 => of_step,
        _ => _mm512_mask_expand_ps(all, u16::MAX << (s * (U::STEP / U::CHUNK)), of_step),
    }
}

/// Adds the products of step `s` of a span, whose chunks are quarters, halves or wholes of `sums` or,
/// with 128 weights, one of them.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
#[expect(clippy::needless_range_loop, reason = "several arrays have the index")]
fn sum_step<U: Unpack, const B: usize>(
    step: &U::Step,
    tokens: &[&[Group]; B],
    s: usize,
    sums: &mut [[__m512i; 4]; B],
) {
    let parts = if U::CHUNK == 128 { 2 } else { 1 };
    for i in 0..U::STEP / 64 / parts {
        let first = s * U::STEP / 64 + i * parts;
        let mut bytes = [_mm512_setzero_si512(); 2];
        for part in 0..parts {
            // SAFETY: this function has the features that `Unpack` asks of its callers.
            bytes[part] = unsafe { U::bytes(step, i * parts + part) };
        }
        for b in 0..B {
            let mut sum = _mm512_setzero_si512();
            for part in 0..parts {
                let (group, at) = group_of(first + part);
                sum = _mm512_dpbusd_epi32(sum, bytes[part], load_64(&tokens[b][group].codes, at));
            }
            sum = _mm512_slli_epi32::<8>(sum);
            for part in 0..parts {
                let (group, at) = group_of(first + part);
                let low = load_64(&tokens[b][group].codes, GROUP + at);
                sum = _mm512_dpbusd_epi32(sum, bytes[part], low);
            }
            sums[b][first / parts] = sum;
        }
    }
}

/// Returns the group that has the `part`-th 64 weights, and where in it they begin.
#[inline]
const fn group_of(part: usize) -> (usize, usize) {
    (part / 2, part % 2 * 64)
}

/// Returns for each quad of chunks a vector with a quarter for each chunk.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
fn to_quarters<U: Unpack>(sums: [__m512i; 4]) -> [__m512i; 4] {
    let [a, b, c, d] = sums;
    let none = _mm512_setzero_si512();
    match U::CHUNK {
        16 => sums,
        32 => [halves_to_quarters(a, b), halves_to_quarters(c, d), none, none],
        _ => {
            let quad = halves_to_quarters(wholes_to_halves(a, b), wholes_to_halves(c, d));
            [quad, none, none, none]
        }
    }
}

/// Returns the sums of the codes of a quad's chunks.
#[inline]
fn x_sums<U: Unpack>(x: &[Group], quad: usize) -> [i32; 4] {
    match U::CHUNK {
        16 => x[quad / 2].sums_16.as_chunks().0[quad % 2],
        32 => x[quad].sums_32,
        64 => {
            let (low, high) = (x[0].sums_64, x[1].sums_64);
            [low[0], low[1], high[0], high[1]]
        }
        _ => [x[0].sum, x[1].sum, x[2].sum, x[3].sum],
    }
}

/// Returns `sums`, each in its quarter, times a power of two.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
pub(super) fn shifted(sums: [i32; 4], log2: u32) -> __m512i {
    // SAFETY: the array has the sixteen bytes that are read.
    let sums = unsafe { _mm_loadu_si128(sums.as_ptr().cast()) };
    let sums = _mm512_permutexvar_epi32(lanes(&QUARTERS), _mm512_castsi128_si512(sums));
    match log2 {
        0 => sums,
        2 => _mm512_slli_epi32::<2>(sums),
        3 => _mm512_slli_epi32::<3>(sums),
        4 => _mm512_slli_epi32::<4>(sums),
        5 => _mm512_slli_epi32::<5>(sums),
        7 => _mm512_slli_epi32::<7>(sums),
        _ => unreachable!("no format has such a zero"),
    }
}

/// Returns the scales of the activations of a quad's chunks, each in its quarter.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
fn x_scales<U: Unpack>(x: &[Group], quad: usize) -> __m512 {
    match U::CHUNK {
        16 => _mm512_set1_ps(x[quad / 2].scale),
        32 => _mm512_set1_ps(x[quad].scale),
        64 => in_quarters([x[0].scale, x[0].scale, x[1].scale, x[1].scale]),
        _ => in_quarters([x[0].scale, x[1].scale, x[2].scale, x[3].scale]),
    }
}

/// Returns the scaled sums of the codes of a quad's chunks, each in its quarter.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
fn x_scaled<U: Unpack>(x: &[Group], quad: usize) -> __m512 {
    match U::CHUNK {
        16 => in_quarters(x[quad / 2].scaled_16.as_chunks().0[quad % 2]),
        _ => in_quarters(x[quad].scaled_32),
    }
}

#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
/// Returns `values`, each in its quarter.
pub(super) fn in_quarters(values: [f32; 4]) -> __m512 {
    // SAFETY: the array has the four floats that are read.
    let values = unsafe { _mm_loadu_ps(values.as_ptr()) };
    _mm512_permutexvar_ps(lanes(&QUARTERS), _mm512_castps128_ps512(values))
}
