//! Conversions between f16 and f32 for the KV cache.
//!
//! Invariant: widening is exact and narrowing rounds to the nearest value, ties to even.

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::isa::lanes::{LANES, Lanes};

/// Writes `values` as f16 to `out`, rounded to nearest even; what is too large becomes infinite.
///
/// # Panics
/// If the lengths differ.
pub fn to_f16(values: &[f32], out: &mut [f16]) {
    assert_eq!(values.len(), out.len(), "one f16 per value");
    out.convert_from_f32_slice(values);
}

/// A number as the KV cache holds it.
pub(crate) trait Stored: Copy {
    /// The number 0.
    const ZERO: Self;

    /// Returns the same number as f32.
    fn widen(self) -> f32;

    /// Returns the same numbers as f32.
    fn load<L: Lanes>(isa: L::Isa, values: &[Self; LANES]) -> L;
}

#[expect(clippy::inline_always, reason = "each tier compiles its own copy into its loops")]
impl Stored for f32 {
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn load<L: Lanes>(isa: L::Isa, values: &[Self; LANES]) -> L {
        L::load(isa, values)
    }
}

#[expect(clippy::inline_always, reason = "each tier compiles its own copy into its loops")]
impl Stored for f16 {
    const ZERO: Self = Self::ZERO;

    #[inline(always)]
    fn widen(self) -> f32 {
        widen(self.to_bits())
    }

    #[inline(always)]
    fn load<L: Lanes>(isa: L::Isa, values: &[Self; LANES]) -> L {
        L::load_f16(isa, values)
    }
}

/// The distance between the exponents of f16 and f32, in place.
const REBIAS: u32 = (127 - 15) << 23;

/// Returns an f16's value without a branch, so that loops vectorize on tiers that lack the
/// instruction for it.
#[expect(clippy::inline_always, reason = "each tier compiles its own copy into its loops")]
#[inline(always)]
fn widen(bits: u16) -> f32 {
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
