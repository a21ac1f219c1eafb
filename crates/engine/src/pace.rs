//! How many prompt tokens one pass computes: as many as fit into the time for which a running answer may stall and a
//! client that has left may still cost. Never changes an answer, only when it comes.

use std::time::Duration;

/// Prompt tokens that one pass computes at most: enough to read the weights seldom.
pub(crate) const CHUNK_TOKENS: usize = 256;

/// And at least, however slow the model is: fewer would read the weights for nearly nothing.
const FEWEST_TOKENS: usize = 16;

/// The first pass finds out how fast the model is.
const FIRST_TOKENS: usize = 64;

/// About what a pass should take: readers hardly notice such a pause.
const PASS: Duration = Duration::from_millis(250);

/// The present size of chunks.
pub(crate) struct Pace {
    chunk_tokens: usize,
}

impl Pace {
    /// Knows nothing of the model yet.
    pub(crate) fn unknown() -> Self {
        Self { chunk_tokens: FIRST_TOKENS }
    }

    /// Takes whole chunks however long they take.
    pub(crate) fn fastest() -> Self {
        Self { chunk_tokens: CHUNK_TOKENS }
    }

    /// Returns how many prompt tokens the next pass may compute.
    pub(crate) fn chunk_tokens(&self) -> usize {
        self.chunk_tokens
    }

    /// Learns from a pass over so many prompt tokens; one that was not nearly full says little.
    pub(crate) fn learn(&mut self, tokens: usize, took: Duration) {
        if tokens * 2 <= self.chunk_tokens {
            return;
        }
        let nanoseconds = took.as_nanos().max(1);
        let fitting = u128::try_from(tokens).unwrap_or(u128::MAX) * PASS.as_nanos() / nanoseconds;
        let fitting = usize::try_from(fitting).unwrap_or(usize::MAX);
        // A single pass may have been lucky.
        let most = CHUNK_TOKENS.min(self.chunk_tokens * 2);
        self.chunk_tokens = fitting.clamp(FEWEST_TOKENS, most.max(FEWEST_TOKENS));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_slow_model_gets_small_chunks_and_a_fast_one_large_ones() {
        let mut pace = Pace::unknown();
        pace.learn(64, Duration::from_millis(500));
        assert_eq!(pace.chunk_tokens(), 32);
        pace.learn(32, Duration::from_mins(1));
        assert_eq!(pace.chunk_tokens(), FEWEST_TOKENS);
        for expected in [32, 64, 128, 256, 256] {
            pace.learn(pace.chunk_tokens(), Duration::from_millis(1));
            assert_eq!(pace.chunk_tokens(), expected);
        }
    }

    #[test]
    fn a_pass_that_was_not_full_teaches_nothing() {
        let mut pace = Pace::unknown();
        pace.learn(32, Duration::from_secs(9));
        pace.learn(0, Duration::ZERO);
        assert_eq!(pace.chunk_tokens(), FIRST_TOKENS);
    }

    proptest! {
        #[test]
        fn p22_with_a_steady_speed_a_pass_takes_no_longer_than_it_should(token_us in 1u64..15_000) {
            let mut pace = Pace::unknown();
            for _ in 0..6 {
                let tokens = pace.chunk_tokens();
                pace.learn(tokens, Duration::from_micros(token_us * u64::try_from(tokens).expect("small")));
            }
            let tokens = pace.chunk_tokens();
            prop_assert!((FEWEST_TOKENS..=CHUNK_TOKENS).contains(&tokens));
            let took = Duration::from_micros(token_us * u64::try_from(tokens).expect("small"));
            prop_assert!(took <= PASS);
            // One token more would not fit, or is not allowed.
            let more = took + Duration::from_micros(token_us);
            prop_assert!(tokens == CHUNK_TOKENS || more > PASS);
        }
    }
}
