//! Q5_1 on AVX-512: the halves of two times 16 bytes, and 64 fifth bits as a mask.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m512, __m512i, _mm512_mask_add_epi8, _mm512_set1_epi8, _mm512_set1_ps, _mm512_xor_ps,
};

use super::Q5_1;
use crate::formats::array_at;
use crate::formats::avx512::{Unpack, four_scales, two_nibbles};

impl Unpack for Q5_1 {
    const ZERO_LOG2: Option<u32> = None;

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn bytes(step: &[u8; 96], part: usize) -> __m512i {
        let [first, second] = [48 * part, 48 * part + 24];
        let low = two_nibbles(step, [first + 8, second + 8]);
        let fifth = |at| u64::from(u32::from_le_bytes(*array_at(step, at)));
        let fifths = fifth(first + 4) | fifth(second + 4) << 32;
        _mm512_mask_add_epi8(low, fifths, low, _mm512_set1_epi8(16))
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn scales(step: &[u8; 96]) -> __m512 {
        four_scales(step, 0, 24)
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn mins(step: &[u8; 96]) -> __m512 {
        _mm512_xor_ps(four_scales(step, 2, 24), _mm512_set1_ps(-0.0))
    }
}
