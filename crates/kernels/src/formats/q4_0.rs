//! Q4_0: blocks of 32 weights, `d` (half), 16 bytes with weight m in the low half of byte m and
//! weight 16 + m in the high half; a weight is d · (code − 8).

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

use super::{Decoded, Layout, f16_at, inverse, largest, put_f16, quantize_blocks};
use crate::format::Format;

pub(super) struct Q4_0;

impl Layout for Q4_0 {
    const FORMAT: Format = Format::Q4_0;
    type Step = [u8; 72];

    #[inline]
    fn decode(step: &[u8; 72], out: &mut Decoded) {
        for (i, block) in step.as_chunks::<18>().0.iter().enumerate() {
            out.scales[i * 2..][..2].fill(f16_at(block, 0));
            for (m, &byte) in block[2..].iter().enumerate() {
                out.codes[i * 32 + m] = i16::from(byte & 15) - 8;
                out.codes[i * 32 + 16 + m] = i16::from(byte >> 4) - 8;
            }
        }
    }
}

/// Stores the weights so that the one of largest size has code 0, rounded, halves up.
pub(super) fn quantize(weights: &[f32], out: &mut [u8]) {
    quantize_blocks(weights, out, |weights: &[f32; 32], out: &mut [u8; 18]| {
        let scale = largest(weights) / -8.0;
        let inverse = inverse(scale);
        put_f16(out, 0, scale);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
        let code = |weight: f32| ((weight * inverse + 8.5) as u8).min(15);
        for (m, byte) in out[2..].iter_mut().enumerate() {
            *byte = code(weights[m]) | code(weights[16 + m]) << 4;
        }
    });
}
