//! What a query has of the positions seen so far: the largest score, and with every score's power
//! taken relative to it, the sum of the powers and the sum of the values weighted by them.
//!
//! Invariant: two states are merged by one fixed sequence of operations, and a state without
//! positions changes nothing. Knows no pages.

use crate::exp::exp;
use crate::isa::Tier;
use crate::isa::lanes::LANES;
use crate::isa::tiered::tiered;
use crate::lanes::sum16;

/// Returns the length of a state: a value, the sum of the powers in 16 lanes, the largest score.
pub const fn state_length(head_dim: usize) -> usize {
    head_dim + LANES + 1
}

/// Writes states without positions.
pub(super) fn clear(head_dim: usize, states: &mut [f32]) {
    for state in states.chunks_exact_mut(state_length(head_dim)) {
        let (max, sums) = state.split_last_mut().expect("a state has a largest score");
        *max = f32::NEG_INFINITY;
        sums.fill(0.0);
    }
}

/// Adds to the states in `whole` those in `part`, row by row. The order of calls is the order of
/// positions.
///
/// # Panics
/// If there are not as many.
pub fn merge(tier: Tier, head_dim: usize, part: &[f32], whole: &mut [f32]) {
    assert_eq!(part.len(), whole.len(), "as many states");
    added(tier, head_dim, part, whole);
}

tiered!(fn added(head_dim: usize, part: &[f32], whole: &mut [f32]) = add);

#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn add(head_dim: usize, part: &[f32], whole: &mut [f32]) {
    let length = state_length(head_dim);
    for (part, whole) in part.chunks_exact(length).zip(whole.chunks_exact_mut(length)) {
        let (old, new) = (whole[length - 1], part[length - 1]);
        let max = if new > old { new } else { old };
        let shift = finite(max);
        let factors = [exp(old - shift), exp(new - shift)];
        for (whole, part) in whole.iter_mut().zip(part) {
            *whole = part.mul_add(factors[1], *whole * factors[0]);
        }
        whole[length - 1] = max;
    }
}

/// Returns what scores are taken relative to when the largest is `max`: against −∞ itself every
/// difference would be NaN.
#[expect(clippy::inline_always, reason = "each tier compiles its own copy into its loops")]
#[inline(always)]
pub(super) fn finite(max: f32) -> f32 {
    if max == f32::NEG_INFINITY { 0.0 } else { max }
}

/// Writes the mean of the values, weighted by the powers, to `out`; zeros if all powers are 0.
///
/// # Panics
/// If `state` is not one of `out`'s length.
pub fn finish(state: &[f32], out: &mut [f32]) {
    assert_eq!(state.len(), state_length(out.len()), "one state per head");
    let (values, rest) = state.split_at(out.len());
    let sum = sum16(*rest.first_chunk().expect("a state has a sum"));
    let scale = if sum == 0.0 { 0.0 } else { 1.0 / sum };
    for (out, value) in out.iter_mut().zip(values) {
        *out = value * scale;
    }
}
