//! Q1_0 on AVX2: each of 16 lanes tests its bit; a clear one gives −1, a set one 0 or 1 = 1.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m256, __m256i, _mm256_and_si256, _mm256_cmpeq_epi16, _mm256_or_si256, _mm256_set1_epi16,
    _mm256_setr_epi16, _mm256_setzero_si256,
};

use super::Q1_0;
use crate::formats::avx2::{Unpack, one_scale};
use crate::formats::{Decoded, array_at};

impl Unpack for Q1_0 {
    type View = [u8; 18];

    #[inline]
    fn view<'a>(step: &'a [u8; 18], _: &'a Decoded) -> &'a [u8; 18] {
        step
    }

    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    unsafe fn scales(step: &[u8; 18]) -> [__m256; 2] {
        one_scale(step, 0)
    }

    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    unsafe fn codes(step: &[u8; 18], unit: usize, half: usize) -> __m256i {
        let bits = u16::from_le_bytes(*array_at(step, 2 + 4 * unit + 2 * half));
        let bits = _mm256_and_si256(_mm256_set1_epi16(bits.cast_signed()), lane_bits());
        let clear = _mm256_cmpeq_epi16(bits, _mm256_setzero_si256());
        _mm256_or_si256(clear, _mm256_set1_epi16(1))
    }
}

/// Returns bit l in lane l.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn lane_bits() -> __m256i {
    _mm256_setr_epi16(
        1,
        2,
        4,
        8,
        0x10,
        0x20,
        0x40,
        0x80,
        0x100,
        0x200,
        0x400,
        0x800,
        0x1000,
        0x2000,
        0x4000,
        i16::MIN,
    )
}
