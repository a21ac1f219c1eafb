//! `Q6_K` on NEON: the halves of 16 low bytes are joined with two bits each of 16 high bytes.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::aarch64::{
    vandq_u8, vdupq_n_s8, vdupq_n_u8, vorrq_s8, vreinterpretq_s8_u8, vshlq_n_u8, vshrq_n_u8,
    vsubq_s8,
};

use super::Q6K;
use crate::formats::f16_at;
use crate::formats::neon::{Unpack, Unpacked, load_16, nibbles, store_codes};

impl Unpack for Q6K {
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn unpack(step: &[u8; 210], out: &mut Unpacked<'_>) {
        let d = f16_at(step, 208);
        for (scale, byte) in out.scales.iter_mut().zip(&step[192..208]) {
            *scale = d * f32::from(byte.cast_signed());
        }
        for part in 0..2 {
            for half in 0..2 {
                let [first, third] = nibbles(load_16(step, 64 * part + 16 * half));
                let [second, fourth] = nibbles(load_16(step, 64 * part + 32 + 16 * half));
                let high = load_16(step, 128 + 32 * part + 16 * half);
                let highs =
                    [vshlq_n_u8::<4>(high), vshlq_n_u8::<2>(high), high, vshrq_n_u8::<2>(high)];
                let lows = [first, second, third, fourth];
                for (n, (low, high)) in lows.into_iter().zip(highs).enumerate() {
                    let high = vreinterpretq_s8_u8(vandq_u8(high, vdupq_n_u8(0x30)));
                    let codes = vsubq_s8(vorrq_s8(low, high), vdupq_n_s8(32));
                    store_codes(out, 8 * part + 2 * n + half, codes);
                }
            }
        }
    }
}
