//! `Q4_K` on AVX2: 16 bytes widened to 16 bits are half the codes of two units.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m256, __m256i, _mm_cvtsi64_si128, _mm_srli_si128, _mm_unpacklo_epi8, _mm256_and_si256,
    _mm256_cvtepi32_ps, _mm256_cvtepu8_epi16, _mm256_cvtepu8_epi32, _mm256_mul_ps,
    _mm256_set1_epi16, _mm256_srli_epi16,
};

use super::Q4K;
use crate::formats::avx2::{Unpack, load_16, one_scale};
use crate::formats::k_scales::unpack;
use crate::formats::{Decoded, array_at};

impl Unpack for Q4K {
    type View = [u8; 144];

    #[inline]
    fn view<'a>(step: &'a [u8; 144], _: &'a Decoded) -> &'a [u8; 144] {
        step
    }

    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    unsafe fn scales(step: &[u8; 144]) -> [__m256; 2] {
        let (scales, _) = unpack(array_at(step, 4));
        spread(scales, one_scale(step, 0))
    }

    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    unsafe fn mins(step: &[u8; 144]) -> [__m256; 2] {
        let (_, mins) = unpack(array_at(step, 4));
        spread(mins, one_scale(step, 2))
    }

    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    unsafe fn codes(step: &[u8; 144], unit: usize, half: usize) -> __m256i {
        let words = _mm256_cvtepu8_epi16(load_16(step, 16 + unit / 2 * 32 + 16 * half));
        match unit % 2 {
            0 => _mm256_and_si256(words, _mm256_set1_epi16(15)),
            _ => _mm256_srli_epi16::<4>(words),
        }
    }
}

/// Returns each of eight bytes in two lanes, times `scale`.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn spread(bytes: u64, scale: [__m256; 2]) -> [__m256; 2] {
    let bytes = _mm_cvtsi64_si128(bytes.cast_signed());
    let bytes = _mm_unpacklo_epi8(bytes, bytes);
    let low = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
    let high = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128::<8>(bytes)));
    [_mm256_mul_ps(scale[0], low), _mm256_mul_ps(scale[1], high)]
}
