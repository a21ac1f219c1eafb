//! TQ2_0 on AVX2: 32 bytes widened to 16 bits serve four units by shifts.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m256, __m256i, _mm_cvtsi32_si128, _mm256_and_si256, _mm256_cvtepu8_epi16, _mm256_set1_epi16,
    _mm256_srl_epi16, _mm256_sub_epi16,
};

use super::Tq2_0;
use crate::formats::avx2::{Unpack, load_16, one_scale};

impl Unpack for Tq2_0 {
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(step: &[u8; 66]) -> [__m256; 2] {
        one_scale(step, 64)
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn codes(step: &[u8; 66], unit: usize, half: usize) -> __m256i {
        let shift = _mm_cvtsi32_si128([0, 2, 4, 6][unit % 4]);
        let words = _mm256_cvtepu8_epi16(load_16(step, unit / 4 * 32 + 16 * half));
        let codes = _mm256_and_si256(_mm256_srl_epi16(words, shift), _mm256_set1_epi16(3));
        _mm256_sub_epi16(codes, _mm256_set1_epi16(1))
    }
}
