//! The NEON tiers: rows are unpacked to signed bytes, 512 weights at a time, and meet all tokens.
//!
//! Formats supply [`Unpack`], the instructions that multiply are [`Multiply`]'s. Invariant: both
//! give the reference's bits, since a chunk's sum is exact in any order and the few float operations
//! are the reference's own: lane q of an accumulator belongs to the chunks whose number is q modulo 4.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

mod multiply;

use std::arch::aarch64::{
    float32x4_t, int8x16_t, uint8x16_t, vadd_f32, vaddq_f32, vandq_u8, vcvtq_f32_s32, vdupq_n_f32,
    vdupq_n_u8, vfmaq_f32, vfmsq_f32, vget_high_f32, vget_low_f32, vld1q_f32, vld1q_u8, vmulq_f32,
    vpaddq_s32, vpadds_f32, vreinterpretq_s8_u8, vshrq_n_u8, vst1q_s8,
};

use multiply::Multiply;

use super::{
    Decoded, HALF, Layout, StepBytes, array_at, dispatch, float, q2_k, q3_k, q5_0, q5_1, q5_k,
    ternary_pairs, tq1_0,
};
use crate::format::Format;
use crate::isa::{Neon, NeonDot};
use crate::kernel::{BLOCK_TOKENS, Block, BlockFn, Out};
use crate::quantized::{GROUP, Group};

/// Rows unpacked before tokens pass.
const ROWS: usize = 4;

/// Weights unpacked before tokens pass: four chunks or a multiple of that in every format.
const SPAN: usize = 512;

/// The most chunks in a span.
const SPAN_CHUNKS: usize = SPAN / HALF;

/// Unpacks the steps of a format; callers have the features of [`Neon`].
pub(super) trait Unpack: Layout {
    /// Decodes a step, to the same numbers as [`Layout::decode`].
    unsafe fn unpack(step: &Self::Step, out: &mut Unpacked<'_>) {
        narrow::<Self>(step, out);
    }
}

impl Unpack for ternary_pairs::Q2_0 {}
impl Unpack for ternary_pairs::Q2_0G128 {}
impl Unpack for ternary_pairs::Tq2_0G128 {}
impl Unpack for tq1_0::Tq1_0 {}
impl Unpack for q5_0::Q5_0 {}
impl Unpack for q5_1::Q5_1 {}
impl Unpack for q2_k::Q2K {}
impl Unpack for q3_k::Q3K {}
impl Unpack for q5_k::Q5K {}

/// Where the numbers of a step go: a code per weight, a scale and a minimum per chunk.
pub(super) struct Unpacked<'a> {
    codes: &'a mut [i8],
    pub(super) scales: &'a mut [f32],
    pub(super) mins: &'a mut [f32],
}

/// Unpacks a step as the reference does.
#[expect(clippy::cast_possible_truncation, reason = "codes of every format fit a signed byte")]
fn narrow<L: Layout + ?Sized>(step: &L::Step, out: &mut Unpacked<'_>) {
    let mut decoded = Decoded::ZERO;
    L::decode(step, &mut decoded);
    for (out, &code) in out.codes.iter_mut().zip(&decoded.codes) {
        *out = code as i8;
    }
    let halves = L::CHUNK / HALF;
    for (out, &scale) in out.scales.iter_mut().zip(decoded.scales.iter().step_by(halves)) {
        *out = scale;
    }
    for (out, &min) in out.mins.iter_mut().zip(decoded.mins.iter().step_by(halves)) {
        *out = min;
    }
}

/// Returns the code of the NEON tier for a format.
pub(crate) fn block_fn(format: Format) -> BlockFn<Neon> {
    dispatch!(format, L => block::<L, Neon>, E => float::neon::block::<E>)
}

/// Returns the code of the tier with dot products for a format.
pub(crate) fn dot_block_fn(format: Format) -> BlockFn<NeonDot> {
    dispatch!(
        format,
        L => block::<L, NeonDot>,
        E => |isa, block, out| float::neon::block::<E>(isa.vectors(), block, out)
    )
}

fn block<U: Unpack, M: Multiply>(_: M, block: &Block<'_>, out: &mut Out<'_, '_>) {
    // SAFETY: the token proves that the machine has every feature the function enables.
    unsafe { rows::<U, M>(block, out) }
}

/// The unpacked part of a row.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Span {
    codes: [i8; SPAN],
    scales: [f32; SPAN_CHUNKS],
    mins: [f32; SPAN_CHUNKS],
}

impl Span {
    const ZERO: Self =
        Self { codes: [0; SPAN], scales: [0.0; SPAN_CHUNKS], mins: [0.0; SPAN_CHUNKS] };

    /// Unpacks the span that `bytes` begin with; what lies behind the last step has scales of zero.
    #[target_feature(enable = "neon")]
    #[inline]
    fn unpack<U: Unpack>(&mut self, bytes: &[u8]) {
        let (whole, rest) = U::Step::split(bytes);
        let padded =
            (!rest.is_empty() && whole.len() < SPAN / U::STEP).then(|| U::Step::padded(rest));
        let mut steps = whole.iter().chain(&padded);
        let chunks = U::STEP / U::CHUNK;
        for at in 0..SPAN / U::STEP {
            let mut out = Unpacked {
                codes: &mut self.codes[at * U::STEP..][..U::STEP],
                scales: &mut self.scales[at * chunks..][..chunks],
                mins: &mut self.mins[at * chunks..][..chunks],
            };
            if let Some(step) = steps.next() {
                // SAFETY: this function has the features that `Unpack` asks of its callers.
                unsafe { U::unpack(step, &mut out) };
            } else {
                out.scales.fill(0.0);
                out.mins.fill(0.0);
            }
        }
    }
}

#[target_feature(enable = "neon")]
fn rows<U: Unpack, M: Multiply>(block: &Block<'_>, out: &mut Out<'_, '_>) {
    let zero = [vdupq_n_f32(0.0); ROWS];
    let mut spans = [Span::ZERO; ROWS];
    let mut sums = [zero; BLOCK_TOKENS];
    let sums = &mut sums[..block.tokens];
    let span_bytes = SPAN / U::STEP * U::Step::LEN;
    for first in (0..block.rows).step_by(ROWS) {
        sums.fill(zero);
        let count = ROWS.min(block.rows - first);
        for span in 0..block.row_bytes.div_ceil(span_bytes) {
            for (r, unpacked) in spans[..count].iter_mut().enumerate() {
                unpacked.unpack::<U>(&block.row(first + r)[span * span_bytes..]);
            }
            for (token, sums) in sums.iter_mut().enumerate() {
                let groups = block.token(token)[span * (SPAN / GROUP)..].first_chunk();
                add::<U, M>(&spans, groups.expect("tokens are whole spans"), sums);
            }
        }
        for (token, sums) in sums.iter().enumerate() {
            let products = sums.map(|sums| sum4(sums));
            out.token(token)[first..][..count].copy_from_slice(&products[..count]);
        }
    }
}

/// Adds a span of four rows times one token.
#[target_feature(enable = "neon")]
#[inline]
fn add<U: Unpack, M: Multiply>(
    spans: &[Span; ROWS],
    groups: &[Group; SPAN / GROUP],
    sums: &mut [float32x4_t; ROWS],
) {
    for quad in 0..SPAN / U::CHUNK / 4 {
        let at = [0, 1, 2, 3].map(|q| (4 * quad + q) * U::CHUNK);
        let x_scales = load_floats(&at.map(|at| groups[at / GROUP].scale), 0);
        let group = &groups[at[0] / GROUP];
        for (span, sums) in spans.iter().zip(&mut *sums) {
            let totals = at.map(|at| {
                let codes = &span.codes[at..][..U::CHUNK];
                // SAFETY: the token of `M` came with the block.
                unsafe { M::products(codes, &groups[at / GROUP], at % GROUP) }
            });
            let [a, b, c, d] = totals;
            let totals = vcvtq_f32_s32(vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d)));
            let scales = vmulq_f32(load_floats(&span.scales, quad), x_scales);
            *sums = vfmaq_f32(*sums, scales, totals);
            if U::MINS {
                let x_sums = match U::CHUNK {
                    16 => load_floats(&group.scaled_16, quad % 2),
                    _ => load_floats(&group.scaled_32, 0),
                };
                *sums = vfmsq_f32(*sums, load_floats(&span.mins, quad), x_sums);
            }
        }
    }
}

/// Adds four lanes as a tree.
#[target_feature(enable = "neon")]
#[inline]
fn sum4(lanes: float32x4_t) -> f32 {
    vpadds_f32(vadd_f32(vget_low_f32(lanes), vget_high_f32(lanes)))
}

/// Adds the lanes as a tree, in the order of `lanes::sum16`.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn sum16(lanes: [float32x4_t; 4]) -> f32 {
    let [a, b, c, d] = lanes;
    sum4(vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d)))
}

/// Writes 16 of the codes of a step.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn store_codes(out: &mut Unpacked<'_>, half: usize, codes: int8x16_t) {
    let out: &mut [i8; 16] = &mut out.codes.as_chunks_mut().0[half];
    // SAFETY: the array has room for the 16 codes that are written.
    unsafe { vst1q_s8(out.as_mut_ptr(), codes) };
}

/// Returns the low and the high four bits of each byte.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn nibbles(bytes: uint8x16_t) -> [int8x16_t; 2] {
    let low = vandq_u8(bytes, vdupq_n_u8(15));
    [vreinterpretq_s8_u8(low), vreinterpretq_s8_u8(vshrq_n_u8::<4>(bytes))]
}

/// Reads four floats.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn load_floats(floats: &[f32], part: usize) -> float32x4_t {
    let floats: &[f32; 4] = &floats.as_chunks().0[part];
    // SAFETY: the array has the four floats that are read.
    unsafe { vld1q_f32(floats.as_ptr()) }
}

/// Reads 16 bytes.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn load_16(bytes: &[u8], at: usize) -> uint8x16_t {
    let bytes: &[u8; 16] = array_at(bytes, at);
    // SAFETY: the array has the 16 bytes that are read.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}
