//! What a caller asks for and what it is told: plain data, no channel, no lock.

use std::time::Duration;

use crate::Error;

/// How the next token is chosen from the logits.
///
/// The steps run in this order: penalties, temperature 0 (greedy) or top-k, top-p, min-p,
/// temperature, draw.
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
    /// Start of the random sequence; `None` takes one that nobody chose.
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
    /// Tokens in the prompt.
    pub prompt_tokens: usize,
    /// Tokens generated, the end-of-generation token included.
    pub completion_tokens: usize,
    /// Wall time from the first prompt chunk to the first token.
    pub prefill: Duration,
    /// Wall time from the first token to the last.
    pub decode: Duration,
}

/// What a request's sink is told, in order: `Prefilled` for each chunk of the prompt, any number of
/// `Text`, then one `Finished` or `Failed`.
#[derive(Debug)]
pub enum Event {
    /// So many tokens of the prompt are computed, at first none; the chance to cancel a long one.
    Prefilled {
        /// Tokens computed so far.
        tokens: usize,
    },
    /// One more token's text: never half a character, never part of a stop text; empty when the
    /// token only begins a character or may begin a stop text.
    Text(String),
    /// The answer is complete.
    Finished(Summary),
    /// The engine could not go on with this request.
    Failed(Error),
}
