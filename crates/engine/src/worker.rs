//! The worker thread: takes requests, steps all running sequences together, feeds their sinks.
//!
//! It alone owns the KV cache, the scratch buffers and the sequences. A sequence ends in one of
//! four ways: it is done, its sink says `Break`, its logits are not numbers, or the engine closes.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;

use toko_model::{KvCache, Model, PAGE_TOKENS, PageTable, Rows, Scratch, Slot};
use toko_tokenizer::{Detokenizer, Tokenizer};

use crate::logprobs::Ledger;
use crate::prefix::PrefixCache;
use crate::queue::{Line, Ticket};
use crate::sampler::Sampler;
use crate::scheduler::{Part, Position, plan};
use crate::stop::{Progress, StopMatcher};
use crate::{Error, Event, FinishReason, Opening, Options, Params, Prompt, Summary};

/// Prompt tokens that one pass computes at most: long enough to read the weights seldom, short
/// enough that a running answer hardly stalls.
const CHUNK_TOKENS: usize = 256;

/// Receives the events of one request; `Break` ends it.
pub(crate) type Sink = Box<dyn FnMut(Event) -> ControlFlow<()> + Send>;

/// A checked request on its way to the worker.
pub(crate) struct Job {
    pub(crate) prompt: Prompt,
    pub(crate) params: Params,
    pub(crate) sink: Sink,
    pub(crate) ticket: Ticket,
}

/// What the worker thread owns.
pub(crate) struct Worker {
    model: Model,
    tokenizer: Arc<Tokenizer>,
    kv: KvCache,
    prefix: PrefixCache,
    scratch: Scratch,
    context_tokens: usize,
    max_sequences: usize,
    line: Line,
    running: Vec<Sequence>,
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
    sampler: Sampler,
    detokenizer: Detokenizer,
    stop: StopMatcher,
    /// The stop text that ended it.
    stop_text: Option<usize>,
    /// Where the tokens are told about as well.
    ledger: Option<Ledger>,
    sink: Sink,
    /// Its place, given back before its client learns of the end; `None` from then on.
    ticket: Option<Ticket>,
    started: Instant,
    first_token: Option<Instant>,
}

impl Worker {
    /// Makes a worker that runs nothing yet, with caches and buffers as large as they have to be.
    pub(crate) fn new(
        model: Model,
        tokenizer: Arc<Tokenizer>,
        options: &Options,
        context_tokens: usize,
        threads: usize,
    ) -> Self {
        let max_sequences = options.sequences.max(1);
        let prefix_tokens = options.prefix_cache_tokens.unwrap_or(context_tokens);
        Self {
            kv: KvCache::new(model.config(), options.kv_type),
            prefix: PrefixCache::new(
                prefix_tokens,
                max_sequences * context_tokens.div_ceil(PAGE_TOKENS),
            ),
            scratch: Scratch::new(
                model.config(),
                CHUNK_TOKENS + max_sequences,
                max_sequences,
                context_tokens,
                threads,
            ),
            model,
            tokenizer,
            context_tokens,
            max_sequences,
            line: Line::default(),
            running: Vec::new(),
        }
    }

    /// Serves until the sending side is dropped, then ends what is running.
    pub(crate) fn run(mut self, jobs: &Receiver<Job>) {
        loop {
            if self.running.is_empty() && self.line.is_empty() {
                match jobs.recv() {
                    Ok(job) => self.line.join(job),
                    Err(_) => return,
                }
            }
            if self.take_in(jobs).is_break() {
                return;
            }
            if self.running.is_empty() {
                continue;
            }
            self.guarded_step();
        }
    }

    /// A pass whose panic, a defect of ours, does not take the other requests' engine with it.
    fn guarded_step(&mut self) {
        if catch_unwind(AssertUnwindSafe(|| self.step())).is_err() {
            self.fail_all(|| Error::Panicked);
            self.prefix.clear(&mut self.kv);
        }
    }

    /// Starts as many requests as there are places and lets the others wait, unless the engine ends.
    fn take_in(&mut self, jobs: &Receiver<Job>) -> ControlFlow<()> {
        loop {
            match jobs.try_recv() {
                Ok(job) => self.line.join(job),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    self.fail_all(|| Error::Closed);
                    self.line.close();
                    return ControlFlow::Break(());
                }
            }
        }
        while self.running.len() < self.max_sequences {
            let Some(job) = self.line.next() else { break };
            self.start(job);
        }
        self.line.tidy(Instant::now());
        ControlFlow::Continue(())
    }

    fn start(&mut self, job: Job) {
        let Job { prompt: Prompt { tokens: prompt, opening }, params, mut sink, mut ticket } = job;
        // Whoever left while waiting costs nothing more.
        if sink(Event::Prefilled { tokens: 0 }).is_break() {
            return;
        }
        ticket.start();
        let tokenizer = Arc::clone(&self.tokenizer);
        let room = self.context_tokens - prompt.len();
        self.running.push(Sequence {
            prompt_tokens: prompt.len(),
            max_tokens: prompt.len() + params.max_tokens.unwrap_or(room).min(room),
            tokens: prompt,
            cached: 0,
            reused: 0,
            pages: PageTable::default(),
            sampler: Sampler::new(params.sampling, params.logit_bias),
            detokenizer: match opening {
                Opening::Answer => Detokenizer::new(tokenizer),
                Opening::Continuation => Detokenizer::continuing(tokenizer),
            },
            stop: StopMatcher::new(params.stop),
            stop_text: None,
            ledger: params.logprobs.map(Ledger::new),
            sink,
            ticket: Some(ticket),
            started: Instant::now(),
            first_token: None,
        });
    }

    /// One forward pass over all sequences, then one token for each that is ready for it.
    fn step(&mut self) {
        self.reuse();
        let positions: Vec<Position> = self
            .running
            .iter()
            .map(|sequence| Position { known: sequence.tokens.len(), cached: sequence.cached })
            .collect();
        let parts = plan(&positions, CHUNK_TOKENS);
        for part in &parts {
            let sequence = &mut self.running[part.sequence];
            let positions = sequence.cached + part.tokens;
            self.prefix.make_room(sequence.pages.missing_pages(positions), &mut self.kv);
            self.kv.grow(&mut sequence.pages, positions);
        }
        let slots: Vec<Slot<'_>> =
            parts.iter().map(|part| self.running[part.sequence].slot(part)).collect();
        let logits = self.model.forward(&slots, &mut self.kv, &mut self.scratch);
        let mut rows = logits.chunks_exact_mut(self.model.config().vocabulary);
        let mut ended = Vec::new();
        for part in &parts {
            let row = if part.completes { rows.next() } else { None };
            let sequence = &mut self.running[part.sequence];
            let flow = sequence.advance(part, row, &self.tokenizer);
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
    }

    /// Gives the prompts that are not begun the pages that need not be computed for them.
    ///
    /// Before every pass: what is ahead of a prompt may be computing what it begins with.
    fn reuse(&mut self) {
        let is_begun = |sequence: &Sequence| sequence.cached > sequence.reused;
        for sequence in self.running.iter_mut().filter(|sequence| !is_begun(sequence)) {
            let tokens = self.prefix.reuse(&sequence.tokens, &mut sequence.pages, &mut self.kv);
            // What it was given stays its own, whatever has been evicted since.
            sequence.reused = sequence.reused.max(tokens);
            sequence.cached = sequence.reused;
        }
    }

    fn fail_all(&mut self, error: impl Fn() -> Error) {
        for mut sequence in self.running.drain(..) {
            sequence.ticket = None;
            // The sequence ends whatever its sink answers.
            let (ControlFlow::Continue(()) | ControlFlow::Break(())) =
                (sequence.sink)(Event::Failed(error()));
            self.kv.release(sequence.pages);
        }
    }
}

impl Sequence {
    fn slot(&self, part: &Part) -> Slot<'_> {
        Slot {
            tokens: &self.tokens[self.cached..self.cached + part.tokens],
            start: self.cached,
            pages: &self.pages,
            rows: if part.completes { Rows::Last } else { Rows::None },
        }
    }

    /// Takes in a computed part; `row` holds the logits when the next token is due.
    fn advance(
        &mut self,
        part: &Part,
        row: Option<&mut [f32]>,
        tokenizer: &Tokenizer,
    ) -> ControlFlow<()> {
        self.cached += part.tokens;
        if self.first_token.is_none() {
            (self.sink)(Event::Prefilled { tokens: self.cached })?;
        }
        let Some(row) = row else { return ControlFlow::Continue(()) };
        if self.tokens.len() >= self.max_tokens {
            return self.finish(FinishReason::Length);
        }
        if let Some(ledger) = &mut self.ledger {
            ledger.observe(row);
        }
        let Ok(token) = self.sampler.sample(row, &self.tokens) else {
            let error = Error::NotANumber { position: self.cached - 1 };
            self.ticket = None;
            (self.sink)(Event::Failed(error))?;
            return ControlFlow::Break(());
        };
        self.first_token.get_or_insert_with(Instant::now);
        self.tokens.push(token);
        if tokenizer.is_end_of_generation(token) {
            return self.finish(FinishReason::Stop);
        }
        let piece = self.detokenizer.push(token);
        if let Some(ledger) = self.ledger.as_mut().filter(|_| !tokenizer.is_control(token)) {
            ledger.record(token, &piece, self.detokenizer.is_inside_character(), tokenizer);
        }
        self.give(&piece)?;
        if self.tokens.len() >= self.max_tokens {
            return self.finish(FinishReason::Length);
        }
        ControlFlow::Continue(())
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
        self.ticket = None;
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
