//! Q1_0 on AVX-512: the bits of a unit are a mask that chooses between 1 and −1.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{__m512, __m512i, _mm512_mask_blend_epi16, _mm512_set1_epi16};

use super::Q1_0;
use crate::formats::avx512::{Unpack, one_scale};
use crate::formats::{Decoded, array_at};

impl Unpack for Q1_0 {
    type View = [u8; 18];

    #[inline]
    fn view<'a>(step: &'a [u8; 18], _: &'a Decoded) -> &'a [u8; 18] {
        step
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn scales(step: &[u8; 18]) -> __m512 {
        one_scale(step, 0)
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn codes(step: &[u8; 18], unit: usize) -> __m512i {
        let bits = u32::from_le_bytes(*array_at(step, 2 + 4 * unit));
        _mm512_mask_blend_epi16(bits, _mm512_set1_epi16(-1), _mm512_set1_epi16(1))
    }
}
