//! Which tokens of which sequences the next forward pass computes: a pure function.
//!
//! Every decoding sequence is in every pass, so no running answer waits for more than one prompt
//! chunk. Prompts share what is left, first come, first served.

/// How far one sequence is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    /// Tokens of the prompt and the answer so far.
    pub(crate) known: usize,
    /// Tokens whose keys and values are in the cache; less than `known`.
    pub(crate) cached: usize,
    /// Whether each token's logits are wanted, which bounds how many a pass can compute.
    pub(crate) is_scored: bool,
}

/// The part of one sequence that a pass computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// Index of the sequence.
    pub(crate) sequence: usize,
    /// Tokens to compute, from `cached` on.
    pub(crate) tokens: usize,
    /// Whether nothing of the sequence is left after this, so that its next token can be chosen.
    pub(crate) completes: bool,
}

/// Plans one pass: one token of each decoding sequence and up to `chunk_tokens` of prompts, of those up to
/// `scored_tokens` of scored ones.
pub(crate) fn plan(sequences: &[Position], chunk_tokens: usize, scored_tokens: usize) -> Vec<Part> {
    let (mut left, mut scored_left) = (chunk_tokens, scored_tokens);
    let part = |(sequence, position): (usize, &Position)| {
        let pending = position.known - position.cached;
        let most = if position.is_scored { left.min(scored_left) } else { left };
        let tokens = if pending == 1 { 1 } else { pending.min(most) };
        if pending > 1 {
            left -= tokens;
            scored_left -= if position.is_scored { tokens } else { 0 };
        }
        Part { sequence, tokens, completes: tokens == pending }
    };
    sequences.iter().enumerate().map(part).filter(|part| part.tokens > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn position(known: usize, cached: usize) -> Position {
        Position { known, cached, is_scored: false }
    }

    #[test]
    fn scored_prompts_share_what_may_be_scored_and_hold_up_no_other() {
        let scored = |known, cached| Position { is_scored: true, ..position(known, cached) };
        let parts = plan(&[scored(10, 0), scored(100, 4), scored(7, 3), position(50, 0)], 256, 16);
        assert_eq!(
            parts,
            [
                Part { sequence: 0, tokens: 10, completes: true },
                Part { sequence: 1, tokens: 6, completes: false },
                Part { sequence: 3, tokens: 50, completes: true },
            ]
        );
    }

    #[test]
    fn p22_decoding_sequences_are_in_every_pass() {
        let parts = plan(&[position(900, 0), position(8, 7), position(5, 4)], 256, 16);
        assert_eq!(
            parts,
            [
                Part { sequence: 0, tokens: 256, completes: false },
                Part { sequence: 1, tokens: 1, completes: true },
                Part { sequence: 2, tokens: 1, completes: true },
            ]
        );
    }

    #[test]
    fn prompts_share_a_chunk_in_order_of_arrival() {
        let parts = plan(&[position(100, 0), position(300, 0), position(50, 0)], 256, 16);
        assert_eq!(
            parts,
            [
                Part { sequence: 0, tokens: 100, completes: true },
                Part { sequence: 1, tokens: 156, completes: false },
            ]
        );
    }

    proptest! {
        #[test]
        fn p22_every_prompt_is_computed_once_and_no_pass_exceeds_its_chunk(
            prompts in proptest::collection::vec((1usize..700, any::<bool>()), 1..9),
            chunk in 1usize..300,
            scored in 1usize..40,
        ) {
            let mut sequences: Vec<Position> = prompts
                .iter()
                .map(|&(known, is_scored)| Position { is_scored, ..position(known, 0) })
                .collect();
            for _ in 0..=prompts.iter().map(|(known, _)| known).sum::<usize>() {
                let waiting: Vec<usize> = (0..sequences.len()).filter(|&i| sequences[i].cached < sequences[i].known).collect();
                if waiting.is_empty() {
                    break;
                }
                let pending: Vec<Position> = waiting.iter().map(|&i| sequences[i]).collect();
                let parts = plan(&pending, chunk, scored);
                let tokens: usize = parts.iter().map(|part| part.tokens).sum();
                prop_assert!(tokens > 0 && tokens <= chunk + pending.len());
                let scored_parts = parts.iter().filter(|part| pending[part.sequence].is_scored);
                let rows: usize = scored_parts.map(|part| part.tokens).sum();
                prop_assert!(rows <= scored + pending.len());
                for part in parts {
                    let sequence = &mut sequences[waiting[part.sequence]];
                    sequence.cached += part.tokens;
                    prop_assert_eq!(part.completes, sequence.cached == sequence.known);
                }
            }
            prop_assert!(sequences.iter().all(|sequence| sequence.cached == sequence.known));
        }
    }
}
