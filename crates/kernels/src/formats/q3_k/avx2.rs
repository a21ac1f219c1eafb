//! `Q3_K` on AVX2: 32 bytes widened to 16 bits serve four units by shifts, and 32 bytes with high
//! bits all units.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m256, __m256i, _mm_cvtsi32_si128, _mm_set_epi64x, _mm_set1_epi8, _mm_sub_epi8,
    _mm256_and_si256, _mm256_cvtepu8_epi16, _mm256_or_si256, _mm256_set1_epi16, _mm256_slli_epi16,
    _mm256_srl_epi16, _mm256_sub_epi16,
};

use super::Q3K;
use crate::formats::array_at;
use crate::formats::avx2::{Unpack, load_16, one_scale, sixteen_scaled};

impl Unpack for Q3K {
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(step: &[u8; 110]) -> [__m256; 2] {
        const LOW_NIBBLES: u64 = 0x0f0f_0f0f_0f0f_0f0f;
        const LOW_PAIRS: u64 = 0x0303_0303;
        let low = u64::from_le_bytes(*array_at(step, 96));
        let high = u64::from(u32::from_le_bytes(*array_at(step, 104)));
        let high = |pair: u32| high >> (2 * pair) & LOW_PAIRS;
        let first = low & LOW_NIBBLES | (high(0) | high(1) << 32) << 4;
        let second = low >> 4 & LOW_NIBBLES | (high(2) | high(3) << 32) << 4;
        let scales = _mm_set_epi64x(second.cast_signed(), first.cast_signed());
        sixteen_scaled(_mm_sub_epi8(scales, _mm_set1_epi8(32)), one_scale(step, 108))
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn codes(step: &[u8; 110], unit: usize, half: usize) -> __m256i {
        let low = _mm256_cvtepu8_epi16(load_16(step, 32 + unit / 4 * 32 + 16 * half));
        let low = _mm256_srl_epi16(low, _mm_cvtsi32_si128([0, 2, 4, 6][unit % 4]));
        let low = _mm256_and_si256(low, _mm256_set1_epi16(3));
        let high = _mm256_slli_epi16::<2>(_mm256_cvtepu8_epi16(load_16(step, 16 * half)));
        let high = _mm256_srl_epi16(high, _mm_cvtsi32_si128([0, 1, 2, 3, 4, 5, 6, 7][unit]));
        let high = _mm256_and_si256(high, _mm256_set1_epi16(4));
        _mm256_sub_epi16(_mm256_or_si256(low, high), _mm256_set1_epi16(4))
    }
}
