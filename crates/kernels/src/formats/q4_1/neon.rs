//! Q4_1 on NEON: the halves of 16 bytes are the codes of a unit.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use super::Q4_1;
use crate::formats::neon::{Unpack, load_16, nibbles, store_16_codes};
use crate::formats::{Decoded, f16_at};

impl Unpack for Q4_1 {
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn unpack(step: &[u8; 80], out: &mut Decoded) {
        for (unit, block) in step.as_chunks::<20>().0.iter().enumerate() {
            out.scales[2 * unit..][..2].fill(f16_at(block, 0));
            out.mins[2 * unit..][..2].fill(-f16_at(block, 2));
            let [low, high] = nibbles(load_16(block, 4));
            store_16_codes(out, 2 * unit, low);
            store_16_codes(out, 2 * unit + 1, high);
        }
    }
}
