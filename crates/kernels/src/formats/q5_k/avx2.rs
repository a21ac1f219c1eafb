//! `Q5_K` on AVX2: 16 bytes widened to 16 bits are half the low codes of two units, and one bit
//! each of half of eight units.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m256, __m256i, _mm_cvtsi32_si128, _mm256_and_si256, _mm256_cvtepu8_epi16, _mm256_or_si256,
    _mm256_set1_epi16, _mm256_slli_epi16, _mm256_srl_epi16, _mm256_srli_epi16,
};

use super::Q5K;
use crate::formats::array_at;
use crate::formats::avx2::{Unpack, load_16, one_scale, scaled};
use crate::formats::k_scales::unpack;

impl Unpack for Q5K {
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(step: &[u8; 176]) -> [__m256; 2] {
        let (scales, _) = unpack(array_at(step, 4));
        scaled(scales, one_scale(step, 0))
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn mins(step: &[u8; 176]) -> [__m256; 2] {
        let (_, mins) = unpack(array_at(step, 4));
        scaled(mins, one_scale(step, 2))
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn codes(step: &[u8; 176], unit: usize, half: usize) -> __m256i {
        let words = _mm256_cvtepu8_epi16(load_16(step, 48 + unit / 2 * 32 + 16 * half));
        let low = match unit % 2 {
            0 => _mm256_and_si256(words, _mm256_set1_epi16(15)),
            _ => _mm256_srli_epi16::<4>(words),
        };
        let fifths = _mm256_cvtepu8_epi16(load_16(step, 16 + 16 * half));
        let fifths = _mm256_srl_epi16(
            _mm256_slli_epi16::<4>(fifths),
            _mm_cvtsi32_si128([0, 1, 2, 3, 4, 5, 6, 7][unit]),
        );
        _mm256_or_si256(low, _mm256_and_si256(fifths, _mm256_set1_epi16(16)))
    }
}
