//! One module per command: what was typed becomes calls to the libraries and lines of output.

pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod doctor;
mod explain;
pub(crate) mod policy;
pub(crate) mod ps;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod show;
mod simulate;
mod stdin;
pub(crate) mod tokenize;
