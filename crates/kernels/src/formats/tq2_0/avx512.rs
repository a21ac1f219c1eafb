//! TQ2_0 on AVX-512: 32 bytes shifted to two of their four pairs of bits.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{__m512, __m512i, _mm512_and_si512, _mm512_set1_epi8};

use super::Tq2_0;
use crate::formats::avx512::{Unpack, load_32, one_scale, shifted_twice};

impl Unpack for Tq2_0 {
    const ZERO_LOG2: Option<u32> = Some(0);

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn bytes(step: &[u8; 66], part: usize) -> __m512i {
        let bytes = load_32(step, part / 2 * 32);
        let pairs = shifted_twice(bytes, [part % 2 * 4, part % 2 * 4 + 2]);
        _mm512_and_si512(pairs, _mm512_set1_epi8(3))
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn scales(step: &[u8; 66]) -> __m512 {
        one_scale(step, 64)
    }
}
