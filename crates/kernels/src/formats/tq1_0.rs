//! TQ1_0: blocks of 256 weights, 48 bytes of five ternary digits, 4 bytes of four, `d` (half).
//!
//! Invariant: a byte holds its digits as a fraction of 256, the first digit the most significant,
//! so that digit n is the whole part of 3 · (byte · 3ⁿ mod 256) / 256. The first 32 bytes hold
//! weights 32·n + m, the next 16 weights 160 + 16·n + m, the last 4 weights 240 + 4·n + m.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use super::{
    Decoded, Layout, array_at, f16_at, inverse, largest, put_f16, quantize_blocks, ternary,
};
use crate::format::Format;

/// Runs of bytes with one digit count: first byte, bytes, first weight, digits.
const RUNS: [(usize, usize, usize, usize); 3] = [(0, 32, 0, 5), (32, 16, 160, 5), (48, 4, 240, 4)];

const POWERS: [u8; 5] = [1, 3, 9, 27, 81];

pub(super) struct Tq1_0;

impl Layout for Tq1_0 {
    const FORMAT: Format = Format::Tq1_0;
    const CHUNK: usize = 128;
    type Step = [u8; 54];

    #[inline]
    fn decode(step: &[u8; 54], out: &mut Decoded) {
        out.scales.fill(f16_at(step, 52));
        digits::<32>(array_at(step, 0), &mut out.codes[..160]);
        digits::<16>(array_at(step, 32), &mut out.codes[160..240]);
        digits::<4>(array_at(step, 48), &mut out.codes[240..]);
    }
}

/// Decodes the first digit of each byte, then the second, and so on.
#[inline]
fn digits<const N: usize>(bytes: &[u8; N], out: &mut [i16]) {
    for (codes, power) in out.as_chunks_mut::<N>().0.iter_mut().zip(POWERS) {
        for (code, byte) in codes.iter_mut().zip(bytes) {
            *code = ((i16::from(byte.wrapping_mul(power)) * 3) >> 8) - 1;
        }
    }
}

/// Stores the weights over the largest size, rounded.
pub(super) fn quantize(weights: &[f32], out: &mut [u8]) {
    quantize_blocks(weights, out, |weights: &[f32; 256], out: &mut [u8; 54]| {
        let scale = largest(weights).abs();
        let inverse = inverse(scale);
        put_f16(out, 52, scale);
        for (first, bytes, weight, digits) in RUNS {
            for m in 0..bytes {
                let number = (0..digits).fold(0, |number, n| {
                    let code = ternary(weights[weight + n * bytes + m], inverse).clamp(-1, 1);
                    number * 3 + u16::from((code + 1).cast_unsigned())
                });
                // Missing digits are zeros; the fraction is rounded up so that digits survive.
                let number = if digits == 4 { number * 3 } else { number };
                let [byte, _] = (number * 256).div_ceil(243).to_le_bytes();
                out[first + m] = byte;
            }
        }
    });
}
