//! Four rows of one- or two-bit weights times one or two tokens, without bringing the weights into
//! their order: one instruction takes the same bits out of 64 bytes, and the activations of those
//! weights lie ready side by side.
//!
//! Invariant: as for `dot`; quarter q of a payload holds the weights of one chunk or half of one.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m512, __m512i, _mm_storeu_ps, _mm_storeu_si128, _mm512_add_epi32, _mm512_castsi512_si128,
    _mm512_cvtepi32_ps, _mm512_dpbusd_epi32, _mm512_extracti32x4_epi32, _mm512_fmadd_ps,
    _mm512_gf2p8affine_epi64_epi8, _mm512_mul_ps, _mm512_permutex2var_epi8, _mm512_set1_epi64,
    _mm512_setzero_ps, _mm512_setzero_si512, _mm512_slli_epi32, _mm512_sub_epi32,
};

use super::dot::{in_quarters, shifted, store};
use super::lanes::{add_quarters, halves_to_quarters, sum_quarters};
use super::load_64;
use crate::formats::{Layout, StepBytes};
use crate::isa::Avx512;
use crate::kernel::{Block, Out};
use crate::quantized::{GROUP, Group, PLANE_WEIGHTS, Planes};

/// Rows multiplied at once.
const ROWS: usize = 4;

/// A format whose rows are payloads of 64 bytes with 8 weights or 4 in each, between scales.
///
/// A byte less one is a weight's code. Callers have the features of [`Avx512`].
pub(in crate::formats) trait Planar: Layout {
    /// Weights in a byte: eight, or four.
    const IN_BYTE: usize;

    /// The bytes of four chunks.
    type Span: StepBytes;

    /// Returns the `i`-th 64 payload bytes of a span, which has `4 · CHUNK / (64 · IN_BYTE)` of them.
    unsafe fn payload(span: &Self::Span, i: usize) -> __m512i;

    /// Returns the scale of chunk c of row r in lane r of quarter c.
    unsafe fn scales(rows: [&Self::Span; ROWS]) -> __m512;

    /// Returns the codes of pairs of bits, 0 to 3.
    unsafe fn codes(bits: __m512i) -> __m512i {
        bits
    }
}

/// Computes a block of a few tokens.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
pub(super) fn rows<U: Planar>(block: &Block<'_>, out: &mut Out<'_, '_>) {
    let token = |t: usize| &block.planes[t * block.token_planes..][..block.token_planes];
    for row in (0..block.rows).step_by(ROWS) {
        let last = block.rows - 1;
        let of = |r: usize| block.row((row + r).min(last));
        let rows = [of(0), of(1), of(2), of(3)];
        for first in (0..block.tokens).step_by(2) {
            if first + 1 == block.tokens {
                store(four_rows::<U, 1>(&rows, &[token(first)]), row, first, out);
            } else {
                let tokens = [token(first), token(first + 1)];
                store(four_rows::<U, 2>(&rows, &tokens), row, first, out);
            }
        }
    }
}

#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
fn four_rows<U: Planar, const B: usize>(
    rows: &[&[u8]; ROWS],
    tokens: &[&[Planes]; B],
) -> [[f32; ROWS]; B] {
    let split = |row| U::Span::split(row);
    let [(a, _), (b, _), (c, _), (d, _)] =
        [split(rows[0]), split(rows[1]), split(rows[2]), split(rows[3])];
    let mut acc = [_mm512_setzero_ps(); B];
    for (i, (((a, b), c), d)) in a.iter().zip(b).zip(c).zip(d).enumerate() {
        add_span::<U, B>([a, b, c, d], tokens, i, &mut acc);
    }
    if !split(rows[0]).1.is_empty() {
        let rest = |row| U::Span::padded(split(row).1);
        let rests = [rest(rows[0]), rest(rows[1]), rest(rows[2]), rest(rows[3])];
        add_span::<U, B>(rests.each_ref(), tokens, a.len(), &mut acc);
    }
    let mut products = [[0.0; ROWS]; B];
    for b in 0..B {
        let sum = add_quarters(acc[b]);
        // SAFETY: the array has room for the four floats that are written.
        unsafe { _mm_storeu_ps(products[b].as_mut_ptr(), sum) };
    }
    products
}

/// Adds span number `i` of `ROWS` rows times `B` tokens.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
fn add_span<U: Planar, const B: usize>(
    rows: [&U::Span; ROWS],
    tokens: &[&[Planes]; B],
    i: usize,
    acc: &mut [__m512; B],
) {
    // A span of 256 weights takes half of the planes.
    let per = PLANE_WEIGHTS / (4 * U::CHUNK);
    let (at, half) = (i / per, i % per);
    let sums = [
        of_row::<U, B>(rows[0], tokens, at, half),
        of_row::<U, B>(rows[1], tokens, at, half),
        of_row::<U, B>(rows[2], tokens, at, half),
        of_row::<U, B>(rows[3], tokens, at, half),
    ];
    // SAFETY: this function has the features that `Planar` asks of its callers.
    let scales = unsafe { U::scales(rows) };
    for b in 0..B {
        let planes = &tokens[b][at];
        let (x_sums, x_scales) = match U::CHUNK {
            64 => (planes.sums_64[half], planes.scales_64[half]),
            _ => (planes.sums, planes.scales),
        };
        let sum = sum_quarters([sums[0][b], sums[1][b], sums[2][b], sums[3][b]]);
        let sum = _mm512_cvtepi32_ps(_mm512_sub_epi32(sum, shifted(x_sums, 0)));
        acc[b] = _mm512_fmadd_ps(_mm512_mul_ps(scales, in_quarters(x_scales)), sum, acc[b]);
    }
}

/// Returns for each token a quarter for each chunk, to be summed.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
fn of_row<U: Planar, const B: usize>(
    row: &U::Span,
    tokens: &[&[Planes]; B],
    at: usize,
    half: usize,
) -> [__m512i; B] {
    super::prefetch(row.as_ref(), super::PREFETCH_BYTES);
    let mut sums = [_mm512_setzero_si512(); B];
    if U::IN_BYTE == 8 {
        // SAFETY: this function has the features that `Planar` asks of its callers.
        let planes = bits(unsafe { U::payload(row, 0) });
        for b in 0..B {
            let x = &tokens[b][at].bits;
            sums[b] = products(&planes, &x[0], &x[1]);
        }
        return sums;
    }
    // SAFETY: as above.
    let planes = pairs::<U>(unsafe { U::payload(row, 0) });
    for b in 0..B {
        let x = &tokens[b][at].pairs[half];
        sums[b] = products(&planes, &x[0], &x[1]);
    }
    if U::CHUNK == 128 {
        // SAFETY: as above.
        let planes = pairs::<U>(unsafe { U::payload(row, 1) });
        for b in 0..B {
            let x = &tokens[b][at].pairs[1];
            sums[b] = halves_to_quarters(sums[b], products(&planes, &x[0], &x[1]));
        }
    }
    sums
}

/// Returns the sums of planes times the high bytes, times 256, and times the low bytes.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
fn products<const N: usize>(
    planes: &[__m512i; N],
    high: &[[u8; 64]; N],
    low: &[[u8; 64]; N],
) -> __m512i {
    // Two sums, since each product waits for the one before it.
    let mut sums = [_mm512_setzero_si512(); 2];
    for i in 0..N {
        sums[i % 2] = _mm512_dpbusd_epi32(sums[i % 2], planes[i], load_64(&high[i], 0));
    }
    sums = [_mm512_slli_epi32::<8>(sums[0]), _mm512_slli_epi32::<8>(sums[1])];
    for i in 0..N {
        sums[i % 2] = _mm512_dpbusd_epi32(sums[i % 2], planes[i], load_64(&low[i], 0));
    }
    _mm512_add_epi32(sums[0], sums[1])
}

/// Returns twice each bit of the bytes, by bit.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
fn bits(payload: __m512i) -> [__m512i; 8] {
    let mut planes = [payload; 8];
    for (bit, plane) in planes.iter_mut().enumerate() {
        // Row 6 of the matrix makes bit 1 of the result.
        let matrix = _mm512_set1_epi64(1 << bit << 48);
        *plane = _mm512_gf2p8affine_epi64_epi8::<0>(payload, matrix);
    }
    planes
}

/// Returns the code of each pair of bits of the bytes, by pair.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
fn pairs<U: Planar>(payload: __m512i) -> [__m512i; 4] {
    let mut planes = [payload; 4];
    for (pair, plane) in planes.iter_mut().enumerate() {
        // Rows 7 and 6 of the matrix make bits 0 and 1 of the result.
        let matrix = (1_u64 << (2 * pair) << 56) | (2_u64 << (2 * pair) << 48);
        let matrix = _mm512_set1_epi64(matrix.cast_signed());
        let bits = _mm512_gf2p8affine_epi64_epi8::<0>(payload, matrix);
        // SAFETY: this function has the features that `Planar` asks of its callers.
        *plane = unsafe { U::codes(bits) };
    }
    planes
}

/// Lays the bytes of quantized activations side by side as bits and pairs of bits lie in bytes.
pub(crate) fn spread(_: Avx512, groups: &[Group], planes: &mut [Planes]) {
    for (groups, planes) in groups.chunks(PLANE_WEIGHTS / GROUP).zip(planes) {
        if groups.len() < PLANE_WEIGHTS / GROUP {
            *planes = Planes::ZERO;
        }
        for (i, group) in groups.iter().enumerate() {
            planes.scales[i] = group.scale;
            planes.sums[i] = group.sum;
            let (half, at) = (i / 2, i % 2 * 2);
            planes.sums_64[half][at..at + 2].copy_from_slice(&group.sums_64);
            planes.scales_64[half][at..at + 2].fill(group.scale);
            // SAFETY: the token proves that the machine has every feature the function enables.
            unsafe { spread_group(group, i, planes) };
        }
    }
}

/// For each byte of a group, plane after plane of eight, the weight it belongs to.
const BITS: [[u8; 64]; 2] = {
    let mut weights = [[0; 64]; 2];
    let mut i = 0;
    while i < 128 {
        weights[i / 64][i % 64] = (i % 16 * 8 + i / 16).to_le_bytes()[0];
        i += 1;
    }
    weights
};

/// For each byte of 64 weights, plane after plane of four, the weight it belongs to.
const PAIRS: [u8; 64] = {
    let mut weights = [0; 64];
    let mut i = 0;
    while i < 64 {
        weights[i] = (i % 16 * 4 + i / 16).to_le_bytes()[0];
        i += 1;
    }
    weights
};

#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
fn spread_group(group: &Group, i: usize, planes: &mut Planes) {
    for (part, bytes) in group.codes.as_chunks::<GROUP>().0.iter().enumerate() {
        let halves = [load_64(bytes, 0), load_64(bytes, 64)];
        for (four, weights) in BITS.iter().enumerate() {
            let spread = _mm512_permutex2var_epi8(halves[0], load_64(weights, 0), halves[1]);
            put(spread, &mut planes.bits[part][4 * four..], i);
        }
        for (half, bytes) in halves.into_iter().enumerate() {
            let spread = _mm512_permutex2var_epi8(bytes, load_64(&PAIRS, 0), bytes);
            put(spread, &mut planes.pairs[i / 2][part], i % 2 * 2 + half);
        }
    }
}

/// Writes the quarters of a vector to the `at`-th quarter of four planes.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
fn put(vector: __m512i, planes: &mut [[u8; 64]], at: usize) {
    let quarters = [
        _mm512_castsi512_si128(vector),
        _mm512_extracti32x4_epi32::<1>(vector),
        _mm512_extracti32x4_epi32::<2>(vector),
        _mm512_extracti32x4_epi32::<3>(vector),
    ];
    for (quarter, plane) in quarters.into_iter().zip(planes) {
        let to: &mut [u8; 16] = &mut plane.as_chunks_mut().0[at];
        // SAFETY: the array has room for the 16 bytes that are written.
        unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), quarter) };
    }
}
