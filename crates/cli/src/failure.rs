//! The ways a command can end other than well, and the one place that gives each its exit code.

use std::path::PathBuf;

use crate::refusal::Refusal;

/// An end that has an exit code of its own; every other error is 1.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// What the command line asks for makes no sense.
    #[error("{0}")]
    Usage(String),
    /// clap's own words: an error about the command line, or help that was asked for.
    #[error(transparent)]
    CommandLine(#[from] clap::Error),
    /// The model file does not exist.
    #[error(
        "no model file {}; give the path of a GGUF file, or the word embedded for the built-in model",
        .path.display()
    )]
    ModelNotFound {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// A program that is to be run does not exist.
    #[error("no program {}; give its path, or the folder that holds it", .path.display())]
    ProgramNotFound {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// There is no room for the model in memory.
    #[error("{}", .0.decision.sentence())]
    Refused(Box<Refusal>),
    /// The command has told its answer, which is no.
    #[error("the answer is no")]
    Told {
        /// How the process ends.
        code: u8,
    },
    /// Nobody answers where the server should be.
    #[error("no server answers at {url}: {reason}; toko serve starts one")]
    Unreachable {
        /// Where it was looked for.
        url: String,
        /// What the system says.
        reason: String,
    },
    /// The user pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// The system asked for an end and would not wait for it.
    #[error("terminated")]
    Terminated,
    /// Whoever read standard output has gone, as `head` does; nothing is wrong.
    #[error("standard output is closed")]
    OutputClosed,
    /// Standard output cannot be written, as on a full disk.
    #[error("cannot write to standard output")]
    OutputFailed(#[source] std::io::Error),
}

/// Returns the process's exit code for an error.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<Failure>() {
        Some(Failure::OutputClosed) => 0,
        Some(Failure::Usage(_)) => 2,
        Some(Failure::CommandLine(error)) => u8::from(error.use_stderr()) * 2,
        Some(Failure::ModelNotFound { .. } | Failure::ProgramNotFound { .. }) => 3,
        Some(Failure::Refused(_)) => 4,
        Some(Failure::Told { code }) => *code,
        Some(Failure::Unreachable { .. }) => 5,
        Some(Failure::Interrupted) => 130,
        Some(Failure::Terminated) => 143,
        Some(Failure::OutputFailed(_)) | None => 1,
    }
}
