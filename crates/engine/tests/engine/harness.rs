//! The one door through which these tests ask an engine.

use std::future::{Future, pending};
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use toko_admission::handles::Admission;
use toko_engine::{
    Applicant, Engine, Error, Event, KvType, Opening, Options, Params, Prompt, Sampling, Summary,
    TokenDetails,
};
use toko_fixtures::embedded_model_path;
use toko_gguf::Gguf;

pub(crate) const GREEDY: Sampling = Sampling {
    temperature: 0.0,
    top_k: 0,
    top_p: 1.0,
    min_p: 0.0,
    repeat_penalty: 1.0,
    frequency_penalty: 0.0,
    presence_penalty: 0.0,
    penalty_window_tokens: 64,
    seed: None,
};

pub(crate) const OPTIONS: Options = Options {
    context_tokens: None,
    threads: Some(2),
    tier: None,
    kv_type: KvType::F16,
    replicas: Some(8),
    queue_limit: usize::MAX,
    queue_timeout: Duration::MAX,
    seed: 0,
    prefix_cache_tokens: None,
};

/// What one request was told.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) tokens: Vec<TokenDetails>,
    pub(crate) end: Result<Summary, Error>,
}

impl Answer {
    pub(crate) fn summary(&self) -> &Summary {
        self.end.as_ref().expect("the request was served")
    }
}

pub(crate) fn embedded(options: &Options) -> Engine {
    let file = Gguf::open(embedded_model_path()).expect("the embedded model opens");
    Engine::load(&file, options, &Applicant::new(&Admission::unlimited(), "test"))
        .expect("the embedded model loads")
}

pub(crate) fn params(sampling: Sampling, max_tokens: usize) -> Params {
    Params {
        sampling,
        max_tokens: Some(max_tokens),
        stop: Vec::new(),
        constraint: None,
        logit_bias: Vec::new(),
        logprobs: None,
        prompt_logprobs: None,
    }
}

pub(crate) fn answer_to(tokens: &[u32]) -> Prompt {
    Prompt { tokens: tokens.to_vec(), opening: Opening::Answer }
}

/// Runs a future to its end.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(future)
}

/// Leases a replica and generates: at once if one is idle, otherwise in a thread that waits for it.
pub(crate) fn run(
    engine: &Engine,
    prompt: Prompt,
    params: Params,
    mut sink: impl FnMut(Event) -> ControlFlow<()> + Send + 'static,
) -> Result<(), Error> {
    engine.check(&prompt, &params)?;
    let turn = engine.pool().enter()?;
    if turn.has_come() {
        return block_on(turn.lease(pending()))?.generate(prompt, params, sink);
    }
    thread::spawn(move || match block_on(turn.lease(pending())) {
        Ok(lease) => lease.generate(prompt, params, sink).expect("it was checked"),
        Err(error) => assert!(sink(Event::Failed(error)).is_continue()),
    });
    Ok(())
}

/// Leases an idle replica and makes vectors.
pub(crate) fn embed_texts(
    engine: &Engine,
    texts: &[Vec<u32>],
    sink: impl FnMut(Event) -> ControlFlow<()> + Send + 'static,
) -> Result<(), Error> {
    let turn = engine.pool().enter()?;
    block_on(turn.lease(pending()))?.embed(texts.to_vec(), sink)
}

/// Queues a prompt and returns where its events arrive.
pub(crate) fn submit(
    engine: &Engine,
    prompt: &[u32],
    params: Params,
) -> Result<Receiver<Event>, Error> {
    let (sender, receiver) = channel();
    run(engine, answer_to(prompt), params, move |event| match sender.send(event) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    })?;
    Ok(receiver)
}

/// Reads a request's events to its end.
pub(crate) fn collect(events: &Receiver<Event>) -> Answer {
    let (mut text, mut tokens) = (String::new(), Vec::new());
    loop {
        match events.recv().expect("every request is told its end") {
            Event::Waiting
            | Event::Prefilled { .. }
            | Event::Prompt { .. }
            | Event::Embedded { .. } => {}
            Event::Text { text: piece, tokens: told } => {
                text.push_str(&piece);
                tokens.extend(told);
            }
            Event::Finished(summary) => return Answer { text, tokens, end: Ok(summary) },
            Event::Failed(error) => return Answer { text, tokens, end: Err(error) },
        }
    }
}

pub(crate) fn ask(engine: &Engine, prompt: &[u32], params: Params) -> Answer {
    collect(&submit(engine, prompt, params).expect("the prompt is accepted"))
}
