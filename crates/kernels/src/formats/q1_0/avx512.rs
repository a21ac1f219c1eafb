//! Q1_0 on AVX-512: 64 bits are a mask that chooses between 2 and 0, one more than the weights.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{__m512, __m512i, _mm512_maskz_set1_epi8};

use super::Q1_0;
use crate::formats::array_at;
use crate::formats::avx512::{Planar, Unpack, four_payloads, one_scale, sixteen_scales};

impl Unpack for Q1_0 {
    const ZERO_LOG2: Option<u32> = Some(0);

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn bytes(step: &[u8; 18], part: usize) -> __m512i {
        let bits = u64::from_le_bytes(*array_at(step, 2 + 8 * part));
        _mm512_maskz_set1_epi8(bits, 2)
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn scales(step: &[u8; 18]) -> __m512 {
        one_scale(step, 0)
    }
}

impl Planar for Q1_0 {
    const IN_BYTE: usize = 8;
    type Span = [u8; 72];

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn payload(span: &[u8; 72], _: usize) -> __m512i {
        four_payloads(span, 2)
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn scales(rows: [&[u8; 72]; 4]) -> __m512 {
        sixteen_scales(rows)
    }
}
