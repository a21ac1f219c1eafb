//! The flags of `toko policy` and its subcommands.

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, Subcommand, ValueEnum, builder::BoolishValueParser};
use toko_admission::{geometry::KvElement, policy::Policy};

use super::MemoryArgs;
use crate::config;

const EXPLAIN_ABOUT: &str = "\
Tell what a load would be told, without loading anything.

MODEL is a GGUF file, the word \"embedded\", or a folder with a config.json. What cannot run here is sized, too, \
from above. Exit code 0 means that it fits, 4 that it does not.";

const SIMULATE_ABOUT: &str = "\
Replay a trace of arrivals on a machine that does not exist.

TRACE has one JSON object a line: at_ms, model, sizing, context_tokens, replicas, runs_ms, reload_ms, keep_alive_ms; \
or it is the journal that is kept beside the policy.";

/// Arguments of `toko policy`.
#[derive(Debug, Args)]
pub(crate) struct PolicyArgs {
    #[command(subcommand)]
    pub(crate) command: PolicyCommand,
}

/// What is to be done about the policy.
#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Show the policy and what it means on this machine
    Show(ShowPolicyArgs),
    /// Choose a policy
    Set(SetPolicyArgs),
    /// Show what a policy would mean, here or on a machine of another size
    Preview(PreviewArgs),
    /// Tell what a load would be told, without loading anything
    #[command(long_about = EXPLAIN_ABOUT)]
    Explain(ExplainArgs),
    /// Replay a trace of arrivals under another policy or on another machine
    #[command(long_about = SIMULATE_ABOUT)]
    Simulate(SimulateArgs),
    /// Let the policy be raised automatically, or not
    Concierge(ConciergeArgs),
}

/// Arguments of `toko policy show`.
#[derive(Debug, Args)]
pub(crate) struct ShowPolicyArgs {
    /// Print one JSON document
    #[arg(long, env = "TOKO_JSON", value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,
}

/// Arguments of `toko policy set`.
#[derive(Debug, Args)]
pub(crate) struct SetPolicyArgs {
    /// everyday, local-focused, or a size in steps of half a GB such as custom:12.5GB
    #[arg(value_name = "POLICY")]
    pub(crate) policy: Policy,
    /// Only tell what would change
    #[arg(long)]
    pub(crate) preview: bool,
    /// Print one JSON document
    #[arg(long, env = "TOKO_JSON", value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,
}

/// Arguments of `toko policy preview`.
#[derive(Debug, Args)]
pub(crate) struct PreviewArgs {
    /// everyday, local-focused, or a size in steps of half a GB such as custom:12.5GB
    #[arg(value_name = "POLICY")]
    pub(crate) policy: Policy,
    /// The machine's memory in MiB [default: this machine's]
    #[arg(long, value_name = "N")]
    pub(crate) total_memory_mb: Option<u64>,
    /// Print one JSON document
    #[arg(long, env = "TOKO_JSON", value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,
}

/// Arguments of `toko policy explain`.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// Model file, "embedded", or a folder with a config.json
    #[arg(value_name = "MODEL", env = "TOKO_MODEL")]
    pub(crate) model: OsString,
    /// Tokens of context of each replica [default: the model's own, at most 4096]
    #[arg(long, value_name = "TOKENS")]
    pub(crate) ctx: Option<u64>,
    /// Requests that can run at once
    #[arg(long, visible_alias = "parallel", value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub(crate) replicas: u64,
    /// Element type of the KV cache
    #[arg(long, env = "TOKO_KV_TYPE", value_name = "TYPE", default_value = config::KV_TYPE, value_parser = kv_element)]
    pub(crate) kv_type: KvElement,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    /// Print one JSON document
    #[arg(long, env = "TOKO_JSON", value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,
}

fn kv_element(name: &str) -> Result<KvElement, String> {
    let names = || KvElement::ALL.map(KvElement::name).join(", ");
    KvElement::from_name(name).ok_or_else(|| format!("must be one of {}", names()))
}

/// Arguments of `toko policy simulate`.
#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    /// The trace
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,
    /// The machine's memory in MiB [default: this machine's]
    #[arg(long, value_name = "N")]
    pub(crate) total_memory_mb: Option<u64>,
    /// What other programs take of it, in MiB
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) used_elsewhere_mb: u64,
    /// The policy to try [default: the one that holds]
    #[arg(long, value_name = "POLICY")]
    pub(crate) policy: Option<Policy>,
    /// Print one JSON document
    #[arg(long, env = "TOKO_JSON", value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,
}

/// Arguments of `toko policy concierge`.
#[derive(Debug, Args)]
pub(crate) struct ConciergeArgs {
    /// Whether it may
    #[arg(value_name = "ON|OFF")]
    pub(crate) wish: ConciergeWish,
}

/// Whether the policy may be raised automatically.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ConciergeWish {
    /// It may
    On,
    /// It may not
    Off,
}
