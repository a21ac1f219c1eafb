//! TQ1_0 on AVX-512: a digit is the carry of the byte times a power of three, times three.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m128i, __m256i, __m512, __m512i, _mm_broadcastd_epi32, _mm_loadu_si32,
    _mm256_broadcastsi128_si256, _mm256_castsi128_si256, _mm256_inserti128_si256, _mm512_and_si512,
    _mm512_castsi256_si512, _mm512_cvtepi16_epi8, _mm512_cvtepu8_epi16, _mm512_inserti64x4,
    _mm512_loadu_si512, _mm512_mullo_epi16, _mm512_set1_epi16, _mm512_srli_epi16,
};

use super::Tq1_0;
use crate::formats::array_at;
use crate::formats::avx512::{Unpack, load_16, load_32, one_scale};

impl Unpack for Tq1_0 {
    const ZERO_LOG2: Option<u32> = Some(0);

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn bytes(step: &[u8; 54], part: usize) -> __m512i {
        let low = _mm512_castsi256_si512(unit(step, 2 * part));
        _mm512_inserti64x4::<1>(low, unit(step, 2 * part + 1))
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn scales(step: &[u8; 54]) -> __m512 {
        one_scale(step, 52)
    }
}

/// Returns the 32 digits, 0 to 2, of a unit.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
fn unit(step: &[u8; 54], unit: usize) -> __m256i {
    let middle = load_16(step, 32);
    let bytes = match unit {
        0..5 => load_32(step, 0),
        5 | 6 => _mm256_broadcastsi128_si256(middle),
        _ => _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(middle), last_four(step)),
    };
    // SAFETY: the array has the 32 words that are read.
    let powers = unsafe { _mm512_loadu_si512(POWERS[unit].as_ptr().cast()) };
    let products = _mm512_mullo_epi16(_mm512_cvtepu8_epi16(bytes), powers);
    let fractions = _mm512_and_si512(products, _mm512_set1_epi16(0xff));
    let digits = _mm512_mullo_epi16(fractions, _mm512_set1_epi16(3));
    _mm512_cvtepi16_epi8(_mm512_srli_epi16::<8>(digits))
}

/// Returns the last four code bytes, four times.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
fn last_four(step: &[u8; 54]) -> __m128i {
    let bytes: &[u8; 4] = array_at(step, 48);
    // SAFETY: the array has the four bytes that are read.
    _mm_broadcastd_epi32(unsafe { _mm_loadu_si32(bytes.as_ptr()) })
}

/// The power of three of each digit of a unit.
const POWERS: [[i16; 32]; 8] = {
    let mut powers = [[0; 32]; 8];
    let mut unit = 0;
    while unit < 8 {
        let mut i = 0;
        while i < 32 {
            let digit = match unit {
                0..5 => unit,
                5 => i / 16,
                6 => 2 + i / 16,
                _ if i < 16 => 4,
                _ => (i - 16) / 4,
            };
            powers[unit][i] = [1, 3, 9, 27, 81][digit];
            i += 1;
        }
        unit += 1;
    }
    powers
};
