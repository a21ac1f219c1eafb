//! The OpenAI dialect: wire types, rules and shapes of its routes.

pub(crate) mod chat;
mod completion_request;
pub(crate) mod completions;
mod controls;
mod logprobs;
mod message;
pub(crate) mod models;
mod request;
pub(crate) mod responses;
mod stream;
mod structure;
pub(crate) mod tools;
