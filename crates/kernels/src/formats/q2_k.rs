//! `Q2_K`: blocks of 256 weights, 16 bytes with a scale in the low half and a minimum in the high
//! half, 64 bytes of four codes, `d` and `dmin` (halves); a weight is d · scale · code − dmin · min.
//!
//! Invariant: each 32 code bytes hold 128 weights, byte m having weight 32·n + m in bits 2n, 2n + 1.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use super::{Decoded, Layout, f16_at};
use crate::format::Format;

pub(super) struct Q2K;

impl Layout for Q2K {
    const FORMAT: Format = Format::Q2K;
    const CHUNK: usize = 16;
    const MINS: bool = true;
    type Step = [u8; 84];

    #[inline]
    fn decode(step: &[u8; 84], out: &mut Decoded) {
        let (d, dmin) = (f16_at(step, 80), f16_at(step, 82));
        for (half, &packed) in step[..16].iter().enumerate() {
            out.scales[half] = d * f32::from(packed & 15);
            out.mins[half] = dmin * f32::from(packed >> 4);
        }
        for (unit, codes) in out.codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let bytes = &step[16 + unit / 4 * 32..][..32];
            for (code, byte) in codes.iter_mut().zip(bytes) {
                *code = i16::from(byte >> (unit % 4 * 2) & 3);
            }
        }
    }
}
