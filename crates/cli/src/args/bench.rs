//! The flags of `toko bench`.

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, builder::BoolishValueParser};

use super::{ComputeArgs, MemoryArgs, ModelArgs};
use crate::{config, number};

/// What stands above the flags.
pub(super) const ABOUT: &str = "\
Measure how fast a model computes on this machine.

Without a model the small built-in one is measured. Forward passes alone are timed, on drawn tokens: a prompt in \
parts as a request's is, then tokens one at a time, both behind --depth earlier tokens. What a pass of decoding \
reads is compared with how fast this machine reads memory at all, which is measured with the same threads. After \
one untimed warm-up everything is done --repeat times; smallest, middle and largest figures are told.

With --compare another program does the same on the same file in turn with this one.";

/// Arguments of `toko bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Model file, or "embedded" for the built-in one
    #[arg(value_name = "MODEL")]
    pub(crate) positional: Option<OsString>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Tokens of the prompt; 0 leaves prompts out
    #[arg(long, value_name = "TOKENS", default_value_t = config::BENCH_PROMPT_TOKENS)]
    #[arg(value_parser = number::whole(0..=config::BENCH_TOKENS))]
    pub(crate) prompt: usize,
    /// Tokens to generate; 0 leaves decoding out
    #[arg(long, value_name = "TOKENS", default_value_t = config::BENCH_GEN_TOKENS)]
    #[arg(value_parser = number::whole(0..=config::BENCH_TOKENS))]
    pub(crate) r#gen: usize,
    /// Tokens in the KV cache before the first one that is timed
    #[arg(long, value_name = "TOKENS", default_value_t = 0, value_parser = number::whole(0..=config::BENCH_TOKENS))]
    pub(crate) depth: usize,
    /// Sequences that decode together in one pass; their tokens are counted together
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number::whole(config::REPLICA_COUNTS))]
    pub(crate) batch: usize,
    /// Times that everything is done
    #[arg(long, value_name = "N", default_value_t = config::BENCH_REPEATS, value_parser = number::whole(1..=1000))]
    pub(crate) repeat: usize,
    /// llama.cpp's llama-bench, or the folder that holds it: it is run on the same file with the same numbers, in turn
    /// with this program, without and with flash attention of which the better counts, and the ratios are told
    #[arg(long, value_name = "PATH")]
    pub(crate) compare: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    /// Load the model although it has no room; it is charged all the same
    #[arg(long)]
    pub(crate) force: bool,
    /// Print one JSON document
    #[arg(long, env = "TOKO_JSON", value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,
}
