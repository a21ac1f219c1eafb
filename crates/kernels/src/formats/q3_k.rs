//! `Q3_K`: blocks of 256 weights, 32 bytes of high bits, 64 bytes of four low codes, 12 bytes with 16
//! scales of six bits, `d` (half); a weight is d · (scale − 32) · (code − 4).
//!
//! Invariant: bit u of high byte m belongs to weight 32·u + m; the low codes lie as in `Q2_K`. Scale h
//! has its low four bits in byte h mod 8 (the low half for h < 8) and its high two in byte
//! 8 + h mod 4 at bit 2·(h / 4).

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use super::{Decoded, Layout, f16_at};
use crate::format::Format;

pub(super) struct Q3K;

impl Layout for Q3K {
    const FORMAT: Format = Format::Q3K;
    const CHUNK: usize = 16;
    type Step = [u8; 110];

    #[inline]
    fn decode(step: &[u8; 110], out: &mut Decoded) {
        let d = f16_at(step, 108);
        let packed = &step[96..108];
        for (h, scale) in out.scales.iter_mut().enumerate() {
            let low = packed[h % 8] >> (h / 8 * 4) & 15;
            let high = packed[8 + h % 4] >> (h / 4 * 2) & 3;
            *scale = d * f32::from(i16::from(low | high << 4) - 32);
        }
        for (unit, codes) in out.codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let low = &step[32 + unit / 4 * 32..][..32];
            for ((code, low), high) in codes.iter_mut().zip(low).zip(&step[..32]) {
                let high = high >> unit & 1;
                *code = i16::from((low >> (unit % 4 * 2) & 3) | high << 2) - 4;
            }
        }
    }
}
