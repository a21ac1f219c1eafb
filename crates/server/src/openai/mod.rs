//! The OpenAI dialect: wire types, rules and shapes of its routes.

pub(crate) mod chat;
mod message;
pub(crate) mod models;
mod request;
mod stream;
