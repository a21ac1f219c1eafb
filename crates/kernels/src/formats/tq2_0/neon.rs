//! TQ2_0 on NEON: 32 bytes are shifted to the bits of each of their four units.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::aarch64::{
    vandq_u8, vdupq_n_s8, vdupq_n_u8, vreinterpretq_s8_u8, vshrq_n_u8, vsubq_s8,
};

use super::Tq2_0;
use crate::formats::f16_at;
use crate::formats::neon::{Unpack, Unpacked, load_16, store_codes};

impl Unpack for Tq2_0 {
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn unpack(step: &[u8; 66], out: &mut Unpacked<'_>) {
        out.scales.fill(f16_at(step, 64));
        for part in 0..4 {
            let bytes = load_16(step, 16 * part);
            let half = part / 2 * 8 + part % 2;
            let units =
                [bytes, vshrq_n_u8::<2>(bytes), vshrq_n_u8::<4>(bytes), vshrq_n_u8::<6>(bytes)];
            for (unit, bytes) in units.into_iter().enumerate() {
                let codes = vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(3)));
                store_codes(out, half + 2 * unit, vsubq_s8(codes, vdupq_n_s8(1)));
            }
        }
    }
}
