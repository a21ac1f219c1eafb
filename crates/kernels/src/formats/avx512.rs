//! The AVX-512 tier: bytes of codes times the signed bytes of activations, 64 at a time.
//!
//! Formats supply [`Unpack`]; [`dot`] and [`planes`] multiply four rows with one or two tokens, as
//! decoding does, [`panel`] many rows with many tokens. Invariant: all give the reference's bits, since a chunk's
//! sum is exact in any order and the few float operations are the reference's own.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

mod dot;
mod lanes;
pub(super) mod panel;
mod planes;

use std::arch::x86_64::{
    __m128i, __m256i, __m512, __m512i, _MM_HINT_T0, _mm_cvtph_ps, _mm_cvtsi64_si128,
    _mm_loadu_si128, _mm_prefetch, _mm_set_epi64x, _mm256_broadcastsi128_si256, _mm256_loadu_si256,
    _mm256_set1_epi16, _mm512_and_si512, _mm512_broadcast_i64x4, _mm512_castsi128_si512,
    _mm512_castsi256_si512, _mm512_castsi512_si256, _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32,
    _mm512_cvtph_ps, _mm512_inserti32x4, _mm512_inserti64x4, _mm512_loadu_si512,
    _mm512_mask_permutexvar_epi8, _mm512_mask_srli_epi16, _mm512_maskz_permutexvar_epi8,
    _mm512_set1_epi8, _mm512_srlv_epi16, _mm512_zextps128_ps512,
};

use super::q1_0::Q1_0;
use super::ternary_pairs::{Q2_0, Q2_0G128, Tq2_0G128};
use super::{Layout, array_at, dispatch, f16_bits, float};
use crate::format::Format;
use crate::isa::Avx512;
use crate::kernel::{Block, BlockFn, FEW_TOKENS, Out};

pub(super) use lanes::{sum16, transpose_quads};
pub(super) use planes::Planar;
pub(crate) use planes::spread;

/// How far ahead of its use a row that is read alone is fetched.
pub(super) const PREFETCH_BYTES: usize = 4096;

/// Unpacks the steps of a format into vectors; callers have the features of [`Avx512`].
pub(super) trait Unpack: Layout {
    /// What is taken from a byte to make it a code: this power of two, or nothing.
    const ZERO_LOG2: Option<u32>;

    /// Returns the bytes of the `part`-th 64 weights.
    unsafe fn bytes(step: &Self::Step, part: usize) -> __m512i;

    /// Returns the scales of the step's chunks, then anything.
    unsafe fn scales(step: &Self::Step) -> __m512;

    /// Returns the minima of the step's chunks, then anything.
    unsafe fn mins(_step: &Self::Step) -> __m512 {
        unreachable!("only formats with minima are asked for them")
    }
}

/// Returns this tier's code for a format.
pub(crate) fn block_fn(format: Format) -> BlockFn<Avx512> {
    match format {
        Format::Q1_0 => planar_block::<Q1_0>,
        Format::Q2_0 => planar_block::<Q2_0>,
        Format::Q2_0G128 => planar_block::<Q2_0G128>,
        Format::Tq2_0G128 => planar_block::<Tq2_0G128>,
        _ => dispatch!(format, L => block::<L>, E => float::avx512::block::<E>),
    }
}

fn planar_block<U: Unpack + Planar>(isa: Avx512, block: &Block<'_>, out: &mut Out<'_, '_>) {
    if block.planes.is_empty() {
        self::block::<U>(isa, block, out);
    } else {
        // SAFETY: the token proves that the machine has every feature the function enables.
        unsafe { planes::rows::<U>(block, out) }
    }
}

fn block<U: Unpack>(_: Avx512, block: &Block<'_>, out: &mut Out<'_, '_>) {
    if block.tokens <= FEW_TOKENS {
        // SAFETY: the token proves that the machine has every feature the function enables.
        unsafe { dot::rows::<U>(block, out) }
    } else {
        // SAFETY: as above.
        unsafe { panel::rows::<U>(&mut panel::Vectors, block, out) }
    }
}

/// Fetches what lies `distance` bytes beyond `bytes` into the cache; it need not be in any object.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
pub(super) fn prefetch(bytes: &[u8], distance: usize) {
    for line in (0..bytes.len()).step_by(64) {
        let ahead = bytes.as_ptr().cast::<i8>().wrapping_add(line + distance);
        _mm_prefetch::<_MM_HINT_T0>(ahead);
    }
}

/// Reads 16 bytes.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
pub(super) fn load_16(bytes: &[u8], at: usize) -> __m128i {
    let bytes: &[u8; 16] = array_at(bytes, at);
    // SAFETY: the array has the 16 bytes that are read.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// Reads 32 bytes.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
pub(super) fn load_32(bytes: &[u8], at: usize) -> __m256i {
    let bytes: &[u8; 32] = array_at(bytes, at);
    // SAFETY: the array has the 32 bytes that are read.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// Reads 64 bytes.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
pub(super) fn load_64(bytes: &[u8], at: usize) -> __m512i {
    let bytes: &[u8; 64] = array_at(bytes, at);
    // SAFETY: the array has the 64 bytes that are read.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

/// Returns the half at `at` in every lane.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
pub(super) fn one_scale(step: &[u8], at: usize) -> __m512 {
    _mm512_cvtph_ps(_mm256_set1_epi16(f16_bits(step, at).cast_signed()))
}

/// Returns the halves at `at` in each of four blocks of `block` bytes, then zeros.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
pub(super) fn four_scales(step: &[u8], at: usize, block: usize) -> __m512 {
    let bits = |i: usize| u64::from(f16_bits(step, at + i * block)) << (16 * i);
    let bits = _mm_cvtsi64_si128((bits(0) | bits(1) | bits(2) | bits(3)).cast_signed());
    _mm512_zextps128_ps512(_mm_cvtph_ps(bits))
}

/// Returns the low halves of the 16 bytes at each place, followed by their high halves.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
pub(super) fn two_nibbles(step: &[u8], at: [usize; 2]) -> __m512i {
    let [a, b] = at.map(|at| load_16(step, at));
    let bytes = _mm512_inserti64x4::<1>(
        _mm512_castsi256_si512(_mm256_broadcastsi128_si256(a)),
        _mm256_broadcastsi128_si256(b),
    );
    let high = _mm512_mask_srli_epi16::<4>(bytes, 0xff00_ff00, bytes);
    _mm512_and_si512(high, _mm512_set1_epi8(15))
}

/// Returns 32 bytes shifted to the right by the first number of bits, then by the second; bits of a
/// byte's neighbour come in from the left.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
pub(super) fn shifted_twice(bytes: __m256i, by: [usize; 2]) -> __m512i {
    const WORDS: [[i16; 16]; 8] =
        [[0; 16], [1; 16], [2; 16], [3; 16], [4; 16], [5; 16], [6; 16], [7; 16]];
    let [a, b] = by.map(|bits| {
        // SAFETY: the array has the 32 bytes that are read.
        unsafe { _mm256_loadu_si256(WORDS[bits].as_ptr().cast()) }
    });
    let counts = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(a), b);
    _mm512_srlv_epi16(_mm512_broadcast_i64x4(bytes), counts)
}

/// Returns sixteen bytes, given as numbers of eight, as floats.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
pub(super) fn widened(bytes: [u64; 2]) -> __m512 {
    let [low, high] = bytes.map(u64::cast_signed);
    _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_set_epi64x(high, low)))
}

/// Reads four times 16 bytes, the first at `at`, the others 18 bytes further each.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
pub(super) fn four_payloads(span: &[u8; 72], at: usize) -> __m512i {
    let first = _mm512_castsi128_si512(load_16(span, at));
    let second = _mm512_inserti32x4::<1>(first, load_16(span, at + 18));
    let third = _mm512_inserti32x4::<2>(second, load_16(span, at + 36));
    _mm512_inserti32x4::<3>(third, load_16(span, at + 54))
}

/// Returns the halves at the start of the four blocks of 18 bytes of each of four rows: that of
/// block c of row r in lane r of quarter c.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
pub(super) fn sixteen_scales(rows: [&[u8; 72]; 4]) -> __m512 {
    const BYTES: [u8; 64] = {
        let mut bytes = [0; 64];
        let mut i = 0;
        while i < 32 {
            bytes[i] = i.to_le_bytes()[0] / 8 * 18 + i.to_le_bytes()[0] % 2;
            i += 1;
        }
        bytes
    };
    let at = load_64(&BYTES, 0);
    let halves = _mm512_maskz_permutexvar_epi8(0x0303_0303, at, load_64(rows[0], 0));
    let halves = _mm512_mask_permutexvar_epi8(halves, 0x0c0c_0c0c, at, load_64(rows[1], 0));
    let halves = _mm512_mask_permutexvar_epi8(halves, 0x3030_3030, at, load_64(rows[2], 0));
    let halves = _mm512_mask_permutexvar_epi8(halves, 0xc0c0_c0c0, at, load_64(rows[3], 0));
    _mm512_cvtph_ps(_mm512_castsi512_si256(halves))
}
