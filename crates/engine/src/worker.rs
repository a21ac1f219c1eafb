//! The worker thread: takes requests, steps all running sequences together, feeds their sinks.
//!
//! It alone owns the KV cache, the scratch buffers and the sequences. A sequence ends in one of
//! four ways: it is done, its sink says `Break`, its logits are not numbers, or the engine closes.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::Instant;

use toko_model::{KvCache, KvType, Model, PAGE_TOKENS, PageTable, Rows, Scratch, Slot};
use toko_tokenizer::{Detokenizer, Tokenizer};

use crate::constraint::Guide;
use crate::embedding::{Embedding, Workshop};
use crate::logprobs::Ledger;
use crate::pace::{CHUNK_TOKENS, Pace};
use crate::pool::Lease;
use crate::prefix::PrefixCache;
use crate::replica::Replica;
use crate::sampler::Sampler;
use crate::scheduler::{Part, Position, plan};
use crate::scoring::{SCORED_TOKENS, score};
use crate::stop::{Progress, StopMatcher};
use crate::{Error, Event, FinishReason, Opening, Params, Prompt, Summary};

/// Receives the events of one request; `Break` ends it.
pub(crate) type Sink = Box<dyn FnMut(Event) -> ControlFlow<()> + Send>;

/// What a request wants.
#[expect(clippy::large_enum_variant, reason = "a job travels in a box")]
pub(crate) enum Work {
    /// An answer to a prompt.
    Answer {
        prompt: Prompt,
        params: Params,
        /// Follows the constraint of `params`.
        guide: Option<Guide>,
    },
    /// The vectors of texts.
    Embed(Vec<Vec<u32>>),
}

/// A checked request on its way to the worker.
pub(crate) struct Job {
    pub(crate) work: Work,
    pub(crate) sink: Sink,
    pub(crate) lease: Lease<Replica>,
}

impl Job {
    /// Gives the replica back, then tells the sink why nothing comes of the request.
    pub(crate) fn refuse(self, error: Error) {
        let Self { mut sink, lease, .. } = self;
        drop(lease);
        // The request ends whatever its sink answers.
        let (ControlFlow::Continue(()) | ControlFlow::Break(())) = sink(Event::Failed(error));
    }
}

/// What the worker is told.
pub(crate) enum Message {
    /// Run a request, for which there is always room.
    Start(Box<Job>),
    /// Give up what is kept of earlier prompts, then tell that it is done.
    Shed(Sender<()>),
    /// End what is running, then yourself.
    End,
}

/// What the caches and buffers have room for.
pub(crate) struct Capacity {
    pub(crate) context_tokens: usize,
    /// Sequences that may run at once.
    pub(crate) sequences: usize,
    /// Compute threads.
    pub(crate) threads: usize,
    pub(crate) kv_type: KvType,
    pub(crate) prefix_cache_tokens: usize,
}

/// What the worker thread owns.
pub(crate) struct Worker {
    model: Arc<Model>,
    tokenizer: Arc<Tokenizer>,
    kv: KvCache,
    prefix: PrefixCache,
    scratch: Scratch,
    context_tokens: usize,
    /// Sequences that may run at once.
    sequences: usize,
    running: Vec<Sequence>,
    /// Requests for vectors, which take turns with each other and with prompts.
    embedding: VecDeque<Embedding>,
    /// Whether vectors were computed in the last pass.
    has_embedded: bool,
    pace: Pace,
    /// Pages of the KV cache that are there, for whoever looks.
    kv_pages: Arc<AtomicUsize>,
}

/// A request that is being computed.
struct Sequence {
    /// The prompt and the answer so far.
    tokens: Vec<u32>,
    prompt_tokens: usize,
    /// Tokens whose keys and values are in the cache.
    cached: usize,
    /// How many of these were there before.
    reused: usize,
    /// Length of `tokens` at which the answer is cut.
    max_tokens: usize,
    pages: PageTable,
    guide: Option<Guide>,
    sampler: Sampler,
    detokenizer: Detokenizer,
    stop: StopMatcher,
    /// The stop text that ended it.
    stop_text: Option<usize>,
    /// Where the tokens are told about as well.
    ledger: Option<Ledger>,
    /// How many of the most likely tokens are told beside each of the prompt's, where those are told.
    scoring: Option<usize>,
    sink: Sink,
    /// Where draws come from if the request named a seed.
    random: Option<fastrand::Rng>,
    /// Its replica, given back before its client learns of the end; `None` from then on.
    lease: Option<Lease<Replica>>,
    started: Instant,
    first_token: Option<Instant>,
}

impl Worker {
    /// Makes a worker that runs nothing yet, with caches and buffers as large as they have to be.
    pub(crate) fn new(model: Arc<Model>, tokenizer: Arc<Tokenizer>, capacity: &Capacity) -> Self {
        let &Capacity { context_tokens, sequences, threads, kv_type, prefix_cache_tokens } =
            capacity;
        let running_pages = sequences * context_tokens.div_ceil(PAGE_TOKENS);
        let config = model.config();
        Self {
            kv: KvCache::new(config, kv_type),
            prefix: PrefixCache::new(prefix_cache_tokens, running_pages),
            scratch: Scratch::new(
                config,
                CHUNK_TOKENS + sequences,
                sequences,
                context_tokens,
                threads,
            ),
            model,
            tokenizer,
            context_tokens,
            sequences,
            running: Vec::with_capacity(sequences),
            embedding: VecDeque::with_capacity(sequences),
            has_embedded: false,
            pace: Pace::fastest(),
            kv_pages: Arc::default(),
        }
    }

    /// Returns where the worker tells how many pages its KV cache has.
    pub(crate) fn kv_pages(&self) -> &Arc<AtomicUsize> {
        &self.kv_pages
    }

    /// Serves until it is told to end, then ends what is running.
    pub(crate) fn run(mut self, messages: &Receiver<Message>) {
        self.pace = Pace::unknown();
        while self.take_in(messages).is_continue() {
            if !self.is_idle() {
                let began = Instant::now();
                let prompt_tokens = self.guarded_step();
                self.pace.learn(prompt_tokens, began.elapsed());
                self.kv_pages.store(self.kv.pages_in_use(), Ordering::Relaxed);
            }
        }
        self.fail_all(|| Error::Closed);
        // What was sent before the end finds nobody else to tell it.
        for message in messages.try_iter() {
            if let Message::Start(job) = message {
                job.refuse(Error::Closed);
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.running.is_empty() && self.embedding.is_empty()
    }

    /// A pass whose panic, a defect of ours, does not take the other requests' engine with it.
    ///
    /// Returns how many tokens of prompts it computed.
    fn guarded_step(&mut self) -> usize {
        catch_unwind(AssertUnwindSafe(|| self.round())).unwrap_or_else(|_| {
            self.fail_all(|| Error::Panicked);
            self.prefix.clear(&mut self.kv);
            0
        })
    }

    /// Starts the requests that have come; waits for one while none is running.
    fn take_in(&mut self, messages: &Receiver<Message>) -> ControlFlow<()> {
        loop {
            let message = if self.is_idle() {
                messages.recv().unwrap_or(Message::End)
            } else {
                match messages.try_recv() {
                    Ok(message) => message,
                    Err(TryRecvError::Empty) => return ControlFlow::Continue(()),
                    Err(TryRecvError::Disconnected) => Message::End,
                }
            };
            match message {
                Message::Start(job) => self.start(*job),
                Message::Shed(done) => {
                    self.prefix.clear(&mut self.kv);
                    self.kv_pages.store(self.kv.pages_in_use(), Ordering::Relaxed);
                    // Whoever asked may have left.
                    let (Ok(()) | Err(_)) = done.send(());
                }
                Message::End => return ControlFlow::Break(()),
            }
        }
    }

    fn start(&mut self, job: Job) {
        let Job { work, mut sink, lease } = job;
        // Whoever left while waiting costs nothing more.
        if sink(Event::Prefilled { tokens: 0 }).is_break() {
            return;
        }
        let (Prompt { tokens: prompt, opening }, params, guide) = match work {
            Work::Answer { prompt, params, guide } => (prompt, params, guide),
            Work::Embed(texts) => {
                self.embedding.push_back(Embedding::new(texts, sink, lease));
                return;
            }
        };
        if params.prompt_logprobs.is_some() {
            // Few ask for it, and the rows of a large vocabulary are long.
            let rows = SCORED_TOKENS + self.sequences;
            self.scratch.reserve_rows(self.model.config(), rows);
        }
        let tokenizer = Arc::clone(&self.tokenizer);
        let room = self.context_tokens - prompt.len();
        self.running.push(Sequence {
            prompt_tokens: prompt.len(),
            max_tokens: prompt.len() + params.max_tokens.unwrap_or(room).min(room),
            tokens: prompt,
            cached: 0,
            reused: 0,
            pages: PageTable::default(),
            random: params.sampling.seed.map(fastrand::Rng::with_seed),
            sampler: Sampler::new(params.sampling, params.logit_bias),
            detokenizer: match opening {
                // A guide has allowed the first space like everything else.
                Opening::Answer if guide.is_none() => Detokenizer::new(tokenizer),
                Opening::Answer | Opening::Continuation => Detokenizer::continuing(tokenizer),
            },
            guide,
            stop: StopMatcher::new(params.stop),
            stop_text: None,
            ledger: params.logprobs.map(Ledger::new),
            scoring: params.prompt_logprobs,
            sink,
            lease: Some(lease),
            started: Instant::now(),
            first_token: None,
        });
    }

    /// One step for everybody; parts of prompts and vectors take turns, so that no answer waits for both.
    fn round(&mut self) -> usize {
        let is_its_turn = self.running.is_empty() || !self.has_embedded;
        self.has_embedded = is_its_turn && !self.embedding.is_empty();
        let chunk_tokens = if self.has_embedded { 0 } else { self.pace.chunk_tokens() };
        let prompt_tokens = if self.running.is_empty() { 0 } else { self.step(chunk_tokens) };
        if self.has_embedded {
            self.embed();
        }
        prompt_tokens
    }

    /// One pass for the request for vectors whose turn it is.
    fn embed(&mut self) {
        // It stays in the queue, so that whatever goes wrong ends it like all others.
        let Some(embedding) = self.embedding.front_mut() else { return };
        let mut workshop = Workshop {
            model: &self.model,
            kv: &mut self.kv,
            prefix: &mut self.prefix,
            scratch: &mut self.scratch,
            chunk_tokens: self.pace.chunk_tokens(),
            pages: self.context_tokens.div_ceil(PAGE_TOKENS),
        };
        if embedding.step(&mut workshop).is_continue() {
            self.embedding.rotate_left(1);
        } else if let Some(embedding) = self.embedding.pop_front() {
            embedding.release(&mut self.kv);
        }
    }

    /// One forward pass over all sequences, then one token for each that is ready for it.
    ///
    /// Returns how many tokens of prompts it computed.
    fn step(&mut self, chunk_tokens: usize) -> usize {
        self.reuse();
        let positions: Vec<Position> = self.running.iter().map(Sequence::position).collect();
        let parts = plan(&positions, chunk_tokens, SCORED_TOKENS);
        if parts.is_empty() {
            return 0;
        }
        let prompt_tokens = parts.iter().map(|part| part.tokens).filter(|&tokens| tokens > 1).sum();
        for part in &parts {
            let sequence = &mut self.running[part.sequence];
            let positions = sequence.cached + part.tokens;
            self.prefix.make_room(sequence.pages.missing_pages(positions), &mut self.kv);
            self.kv.grow(&mut sequence.pages, positions);
        }
        let slots: Vec<Slot<'_>> =
            parts.iter().map(|part| self.running[part.sequence].slot(part)).collect();
        let mut logits = self.model.forward(&slots, &mut self.kv, &mut self.scratch);
        let mut ended = Vec::new();
        for part in &parts {
            let sequence = &mut self.running[part.sequence];
            let length = sequence.rows(part).count(part.tokens) * self.model.config().vocabulary;
            let (rows, others) = logits.split_at_mut(length);
            logits = others;
            let flow = sequence.advance(part, rows, &self.tokenizer);
            if sequence.cached % PAGE_TOKENS < part.tokens {
                let done = &sequence.tokens[..sequence.cached];
                self.prefix.keep(done, &sequence.pages, &mut self.kv);
            }
            if flow.is_break() {
                ended.push(part.sequence);
            }
        }
        for index in ended.into_iter().rev() {
            let sequence = self.running.remove(index);
            self.kv.release(sequence.pages);
        }
        prompt_tokens
    }

    /// Gives the prompts that are not begun the pages that need not be computed for them.
    ///
    /// Before every pass: what is ahead of a prompt may be computing what it begins with.
    fn reuse(&mut self) {
        let is_begun = |sequence: &Sequence| sequence.cached > sequence.reused;
        let may_reuse =
            |sequence: &&mut Sequence| sequence.scoring.is_none() && !is_begun(sequence);
        for sequence in self.running.iter_mut().filter(may_reuse) {
            let tokens = self.prefix.reuse(&sequence.tokens, &mut sequence.pages, &mut self.kv);
            // What it was given stays its own, whatever has been evicted since.
            sequence.reused = sequence.reused.max(tokens);
            sequence.cached = sequence.reused;
        }
    }

    fn fail_all(&mut self, error: impl Fn() -> Error) {
        for mut sequence in self.running.drain(..) {
            sequence.lease = None;
            // The sequence ends whatever its sink answers.
            let (ControlFlow::Continue(()) | ControlFlow::Break(())) =
                (sequence.sink)(Event::Failed(error()));
            self.kv.release(sequence.pages);
        }
        for mut embedding in self.embedding.drain(..) {
            let (ControlFlow::Continue(()) | ControlFlow::Break(())) = embedding.fail(error());
            embedding.release(&mut self.kv);
        }
    }
}

impl Sequence {
    fn position(&self) -> Position {
        Position { known: self.tokens.len(), cached: self.cached, is_scored: self.is_scored() }
    }

    /// Says whether the next part's tokens foretell others of the prompt that are to be told.
    fn is_scored(&self) -> bool {
        self.scoring.is_some() && self.cached + 1 < self.prompt_tokens
    }

    /// Returns the logits that a part asks for.
    fn rows(&self, part: &Part) -> Rows {
        match part.completes {
            _ if self.is_scored() => Rows::All,
            true => Rows::Last,
            false => Rows::None,
        }
    }

    fn slot(&self, part: &Part) -> Slot<'_> {
        Slot {
            tokens: &self.tokens[self.cached..self.cached + part.tokens],
            start: self.cached,
            pages: &self.pages,
            rows: self.rows(part),
        }
    }

    /// Takes in a computed part; the last of its `rows` holds the logits when the next token is due.
    fn advance(&mut self, part: &Part, rows: &mut [f32], tokenizer: &Tokenizer) -> ControlFlow<()> {
        let is_begun = self.cached > self.reused;
        let (first, scoring) = (self.cached, self.scoring.filter(|_| self.is_scored()));
        self.cached += part.tokens;
        if self.first_token.is_none() {
            let cached_tokens = if is_begun { 0 } else { self.reused };
            if let Some(lease) = &self.lease {
                lease.metrics.add_prompt(part.tokens, cached_tokens);
            }
            (self.sink)(Event::Prefilled { tokens: self.cached })?;
        }
        if let Some(top) = scoring {
            self.tell_prompt(first, rows, top, tokenizer)?;
        }
        let row = rows.chunks_exact_mut(tokenizer.len()).next_back();
        let Some(row) = row.filter(|_| part.completes) else { return ControlFlow::Continue(()) };
        if self.tokens.len() >= self.max_tokens {
            return self.finish(FinishReason::Length);
        }
        if let Some(ledger) = &mut self.ledger {
            ledger.observe(row);
        }
        let token = match self.choose(row) {
            Ok(token) => token,
            Err(error) => return self.fail(error),
        };
        self.first_token.get_or_insert_with(Instant::now);
        self.tokens.push(token);
        let is_end = tokenizer.is_end_of_generation(token);
        let piece = if is_end { String::new() } else { self.detokenizer.push(token) };
        let is_told = self.scoring.is_some() || !(is_end || tokenizer.is_control(token));
        if let Some(ledger) = self.ledger.as_mut().filter(|_| is_told) {
            ledger.record(token, &piece, self.detokenizer.is_inside_character(), tokenizer);
        }
        if is_end {
            return self.finish(FinishReason::Stop);
        }
        self.give(&piece)?;
        if self.guide.as_ref().is_some_and(Guide::is_complete) {
            return self.finish(FinishReason::Stop);
        }
        if self.tokens.len() >= self.max_tokens {
            return self.finish(FinishReason::Length);
        }
        ControlFlow::Continue(())
    }

    /// Tells the tokens that follow a computed part of the prompt, whose first position is `first`.
    fn tell_prompt(
        &mut self,
        first: usize,
        rows: &[f32],
        top: usize,
        tokenizer: &Tokenizer,
    ) -> ControlFlow<()> {
        let followers = first + 1..self.prompt_tokens.min(self.cached + 1);
        match score(&self.tokens[followers], rows, first, top, tokenizer) {
            Ok(tokens) => (self.sink)(Event::Prompt { tokens }),
            Err(error) => self.fail(error),
        }
    }

    fn fail(&mut self, error: Error) -> ControlFlow<()> {
        self.lease = None;
        (self.sink)(Event::Failed(error))?;
        ControlFlow::Break(())
    }

    /// Chooses the next token of the answer from its logits.
    fn choose(&mut self, row: &mut [f32]) -> Result<u32, Error> {
        let lease = self.lease.as_mut().expect("a running sequence has its replica");
        lease.metrics.add_generated(1);
        if let Some(guide) = &mut self.guide {
            guide.mask(row)?;
        }
        let random = self.random.as_mut().unwrap_or(&mut lease.random);
        let chosen = self.sampler.sample(row, &self.tokens, random);
        let token = chosen.map_err(|_| Error::NotANumber { position: self.cached - 1 })?;
        if let Some(guide) = &mut self.guide {
            guide.accept(token)?;
        }
        Ok(token)
    }

    /// Gives out more text as far as it cannot be part of a stop text.
    fn give(&mut self, piece: &str) -> ControlFlow<()> {
        match self.stop.push(piece) {
            Progress::Continue(text) => self.tell(text),
            Progress::Stopped { text, stop } => {
                self.tell(text)?;
                self.stop_text = Some(stop);
                self.close(FinishReason::Stop)
            }
        }
    }

    /// Gives out text with the tokens that end in it.
    fn tell(&mut self, text: String) -> ControlFlow<()> {
        let tokens = self.ledger.as_mut().map(|ledger| ledger.release(&text));
        (self.sink)(Event::Text { text, tokens: tokens.unwrap_or_default() })
    }

    /// Gives out what was held back, then closes.
    fn finish(&mut self, reason: FinishReason) -> ControlFlow<()> {
        let tail = self.detokenizer.finish();
        if let Some(ledger) = &mut self.ledger {
            ledger.complete(&tail);
        }
        self.give(&tail)?;
        let held = self.stop.finish();
        self.tell(held)?;
        self.close(reason)
    }

    fn close(&mut self, reason: FinishReason) -> ControlFlow<()> {
        let first_token = self.first_token.unwrap_or_else(Instant::now);
        self.lease = None;
        (self.sink)(Event::Finished(Summary {
            reason,
            stop_text: self.stop_text,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.reused,
            completion_tokens: self.tokens.len() - self.prompt_tokens,
            prefill: first_token - self.started,
            decode: first_token.elapsed(),
        }))?;
        ControlFlow::Break(())
    }
}

#[cfg(test)]
mod tests;
