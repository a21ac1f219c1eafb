//! What a caller asks for and what it is told: plain data, no channel, no lock.

use std::time::Duration;

use crate::{Constraint, Error};

/// How the next token is chosen from the logits.
///
/// The steps run in this order: [`Params::constraint`], [`Params::logit_bias`], penalties, temperature 0 (greedy) or top-k,
/// top-p, min-p, temperature, draw.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Divides the logits before the draw; 0 takes the most likely token.
    pub temperature: f32,
    /// Keeps the k most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the smallest set of most likely tokens whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Drops tokens less likely than this share of the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of recent tokens; 1 is off.
    pub repeat_penalty: f32,
    /// Subtracted from a recent token's logit once for each time that it occurred; 0 is off.
    pub frequency_penalty: f32,
    /// Subtracted once from the logit of every recent token; 0 is off.
    pub presence_penalty: f32,
    /// How many of the last tokens, prompt included, count as recent for the penalties.
    pub penalty_window_tokens: usize,
    /// Start of the random sequence; `None` goes on from where the replica's last request without one ended.
    pub seed: Option<u64>,
}

/// The tokens that an answer follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// The tokens, in order.
    pub tokens: Vec<u32>,
    /// How the answer stands to them.
    pub opening: Opening,
}

/// How an answer's text begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// A text of its own: the space that some vocabularies put before a first word is dropped.
    Answer,
    /// More of the prompt's text: every space counts.
    Continuation,
}

/// One request's limits and sampling.
#[derive(Debug, Clone, PartialEq)]
pub struct Params {
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Stops after so many generated tokens; `None` runs to the end of the context.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer; neither they nor what follows is given out.
    pub stop: Vec<String>,
    /// What the answer's text has to be; nothing else is possible then.
    pub constraint: Option<Constraint>,
    /// Finite numbers that are added to the logits of these tokens before everything else.
    pub logit_bias: Vec<(u32, f32)>,
    /// Tells each token's log-probability beside so many of the most likely ones; `None` tells none.
    pub logprobs: Option<usize>,
    /// Tells the tokens of the prompt in the same way, from its second on, and then, of those that
    /// [`Self::logprobs`] tells, also the ones without text; `None` tells none. Nothing is re-used for such a prompt.
    pub prompt_logprobs: Option<usize>,
}

/// A token and how likely the model found it at one place.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub id: u32,
    /// What it stands for: any part of a character, and a leading space even where the text drops it.
    pub bytes: Vec<u8>,
    /// The natural logarithm of its probability as the model computed it: before bias, penalties,
    /// temperature and truncation. The token that was drawn can therefore be an unlikely one.
    pub logprob: f32,
}

/// A generated token beside those that the model found most likely in its place.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenDetails {
    /// The token that was chosen.
    pub token: TokenLogprob,
    /// The most likely tokens, in order, the lower id first among equals; the chosen one need not be
    /// among them.
    pub top: Vec<TokenLogprob>,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// The model said that it is done, or a stop text appeared.
    Stop,
    /// `max_tokens` or the context was reached.
    Length,
}

/// The account of one finished request.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Why it ended.
    pub reason: FinishReason,
    /// Which of [`Params::stop`] ended it, if one did.
    pub stop_text: Option<usize>,
    /// Tokens in the prompt.
    pub prompt_tokens: usize,
    /// How many of them were not computed because an earlier request had.
    pub cached_tokens: usize,
    /// Tokens generated, the end-of-generation token included.
    pub completion_tokens: usize,
    /// Wall time from the first prompt chunk to the first token.
    pub prefill: Duration,
    /// Wall time from the first token to the last.
    pub decode: Duration,
}

/// What a request's sink is told, in order: any number of `Waiting`, `Prefilled` for each chunk of the prompt, with its
/// `Prompt` if asked for, any number of `Text` or `Embedded`, then one `Finished` or `Failed`.
#[derive(Debug)]
pub enum Event {
    /// The request waits for a replica; told again and again, for the chance to leave the line. The engine never tells
    /// this: whoever waits for a lease does.
    Waiting,
    /// So many tokens of the prompt are done, at first none; the chance to cancel a long one.
    Prefilled {
        /// Tokens computed or re-used so far.
        tokens: usize,
    },
    /// Further tokens of the prompt, if [`Params::prompt_logprobs`] asks for them; the first of all is never
    /// among them, since nothing foretells it.
    Prompt {
        /// The tokens, in order.
        tokens: Vec<TokenDetails>,
    },
    /// One more token's text.
    Text {
        /// Never half a character, never part of a stop text; empty when the token only begins a
        /// character or may begin a stop text.
        text: String,
        /// The tokens whose text ends in this piece, if [`Params::logprobs`] asks for them. Control
        /// tokens have no text and are not told, unless [`Params::prompt_logprobs`] asks for all; tokens that a
        /// stop text overlaps never are.
        tokens: Vec<TokenDetails>,
    },
    /// The vector of one of the texts of [`crate::Lease::embed`], in their order; its length is 1.
    Embedded {
        /// Which text's.
        index: usize,
        /// As many numbers as the model's embedding is long.
        vector: Vec<f32>,
    },
    /// The answer is complete.
    Finished(Summary),
    /// The engine could not go on with this request.
    Failed(Error),
}

/// Refuses a request that no replica can run.
pub(crate) fn check(
    prompt: &Prompt,
    params: &Params,
    context_tokens: usize,
    vocabulary_tokens: usize,
) -> Result<(), Error> {
    let tokens = &prompt.tokens;
    if tokens.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    if tokens.len() >= context_tokens {
        return Err(Error::ContextExceeded { prompt_tokens: tokens.len(), context_tokens });
    }
    let biased = params.logit_bias.iter().map(|(token, _)| token);
    let mut named = tokens.iter().chain(biased);
    match named.find(|&&token| token as usize >= vocabulary_tokens) {
        Some(&token) => Err(Error::UnknownToken { token, vocabulary_tokens }),
        None => Ok(()),
    }
}
