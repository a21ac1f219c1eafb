//! Runs a model for many requests: tokenizer, scheduler, sampler, stop rules and the worker thread.
//!
//! A [`Engine`] owns one loaded model and one worker thread. Callers submit prompts and receive
//! [`Event`]s; every sequence that is running is stepped in the same forward pass. The engine
//! knows no HTTP and no wire format.
#![forbid(unsafe_code)]

mod error;
mod load;
mod logprobs;
mod prefix;
mod queue;
mod request;
mod sampler;
mod scheduler;
mod stop;
mod vocabulary;
mod worker;

pub use error::Error;
pub use load::{Engine, ModelInfo, Options};
pub use queue::Occupancy;
pub use request::{
    Event, FinishReason, Opening, Params, Prompt, Sampling, Summary, TokenDetails, TokenLogprob,
};
pub use toko_model::KvType;
pub use toko_tokenizer::{Chat, ChatTemplate, Message, Special, Tokenizer, ToolCall};
pub use vocabulary::{chat_template, tokenizer};
