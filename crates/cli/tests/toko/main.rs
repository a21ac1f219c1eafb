//! The real binary on the embedded model: what goes in, what comes out, which exit code.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails there")]

mod bench;
mod command;
mod help;
mod hostile;
mod kernel;
mod memory;
mod policy;
mod run;
mod serve;
mod show;
mod tokenize;

#[cfg(target_os = "linux")]
mod chat;
