//! The worker from inside: what is left in the KV cache after each way in which a sequence can end, and its answers
//! against those of a bare model.

use std::future::pending;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Waker};

use toko_admission::handles::Admission;
use toko_fixtures::embedded_model_path;
use toko_gguf::Gguf;
use toko_kernels::isa::Tier;
use toko_model::KvType;

use super::*;
use crate::constraint::Grammars;
use crate::pool::Pool;
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
    let capacity = Capacity {
        context_tokens: CONTEXT_TOKENS,
        sequences: 2,
        threads: 1,
        kv_type: KvType::F16,
        prefix_cache_tokens,
    };
    Worker::new(Arc::new(model), Arc::new(tokenizer), &capacity)
}

/// Leases the only replica of a pool that nobody else has.
fn lease(model: &Arc<Model>) -> Lease<Replica> {
    let (model, (messages, _)) = (Arc::clone(model), channel());
    let messages = Mutex::new(messages);
    let file = Gguf::open(embedded_model_path()).expect("the embedded model opens");
    let tokenizer = vocabulary::tokenizer(&file).expect("the embedded model has a tokenizer");
    let grammars = Arc::new(Grammars::new(Arc::new(tokenizer)));
    let pool = Pool::new(1, 0, move || {
        let messages = messages.lock().expect("nobody panics here").clone();
        Replica {
            model: Arc::clone(&model),
            context_tokens: CONTEXT_TOKENS,
            random: fastrand::Rng::with_seed(7),
            grammars: Arc::clone(&grammars),
            metrics: Arc::default(),
            messages,
        }
    });
    now(&pool)
}

/// Leases an idle replica.
fn now(pool: &Pool<Replica>) -> Lease<Replica> {
    let mut leased = Box::pin(pool.acquire(pending()));
    match leased.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(lease) => lease.expect("the pool is open"),
        Poll::Pending => panic!("its replica is idle"),
    }
}

const GREEDY: Sampling = Sampling {
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

/// A request for a few tokens after a prompt that no other `first` token's prompt shares.
fn start(
    worker: &mut Worker,
    first: u32,
    sink: impl FnMut(Event) -> ControlFlow<()> + Send + 'static,
) {
    let mut tokens = vec![257; PROMPT_TOKENS];
    tokens[0] = first;
    let job = Job {
        work: Work::Answer {
            prompt: Prompt { tokens, opening: Opening::Answer },
            params: Params {
                sampling: GREEDY,
                max_tokens: Some(3),
                stop: Vec::new(),
                constraint: None,
                logit_bias: Vec::new(),
                logprobs: None,
                prompt_logprobs: None,
            },
            guide: None,
        },
        sink: Box::new(sink),
        lease: lease(&worker.model),
    };
    worker.start(job);
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
    start(&mut worker, 300, until(|_| false));
    worker.round();
    assert_eq!(worker.kv.pages_in_use(), CHUNK_PAGES);
    finish(&mut worker);
    assert_eq!(worker.kv.pages_in_use(), 0);
}

#[test]
fn p15_replicas_that_run_have_pages_of_their_own() {
    let mut worker = worker(0);
    start(&mut worker, 300, until(|_| false));
    start(&mut worker, 301, until(|_| false));
    while worker.running.iter().any(|sequence| sequence.cached < PROMPT_TOKENS) {
        worker.round();
    }
    assert_eq!(worker.kv.pages_in_use(), 2 * PROMPT_TOKENS.div_ceil(PAGE_TOKENS));
}

/// What a model, a sampler and nothing else say to one request after the other: every token from the whole text before it.
fn bare(requests: &[(Vec<u32>, Params)], seed: u64) -> Vec<Vec<u32>> {
    let file = Gguf::open(embedded_model_path()).expect("the embedded model opens");
    let model = Model::bind(&file, Tier::detect(), 1).expect("the embedded model runs");
    let tokenizer = vocabulary::tokenizer(&file).expect("the embedded model has a tokenizer");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut answer = |(prompt, params): &(Vec<u32>, Params)| {
        let mut own = params.sampling.seed.map(fastrand::Rng::with_seed);
        let mut sampler = Sampler::new(params.sampling.clone(), params.logit_bias.clone());
        let mut tokens = prompt.clone();
        for _ in 0..params.max_tokens.expect("these have a limit") {
            let mut logits = last_logits(&model, &tokens);
            let random = own.as_mut().unwrap_or(&mut random);
            let token = sampler.sample(&mut logits, &tokens, random).expect("numbers");
            if tokenizer.is_end_of_generation(token) {
                break;
            }
            tokens.push(token);
        }
        tokens.split_off(prompt.len())
    };
    requests.iter().map(&mut answer).collect()
}

fn last_logits(model: &Model, tokens: &[u32]) -> Vec<f32> {
    let config = model.config();
    let mut kv = KvCache::new(config, KvType::F16);
    let mut scratch = Scratch::new(config, tokens.len(), 1, tokens.len(), 1);
    let mut pages = PageTable::default();
    kv.grow(&mut pages, tokens.len());
    let slot = Slot { tokens, start: 0, pages: &pages, rows: Rows::Last };
    model.forward(&[slot], &mut kv, &mut scratch).to_vec()
}

#[test]
fn p13_a_pool_of_one_says_what_the_bare_model_says_random_state_included() {
    let story: Vec<u32> = vec![603, 874, 257, 465];
    let drawn = |seed| Sampling {
        temperature: 1.0,
        top_k: 40,
        repeat_penalty: 1.1,
        penalty_window_tokens: 64,
        seed,
        ..GREEDY
    };
    let params = |sampling| Params {
        sampling,
        max_tokens: Some(40),
        stop: Vec::new(),
        constraint: None,
        logit_bias: Vec::new(),
        logprobs: Some(0),
        prompt_logprobs: None,
    };
    let requests: Vec<(Vec<u32>, Params)> = [GREEDY, drawn(None), drawn(Some(8)), drawn(None)]
        .map(|sampling| (story.clone(), params(sampling)))
        .to_vec();
    let file = Gguf::open(embedded_model_path()).expect("the embedded model opens");
    let options = crate::Options {
        context_tokens: None,
        threads: Some(2),
        tier: None,
        kv_type: KvType::F16,
        replicas: Some(1),
        queue_limit: 0,
        queue_timeout: std::time::Duration::ZERO,
        seed: 77,
        prefix_cache_tokens: None,
    };
    let engine = crate::Engine::load(
        &file,
        &options,
        &crate::Applicant::new(&Admission::unlimited(), "test"),
    )
    .expect("the embedded model loads");
    let pooled: Vec<Vec<u32>> = requests
        .iter()
        .map(|(prompt, params)| {
            let prompt = Prompt { tokens: prompt.clone(), opening: Opening::Answer };
            let (sender, events) = channel();
            let sink = move |event| {
                sender.send(event).map_or(ControlFlow::Break(()), ControlFlow::Continue)
            };
            now(engine.pool()).generate(prompt, params.clone(), sink).expect("accepted");
            let told = events.iter().filter_map(|event| match event {
                Event::Text { tokens, .. } => Some(tokens),
                _ => None,
            });
            told.flatten().map(|details| details.token.id).collect()
        })
        .collect();
    let expected = bare(&requests, 77);
    assert_eq!(pooled, expected);
    assert!(expected[1] != expected[3] && expected.iter().all(|answer| answer.len() > 10));
}

#[test]
fn whichever_way_a_request_ends_its_whole_pages_stay_and_no_other() {
    let mut worker = worker(CONTEXT_TOKENS * 4);
    start(&mut worker, 300, until(|_| false));
    start(&mut worker, 301, until(|event| matches!(event, Event::Text { .. })));
    finish(&mut worker);
    let mut kept = 2 * PROMPT_PAGES;
    assert_eq!(worker.kv.pages_in_use(), kept);

    start(&mut worker, 302, until(|event| matches!(event, Event::Prefilled { tokens: 1.. })));
    finish(&mut worker);
    kept += CHUNK_PAGES;
    assert_eq!(worker.kv.pages_in_use(), kept, "cancelled in the middle of its prompt");

    start(&mut worker, 303, until(|_| false));
    worker.round();
    worker.fail_all(|| Error::Closed);
    kept += CHUNK_PAGES;
    assert_eq!(worker.kv.pages_in_use(), kept, "failed in the middle of its prompt");

    start(&mut worker, 300, until(|event| matches!(event, Event::Prefilled { tokens: 1.. })));
    finish(&mut worker);
    assert_eq!(worker.kv.pages_in_use(), kept, "cancelled on pages that were there before");

    worker.prefix.clear(&mut worker.kv);
    assert_eq!(worker.kv.pages_in_use(), 0);
}

#[test]
fn after_a_panic_nothing_is_kept() {
    let mut worker = worker(CONTEXT_TOKENS);
    start(&mut worker, 300, until(|_| false));
    finish(&mut worker);
    assert_eq!(worker.kv.pages_in_use(), PROMPT_PAGES);
    let fails = |event| match event {
        Event::Text { .. } => panic!("a defect that this test wants"),
        _ => ControlFlow::Continue(()),
    };
    start(&mut worker, 300, fails);
    finish(&mut worker);
    assert_eq!(worker.kv.pages_in_use(), 0);
}

#[test]
fn kept_pages_give_way_to_running_sequences() {
    // Two sequences can take twice a context, and so much is kept of earlier ones.
    let mut worker = worker(CONTEXT_TOKENS * 2);
    let room = CONTEXT_TOKENS * 2 / PAGE_TOKENS;
    for first in 300..304 {
        start(&mut worker, first, until(|_| false));
        finish(&mut worker);
    }
    // The last one's unfinished page, freed by now, took the place of a kept one.
    assert_eq!(worker.kv.pages_in_use(), room - 1);
    start(&mut worker, 304, until(|_| false));
    start(&mut worker, 305, until(|_| false));
    while !worker.running.is_empty() {
        worker.round();
        assert!(worker.kv.pages_in_use() <= room, "{} pages", worker.kv.pages_in_use());
    }
}
