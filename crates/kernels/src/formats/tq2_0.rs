//! TQ2_0: blocks of 256 weights, 64 bytes of four codes, then `d` (half); codes 0 to 3 are −d, 0,
//! d, 2d.
//!
//! Invariant: each 32 bytes hold 128 weights, byte m having weight 32·n + m in bits 2n and 2n + 1.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

use super::{Decoded, Layout, f16_at, inverse, largest, put_f16, quantize_blocks, ternary};
use crate::format::Format;

pub(super) struct Tq2_0;

impl Layout for Tq2_0 {
    const FORMAT: Format = Format::Tq2_0;
    const CHUNK: usize = 128;
    type Step = [u8; 66];

    #[inline]
    fn decode(step: &[u8; 66], out: &mut Decoded) {
        out.scales.fill(f16_at(step, 64));
        for (unit, codes) in out.codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let bytes = &step[unit / 4 * 32..][..32];
            for (code, byte) in codes.iter_mut().zip(bytes) {
                *code = i16::from(byte >> (unit % 4 * 2) & 3) - 1;
            }
        }
    }
}

/// Stores the weights over the largest size, rounded.
pub(super) fn quantize(weights: &[f32], out: &mut [u8]) {
    quantize_blocks(weights, out, |weights: &[f32; 256], out: &mut [u8; 66]| {
        let scale = largest(weights).abs();
        let inverse = inverse(scale);
        out.fill(0);
        put_f16(out, 64, scale);
        for (i, &weight) in weights.iter().enumerate() {
            let code = (ternary(weight, inverse).clamp(-1, 1) + 1).cast_unsigned();
            out[i / 128 * 32 + i % 32] |= code << (i % 128 / 32 * 2);
        }
    });
}
