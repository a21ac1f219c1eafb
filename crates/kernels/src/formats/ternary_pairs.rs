//! Formats of two bits per weight, four weights to a byte in order, the first lowest: Q2_0 with 64
//! or 128 weights per scale, and TQ2_0 with 128.
//!
//! Invariant: Q2_0 has `d` (half) first and codes 0 to 3 for −d, 0, d, 2d; TQ2_0 of 128 has `d`
//! last and code 3 for 0.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use super::{Decoded, Layout, f16_at, inverse, largest, put_f16, quantize_blocks, ternary};
use crate::format::Format;

pub(super) struct Q2_0;
pub(super) struct Q2_0G128;
pub(super) struct Tq2_0G128;

/// For each 16-bit lane, the byte that has its weight, and a high half that shuffles read as zero.
#[cfg(target_arch = "x86_64")]
const BYTE_OF_WEIGHT: [i16; 16] = {
    let mut lanes = [i16::MIN; 16];
    let (mut lane, mut byte) = (0, 0);
    while lane < 16 {
        lanes[lane] += byte;
        lane += 1;
        byte += (lane % 4 == 0) as i16;
    }
    lanes
};

impl Layout for Q2_0 {
    const FORMAT: Format = Format::Q2_0;
    const CHUNK: usize = 64;
    type Step = [u8; 36];

    #[inline]
    fn decode(step: &[u8; 36], out: &mut Decoded) {
        for (i, block) in step.as_chunks::<18>().0.iter().enumerate() {
            out.scales[i * 4..][..4].fill(f16_at(block, 0));
            codes(&block[2..], [-1, 0, 1, 2], &mut out.codes[i * 64..]);
        }
    }
}

impl Layout for Q2_0G128 {
    const FORMAT: Format = Format::Q2_0G128;
    const CHUNK: usize = 128;
    type Step = [u8; 34];

    #[inline]
    fn decode(step: &[u8; 34], out: &mut Decoded) {
        out.scales[..8].fill(f16_at(step, 0));
        codes(&step[2..], [-1, 0, 1, 2], &mut out.codes);
    }
}

impl Layout for Tq2_0G128 {
    const FORMAT: Format = Format::Tq2_0G128;
    const CHUNK: usize = 128;
    type Step = [u8; 34];

    #[inline]
    fn decode(step: &[u8; 34], out: &mut Decoded) {
        out.scales[..8].fill(f16_at(step, 32));
        codes(&step[..32], [-1, 0, 1, 0], &mut out.codes);
    }
}

#[inline]
fn codes(bytes: &[u8], values: [i16; 4], out: &mut [i16]) {
    for (&byte, out) in bytes.iter().zip(out.as_chunks_mut::<4>().0) {
        *out = std::array::from_fn(|i| values[usize::from(byte >> (2 * i) & 3)]);
    }
}

/// Stores the weights over the largest size, rounded, as Q2_0 in blocks of 64.
pub(super) fn quantize_q2_0(weights: &[f32], out: &mut [u8]) {
    quantize_blocks(weights, out, |weights: &[f32; 64], out: &mut [u8; 18]| {
        let scale = pack(weights, &mut out[2..]);
        put_f16(out, 0, scale);
    });
}

/// Stores the weights over the largest size, rounded, as Q2_0 in blocks of 128.
pub(super) fn quantize_q2_0_g128(weights: &[f32], out: &mut [u8]) {
    quantize_blocks(weights, out, |weights: &[f32; 128], out: &mut [u8; 34]| {
        let scale = pack(weights, &mut out[2..]);
        put_f16(out, 0, scale);
    });
}

/// Stores the weights over the largest size, rounded, as TQ2_0 in blocks of 128.
pub(super) fn quantize_tq2_0_g128(weights: &[f32], out: &mut [u8]) {
    quantize_blocks(weights, out, |weights: &[f32; 128], out: &mut [u8; 34]| {
        let scale = pack(weights, &mut out[..32]);
        put_f16(out, 32, scale);
    });
}

fn pack(weights: &[f32], out: &mut [u8]) -> f32 {
    let scale = largest(weights).abs();
    let inverse = inverse(scale);
    for (byte, weights) in out.iter_mut().zip(weights.as_chunks::<4>().0) {
        *byte = weights.iter().rev().fold(0, |bits, &w| {
            let code = ternary(w, inverse).clamp(-1, 1) + 1;
            bits << 2 | code.cast_unsigned()
        });
    }
    scale
}
