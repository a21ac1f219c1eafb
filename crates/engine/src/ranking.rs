//! The most likely tokens of a row of logits, found without sorting or copying the row.
//!
//! Invariant: a higher logit comes first, of equal ones the lower id, and a logit of −∞ never comes. The row is looked
//! at once, block by block; after that only blocks whose highest logit is high enough. Knows no sampling.

use std::cmp::Ordering;

use toko_kernels::blocks::{BLOCK, block_maxima};
use toko_kernels::isa::Tier;

/// A token and its logit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Ranked {
    pub(crate) token: u32,
    pub(crate) logit: f32,
}

/// What is known of a row: its blocks' highest logits.
#[derive(Debug, Default)]
pub(crate) struct Ranking {
    highest: Vec<f32>,
    /// Room for putting them in order.
    order: Vec<f32>,
}

/// Returns the bytes of a ranking of rows of a vocabulary and of all its tokens as ranked ones.
pub(crate) fn ranking_bytes(vocabulary_tokens: usize) -> u64 {
    let blocks = vocabulary_tokens.div_ceil(BLOCK) as u64;
    let each = size_of::<Ranked>() as u64;
    (vocabulary_tokens as u64).saturating_mul(each) + blocks * 2 * size_of::<f32>() as u64
}

impl Ranking {
    /// Looks at a row, which the other methods are then asked about.
    pub(crate) fn survey(&mut self, logits: &[f32]) {
        self.highest.resize(logits.len().div_ceil(BLOCK), 0.0);
        block_maxima(Tier::detect(), logits, &mut self.highest);
    }

    /// Says whether every logit is a number below ∞.
    pub(crate) fn is_proper(&self) -> bool {
        self.highest.iter().all(|highest| !highest.is_nan())
    }

    /// Returns the token with the highest logit, the lowest id among equals; none when all are impossible.
    pub(crate) fn best(&self, logits: &[f32]) -> Option<Ranked> {
        let highest = self.highest.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let block = self.highest.iter().position(|&block| block >= highest)?;
        let place = logits[block * BLOCK..].iter().position(|&logit| logit >= highest)?;
        let token = u32::try_from(block * BLOCK + place).ok()?;
        (highest > f32::NEG_INFINITY).then_some(Ranked { token, logit: highest })
    }

    /// Puts the `count` most likely tokens into `out`, most likely first; fewer if not so many are possible.
    pub(crate) fn most_likely(&mut self, logits: &[f32], count: usize, out: &mut Vec<Ranked>) {
        out.clear();
        if count == 0 {
            return;
        }
        let least = self.least_of(count);
        let is_wanted = |logit: f32| logit >= least && logit > f32::NEG_INFINITY;
        let blocks = (0..).step_by(BLOCK).zip(logits.chunks(BLOCK)).zip(&self.highest);
        for ((first, block), _) in blocks.filter(|(_, highest)| is_wanted(**highest)) {
            let ranked = (first..).zip(block).map(|(token, &logit)| Ranked { token, logit });
            out.extend(ranked.filter(|ranked| is_wanted(ranked.logit)));
        }
        if count < out.len() {
            out.select_nth_unstable_by(count - 1, |a, b| a.by_rank(*b));
            out.truncate(count);
        }
        out.sort_unstable_by(|a, b| a.by_rank(*b));
    }

    /// Returns a logit that at least `count` tokens reach: so many blocks have one that does.
    fn least_of(&mut self, count: usize) -> f32 {
        if count >= self.highest.len() {
            return f32::NEG_INFINITY;
        }
        self.order.clone_from(&self.highest);
        let descending = |a: &f32, b: &f32| b.total_cmp(a);
        *self.order.select_nth_unstable_by(count - 1, descending).1
    }
}

impl Ranked {
    fn by_rank(self, other: Self) -> Ordering {
        // Adding 0 makes −0 equal to it.
        (other.logit + 0.0).total_cmp(&(self.logit + 0.0)).then(self.token.cmp(&other.token))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ranked(logits: &[f32], count: usize) -> Vec<u32> {
        let (mut ranking, mut out) = (Ranking::default(), Vec::new());
        ranking.survey(logits);
        ranking.most_likely(logits, count, &mut out);
        out.into_iter().map(|ranked| ranked.token).collect()
    }

    fn best(logits: &[f32]) -> Option<u32> {
        let mut ranking = Ranking::default();
        ranking.survey(logits);
        ranking.best(logits).map(|ranked| ranked.token)
    }

    /// Few different values, so that many are equal.
    fn rows() -> impl Strategy<Value = Vec<f32>> {
        let logit = prop_oneof![
            8 => (-6i8..6).prop_map(f32::from),
            1 => Just(f32::NEG_INFINITY),
            1 => Just(-0.0),
        ];
        prop::collection::vec(logit, 0..2000)
    }

    proptest! {
        #[test]
        fn the_most_likely_are_the_head_of_the_sorted_row(logits in rows(), count in 0usize..80) {
            let possible = (0..).zip(&logits).filter(|(_, logit)| **logit > f32::NEG_INFINITY);
            let mut sorted: Vec<(u32, f32)> = possible.map(|(token, &logit)| (token, logit)).collect();
            // A stable sort keeps the lower id first.
            sorted.sort_by(|a, b| b.1.partial_cmp(&a.1).expect("numbers"));
            let sorted: Vec<u32> = sorted.into_iter().map(|(token, _)| token).collect();
            prop_assert_eq!(best(&logits), sorted.first().copied());
            prop_assert_eq!(ranked(&logits, count), &sorted[..count.min(sorted.len())]);
        }

        #[test]
        fn one_improper_logit_is_seen_wherever_it_is(
            (mut logits, place) in (1usize..300).prop_flat_map(|n| (prop::collection::vec(-9f32..9.0, n), 0..n)),
            improper in prop::sample::select(vec![f32::NAN, -f32::NAN, f32::INFINITY]),
        ) {
            let mut ranking = Ranking::default();
            ranking.survey(&logits);
            prop_assert!(ranking.is_proper());
            logits[place] = improper;
            ranking.survey(&logits);
            prop_assert!(!ranking.is_proper());
        }
    }
}
