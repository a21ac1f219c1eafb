//! Vocabularies, streaming detokenization and chat templates.
//!
//! Invariant: what a user writes is text. Control tokens enter a prompt from the template or because a caller asked
//! for them by name. This crate opens no file, reads no clock and knows no model.
#![forbid(unsafe_code)]

mod bpe;
mod byte_level;
mod chat;
mod error;
mod guard;
mod json;
mod marks;
mod pretokenize;
mod special;
mod spm;
mod stream;
mod strftime;
mod template;
mod tokenizer;
mod vocabulary;

pub use chat::{Chat, Message, ToolCall};
pub use error::Error;
pub use stream::Detokenizer;
pub use template::ChatTemplate;
pub use tokenizer::{Special, Tokenizer};
pub use vocabulary::VocabularySource;
