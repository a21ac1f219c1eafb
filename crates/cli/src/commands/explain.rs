//! `toko policy explain`: what a load would be told, without loading anything, also for models that cannot run here.

mod subject;

use std::ffi::OsString;

use serde::Serialize;
use subject::Subject;
use toko_admission::{
    decision::{Decision, Ruling},
    sizing::Term,
    units::Bytes,
};

use crate::{
    args::policy::ExplainArgs,
    config,
    failure::Failure,
    memory,
    output::{Output, print_json},
    refusal::{fixes, row, table},
};

/// A decision, and what its numbers rest on.
#[derive(Debug, Serialize)]
struct Explained {
    #[serde(flatten)]
    decision: Decision,
    sentence: String,
    /// Keys and values of one sequence at that context, 2 bytes an element.
    kv_bytes: Option<Bytes>,
    /// State of layers without a KV cache, for one sequence.
    recurrent_state_bytes: Option<Bytes>,
    terms: Vec<Term>,
    is_upper_bound: bool,
    runs_here: bool,
    notes: Vec<String>,
}

/// Prints what a load would be told; the exit code says it too.
pub(crate) fn explain(args: &ExplainArgs, output: Output) -> anyhow::Result<()> {
    let steward = memory::look_on("policy", args.memory.limit);
    let subject = Subject::read(args, steward.admission())?;
    let mut decision = steward.explain(&subject.load, &[]);
    subject.keep_trained(&mut decision);
    let explained = Explained {
        sentence: decision.sentence(),
        terms: subject.terms(),
        kv_bytes: subject.kv_bytes,
        recurrent_state_bytes: subject.recurrent_state_bytes,
        is_upper_bound: subject.is_upper_bound,
        runs_here: subject.runs_here,
        notes: subject.notes,
        decision,
    };
    if args.json {
        print_json(&explained)?;
    } else {
        print(&explained, args, output)?;
    }
    match explained.decision.verdict {
        Ruling::Admit | Ruling::AdmitSlowly => Ok(()),
        Ruling::Wait | Ruling::Refuse => Err(Failure::Told { code: 4 }.into()),
    }
}

fn print(explained: &Explained, args: &ExplainArgs, output: Output) -> anyhow::Result<()> {
    let Explained { decision, .. } = explained;
    let verdict = match decision.verdict {
        Ruling::Admit => "It fits",
        Ruling::AdmitSlowly => "It fits, and runs slowly",
        Ruling::Wait => "Not now",
        Ruling::Refuse => "It does not fit",
    };
    output.line(&format!("{verdict}: {}.", explained.sentence))?;
    for line in table(decision, &explained.terms) {
        output.line(&line)?;
    }
    if let Some(kv_bytes) = explained.kv_bytes {
        let of = format!("{} tokens, 2 bytes an element", decision.context_tokens);
        output.line(&row("kv of a sequence", kv_bytes, &of))?;
    }
    if explained.is_upper_bound {
        output.line("The numbers are an upper bound.")?;
    }
    for note in &explained.notes {
        output.line(note)?;
    }
    let command = explained.runs_here.then(|| command(args));
    for line in fixes(decision, command.as_deref()) {
        output.line(&line)?;
    }
    Ok(())
}

/// Returns the command whose load was explained.
fn command(args: &ExplainArgs) -> Vec<OsString> {
    let name = if args.replicas > 1 { "serve" } else { "run" };
    let mut words = vec!["toko".into(), name.into(), args.model.clone()];
    let mut flag = |name: &str, value: String| words.extend([name.into(), value.into()]);
    if args.replicas > 1 {
        flag("--replicas", args.replicas.to_string());
    }
    if let Some(ctx) = args.ctx {
        flag("--ctx", ctx.to_string());
    }
    if args.kv_type.name() != config::KV_TYPE {
        flag("--kv-type", args.kv_type.name().to_owned());
    }
    words
}
