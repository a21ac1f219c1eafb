//! The forward pass: tokens and positions in, logits or hidden states out.
//!
//! Reads top to bottom like the network does. It allocates nothing and knows no sampling, no
//! text and no queue.

use toko_gguf::Gguf;
use toko_kernels::isa::Tier;
use toko_kernels::matmul::{Input, matmul};
use toko_kernels::norm::{add_rms_norm, rms_norm};
use toko_kernels::pool::Pool;
use toko_kernels::quantized::Quantized;
use toko_kernels::rope::Rope;
use toko_kernels::swiglu::{add_in_place, swiglu_in_place};

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
        let layers = &self.tensors.layers;
        for (index, layer) in layers.iter().enumerate() {
            self.attend_layer(index, slots, kv, scratch);
            self.output(layer, scratch);
            self.add_and_norm(Some(&layer.feed_forward_norm), scratch);
            self.feed_forward(layer, scratch);
            // The last norm is for the rows only that are asked for.
            let next = layers.get(index + 1).map(|next| next.attention_norm.as_slice());
            self.add_and_norm(next, scratch);
        }
    }

    /// Fills the residual stream with the tokens' embeddings, norms them for the first layer, and
    /// computes the angles of their positions.
    fn embed(&self, slots: &[Slot<'_>], scratch: &mut Scratch) {
        let (config, embedding) = (&self.config, self.tensors.embedding.weights());
        scratch.place(slots);
        let tokens = scratch.places.len();
        let (hidden, rotary) = (config.hidden, config.rope.rotary_dims);
        let places = &scratch.places;
        let norm = self.tensors.layers.first().map(|layer| layer.attention_norm.as_slice());
        let data = [
            (&mut scratch.residual[..tokens * hidden], hidden),
            (&mut scratch.normed[..tokens * hidden], hidden),
            (&mut scratch.angles[..tokens * rotary], rotary),
        ];
        self.pool.for_each_rows(data, |rows, [residual, normed, angles]| {
            let residuals = residual.chunks_exact_mut(hidden);
            let angles = angles.chunks_exact_mut(rotary);
            for ((place, residual), angles) in places[rows].iter().zip(residuals).zip(angles) {
                let slot = &slots[place.slot];
                let token = slot.tokens[place.position - slot.start];
                embedding.dequantize_row(token as usize, residual);
                let position = u32::try_from(place.position).expect("contexts fit u32");
                self.rope.angles(position, angles);
            }
            if let Some(norm) = norm {
                rms_norm(self.tier, residual, norm, config.norm_epsilon, normed);
            }
        });
    }

    /// update = output matrix · attention
    fn output(&self, layer: &Layer, scratch: &mut Scratch) {
        let tokens = scratch.places.len();
        let update = &mut scratch.normed[..tokens * layer.output.rows()];
        let mixed = &scratch.mixed[..tokens * layer.output.cols()];
        self.product([&layer.output], mixed, &mut scratch.quantized, [update]);
    }

    /// residual += update, and what comes after gets it normed.
    fn add_and_norm(&self, weight: Option<&[f32]>, scratch: &mut Scratch) {
        let hidden = self.config.hidden;
        let length = scratch.places.len() * hidden;
        let data =
            [(&mut scratch.residual[..length], hidden), (&mut scratch.normed[..length], hidden)];
        self.pool.for_each_rows(data, |_, [residual, update]| match weight {
            Some(weight) => {
                let epsilon = self.config.norm_epsilon;
                add_rms_norm(self.tier, residual, update, weight, epsilon);
            }
            None => add_in_place(self.tier, residual, update),
        });
    }

    /// update = down matrix · (silu(gate · normed) × (up · normed))
    fn feed_forward(&self, layer: &Layer, scratch: &mut Scratch) {
        let tokens = scratch.places.len();
        let length = tokens * self.config.feed_forward;
        let (gate, up) = (&mut scratch.query[..length], &mut scratch.mixed[..length]);
        let normed = &mut scratch.normed[..tokens * self.config.hidden];
        let out = [&mut *gate, &mut *up];
        self.product([&layer.gate, &layer.up], normed, &mut scratch.quantized, out);
        let width = self.config.feed_forward;
        self.pool.for_each_rows([(&mut *gate, width), (up, width)], |_, [gate, up]| {
            swiglu_in_place(self.tier, gate, up);
        });
        self.product([&layer.down], gate, &mut scratch.quantized, [normed]);
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
        let length = rows * config.hidden;
        let residual = &mut scratch.residual[..length];
        let data = [(residual, config.hidden), (&mut scratch.normed[..length], config.hidden)];
        self.pool.for_each_rows(data, |_, [residual, normed]| {
            let weight = &self.tensors.output_norm;
            rms_norm(self.tier, residual, weight, config.norm_epsilon, normed);
        });
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
