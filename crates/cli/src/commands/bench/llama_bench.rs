//! The other program: llama.cpp's `llama-bench`, run as a process of its own and read by its JSON.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail};
use serde::Deserialize;

use super::measure::Run;
use crate::{args::bench::BenchArgs, failure::Failure};

const NAME: &str = "llama-bench";

/// The program and the model that it measures.
#[derive(Debug)]
pub(super) struct LlamaBench {
    program: PathBuf,
    model: PathBuf,
}

/// What both programs do.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) prompt_tokens: usize,
    pub(super) gen_tokens: usize,
    pub(super) depth_tokens: usize,
    pub(super) threads: usize,
    pub(super) kv_type: &'static str,
}

/// What it says about one test.
#[derive(Debug, Deserialize)]
struct Test {
    n_prompt: usize,
    n_gen: usize,
    /// Tokens per second.
    avg_ts: f64,
}

impl Work {
    pub(super) fn new(args: &BenchArgs, threads: usize) -> Self {
        Self {
            prompt_tokens: args.prompt,
            gen_tokens: args.r#gen,
            depth_tokens: args.depth,
            threads,
            kv_type: args.compute.kv_type.name(),
        }
    }
}

impl LlamaBench {
    /// Looks for the program at a path or in the folder there.
    pub(super) fn find(path: &Path, model: &Path) -> Result<Self, Failure> {
        let program = if path.is_dir() { path.join(NAME) } else { path.to_owned() };
        // A bare name would be looked for elsewhere when it is started.
        match fs::canonicalize(&program) {
            Ok(program) if program.is_file() => Ok(Self { program, model: model.to_owned() }),
            _ => Err(Failure::ProgramNotFound { path: program }),
        }
    }

    /// Returns where the program is.
    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// Does all of the work once, and returns the better of both ways to compute attention for each phase.
    pub(super) fn run(&self, work: &Work) -> anyhow::Result<Run> {
        let program = self.program.display();
        let done = Command::new(&self.program)
            .args(arguments(work))
            .arg("-m")
            .arg(&self.model)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot start {program}"))?;
        if !done.status.success() {
            let stderr = String::from_utf8_lossy(&done.stderr);
            let last = stderr.lines().rfind(|line| !line.trim().is_empty());
            bail!("{program} failed, {}: {}", done.status, last.unwrap_or("it said nothing"));
        }
        let tests: Vec<Test> = serde_json::from_slice(&done.stdout)
            .with_context(|| format!("{program} did not print its tests as -o json should"))?;
        let fastest = |prompt: usize, generated: usize| {
            if prompt + generated == 0 {
                return Ok(None);
            }
            let rates =
                tests.iter().filter(|test| (test.n_prompt, test.n_gen) == (prompt, generated));
            let fastest = rates.map(|test| test.avg_ts).fold(0.0, f64::max);
            if fastest > 0.0 && fastest.is_finite() {
                return Ok(Some(fastest));
            }
            bail!(
                "{program} tells no speed of {prompt} prompt tokens and {generated} generated ones"
            )
        };
        Ok(Run { prefill: fastest(work.prompt_tokens, 0)?, decode: fastest(0, work.gen_tokens)? })
    }
}

fn arguments(work: &Work) -> Vec<String> {
    let Work { prompt_tokens, gen_tokens, depth_tokens, threads, kv_type } = work;
    // Blocks of values need flash attention there.
    let flash_attention = if *kv_type == "q8_0" { "1" } else { "0,1" };
    let mut arguments = Vec::new();
    let mut flag = |name: &str, value: &str| arguments.extend([name.to_owned(), value.to_owned()]);
    flag("-o", "json");
    flag("-r", "1");
    flag("-ngl", "0");
    flag("-t", &threads.to_string());
    flag("-p", &prompt_tokens.to_string());
    flag("-n", &gen_tokens.to_string());
    flag("-ctk", kv_type);
    flag("-ctv", kv_type);
    flag("-fa", flash_attention);
    // Older ones do not know it.
    if *depth_tokens > 0 {
        flag("-d", &depth_tokens.to_string());
    }
    arguments
}
