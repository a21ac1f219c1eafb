//! Q4_1: blocks of 32 weights, `d` and `m` (halves), 16 bytes with weight i in the low half of byte
//! i and weight 16 + i in the high half; a weight is d · code + m.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

use super::{Decoded, Layout, f16_at, inverse, put_f16, quantize_blocks};
use crate::format::Format;

pub(super) struct Q4_1;

impl Layout for Q4_1 {
    const FORMAT: Format = Format::Q4_1;
    const MINS: bool = true;
    type Step = [u8; 80];

    #[inline]
    fn decode(step: &[u8; 80], out: &mut Decoded) {
        for (i, block) in step.as_chunks::<20>().0.iter().enumerate() {
            out.scales[i * 2..][..2].fill(f16_at(block, 0));
            out.mins[i * 2..][..2].fill(-f16_at(block, 2));
            for (m, &byte) in block[4..].iter().enumerate() {
                out.codes[i * 32 + m] = i16::from(byte & 15);
                out.codes[i * 32 + 16 + m] = i16::from(byte >> 4);
            }
        }
    }
}

/// Stores the weights as steps from the least to the greatest, rounded, halves up.
pub(super) fn quantize(weights: &[f32], out: &mut [u8]) {
    quantize_blocks(weights, out, |weights: &[f32; 32], out: &mut [u8; 20]| {
        let (min, scale) = min_and_scale(weights, 15.0);
        let inverse = inverse(scale);
        put_f16(out, 0, scale);
        put_f16(out, 2, min);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
        let code = |weight: f32| (((weight - min) * inverse + 0.5) as u8).min(15);
        for (m, byte) in out[4..].iter_mut().enumerate() {
            *byte = code(weights[m]) | code(weights[16 + m]) << 4;
        }
    });
}

/// Returns the least weight and the distance of `steps` equal steps to the greatest.
pub(super) fn min_and_scale(weights: &[f32; 32], steps: f32) -> (f32, f32) {
    let min = weights.iter().fold(f32::MAX, |min, &w| if w < min { w } else { min });
    let max = weights.iter().fold(f32::MIN, |max, &w| if w > max { w } else { max });
    (min, (max - min) / steps)
}
