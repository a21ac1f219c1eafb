//! How likely the model found the tokens of a prompt: each row of logits judges the token that follows it.
//!
//! Knows neither sequence nor schedule; a prompt is scored in parts, as it is computed.

use toko_tokenizer::Tokenizer;

use crate::logprobs::describe;
use crate::{Error, TokenDetails};

/// Tokens of scored prompts that one pass computes at most: each has a row of logits as wide as the vocabulary.
pub(crate) const SCORED_TOKENS: usize = 16;

/// Returns the details of `tokens`, each judged by one row of `logits`, beside the `top` most likely ones.
///
/// `logits`: `[tokens, vocabulary]` at least, those of the positions before each token. `position` is the first row's.
pub(crate) fn score(
    tokens: &[u32],
    logits: &[f32],
    position: usize,
    top: usize,
    tokenizer: &Tokenizer,
) -> Result<Vec<TokenDetails>, Error> {
    let rows = logits.chunks_exact(tokenizer.len());
    let judged = tokens.iter().zip(rows).zip(position..).map(|((&token, row), position)| {
        let details = describe(row, token, top, tokenizer);
        let is_number = !details.token.logprob.is_nan();
        is_number.then_some(details).ok_or(Error::NotANumber { position })
    });
    judged.collect()
}
