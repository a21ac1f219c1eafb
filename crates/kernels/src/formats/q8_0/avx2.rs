//! Q8_0 on AVX2: 16 bytes widened to 16 bits at a time.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{__m256, __m256i, _mm256_cvtepi8_epi16};

use super::Q8_0;
use crate::formats::avx2::{Unpack, four_scales, load_16};

impl Unpack for Q8_0 {
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn scales(step: &[u8; 136]) -> [__m256; 2] {
        four_scales(step, 0, 34)
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn codes(step: &[u8; 136], unit: usize, half: usize) -> __m256i {
        _mm256_cvtepi8_epi16(load_16(step, 34 * unit + 2 + 16 * half))
    }
}
