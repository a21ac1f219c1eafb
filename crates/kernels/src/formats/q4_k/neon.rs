//! `Q4_K` on NEON: the halves of 32 bytes are the codes of two units.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use super::Q4K;
use crate::formats::neon::{Unpack, Unpacked, load_16, nibbles, store_codes};
use crate::formats::{array_at, f16_at, k_scales};

impl Unpack for Q4K {
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn unpack(step: &[u8; 144], out: &mut Unpacked<'_>) {
        let (d, dmin) = (f16_at(step, 0), f16_at(step, 2));
        let (scales, mins) = k_scales::unpack(array_at(step, 4));
        for (out, scale) in out.scales.iter_mut().zip(scales.to_le_bytes()) {
            *out = d * f32::from(scale);
        }
        for (out, min) in out.mins.iter_mut().zip(mins.to_le_bytes()) {
            *out = dmin * f32::from(min);
        }
        for part in 0..8 {
            let half = part / 2 * 4 + part % 2;
            let [low, high] = nibbles(load_16(step, 16 + 16 * part));
            store_codes(out, half, low);
            store_codes(out, half + 2, high);
        }
    }
}
