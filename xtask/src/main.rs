//! `cargo xtask`: the chores of this repository.
//!
//! It starts other programs and reads the tree; it links none of the crates that it checks.
#![forbid(unsafe_code)]

mod fetch;
mod picture;
mod suite;
mod tidy;

use std::process::ExitCode;

use anyhow::bail;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  test [--no-fetch]   fetch the real test model when it is missing, then run every test
  fetch               fetch the real test model
  tidy                check the tree against the rules of ARCHITECTURE.md and CONTRIBUTING.md
  picture             draw docs/demo.svg from a run of the command";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[&str]) -> anyhow::Result<()> {
    match arguments {
        ["test"] => {
            fetch::fetch()?;
            suite::run()
        }
        ["test", "--no-fetch"] => suite::run(),
        ["picture"] => {
            let path = picture::draw(&tidy::repository_root())?;
            say(&format!("drew {}", path.display()));
            Ok(())
        }
        ["fetch"] => fetch::fetch().map(drop),
        ["tidy"] => {
            let findings = tidy::check(&tidy::repository_root())?;
            for finding in &findings {
                say(finding);
            }
            if !findings.is_empty() {
                bail!("{} findings", findings.len());
            }
            say("tidy: nothing to report");
            Ok(())
        }
        [] | ["help" | "--help" | "-h"] => {
            say(USAGE);
            Ok(())
        }
        other => bail!("no such command: {}\n\n{USAGE}", other.join(" ")),
    }
}

#[expect(clippy::print_stderr, reason = "a chore reports to the person who started it")]
fn say(line: &str) {
    eprintln!("{line}");
}
