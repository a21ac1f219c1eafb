//! The Anthropic dialect: wire types, rules and shapes of `POST /v1/messages` and `/v1/messages/count_tokens`.

pub(crate) mod error;
mod message;
pub(crate) mod messages;
mod request;
mod stream;
mod tools;
