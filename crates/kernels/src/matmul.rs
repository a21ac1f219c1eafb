//! Products of weight matrices with rows of activations, spread over a pool.
//!
//! Invariant: an output's bits depend on its row of weights and its row of activations only, never
//! on the split over workers or on how many tokens share the call. Knows no model.

use std::ops::Range;

use crate::formats;
use crate::kernel::{BLOCK_TOKENS, Block, FEW_TOKENS, Kernel, Out};
use crate::pool::{Columns, Pool};
use crate::quantized::Quantized;

/// Rows that go to one worker together: with few tokens few, that all workers get as many; with many
/// tokens as many as a tier multiplies at once.
fn granule(tokens: usize) -> usize {
    if tokens <= FEW_TOKENS { 4 } else { 32 }
}

/// A matrix of weights as it lies in a file: its bytes, their format and its shape.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    kernel: Kernel,
    data: &'a [u8],
    rows: usize,
    cols: usize,
    row_bytes: usize,
}

impl<'a> Weights<'a> {
    /// Takes `data` as `rows` rows of `cols` weights in the kernel's format.
    ///
    /// `None` when `cols` is zero or no whole number of blocks, or when `data` has not exactly the
    /// bytes of the rows.
    pub fn new(kernel: Kernel, data: &'a [u8], rows: usize, cols: usize) -> Option<Self> {
        let row_bytes = kernel.format().row_bytes(cols)?;
        let fits = cols > 0 && rows.checked_mul(row_bytes)? == data.len();
        fits.then_some(Self { kernel, data, rows, cols, row_bytes })
    }

    /// Returns the number of rows, which is the number of outputs per token.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the length of a row, which is the number of inputs per token.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Writes the weights of one row to `out` as floats.
    ///
    /// # Panics
    /// If there is no such row or `out` is not `cols` long.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols, "a row of cols weights");
        let bytes = &self.data[row * self.row_bytes..][..self.row_bytes];
        formats::dequantize(self.kernel.format(), bytes, out);
    }

    fn multiply(&self, rows: Range<usize>, input: &Input<'_>, columns: &mut Columns<'_>) {
        let groups = if self.kernel.is_float() { &[] } else { input.quantized.groups() };
        let token_groups = groups.len() / input.tokens;
        for first_token in (0..input.tokens).step_by(BLOCK_TOKENS) {
            let tokens = first_token..input.tokens.min(first_token + BLOCK_TOKENS);
            let block = Block {
                weights: &self.data[rows.start * self.row_bytes..rows.end * self.row_bytes],
                row_bytes: self.row_bytes,
                rows: rows.len(),
                tokens: tokens.len(),
                groups: &groups[tokens.start * token_groups..tokens.end * token_groups],
                token_groups,
                planes: input.quantized.planes(),
                token_planes: input.quantized.planes().len() / input.tokens,
                values: &input.values[tokens.start * self.cols..tokens.end * self.cols],
            };
            self.kernel.block(&block, &mut Out { columns: &mut *columns, first_token });
        }
    }
}

/// The activations of a product: as floats, and quantized if any of the weights are.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// `[tokens, cols]`.
    pub values: &'a [f32],
    /// The same values quantized; not looked at when all weights are floats.
    pub quantized: &'a Quantized,
    /// Number of rows of activations.
    pub tokens: usize,
    /// Length of a row of activations.
    pub cols: usize,
}

/// Writes the product of each matrix with every token of `input` to the `out` of the same place.
///
/// `out[i]`: `[tokens, rows of weights[i]]`. All matrices are one job for the pool, so fused
/// projections cost one start. Allocates nothing.
///
/// # Panics
/// If a shape does not fit another, or the quantized activations have another shape than the values
/// while some weights need them.
pub fn matmul<const N: usize>(
    pool: &Pool,
    weights: [Weights<'_>; N],
    input: &Input<'_>,
    out: [&mut [f32]; N],
) {
    if input.tokens == 0 {
        return;
    }
    assert_eq!(input.values.len(), input.tokens * input.cols, "values are [tokens, cols]");
    for (weights, out) in weights.iter().zip(&out) {
        assert_eq!(weights.cols, input.cols, "weights and activations have rows of one length");
        assert_eq!(out.len(), input.tokens * weights.rows, "out is [tokens, rows]");
        let shape = (input.quantized.tokens(), input.quantized.cols());
        let quantized = weights.kernel.is_float() || shape == (input.tokens, input.cols);
        assert!(quantized, "the quantized activations are those of the values");
    }
    let mut widths = weights.iter().map(|weights| weights.rows);
    let outs = out.map(|out| (out, widths.next().expect("as many matrices as outs")));
    pool.for_each_columns(outs, granule(input.tokens), |which, rows, out| {
        weights[which].multiply(rows, input, out);
    });
}
