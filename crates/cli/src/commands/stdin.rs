//! Text from standard input: all of it, as UTF-8, up to a limit.

use std::io::{self, IsTerminal as _, Read as _};

use anyhow::{Context as _, bail};

use crate::config;

/// Tells whether a person would have to type it.
pub(crate) fn is_terminal() -> bool {
    io::stdin().is_terminal()
}

/// Reads standard input to its end.
pub(crate) fn read_text() -> anyhow::Result<String> {
    let limit = config::STDIN_LIMIT_BYTES;
    let mut bytes = Vec::new();
    io::stdin()
        .lock()
        .take(limit + 1)
        .read_to_end(&mut bytes)
        .context("cannot read standard input")?;
    if bytes.len() as u64 > limit {
        bail!("standard input has more than {} MiB; no context holds that", limit >> 20);
    }
    String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        anyhow::anyhow!("standard input is not UTF-8 at byte {offset}; convert it first")
    })
}
