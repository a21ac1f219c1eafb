//! `Q2_K` on AVX-512: two pairs of bits each of 32 bytes.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{__m512, __m512i, _mm512_and_si512, _mm512_mul_ps, _mm512_set1_epi8};

use super::Q2K;
use crate::formats::array_at;
use crate::formats::avx512::{Unpack, load_32, one_scale, shifted_twice, widened};

const LOW_NIBBLES: u64 = 0x0f0f_0f0f_0f0f_0f0f;

impl Unpack for Q2K {
    const ZERO_LOG2: Option<u32> = None;

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn bytes(step: &[u8; 84], part: usize) -> __m512i {
        let bytes = load_32(step, 16 + part / 2 * 32);
        let pairs = shifted_twice(bytes, [part % 2 * 4, part % 2 * 4 + 2]);
        _mm512_and_si512(pairs, _mm512_set1_epi8(3))
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn scales(step: &[u8; 84]) -> __m512 {
        let low = |at| u64::from_le_bytes(*array_at(step, at)) & LOW_NIBBLES;
        _mm512_mul_ps(one_scale(step, 80), widened([low(0), low(8)]))
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn mins(step: &[u8; 84]) -> __m512 {
        let high = |at| u64::from_le_bytes(*array_at(step, at)) >> 4 & LOW_NIBBLES;
        _mm512_mul_ps(one_scale(step, 82), widened([high(0), high(8)]))
    }
}
