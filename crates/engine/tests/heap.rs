//! What a model's load and its requests take of the heap, against what was said before; alone in its process, or
//! others would count.

use std::future::pending;
use std::ops::ControlFlow;
use std::sync::mpsc::channel;
use std::time::Duration;

use peak_alloc::PeakAlloc;
use serde_json::json;
use toko_admission::handles::Admission;
use toko_admission::sizing::Kind;
use toko_admission::units::Bytes;
use toko_engine::{
    Applicant, Engine, Event, Form, KvType, Opening, Options, Params, Prompt, Sampling,
};
use toko_fixtures::smollm2_path;
use toko_gguf::Gguf;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

const CONTEXT_TOKENS: usize = 192;

const OPTIONS: Options = Options {
    context_tokens: Some(CONTEXT_TOKENS),
    threads: Some(2),
    tier: None,
    kv_type: KvType::F16,
    replicas: Some(2),
    queue_limit: 0,
    queue_timeout: Duration::MAX,
    seed: 0,
    prefix_cache_tokens: Some(2 * CONTEXT_TOKENS),
};

/// The parts of a footprint that are allocated on the heap: neither mapped nor code and stacks.
fn said_bytes(file: &Gguf) -> u64 {
    let footprint = toko_engine::footprint(file, &OPTIONS).expect("it can be sized");
    let is_heap = |kind, source: &str| kind != Kind::Runtime && !source.contains("mapped");
    let terms = footprint.terms.iter().filter(|term| is_heap(term.kind, &term.source));
    terms.map(|term| term.bytes).sum::<Bytes>().get()
}

fn params(form: Option<Form>, prompt_logprobs: Option<usize>) -> Params {
    let sampling = Sampling {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repeat_penalty: 1.0,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
        penalty_window_tokens: 0,
        seed: Some(1),
    };
    Params {
        sampling,
        max_tokens: Some(4),
        stop: Vec::new(),
        constraint: form.map(Into::into),
        logit_bias: Vec::new(),
        logprobs: Some(5),
        prompt_logprobs,
    }
}

/// Runs requests at once, one for each prompt.
fn ask(engine: &Engine, prompts: Vec<Vec<u32>>, params: &Params) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let (sender, ends) = channel();
    for tokens in prompts {
        let lease = runtime.block_on(engine.pool().acquire(pending())).expect("idle");
        let sender = sender.clone();
        let sink = move |event| {
            if let Event::Finished(_) | Event::Failed(_) = event {
                sender.send(event).expect("somebody waits");
            }
            ControlFlow::Continue(())
        };
        let prompt = Prompt { tokens, opening: Opening::Continuation };
        lease.generate(prompt, params.clone(), sink).expect("it can run");
    }
    drop(sender);
    assert!(ends.iter().all(|end| matches!(end, Event::Finished(_))), "all are answered");
}

#[test]
fn the_heap_never_holds_more_than_was_said_and_not_much_less() {
    let file = Gguf::open(smollm2_path()).expect("the model opens");
    let said = said_bytes(&file);
    let before = HEAP.current_usage();
    HEAP.reset_peak_usage();
    let admission = Admission::unlimited();
    let applicant = Applicant::new(&admission, "test");
    let engine = Engine::load(&file, &OPTIONS, &applicant).expect("it loads");
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    ask(&engine, vec![vec![9; 4]], &params(Some(Form::Json(schema)), None));
    ask(&engine, vec![vec![7; 24]], &params(None, Some(5)));
    let full = |first| (first..).take(CONTEXT_TOKENS - 4).collect();
    ask(&engine, vec![full(1000), full(2000)], &params(None, None));
    let held = (HEAP.peak_usage() - before) as u64;
    // This allocator does not see what a piece of heap takes beside its bytes: as much again where those are few.
    assert!(held <= said && said <= held + held / 3, "{held} of {said} bytes");
}
