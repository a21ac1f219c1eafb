//! Softmax over one row of scores.
//!
//! Invariant: the exponentials are summed in 16 lanes and those in a fixed tree. Scores of −∞ are
//! masked: they get exactly 0.

use crate::exp::exp;
use crate::isa::Tier;
use crate::isa::tiered::tiered;
use crate::lanes::sum16;

const LANES: usize = 16;

/// Replaces the scores by `exp(score − max) / Σ exp(score − max)`.
///
/// A row of nothing but −∞ becomes zeros; a NaN makes the whole row NaN.
pub fn softmax(tier: Tier, scores: &mut [f32]) {
    normalized(tier, scores);
}

tiered!(fn normalized(scores: &mut [f32]) = normalize);

#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn normalize(scores: &mut [f32]) {
    let max = max(scores);
    // Against −∞ itself every difference would be NaN.
    let max = if max == f32::NEG_INFINITY { 0.0 } else { max };
    let mut sums = [0.0_f32; LANES];
    let mut whole = scores.chunks_exact_mut(LANES);
    for scores in &mut whole {
        for (score, sum) in scores.iter_mut().zip(&mut sums) {
            *score = exp(*score - max);
            *sum += *score;
        }
    }
    for (score, sum) in whole.into_remainder().iter_mut().zip(&mut sums) {
        *score = exp(*score - max);
        *sum += *score;
    }
    let sum = sum16(sums);
    let scale = if sum == 0.0 { 0.0 } else { 1.0 / sum };
    for score in scores {
        *score *= scale;
    }
}

/// Returns the largest score, in which NaN does not count.
#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn max(scores: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let mut whole = scores.chunks_exact(LANES);
    for scores in &mut whole {
        for (lane, &score) in lanes.iter_mut().zip(scores) {
            *lane = if score > *lane { score } else { *lane };
        }
    }
    let rest = lanes.iter().chain(whole.remainder());
    rest.fold(f32::NEG_INFINITY, |max, &score| if score > max { score } else { max })
}
