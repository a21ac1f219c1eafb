//! TQ1_0 on AVX2: a digit is the carry of the byte times a power of three, times three.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m256, __m256i, _mm_set1_epi32, _mm256_and_si256, _mm256_cvtepu8_epi16, _mm256_mullo_epi16,
    _mm256_set1_epi16, _mm256_srli_epi16, _mm256_sub_epi16,
};

use super::{POWERS, Tq1_0};
use crate::formats::array_at;
use crate::formats::avx2::{Unpack, load_16, load_words, one_scale};

impl Unpack for Tq1_0 {
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(step: &[u8; 54]) -> [__m256; 2] {
        one_scale(step, 52)
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn codes(step: &[u8; 54], unit: usize, half: usize) -> __m256i {
        let (bytes, powers) = match 2 * unit + half {
            sixteen @ 0..10 => {
                (load_16(step, sixteen % 2 * 16), _mm256_set1_epi16(i16::from(POWERS[sixteen / 2])))
            }
            sixteen @ 10..15 => {
                (load_16(step, 32), _mm256_set1_epi16(i16::from(POWERS[sixteen - 10])))
            }
            _ => {
                let last_four = i32::from_le_bytes(*array_at(step, 48));
                (_mm_set1_epi32(last_four), load_words(&POWERS_OF_FOURS))
            }
        };
        let products = _mm256_mullo_epi16(_mm256_cvtepu8_epi16(bytes), powers);
        let fractions = _mm256_and_si256(products, _mm256_set1_epi16(0xff));
        let digits = _mm256_mullo_epi16(fractions, _mm256_set1_epi16(3));
        _mm256_sub_epi16(_mm256_srli_epi16::<8>(digits), _mm256_set1_epi16(1))
    }
}

/// The powers of the digits of the last four code bytes.
const POWERS_OF_FOURS: [i16; 16] = [1, 1, 1, 1, 3, 3, 3, 3, 9, 9, 9, 9, 27, 27, 27, 27];
