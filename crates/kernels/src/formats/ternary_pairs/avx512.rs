//! The two-bit formats on AVX-512: eight bytes in each 64 bits, each byte put into the four lanes
//! of its weights and shifted there.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m512, __m512i, _mm512_and_si512, _mm512_cmpneq_epi16_mask, _mm512_mask_blend_ps,
    _mm512_maskz_sub_epi16, _mm512_set1_epi16, _mm512_set1_epi64, _mm512_shuffle_epi8,
    _mm512_srlv_epi16, _mm512_sub_epi16,
};

use super::{BYTE_OF_WEIGHT, Q2_0, Q2_0G128, Tq2_0G128};
use crate::formats::avx512::{Unpack, load_codes, one_scale};
use crate::formats::{Decoded, array_at};

impl Unpack for Q2_0 {
    type View = [u8; 36];

    #[inline]
    fn view<'a>(step: &'a [u8; 36], _: &'a Decoded) -> &'a [u8; 36] {
        step
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn scales(step: &[u8; 36]) -> __m512 {
        _mm512_mask_blend_ps(0xf0, one_scale(step, 0), one_scale(step, 18))
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn codes(step: &[u8; 36], unit: usize) -> __m512i {
        let codes = pairs(step, 18 * (unit / 2) + 2 + 8 * (unit % 2));
        _mm512_sub_epi16(codes, _mm512_set1_epi16(1))
    }
}

impl Unpack for Q2_0G128 {
    type View = [u8; 34];

    #[inline]
    fn view<'a>(step: &'a [u8; 34], _: &'a Decoded) -> &'a [u8; 34] {
        step
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn scales(step: &[u8; 34]) -> __m512 {
        one_scale(step, 0)
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn codes(step: &[u8; 34], unit: usize) -> __m512i {
        let codes = pairs(step, 2 + 8 * unit);
        _mm512_sub_epi16(codes, _mm512_set1_epi16(1))
    }
}

impl Unpack for Tq2_0G128 {
    type View = [u8; 34];

    #[inline]
    fn view<'a>(step: &'a [u8; 34], _: &'a Decoded) -> &'a [u8; 34] {
        step
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn scales(step: &[u8; 34]) -> __m512 {
        one_scale(step, 32)
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn codes(step: &[u8; 34], unit: usize) -> __m512i {
        let codes = pairs(step, 8 * unit);
        let not_three = _mm512_cmpneq_epi16_mask(codes, _mm512_set1_epi16(3));
        _mm512_maskz_sub_epi16(not_three, codes, _mm512_set1_epi16(1))
    }
}

/// Returns the 32 codes in the eight bytes that start at `at`.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn pairs(bytes: &[u8], at: usize) -> __m512i {
    let bytes = _mm512_set1_epi64(i64::from_le_bytes(*array_at(bytes, at)));
    let bytes = _mm512_shuffle_epi8(bytes, load_codes(&BYTE_OF_WEIGHT));
    let shifts = _mm512_set1_epi64(0x0006_0004_0002_0000);
    _mm512_and_si512(_mm512_srlv_epi16(bytes, shifts), _mm512_set1_epi16(3))
}
