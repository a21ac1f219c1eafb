//! Runs the passes and looks at the clock.

use std::{
    io::{IsTerminal as _, stderr},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use toko_admission::probe::{Roots, process::process_memory};
use toko_engine::{Applicant, Error as EngineError, Options, Passes};
use toko_gguf::Gguf;
use toko_kernels::{isa::Tier, pool::Pool, stream};

use super::{
    llama_bench::{LlamaBench, Work},
    machine::Machine,
    report::{Compared, Model, Report, Spread, Streaming},
};
use crate::{args::bench::BenchArgs, model_source::ModelSource, output::note, session::Door};

/// Several times the largest caches, so that what is read comes from memory.
const STREAMED_BYTES: u64 = 512 << 20;
/// One in so many bytes of free memory, where that is less.
const STREAMED_PART: u64 = 4;
/// The fastest of these tells what memory gives when nobody else uses it.
const STREAM_ROUNDS: usize = 24;
/// One pass reads all weights; a few more let the threads find their pace.
const WARM_UP_PASSES: usize = 4;
/// Every run draws the same tokens.
const SEED: u64 = 1;

/// Tokens per second of one time that everything was done; none where a phase was left out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) prefill: Option<f64>,
    pub(super) decode: Option<f64>,
}

/// Loads the model and measures it, in turn with the other program if there is one.
pub(super) fn measure(
    args: &BenchArgs,
    source: &ModelSource,
    theirs: Option<&LlamaBench>,
    door: &Door,
) -> anyhow::Result<Report> {
    let started = Instant::now();
    let file = source.open()?;
    let mut passes = load(args, source, &file, door)?;
    let load_time = started.elapsed();
    let info = passes.info().clone();
    let work = Work::new(args, info.threads);

    warm_up(args, &mut passes);
    let (mut ours, mut others) = (Vec::new(), Vec::new());
    for repeat in 1..=args.repeat {
        progress(repeat, args.repeat);
        ours.push(run(args, &mut passes));
        if let Some(theirs) = theirs {
            others.push(theirs.run(&work)?);
        }
    }
    // On average half of the generated tokens are there.
    let positions = args.depth + args.r#gen.div_ceil(2);
    let decode_bytes = passes.decode_bytes(positions as u64);
    // The buffer that memory is read from would be a part of the peak.
    let peak = process_memory(&Roots::system()).context("this process's memory")?.peak;
    drop(passes);
    let streaming = streaming(door, info.tier, info.threads)?;

    let prefill = Spread::of(ours.iter().filter_map(|run| run.prefill));
    let decode = Spread::of(ours.iter().filter_map(|run| run.decode));
    Ok(Report {
        version: env!("CARGO_PKG_VERSION"),
        machine: Machine::read(),
        model: Model::new(source, &file, &info),
        tier: info.tier,
        threads: info.threads,
        kv_type: work.kv_type,
        prompt_tokens: args.prompt,
        gen_tokens: args.r#gen,
        depth_tokens: args.depth,
        batch: args.batch,
        repeats: args.repeat,
        load_ms: load_time.as_secs_f64() * 1e3,
        prefill_tok_s: prefill,
        decode_tok_s: decode,
        peak_rss_bytes: peak.get(),
        decode_bytes_per_pass: decode.map(|_| decode_bytes),
        percent_of_streaming: decode.map(|rate| {
            rate.median / float(args.batch) * float(decode_bytes) / streaming.bytes_per_second * 1e2
        }),
        streaming,
        compare: theirs.map(|theirs| Compared::new(theirs, &ours, &others)),
    })
}

fn load(
    args: &BenchArgs,
    source: &ModelSource,
    file: &Gguf,
    door: &Door,
) -> anyhow::Result<Passes> {
    let options = Options {
        context_tokens: Some(args.depth + args.prompt.max(args.r#gen)),
        threads: args.compute.threads,
        tier: args.compute.kernel.tier,
        kv_type: args.compute.kv_type.into(),
        replicas: Some(args.batch),
        queue_limit: 0,
        queue_timeout: Duration::ZERO,
        seed: SEED,
        prefix_cache_tokens: Some(0),
    };
    let (admission, name) = (door.steward.admission(), source.short_name());
    let applicant = Applicant { is_forced: door.is_forced, ..Applicant::new(admission, &name) };
    match Passes::load(file, &options, &applicant) {
        Ok(passes) => Ok(passes),
        Err(EngineError::Refused(decision)) => {
            door.steward.note_decision(&decision);
            Err(EngineError::Refused(decision).into())
        }
        Err(error) => Err(error).with_context(|| format!("cannot measure {source}")),
    }
}

/// Fills the KV cache up to the depth, and brings into memory and caches what is there when a model is in use.
fn warm_up(args: &BenchArgs, passes: &mut Passes) {
    for sequence in 0..args.batch {
        passes.prefill(sequence, 0, args.depth);
    }
    passes.prefill(0, args.depth, args.prompt);
    passes.decode(args.depth, args.r#gen.min(WARM_UP_PASSES));
}

fn run(args: &BenchArgs, passes: &mut Passes) -> Run {
    let mut timed = |tokens: usize, work: &dyn Fn(&mut Passes)| {
        let started = Instant::now();
        work(passes);
        (tokens > 0).then(|| float(tokens) / started.elapsed().as_secs_f64())
    };
    Run {
        prefill: timed(args.prompt, &|passes| passes.prefill(0, args.depth, args.prompt)),
        decode: timed(args.r#gen * args.batch, &|passes| passes.decode(args.depth, args.r#gen)),
    }
}

/// Finds out how fast as many threads read memory, over as much as there is room for.
fn streaming(door: &Door, tier: &str, threads: usize) -> anyhow::Result<Streaming> {
    let tier = Tier::from_name(tier).context("the tier was in use a moment ago")?;
    let memory = door.steward.memory(&[]);
    let free = memory.available_bytes.map_or(STREAMED_BYTES, |free| free.get() / STREAMED_PART);
    let room = free.min(memory.ceiling_bytes.get()).max(threads as u64 * 64);
    let bytes = room.min(STREAMED_BYTES);
    let buffer_bytes = usize::try_from(bytes).context("the buffer fits addresses")?;
    let bytes_per_second =
        stream::read_rate(&Pool::new(threads), tier, buffer_bytes, STREAM_ROUNDS);
    Ok(Streaming { bytes_per_second, buffer_bytes })
}

fn progress(repeat: usize, repeats: usize) {
    if stderr().is_terminal() {
        note(&format!("({repeat} of {repeats})"));
    }
}

/// Turns a count into a factor.
#[expect(clippy::cast_precision_loss, reason = "counts of tokens and bytes are below 2^52")]
fn float(count: impl TryInto<u64>) -> f64 {
    count.try_into().unwrap_or(u64::MAX) as f64
}
