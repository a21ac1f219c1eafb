//! Q8_0 on AVX-512: two blocks of 32 signed bytes, 128 added to each.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m512, __m512i, _mm512_castsi256_si512, _mm512_inserti64x4, _mm512_set1_epi8, _mm512_xor_si512,
};

use super::Q8_0;
use crate::formats::avx512::{Unpack, four_scales, load_32};

impl Unpack for Q8_0 {
    const ZERO_LOG2: Option<u32> = Some(7);

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn bytes(step: &[u8; 136], part: usize) -> __m512i {
        let low = _mm512_castsi256_si512(load_32(step, 68 * part + 2));
        let both = _mm512_inserti64x4::<1>(low, load_32(step, 68 * part + 36));
        _mm512_xor_si512(both, _mm512_set1_epi8(i8::MIN))
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn scales(step: &[u8; 136]) -> __m512 {
        four_scales(step, 0, 34)
    }
}
