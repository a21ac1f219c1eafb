//! `Q6_K` on AVX-512: a half of each of 64 bytes, and two pairs of bits each of 32 bytes.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m512, __m512i, _mm512_and_si512, _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_mul_ps,
    _mm512_or_si512, _mm512_set1_epi8, _mm512_set1_epi16, _mm512_slli_epi16, _mm512_srlv_epi16,
};

use super::Q6K;
use crate::formats::avx512::{Unpack, load_16, load_32, load_64, one_scale, shifted_twice};

impl Unpack for Q6K {
    const ZERO_LOG2: Option<u32> = Some(5);

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn bytes(step: &[u8; 210], part: usize) -> __m512i {
        let low = load_64(step, part / 2 * 64);
        let low = _mm512_srlv_epi16(low, _mm512_set1_epi16([0, 4][part % 2]));
        let low = _mm512_and_si512(low, _mm512_set1_epi8(15));
        let high = load_32(step, 128 + part / 2 * 32);
        let high = shifted_twice(high, [part % 2 * 4, part % 2 * 4 + 2]);
        let high = _mm512_and_si512(high, _mm512_set1_epi8(3));
        _mm512_or_si512(low, _mm512_slli_epi16::<4>(high))
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn scales(step: &[u8; 210]) -> __m512 {
        let scales = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_16(step, 192)));
        _mm512_mul_ps(one_scale(step, 208), scales)
    }
}
