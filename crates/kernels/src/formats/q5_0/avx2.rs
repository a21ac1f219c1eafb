//! Q5_0 on AVX2: 16 bytes widened to 16 bits hold both halves of a unit, 16 bits a fifth bit each.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m256, __m256i, _mm256_and_si256, _mm256_cvtepu8_epi16, _mm256_or_si256, _mm256_set1_epi16,
    _mm256_srli_epi16, _mm256_sub_epi16,
};

use super::Q5_0;
use crate::formats::array_at;
use crate::formats::avx2::{Unpack, four_scales, load_16, sixteens};

impl Unpack for Q5_0 {
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(step: &[u8; 88]) -> [__m256; 2] {
        four_scales(step, 0, 22)
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn codes(step: &[u8; 88], unit: usize, half: usize) -> __m256i {
        let block = 22 * unit;
        let words = _mm256_cvtepu8_epi16(load_16(step, block + 6));
        let low = match half {
            0 => _mm256_and_si256(words, _mm256_set1_epi16(15)),
            _ => _mm256_srli_epi16::<4>(words),
        };
        let fifths = sixteens(u16::from_le_bytes(*array_at(step, block + 2 + 2 * half)));
        _mm256_sub_epi16(_mm256_or_si256(low, fifths), _mm256_set1_epi16(16))
    }
}
