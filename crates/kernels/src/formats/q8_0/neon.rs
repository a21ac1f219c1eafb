//! Q8_0 on NEON: bytes are widened to 16 bits.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::aarch64::vreinterpretq_s8_u8;

use super::Q8_0;
use crate::formats::f16_at;
use crate::formats::neon::{Unpack, Unpacked, load_16, store_codes};

impl Unpack for Q8_0 {
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn unpack(step: &[u8; 136], out: &mut Unpacked<'_>) {
        for (unit, block) in step.as_chunks::<34>().0.iter().enumerate() {
            out.scales[unit] = f16_at(block, 0);
            store_codes(out, 2 * unit, vreinterpretq_s8_u8(load_16(block, 2)));
            store_codes(out, 2 * unit + 1, vreinterpretq_s8_u8(load_16(block, 18)));
        }
    }
}
