//! How likely the model found its tokens: computed before anything bends the logits, told with the text.
//!
//! Invariant: a token's details come out with the last byte of its text and never before it, so what a stop text
//! takes back is not told either. Which token is chosen, and why, is not known here.

use std::collections::VecDeque;

use toko_kernels::blocks::{BLOCK, block_maxima, block_powers};
use toko_kernels::isa::Tier;
use toko_tokenizer::Tokenizer;

use crate::ranking::Ranking;
use crate::{TokenDetails, TokenLogprob};

/// The details of one answer's tokens on their way out.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// How many of the most likely tokens are told beside each.
    top: usize,
    /// The row of logits as the model computed it.
    logits: Vec<f32>,
    /// Bytes of text that the tokens so far have become.
    known_bytes: usize,
    /// Bytes of text that were given out.
    given_bytes: usize,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    details: TokenDetails,
    /// Where in the answer the token's text ends; `None` while it ends inside an unfinished character.
    end_bytes: Option<usize>,
}

impl Ledger {
    /// Begins an answer; `top` tokens are told beside each.
    pub(crate) fn new(top: usize) -> Self {
        Self { top, logits: Vec::new(), known_bytes: 0, given_bytes: 0, waiting: VecDeque::new() }
    }

    /// Keeps the logits from which the next token will be chosen.
    pub(crate) fn observe(&mut self, logits: &[f32]) {
        self.logits.clear();
        self.logits.extend_from_slice(logits);
    }

    /// Records the chosen token, the text that it completed and whether a character stays unfinished after it.
    pub(crate) fn record(
        &mut self,
        token: u32,
        piece: &str,
        is_unfinished: bool,
        tokenizer: &Tokenizer,
    ) {
        let details = describe(&self.logits, token, self.top, tokenizer);
        self.record_details(details, piece, is_unfinished);
    }

    fn record_details(&mut self, details: TokenDetails, piece: &str, is_unfinished: bool) {
        self.complete(piece);
        let end_bytes = (!is_unfinished).then_some(self.known_bytes);
        self.waiting.push_back(Waiting { details, end_bytes });
    }

    /// Takes in text that no further token completed: what became of an unfinished character at the end.
    pub(crate) fn complete(&mut self, piece: &str) {
        // What was unfinished has become the first character of the piece.
        if let Some(first) = piece.chars().next() {
            let end_bytes = self.known_bytes + first.len_utf8();
            for unfinished in self.waiting.iter_mut().filter(|entry| entry.end_bytes.is_none()) {
                unfinished.end_bytes = Some(end_bytes);
            }
        }
        self.known_bytes += piece.len();
    }

    /// Takes in that `text` is given out and returns the tokens that end in it.
    pub(crate) fn release(&mut self, text: &str) -> Vec<TokenDetails> {
        self.given_bytes += text.len();
        let given_bytes = self.given_bytes;
        let is_out = |entry: &Waiting| entry.end_bytes.is_some_and(|end| end <= given_bytes);
        let count = self.waiting.iter().take_while(|entry| is_out(entry)).count();
        self.waiting.drain(..count).map(|entry| entry.details).collect()
    }
}

/// Returns the token's log-probability under the softmax of the row, and that of the `top` most likely ones.
pub(crate) fn describe(
    logits: &[f32],
    token: u32,
    top: usize,
    tokenizer: &Tokenizer,
) -> TokenDetails {
    let total = log_sum_exp(logits);
    let tell = |id: u32| TokenLogprob {
        id,
        bytes: tokenizer.token_bytes(id).to_vec(),
        logprob: logits[id as usize] - total,
    };
    TokenDetails { token: tell(token), top: most_likely(logits, top).map(tell).collect() }
}

/// The natural logarithm of the sum of e to the power of each; the row has a finite highest value.
fn log_sum_exp(logits: &[f32]) -> f32 {
    let tier = Tier::detect();
    let mut blocks = vec![0.0; logits.len().div_ceil(BLOCK)];
    block_maxima(tier, logits, &mut blocks);
    let highest = blocks.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    block_powers(tier, logits, highest, 1.0, &mut blocks);
    let sum: f64 = blocks.into_iter().map(f64::from).sum();
    #[expect(clippy::cast_possible_truncation, reason = "rounds to the precision of the logits")]
    let logarithm = sum.ln() as f32;
    highest + logarithm
}

/// The tokens with the `count` highest logits, highest first, the lower id first among equals.
fn most_likely(logits: &[f32], count: usize) -> impl Iterator<Item = u32> {
    let (mut ranking, mut ranked) = (Ranking::default(), Vec::new());
    if count > 0 {
        ranking.survey(logits);
        ranking.most_likely(logits, count, &mut ranked);
    }
    ranked.into_iter().map(|ranked| ranked.token)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn details(id: u32) -> TokenDetails {
        let token = TokenLogprob { id, bytes: Vec::new(), logprob: 0.0 };
        TokenDetails { token, top: Vec::new() }
    }

    /// Gives out a text and returns the ids of the tokens that come with it.
    fn release(ledger: &mut Ledger, text: &str) -> Vec<u32> {
        ledger.release(text).into_iter().map(|details| details.token.id).collect()
    }

    #[test]
    fn tokens_that_share_a_character_come_with_it() {
        let mut ledger = Ledger::new(0);
        for id in 0..3 {
            ledger.record_details(details(id), "", true);
            assert_eq!(release(&mut ledger, ""), [0u32; 0]);
        }
        ledger.record_details(details(3), "😀", false);
        assert_eq!(release(&mut ledger, "😀"), [0, 1, 2, 3]);
    }

    #[test]
    fn a_token_that_begins_another_character_waits_for_it() {
        let mut ledger = Ledger::new(0);
        ledger.record_details(details(0), "", true);
        ledger.record_details(details(1), "éa", true);
        assert_eq!(release(&mut ledger, "éa"), [0]);
        ledger.complete("\u{FFFD}");
        assert_eq!(release(&mut ledger, "\u{FFFD}"), [1]);
    }

    #[test]
    fn a_token_of_which_a_part_is_held_back_waits_for_that_part() {
        let mut ledger = Ledger::new(0);
        ledger.record_details(details(0), "hello", false);
        assert_eq!(release(&mut ledger, "hel"), [0u32; 0]);
        ledger.record_details(details(1), "x", false);
        assert_eq!(release(&mut ledger, "lo"), [0]);
        assert_eq!(release(&mut ledger, "x"), [1]);
    }

    #[test]
    fn a_token_without_text_comes_in_its_turn() {
        let mut ledger = Ledger::new(0);
        ledger.record_details(details(0), "a", false);
        ledger.record_details(details(1), "", false);
        ledger.record_details(details(2), "b", false);
        assert_eq!(release(&mut ledger, ""), [0u32; 0]);
        assert_eq!(release(&mut ledger, "a"), [0, 1]);
    }

    proptest! {
        #[test]
        fn the_log_of_the_sum_is_that_of_double_precision(
            logits in prop::collection::vec(-60f32..60.0, 1..200),
        ) {
            let exact = logits.iter().map(|&logit| f64::from(logit).exp()).sum::<f64>().ln();
            prop_assert!((f64::from(log_sum_exp(&logits)) - exact).abs() < 1e-5);
        }
    }
}
