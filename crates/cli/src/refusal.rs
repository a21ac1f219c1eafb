//! What the machine answers to a load, put into lines for people, with commands that would make it fit.

use std::ffi::{OsStr, OsString};

use toko_admission::decision::{Change, Decision, Fix, Holder};
use toko_admission::ledger::ModelId;
use toko_admission::sizing::Term;
use toko_admission::units::Bytes;
use toko_engine::Error as EngineError;

use crate::{args, failure::Failure, shell};

/// A load that has no room, and the command that asked for it.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// Why.
    pub(crate) decision: Decision,
    /// The words of the command, the program first.
    pub(crate) command: Vec<OsString>,
}

/// Puts the command that was typed beside a refusal of the engine; leaves every other error as it is.
pub(crate) fn with_command(
    error: anyhow::Error,
    words: impl IntoIterator<Item = OsString>,
) -> anyhow::Error {
    match error.downcast_ref::<EngineError>() {
        Some(EngineError::Refused(decision)) => {
            let decision = Decision::clone(decision);
            let command = words.into_iter().collect();
            Failure::Refused(Box::new(Refusal { decision, command })).into()
        }
        _ => error,
    }
}

impl Refusal {
    /// Returns the lines below the sentence.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = table(&self.decision, &self.decision.need.terms);
        lines.extend(fixes(&self.decision, Some(&self.command)));
        lines.push("--force loads it all the same.".to_owned());
        lines
    }
}

/// Returns what is needed, what there is, and who holds it.
pub(crate) fn table(decision: &Decision, terms: &[Term]) -> Vec<String> {
    let Decision { need, have, holders, .. } = decision;
    let mut lines = Vec::new();
    if need.evidence.is_some() {
        lines.push(row("needed", need.total_bytes, ""));
    }
    lines.extend(terms.iter().map(term));
    lines.push(row("ceiling", have.ceiling_bytes, &have.ceiling_by));
    lines.push(row("in use by models", have.resident_bytes + have.reserved_bytes, ""));
    match have.available_bytes {
        Some(available) => lines.push(row("available", available, &have.bound_by)),
        None => lines.push(format!("{:<18} {:>12}", "available", "unknown")),
    }
    if have.unseen_bytes > Bytes::ZERO {
        lines.push(row("  promised of it", have.unseen_bytes, ""));
    }
    lines.push(row("stays free", have.emergency_reserve_bytes, ""));
    lines.extend(holders.iter().map(holder_line));
    lines
}

/// Returns a line about somebody who holds memory.
pub(crate) fn holder_line(holder: &Holder) -> String {
    let mut about = vec![holder.process.clone(), holder.state.clone()];
    about.extend(holder.idle_seconds.map(|idle| format!("unused for {}", seconds(idle))));
    about.extend(holder.is_pinned.then(|| "pinned".to_owned()));
    row(&format!("held by {}", holder.model), holder.bytes, &about.join(", "))
}

/// Returns what would help, each as a command where `command` can be changed into one.
pub(crate) fn fixes(decision: &Decision, command: Option<&[OsString]>) -> Vec<String> {
    let lines = decision.fixes.iter().map(|fix| fix_line(fix, command));
    let lines: Vec<String> = lines.collect();
    if lines.is_empty() {
        return Vec::new();
    }
    let head = match decision.fixes.len() {
        1 => "It fits with:",
        _ => "It fits with one of:",
    };
    std::iter::once(head.to_owned()).chain(lines).collect()
}

/// Says a time as people say it.
pub(crate) fn seconds(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Returns a line of a name, a size and what there is to say about it.
pub(crate) fn row(name: &str, bytes: Bytes, about: &str) -> String {
    format!("{name:<18} {:>12}  {about}", bytes.to_string()).trim_end().to_owned()
}

fn term(term: &Term) -> String {
    let name = serde_json::to_value(term.kind).unwrap_or_default();
    let name = name.as_str().unwrap_or_default().replace('_', " ");
    row(&format!("  {name}"), term.bytes, &term.source)
}

fn fix_line(fix: &Fix, command: Option<&[OsString]>) -> String {
    let changed = command.and_then(|words| match &fix.change {
        Change::Policy { policy } => {
            let program = words.first().map_or(OsStr::new("toko"), |program| program);
            let set = [program, OsStr::new("policy"), OsStr::new("set"), OsStr::new(policy)];
            let set = shell::command(&set.map(OsStr::to_owned), &[]);
            Some(format!("{set} && {}", shell::command(words, &[])))
        }
        change => {
            let flags = flags(change)?;
            let is_known =
                |(names, _): &Flag| args::has_flag(words.get(1)?, names.first()?).then_some(());
            flags.iter().try_for_each(is_known)?;
            Some(shell::command(words, &flags))
        }
    });
    format!("  {}", changed.unwrap_or_else(|| described(&fix.change)))
}

type Flag = (&'static [&'static str], String);

/// Returns the flags that make a change, if flags can.
fn flags(change: &Change) -> Option<Vec<Flag>> {
    const CTX: &[&str] = &["--ctx"];
    const REPLICAS: &[&str] = &["--replicas", "--parallel"];
    Some(match change {
        Change::Context { context_tokens } => vec![(CTX, context_tokens.to_string())],
        Change::Replicas { replicas } => vec![(REPLICAS, replicas.to_string())],
        Change::ContextAndReplicas { context_tokens, replicas } => {
            vec![(CTX, context_tokens.to_string()), (REPLICAS, replicas.to_string())]
        }
        Change::KvType { kv_type } => vec![(&["--kv-type"], kv_type.clone())],
        // Rounded up: a larger limit lets through what a smaller one does.
        Change::Limit { limit_bytes } => {
            vec![(&["--memory-limit"], format!("{}MB", limit_bytes.ceil_mib()))]
        }
        Change::Weights { .. } | Change::Unload { .. } | Change::Policy { .. } => return None,
    })
}

fn described(change: &Change) -> String {
    match change {
        Change::Context { context_tokens } => format!("{context_tokens} tokens of context"),
        Change::Replicas { replicas } => format!("{replicas} replicas"),
        Change::ContextAndReplicas { context_tokens, replicas } => {
            format!("{context_tokens} tokens of context and {replicas} replicas")
        }
        Change::KvType { kv_type } => format!("a KV cache of {kv_type}"),
        Change::Weights { path } => format!("smaller weights: {path}"),
        Change::Unload { models } => {
            let models: Vec<&str> = models.iter().map(ModelId::as_str).collect();
            format!("unloading {}", models.join(", "))
        }
        Change::Limit { limit_bytes } => format!("a memory limit of {limit_bytes}"),
        Change::Policy { policy } => format!("the policy {policy}"),
    }
}
