//! Promises of the model: near the truth, and the same bits however the work is cut.

mod embedded;
mod golden;
mod harness;
mod invariance;
mod types;
