//! TQ2_0 on AVX-512: 32 bytes widened to 16 bits serve four units by shifts.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m512, __m512i, _mm512_and_si512, _mm512_cvtepu8_epi16, _mm512_set1_epi16, _mm512_srlv_epi16,
    _mm512_sub_epi16,
};

use super::Tq2_0;
use crate::formats::Decoded;
use crate::formats::avx512::{Unpack, load_32, one_scale};

impl Unpack for Tq2_0 {
    type View = [u8; 66];

    #[inline]
    fn view<'a>(step: &'a [u8; 66], _: &'a Decoded) -> &'a [u8; 66] {
        step
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn scales(step: &[u8; 66]) -> __m512 {
        one_scale(step, 64)
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn codes(step: &[u8; 66], unit: usize) -> __m512i {
        let words = _mm512_cvtepu8_epi16(load_32(step, unit / 4 * 32));
        let shift = [0, 2, 4, 6][unit % 4];
        let codes = _mm512_srlv_epi16(words, _mm512_set1_epi16(shift));
        let codes = _mm512_and_si512(codes, _mm512_set1_epi16(3));
        _mm512_sub_epi16(codes, _mm512_set1_epi16(1))
    }
}
