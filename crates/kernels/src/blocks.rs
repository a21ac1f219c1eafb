//! What a sampler asks of a long row of logits: each block's maximum, and each block's sum of powers.
//!
//! Invariant: a block's result depends on its own values alone, by the same operations on every tier. Knows
//! no tokens and no probabilities.

use std::hint::black_box;

use crate::exp::exp;
use crate::isa::Tier;
use crate::isa::tiered::tiered;
use crate::lanes::sum16;

/// Values in a block; the last block of a row may be shorter.
pub const BLOCK: usize = 128;

const LANES: usize = 16;

/// Writes the largest value of each block of `x` to `out`; NaN where one is NaN or ∞.
///
/// # Panics
/// If `out` has not one element per block.
pub fn block_maxima(tier: Tier, x: &[f32], out: &mut [f32]) {
    assert_eq!(out.len(), x.len().div_ceil(BLOCK), "one maximum per block");
    maxima(tier, x, out);
}

/// Writes the sum of exp((x − `origin`) / `divisor`) over each block of `x` to `out`.
///
/// # Panics
/// If `out` has not one element per block.
pub fn block_powers(tier: Tier, x: &[f32], origin: f32, divisor: f32, out: &mut [f32]) {
    assert_eq!(out.len(), x.len().div_ceil(BLOCK), "one sum per block");
    powers(tier, x, origin, divisor, out);
}

tiered!(fn maxima(x: &[f32], out: &mut [f32]) = all_maxima);
tiered!(fn powers(x: &[f32], origin: f32, divisor: f32, out: &mut [f32]) = all_powers);

#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn all_maxima(x: &[f32], out: &mut [f32]) {
    let (whole, rest) = x.as_chunks::<BLOCK>();
    for (block, out) in whole.iter().zip(&mut *out) {
        *out = maximum(block);
    }
    if let (false, Some(out)) = (rest.is_empty(), out.last_mut()) {
        *out = maximum(&filled(rest));
    }
}

#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn all_powers(x: &[f32], origin: f32, divisor: f32, out: &mut [f32]) {
    let (whole, rest) = x.as_chunks::<BLOCK>();
    for (block, out) in whole.iter().zip(&mut *out) {
        *out = sum_of_powers(block, origin, divisor);
    }
    if let (false, Some(out)) = (rest.is_empty(), out.last_mut()) {
        *out = sum_of_powers(&filled(rest), origin, divisor);
    }
}

/// Returns a block that −∞ fills up, which is no maximum and whose power is 0.
#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn filled(rest: &[f32]) -> [f32; BLOCK] {
    let mut block = [f32::NEG_INFINITY; BLOCK];
    block[..rest.len()].copy_from_slice(rest);
    block
}

#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn maximum(block: &[f32; BLOCK]) -> f32 {
    let mut largest = [f32::NEG_INFINITY; LANES];
    let mut is_improper = [0_u32; LANES];
    for x in block.as_chunks::<LANES>().0 {
        for ((x, largest), is_improper) in x.iter().zip(&mut largest).zip(&mut is_improper) {
            *largest = larger(*x, *largest);
            let is_proper = *x < f32::INFINITY; // which a NaN is not
            *is_improper |= u32::from(!is_proper);
        }
    }
    // Without this the compiler lets the narrow tree below decide on the vectors of the loop above.
    let (largest, is_improper) = black_box((largest, is_improper));
    if is_improper.iter().any(|improper| *improper != 0) {
        return f32::NAN;
    }
    let a: [f32; 8] = std::array::from_fn(|i| larger(largest[i], largest[i + 8]));
    let b: [f32; 4] = std::array::from_fn(|i| larger(a[i], a[i + 4]));
    larger(larger(b[0], b[2]), larger(b[1], b[3]))
}

#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn sum_of_powers(block: &[f32; BLOCK], origin: f32, divisor: f32) -> f32 {
    let mut sums = [0.0_f32; LANES];
    for x in block.as_chunks::<LANES>().0 {
        for (x, sum) in x.iter().zip(&mut sums) {
            *sum += exp((x - origin) / divisor);
        }
    }
    sum16(sums)
}
