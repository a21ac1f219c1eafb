//! `Q6_K`: blocks of 256 weights, 128 bytes of low four bits, 64 bytes of high two bits, 16 signed
//! scales, `d` (half); a weight is d · scale · (code − 32).
//!
//! Invariant: each 128 weights have 64 low bytes, whose low halves are the first 64 weights, and 32
//! high bytes, byte m having weight 32·n + m in bits 2n and 2n + 1.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

use super::{Decoded, Layout, f16_at};
use crate::format::Format;

pub(super) struct Q6K;

impl Layout for Q6K {
    const FORMAT: Format = Format::Q6K;
    const CHUNK: usize = 16;
    type Step = [u8; 210];

    #[inline]
    fn decode(step: &[u8; 210], out: &mut Decoded) {
        let d = f16_at(step, 208);
        for (scale, byte) in out.scales.iter_mut().zip(&step[192..208]) {
            *scale = d * f32::from(byte.cast_signed());
        }
        for (unit, codes) in out.codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (part, n) = (unit / 4, unit % 4);
            let low = &step[part * 64 + n % 2 * 32..][..32];
            let high = &step[128 + part * 32..][..32];
            for ((code, low), high) in codes.iter_mut().zip(low).zip(high) {
                let low = low >> (n / 2 * 4) & 15;
                *code = i16::from(low | (high >> (2 * n) & 3) << 4) - 32;
            }
        }
    }
}
