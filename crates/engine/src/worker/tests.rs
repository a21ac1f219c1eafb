//! What is left in the KV cache after each way in which a sequence can end.

use std::time::Duration;

use toko_fixtures::embedded_model_path;
use toko_gguf::Gguf;
use toko_kernels::isa::Tier;
use toko_model::KvType;

use super::*;
use crate::queue::Gate;
use crate::{Sampling, vocabulary};

const CONTEXT_TOKENS: usize = 512;
const PROMPT_TOKENS: usize = 300;
/// The pages that one pass over such a prompt fills.
const CHUNK_PAGES: usize = CHUNK_TOKENS / PAGE_TOKENS;
/// The whole pages of such a prompt.
const PROMPT_PAGES: usize = PROMPT_TOKENS / PAGE_TOKENS;

fn worker(prefix_cache_tokens: usize) -> Worker {
    let file = Gguf::open(embedded_model_path()).expect("the embedded model opens");
    let model = Model::bind(&file, Tier::detect(), 1).expect("the embedded model runs");
    let tokenizer = vocabulary::tokenizer(&file).expect("the embedded model has a tokenizer");
    let options = Options {
        context_tokens: None,
        threads: None,
        kv_type: KvType::F16,
        sequences: 2,
        queue_limit: usize::MAX,
        queue_timeout: Duration::MAX,
        prefix_cache_tokens: Some(prefix_cache_tokens),
    };
    Worker::new(model, Arc::new(tokenizer), &options, CONTEXT_TOKENS, 1)
}

/// A request for a few tokens after a prompt that no other `first` token's prompt shares.
fn job(first: u32, sink: impl FnMut(Event) -> ControlFlow<()> + Send + 'static) -> Job {
    let mut tokens = vec![257; PROMPT_TOKENS];
    tokens[0] = first;
    let sampling = Sampling {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repeat_penalty: 1.0,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
        penalty_window_tokens: 0,
        seed: None,
    };
    Job {
        prompt: Prompt { tokens, opening: Opening::Answer },
        params: Params {
            sampling,
            max_tokens: Some(3),
            stop: Vec::new(),
            logit_bias: Vec::new(),
            logprobs: None,
        },
        sink: Box::new(sink),
        ticket: Arc::new(Gate::new(1, 0, Duration::MAX)).enter().expect("a gate with a place"),
    }
}

fn finish(worker: &mut Worker) {
    while !worker.running.is_empty() {
        worker.guarded_step();
    }
}

/// Breaks at the first event that is wanted.
fn until(wanted: impl Fn(&Event) -> bool) -> impl FnMut(Event) -> ControlFlow<()> {
    move |event| if wanted(&event) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

#[test]
fn without_a_prefix_cache_nothing_stays() {
    let mut worker = worker(0);
    worker.start(job(300, until(|_| false)));
    worker.step();
    assert_eq!(worker.kv.pages_in_use(), CHUNK_PAGES);
    finish(&mut worker);
    assert_eq!(worker.kv.pages_in_use(), 0);
}

#[test]
fn whichever_way_a_request_ends_its_whole_pages_stay_and_no_other() {
    let mut worker = worker(CONTEXT_TOKENS * 4);
    worker.start(job(300, until(|_| false)));
    worker.start(job(301, until(|event| matches!(event, Event::Text { .. }))));
    finish(&mut worker);
    let mut kept = 2 * PROMPT_PAGES;
    assert_eq!(worker.kv.pages_in_use(), kept);

    worker.start(job(302, until(|event| matches!(event, Event::Prefilled { tokens: 1.. }))));
    finish(&mut worker);
    kept += CHUNK_PAGES;
    assert_eq!(worker.kv.pages_in_use(), kept, "cancelled in the middle of its prompt");

    worker.start(job(303, until(|_| false)));
    worker.step();
    worker.fail_all(|| Error::Closed);
    kept += CHUNK_PAGES;
    assert_eq!(worker.kv.pages_in_use(), kept, "failed in the middle of its prompt");

    worker.start(job(300, until(|event| matches!(event, Event::Prefilled { tokens: 1.. }))));
    finish(&mut worker);
    assert_eq!(worker.kv.pages_in_use(), kept, "cancelled on pages that were there before");

    worker.prefix.clear(&mut worker.kv);
    assert_eq!(worker.kv.pages_in_use(), 0);
}

#[test]
fn after_a_panic_nothing_is_kept() {
    let mut worker = worker(CONTEXT_TOKENS);
    worker.start(job(300, until(|_| false)));
    finish(&mut worker);
    assert_eq!(worker.kv.pages_in_use(), PROMPT_PAGES);
    let fails = |event| match event {
        Event::Text { .. } => panic!("a defect that this test wants"),
        _ => ControlFlow::Continue(()),
    };
    worker.start(job(300, fails));
    finish(&mut worker);
    assert_eq!(worker.kv.pages_in_use(), 0);
}

#[test]
fn kept_pages_give_way_to_running_sequences() {
    // Two sequences can take twice a context, and so much is kept of earlier ones.
    let mut worker = worker(CONTEXT_TOKENS * 2);
    let room = CONTEXT_TOKENS * 2 / PAGE_TOKENS;
    for first in 300..304 {
        worker.start(job(first, until(|_| false)));
        finish(&mut worker);
    }
    // The last one's unfinished page, freed by now, took the place of a kept one.
    assert_eq!(worker.kv.pages_in_use(), room - 1);
    worker.start(job(304, until(|_| false)));
    worker.start(job(305, until(|_| false)));
    while !worker.running.is_empty() {
        worker.step();
        assert!(worker.kv.pages_in_use() <= room, "{} pages", worker.kv.pages_in_use());
    }
}
