//! Q1_0 on NEON: each byte is tested against the eight bits in eight lanes.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::aarch64::{uint16x8_t, vbslq_s16, vdupq_n_s16, vdupq_n_u16, vld1q_u16, vtstq_u16};

use super::Q1_0;
use crate::formats::neon::{Unpack, store_codes};
use crate::formats::{Decoded, f16_at};

impl Unpack for Q1_0 {
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn unpack(step: &[u8; 18], out: &mut Decoded) {
        out.scales[..8].fill(f16_at(step, 0));
        let bits = lane_bits();
        for (part, &byte) in step[2..].iter().enumerate() {
            let set = vtstq_u16(vdupq_n_u16(byte.into()), bits);
            store_codes(out, part, vbslq_s16(set, vdupq_n_s16(1), vdupq_n_s16(-1)));
        }
    }
}

/// Returns bit l in lane l.
#[target_feature(enable = "neon")]
#[inline]
fn lane_bits() -> uint16x8_t {
    const BITS: [u16; 8] = [1, 2, 4, 8, 0x10, 0x20, 0x40, 0x80];
    // SAFETY: the array has the eight lanes that are read.
    unsafe { vld1q_u16(BITS.as_ptr()) }
}
