//! Q1_0 on NEON: each of 16 lanes tests its bit; a clear one gives −1, a set one 0 or 1 = 1.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::aarch64::{
    vandq_u8, vceqzq_u8, vcombine_u8, vdup_n_u8, vdupq_n_u8, vorrq_u8, vreinterpretq_s8_u8,
};

use super::Q1_0;
use crate::formats::f16_at;
use crate::formats::neon::{Unpack, Unpacked, load_16, store_codes};

/// The bit that each lane tests.
const BITS: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];

impl Unpack for Q1_0 {
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn unpack(step: &[u8; 18], out: &mut Unpacked<'_>) {
        out.scales.fill(f16_at(step, 0));
        let bits = load_16(&BITS, 0);
        for (half, &[first, second]) in step[2..].as_chunks().0.iter().enumerate() {
            let bytes = vcombine_u8(vdup_n_u8(first), vdup_n_u8(second));
            let clear = vceqzq_u8(vandq_u8(bytes, bits));
            store_codes(out, half, vreinterpretq_s8_u8(vorrq_u8(clear, vdupq_n_u8(1))));
        }
    }
}
