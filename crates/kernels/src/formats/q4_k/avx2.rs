//! `Q4_K` on AVX2: 16 bytes widened to 16 bits are half the codes of two units.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m256, __m256i, _mm256_and_si256, _mm256_cvtepu8_epi16, _mm256_set1_epi16, _mm256_srli_epi16,
};

use super::Q4K;
use crate::formats::array_at;
use crate::formats::avx2::{Unpack, load_16, one_scale, scaled};
use crate::formats::k_scales::unpack;

impl Unpack for Q4K {
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(step: &[u8; 144]) -> [__m256; 2] {
        let (scales, _) = unpack(array_at(step, 4));
        scaled(scales, one_scale(step, 0))
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn mins(step: &[u8; 144]) -> [__m256; 2] {
        let (_, mins) = unpack(array_at(step, 4));
        scaled(mins, one_scale(step, 2))
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn codes(step: &[u8; 144], unit: usize, half: usize) -> __m256i {
        let words = _mm256_cvtepu8_epi16(load_16(step, 16 + unit / 2 * 32 + 16 * half));
        match unit % 2 {
            0 => _mm256_and_si256(words, _mm256_set1_epi16(15)),
            _ => _mm256_srli_epi16::<4>(words),
        }
    }
}
