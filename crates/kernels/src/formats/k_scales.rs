//! The packed scales of `Q4_K` and `Q5_K`: eight pairs of 6-bit numbers in twelve bytes.
//!
//! Invariant: bytes 0–3 and 4–7 hold the first four scales and minima in their low six bits, bytes
//! 8–11 the low four bits of the others (scale in the low nibble, minimum in the high one), whose
//! top two bits are the spare bits of bytes 0–3 and 4–7.

use super::{Decoded, array_at, f16_at};

/// Returns the eight scales and the eight minima, each as the bytes of a number, first lowest.
#[inline]
pub(super) fn unpack(packed: &[u8; 12]) -> (u64, u64) {
    const LOW_6: u32 = 0x3f3f_3f3f;
    const LOW_4: u32 = 0x0f0f_0f0f;
    const TOP_2: u32 = 0x3030_3030;
    let word = |at| u32::from_le_bytes(*array_at(packed, at));
    let (scales, mins, rest) = (word(0), word(4), word(8));
    let join = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    (
        join(scales & LOW_6, (rest & LOW_4) | (scales >> 2 & TOP_2)),
        join(mins & LOW_6, (rest >> 4 & LOW_4) | (mins >> 2 & TOP_2)),
    )
}

/// Decodes the scales and minima of a block that starts with `d`, `dmin` and the packed numbers.
#[inline]
pub(super) fn decode(block: &[u8], out: &mut Decoded) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    let (scales, mins) = unpack(array_at(block, 4));
    let (scales, mins) = (scales.to_le_bytes(), mins.to_le_bytes());
    for half in 0..16 {
        out.scales[half] = d * f32::from(scales[half / 2]);
        out.mins[half] = dmin * f32::from(mins[half / 2]);
    }
}
