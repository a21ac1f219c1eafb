//! `Q5_K`: blocks of 256 weights, `d` and `dmin` (halves), 12 bytes of packed scales and minima, 32
//! bytes of fifth bits, 128 bytes of two codes; a weight is d · scale · code − dmin · min.
//!
//! Invariant: bit u of fifth-bit byte m belongs to weight 32·u + m; the low codes lie as in `Q4_K`.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use super::{Decoded, Layout, k_scales};
use crate::format::Format;

pub(super) struct Q5K;

impl Layout for Q5K {
    const FORMAT: Format = Format::Q5K;
    const MINS: bool = true;
    type Step = [u8; 176];

    #[inline]
    fn decode(step: &[u8; 176], out: &mut Decoded) {
        k_scales::decode(step, out);
        for (unit, codes) in out.codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let low = &step[48 + unit / 2 * 32..][..32];
            for ((code, low), fifth) in codes.iter_mut().zip(low).zip(&step[16..48]) {
                let fifth = fifth >> unit & 1;
                *code = i16::from((low >> (unit % 2 * 4) & 15) | fifth << 4);
            }
        }
    }
}
