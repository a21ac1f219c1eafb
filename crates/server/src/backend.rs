//! The door from HTTP to whatever generates the tokens, and the bridge from its thread to the request's task.
//!
//! The bridge is an unbounded channel: the engine's thread serves everybody and must never wait for one slow client.
//! What can pile up there is one answer's text, which the context bounds. Dropping the receiver cancels: the sink then
//! answers `Break`.

use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use toko_admission::units::Bytes;
use toko_engine::{
    Chat, ChatTemplate, Engine, Error, Event, Infill, Lease, Metrics as Tokens, ModelInfo,
    Occupancy, Params, Prompt, Replica, Tokenizer, Turn,
};

use crate::metrics::Metrics;

/// How often a request that waits is asked whether anybody still listens.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Receives a request's events in order; after `Break` nothing more is computed for it.
pub type Sink = Box<dyn FnMut(Event) -> ControlFlow<()> + Send>;

/// What the server needs of an engine.
pub trait Backend: Send + Sync + 'static {
    /// Returns what is loaded.
    fn info(&self) -> &ModelInfo;

    /// Returns the memory that it holds, its weights included.
    fn held(&self) -> Bytes;

    /// Returns what the keys and values of running and kept prompts take at this moment.
    fn kv_bytes(&self) -> Bytes;

    /// Lets the ledger know how much of its memory readings of free memory leave out by now.
    fn observe(&self);

    /// Gives up what is kept of earlier prompts; blocks until that memory is free.
    fn shed(&self);

    /// Returns how many replicas and requests there are at this moment.
    fn occupancy(&self) -> Occupancy;

    /// Returns how many requests can be here at once, those that wait included.
    fn capacity(&self) -> usize;

    /// Counts into these from now on.
    fn count_into(&self, metrics: &Arc<Tokens>);

    /// Begins nothing any more; whoever waits is told, whoever is being answered goes on.
    fn close(&self);

    /// Blocks until nothing runs, for at most `limit`; says whether that was reached.
    fn wait_idle(&self, limit: Duration) -> bool;

    /// Renders and tokenizes the conversation and queues it; returns before the first event.
    ///
    /// May take as long as tokenizing does, so it is not called on a thread that serves connections.
    ///
    /// # Errors
    /// Whatever makes this conversation unanswerable; the sink is not called then.
    fn generate(&self, chat: &Chat, params: Params, sink: Sink) -> Result<(), Error>;

    /// Returns what turns texts into tokens and back.
    fn tokenizer(&self) -> &Tokenizer;

    /// Returns what turns conversations into prompts.
    fn chat_template(&self) -> &ChatTemplate;

    /// Turns a text that is to be continued into a prompt.
    fn text_prompt(&self, text: &str) -> Prompt;

    /// Returns the prompt whose answer goes between two texts, if the model can fill gaps.
    fn infill_prompt(&self, before: &[u32], after: &[u32]) -> Option<Infill>;

    /// Queues a prompt whose answer continues it; returns before the first event.
    ///
    /// # Errors
    /// Whatever makes the prompt unanswerable; the sink is not called then.
    fn complete(&self, prompt: Prompt, params: Params, sink: Sink) -> Result<(), Error>;

    /// Queues texts that are to become vectors; returns before the first event.
    ///
    /// # Errors
    /// Whatever makes a text unusable; the sink is not called then.
    fn embed(&self, texts: Vec<Vec<u32>>, sink: Sink) -> Result<(), Error>;
}

impl Backend for Engine {
    fn info(&self) -> &ModelInfo {
        self.info()
    }

    fn held(&self) -> Bytes {
        self.decision().need.total_bytes
    }

    fn kv_bytes(&self) -> Bytes {
        self.kv_bytes()
    }

    fn observe(&self) {
        self.observe();
    }

    fn shed(&self) {
        self.shed();
    }

    fn occupancy(&self) -> Occupancy {
        self.pool().occupancy()
    }

    fn capacity(&self) -> usize {
        self.pool().capacity()
    }

    fn count_into(&self, metrics: &Arc<Tokens>) {
        if !self.pool().set_metrics(metrics) {
            log::warn!("a model was in use before its counters were attached");
        }
    }

    fn close(&self) {
        self.pool().close();
    }

    fn wait_idle(&self, limit: Duration) -> bool {
        self.pool().wait_idle(limit)
    }

    fn generate(&self, chat: &Chat, params: Params, sink: Sink) -> Result<(), Error> {
        self.complete(self.chat_prompt(chat)?, params, sink)
    }

    fn tokenizer(&self) -> &Tokenizer {
        self.tokenizer()
    }

    fn chat_template(&self) -> &ChatTemplate {
        self.chat_template()
    }

    fn text_prompt(&self, text: &str) -> Prompt {
        self.text_prompt(text)
    }

    fn infill_prompt(&self, before: &[u32], after: &[u32]) -> Option<Infill> {
        self.infill_prompt(before, after)
    }

    fn complete(&self, prompt: Prompt, params: Params, sink: Sink) -> Result<(), Error> {
        self.check(&prompt, &params)?;
        let turn = self.pool().enter()?;
        let timeout = self.queue_timeout();
        tokio::spawn(in_turn(turn, timeout, sink, |lease, sink| {
            lease.generate(prompt, params, sink)
        }));
        Ok(())
    }

    fn embed(&self, texts: Vec<Vec<u32>>, sink: Sink) -> Result<(), Error> {
        self.check_texts(&texts)?;
        let turn = self.pool().enter()?;
        let timeout = self.queue_timeout();
        tokio::spawn(in_turn(turn, timeout, sink, |lease, sink| lease.embed(texts, sink)));
        Ok(())
    }
}

/// Waits for a replica while somebody listens, then begins with it.
async fn in_turn(
    turn: Turn<Replica>,
    timeout: Duration,
    mut sink: Sink,
    begin: impl FnOnce(Lease<Replica>, Sink) -> Result<(), Error>,
) {
    let mut lease = pin!(turn.lease(tokio::time::sleep(timeout)));
    let mut asks = tokio::time::interval(ASK_EVERY);
    let lease = loop {
        tokio::select! {
            biased;
            lease = &mut lease => break lease,
            _ = asks.tick() => if sink(Event::Waiting).is_break() { return },
        }
    };
    let outcome = match lease {
        Ok(lease) => begin(lease, sink),
        Err(error) => {
            // The request ends whatever its sink answers.
            let (ControlFlow::Continue(()) | ControlFlow::Break(())) = sink(Event::Failed(error));
            return;
        }
    };
    if let Err(error) = outcome {
        log::error!("a request that was checked was refused: {error}");
    }
}

/// Another backend, with every answer measured.
pub(crate) struct Metered {
    inner: Arc<dyn Backend>,
    metrics: Metrics,
}

impl Metered {
    pub(crate) fn new(inner: Arc<dyn Backend>, metrics: Metrics) -> Self {
        Self { inner, metrics }
    }

    fn metered(&self, mut sink: Sink) -> Sink {
        let mut meter = self.metrics.meter();
        Box::new(move |event| {
            meter.note(&event);
            sink(event)
        })
    }
}

impl Backend for Metered {
    fn info(&self) -> &ModelInfo {
        self.inner.info()
    }

    fn held(&self) -> Bytes {
        self.inner.held()
    }

    fn kv_bytes(&self) -> Bytes {
        self.inner.kv_bytes()
    }

    fn observe(&self) {
        self.inner.observe();
    }

    fn shed(&self) {
        self.inner.shed();
    }

    fn occupancy(&self) -> Occupancy {
        self.inner.occupancy()
    }

    fn capacity(&self) -> usize {
        self.inner.capacity()
    }

    fn count_into(&self, metrics: &Arc<Tokens>) {
        self.inner.count_into(metrics);
    }

    fn close(&self) {
        self.inner.close();
    }

    fn wait_idle(&self, limit: Duration) -> bool {
        self.inner.wait_idle(limit)
    }

    fn generate(&self, chat: &Chat, params: Params, sink: Sink) -> Result<(), Error> {
        self.inner.generate(chat, params, self.metered(sink))
    }

    fn tokenizer(&self) -> &Tokenizer {
        self.inner.tokenizer()
    }

    fn chat_template(&self) -> &ChatTemplate {
        self.inner.chat_template()
    }

    fn text_prompt(&self, text: &str) -> Prompt {
        self.inner.text_prompt(text)
    }

    fn infill_prompt(&self, before: &[u32], after: &[u32]) -> Option<Infill> {
        self.inner.infill_prompt(before, after)
    }

    fn complete(&self, prompt: Prompt, params: Params, sink: Sink) -> Result<(), Error> {
        self.inner.complete(prompt, params, self.metered(sink))
    }

    fn embed(&self, texts: Vec<Vec<u32>>, sink: Sink) -> Result<(), Error> {
        self.inner.embed(texts, self.metered(sink))
    }
}

/// The receiving end of one request's events, each with the index of the choice that it belongs to; dropping it
/// cancels the request.
pub(crate) type Events = mpsc::UnboundedReceiver<(usize, Event)>;

/// The other end, one for each choice.
pub(crate) type Sender = mpsc::UnboundedSender<(usize, Event)>;

/// Queues a conversation once for each of `params`, the choices; their events go to `sender`.
///
/// After an error some choices may be queued; they are cancelled with the receiver.
pub(crate) fn start(
    backend: &dyn Backend,
    chat: &Chat,
    params: Vec<Params>,
    sender: &Sender,
) -> Result<(), Error> {
    for (choice, params) in params.into_iter().enumerate() {
        // The client may have left while its request waited for a thread; then nobody misses the events.
        if sender.is_closed() {
            break;
        }
        backend.generate(chat, params, sink(sender.clone(), choice))?;
    }
    Ok(())
}

/// Queues the prompt of one choice, whose events go to `sender`.
pub(crate) fn start_choice(
    backend: &dyn Backend,
    choice: usize,
    prompt: Prompt,
    params: Params,
    sender: &Sender,
) -> Result<(), Error> {
    if sender.is_closed() {
        return Ok(());
    }
    backend.complete(prompt, params, sink(sender.clone(), choice))
}

/// Queues texts that are to become vectors; their events go to `sender`.
pub(crate) fn start_embedding(
    backend: &dyn Backend,
    texts: Vec<Vec<u32>>,
    sender: &Sender,
) -> Result<(), Error> {
    if sender.is_closed() {
        return Ok(());
    }
    backend.embed(texts, sink(sender.clone(), 0))
}

/// Sends the events of one choice to `sender`.
fn sink(sender: Sender, choice: usize) -> Sink {
    Box::new(move |event| match sender.send((choice, event)) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::SystemTime;

    use toko_engine::Sampling;

    use super::*;

    /// Counts what it is asked.
    struct Counter(AtomicUsize);

    impl Backend for Counter {
        fn info(&self) -> &ModelInfo {
            unreachable!("nobody asks what is loaded")
        }

        fn held(&self) -> Bytes {
            Bytes::ZERO
        }

        fn kv_bytes(&self) -> Bytes {
            Bytes::ZERO
        }

        fn observe(&self) {}

        fn shed(&self) {}

        fn occupancy(&self) -> Occupancy {
            unreachable!("nobody asks who is there")
        }

        fn capacity(&self) -> usize {
            unreachable!("nobody asks for room")
        }

        fn count_into(&self, _: &Arc<Tokens>) {
            unreachable!("nobody counts")
        }

        fn close(&self) {
            unreachable!("nobody closes it")
        }

        fn wait_idle(&self, _: Duration) -> bool {
            unreachable!("nobody closes it")
        }

        fn generate(&self, _: &Chat, _: Params, mut sink: Sink) -> Result<(), Error> {
            self.0.fetch_add(1, Ordering::Relaxed);
            assert!(sink(Event::Prefilled { tokens: 7 }).is_continue());
            Ok(())
        }

        fn tokenizer(&self) -> &Tokenizer {
            unreachable!("nobody brings a text")
        }

        fn chat_template(&self) -> &ChatTemplate {
            unreachable!("the conversation is rendered by whoever answers it")
        }

        fn text_prompt(&self, _: &str) -> Prompt {
            unreachable!("nobody brings a text")
        }

        fn infill_prompt(&self, _: &[u32], _: &[u32]) -> Option<Infill> {
            unreachable!("nobody brings a text")
        }

        fn complete(&self, _: Prompt, params: Params, sink: Sink) -> Result<(), Error> {
            self.generate(&Chat::new(Vec::new(), SystemTime::UNIX_EPOCH), params, sink)
        }

        fn embed(&self, _: Vec<Vec<u32>>, _: Sink) -> Result<(), Error> {
            unreachable!("nobody brings a text")
        }
    }

    fn begin(backend: &Counter, sender: &Sender) {
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
        let params = Params {
            sampling,
            max_tokens: None,
            stop: Vec::new(),
            constraint: None,
            logit_bias: Vec::new(),
            logprobs: None,
            prompt_logprobs: None,
        };
        let chat = Chat::new(Vec::new(), SystemTime::UNIX_EPOCH);
        start(backend, &chat, vec![params; 2], sender).unwrap();
    }

    #[test]
    fn a_request_whose_client_has_left_never_reaches_the_engine() {
        let backend = Counter(AtomicUsize::new(0));
        let (sender, mut events) = mpsc::unbounded_channel();
        begin(&backend, &sender);
        for index in 0..2 {
            let heard = events.try_recv();
            assert!(
                matches!(heard, Ok((choice, Event::Prefilled { tokens: 7 })) if choice == index)
            );
        }
        let (sender, events) = mpsc::unbounded_channel();
        drop(events);
        begin(&backend, &sender);
        assert_eq!(backend.0.into_inner(), 2);
    }
}
