//! The AVX2 tiers: 16-bit codes times the 16-bit codes of activations, sixteen at a time.
//!
//! Formats supply [`Unpack`], the instruction that multiplies is [`Multiply`]'s; [`dot`] multiplies
//! four rows with one or two tokens, as decoding does, [`panel`] many rows with many tokens.
//! Invariant: all give the reference's bits, since a chunk's sum is exact in any order and the few
//! float operations are the reference's own.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

mod dot;
mod lanes;
mod panel;

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _MM_HINT_T0, _mm_cvtph_ps, _mm_cvtsi64_si128, _mm_loadu_si128,
    _mm_prefetch, _mm_set1_epi16, _mm_srli_si128, _mm256_add_epi32, _mm256_and_si256,
    _mm256_cmpeq_epi16, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps, _mm256_cvtepu8_epi32,
    _mm256_cvtph_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_mul_ps,
    _mm256_set1_epi16, _mm256_setzero_ps, _mm256_setzero_si256, _mm256_zextps128_ps256,
};

use super::{HALF, Layout, array_at, dispatch, f16_bits, float};
use crate::format::Format;
use crate::isa::{Avx2, AvxVnni};
use crate::kernel::{Block, BlockFn, Out};

pub(super) use lanes::sum16;

/// How far ahead of its use a row that is read alone is fetched.
const PREFETCH_BYTES: usize = 4096;

/// The most tokens that are multiplied row by row.
const DOT_TOKENS: usize = 2;

/// Unpacks the steps of a format into vectors; callers have the features of [`Avx2`].
pub(super) trait Unpack: Layout {
    /// Returns the 16 codes of the lower (0) or upper (1) half of a unit.
    unsafe fn codes(step: &Self::Step, unit: usize, half: usize) -> __m256i;

    /// Returns the scales of the step's chunks, then anything.
    unsafe fn scales(step: &Self::Step) -> [__m256; 2];

    /// Returns the minima of the step's chunks, then anything.
    unsafe fn mins(_step: &Self::Step) -> [__m256; 2] {
        unreachable!("only formats with minima are asked for them")
    }
}

/// The instruction that multiplies; callers have the features of the token that implements it.
trait Multiply: Copy {
    /// Adds to each sum the products of its two codes.
    unsafe fn add_products(sums: __m256i, codes: __m256i, x: __m256i) -> __m256i;
}

impl Multiply for Avx2 {
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn add_products(sums: __m256i, codes: __m256i, x: __m256i) -> __m256i {
        _mm256_add_epi32(sums, _mm256_madd_epi16(codes, x))
    }
}

impl Multiply for AvxVnni {
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn add_products(mut sums: __m256i, codes: __m256i, x: __m256i) -> __m256i {
        // An intrinsic would not be inlined into functions that lack its feature.
        // SAFETY: the instruction is of the set that the token proves; it has no other effects.
        unsafe {
            std::arch::asm!(
                "{{vex}} vpdpwssd {sums}, {codes}, {x}",
                sums = inout(ymm_reg) sums,
                codes = in(ymm_reg) codes,
                x = in(ymm_reg) x,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sums
    }
}

/// Returns the code of the AVX2 tier for a format.
pub(crate) fn block_fn(format: Format) -> BlockFn<Avx2> {
    dispatch!(format, L => block::<L, Avx2>, E => float::avx2::block::<E>)
}

/// Returns the code of the AVX-VNNI tier for a format.
pub(crate) fn vnni_block_fn(format: Format) -> BlockFn<AvxVnni> {
    dispatch!(
        format,
        L => block::<L, AvxVnni>,
        E => |isa, block, out| float::avx2::block::<E>(isa.vectors(), block, out)
    )
}

fn block<U: Unpack, M: Multiply>(_: M, block: &Block<'_>, out: &mut Out<'_, '_>) {
    if block.tokens <= DOT_TOKENS {
        // SAFETY: the token proves that the machine has every feature the function enables.
        unsafe { dot::rows::<U, M>(block, out) }
    } else {
        // SAFETY: as above.
        unsafe { panel::rows::<U, M>(block, out) }
    }
}

/// Fetches what lies `PREFETCH_BYTES` beyond `bytes` into the cache; it need not be in any object.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn prefetch(bytes: &[u8]) {
    for line in (0..bytes.len()).step_by(64) {
        let ahead = bytes.as_ptr().cast::<i8>().wrapping_add(line + PREFETCH_BYTES);
        _mm_prefetch::<_MM_HINT_T0>(ahead);
    }
}

/// Reads sixteen words.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn load_words(words: &[i16; HALF]) -> __m256i {
    // SAFETY: the array has the 32 bytes that are read.
    unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
}

/// Reads 16 bytes.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn load_16(bytes: &[u8], at: usize) -> __m128i {
    let bytes: &[u8; 16] = array_at(bytes, at);
    // SAFETY: the array has the 16 bytes that are read.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// Reads 32 bytes.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn load_32(bytes: &[u8], at: usize) -> __m256i {
    let bytes: &[u8; 32] = array_at(bytes, at);
    // SAFETY: the array has the 32 bytes that are read.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// Reads eight floats.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn load_floats(floats: &[f32; 8]) -> __m256 {
    // SAFETY: the array has the eight floats that are read.
    unsafe { _mm256_loadu_ps(floats.as_ptr()) }
}

/// Returns the half at `at` in every lane.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn one_scale(step: &[u8], at: usize) -> [__m256; 2] {
    [_mm256_cvtph_ps(_mm_set1_epi16(f16_bits(step, at).cast_signed())); 2]
}

/// Returns the halves at `at` in each of four blocks of `block` bytes.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn four_scales(step: &[u8], at: usize, block: usize) -> [__m256; 2] {
    let mut bits = 0;
    for i in 0..4 {
        bits |= u64::from(f16_bits(step, at + i * block)) << (16 * i);
    }
    let bits = _mm_cvtsi64_si128(bits.cast_signed());
    let four = _mm256_zextps128_ps256(_mm_cvtph_ps(bits));
    [four, _mm256_setzero_ps()]
}

/// Returns eight bytes, given as a number, times a scale, then anything.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn scaled(bytes: u64, scale: [__m256; 2]) -> [__m256; 2] {
    let bytes = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes.cast_signed()));
    [_mm256_mul_ps(scale[0], _mm256_cvtepi32_ps(bytes)), scale[1]]
}

/// Returns sixteen signed bytes times a scale.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn sixteen_scaled(bytes: __m128i, scale: [__m256; 2]) -> [__m256; 2] {
    let low = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
    let high = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes)));
    [_mm256_mul_ps(scale[0], low), _mm256_mul_ps(scale[1], high)]
}

/// Returns 16 where a bit is set, the lowest bit's lane first.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn sixteens(bits: u16) -> __m256i {
    _mm256_and_si256(clear(!bits), _mm256_set1_epi16(16))
}

/// Returns −1 where a bit is clear, the lowest bit's lane first.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn clear(bits: u16) -> __m256i {
    const LANES: [i16; 16] = {
        let mut lanes = [0; 16];
        let mut lane = 0;
        while lane < 16 {
            lanes[lane] = (1_u16 << lane).cast_signed();
            lane += 1;
        }
        lanes
    };
    let bits = _mm256_and_si256(_mm256_set1_epi16(bits.cast_signed()), load_words(&LANES));
    _mm256_cmpeq_epi16(bits, _mm256_setzero_si256())
}
