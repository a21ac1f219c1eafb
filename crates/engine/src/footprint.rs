//! What a model will take in memory, from its header alone: no tensor is touched and nothing is loaded.
//!
//! Invariant: each term is what the code of the same purpose allocates at most, so the sum is never below what a loaded
//! model takes with all contexts full, scored and constrained answers included. Decides nothing.

mod tables;

use toko_admission::sizing::{Evidence, Footprint, Growth, Kind, Sizing, Term};
use toko_admission::units::Bytes;
use toko_gguf::Gguf;
use toko_kernels::attention::PART;
use toko_kernels::pool::default_threads;
use toko_model::{Config, KvType, Model, PAGE_TOKENS, Scratch};

use crate::load::DEFAULT_CONTEXT_TOKENS;
use crate::pace::CHUNK_TOKENS;
use crate::pool::{Decoding, resolve_pool_size};
use crate::scoring::SCORED_TOKENS;
use crate::{Error, Options, sampler};

/// The program's own code and tables that running a model brings into memory beside what was there before.
const CODE: Bytes = Bytes::new(7 << 20);

/// What a thread touches of its stack, and where it allocates.
const THREAD: Bytes = Bytes::new(96 << 10);

/// Threads beside the compute threads: the worker, the loader and those that talk to clients.
const OTHER_THREADS: u64 = 4;

/// What one request takes beside its tokens: its connection, its stop rules, its walk through a grammar.
const REQUEST: Bytes = Bytes::new(64 << 10);

/// A page's tokens as numbers and as text on their way from client to cache, and where the page is listed.
const PAGE_RECORDS: Bytes = Bytes::new(4 << 10);

/// Returns what a model will take in memory at any context and number of replicas.
///
/// Kept prompts share the pages of running ones. Where `options` keeps more of them than the context and replicas that
/// it asks for can hold, the pages beyond are in a fixed term, which holds for that context and these replicas.
///
/// # Errors
/// A header that lacks what sizes a model, a family that is not built in, and a type of the KV cache that the heads
/// do not fit.
pub fn sizing(file: &Gguf, options: &Options) -> Result<Sizing, Error> {
    let config = Config::from_gguf(file)?;
    options.kv_type.check(&config)?;
    let page_bytes = options.kv_type.page_bytes(&config).map_or(Bytes::MAX, Bytes::new);
    Ok(Sizing {
        mapped_weights: file.tensors().iter().map(|tensor| Bytes::new(tensor.bytes)).sum(),
        private_weights: Bytes::new(Model::copied_bytes(file)),
        weights_source: "tensors where the file is mapped, and copies of its vectors".to_owned(),
        fixed: fixed(file, &config, options, page_bytes)?,
        per_replica: per_replica(&config),
        growth: growth(&config, options, page_bytes),
        evidence: Evidence::Header,
    })
}

/// Returns what loading a file with these options takes.
///
/// # Errors
/// As [`sizing`]. A context that the model does not allow is for the load to refuse.
pub fn footprint(file: &Gguf, options: &Options) -> Result<Footprint, Error> {
    let (context_tokens, replicas) = asked(&Config::from_gguf(file)?, options);
    Ok(sizing(file, options)?.footprint(context_tokens, replicas))
}

/// Returns the context and the replicas that a load with these options makes.
fn asked(config: &Config, options: &Options) -> (u64, u64) {
    let context_tokens =
        options.context_tokens.unwrap_or_else(|| config.context.min(DEFAULT_CONTEXT_TOKENS));
    let replicas = resolve_pool_size(options.replicas, Decoding::Replicated);
    (context_tokens as u64, replicas as u64)
}

/// Returns how many pages are kept beyond those that the running sequences can fill.
fn pages_beyond_contexts(options: &Options, (context_tokens, replicas): (u64, u64)) -> u64 {
    let kept_tokens = options.prefix_cache_tokens.map_or(0, |tokens| tokens as u64);
    let running = context_tokens.div_ceil(PAGE_TOKENS as u64).saturating_mul(replicas);
    (kept_tokens / PAGE_TOKENS as u64).saturating_sub(running)
}

fn term(kind: Kind, bytes: Bytes, source: impl Into<String>) -> Term {
    Term { kind, bytes, source: source.into() }
}

fn fixed(
    file: &Gguf,
    config: &Config,
    options: &Options,
    page_bytes: Bytes,
) -> Result<Vec<Term>, Error> {
    let threads = options.threads.unwrap_or_else(default_threads).max(1) as u64;
    let chunk = CHUNK_TOKENS as u64;
    let scored = SCORED_TOKENS as u64;
    let vocabulary = tables::Vocabulary::read(file)?;
    let kept = pages_beyond_contexts(options, asked(config, options));
    Ok(vec![
        term(Kind::Tokenizer, tables::header(file), "the file's header, mapped"),
        term(
            Kind::Tokenizer,
            vocabulary.tokenizer(),
            "tokens, merges and chat template while they are built",
        ),
        term(Kind::Scratch, vocabulary.grammars(), "the vocabulary as grammars search it"),
        term(
            Kind::Runtime,
            CODE + THREAD * threads.saturating_add(OTHER_THREADS),
            format!("code, and stacks of {threads} compute threads"),
        ),
        term(
            Kind::Scratch,
            Bytes::new(Scratch::token_bytes(config, chunk)),
            format!("activations of {chunk} prompt tokens"),
        ),
        term(
            Kind::Scratch,
            Bytes::new(Scratch::attention_bytes(config, threads)),
            format!("attention on {threads} threads"),
        ),
        term(
            Kind::Logits,
            Bytes::new(Scratch::row_bytes(config)) * scored,
            format!("logits of {scored} scored tokens"),
        ),
        term(Kind::KvCache, page_bytes * kept, format!("{kept} pages kept beyond the contexts")),
    ])
}

fn per_replica(config: &Config) -> Vec<Term> {
    let row = Bytes::new(Scratch::row_bytes(config));
    let candidates = Bytes::new(sampler::candidate_bytes(config.vocabulary));
    vec![
        term(
            Kind::Scratch,
            Bytes::new(Scratch::token_bytes(config, 1)) + REQUEST,
            "activations of one token, and the request",
        ),
        term(
            Kind::Logits,
            // Once as computed and once more where an answer tells them.
            row * 2 + candidates,
            "a row of logits, its copy, and the candidates of a draw",
        ),
    ]
}

fn growth(config: &Config, options: &Options, page_bytes: Bytes) -> Vec<Growth> {
    let (step, part) = (PAGE_TOKENS as u64, PART as u64);
    let grows = |kind, step_tokens, step_bytes, source: String| Growth {
        kind,
        step_tokens,
        step_bytes,
        window_tokens: None,
        source,
    };
    let kv_type = name(options.kv_type);
    let sums = Bytes::new(Scratch::part_bytes(config));
    vec![
        grows(
            Kind::KvCache,
            step,
            page_bytes,
            format!("pages of {step} keys and values in {kv_type}"),
        ),
        // They are there once; with them in each replica's share the sum is a little too large.
        grows(Kind::Scratch, part, sums, format!("attention over parts of {part} positions")),
        grows(
            Kind::Scratch,
            step,
            PAGE_RECORDS,
            "tokens, their text and the tables of pages".to_owned(),
        ),
    ]
}

fn name(kv_type: KvType) -> &'static str {
    match kv_type {
        KvType::F32 => "f32",
        KvType::F16 => "f16",
        KvType::Q8_0 => "q8_0",
    }
}
