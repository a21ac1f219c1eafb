//! The exponential function of all kernels.
//!
//! Invariant: only additions, multiplications and bit operations in a fixed order, so every machine
//! and every tier gives the same bits, which a system's own `exp` does not promise. Within 2 ulp of
//! the exact value. Branch-free, so that loops over it vectorize.

use std::f32::consts::LOG2_E;

/// Adding and subtracting this rounds to the nearest integer, which then is in the lowest bits.
const ROUND: f32 = 12_582_912.0; // 1.5 · 2^23

/// ln 2 in two parts; the first has few enough bits for its product with any exponent to be exact.
const LN2_HIGH: f32 = 0.693_359_4; // 355 / 512
const LN2_LOW: f32 = -2.121_944_4e-4;

/// Above this `exp` is infinite, below the other it is 0; both are reached by the arithmetic.
const HIGHEST: f32 = 89.0;
const LOWEST: f32 = -104.5;

/// Returns e to the power of `x`; 0 for −∞, ∞ for ∞ and beyond the range, NaN for NaN.
#[expect(clippy::inline_always, reason = "each tier compiles its own copy into its loops")]
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let x = if x > HIGHEST { HIGHEST } else { x };
    let x = if x < LOWEST { LOWEST } else { x };
    let shifted = x * LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN2_HIGH) - n * LN2_LOW;
    // The Taylor series: on |r| <= ln 2 / 2 what is left out is below 2^-27.
    let mut p = 1.0 / 5040.0;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5] {
        p = p * r + c;
    }
    let p = (p * r * r + r) + 1.0;
    // 2^n in two factors, since n reaches beyond the exponents of normal numbers on both sides.
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits()).cast_signed();
    let half = n >> 1;
    p * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// Returns 2 to the power of `n`, −127 < `n` < 128.
#[expect(clippy::inline_always, reason = "a part of `exp`")]
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(n.wrapping_add(127).wrapping_shl(23).cast_unsigned())
}
