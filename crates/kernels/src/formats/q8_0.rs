//! Q8_0: blocks of 32 weights, `d` (half), 32 signed bytes; a weight is d · code.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

use super::{Decoded, Layout, f16_at, inverse, largest, put_f16, quantize_blocks};
use crate::format::Format;

pub(super) struct Q8_0;

impl Layout for Q8_0 {
    const FORMAT: Format = Format::Q8_0;
    type Step = [u8; 136];

    #[inline]
    fn decode(step: &[u8; 136], out: &mut Decoded) {
        for (i, block) in step.as_chunks::<34>().0.iter().enumerate() {
            out.scales[i * 2..][..2].fill(f16_at(block, 0));
            for (code, &byte) in out.codes[i * 32..].iter_mut().zip(&block[2..]) {
                *code = i16::from(byte.cast_signed());
            }
        }
    }
}

/// Stores the weights over the largest size times 127, rounded, halves away from zero.
pub(super) fn quantize(weights: &[f32], out: &mut [u8]) {
    quantize_blocks(weights, out, |weights: &[f32; 32], out: &mut [u8; 34]| {
        let scale = largest(weights).abs() / 127.0;
        let inverse = inverse(scale);
        put_f16(out, 0, scale);
        for (byte, &weight) in out[2..].iter_mut().zip(weights) {
            #[expect(clippy::cast_possible_truncation, reason = "the cast saturates")]
            let code = (weight * inverse).round() as i8;
            *byte = code.cast_unsigned();
        }
    });
}
