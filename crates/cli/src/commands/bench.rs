//! `toko bench`: how fast a model computes here, against the machine's memory and against another program.
//!
//! Forward passes alone are timed. Our passes and the other program's never run at the same time.

mod llama_bench;
mod machine;
mod measure;
mod report;

use std::path::Path;

use llama_bench::LlamaBench;
use measure::measure;

use crate::{
    args::bench::BenchArgs,
    failure::Failure,
    memory,
    model_source::{ModelSource, model_and_text},
    output::{Output, print_json},
    session::{Door, interruptible},
};

/// Measures, then prints what came out.
pub(crate) fn bench(args: BenchArgs, output: Output) -> anyhow::Result<()> {
    let source = source(&args)?;
    let theirs = args.compare.as_deref().map(|path| theirs(path, &args, &source)).transpose()?;
    let door = Door { steward: memory::join("bench", args.memory.limit), is_forced: args.force };
    let (steward, json) = (door.steward.clone(), args.json);
    let measured = interruptible(move || measure(&args, &source, theirs.as_ref(), &door));
    steward.end();
    let report = measured?;
    if json { print_json(&report) } else { report.print(output) }
}

fn source(args: &BenchArgs) -> Result<ModelSource, Failure> {
    if args.prompt == 0 && args.r#gen == 0 {
        let nothing = "with --prompt 0 and --gen 0 there is nothing to measure";
        return Err(Failure::Usage(nothing.to_owned()));
    }
    match &args.positional {
        None => Ok(model_and_text(None, None, &args.model)?.0),
        Some(_) if args.model.is_typed => Err(Failure::Usage(
            "the model is given twice: leave out --model or the argument".to_owned(),
        )),
        Some(word) => Ok(ModelSource::named(word)),
    }
}

/// Finds the other program; refuses what it cannot do as this one does.
fn theirs(path: &Path, args: &BenchArgs, source: &ModelSource) -> Result<LlamaBench, Failure> {
    if args.batch > 1 {
        let one =
            "--compare covers one sequence, since llama-bench decodes no more; leave out --batch";
        return Err(Failure::Usage(one.to_owned()));
    }
    match source {
        ModelSource::File(model) => LlamaBench::find(path, model),
        ModelSource::Embedded => {
            let none =
                "--compare needs the path of a model; no other program can open the built-in one";
            Err(Failure::Usage(none.to_owned()))
        }
    }
}
