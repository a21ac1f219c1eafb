//! `Q6_K` on AVX2: low and high bits are widened to 16 bits, shifted and joined.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m256, __m256i, _mm_cvtsi32_si128, _mm256_and_si256, _mm256_cvtepu8_epi16, _mm256_or_si256,
    _mm256_set1_epi16, _mm256_slli_epi16, _mm256_srl_epi16, _mm256_sub_epi16,
};

use super::Q6K;
use crate::formats::avx2::{Unpack, load_16, one_scale, sixteen_scaled};

impl Unpack for Q6K {
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(step: &[u8; 210]) -> [__m256; 2] {
        sixteen_scaled(load_16(step, 192), one_scale(step, 208))
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn codes(step: &[u8; 210], unit: usize, half: usize) -> __m256i {
        let (part, n) = (unit / 4, unit % 4);
        let low = _mm256_cvtepu8_epi16(load_16(step, part * 64 + n % 2 * 32 + 16 * half));
        let low = _mm256_srl_epi16(low, _mm_cvtsi32_si128([0, 0, 4, 4][n]));
        let low = _mm256_and_si256(low, _mm256_set1_epi16(0x0f));
        let high = _mm256_cvtepu8_epi16(load_16(step, 128 + part * 32 + 16 * half));
        let high = _mm256_slli_epi16::<4>(high);
        let high = _mm256_srl_epi16(high, _mm_cvtsi32_si128([0, 2, 4, 6][n]));
        let high = _mm256_and_si256(high, _mm256_set1_epi16(0x30));
        _mm256_sub_epi16(_mm256_or_si256(low, high), _mm256_set1_epi16(32))
    }
}
