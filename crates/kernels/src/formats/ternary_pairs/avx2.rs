//! The two-bit formats on AVX2: four bytes in each 32 bits, each byte put into the four lanes of
//! its weights and shifted there, left by a product and then right.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m256, __m256i, _mm256_and_si256, _mm256_andnot_si256, _mm256_blend_ps, _mm256_cmpeq_epi16,
    _mm256_mullo_epi16, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_set1_epi64x,
    _mm256_shuffle_epi8, _mm256_srli_epi16, _mm256_sub_epi16,
};

use super::{BYTE_OF_WEIGHT, Q2_0, Q2_0G128, Tq2_0G128};
use crate::formats::array_at;
use crate::formats::avx2::{Unpack, load_words, one_scale};

impl Unpack for Q2_0 {
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(step: &[u8; 36]) -> [__m256; 2] {
        let ([first, unused], [second, _]) = (one_scale(step, 0), one_scale(step, 18));
        [_mm256_blend_ps::<0b10>(first, second), unused]
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn codes(step: &[u8; 36], unit: usize, half: usize) -> __m256i {
        let codes = pairs(step, 18 * (unit / 2) + 2 + 8 * (unit % 2) + 4 * half);
        _mm256_sub_epi16(codes, _mm256_set1_epi16(1))
    }
}

impl Unpack for Q2_0G128 {
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(step: &[u8; 34]) -> [__m256; 2] {
        one_scale(step, 0)
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn codes(step: &[u8; 34], unit: usize, half: usize) -> __m256i {
        let codes = pairs(step, 2 + 8 * unit + 4 * half);
        _mm256_sub_epi16(codes, _mm256_set1_epi16(1))
    }
}

impl Unpack for Tq2_0G128 {
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(step: &[u8; 34]) -> [__m256; 2] {
        one_scale(step, 32)
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn codes(step: &[u8; 34], unit: usize, half: usize) -> __m256i {
        let codes = pairs(step, 8 * unit + 4 * half);
        let three = _mm256_cmpeq_epi16(codes, _mm256_set1_epi16(3));
        _mm256_andnot_si256(three, _mm256_sub_epi16(codes, _mm256_set1_epi16(1)))
    }
}

/// Returns the 16 codes in the four bytes that start at `at`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn pairs(bytes: &[u8], at: usize) -> __m256i {
    let bytes = _mm256_set1_epi32(i32::from_le_bytes(*array_at(bytes, at)));
    let bytes = _mm256_shuffle_epi8(bytes, load_words(&BYTE_OF_WEIGHT));
    let factors = _mm256_set1_epi64x(0x0001_0004_0010_0040);
    let shifted = _mm256_srli_epi16::<6>(_mm256_mullo_epi16(bytes, factors));
    _mm256_and_si256(shifted, _mm256_set1_epi16(3))
}
