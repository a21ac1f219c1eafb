//! Promises of the engine, on real models.

mod answers;
mod constraint;
mod embedding;
mod ending;
mod footprint;
mod harness;
mod hosting;
mod logprobs;
mod perplexity;
mod prefix;
mod promises;
mod scoring;
