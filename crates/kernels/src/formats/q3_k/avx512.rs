//! `Q3_K` on AVX-512: two pairs of bits each of 32 bytes, and two bits each of 32 high-bit bytes.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m512, __m512i, _mm512_and_si512, _mm512_mul_ps, _mm512_or_si512, _mm512_set1_epi8,
    _mm512_set1_ps, _mm512_slli_epi16, _mm512_sub_ps,
};

use super::Q3K;
use crate::formats::array_at;
use crate::formats::avx512::{Unpack, load_32, one_scale, shifted_twice, widened};

impl Unpack for Q3K {
    const ZERO_LOG2: Option<u32> = Some(2);

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn bytes(step: &[u8; 110], part: usize) -> __m512i {
        let low = load_32(step, 32 + part / 2 * 32);
        let low = shifted_twice(low, [part % 2 * 4, part % 2 * 4 + 2]);
        let low = _mm512_and_si512(low, _mm512_set1_epi8(3));
        let high = shifted_twice(load_32(step, 0), [2 * part, 2 * part + 1]);
        let high = _mm512_and_si512(high, _mm512_set1_epi8(1));
        _mm512_or_si512(low, _mm512_slli_epi16::<2>(high))
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn scales(step: &[u8; 110]) -> __m512 {
        const LOW_NIBBLES: u64 = 0x0f0f_0f0f_0f0f_0f0f;
        const LOW_PAIRS: u64 = 0x0303_0303;
        let low = u64::from_le_bytes(*array_at(step, 96));
        let high = u64::from(u32::from_le_bytes(*array_at(step, 104)));
        let high = |pair: u32| high >> (2 * pair) & LOW_PAIRS;
        let first = low & LOW_NIBBLES | (high(0) | high(1) << 32) << 4;
        let second = low >> 4 & LOW_NIBBLES | (high(2) | high(3) << 32) << 4;
        let scales = _mm512_sub_ps(widened([first, second]), _mm512_set1_ps(32.0));
        _mm512_mul_ps(one_scale(step, 108), scales)
    }
}
