//! `Q4_K` on NEON: the halves of 32 bytes are the codes of two units.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use super::Q4K;
use crate::formats::neon::{Unpack, load_16, nibbles, store_16_codes};
use crate::formats::{Decoded, k_scales};

impl Unpack for Q4K {
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn unpack(step: &[u8; 144], out: &mut Decoded) {
        k_scales::decode(step, out);
        for part in 0..8 {
            let half = part / 2 * 4 + part % 2;
            let [low, high] = nibbles(load_16(step, 16 + 16 * part));
            store_16_codes(out, half, low);
            store_16_codes(out, half + 2, high);
        }
    }
}
