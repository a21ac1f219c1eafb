//! Q4_0 on AVX-512: the halves of two times 16 bytes.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{__m512, __m512i};

use super::Q4_0;
use crate::formats::avx512::{Unpack, four_scales, two_nibbles};

impl Unpack for Q4_0 {
    const ZERO_LOG2: Option<u32> = Some(3);

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn bytes(step: &[u8; 72], part: usize) -> __m512i {
        two_nibbles(step, [36 * part + 2, 36 * part + 20])
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn scales(step: &[u8; 72]) -> __m512 {
        four_scales(step, 0, 18)
    }
}
