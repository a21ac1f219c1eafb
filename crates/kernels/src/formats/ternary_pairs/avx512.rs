//! Formats of two bits per weight on AVX-512: 16 bytes spread over 64, each shifted to its bits.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m512, __m512i, _mm_cvtph_ps, _mm_cvtsi32_si128, _mm512_and_si512, _mm512_broadcast_i32x4,
    _mm512_castsi256_si512, _mm512_inserti64x4, _mm512_loadu_si512, _mm512_multishift_epi64_epi8,
    _mm512_set1_epi8, _mm512_set1_epi64, _mm512_shuffle_epi8, _mm512_zextps128_ps512,
};

use super::{Q2_0, Q2_0G128, Tq2_0G128};
use crate::formats::avx512::{
    Planar, Unpack, four_payloads, four_scales, load_16, load_32, one_scale, sixteen_scales,
    transpose_quads,
};
use crate::formats::f16_bits;

impl Unpack for Q2_0 {
    const ZERO_LOG2: Option<u32> = Some(0);

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn bytes(step: &[u8; 36], part: usize) -> __m512i {
        pairs(step, 18 * part + 2)
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn scales(step: &[u8; 36]) -> __m512 {
        let bits = u32::from(f16_bits(step, 0)) | u32::from(f16_bits(step, 18)) << 16;
        _mm512_zextps128_ps512(_mm_cvtph_ps(_mm_cvtsi32_si128(bits.cast_signed())))
    }
}

impl Unpack for Q2_0G128 {
    const ZERO_LOG2: Option<u32> = Some(0);

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn bytes(step: &[u8; 34], part: usize) -> __m512i {
        pairs(step, 2 + 16 * part)
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn scales(step: &[u8; 34]) -> __m512 {
        one_scale(step, 0)
    }
}

impl Unpack for Tq2_0G128 {
    const ZERO_LOG2: Option<u32> = Some(0);

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn bytes(step: &[u8; 34], part: usize) -> __m512i {
        without_3(pairs(step, 16 * part))
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn scales(step: &[u8; 34]) -> __m512 {
        one_scale(step, 32)
    }
}

/// Returns the four pairs of bits of each of 16 bytes.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
fn pairs(step: &[u8], at: usize) -> __m512i {
    const BYTES: [u8; 64] = {
        let mut bytes = [0; 64];
        let mut i = 0;
        while i < 64 {
            bytes[i] = i.to_le_bytes()[0] / 4;
            i += 1;
        }
        bytes
    };
    const SHIFTS: i64 = 0x2624_2220_0604_0200;
    // SAFETY: the array has the 64 bytes that are read.
    let bytes = unsafe { _mm512_loadu_si512(BYTES.as_ptr().cast()) };
    let spread = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(load_16(step, at)), bytes);
    let shifted = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(SHIFTS), spread);
    _mm512_and_si512(shifted, _mm512_set1_epi8(3))
}

impl Planar for Q2_0 {
    const IN_BYTE: usize = 4;
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

impl Planar for Q2_0G128 {
    const IN_BYTE: usize = 4;
    type Span = [u8; 136];

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn payload(span: &[u8; 136], i: usize) -> __m512i {
        two_payloads(span, 2 + 68 * i)
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn scales(rows: [&[u8; 136]; 4]) -> __m512 {
        let scales = |r: usize| four_scales(rows[r], 0, 34);
        transpose_quads([scales(0), scales(1), scales(2), scales(3)], 0)
    }
}

impl Planar for Tq2_0G128 {
    const IN_BYTE: usize = 4;
    type Span = [u8; 136];

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn payload(span: &[u8; 136], i: usize) -> __m512i {
        two_payloads(span, 68 * i)
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn scales(rows: [&[u8; 136]; 4]) -> __m512 {
        let scales = |r: usize| four_scales(rows[r], 32, 34);
        transpose_quads([scales(0), scales(1), scales(2), scales(3)], 0)
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    unsafe fn codes(bits: __m512i) -> __m512i {
        without_3(bits)
    }
}

/// Reads 32 bytes at `at` and 34 bytes further.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
fn two_payloads(span: &[u8; 136], at: usize) -> __m512i {
    let first = _mm512_castsi256_si512(load_32(span, at));
    _mm512_inserti64x4::<1>(first, load_32(span, at + 34))
}

/// Returns codes with 1 in place of 3.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
fn without_3(codes: __m512i) -> __m512i {
    const CODE_3_IS_1: i64 = 0x0102_0100;
    _mm512_shuffle_epi8(_mm512_set1_epi64(CODE_3_IS_1), codes)
}
