//! The OpenAI dialect: wire types, rules and shapes of its routes.

pub(crate) mod chat;
mod completion_logprobs;
mod completion_request;
pub(crate) mod completions;
mod controls;
pub(crate) mod embeddings;
mod logprobs;
mod message;
pub(crate) mod models;
mod prompts;
mod request;
pub(crate) mod responses;
mod stream;
mod structure;
pub(crate) mod tools;
