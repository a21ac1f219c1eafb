//! Promises of the engine, on real models.

mod answers;
mod constraint;
mod ending;
mod harness;
mod hosting;
mod logprobs;
mod perplexity;
mod prefix;
mod promises;
