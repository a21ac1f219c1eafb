//! The server's promises, checked through real sockets: with a scripted engine, and with the real one where the
//! promise is about both.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "clippy does not take these helpers for tests")]

mod access;
mod admin;
mod anthropic;
mod anthropic_errors;
mod chat;
mod choices;
mod client;
mod completion_logprobs;
mod completions;
mod embeddings;
mod engine;
mod errors;
mod fake;
mod keys;
mod lifecycle;
mod llama;
mod llama_server_faults;
mod memory;
mod metrics;
mod models;
mod ollama;
mod openapi;
mod queue;
mod reports;
mod responses;
mod stream;
mod structure;
mod tools;
