//! Texts to vectors: a request's texts run through the layers in passes of their own and none is continued.
//!
//! Invariant: a vector depends on its text alone. The request has one replica and never more pages than a whole context.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};
use std::vec::IntoIter;

use toko_model::{KvCache, Model, PAGE_TOKENS, PageTable, Pooling, Rows, Scratch, Slot};

use crate::pool::Lease;
use crate::prefix::PrefixCache;
use crate::replica::Replica;
use crate::worker::Sink;
use crate::{Error, Event, FinishReason, Summary};

/// A request that is being computed.
pub(crate) struct Embedding {
    /// The texts that are not begun.
    texts: IntoIter<Vec<u32>>,
    /// Those that are, in order; only the last can be in the middle.
    begun: VecDeque<Text>,
    /// Vectors that were told.
    told: usize,
    prompt_tokens: usize,
    computed: usize,
    /// Its replica, given back before its client learns of the end; `None` from then on.
    lease: Option<Lease<Replica>>,
    sink: Sink,
    started: Instant,
}

struct Text {
    tokens: Vec<u32>,
    /// Tokens whose hidden states are in the pool.
    done: usize,
    pages: PageTable,
    pool: Pool,
}

/// What a pass works with.
pub(crate) struct Workshop<'a> {
    pub(crate) model: &'a Model,
    pub(crate) kv: &'a mut KvCache,
    pub(crate) prefix: &'a mut PrefixCache,
    pub(crate) scratch: &'a mut Scratch,
    /// Most tokens of a pass.
    pub(crate) chunk_tokens: usize,
    /// Most pages of a request.
    pub(crate) pages: usize,
}

/// Refuses texts that cannot be made into vectors.
pub(crate) fn check(
    texts: &[Vec<u32>],
    pooling: Pooling,
    context_tokens: usize,
    vocabulary_tokens: usize,
) -> Result<(), Error> {
    if let Pooling::Unknown { kind } = pooling {
        return Err(Error::Pooling { kind });
    }
    for (index, text) in texts.iter().enumerate() {
        let error = match text.len() {
            0 => Error::EmptyPrompt,
            prompt_tokens if prompt_tokens > context_tokens => {
                Error::ContextExceeded { prompt_tokens, context_tokens }
            }
            _ => continue,
        };
        return Err(Error::Text { index, source: Box::new(error) });
    }
    match texts.iter().flatten().find(|&&token| token as usize >= vocabulary_tokens) {
        Some(&token) => Err(Error::UnknownToken { token, vocabulary_tokens }),
        None => Ok(()),
    }
}

impl Embedding {
    pub(crate) fn new(texts: Vec<Vec<u32>>, sink: Sink, lease: Lease<Replica>) -> Self {
        Self {
            prompt_tokens: texts.iter().map(Vec::len).sum(),
            texts: texts.into_iter(),
            begun: VecDeque::new(),
            told: 0,
            computed: 0,
            sink,
            lease: Some(lease),
            started: Instant::now(),
        }
    }

    /// Computes one pass and tells the vectors that it completes; breaks at the end of the request.
    pub(crate) fn step(&mut self, shop: &mut Workshop<'_>) -> ControlFlow<()> {
        self.begin(shop);
        self.compute(shop);
        (self.sink)(Event::Prefilled { tokens: self.computed })?;
        while let Some(text) = self.begun.pop_front_if(|text| text.done == text.tokens.len()) {
            shop.kv.release(text.pages);
            let Some(vector) = text.pool.finish() else {
                return self.fail(Error::NotANumber { position: text.tokens.len() - 1 });
            };
            (self.sink)(Event::Embedded { index: self.told, vector })?;
            self.told += 1;
        }
        if self.begun.is_empty() && self.texts.as_slice().is_empty() {
            return self.finish();
        }
        ControlFlow::Continue(())
    }

    /// Begins as many texts as a pass and the request's pages have room for, at least one.
    fn begin(&mut self, shop: &Workshop<'_>) {
        loop {
            let pending: usize = self.begun.iter().map(|text| text.tokens.len() - text.done).sum();
            let Some(next) = self.texts.as_slice().first() else { return };
            let needed = |tokens: &[u32]| tokens.len().div_ceil(PAGE_TOKENS);
            let pages: usize = self.begun.iter().map(|text| needed(&text.tokens)).sum();
            let is_full = pending >= shop.chunk_tokens || pages + needed(next) > shop.pages;
            if is_full && !self.begun.is_empty() {
                return;
            }
            let tokens = self.texts.next().expect("there is a next one");
            let pool = Pool::new(shop.model.config().pooling, shop.model.config().hidden);
            self.begun.push_back(Text { tokens, done: 0, pages: PageTable::default(), pool });
        }
    }

    fn compute(&mut self, shop: &mut Workshop<'_>) {
        let mut left = shop.chunk_tokens;
        let mut parts = Vec::with_capacity(self.begun.len());
        for text in &mut self.begun {
            let tokens = (text.tokens.len() - text.done).min(left);
            left -= tokens;
            parts.push(tokens);
            let positions = text.done + tokens;
            shop.prefix.make_room(text.pages.missing_pages(positions), shop.kv);
            shop.kv.grow(&mut text.pages, positions);
        }
        let slots: Vec<Slot<'_>> = self
            .begun
            .iter()
            .zip(&parts)
            .map(|(text, &tokens)| Slot {
                tokens: &text.tokens[text.done..text.done + tokens],
                start: text.done,
                pages: &text.pages,
                rows: Rows::All,
            })
            .collect();
        let states = shop.model.hidden(&slots, shop.kv, shop.scratch);
        let mut rows = states.chunks_exact(shop.model.config().hidden);
        for (text, &tokens) in self.begun.iter_mut().zip(&parts) {
            for row in rows.by_ref().take(tokens) {
                text.pool.add(row);
            }
            text.done += tokens;
        }
        let tokens = parts.iter().sum();
        self.computed += tokens;
        if let Some(lease) = &self.lease {
            lease.metrics.add_prompt(tokens, 0);
        }
    }

    fn finish(&mut self) -> ControlFlow<()> {
        self.lease = None;
        (self.sink)(Event::Finished(Summary {
            reason: FinishReason::Stop,
            stop_text: None,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: 0,
            completion_tokens: 0,
            prefill: self.started.elapsed(),
            decode: Duration::ZERO,
        }))?;
        ControlFlow::Break(())
    }

    /// Ends the request with an error.
    pub(crate) fn fail(&mut self, error: Error) -> ControlFlow<()> {
        self.lease = None;
        (self.sink)(Event::Failed(error))?;
        ControlFlow::Break(())
    }

    /// Gives back what a request holds that is not complete.
    pub(crate) fn release(self, kv: &mut KvCache) {
        for text in self.begun {
            kv.release(text.pages);
        }
    }
}

/// The hidden states of one text on their way to one vector.
struct Pool {
    pooling: Pooling,
    rows: usize,
    /// Summed in order of position, so that how a text was cut into passes is not in the result.
    sum: Vec<f64>,
}

impl Pool {
    fn new(pooling: Pooling, length: usize) -> Self {
        Self { pooling, rows: 0, sum: vec![0.0; length] }
    }

    fn add(&mut self, row: &[f32]) {
        let (is_wanted, begins) = match self.pooling {
            Pooling::Mean => (true, false),
            Pooling::First => (self.rows == 0, true),
            Pooling::Last | Pooling::Unknown { .. } => (true, true),
        };
        self.rows += 1;
        if !is_wanted {
            return;
        }
        if begins {
            self.sum.fill(0.0);
        }
        for (sum, value) in self.sum.iter_mut().zip(row) {
            *sum += f64::from(*value);
        }
    }

    /// Returns the vector with length 1; a mean and a sum have the same direction. `None` when it is no number.
    fn finish(self) -> Option<Vec<f32>> {
        let length = self.sum.iter().map(|value| value * value).sum::<f64>().sqrt();
        if !length.is_finite() {
            return None;
        }
        // A vector of zeros has no direction and stays what it is.
        let scale = if length > 0.0 { length.recip() } else { 0.0 };
        #[expect(
            clippy::cast_possible_truncation,
            reason = "rounds to the precision of the states"
        )]
        let scaled = self.sum.iter().map(|value| (value * scale) as f32).collect();
        Some(scaled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pooled(pooling: Pooling, rows: &[[f32; 2]]) -> Option<Vec<f32>> {
        let mut pool = Pool::new(pooling, 2);
        for row in rows {
            pool.add(row);
        }
        pool.finish()
    }

    #[test]
    fn each_pooling_takes_its_rows_and_the_result_has_length_one() {
        let rows = [[0.0, 2.0], [9.0, 9.0], [-3.0, 0.0]];
        assert_eq!(pooled(Pooling::First, &rows), Some(vec![0.0, 1.0]));
        assert_eq!(pooled(Pooling::Last, &rows), Some(vec![-1.0, 0.0]));
        assert_eq!(pooled(Pooling::Mean, &[[3.0, 1.0], [0.0, 3.0]]), Some(vec![0.6, 0.8]));
        assert_eq!(pooled(Pooling::Mean, &[[0.0, 0.0]]), Some(vec![0.0, 0.0]));
    }

    #[test]
    fn a_state_that_is_no_number_gives_no_vector() {
        assert_eq!(pooled(Pooling::Mean, &[[f32::NAN, 1.0], [0.0, 1.0]]), None);
        assert_eq!(pooled(Pooling::Last, &[[1.0, f32::INFINITY]]), None);
    }
}
