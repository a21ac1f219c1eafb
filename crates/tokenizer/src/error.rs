//! What can be wrong with a vocabulary or a chat template.
//!
//! Invariant: a message names the metadata key or the template line at fault and says what was found there.

/// Says why a tokenizer or a chat template could not be made or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The vocabulary is of a kind that this crate does not implement.
    #[error(
        "tokenizer.ggml.model: the tokenizer kind {kind:?}{description} is not supported; supported are \"gpt2\" and \"gemma4\" (BPE) and \"llama\" (SPM)"
    )]
    UnsupportedKind {
        /// The value of `tokenizer.ggml.model`.
        kind: String,
        /// What that kind is, in brackets with a leading space, or empty.
        description: &'static str,
    },
    /// No pre-tokenizer is known under the name.
    #[error("tokenizer.ggml.pre: the pre-tokenizer {name:?} is not known; known are {known}")]
    UnknownPreTokenizer {
        /// The value of `tokenizer.ggml.pre`.
        name: String,
        /// All known names, separated by commas.
        known: String,
    },
    /// There is not one token.
    #[error("tokenizer.ggml.tokens: the vocabulary is empty")]
    EmptyVocabulary,
    /// Two arrays that describe the same tokens differ in length.
    #[error("{key}: {found} entries for {expected} tokens")]
    LengthMismatch {
        /// The key of the array at fault.
        key: &'static str,
        /// Its number of entries.
        found: usize,
        /// The number of tokens.
        expected: usize,
    },
    /// A kind needs an array that the file lacks.
    #[error("{key}: missing, but a {kind:?} vocabulary needs it")]
    Missing {
        /// The missing key.
        key: &'static str,
        /// The value of `tokenizer.ggml.model`.
        kind: String,
    },
    /// One entry of an array makes no sense.
    #[error("{key}[{index}]: {reason}")]
    BadEntry {
        /// The array's key.
        key: &'static str,
        /// The entry's place, from 0.
        index: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A token id lies outside the vocabulary.
    #[error("{key}: token id {id} is out of range, the vocabulary has {len} tokens")]
    IdOutOfRange {
        /// The key that holds the id.
        key: &'static str,
        /// The id.
        id: u32,
        /// The number of tokens.
        len: usize,
    },
    /// The library that encodes refused the vocabulary.
    #[error("tokenizer.ggml.tokens: {0}")]
    Vocabulary(String),
    /// The chat template is not valid Jinja.
    #[error("chat template, line {line}: {message}")]
    TemplateSyntax {
        /// The line, from 1; 0 when it is not known.
        line: usize,
        /// What is wrong there.
        message: String,
    },
    /// The chat template refused the conversation through `raise_exception`.
    #[error("the chat template refuses this conversation: {message}")]
    TemplateRaised {
        /// The template's own words.
        message: String,
    },
    /// The chat template failed while it was rendered.
    #[error("the chat template failed at line {line}: {message}")]
    TemplateFailed {
        /// The line, from 1; 0 when it is not known.
        line: usize,
        /// What went wrong.
        message: String,
    },
}
