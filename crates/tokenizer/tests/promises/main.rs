//! What the crate promises, tried from outside.
#![expect(clippy::unwrap_used, reason = "a test stops where its own material is wrong")]

mod golden;
mod guarding;
mod hostile;
mod round_trip;
mod templates;
mod vocabularies;
