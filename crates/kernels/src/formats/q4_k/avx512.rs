//! `Q4_K` on AVX-512: the halves of 32 bytes.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{__m512, __m512i, _mm512_and_si512, _mm512_mul_ps, _mm512_set1_epi8};

use super::Q4K;
use crate::formats::avx512::{Unpack, load_32, one_scale, shifted_twice, widened};
use crate::formats::{array_at, k_scales};

impl Unpack for Q4K {
    const ZERO_LOG2: Option<u32> = None;

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn bytes(step: &[u8; 144], part: usize) -> __m512i {
        let nibbles = shifted_twice(load_32(step, 16 + 32 * part), [0, 4]);
        _mm512_and_si512(nibbles, _mm512_set1_epi8(15))
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn scales(step: &[u8; 144]) -> __m512 {
        let (scales, _) = k_scales::unpack(array_at(step, 4));
        _mm512_mul_ps(one_scale(step, 0), widened([scales, 0]))
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn mins(step: &[u8; 144]) -> __m512 {
        let (_, mins) = k_scales::unpack(array_at(step, 4));
        _mm512_mul_ps(one_scale(step, 2), widened([mins, 0]))
    }
}
