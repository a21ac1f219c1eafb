//! Q4_0 on AVX-512: 16 bytes in both halves of a vector, the upper half shifted.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m512, __m512i, _mm256_broadcastsi128_si256, _mm256_set1_epi16, _mm512_and_si512,
    _mm512_cvtepu8_epi16, _mm512_inserti64x4, _mm512_set1_epi16, _mm512_setzero_si512,
    _mm512_srlv_epi16, _mm512_sub_epi16,
};

use super::Q4_0;
use crate::formats::Decoded;
use crate::formats::avx512::{Unpack, four_scales, load_16};

impl Unpack for Q4_0 {
    type View = [u8; 72];

    #[inline]
    fn view<'a>(step: &'a [u8; 72], _: &'a Decoded) -> &'a [u8; 72] {
        step
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn scales(step: &[u8; 72]) -> __m512 {
        four_scales(step, 0, 18)
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn codes(step: &[u8; 72], unit: usize) -> __m512i {
        let bytes = load_16(step, 18 * unit + 2);
        let words = _mm512_cvtepu8_epi16(_mm256_broadcastsi128_si256(bytes));
        let shifts = _mm512_inserti64x4::<1>(_mm512_setzero_si512(), _mm256_set1_epi16(4));
        let codes = _mm512_and_si512(_mm512_srlv_epi16(words, shifts), _mm512_set1_epi16(15));
        _mm512_sub_epi16(codes, _mm512_set1_epi16(8))
    }
}
