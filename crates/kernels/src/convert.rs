//! The forms in which the KV cache holds numbers, and the conversions between them and f32.
//!
//! Invariant: widening is exact, and what narrowing makes of a number has the same bits on every
//! tier. Knows no pages.

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::format::Format;
use crate::isa::Tier;
use crate::isa::lanes::{LANES, Lanes};
use crate::isa::tiered::tiered;

/// Writes `values` as f16 to `out`, rounded to nearest even; what is too large becomes infinite.
///
/// # Panics
/// If the lengths differ.
pub fn to_f16(values: &[f32], out: &mut [f16]) {
    assert_eq!(values.len(), out.len(), "one f16 per value");
    out.convert_from_f32_slice(values);
}

/// How many numbers share a scale in a row of eight-bit codes.
pub const Q8_LENGTH: usize = Format::Q8_0.block_elements();

/// Added to a whole number below 2²² in size, it leaves its two's complement in the sum's low bits.
const INTEGER: f32 = 12_582_912.0;

/// Writes `values` as codes and a scale for each [`Q8_LENGTH`] of them; a number is scale · code.
///
/// Finite numbers get the scale and codes that [`Format::quantizer`] gives them in a block of
/// [`Format::Q8_0`]. A block with a number that is not finite is read back as NaN where the format
/// would drop it.
///
/// # Panics
/// If there is not one code for each value and one scale for each [`Q8_LENGTH`].
pub fn to_q8_0(tier: Tier, values: &[f32], codes: &mut [i8], scales: &mut [f16]) {
    assert_eq!(values.len(), codes.len(), "one code per value");
    assert_eq!(values.len(), scales.len() * Q8_LENGTH, "one scale for each 32 values");
    narrowed(tier, values, codes, scales);
}

tiered!(fn narrowed(values: &[f32], codes: &mut [i8], scales: &mut [f16]) = narrow_blocks);

#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn narrow_blocks(values: &[f32], codes: &mut [i8], scales: &mut [f16]) {
    let blocks = values.as_chunks::<Q8_LENGTH>().0.iter().zip(codes.as_chunks_mut::<Q8_LENGTH>().0);
    for ((values, codes), stored) in blocks.zip(scales) {
        // As integers, sizes have the order of the numbers, with infinity and NaN above them.
        let size = values.iter().fold(0, |max, v| max.max(v.to_bits() & (u32::MAX >> 1)));
        let scale = f32::from_bits(size) / 127.0;
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        *stored = f16::from_f32(scale);
        for (code, value) in codes.iter_mut().zip(values) {
            let rounded = (value * inverse).clamp(-128.0, 127.0).round();
            let [low, ..] = (rounded + INTEGER).to_le_bytes();
            *code = low.cast_signed();
        }
    }
}

/// A number as the KV cache holds it.
pub(crate) trait Stored: Copy {
    /// Zero.
    const ZERO: Self;

    /// Returns sixteen of them as f32.
    fn load<L: Lanes>(isa: L::Isa, values: &[Self; LANES]) -> L;
}

#[expect(clippy::inline_always, reason = "each tier compiles its own copy into its loops")]
impl Stored for f32 {
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn load<L: Lanes>(isa: L::Isa, values: &[Self; LANES]) -> L {
        L::load(isa, values)
    }
}

#[expect(clippy::inline_always, reason = "each tier compiles its own copy into its loops")]
impl Stored for f16 {
    const ZERO: Self = Self::ZERO;

    #[inline(always)]
    fn load<L: Lanes>(isa: L::Isa, values: &[Self; LANES]) -> L {
        L::load_f16(isa, values)
    }
}

#[expect(clippy::inline_always, reason = "each tier compiles its own copy into its loops")]
impl Stored for i8 {
    const ZERO: Self = 0;

    #[inline(always)]
    fn load<L: Lanes>(isa: L::Isa, values: &[Self; LANES]) -> L {
        L::load_i8(isa, values)
    }
}

/// The distance between the exponents of f16 and f32, in place.
const REBIAS: u32 = (127 - 15) << 23;

/// Returns an f16's value without a branch, so that loops vectorize on tiers that lack the
/// instruction for it.
#[expect(clippy::inline_always, reason = "each tier compiles its own copy into its loops")]
#[inline(always)]
pub(crate) fn widen(bits: u16) -> f32 {
    let bits = u32::from(bits);
    let sign = (bits & 0x8000) << 16;
    let magnitude = (bits & 0x7FFF) << 13;
    // Infinities and NaN have the largest exponent in both formats.
    let special = if magnitude >= 0x7C00 << 13 { REBIAS } else { 0 };
    let normal = magnitude + REBIAS + special;
    // A subnormal is a fraction of 2^-14 without the leading 1: put the 1 in and take it off.
    let one = REBIAS + (1 << 23);
    let subnormal = (f32::from_bits(magnitude + one) - f32::from_bits(one)).to_bits();
    let value = if magnitude < 1 << 23 { subnormal } else { normal };
    f32::from_bits(sign | value)
}

#[cfg(test)]
mod tests {
    use super::widen;
    use half::f16;

    #[test]
    fn every_f16_widens_to_its_exact_value() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (widen(bits), f16::from_bits(bits).to_f64());
            if theirs.is_nan() {
                assert!(ours.is_nan(), "{bits:#06x}");
            } else {
                assert_eq!(f64::from(ours).to_bits(), theirs.to_bits(), "{bits:#06x}");
            }
        }
    }
}
