//! Buffers of one forward pass, sized once.

use toko_kernels::attention::{PART, state_length};
use toko_kernels::quantized::Quantized;

use crate::{Config, Slot};

/// Parts that are computed at once, at least: enough for several sequences and threads.
const PARTS: usize = 32;

/// Query heads that see the same keys and values at once.
const TILE_ROWS: usize = 48;

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
    /// What some queries have of the positions seen so far, one buffer a worker.
    pub(crate) states: Vec<Vec<f32>>,
    /// What the heads of one token have of each part of the positions, some parts at a time.
    pub(crate) parts: Vec<f32>,
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
            states: vec![vec![f32::NAN; states_length(config)]; threads],
            parts: vec![f32::NAN; (PARTS + max_positions.div_ceil(PART)) * part_length(config)],
            logits: vec![0.0; max_rows * config.vocabulary],
            places: Vec::with_capacity(max_tokens),
        }
    }

    /// Returns the bytes of the buffers of so many tokens in one pass; those that no memory has are `u64::MAX`.
    ///
    /// Logits and what attention takes are not among them.
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

    /// Returns the bytes that attention takes on so many threads before there are any positions.
    pub fn attention_bytes(config: &Config, threads: u64) -> u64 {
        let each = (states_length(config) * size_of::<f32>()) as u64;
        threads.saturating_mul(each).saturating_add(Self::part_bytes(config) * PARTS as u64)
    }

    /// Returns the bytes that attention takes for each [`PART`] positions of the longest sequence, begun ones
    /// included.
    pub fn part_bytes(config: &Config) -> u64 {
        (part_length(config) * size_of::<f32>()) as u64
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

/// The numbers of one token's heads in one part of the positions.
pub(crate) fn part_length(config: &Config) -> usize {
    config.heads * state_length(config.head_dim)
}

/// The most tokens whose heads see the same keys and values at once.
pub(crate) fn tile_tokens(config: &Config) -> usize {
    (TILE_ROWS / config.group()).max(1)
}

/// Twice the numbers of a tile's heads over one KV head: of a part and of all before.
fn states_length(config: &Config) -> usize {
    2 * tile_tokens(config) * config.group() * state_length(config.head_dim)
}

/// The longest row that is multiplied with a matrix.
fn widest(config: &Config) -> usize {
    config.hidden.max(config.feed_forward).max(config.query_length())
}
