//! A model's forward passes with nothing around them, for whoever measures: no scheduler, no sampler, no text.
//!
//! Invariant: admitted, bound and cut into parts as an engine does it, so what is measured is what requests get. Has no
//! clock.

use toko_admission::handles::Resident;
use toko_gguf::Gguf;
use toko_model::{KvCache, Model, PAGE_TOKENS, PageTable, Rows, Scratch, Slot};

use crate::admit::{self, Applicant, Measure, Plan};
use crate::load::{self, ModelInfo};
use crate::pace::CHUNK_TOKENS;
use crate::{Error, Options};

/// A loaded model and as many sequences as it has replicas. The tokens are drawn; the same come after each load.
pub struct Passes {
    model: Model,
    info: ModelInfo,
    kv: KvCache,
    sequences: Vec<PageTable>,
    scratch: Scratch,
    random: fastrand::Rng,
    /// Bytes of the weights that a token is computed with.
    weight_bytes: u64,
    position_bytes: u64,
    // Given back after all of the above.
    _resident: Resident,
    _measure: Option<Measure>,
}

impl Passes {
    /// Loads a model if there is room for it.
    ///
    /// # Errors
    /// As [`crate::Engine::load`], but for what concerns text.
    pub fn load(file: &Gguf, options: &Options, applicant: &Applicant<'_>) -> Result<Self, Error> {
        // Without a tokenizer it takes less than an engine, which later estimates of engines must not learn from.
        let plan = Plan::new(file, options, applicant.model)?.of("toko passes");
        let (options, decision, loading, measure) = plan.admit(options, applicant)?;
        let (model, info) = load::bind(file, &options)?;
        let config = model.config();
        let scratch = Scratch::new(
            config,
            CHUNK_TOKENS + info.replicas,
            info.replicas,
            info.context_tokens,
            info.threads,
        );
        let page_bytes = options.kv_type.page_bytes(config).unwrap_or(u64::MAX);
        Ok(Self {
            kv: KvCache::new(config, options.kv_type),
            sequences: (0..info.replicas).map(|_| PageTable::default()).collect(),
            scratch,
            random: fastrand::Rng::with_seed(options.seed),
            weight_bytes: weight_bytes(file),
            position_bytes: page_bytes / PAGE_TOKENS as u64,
            _resident: admit::publish(loading, &decision),
            _measure: measure,
            model,
            info,
        })
    }

    /// Returns what was loaded.
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// Computes so many prompt tokens of one sequence from a position on, in parts as an engine does it that nobody else
    /// waits for. What comes before must have been computed.
    ///
    /// # Panics
    /// Beyond the sequences and the context.
    pub fn prefill(&mut self, sequence: usize, start: usize, tokens: usize) {
        let tokens = self.draw(tokens);
        let end = start + tokens.len();
        self.kv.grow(&mut self.sequences[sequence], end);
        for (part, start) in tokens.chunks(CHUNK_TOKENS).zip((start..).step_by(CHUNK_TOKENS)) {
            let rows = if start + part.len() == end { Rows::Last } else { Rows::None };
            let slot = Slot { tokens: part, start, pages: &self.sequences[sequence], rows };
            self.model.forward(&[slot], &mut self.kv, &mut self.scratch);
        }
    }

    /// Computes one token of every sequence, all in each of `passes` passes, from a position on. What comes before must
    /// have been computed.
    ///
    /// # Panics
    /// Beyond the context.
    pub fn decode(&mut self, start: usize, passes: usize) {
        for position in start..start + passes {
            let tokens = self.draw(self.sequences.len());
            for pages in &mut self.sequences {
                self.kv.grow(pages, position + 1);
            }
            let slots: Vec<Slot<'_>> = tokens
                .chunks(1)
                .zip(&self.sequences)
                .map(|(tokens, pages)| Slot { tokens, start: position, pages, rows: Rows::Last })
                .collect();
            self.model.forward(&slots, &mut self.kv, &mut self.scratch);
        }
    }

    /// Returns the bytes that a pass of [`Self::decode`] reads: the weights once, and the keys and values of so many
    /// positions of every sequence.
    pub fn decode_bytes(&self, positions: u64) -> u64 {
        let kv = self.position_bytes.saturating_mul(positions);
        self.weight_bytes.saturating_add(kv.saturating_mul(self.sequences.len() as u64))
    }

    fn draw(&mut self, tokens: usize) -> Vec<u32> {
        let vocabulary = u32::try_from(self.model.config().vocabulary).expect("tokens fit u32");
        (0..tokens).map(|_| self.random.u32(..vocabulary)).collect()
    }
}

/// Of an embedding beside an output matrix a token reads one row, which is next to nothing.
fn weight_bytes(file: &Gguf) -> u64 {
    let has_output = file.tensor("output.weight").is_some();
    let is_read = |name: &str| !(has_output && name == "token_embd.weight");
    file.tensors().iter().filter(|tensor| is_read(&tensor.name)).map(|tensor| tensor.bytes).sum()
}
