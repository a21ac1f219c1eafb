//! From logits to a token.
//!
//! The steps run in a fixed order: bias; penalties; with temperature 0 the most likely token; else
//! top-k, top-p and min-p on the untempered probabilities, temperature, one draw. Ties go to the
//! lower token id, so equal logits and an equal seed give equal tokens on every machine.

use toko_kernels::blocks::{BLOCK, block_powers};
use toko_kernels::exp::exp;
use toko_kernels::isa::Tier;

use crate::Sampling;
use crate::ranking::{Ranked, Ranking, ranking_bytes};

/// Candidates that are put in order first where no top-k says how many there are.
const FIRST_CANDIDATES: usize = 256;

/// How many times as many follow when those were too few.
const MORE: usize = 8;

/// A logit that is not a number, or infinitely large: nothing can be chosen from such a row.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotANumber;

/// The sampling state of one sequence.
pub(crate) struct Sampler {
    sampling: Sampling,
    /// Added to the logits of these tokens, which the vocabulary has.
    bias: Vec<(u32, f32)>,
    ranking: Ranking,
    candidates: Vec<Ranked>,
    /// Their probabilities relative to the most likely token's.
    weights: Vec<f64>,
    /// Sums of these over blocks of the row.
    sums: Vec<f32>,
}

/// Returns the bytes of what one sequence's draws need; at most all tokens are candidates.
pub(crate) fn candidate_bytes(vocabulary_tokens: usize) -> u64 {
    let weights = (vocabulary_tokens as u64).saturating_mul(size_of::<f64>() as u64);
    ranking_bytes(vocabulary_tokens).saturating_add(weights)
}

impl Sampler {
    pub(crate) fn new(sampling: Sampling, bias: Vec<(u32, f32)>) -> Self {
        let ranking = Ranking::default();
        Self {
            sampling,
            bias,
            ranking,
            candidates: Vec::new(),
            weights: Vec::new(),
            sums: Vec::new(),
        }
    }

    /// Chooses the next token; `history` is the sequence so far, prompt included.
    ///
    /// The row is overwritten by the bias and the penalties. A greedy choice draws nothing from `random`.
    pub(crate) fn sample(
        &mut self,
        logits: &mut [f32],
        history: &[u32],
        random: &mut fastrand::Rng,
    ) -> Result<u32, NotANumber> {
        self.ranking.survey(logits);
        if !self.ranking.is_proper() {
            return Err(NotANumber);
        }
        if self.bend(logits, history) {
            self.ranking.survey(logits);
        }
        let best = self.ranking.best(logits).ok_or(NotANumber)?;
        let Sampling { temperature, top_k, top_p, min_p, .. } = self.sampling;
        if temperature == 0.0 {
            return Ok(best.token);
        }
        if top_k == 0 && top_p >= 1.0 && min_p <= 0.0 {
            return Ok(self.draw_from_all(logits, best, random));
        }
        self.keep_candidates(logits, best.logit);
        Ok(self.draw(random))
    }

    /// Adds the bias and subtracts the penalties; says whether there were any.
    #[expect(clippy::float_cmp, reason = "exactly 1 and 0 switch the penalties off")]
    fn bend(&self, logits: &mut [f32], history: &[u32]) -> bool {
        for &(token, bias) in &self.bias {
            logits[token as usize] += bias;
        }
        let Sampling {
            repeat_penalty,
            frequency_penalty,
            presence_penalty,
            penalty_window_tokens,
            ..
        } = self.sampling;
        if repeat_penalty == 1.0 && frequency_penalty == 0.0 && presence_penalty == 0.0 {
            return !self.bias.is_empty();
        }
        let recent = &history[history.len().saturating_sub(penalty_window_tokens)..];
        let mut recent = recent.to_vec();
        recent.sort_unstable();
        for run in recent.chunk_by(|a, b| a == b) {
            let logit = &mut logits[run[0] as usize];
            *logit = if *logit > 0.0 { *logit / repeat_penalty } else { *logit * repeat_penalty };
            let times = u16::try_from(run.len()).unwrap_or(u16::MAX);
            *logit -= f32::from(times) * frequency_penalty + presence_penalty;
        }
        true
    }

    /// Fills `candidates`, most likely first, with what top-k, top-p and min-p leave.
    fn keep_candidates(&mut self, logits: &[f32], highest: f32) {
        let Sampling { top_k, top_p, .. } = self.sampling;
        if top_k > 0 {
            self.ranking.most_likely(logits, top_k, &mut self.candidates);
            let total = self.weigh(highest);
            self.cut(total);
            return;
        }
        let total = if top_p < 1.0 { self.weigh_blocks(logits, highest, 1.0) } else { 0.0 };
        let mut count = FIRST_CANDIDATES;
        loop {
            self.ranking.most_likely(logits, count, &mut self.candidates);
            let is_all = self.candidates.len() < count;
            self.weigh(highest);
            if self.cut(total) || is_all {
                return;
            }
            count *= MORE;
        }
    }

    /// Fills `weights` with the candidates' probabilities relative to the most likely one's, and returns their sum.
    fn weigh(&mut self, highest: f32) -> f64 {
        let weight = |ranked: &Ranked| f64::from(exp(ranked.logit - highest));
        self.weights.clear();
        self.weights.extend(self.candidates.iter().map(weight));
        self.weights.iter().sum()
    }

    /// Takes away the candidates behind top-p of `total`, and those below min-p; says whether there were such.
    fn cut(&mut self, total: f64) -> bool {
        let before = self.candidates.len();
        let enough = total * f64::from(self.sampling.top_p);
        let mut sum = 0.0;
        let reached = self.weights.iter().position(|weight| {
            sum += weight;
            self.sampling.top_p < 1.0 && sum >= enough
        });
        let least = f64::from(self.sampling.min_p);
        let likely = self.weights.partition_point(|&weight| weight >= least);
        let kept = reached.map_or(before, |last| last + 1).min(likely);
        self.candidates.truncate(kept.max(1));
        reached.is_some() || likely < before
    }

    fn draw(&mut self, random: &mut fastrand::Rng) -> u32 {
        let (temperature, highest) = (self.sampling.temperature, self.candidates[0].logit);
        let weight = |ranked: &Ranked| f64::from(exp((ranked.logit - highest) / temperature));
        self.weights.clear();
        self.weights.extend(self.candidates.iter().map(weight));
        let mut point = random.f64() * self.weights.iter().sum::<f64>();
        let chosen = self.candidates.iter().zip(&self.weights).find(|(_, weight)| {
            point -= **weight;
            point < 0.0
        });
        chosen.map_or(self.candidates[0], |(chosen, _)| *chosen).token
    }

    /// Draws where nothing is cut off: tokens come in the order of their ids, and none is put in order.
    fn draw_from_all(&mut self, logits: &[f32], best: Ranked, random: &mut fastrand::Rng) -> u32 {
        let temperature = self.sampling.temperature;
        let mut point = random.f64() * self.weigh_blocks(logits, best.logit, temperature);
        let blocks = (0..).step_by(BLOCK).zip(logits.chunks(BLOCK));
        for ((first, block), sum) in blocks.zip(&self.sums) {
            if point >= f64::from(*sum) {
                point -= f64::from(*sum);
                continue;
            }
            for (token, logit) in (first..).zip(block) {
                point -= f64::from(exp((logit - best.logit) / temperature));
                if point < 0.0 {
                    return token;
                }
            }
        }
        best.token
    }

    /// Fills `sums` with those of the tempered weights, and returns the sum of all.
    fn weigh_blocks(&mut self, logits: &[f32], highest: f32, temperature: f32) -> f64 {
        self.sums.resize(logits.len().div_ceil(BLOCK), 0.0);
        block_powers(Tier::detect(), logits, highest, temperature, &mut self.sums);
        self.sums.iter().copied().map(f64::from).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OFF: Sampling = Sampling {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repeat_penalty: 1.0,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
        penalty_window_tokens: 64,
        seed: Some(7),
    };

    /// Draws many times from the same row and counts each token.
    fn counts(sampling: Sampling, logits: &[f32], draws: usize) -> Vec<usize> {
        let mut random = random(&sampling);
        let mut sampler = Sampler::new(sampling, Vec::new());
        let mut counts = vec![0; logits.len()];
        for _ in 0..draws {
            let token = sampler
                .sample(&mut logits.to_vec(), &[], &mut random)
                .expect("the logits are numbers");
            counts[token as usize] += 1;
        }
        counts
    }

    fn choose(sampling: Sampling, logits: &[f32], history: &[u32]) -> Result<u32, NotANumber> {
        let mut random = random(&sampling);
        Sampler::new(sampling, Vec::new()).sample(&mut logits.to_vec(), history, &mut random)
    }

    fn random(sampling: &Sampling) -> fastrand::Rng {
        fastrand::Rng::with_seed(sampling.seed.expect("every test has a seed"))
    }

    #[test]
    fn greedy_takes_the_highest_logit_and_the_lowest_id_among_equals() {
        let greedy = Sampling { temperature: 0.0, ..OFF };
        assert_eq!(choose(greedy.clone(), &[1.0, 3.0, 3.0, 2.0], &[]), Ok(1));
        assert_eq!(choose(greedy, &[f32::NEG_INFINITY, -9.0], &[]), Ok(1));
    }

    #[test]
    fn logits_that_are_not_numbers_are_an_error() {
        for temperature in [0.0, 1.0] {
            let sampling = Sampling { temperature, ..OFF };
            assert_eq!(choose(sampling.clone(), &[0.0, f32::NAN], &[]), Err(NotANumber));
            assert_eq!(choose(sampling.clone(), &[0.0, f32::INFINITY], &[]), Err(NotANumber));
            assert_eq!(choose(sampling, &[f32::NEG_INFINITY; 2], &[]), Err(NotANumber));
        }
    }

    #[test]
    fn draws_follow_the_softmax_of_the_tempered_logits() {
        // e^0 : e^ln2 : e^ln5 = 1 : 2 : 5; at temperature 0.5 the ratios are squared.
        let logits = [0.0, 2f32.ln(), 5f32.ln()];
        for (temperature, shares) in [(1.0, [1.0, 2.0, 5.0]), (0.5, [1.0, 4.0, 25.0])] {
            let total: f64 = shares.iter().sum();
            let counts = counts(Sampling { temperature, ..OFF }, &logits, 40_000);
            for (count, share) in counts.into_iter().zip(shares) {
                let (count, expected) =
                    (u16::try_from(count).expect("40,000 draws"), share / total);
                let found = f64::from(count) / 40_000.0;
                assert!((found - expected).abs() < 0.01, "{found}, not {expected}");
            }
        }
    }

    #[test]
    fn top_k_keeps_the_k_most_likely() {
        let counts = counts(Sampling { top_k: 2, ..OFF }, &[0.0, 0.2, 0.1, -0.1], 500);
        assert_eq!(
            counts.iter().map(|&count| count > 0).collect::<Vec<_>>(),
            [false, true, true, false]
        );
    }

    #[test]
    fn top_p_keeps_the_token_that_reaches_it() {
        // Probabilities 0.5, 0.25, 0.125, 0.125.
        let logits = [4f32.ln(), 2f32.ln(), 0.0, 0.0];
        let kept = |top_p| {
            counts(Sampling { top_p, ..OFF }, &logits, 500).iter().filter(|&&n| n > 0).count()
        };
        assert_eq!([kept(0.4), kept(0.5), kept(0.7), kept(0.8), kept(1.0)], [1, 1, 2, 3, 4]);
    }

    #[test]
    fn min_p_is_relative_to_the_most_likely() {
        let logits = [4f32.ln(), 2f32.ln(), 0.0];
        let kept = |min_p| {
            counts(Sampling { min_p, ..OFF }, &logits, 500).iter().filter(|&&n| n > 0).count()
        };
        assert_eq!([kept(0.2), kept(0.3), kept(0.6)], [3, 2, 1]);
    }

    #[test]
    fn penalties_follow_their_formulas() {
        let greedy = |repeat_penalty, frequency_penalty, presence_penalty| Sampling {
            temperature: 0.0,
            repeat_penalty,
            frequency_penalty,
            presence_penalty,
            ..OFF
        };
        // Token 0 leads by 1 and occurred twice.
        let choose = |sampling| choose(sampling, &[3.0, 2.0], &[0, 0]).expect("numbers");
        assert_eq!([choose(greedy(1.4, 0.0, 0.0)), choose(greedy(1.6, 0.0, 0.0))], [0, 1]);
        assert_eq!([choose(greedy(1.0, 0.4, 0.0)), choose(greedy(1.0, 0.6, 0.0))], [0, 1]);
        assert_eq!([choose(greedy(1.0, 0.0, 0.9)), choose(greedy(1.0, 0.0, 1.1))], [0, 1]);
    }

    #[test]
    fn a_bias_moves_the_choice_by_as_much() {
        let choose = |temperature, bias: &[(u32, f32)]| {
            let sampling = Sampling { temperature, ..OFF };
            let mut random = random(&sampling);
            Sampler::new(sampling, bias.to_vec()).sample(&mut [3.0, 2.0, 1.0], &[], &mut random)
        };
        assert_eq!(choose(0.0, &[(1, 0.9)]), Ok(0));
        assert_eq!(choose(0.0, &[(1, 1.1)]), Ok(1));
        assert_eq!(choose(0.0, &[(0, -1.1), (2, 0.9)]), Ok(1));
        assert_eq!(choose(1.0, &[(2, 100.0)]), Ok(2));
    }

    #[test]
    fn penalties_come_after_the_bias() {
        // (-1 + 4) / 2 = 1.5; the other way round it would be -1 * 2 + 4 = 2.
        let sampling = Sampling { temperature: 0.0, repeat_penalty: 2.0, ..OFF };
        let mut random = random(&sampling);
        let mut sampler = Sampler::new(sampling, vec![(0, 4.0)]);
        assert_eq!(sampler.sample(&mut [-1.0, 1.75], &[0], &mut random), Ok(1));
    }

    #[test]
    fn a_repeat_penalty_lowers_negative_logits_too() {
        let sampling = Sampling { temperature: 0.0, repeat_penalty: 2.0, ..OFF };
        assert_eq!(choose(sampling, &[-1.0, -1.5], &[0]), Ok(1));
    }

    #[test]
    fn penalties_forget_what_lies_before_the_window() {
        let sampling =
            Sampling { temperature: 0.0, presence_penalty: 2.0, penalty_window_tokens: 1, ..OFF };
        assert_eq!(choose(sampling, &[3.0, 2.0, 0.0], &[0, 2]), Ok(0));
    }

    proptest! {
        #[test]
        fn a_seed_repeats_its_draws(seed: u64, logits in proptest::collection::vec(-8f32..8.0, 1..50)) {
            let draw = || counts(Sampling { seed: Some(seed), top_k: 10, top_p: 0.9, ..OFF }, &logits, 20);
            prop_assert_eq!(draw(), draw());
        }

        #[test]
        fn what_is_drawn_is_among_the_top_k(
            logits in proptest::collection::vec(-8f32..8.0, 1..50),
            top_k in 1usize..8,
            seed: u64,
        ) {
            let token = choose(Sampling { top_k, seed: Some(seed), ..OFF }, &logits, &[]).expect("numbers");
            let better = logits.iter().filter(|&&logit| logit > logits[token as usize]).count();
            prop_assert!(better < top_k);
        }
    }
}
