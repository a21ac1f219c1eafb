//! What can go wrong between a model file and an answer.

use std::time::Duration;

use toko_admission::decision::Decision;

/// Why a model could not be loaded or a request could not be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file is not a readable GGUF file.
    #[error(transparent)]
    Gguf(#[from] toko_gguf::Error),
    /// The weights or hyper-parameters do not form a model that runs here.
    #[error(transparent)]
    Model(#[from] toko_model::Error),
    /// The vocabulary or the chat template cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] toko_tokenizer::Error),
    /// There is no room for the model.
    #[error("{}", .0.sentence())]
    Refused(Box<Decision>),
    /// The prompt leaves no room for an answer.
    #[error(
        "the prompt has {prompt_tokens} tokens but the context holds {context_tokens}; shorten it or raise the context"
    )]
    ContextExceeded {
        /// Tokens in the prompt.
        prompt_tokens: usize,
        /// Tokens that the context holds.
        context_tokens: usize,
    },
    /// The prompt is empty.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// One of several texts cannot be used.
    #[error("text {index}: {source}")]
    Text {
        /// Which one, from 0.
        index: usize,
        /// What is wrong with it.
        source: Box<Self>,
    },
    /// The file wants its hidden states made into vectors in a way that is not built in.
    #[error(
        "the model's pooling_type {kind} makes no vector of a text; mean, first and last are known"
    )]
    Pooling {
        /// The number in the file.
        kind: u64,
    },
    /// A prompt token is not in the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocabulary_tokens} tokens")]
    UnknownToken {
        /// The token id.
        token: u32,
        /// Size of the vocabulary.
        vocabulary_tokens: usize,
    },
    /// The vocabulary and the embedding table do not belong together.
    #[error("tokenizer.ggml.tokens has {tokens} entries but token_embd.weight has {rows} rows")]
    Vocabulary {
        /// Tokens in the vocabulary.
        tokens: usize,
        /// Rows of the embedding table.
        rows: usize,
    },
    /// The context asked for cannot be had.
    #[error(
        "a context of {asked_tokens} tokens was asked for; {model} takes 1 to {trained_tokens}"
    )]
    Context {
        /// Tokens asked for.
        asked_tokens: usize,
        /// The model's own limit.
        trained_tokens: usize,
        /// The model's name.
        model: String,
    },
    /// The worker thread could not be started.
    #[error("the engine's thread could not be started")]
    Thread {
        /// The system's reason.
        source: std::io::Error,
    },
    /// The model produced a logit that is not a number.
    #[error(
        "the model produced logits that are not numbers at position {position}; the weights are damaged or overflow"
    )]
    NotANumber {
        /// Position of the token whose logits they are.
        position: usize,
    },
    /// A forward pass panicked; a defect of this program.
    #[error("the engine failed in a way that it should not; please report this")]
    Panicked,
    /// The constraint on an answer cannot be enforced.
    #[error("{reason}")]
    Constraint {
        /// What is wrong with it, or too much.
        reason: String,
    },
    /// No token can follow that the constraint on an answer allows.
    #[error("the answer cannot go on in a way that its constraint allows: {reason}")]
    DeadEnd {
        /// What was reached.
        reason: String,
    },
    /// As many requests wait as may.
    #[error("{waiting} requests are waiting already; try again in {retry_after_seconds} s")]
    QueueFull {
        /// Requests that wait.
        waiting: usize,
        /// When a retry is likely to succeed, 1 to 60.
        retry_after_seconds: u32,
    },
    /// No replica became idle in time; nothing was computed.
    #[error(
        "no place became free within {} s; try again in {retry_after_seconds} s",
        .waited.as_secs()
    )]
    QueueTimeout {
        /// How long the request waited.
        waited: Duration,
        /// When a retry is likely to succeed, 1 to 60.
        retry_after_seconds: u32,
    },
    /// The engine hands out no replica any more.
    #[error("the engine is shutting down")]
    Closed,
    /// Another request's load of the model, for which this one waited, failed.
    #[error("the model could not be loaded: {reason}")]
    LoadFailed {
        /// What went wrong, for people.
        reason: String,
    },
    /// There was a permit but no replica; a defect of this program.
    #[error("the engine pool has lost a replica; please report this, and try again")]
    PoolEmpty,
    /// Somebody panicked under the pool's lock; a defect of this program, after which the pool was made whole.
    #[error(
        "the engine pool was damaged by a panic and has been mended; please report this, and try again"
    )]
    PoolPoisoned,
}
