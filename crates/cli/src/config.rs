//! The defaults of every setting with their reasons, and the only place that reads the environment.
//!
//! Flags and their `TOKO_*` variables are layered over these by clap.

use std::{
    ffi::OsString,
    hash::{BuildHasher as _, RandomState},
    ops::RangeInclusive,
    path::PathBuf,
    time::Duration,
};

use toko_admission::scope;
use toko_engine::Sampling;

use crate::model_source::ModelSource;

/// Small models wander off the question above this; large ones lose little by it.
pub(crate) const TEMPERATURE: f32 = 0.5;
/// So small a model tells of another animal than it was asked for in every third story at 0.5.
pub(crate) const EMBEDDED_TEMPERATURE: f32 = 0.3;
/// Cuts the long tail that top-p alone leaves when the model is unsure.
pub(crate) const TOP_K: usize = 40;
/// Keeps nearly all of what a sure model would say.
pub(crate) const TOP_P: f32 = 0.95;
/// Drops what is twenty times less likely than the best token.
pub(crate) const MIN_P: f32 = 0.05;
/// Off: a penalty harms JSON, code and names, which repeat for good reason.
pub(crate) const REPEAT_PENALTY: f32 = 1.0;
/// Off, for the same reason.
pub(crate) const FREQUENCY_PENALTY: f32 = 0.0;
/// Off, for the same reason.
pub(crate) const PRESENCE_PENALTY: f32 = 0.0;
/// About three sentences: long enough to catch a loop, short enough to let a topic return.
pub(crate) const PENALTY_WINDOW_TOKENS: usize = 64;

/// Above 2 the draw is close to uniform; the public APIs stop there too.
pub(crate) const TEMPERATURES: RangeInclusive<f32> = 0.0..=2.0;
/// Probabilities.
pub(crate) const PROBABILITIES: RangeInclusive<f32> = 0.0..=1.0;
/// A factor; zero would divide by zero.
pub(crate) const REPEAT_PENALTIES: RangeInclusive<f32> = 0.1..=10.0;
/// The range of the public APIs.
pub(crate) const COUNT_PENALTIES: RangeInclusive<f32> = -2.0..=2.0;
/// More threads than any machine that this runs on has cores.
pub(crate) const THREADS: RangeInclusive<usize> = 1..=1024;

/// Half the memory of f32 and no difference that a reader could see.
pub(crate) const KV_TYPE: &str = "f16";
/// Only this machine can reach the server unless it is told otherwise.
pub(crate) const HOST: &str = "127.0.0.1";
/// Next to the port that other local servers have made familiar, so both can run.
pub(crate) const PORT: u16 = 11435;
/// Each takes memory for a whole context.
pub(crate) const REPLICA_COUNTS: RangeInclusive<usize> = 1..=64;
/// A token has at least one byte and no context holds so many: reading on would only fill memory.
pub(crate) const STDIN_LIMIT_BYTES: u64 = 16 << 20;

/// What llama.cpp's llama-bench measures, so that figures can be compared.
pub(crate) const BENCH_PROMPT_TOKENS: usize = 512;
/// The same.
pub(crate) const BENCH_GEN_TOKENS: usize = 128;
/// Enough to see how far figures spread.
pub(crate) const BENCH_REPEATS: usize = 5;
/// More than any model was trained for.
pub(crate) const BENCH_TOKENS: usize = 1 << 30;

/// A conversation of a million tokens is a tenth of this.
pub(crate) const BODY_LIMIT_BYTES: usize = 50 << 20;
/// Proxies and clients give up after a minute or more of silence.
pub(crate) const PING_EVERY: Duration = Duration::from_secs(10);
/// A client that sends at all sends sooner; one that never does would hold a connection for good.
pub(crate) const CLIENT_SILENCE: Duration = Duration::from_secs(30);
/// Most answers end within this, and service managers kill after 90 seconds.
pub(crate) const DRAIN_SECONDS: u32 = 30;
/// Sixteen rounds of four replicas: whoever waits behind more gives up first.
pub(crate) const QUEUE_LIMIT: usize = 64;
/// Each waiting request is a connection, and systems give a process a thousand or a few.
pub(crate) const QUEUE_LIMITS: RangeInclusive<usize> = 0..=65_536;
/// Proxies cut off a silent request after a minute, and who waits hears nothing.
pub(crate) const QUEUE_TIMEOUT_SECONDS: u32 = 30;
/// A client that reads at all takes its last bytes sooner.
pub(crate) const CUT_GRACE: Duration = Duration::from_secs(2);

/// Returns how tokens are chosen when nothing else is asked for.
pub(crate) fn sampling(source: &ModelSource) -> Sampling {
    Sampling {
        temperature: match source {
            ModelSource::Embedded => EMBEDDED_TEMPERATURE,
            ModelSource::File(_) => TEMPERATURE,
        },
        top_k: TOP_K,
        top_p: TOP_P,
        min_p: MIN_P,
        repeat_penalty: REPEAT_PENALTY,
        frequency_penalty: FREQUENCY_PENALTY,
        presence_penalty: PRESENCE_PENALTY,
        penalty_window_tokens: PENALTY_WINDOW_TOKENS,
        seed: None,
    }
}

/// Returns where this user's policy, journal and history are kept, if there is a place for them.
pub(crate) fn state_root() -> Option<PathBuf> {
    let [own, state, home] = ["TOKO_HOME", "XDG_STATE_HOME", "HOME"].map(path);
    scope::state_root(own, state, home)
}

/// Returns where the system keeps what belongs to running processes.
pub(crate) fn runtime_directory() -> Option<PathBuf> {
    path("XDG_RUNTIME_DIR")
}

/// Returns the file that keeps the lines typed in the chat, if there is a place for it.
pub(crate) fn history_file() -> Option<PathBuf> {
    Some(state_root()?.join("history"))
}

/// Tells what the environment says about colour: `Some(false)` never, `Some(true)` always.
pub(crate) fn colour_wish() -> Option<bool> {
    if variable("NO_COLOR").is_some() {
        return Some(false);
    }
    match variable("CLICOLOR_FORCE") {
        Some(value) if value != "0" => Some(true),
        _ => None,
    }
}

/// Returns a seed that nobody chose, known here so that it can be told and used again.
pub(crate) fn fresh_seed() -> u64 {
    // Half the bits: short enough to be typed again.
    RandomState::new().hash_one(std::process::id()) >> 32
}

fn path(name: &str) -> Option<PathBuf> {
    variable(name).map(PathBuf::from)
}

/// Returns a variable that is set and not empty.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}
