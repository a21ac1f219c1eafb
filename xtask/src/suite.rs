//! Runs every test of the workspace: the examples in the documentation first, then the tests themselves,
//! so that the runner's own count closes the output.

use std::process::Command;

use anyhow::{Context, bail};

use crate::{fetch, say};

/// Runs the documentation examples and the tests; an error names the part that failed.
pub(crate) fn run() -> anyhow::Result<()> {
    cargo("the documentation examples", &["test", "--workspace", "--doc", "--quiet"])?;
    if has_nextest() {
        cargo("the tests", &["nextest", "run", "--workspace", "--no-fail-fast"])?;
    } else {
        say("cargo-nextest is not installed: using cargo test, which is slower");
        cargo(
            "the tests",
            &["test", "--workspace", "--lib", "--bins", "--tests", "--no-fail-fast"],
        )?;
    }
    say("the documentation examples and all tests passed");
    Ok(())
}

fn has_nextest() -> bool {
    let output = Command::new("cargo").args(["nextest", "--version"]).output();
    output.is_ok_and(|output| output.status.success())
}

fn cargo(what: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let status = Command::new("cargo")
        .args(arguments)
        .env(fetch::FOLDER_VARIABLE, fetch::folder()?)
        .status()
        .context("cannot start cargo")?;
    if !status.success() {
        bail!("{what} failed");
    }
    Ok(())
}
