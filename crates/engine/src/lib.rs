//! Runs a model for many requests: tokenizer, scheduler, sampler, stop rules and the worker thread.
//!
//! A [`Engine`] owns one loaded model, one worker thread and a [`Pool`] of replicas. Callers lease a replica, give it a
//! prompt and receive [`Event`]s; all replicas that generate are stepped in the same forward pass. The engine knows no
//! HTTP and no wire format.
#![forbid(unsafe_code)]

mod admit;
mod constraint;
mod embedding;
mod error;
mod footprint;
mod host;
mod infill;
mod load;
mod logprobs;
mod metrics;
mod pace;
mod passes;
mod pool;
mod prefix;
mod ranking;
mod replica;
mod request;
mod sampler;
mod scheduler;
mod scoring;
mod stop;
mod sync;
mod vocabulary;
mod worker;

pub use admit::{Applicant, Plan};
pub use constraint::{Constraint, Form};
pub use error::Error;
pub use footprint::{footprint, sizing};
pub use host::{Host, LoadError, Loaded, Residence};
pub use infill::Infill;
pub use load::{Engine, ModelInfo, Options};
pub use metrics::Metrics;
pub use passes::Passes;
pub use pool::{Decoding, Lease, Occupancy, Pool, Turn, default_pool_size, resolve_pool_size};
pub use replica::Replica;
pub use request::{
    Event, FinishReason, Opening, Params, Prompt, Sampling, Summary, TokenDetails, TokenLogprob,
};
pub use toko_model::KvType;
pub use toko_tokenizer::{Chat, ChatTemplate, Message, Special, Tokenizer, ToolCall};
pub use vocabulary::{chat_template, tokenizer};
