//! `Q4_K`: blocks of 256 weights, `d` and `dmin` (halves), 12 bytes of packed scales and minima, 128
//! bytes of two codes; a weight is d · scale · code − dmin · min.
//!
//! Invariant: each 32 code bytes hold 64 weights, the first 32 in their low halves.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

use super::{Decoded, Layout, k_scales};
use crate::format::Format;

pub(super) struct Q4K;

impl Layout for Q4K {
    const FORMAT: Format = Format::Q4K;
    const MINS: bool = true;
    type Step = [u8; 144];

    #[inline]
    fn decode(step: &[u8; 144], out: &mut Decoded) {
        k_scales::decode(step, out);
        for (unit, codes) in out.codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let bytes = &step[16 + unit / 2 * 32..][..32];
            for (code, byte) in codes.iter_mut().zip(bytes) {
                *code = i16::from(byte >> (unit % 2 * 4) & 15);
            }
        }
    }
}
