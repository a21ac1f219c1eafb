//! Q5_1: blocks of 32 weights, `d` and `m` (halves), then codes as in Q5_0; a weight is
//! d · code + m.

use super::q4_1::min_and_scale;
use super::q5_0::{join, split};
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use super::{Decoded, Layout, array_at, f16_at, inverse, put_f16, quantize_blocks};
use crate::format::Format;

pub(super) struct Q5_1;

impl Layout for Q5_1 {
    const FORMAT: Format = Format::Q5_1;
    const MINS: bool = true;
    type Step = [u8; 96];

    #[inline]
    fn decode(step: &[u8; 96], out: &mut Decoded) {
        for (i, block) in step.as_chunks::<24>().0.iter().enumerate() {
            out.scales[i * 2..][..2].fill(f16_at(block, 0));
            out.mins[i * 2..][..2].fill(-f16_at(block, 2));
            join(*array_at(block, 4), array_at(block, 8), &mut out.codes[i * 32..][..32]);
        }
    }
}

/// Stores the weights as steps from the least to the greatest, rounded, halves up.
pub(super) fn quantize(weights: &[f32], out: &mut [u8]) {
    quantize_blocks(weights, out, |weights: &[f32; 32], out: &mut [u8; 24]| {
        let (min, scale) = min_and_scale(weights, 31.0);
        let inverse = inverse(scale);
        put_f16(out, 0, scale);
        put_f16(out, 2, min);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
        let codes = weights.map(|weight| (((weight - min) * inverse + 0.5) as u8).min(31));
        split(&codes, &mut out[4..]);
    });
}
