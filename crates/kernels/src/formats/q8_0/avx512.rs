//! Q8_0 on AVX-512: 32 bytes widened to 16 bits.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{__m512, __m512i, _mm512_cvtepi8_epi16};

use super::Q8_0;
use crate::formats::Decoded;
use crate::formats::avx512::{Unpack, four_scales, load_32};

impl Unpack for Q8_0 {
    type View = [u8; 136];

    #[inline]
    fn view<'a>(step: &'a [u8; 136], _: &'a Decoded) -> &'a [u8; 136] {
        step
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn scales(step: &[u8; 136]) -> __m512 {
        four_scales(step, 0, 34)
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn codes(step: &[u8; 136], unit: usize) -> __m512i {
        _mm512_cvtepi8_epi16(load_32(step, 34 * unit + 2))
    }
}
