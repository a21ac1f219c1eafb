//! `Q5_K` on AVX-512: the halves of 32 bytes, and two bits each of 32 fifth-bit bytes.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m512, __m512i, _mm512_and_si512, _mm512_mul_ps, _mm512_or_si512, _mm512_set1_epi8,
    _mm512_slli_epi16,
};

use super::Q5K;
use crate::formats::avx512::{Unpack, load_32, one_scale, shifted_twice, widened};
use crate::formats::{array_at, k_scales};

impl Unpack for Q5K {
    const ZERO_LOG2: Option<u32> = None;

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn bytes(step: &[u8; 176], part: usize) -> __m512i {
        let nibbles = shifted_twice(load_32(step, 48 + 32 * part), [0, 4]);
        let fifths = shifted_twice(load_32(step, 16), [2 * part, 2 * part + 1]);
        let fifths = _mm512_and_si512(fifths, _mm512_set1_epi8(1));
        let low = _mm512_and_si512(nibbles, _mm512_set1_epi8(15));
        _mm512_or_si512(low, _mm512_slli_epi16::<4>(fifths))
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn scales(step: &[u8; 176]) -> __m512 {
        let (scales, _) = k_scales::unpack(array_at(step, 4));
        _mm512_mul_ps(one_scale(step, 0), widened([scales, 0]))
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn mins(step: &[u8; 176]) -> __m512 {
        let (_, mins) = k_scales::unpack(array_at(step, 4));
        _mm512_mul_ps(one_scale(step, 2), widened([mins, 0]))
    }
}
