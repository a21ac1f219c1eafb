//! Q1_0: blocks of 128 weights, `d` (half), then 128 bits, the lowest of each byte first; 1 is +d,
//! 0 is −d.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

use super::{Decoded, Layout, f16_at, put_f16, quantize_blocks};
use crate::format::Format;

pub(super) struct Q1_0;

impl Layout for Q1_0 {
    const FORMAT: Format = Format::Q1_0;
    const CHUNK: usize = 128;
    type Step = [u8; 18];

    #[inline]
    fn decode(step: &[u8; 18], out: &mut Decoded) {
        out.scales[..8].fill(f16_at(step, 0));
        for (i, code) in out.codes[..128].iter_mut().enumerate() {
            *code = if step[2 + i / 8] >> (i % 8) & 1 == 1 { 1 } else { -1 };
        }
    }
}

/// Stores the signs, zero as +, and the mean size.
pub(super) fn quantize(weights: &[f32], out: &mut [u8]) {
    quantize_blocks(weights, out, |weights: &[f32; 128], out: &mut [u8; 18]| {
        put_f16(out, 0, weights.iter().fold(0.0, |sum, w| sum + w.abs()) / 128.0);
        for (byte, weights) in out[2..].iter_mut().zip(weights.as_chunks::<8>().0) {
            *byte = weights.iter().rev().fold(0, |bits, &w| bits << 1 | u8::from(w >= 0.0));
        }
    });
}
