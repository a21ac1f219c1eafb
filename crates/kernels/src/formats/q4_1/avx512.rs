//! Q4_1 on AVX-512: the halves of two times 16 bytes.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{__m512, __m512i, _mm512_set1_ps, _mm512_xor_ps};

use super::Q4_1;
use crate::formats::avx512::{Unpack, four_scales, two_nibbles};

impl Unpack for Q4_1 {
    const ZERO_LOG2: Option<u32> = None;

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn bytes(step: &[u8; 80], part: usize) -> __m512i {
        two_nibbles(step, [40 * part + 4, 40 * part + 24])
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn scales(step: &[u8; 80]) -> __m512 {
        four_scales(step, 0, 20)
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn mins(step: &[u8; 80]) -> __m512 {
        _mm512_xor_ps(four_scales(step, 2, 20), _mm512_set1_ps(-0.0))
    }
}
