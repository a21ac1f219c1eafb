//! Buffers of one forward pass, sized once.

use toko_kernels::quantized::Quantized;

use crate::{Config, Slot};

/// Everything that a forward pass writes besides the KV cache.
pub struct Scratch {
    /// Tokens that one pass can hold.
    pub(crate) max_tokens: usize,
    /// Rows of logits that one pass can hold.
    pub(crate) max_rows: usize,
    /// Positions that one sequence can have.
    pub(crate) max_positions: usize,
    /// The residual stream, `[tokens, hidden]`.
    pub(crate) residual: Vec<f32>,
    /// Normed input of a block, then what the block adds to the residual stream, `[tokens, hidden]`.
    pub(crate) normed: Vec<f32>,
    /// Queries, `[tokens, heads, head_dim]`; after the attention the gates, `[tokens, feed_forward]`.
    pub(crate) query: Vec<f32>,
    pub(crate) key: Vec<f32>,
    pub(crate) value: Vec<f32>,
    /// Attention output, `[tokens, heads, head_dim]`; after it what is gated, `[tokens, feed_forward]`.
    pub(crate) mixed: Vec<f32>,
    pub(crate) quantized: Quantized,
    /// Cosines and sines, `[tokens, rotary_dims]`.
    pub(crate) angles: Vec<f32>,
    /// Attention scores, one buffer a worker.
    pub(crate) scores: Vec<Vec<f32>>,
    /// `[rows, vocabulary]`.
    pub(crate) logits: Vec<f32>,
    /// Slot and position of each token of the pass.
    pub(crate) places: Vec<Place>,
}

/// Where one token of a pass belongs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) slot: usize,
    pub(crate) position: usize,
}

impl Scratch {
    /// Allocates buffers for passes of up to `max_tokens` tokens that ask for up to `max_rows`
    /// rows of logits, over sequences of up to `max_positions`, on `threads` workers.
    pub fn new(
        config: &Config,
        max_tokens: usize,
        max_rows: usize,
        max_positions: usize,
        threads: usize,
    ) -> Self {
        // Written, so that the memory is there before any pass needs it; as zeros the system would only promise it.
        let floats = |length: usize| vec![f32::NAN; max_tokens * length];
        Self {
            max_tokens,
            max_rows,
            max_positions,
            residual: floats(config.hidden),
            normed: floats(config.hidden),
            query: floats(shared_length(config)),
            key: floats(config.kv_length()),
            value: floats(config.kv_length()),
            mixed: floats(shared_length(config)),
            quantized: Quantized::new(max_tokens, widest(config)),
            angles: floats(config.rope.rotary_dims),
            scores: (0..threads).map(|_| vec![0.0; config.group() * max_positions]).collect(),
            logits: vec![0.0; max_rows * config.vocabulary],
            places: Vec::with_capacity(max_tokens),
        }
    }

    /// Returns the bytes of the buffers of so many tokens in one pass; those that no memory has are `u64::MAX`.
    ///
    /// Logits and scores are not among them.
    pub fn token_bytes(config: &Config, max_tokens: u64) -> u64 {
        let floats = 2 * config.hidden
            + 2 * shared_length(config)
            + 2 * config.kv_length()
            + config.rope.rotary_dims;
        let each = floats * size_of::<f32>() + size_of::<Place>();
        let quantized = Quantized::bytes(max_tokens, widest(config) as u64);
        max_tokens.saturating_mul(each as u64).saturating_add(quantized)
    }

    /// Returns the bytes of one row of logits.
    pub fn row_bytes(config: &Config) -> u64 {
        (config.vocabulary * size_of::<f32>()) as u64
    }

    /// Returns the bytes of the scores of one worker over sequences of so many positions; those that no memory has
    /// are `u64::MAX`.
    pub fn score_bytes(config: &Config, max_positions: u64) -> u64 {
        max_positions.saturating_mul((config.group() * size_of::<f32>()) as u64)
    }

    /// Takes in what a pass is to compute.
    ///
    /// # Panics
    /// If there are more tokens or positions than there is room for.
    pub(crate) fn place(&mut self, slots: &[Slot<'_>]) {
        let tokens: usize = slots.iter().map(|slot| slot.tokens.len()).sum();
        assert!(tokens <= self.max_tokens, "{tokens} tokens in one pass of {}", self.max_tokens);
        self.places.clear();
        for (slot, &Slot { tokens, start, .. }) in slots.iter().enumerate() {
            let end = start + tokens.len();
            assert!(end <= self.max_positions, "{end} positions of {}", self.max_positions);
            self.places.extend((start..end).map(|position| Place { slot, position }));
        }
    }

    /// Makes room for passes that ask for up to `max_rows` rows of logits; there is never less than before.
    pub fn reserve_rows(&mut self, config: &Config, max_rows: usize) {
        self.max_rows = self.max_rows.max(max_rows);
        self.logits.resize(self.max_rows * config.vocabulary, 0.0);
    }
}

/// The length of a row that the attention and the feed-forward block use in turn.
fn shared_length(config: &Config) -> usize {
    config.query_length().max(config.feed_forward)
}

/// The longest row that is multiplied with a matrix.
fn widest(config: &Config) -> usize {
    config.hidden.max(config.feed_forward).max(config.query_length())
}
