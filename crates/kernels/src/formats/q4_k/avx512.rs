//! `Q4_K` on AVX-512: 32 bytes widened to 16 bits are the codes of two units.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m512, __m512i, _mm_cvtsi64_si128, _mm_unpacklo_epi8, _mm512_and_si512, _mm512_cvtepi32_ps,
    _mm512_cvtepu8_epi16, _mm512_cvtepu8_epi32, _mm512_mul_ps, _mm512_set1_epi16,
    _mm512_srli_epi16,
};

use super::Q4K;
use crate::formats::avx512::{Unpack, load_32, one_scale};
use crate::formats::k_scales::unpack;
use crate::formats::{Decoded, array_at};

impl Unpack for Q4K {
    type View = [u8; 144];

    #[inline]
    fn view<'a>(step: &'a [u8; 144], _: &'a Decoded) -> &'a [u8; 144] {
        step
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn scales(step: &[u8; 144]) -> __m512 {
        let (scales, _) = unpack(array_at(step, 4));
        _mm512_mul_ps(one_scale(step, 0), spread(scales))
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn mins(step: &[u8; 144]) -> __m512 {
        let (_, mins) = unpack(array_at(step, 4));
        _mm512_mul_ps(one_scale(step, 2), spread(mins))
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn codes(step: &[u8; 144], unit: usize) -> __m512i {
        let words = _mm512_cvtepu8_epi16(load_32(step, 16 + unit / 2 * 32));
        match unit % 2 {
            0 => _mm512_and_si512(words, _mm512_set1_epi16(15)),
            _ => _mm512_srli_epi16::<4>(words),
        }
    }
}

/// Returns each of eight bytes in two lanes.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn spread(bytes: u64) -> __m512 {
    let bytes = _mm_cvtsi64_si128(bytes.cast_signed());
    _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_unpacklo_epi8(bytes, bytes)))
}
