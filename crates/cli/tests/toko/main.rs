//! The real binary on the embedded model: what goes in, what comes out, which exit code.

mod command;
mod help;
mod hostile;
mod run;
mod serve;
mod show;
mod tokenize;

#[cfg(target_os = "linux")]
mod chat;
