//! The NEON tier: a unit of 32 codes is four vectors, whose products are added in pairs.
//!
//! Invariant: the lanes of the accumulators are those of the reference, operation by operation.
//! Formats supply [`Unpack`]; the order of operations is here only. Only what every 64-bit Arm
//! processor has is used, not the dot product instructions.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::aarch64::{
    float32x4_t, int8x16_t, int16x8_t, int32x4_t, uint8x16_t, vadd_f32, vaddq_f32, vandq_u8,
    vcvtq_f32_s32, vdupq_n_f32, vdupq_n_s32, vdupq_n_u8, vget_high_f32, vget_low_f32, vget_low_s8,
    vget_low_s16, vld1q_f32, vld1q_s16, vld1q_u8, vmlal_high_s16, vmlal_s16, vmovl_high_s8,
    vmovl_s8, vmulq_f32, vmulq_n_f32, vpaddq_s32, vpadds_f32, vreinterpretq_s8_u8, vshrq_n_u8,
    vst1q_s16, vsubq_f32,
};

use super::{
    Decoded, HALF, Layout, Rows, UNIT, array_at, dispatch, float, q2_k, q3_k, q5_0, q5_1, q5_k,
    ternary_pairs, tq1_0,
};
use crate::format::Format;
use crate::isa::Neon;
use crate::kernel::{Products, Tile, TileFn};
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
pub(crate) fn tile_fn(format: Format) -> TileFn<Neon> {
    dispatch!(format, L => tile::<L>, E => float::neon::tile::<E>)
}

fn tile<U: Unpack>(_: Neon, tile: &Tile<'_>, products: &mut Products) {
    match tile.tokens {
        // SAFETY: the token proves that the machine has every feature the function enables.
        1 => unsafe { blocks::<U, 1>(tile, products) },
        // SAFETY: as above.
        2 => unsafe { blocks::<U, 2>(tile, products) },
        // SAFETY: as above.
        _ => unsafe { blocks::<U, 4>(tile, products) },
    }
}

/// Cuts a tile into blocks of one row and `B` tokens; what juts out repeats the last token.
#[target_feature(enable = "neon")]
fn blocks<U: Unpack, const B: usize>(tile: &Tile<'_>, products: &mut Products) {
    for (row, products) in products.iter_mut().enumerate().take(tile.rows) {
        let [bytes] = tile.rows_from(row);
        for token in (0..tile.tokens).step_by(B) {
            let tokens = tile.groups_from(token);
            let mut acc = [[vdupq_n_f32(0.0); 4]; B];
            dots::<U, B>(bytes, &tokens, &mut acc);
            for (product, acc) in products[token..].iter_mut().zip(acc) {
                *product = sum16(acc);
            }
        }
    }
}

/// Adds all steps of a row times `B` tokens.
#[target_feature(enable = "neon")]
#[inline]
fn dots<U: Unpack, const B: usize>(
    row: &[u8],
    tokens: &[&[Group]; B],
    acc: &mut [[float32x4_t; 4]; B],
) {
    let mut decoded = Decoded::ZERO;
    let row = Rows::<U, 1>::cut(&[row]);
    let mut groups = 0..0;
    for [steps] in row.segments() {
        for step in steps {
            groups = groups.end..groups.end + U::STEP / GROUP;
            // SAFETY: this function has the features that `Unpack` asks of its callers.
            unsafe { U::unpack(step, &mut decoded) };
            for (tokens, acc) in tokens.iter().zip(&mut *acc) {
                accumulate::<U>(&decoded, &tokens[groups.clone()], acc);
            }
        }
    }
}

/// Adds one step times one token.
#[target_feature(enable = "neon")]
#[inline]
fn accumulate<U: Unpack>(step: &Decoded, groups: &[Group], acc: &mut [float32x4_t; 4]) {
    let codes = step.codes.as_chunks::<UNIT>().0;
    for first in (0..U::STEP / UNIT).step_by(U::CHUNK / UNIT) {
        let mut sums = [[vdupq_n_s32(0); 2]; 4];
        for unit in first..first + U::CHUNK / UNIT {
            let x = &groups[unit / 4].codes[unit % 4];
            for (part, sums) in sums.iter_mut().enumerate() {
                let (w, x) = (load_codes(&codes[unit], part), load_codes(x, part));
                sums[0] = vmlal_s16(sums[0], vget_low_s16(w), vget_low_s16(x));
                sums[1] = vmlal_high_s16(sums[1], w, x);
            }
        }
        for (part, sums) in sums.into_iter().enumerate() {
            let scale = step.scales[2 * first + part / 2] * groups[first / 4].scale;
            let sums: int32x4_t = vpaddq_s32(sums[0], sums[1]);
            acc[part] = vaddq_f32(acc[part], vmulq_n_f32(vcvtq_f32_s32(sums), scale));
        }
    }
    if U::MINS {
        for part in 0..U::STEP / HALF / 4 {
            let mins = load_floats(&step.mins, part);
            let product = vmulq_f32(mins, load_floats(&groups[part / 2].sums, part % 2));
            acc[part] = vsubq_f32(acc[part], product);
        }
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

/// Reads eight of the codes of a unit.
#[target_feature(enable = "neon")]
#[inline]
fn load_codes(codes: &[i16; UNIT], part: usize) -> int16x8_t {
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

/// Reads 16 bytes.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn load_16(bytes: &[u8], at: usize) -> uint8x16_t {
    let bytes: &[u8; 16] = array_at(bytes, at);
    // SAFETY: the array has the 16 bytes that are read.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}
