//! Q4_0 on NEON: the halves of 16 bytes are the codes of a unit.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::aarch64::{vdupq_n_s8, vsubq_s8};

use super::Q4_0;
use crate::formats::f16_at;
use crate::formats::neon::{Unpack, Unpacked, load_16, nibbles, store_codes};

impl Unpack for Q4_0 {
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn unpack(step: &[u8; 72], out: &mut Unpacked<'_>) {
        for (unit, block) in step.as_chunks::<18>().0.iter().enumerate() {
            out.scales[unit] = f16_at(block, 0);
            let [low, high] = nibbles(load_16(block, 2));
            store_codes(out, 2 * unit, vsubq_s8(low, vdupq_n_s8(8)));
            store_codes(out, 2 * unit + 1, vsubq_s8(high, vdupq_n_s8(8)));
        }
    }
}
