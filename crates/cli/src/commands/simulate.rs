//! `toko policy simulate`: what would have happened on another machine, or under another policy.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
};

use anyhow::{Context as _, bail};
use serde::Serialize;
use toko_admission::{
    journal::event::{Event, What},
    policy::Policy,
    simulate::{Arrival, Outcome, Report, Trial, replay},
    sizing::{Evidence, Sizing},
    units::Bytes,
};

use crate::{
    args::policy::SimulateArgs,
    memory,
    output::{Output, print_json},
    refusal::row,
};

/// A line longer than this is no arrival.
const LONGEST_LINE_BYTES: u64 = 1 << 20;
/// More than a year of arrivals, one a minute.
const MOST_ARRIVALS: usize = 1 << 20;

/// What came of a trace.
#[derive(Debug, Serialize)]
struct Simulated {
    policy: String,
    total_memory_mb: u64,
    arrivals: usize,
    warm: usize,
    loaded: usize,
    evicted: usize,
    refused: usize,
    #[serde(flatten)]
    report: Report,
}

/// Replays a trace.
pub(crate) fn simulate(args: &SimulateArgs, output: Output) -> anyhow::Result<()> {
    let arrivals = read(&args.trace)?;
    let steward = memory::look_on("policy", None);
    let policy: Policy = args.policy.unwrap_or_else(|| steward.policy().policy);
    let total_memory_mb =
        args.total_memory_mb.unwrap_or_else(|| steward.preview(&policy, None).total_memory_mb);
    let trial = Trial {
        total: Bytes::from_mib(total_memory_mb),
        used_elsewhere: Bytes::from_mib(args.used_elsewhere_mb),
        policy,
    };
    let report = replay(&arrivals, &trial);
    let count = |is_one: fn(&Outcome) -> bool| {
        report.outcomes.iter().filter(|outcome| is_one(outcome)).count()
    };
    let evicted = report.outcomes.iter().map(|outcome| match outcome {
        Outcome::Loaded { evicted } => evicted.len(),
        _ => 0,
    });
    let simulated = Simulated {
        policy: policy.to_string(),
        total_memory_mb,
        arrivals: arrivals.len(),
        warm: count(|outcome| matches!(outcome, Outcome::Warm)),
        loaded: count(|outcome| matches!(outcome, Outcome::Loaded { .. })),
        refused: count(|outcome| matches!(outcome, Outcome::Refused { .. })),
        evicted: evicted.sum(),
        report,
    };
    if args.json { print_json(&simulated) } else { print(&simulated, &arrivals, output) }
}

fn print(simulated: &Simulated, arrivals: &[Arrival], output: Output) -> anyhow::Result<()> {
    let Simulated { report, policy, .. } = simulated;
    output.line(&row("memory", Bytes::from_mib(simulated.total_memory_mb), ""))?;
    output.line(&row("for models", report.ceiling_bytes, policy))?;
    output.line(&row("most in use", report.peak_bytes, ""))?;
    output.line(&format!(
        "{} arrivals: {} found the model there, {} loaded it, {} were refused; {} models had to go",
        simulated.arrivals, simulated.warm, simulated.loaded, simulated.refused, simulated.evicted
    ))?;
    for (arrival, outcome) in arrivals.iter().zip(&report.outcomes) {
        if let Outcome::Refused { reason } = outcome {
            let reason = serde_json::to_value(reason)?;
            let reason = reason.as_str().unwrap_or_default().replace('_', " ");
            output.line(&format!("  {} ms  {}  {reason}", arrival.at_ms, arrival.model))?;
        }
    }
    Ok(())
}

/// Reads arrivals, one JSON object a line.
fn read(path: &Path) -> anyhow::Result<Vec<Arrival>> {
    use std::io::Read as _;

    let named = || format!("cannot read {}", path.display());
    let mut file = BufReader::new(std::fs::File::open(path).with_context(named)?);
    let (mut arrivals, mut line, mut number) = (Vec::new(), String::new(), 0);
    let mut recorded = Recorded::default();
    loop {
        line.clear();
        number += 1;
        let mut limited = (&mut file).take(LONGEST_LINE_BYTES);
        if limited.read_line(&mut line).with_context(named)? == 0 {
            arrivals.extend(recorded.arrivals());
            return Ok(arrivals);
        }
        if line.trim().is_empty() {
            continue;
        }
        if arrivals.len() == MOST_ARRIVALS {
            bail!("{} has more than {MOST_ARRIVALS} arrivals", path.display());
        }
        match serde_json::from_str(&line) {
            Ok(arrival) => arrivals.push(arrival),
            Err(problem) => {
                let event = serde_json::from_str(&line).map_err(|_| problem);
                recorded.note(
                    event.with_context(|| {
                        format!("{} line {number} is no arrival", path.display())
                    })?,
                );
            }
        }
    }
}

/// What a journal says about loads: who came when, how long loading took, and when the model went.
#[derive(Default)]
struct Recorded {
    loads: Vec<Recording>,
}

struct Recording {
    run: String,
    at_ms: u64,
    model: String,
    bytes: Bytes,
    loaded_ms: Option<u64>,
    gone_ms: Option<u64>,
}

impl Recorded {
    fn note(&mut self, event: Event) {
        let Event { at_ms, run, what } = event;
        match what {
            What::LoadStarted { model, bytes } | What::Refused { model, bytes, .. } => {
                let (loaded_ms, gone_ms) = (None, None);
                self.loads.push(Recording { run, at_ms, model, bytes, loaded_ms, gone_ms });
            }
            What::Loaded { model, .. } => self.each(&run, Some(&model), |it| {
                it.loaded_ms.get_or_insert(at_ms);
            }),
            What::Unloaded { model, .. }
            | What::Evicted { model, .. }
            | What::LoadFailed { model, .. } => self.each(&run, Some(&model), |it| {
                it.gone_ms.get_or_insert(at_ms);
            }),
            What::RunEnded => self.each(&run, None, |it| {
                it.gone_ms.get_or_insert(at_ms);
            }),
            _ => {}
        }
    }

    fn each(&mut self, run: &str, model: Option<&str>, change: impl Fn(&mut Recording)) {
        let same =
            |it: &&mut Recording| it.run == run && model.is_none_or(|model| model == it.model);
        self.loads.iter_mut().filter(same).for_each(change);
    }

    /// Returns the loads as arrivals. Nothing tells when a model was used, so it counts as idle once it is loaded.
    fn arrivals(self) -> impl Iterator<Item = Arrival> {
        let first_ms = self.loads.iter().map(|it| it.at_ms).min().unwrap_or(0);
        self.loads.into_iter().map(move |it| {
            let loaded_ms = it.loaded_ms.unwrap_or(it.at_ms);
            Arrival {
                at_ms: it.at_ms - first_ms,
                model: it.model,
                sizing: Sizing {
                    mapped_weights: Bytes::ZERO,
                    private_weights: it.bytes,
                    weights_source: "the journal".to_owned(),
                    fixed: Vec::new(),
                    per_replica: Vec::new(),
                    growth: Vec::new(),
                    evidence: Evidence::Observed,
                },
                context_tokens: 0,
                replicas: 1,
                runs_ms: 0,
                reload_ms: loaded_ms.saturating_sub(it.at_ms),
                keep_alive_ms: it
                    .gone_ms
                    .map_or(u64::MAX, |gone_ms| gone_ms.saturating_sub(loaded_ms)),
            }
        })
    }
}
