//! Q5_0: blocks of 32 weights, `d` (half), 32 fifth bits, 16 bytes with the low four bits of weight
//! m and, above them, of weight 16 + m; a weight is d · (code − 16).

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use super::{Decoded, Layout, array_at, f16_at, inverse, largest, put_f16, quantize_blocks};
use crate::format::Format;

pub(super) struct Q5_0;

impl Layout for Q5_0 {
    const FORMAT: Format = Format::Q5_0;
    type Step = [u8; 88];

    #[inline]
    fn decode(step: &[u8; 88], out: &mut Decoded) {
        for (i, block) in step.as_chunks::<22>().0.iter().enumerate() {
            out.scales[i * 2..][..2].fill(f16_at(block, 0));
            let codes = &mut out.codes[i * 32..][..32];
            join(*array_at(block, 2), array_at(block, 6), codes);
            for code in codes {
                *code -= 16;
            }
        }
    }
}

/// Decodes 32 codes of five bits from their fifth bits and their low four.
#[inline]
pub(super) fn join(fifth: [u8; 4], low: &[u8; 16], out: &mut [i16]) {
    let fifth = u32::from_le_bytes(fifth);
    for (m, &byte) in low.iter().enumerate() {
        let bit = |weight: usize| if fifth >> weight & 1 == 1 { 16 } else { 0 };
        out[m] = i16::from(byte & 15) + bit(m);
        out[16 + m] = i16::from(byte >> 4) + bit(16 + m);
    }
}

/// Stores the weights so that the one of largest size has code 0, rounded, halves up.
pub(super) fn quantize(weights: &[f32], out: &mut [u8]) {
    quantize_blocks(weights, out, |weights: &[f32; 32], out: &mut [u8; 22]| {
        let scale = largest(weights) / -16.0;
        let inverse = inverse(scale);
        put_f16(out, 0, scale);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
        let codes = weights.map(|weight| ((weight * inverse + 16.5) as u8).min(31));
        split(&codes, &mut out[2..]);
    });
}

/// Stores 32 codes of five bits: the fifth bits, then the low four.
pub(super) fn split(codes: &[u8; 32], out: &mut [u8]) {
    let (fifth, low) = out.split_at_mut(4);
    let bits = codes.iter().rev().fold(0, |bits, &code| bits << 1 | u32::from(code >> 4 & 1));
    fifth.copy_from_slice(&bits.to_le_bytes());
    for (m, byte) in low.iter_mut().enumerate() {
        *byte = codes[m] & 15 | codes[16 + m] << 4;
    }
}
