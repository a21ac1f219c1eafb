//! The forward pass: tokens and positions in, logits or hidden states out.
//!
//! Reads top to bottom like the network does. It allocates nothing and knows no sampling, no
//! text and no queue.

use toko_gguf::Gguf;
use toko_kernels::isa::Tier;
use toko_kernels::matmul::{Input, matmul};
use toko_kernels::norm::rms_norm;
use toko_kernels::pool::Pool;
use toko_kernels::quantized::Quantized;
use toko_kernels::rope::Rope;
use toko_kernels::swiglu::{add_in_place, swiglu_in_place};

use crate::scratch::Place;
use crate::weights::{Layer, Matrix, Tensors, copied_bytes};
use crate::{Config, Error, KvCache, PageTable, Scratch};

/// A decoder ready to run.
pub struct Model {
    pub(crate) config: Config,
    pub(crate) tensors: Tensors,
    pub(crate) rope: Rope,
    pub(crate) tier: Tier,
    pub(crate) pool: Pool,
}

/// Which rows of logits or of hidden states a slot asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// None: the slot's prompt goes on in a later pass.
    None,
    /// The last token's.
    Last,
    /// Every token's.
    All,
}

impl Rows {
    /// Returns how many rows these are in a slot of so many tokens.
    pub fn count(self, tokens: usize) -> usize {
        match self {
            Self::None => 0,
            Self::Last => tokens.min(1),
            Self::All => tokens,
        }
    }
}

/// The part of one sequence that a pass computes.
#[derive(Debug, Clone, Copy)]
pub struct Slot<'a> {
    /// The tokens, in order.
    pub tokens: &'a [u32],
    /// Position of the first token; all earlier positions are in the cache.
    pub start: usize,
    /// Pages with room for `start + tokens.len()` positions.
    pub pages: &'a PageTable,
    /// The rows wanted.
    pub rows: Rows,
}

/// Which block's result goes back into the residual stream.
#[derive(Debug, Clone, Copy)]
enum Source {
    Attention,
    FeedForward,
}

impl Slot<'_> {
    fn wants(&self, offset: usize) -> bool {
        match self.rows {
            Rows::None => false,
            Rows::Last => offset + 1 == self.tokens.len(),
            Rows::All => true,
        }
    }
}

impl Model {
    /// Binds the weights of a file to the kernels of a tier.
    ///
    /// The tensors stay where the file is mapped; only norms and biases are copied.
    ///
    /// # Errors
    /// A family that is not built in, a hyper-parameter, tensor or tensor type that does not fit.
    pub fn bind(file: &Gguf, tier: Tier, threads: usize) -> Result<Self, Error> {
        let config = Config::from_gguf(file)?;
        let tensors = Tensors::bind(file, &config, tier)?;
        let rope = Rope::new(&config.rope);
        Ok(Self { config, tensors, rope, tier, pool: Pool::new(threads) })
    }

    /// Returns the bytes that [`Self::bind`] copies out of a file, which it need not be called for.
    pub fn copied_bytes(file: &Gguf) -> u64 {
        copied_bytes(file)
    }

    /// Returns the hyper-parameters.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Runs one pass over all slots and returns the logits asked for, `[rows, vocabulary]`, in
    /// the order of the slots and of their tokens.
    ///
    /// The pass's keys and values are added to `kv`.
    ///
    /// # Panics
    /// When the slots hold more tokens, rows or positions than `scratch` was made for, when a
    /// token is outside the vocabulary, or when a slot's pages are too few or shared where the
    /// pass writes.
    pub fn forward<'s>(
        &self,
        slots: &[Slot<'_>],
        kv: &mut KvCache,
        scratch: &'s mut Scratch,
    ) -> &'s mut [f32] {
        self.run_layers(slots, kv, scratch);
        self.logits(slots, scratch)
    }

    /// Runs one pass over all slots and returns the hidden states behind the last norm that are asked
    /// for, `[rows, hidden]`, in the order of the slots and of their tokens.
    ///
    /// The pass's keys and values are added to `kv`. There may be as many rows as tokens.
    ///
    /// # Panics
    /// As [`Self::forward`] does, but for the rows.
    pub fn hidden<'s>(
        &self,
        slots: &[Slot<'_>],
        kv: &mut KvCache,
        scratch: &'s mut Scratch,
    ) -> &'s [f32] {
        self.run_layers(slots, kv, scratch);
        let rows = self.final_norm(slots, scratch);
        &scratch.normed[..rows * self.config.hidden]
    }

    /// Leaves the residual stream of all tokens in `scratch`.
    fn run_layers(&self, slots: &[Slot<'_>], kv: &mut KvCache, scratch: &mut Scratch) {
        self.embed(slots, scratch);
        for (index, layer) in self.tensors.layers.iter().enumerate() {
            self.norm(&layer.attention_norm, scratch);
            self.attend_layer(index, slots, kv, scratch);
            self.add_product(&layer.output, Source::Attention, scratch);
            self.norm(&layer.feed_forward_norm, scratch);
            self.feed_forward(layer, scratch);
            self.add_product(&layer.down, Source::FeedForward, scratch);
        }
    }

    fn embed(&self, slots: &[Slot<'_>], scratch: &mut Scratch) {
        let (config, embedding) = (&self.config, self.tensors.embedding.weights());
        let tokens: usize = slots.iter().map(|slot| slot.tokens.len()).sum();
        assert!(
            tokens <= scratch.max_tokens,
            "{tokens} tokens in one pass of {}",
            scratch.max_tokens
        );
        scratch.places.clear();
        let residual = scratch.residual.chunks_exact_mut(config.hidden);
        let angles = scratch.angles.chunks_exact_mut(config.rope.rotary_dims);
        let places = slots.iter().enumerate().flat_map(|(index, slot)| {
            slot.tokens
                .iter()
                .zip(slot.start..)
                .map(move |(&token, position)| (token, Place { slot: index, position }))
        });
        for (((token, place), residual), angles) in places.zip(residual).zip(angles) {
            assert!(
                place.position < scratch.max_positions,
                "position {} of {}",
                place.position,
                scratch.max_positions
            );
            embedding.dequantize_row(token as usize, residual);
            self.rope.angles(u32::try_from(place.position).expect("contexts fit u32"), angles);
            scratch.places.push(place);
        }
    }

    fn norm(&self, weight: &[f32], scratch: &mut Scratch) {
        let length = scratch.places.len() * self.config.hidden;
        let (residual, normed) = (&scratch.residual[..length], &mut scratch.normed[..length]);
        rms_norm(self.tier, residual, weight, self.config.norm_epsilon, normed);
    }

    /// gate = silu(gate · normed) × (up · normed)
    fn feed_forward(&self, layer: &Layer, scratch: &mut Scratch) {
        let tokens = scratch.places.len();
        let length = tokens * self.config.feed_forward;
        let (gate, up) = (&mut scratch.gate[..length], &mut scratch.up[..length]);
        let normed = &scratch.normed[..tokens * self.config.hidden];
        let out = [&mut *gate, &mut *up];
        self.product([&layer.gate, &layer.up], normed, &mut scratch.quantized, out);
        swiglu_in_place(self.tier, gate, up);
    }

    /// residual += matrix · input
    fn add_product(&self, matrix: &Matrix, from: Source, scratch: &mut Scratch) {
        let tokens = scratch.places.len();
        let input = match from {
            Source::Attention => &scratch.mixed,
            Source::FeedForward => &scratch.gate,
        };
        let length = tokens * matrix.rows();
        let update = &mut scratch.update[..length];
        let input = &input[..tokens * matrix.cols()];
        self.product([matrix], input, &mut scratch.quantized, [&mut *update]);
        add_in_place(self.tier, &mut scratch.residual[..length], update);
    }

    /// Multiplies matrices of one width with the rows of `values` in one job.
    ///
    /// `values`: `[tokens, cols]`; `out[i]`: `[tokens, rows of matrix i]`.
    pub(crate) fn product<const N: usize>(
        &self,
        matrices: [&Matrix; N],
        values: &[f32],
        quantized: &mut Quantized,
        out: [&mut [f32]; N],
    ) {
        let cols = matrices[0].cols();
        if !matrices.iter().all(|matrix| matrix.is_float()) {
            quantized.quantize(&self.pool, self.tier, values, cols);
        }
        let input = Input { values, quantized, tokens: values.len() / cols, cols };
        matmul(&self.pool, matrices.map(Matrix::weights), &input, out);
    }

    /// Gathers the rows that are asked for, norms them, and returns how many they are.
    fn final_norm(&self, slots: &[Slot<'_>], scratch: &mut Scratch) -> usize {
        let config = &self.config;
        let mut rows = 0;
        let wanted =
            slots.iter().flat_map(|slot| (0..slot.tokens.len()).map(|offset| slot.wants(offset)));
        for (token, _) in wanted.enumerate().filter(|(_, wanted)| *wanted) {
            let from = token * config.hidden;
            scratch.residual.copy_within(from..from + config.hidden, rows * config.hidden);
            rows += 1;
        }
        scratch.places.truncate(rows);
        self.norm(&self.tensors.output_norm, scratch);
        rows
    }

    fn logits<'s>(&self, slots: &[Slot<'_>], scratch: &'s mut Scratch) -> &'s mut [f32] {
        let config = &self.config;
        let rows = self.final_norm(slots, scratch);
        assert!(
            rows <= scratch.max_rows,
            "{rows} rows of logits in one pass of {}",
            scratch.max_rows
        );
        let head = self.tensors.head.as_ref().unwrap_or(&self.tensors.embedding);
        let normed = &scratch.normed[..rows * config.hidden];
        let logits = &mut scratch.logits[..rows * config.vocabulary];
        self.product([head], normed, &mut scratch.quantized, [&mut *logits]);
        logits
    }
}
