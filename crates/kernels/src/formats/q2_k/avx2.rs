//! `Q2_K` on AVX2: 32 bytes widened to 16 bits serve four units by shifts.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m256, __m256i, _mm_and_si128, _mm_cvtsi32_si128, _mm_set1_epi8, _mm_srli_epi16,
    _mm256_and_si256, _mm256_cvtepu8_epi16, _mm256_set1_epi16, _mm256_srl_epi16,
};

use super::Q2K;
use crate::formats::avx2::{Unpack, load_16, one_scale, sixteen_scaled};

impl Unpack for Q2K {
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(step: &[u8; 84]) -> [__m256; 2] {
        let scales = _mm_and_si128(load_16(step, 0), _mm_set1_epi8(15));
        sixteen_scaled(scales, one_scale(step, 80))
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn mins(step: &[u8; 84]) -> [__m256; 2] {
        let mins = _mm_and_si128(_mm_srli_epi16::<4>(load_16(step, 0)), _mm_set1_epi8(15));
        sixteen_scaled(mins, one_scale(step, 82))
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn codes(step: &[u8; 84], unit: usize, half: usize) -> __m256i {
        let shift = _mm_cvtsi32_si128([0, 2, 4, 6][unit % 4]);
        let words = _mm256_cvtepu8_epi16(load_16(step, 16 + unit / 4 * 32 + 16 * half));
        _mm256_and_si256(_mm256_srl_epi16(words, shift), _mm256_set1_epi16(3))
    }
}
