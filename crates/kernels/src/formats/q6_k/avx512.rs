//! `Q6_K` on AVX-512: low and high bits are widened to 16 bits, shifted and joined.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m512, __m512i, _mm512_and_si512, _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps,
    _mm512_cvtepu8_epi16, _mm512_mul_ps, _mm512_or_si512, _mm512_set1_epi16, _mm512_slli_epi16,
    _mm512_srlv_epi16, _mm512_sub_epi16,
};

use super::Q6K;
use crate::formats::Decoded;
use crate::formats::avx512::{Unpack, load_16, load_32, one_scale};

impl Unpack for Q6K {
    type View = [u8; 210];

    #[inline]
    fn view<'a>(step: &'a [u8; 210], _: &'a Decoded) -> &'a [u8; 210] {
        step
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn scales(step: &[u8; 210]) -> __m512 {
        let scales = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_16(step, 192)));
        _mm512_mul_ps(one_scale(step, 208), scales)
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn codes(step: &[u8; 210], unit: usize) -> __m512i {
        let (part, n) = (unit / 4, unit % 4);
        let low = _mm512_cvtepu8_epi16(load_32(step, part * 64 + n % 2 * 32));
        let low = _mm512_srlv_epi16(low, _mm512_set1_epi16([0, 0, 4, 4][n]));
        let low = _mm512_and_si512(low, _mm512_set1_epi16(0x0f));
        let high = _mm512_cvtepu8_epi16(load_32(step, 128 + part * 32));
        let high = _mm512_slli_epi16::<4>(high);
        let high = _mm512_srlv_epi16(high, _mm512_set1_epi16([0, 2, 4, 6][n]));
        let high = _mm512_and_si512(high, _mm512_set1_epi16(0x30));
        _mm512_sub_epi16(_mm512_or_si512(low, high), _mm512_set1_epi16(32))
    }
}
