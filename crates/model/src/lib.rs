//! Decoders of the Llama, Qwen2 and Qwen3 families over GGUF weights.
//!
//! Three structs keep three things apart: [`Model`] is what the network knows, [`KvCache`] what
//! its sequences remember, [`Scratch`] what one forward pass is doing. `forward` allocates
//! nothing, and the logits of a sequence do not depend on what else is in the batch.
#![forbid(unsafe_code)]

mod attention;
mod config;
mod decoder;
mod error;
mod format;
mod kv;
mod scratch;
mod weights;

pub use config::{Architecture, Config, Pooling};
pub use decoder::{Model, Rows, Slot};
pub use error::Error;
pub use kv::{KvCache, KvType, PAGE_TOKENS, PageTable};
pub use scratch::Scratch;
