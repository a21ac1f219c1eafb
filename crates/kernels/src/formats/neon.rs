//! The NEON tier: 16-bit codes times the 16-bit codes of activations, eight at a time.
//!
//! Formats supply [`Unpack`]; the order of operations is here only. Invariant: the reference's bits,
//! since a chunk's sum is exact in any order and the few float operations are the reference's own.
//! Only what every 64-bit Arm processor has is used, not the dot product instructions.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::aarch64::{
    float32x4_t, int8x16_t, int16x8_t, int32x4_t, uint8x16_t, vadd_f32, vaddq_f32, vaddvq_s32,
    vandq_u8, vcvtq_f32_s32, vdupq_n_s32, vdupq_n_u8, vfmaq_f32, vfmsq_f32, vget_high_f32,
    vget_low_f32, vget_low_s8, vget_low_s16, vld1q_f32, vld1q_s16, vld1q_u8, vmlal_high_s16,
    vmlal_s16, vmovl_high_s8, vmovl_s8, vmulq_n_f32, vpaddq_s32, vpadds_f32, vreinterpretq_s8_u8,
    vreinterpretq_s16_u8, vshrq_n_u8, vst1q_f32, vst1q_s16, vuzp1q_f32,
};

use super::{
    Decoded, HALF, Layout, Rows, array_at, dispatch, float, q2_k, q3_k, q5_0, q5_1, q5_k,
    ternary_pairs, tq1_0,
};
use crate::format::Format;
use crate::isa::Neon;
use crate::kernel::{Block, BlockFn, Out, Products, TILE_TOKENS, Tile};
use crate::quantized::{GROUP, Group};

/// Unpacks the steps of a format; callers have the features of [`Neon`].
pub(super) trait Unpack: Layout {
    /// Decodes a step, to the same numbers as [`Layout::decode`].
    unsafe fn unpack(step: &Self::Step, out: &mut Decoded) {
        Self::decode(step, out);
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

/// Returns this tier's code for a format.
pub(crate) fn block_fn(format: Format) -> BlockFn<Neon> {
    dispatch!(format, L => block::<L>, E => float::neon::block::<E>)
}

fn block<U: Unpack>(_: Neon, block: &Block<'_>, out: &mut Out<'_, '_>) {
    // SAFETY: the token proves that the machine has every feature the function enables.
    block.in_tiles(out, |tile, products| unsafe { cut::<U>(tile, products) });
}

/// Cuts the tokens of a tile into as many at once as there are registers for.
#[target_feature(enable = "neon")]
fn cut<U: Unpack>(tile: &Tile<'_>, products: &mut Products) {
    match tile.tokens {
        1 => rows::<U, 1>(tile, products),
        2 => rows::<U, 2>(tile, products),
        _ => rows::<U, 4>(tile, products),
    }
}

/// Computes a tile, each step decoded once and multiplied with `B` tokens at a time; what juts out
/// repeats the last token.
#[target_feature(enable = "neon")]
fn rows<U: Unpack, const B: usize>(tile: &Tile<'_>, products: &mut Products) {
    let tokens: [_; TILE_TOKENS] = tile.groups_from(0);
    let mut decoded = Decoded::ZERO;
    for (row, products) in products.iter_mut().enumerate().take(tile.rows) {
        let row = Rows::<U, 1>::cut(&tile.rows_from(row));
        let mut acc = [[0.0; 4]; TILE_TOKENS];
        let mut groups = 0..0;
        for [steps] in row.segments() {
            for step in steps {
                groups = groups.end..groups.end + U::STEP / GROUP;
                // SAFETY: this function has the features that `Unpack` asks of its callers.
                unsafe { U::unpack(step, &mut decoded) };
                let blocks = tokens.as_chunks::<B>().0.iter().zip(acc.as_chunks_mut::<B>().0);
                for (tokens, acc) in blocks.take(tile.tokens.div_ceil(B)) {
                    let x = tokens.map(|token| &token[groups.clone()]);
                    if U::CHUNK <= GROUP / 4 {
                        add_quads::<U, B>(&decoded, &x, acc);
                    } else {
                        add_chunks::<U, B>(&decoded, &x, groups.start, acc);
                    }
                }
            }
        }
        *products = acc.map(|[a, b, c, d]| (a + c) + (b + d));
    }
}

/// Adds a step of chunks of which a group has four or eight, four at a time.
#[target_feature(enable = "neon")]
#[inline]
fn add_quads<U: Unpack, const B: usize>(
    step: &Decoded,
    x: &[&[Group]; B],
    acc: &mut [[f32; 4]; B],
) {
    for quad in 0..U::STEP / (4 * U::CHUNK) {
        let first = quad * 4 * U::CHUNK;
        let mut sums = [[vdupq_n_s32(0); B]; 4];
        for (chunk, sums) in sums.iter_mut().enumerate() {
            *sums = products::<U, B>(step, x, first + chunk * U::CHUNK);
        }
        let scales = of_chunks::<U>(&step.scales, quad);
        for (b, (x, acc)) in x.iter().zip(&mut *acc).enumerate() {
            let group = &x[first / GROUP];
            let [low, high] = [[0, 1], [2, 3]].map(|[c, d]| vpaddq_s32(sums[c][b], sums[d][b]));
            let sum = vcvtq_f32_s32(vpaddq_s32(low, high));
            let mut total = vfmaq_f32(load_floats(acc, 0), vmulq_n_f32(scales, group.scale), sum);
            if U::MINS {
                let x_sums = match U::CHUNK {
                    16 => load_floats(&group.scaled_16, quad % 2),
                    _ => load_floats(&group.scaled_32, 0),
                };
                total = vfmsq_f32(total, of_chunks::<U>(&step.mins, quad), x_sums);
            }
            store_floats(acc, total);
        }
    }
}

/// Adds a step, of which `first_group` is the row's first group, of chunks that are half a group or a
/// group; no format of these has minima.
#[target_feature(enable = "neon")]
#[inline]
#[expect(clippy::cast_precision_loss, reason = "the one rounding of a chunk's sum")]
fn add_chunks<U: Unpack, const B: usize>(
    step: &Decoded,
    x: &[&[Group]; B],
    first_group: usize,
    acc: &mut [[f32; 4]; B],
) {
    const { assert!(!U::MINS || U::CHUNK <= GROUP / 4, "a wide chunk has no minimum") };
    for first in (0..U::STEP).step_by(U::CHUNK) {
        let number = (first_group * GROUP + first) / U::CHUNK;
        let scale = step.scales[first / HALF];
        let sums = products::<U, B>(step, x, first);
        for ((x, sums), acc) in x.iter().zip(sums).zip(&mut *acc) {
            let acc = &mut acc[number % 4];
            let sum = vaddvq_s32(sums) as f32;
            *acc = (scale * x[first / GROUP].scale).mul_add(sum, *acc);
        }
    }
}

/// Returns sums whose lanes add up to those of the products of the chunk that starts at `first`.
#[target_feature(enable = "neon")]
#[inline]
fn products<U: Unpack, const B: usize>(
    step: &Decoded,
    x: &[&[Group]; B],
    first: usize,
) -> [int32x4_t; B] {
    let mut sums = [vdupq_n_s32(0); B];
    for at in (first..first + U::CHUNK).step_by(8) {
        let w = load_codes(&step.codes, at / 8);
        for (sum, x) in sums.iter_mut().zip(x) {
            let x = load_16(&x[at / GROUP].codes, at % GROUP * 2);
            let x = vreinterpretq_s16_u8(x);
            *sum = vmlal_s16(*sum, vget_low_s16(w), vget_low_s16(x));
            *sum = vmlal_high_s16(*sum, w, x);
        }
    }
    sums
}

/// Returns what four chunks have of the numbers that each 16 weights have.
#[target_feature(enable = "neon")]
#[inline]
fn of_chunks<U: Unpack>(halves: &[f32], quad: usize) -> float32x4_t {
    match U::CHUNK {
        16 => load_floats(halves, quad),
        _ => vuzp1q_f32(load_floats(halves, 2 * quad), load_floats(halves, 2 * quad + 1)),
    }
}

/// Adds the lanes as a tree, in the order of `lanes::sum16`.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn sum16(lanes: [float32x4_t; 4]) -> f32 {
    let [a, b, c, d] = lanes;
    let sum = vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d));
    vpadds_f32(vadd_f32(vget_low_f32(sum), vget_high_f32(sum)))
}

/// Reads eight of the codes of a step.
#[target_feature(enable = "neon")]
#[inline]
fn load_codes(codes: &[i16], part: usize) -> int16x8_t {
    let codes: &[i16; 8] = &codes.as_chunks().0[part];
    // SAFETY: the array has the eight codes that are read.
    unsafe { vld1q_s16(codes.as_ptr()) }
}

/// Writes eight of the codes of a step.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn store_codes(decoded: &mut Decoded, part: usize, codes: int16x8_t) {
    let out: &mut [i16; 8] = &mut decoded.codes.as_chunks_mut().0[part];
    // SAFETY: the array has room for the eight codes that are written.
    unsafe { vst1q_s16(out.as_mut_ptr(), codes) };
}

/// Widens and writes 16 of the codes of a step.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn store_16_codes(decoded: &mut Decoded, half: usize, codes: int8x16_t) {
    store_codes(decoded, 2 * half, vmovl_s8(vget_low_s8(codes)));
    store_codes(decoded, 2 * half + 1, vmovl_high_s8(codes));
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

/// Writes four floats.
#[target_feature(enable = "neon")]
#[inline]
fn store_floats(out: &mut [f32; 4], floats: float32x4_t) {
    // SAFETY: the array has room for the four floats that are written.
    unsafe { vst1q_f32(out.as_mut_ptr(), floats) };
}

/// Reads 16 bytes.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn load_16(bytes: &[u8], at: usize) -> uint8x16_t {
    let bytes: &[u8; 16] = array_at(bytes, at);
    // SAFETY: the array has the 16 bytes that are read.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}
