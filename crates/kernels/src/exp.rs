//! The exponential function of all kernels.
//!
//! Invariant: only additions, fused multiply-adds and bit operations in a fixed order, so every machine
//! and every tier gives the same bits, which a system's own `exp` does not promise. Within 2 ulp of
//! the exact value. Branch-free, so that loops over it vectorize.

use std::f32::consts::LOG2_E;

use crate::isa::lanes::Lanes;

/// Adding and subtracting this rounds to the nearest integer, which then is in the lowest bits.
const ROUND: f32 = 12_582_912.0; // 1.5 · 2^23

/// ln 2 in two parts; the first has few enough bits for its product with any exponent to be exact.
const LN2_HIGH: f32 = 0.693_359_4; // 355 / 512
const LN2_LOW: f32 = -2.121_944_4e-4;

/// Above this `exp` is infinite, below the other it is 0; both are reached by the arithmetic.
const HIGHEST: f32 = 89.0;
const LOWEST: f32 = -104.5;

/// The Taylor series of e^r: on |r| <= ln 2 / 2 what is left out is below 2^-27.
const FIRST: f32 = 1.0 / 5040.0;
const TAYLOR: [f32; 7] = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];

/// Returns e to the power of `x`; 0 for −∞, ∞ for ∞ and beyond the range, NaN for NaN.
#[expect(clippy::inline_always, reason = "each tier compiles its own copy into its loops")]
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let x = if x > HIGHEST { HIGHEST } else { x };
    let x = if x < LOWEST { LOWEST } else { x };
    let n = x.mul_add(LOG2_E, ROUND) - ROUND;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, x));
    let mut p = FIRST;
    for c in TAYLOR {
        p = p.mul_add(r, c);
    }
    times_power_of_two(p, n)
}

/// Returns what [`exp`] returns for each lane.
#[expect(clippy::inline_always, reason = "each tier compiles its own copy into its loops")]
#[inline(always)]
pub(crate) fn exp_lanes<L: Lanes>(isa: L::Isa, x: L) -> L {
    let x = L::splat(isa, LOWEST).max(L::splat(isa, HIGHEST).min(x));
    let round = L::splat(isa, ROUND);
    let n = round.add_product(x, L::splat(isa, LOG2_E)).add(L::splat(isa, -ROUND));
    let r = x.add_product(n, L::splat(isa, -LN2_HIGH));
    let r = r.add_product(n, L::splat(isa, -LN2_LOW));
    // A loop, since a closure may be compiled apart from the tier's instructions.
    let mut p = L::splat(isa, FIRST);
    for c in TAYLOR {
        p = L::splat(isa, c).add_product(p, r);
    }
    p.times_power_of_two(n)
}

/// Returns `p · 2ⁿ`, rounded once, for `p` near 1 and a whole `n` within ±150.
#[expect(clippy::inline_always, reason = "a part of `exp`")]
#[inline(always)]
pub(crate) fn times_power_of_two(p: f32, n: f32) -> f32 {
    // In two factors, since n reaches beyond the exponents of normal numbers on both sides.
    let n = (n + ROUND).to_bits().wrapping_sub(ROUND.to_bits()).cast_signed();
    let half = n >> 1;
    p * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// Returns 2 to the power of `n`, −127 < `n` < 128.
#[expect(clippy::inline_always, reason = "a part of `exp`")]
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(n.wrapping_add(127).wrapping_shl(23).cast_unsigned())
}
