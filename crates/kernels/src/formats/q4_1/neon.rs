//! Q4_1 on NEON: the halves of 16 bytes are the codes of a unit.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use super::Q4_1;
use crate::formats::f16_at;
use crate::formats::neon::{Unpack, Unpacked, load_16, nibbles, store_codes};

impl Unpack for Q4_1 {
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn unpack(step: &[u8; 80], out: &mut Unpacked<'_>) {
        for (unit, block) in step.as_chunks::<20>().0.iter().enumerate() {
            out.scales[unit] = f16_at(block, 0);
            out.mins[unit] = -f16_at(block, 2);
            let [low, high] = nibbles(load_16(block, 4));
            store_codes(out, 2 * unit, low);
            store_codes(out, 2 * unit + 1, high);
        }
    }
}
