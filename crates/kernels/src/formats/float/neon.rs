//! Float weights on NEON: 32 lanes are eight vectors.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::aarch64::{
    float32x4_t, uint16x4_t, vaddq_f32, vcvt_f32_f16, vdupq_n_f32, vfmaq_f32, vld1_u8,
    vreinterpret_f16_u16, vreinterpret_u16_u8, vreinterpretq_f32_u8, vreinterpretq_f32_u32,
    vshll_n_u16,
};

use half::{bf16, f16};

use super::{Element, LANES, filled_up};
use crate::formats::array_at;
use crate::formats::neon::{load_16, load_floats, sum16};
use crate::isa::Neon;
use crate::kernel::{Block, Out, Products, Tile};

/// Reads stored floats into a vector; callers have the features of [`Neon`].
pub(in crate::formats) trait Load: Element {
    /// Reads the four floats that start at element `at`.
    unsafe fn load(bytes: &[u8], at: usize) -> float32x4_t;
}

impl Load for f32 {
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn load(bytes: &[u8], at: usize) -> float32x4_t {
        vreinterpretq_f32_u8(load_16(bytes, at * 4))
    }
}

impl Load for f16 {
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn load(bytes: &[u8], at: usize) -> float32x4_t {
        vcvt_f32_f16(vreinterpret_f16_u16(load_4_words(bytes, at * 2)))
    }
}

impl Load for bf16 {
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn load(bytes: &[u8], at: usize) -> float32x4_t {
        vreinterpretq_f32_u32(vshll_n_u16::<16>(load_4_words(bytes, at * 2)))
    }
}

/// Reads four words of 16 bits.
#[target_feature(enable = "neon")]
#[inline]
fn load_4_words(bytes: &[u8], at: usize) -> uint16x4_t {
    let bytes: &[u8; 8] = array_at(bytes, at);
    // SAFETY: the array has the eight bytes that are read.
    vreinterpret_u16_u8(unsafe { vld1_u8(bytes.as_ptr()) })
}

/// Computes a block.
pub(in crate::formats) fn block<E: Load>(_: Neon, block: &Block<'_>, out: &mut Out<'_, '_>) {
    // SAFETY: the token proves that the machine has every feature the function enables.
    block.in_tiles(out, |tile, products| unsafe { cut::<E>(tile, products) });
}

/// Cuts a tile into blocks of as many tokens as there are registers for.
#[target_feature(enable = "neon")]
fn cut<E: Load>(tile: &Tile<'_>, products: &mut Products) {
    match tile.tokens {
        1 => blocks::<E, 1>(tile, products),
        _ => blocks::<E, 2>(tile, products),
    }
}

/// Cuts a tile into blocks of one row and `B` tokens; what juts out repeats the last token.
#[target_feature(enable = "neon")]
fn blocks<E: Load, const B: usize>(tile: &Tile<'_>, products: &mut Products) {
    for (row, products) in products.iter_mut().enumerate().take(tile.rows) {
        let [bytes] = tile.rows_from(row);
        for token in (0..tile.tokens).step_by(B) {
            let tokens = tile.values_from(token);
            let mut acc = [[vdupq_n_f32(0.0); 8]; B];
            dots::<E, B>(bytes, &tokens, &mut acc);
            for (product, acc) in products[token..].iter_mut().zip(acc) {
                *product = sum16(std::array::from_fn(|l| vaddq_f32(acc[l], acc[l + 4])));
            }
        }
    }
}

/// Adds all weights of a row times `B` tokens, 32 at a time.
#[target_feature(enable = "neon")]
#[inline]
fn dots<E: Load, const B: usize>(
    row: &[u8],
    tokens: &[&[f32]; B],
    acc: &mut [[float32x4_t; 8]; B],
) {
    let whole = tokens[0].len() / LANES;
    let rest = filled_up::<u8, { LANES * 4 }>(&row[whole * LANES * E::BYTES..]);
    let x_rests = tokens.map(|x| filled_up::<f32, LANES>(&x[whole * LANES..]));
    let has_rest = usize::from(!tokens[0].len().is_multiple_of(LANES));
    let rests = x_rests.each_ref().map(|x| &x[..]);
    for (row, tokens, steps) in [(row, *tokens, whole), (&rest[..], rests, has_rest)] {
        for first in (0..steps).map(|step| step * LANES) {
            let weights = &row[first * E::BYTES..][..LANES * E::BYTES];
            for part in 0..8 {
                // SAFETY: this function has the features that `Load` asks of its callers.
                let w = unsafe { E::load(weights, part * 4) };
                for (acc, x) in acc.iter_mut().zip(tokens) {
                    let x = load_floats(&x[first..][..LANES], part);
                    acc[part] = vfmaq_f32(acc[part], w, x);
                }
            }
        }
    }
}
