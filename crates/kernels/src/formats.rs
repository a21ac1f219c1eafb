//! The block formats: what the bytes of a row of weights mean, and the order in which they are
//! multiplied with activations.
//!
//! Invariant: [`Layout::decode`] is the truth about a format, and [`reference`] is the truth about
//! the order of operations; a tier may unpack in any way that yields the same integers and does the
//! same float operations in the same order. No operation is contracted with another.
//!
//! A row is read in *steps* of 128 weights (256 where a block has 256), so that a step covers one or
//! two groups of activations; a row that ends inside a step is filled up with zero bytes, which add
//! +0 to sums that are never −0, hence nothing. A step decodes to 16-bit codes, and per half unit
//! of 16 weights a scale and a minimum: weight = scale · code − minimum. The weights of a row that
//! share a scale and lie in one group of activations are a *chunk* of 16 to 128. With chunk number
//! c of the row:
//!
//! ```text
//! sum        = Σ code[e] · x[e] over the chunk                 exact in i32, rounded once to f32
//! acc[c % 4] = fma(scale · x_scale, sum, acc[c % 4])
//! acc[c % 4] = fma(−min, x_sum · x_scale, acc[c % 4])          in formats with minima
//! ```
//!
//! The product is `(acc[0] + acc[2]) + (acc[1] + acc[3])`. No sum exceeds 2²⁸ in size (at most
//! 32 · 255 · 32,512), nor does one of unsigned codes. Four accumulators suit a vector of four chunks
//! of four rows as well as matrix tiles that visit the chunks by turns.

pub(crate) mod float;
pub(crate) mod reference;

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::spread;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;

mod k_scales;
mod q1_0;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod ternary_pairs;
mod tq1_0;
mod tq2_0;

use half::f16;

use crate::format::{Format, Quantizer};

/// Weights that share an integer unit: one 512-bit vector of 16-bit codes.
const UNIT: usize = 32;

/// Weights that share a scale at the least.
const HALF: usize = 16;

/// The most weights a step has.
const STEP_MAX: usize = 256;

/// What a format's bytes mean.
trait Layout: 'static {
    const FORMAT: Format;
    /// Weights decoded at once: a block, or as many as make 128.
    const STEP: usize =
        if Self::FORMAT.block_elements() < 128 { 128 } else { Self::FORMAT.block_elements() };
    /// Weights whose integer products are summed before they are scaled: 16, 32, 64 or 128.
    const CHUNK: usize = UNIT;
    /// Whether weights have a minimum.
    const MINS: bool = false;
    /// The bytes of a step.
    type Step: StepBytes;

    /// Decodes a step: `STEP` codes, and for each 16 of them a scale and, with `MINS`, a minimum.
    fn decode(step: &Self::Step, out: &mut Decoded);
}

/// A decoded step; in one of 128 weights the upper halves have no meaning.
struct Decoded {
    codes: [i16; STEP_MAX],
    scales: [f32; STEP_MAX / HALF],
    mins: [f32; STEP_MAX / HALF],
}

impl Decoded {
    const ZERO: Self =
        Self { codes: [0; STEP_MAX], scales: [0.0; STEP_MAX / HALF], mins: [0.0; STEP_MAX / HALF] };
}

/// An array of bytes into which a row divides.
trait StepBytes: Copy + AsRef<[u8]> {
    const LEN: usize;

    /// Returns the whole steps of a row and the rest.
    fn split(row: &[u8]) -> (&[Self], &[u8]);

    /// Returns the rest of a row with zeros behind it.
    fn padded(rest: &[u8]) -> Self;
}

impl<const N: usize> StepBytes for [u8; N] {
    const LEN: usize = N;

    fn split(row: &[u8]) -> (&[Self], &[u8]) {
        row.as_chunks()
    }

    fn padded(rest: &[u8]) -> Self {
        let mut step = [0; N];
        step[..rest.len()].copy_from_slice(rest);
        step
    }
}

/// Evaluates an expression with the layout type of a quantized format, or the element type of a
/// float format.
macro_rules! dispatch {
    ($format:expr, $layout:ident => $quantized:expr, $element:ident => $float:expr) => {
        dispatch!(@match $format, $layout, $quantized, $element, $float;
            F32: f32, F16: half::f16, Bf16: half::bf16;
            Q1_0: q1_0::Q1_0, Q2_0: ternary_pairs::Q2_0, Q2_0G128: ternary_pairs::Q2_0G128,
            Tq2_0G128: ternary_pairs::Tq2_0G128, Tq1_0: tq1_0::Tq1_0, Tq2_0: tq2_0::Tq2_0,
            Q4_0: q4_0::Q4_0, Q4_1: q4_1::Q4_1, Q5_0: q5_0::Q5_0, Q5_1: q5_1::Q5_1,
            Q8_0: q8_0::Q8_0, Q2K: q2_k::Q2K, Q3K: q3_k::Q3K, Q4K: q4_k::Q4K, Q5K: q5_k::Q5K,
            Q6K: q6_k::Q6K)
    };
    (@match $format:expr, $layout:ident, $quantized:expr, $element:ident, $float:expr;
        $($f:ident: $ft:ty),*; $($q:ident: $qt:ty),*) => {
        match $format {
            $(crate::format::Format::$f => { type $element = $ft; $float })*
            $(crate::format::Format::$q => { use crate::formats::*; type $layout = $qt; $quantized })*
        }
    };
}
use dispatch;

/// Writes the weights of a row as floats; both are whole blocks of one number.
pub(crate) fn dequantize(format: Format, row: &[u8], out: &mut [f32]) {
    dispatch!(format, L => reference::dequantize::<L>(row, out), E => float::dequantize::<E>(row, out));
}

/// Returns the function that stores weights in a format, or `None` if there is none.
pub(crate) fn quantizer(format: Format) -> Option<Quantizer> {
    match format {
        Format::F32 => Some(float::quantize::<f32>),
        Format::F16 => Some(float::quantize::<f16>),
        Format::Bf16 => Some(float::quantize::<half::bf16>),
        Format::Q1_0 => Some(q1_0::quantize),
        Format::Q2_0 => Some(ternary_pairs::quantize_q2_0),
        Format::Q2_0G128 => Some(ternary_pairs::quantize_q2_0_g128),
        Format::Tq2_0G128 => Some(ternary_pairs::quantize_tq2_0_g128),
        Format::Tq1_0 => Some(tq1_0::quantize),
        Format::Tq2_0 => Some(tq2_0::quantize),
        Format::Q4_0 => Some(q4_0::quantize),
        Format::Q4_1 => Some(q4_1::quantize),
        Format::Q5_0 => Some(q5_0::quantize),
        Format::Q5_1 => Some(q5_1::quantize),
        Format::Q8_0 => Some(q8_0::quantize),
        Format::Q2K | Format::Q3K | Format::Q4K | Format::Q5K | Format::Q6K => None,
    }
}

/// Calls `block` for each block of `WEIGHTS` weights and its `BYTES` bytes.
fn quantize_blocks<const WEIGHTS: usize, const BYTES: usize>(
    weights: &[f32],
    out: &mut [u8],
    block: impl Fn(&[f32; WEIGHTS], &mut [u8; BYTES]),
) {
    let (weights, rest) = weights.as_chunks();
    let (out, out_rest) = out.as_chunks_mut();
    assert!(rest.is_empty() && out_rest.is_empty(), "weights and bytes are whole blocks");
    assert_eq!(weights.len(), out.len(), "there are bytes for each block of weights");
    for (weights, out) in weights.iter().zip(out) {
        block(weights, out);
    }
}

/// Returns the value of largest size, the first of equals, or zero if there is none but NaN.
fn largest(weights: &[f32]) -> f32 {
    weights.iter().fold(0.0_f32, |max, &w| if max.abs() < w.abs() { w } else { max })
}

/// Returns 1 / `scale`, or 0 if `scale` is 0.
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// Returns −1, 0 or 1 (or what a NaN or an overflow gives, within i8) as `weight · inverse` rounds,
/// halves away from zero.
fn ternary(weight: f32, inverse: f32) -> i8 {
    #[expect(clippy::cast_possible_truncation, reason = "the cast saturates")]
    let code = (weight * inverse).round() as i8;
    code
}

/// Stores a scale as a half.
fn put_f16(out: &mut [u8], at: usize, value: f32) {
    out[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

/// Reads the bits of a half.
#[inline]
fn f16_bits(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(*array_at(bytes, at))
}

/// Reads a half.
#[inline]
fn f16_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_bits(f16_bits(bytes, at)).to_f32()
}

/// Returns the array of `N` bytes that starts at `at`.
#[inline]
fn array_at<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    bytes[at..].first_chunk().expect("fields lie inside their step")
}
