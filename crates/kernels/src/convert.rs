//! The forms in which the KV cache holds numbers, and the conversions between them and f32.
//!
//! Invariant: widening is exact, and what narrowing makes of a number has the same bits on every
//! tier. Knows no pages.

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::format::Format;
use crate::isa::Tier;
use crate::isa::lanes::{LANES, Lanes, padded};
use crate::isa::tiered::tiered;

/// Writes `values` as f16 to `out`, rounded to nearest even; what is too large becomes infinite.
///
/// # Panics
/// If the lengths differ.
pub fn to_f16(values: &[f32], out: &mut [f16]) {
    assert_eq!(values.len(), out.len(), "one f16 per value");
    out.convert_from_f32_slice(values);
}

/// How many numbers share a scale in a [`Q8Block`].
pub const Q8_LENGTH: usize = Format::Q8_0.block_elements();

/// Numbers that share a scale, in the bytes of [`Format::Q8_0`]: the scale as f16, then a signed
/// byte for each number; a number is scale · byte.
pub type Q8Block = [u8; Format::Q8_0.block_bytes()];

/// Added to a whole number below 2²² in size, it leaves its two's complement in the sum's low bits.
const INTEGER: f32 = 12_582_912.0;

/// Writes `values` as blocks to `out`: the bytes that [`Format::quantizer`] gives finite numbers.
///
/// A block with a number that is not finite is read back as NaN where the format would drop it.
///
/// # Panics
/// If there is not one block for each [`Q8_LENGTH`] values.
pub fn to_q8_0(tier: Tier, values: &[f32], out: &mut [Q8Block]) {
    assert_eq!(values.len(), out.len() * Q8_LENGTH, "one block for each 32 values");
    narrowed(tier, values, out);
}

tiered!(fn narrowed(values: &[f32], out: &mut [Q8Block]) = narrow_blocks);

#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn narrow_blocks(values: &[f32], out: &mut [Q8Block]) {
    for (values, block) in values.as_chunks::<Q8_LENGTH>().0.iter().zip(out) {
        // As integers, sizes have the order of the numbers, with infinity and NaN above them.
        let size = values.iter().fold(0, |max, v| max.max(v.to_bits() & (u32::MAX >> 1)));
        let scale = f32::from_bits(size) / 127.0;
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        let (bits, codes) = block.split_at_mut(2);
        bits.copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        for (code, value) in codes.iter_mut().zip(values) {
            let rounded = (value * inverse).clamp(-128.0, 127.0).round();
            [*code, ..] = (rounded + INTEGER).to_le_bytes();
        }
    }
}

/// One or more numbers as the KV cache holds them.
pub(crate) trait Stored: Copy {
    /// What is widened together: one or more chunks of 16 numbers.
    type Unit;
    /// How many numbers `Self` is.
    const LENGTH: usize;
    /// How many chunks a unit is.
    const CHUNKS: usize;

    /// Returns the whole units of a row and the rest.
    fn units(row: &[Self]) -> (&[Self::Unit], &[Self]);

    /// Returns a rest with zeros behind it.
    fn padded(rest: &[Self]) -> Self::Unit;

    /// Returns one chunk of a unit as f32.
    fn load<L: Lanes>(isa: L::Isa, unit: &Self::Unit, chunk: usize) -> L;
}

#[expect(clippy::inline_always, reason = "each tier compiles its own copy into its loops")]
impl Stored for f32 {
    type Unit = [Self; LANES];
    const LENGTH: usize = 1;
    const CHUNKS: usize = 1;

    #[inline(always)]
    fn units(row: &[Self]) -> (&[Self::Unit], &[Self]) {
        row.as_chunks()
    }

    #[inline(always)]
    fn padded(rest: &[Self]) -> Self::Unit {
        padded(rest, 0.0)
    }

    #[inline(always)]
    fn load<L: Lanes>(isa: L::Isa, unit: &Self::Unit, _: usize) -> L {
        L::load(isa, unit)
    }
}

#[expect(clippy::inline_always, reason = "each tier compiles its own copy into its loops")]
impl Stored for f16 {
    type Unit = [Self; LANES];
    const LENGTH: usize = 1;
    const CHUNKS: usize = 1;

    #[inline(always)]
    fn units(row: &[Self]) -> (&[Self::Unit], &[Self]) {
        row.as_chunks()
    }

    #[inline(always)]
    fn padded(rest: &[Self]) -> Self::Unit {
        padded(rest, Self::ZERO)
    }

    #[inline(always)]
    fn load<L: Lanes>(isa: L::Isa, unit: &Self::Unit, _: usize) -> L {
        L::load_f16(isa, unit)
    }
}

#[expect(clippy::inline_always, reason = "each tier compiles its own copy into its loops")]
impl Stored for Q8Block {
    type Unit = Self;
    const LENGTH: usize = Q8_LENGTH;
    const CHUNKS: usize = Q8_LENGTH / LANES;

    #[inline(always)]
    fn units(row: &[Self]) -> (&[Self], &[Self]) {
        (row, &[])
    }

    #[inline(always)]
    fn padded(_: &[Self]) -> Self {
        [0; Format::Q8_0.block_bytes()]
    }

    #[inline(always)]
    fn load<L: Lanes>(isa: L::Isa, unit: &Self, chunk: usize) -> L {
        let [low, high, codes @ ..] = unit;
        let scale = f16::from_le_bytes([*low, *high]);
        L::load_codes(isa, &codes.as_chunks().0[chunk], scale)
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
