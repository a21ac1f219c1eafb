//! Q1_0 on AVX2: each of 16 lanes tests its bit; a clear one gives −1, a set one 0 or 1 = 1.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{__m256, __m256i, _mm256_or_si256, _mm256_set1_epi16};

use super::Q1_0;
use crate::formats::array_at;
use crate::formats::avx2::{Unpack, clear, one_scale};

impl Unpack for Q1_0 {
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(step: &[u8; 18]) -> [__m256; 2] {
        one_scale(step, 0)
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn codes(step: &[u8; 18], unit: usize, half: usize) -> __m256i {
        let bits = u16::from_le_bytes(*array_at(step, 2 + 4 * unit + 2 * half));
        _mm256_or_si256(clear(bits), _mm256_set1_epi16(1))
    }
}
