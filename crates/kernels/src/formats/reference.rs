//! The scalar tier: the order of operations that all tiers share, in plain words.
//!
//! Invariant: what this file computes is right by definition; speed has no say in it.

use super::{Decoded, HALF, Layout, Rows, dispatch, float};
use crate::format::Format;
use crate::kernel::{Products, Tile, TileFn};
use crate::lanes::sum16;
use crate::quantized::{GROUP, Group};

/// Returns the scalar code for a format.
pub(crate) fn tile_fn(format: Format) -> TileFn<()> {
    dispatch!(format, L => tile::<L>, E => float::tile::<E>)
}

/// Writes the weights of a row as floats.
pub(super) fn dequantize<L: Layout>(row: &[u8], out: &mut [f32]) {
    let mut decoded = Decoded::ZERO;
    let mut steps = out.chunks_mut(L::STEP);
    for_each_step::<L>(row, |step| {
        L::decode(step, &mut decoded);
        let out = steps.next().expect("as many steps of weights as of bytes");
        for (i, (out, &code)) in out.iter_mut().zip(&decoded.codes).enumerate() {
            *out = decoded.scales[i / HALF] * f32::from(code);
            if L::MINS {
                *out -= decoded.mins[i / HALF];
            }
        }
    });
}

fn tile<L: Layout>((): (), tile: &Tile<'_>, products: &mut Products) {
    for (row, products) in products.iter_mut().enumerate().take(tile.rows) {
        let mut decoded = Decoded::ZERO;
        let mut acc = [[0.0; 16]; crate::kernel::TILE_TOKENS];
        let mut first_group = 0;
        let [bytes] = tile.rows_from(row);
        for_each_step::<L>(bytes, |step| {
            L::decode(step, &mut decoded);
            for (token, acc) in acc.iter_mut().enumerate().take(tile.tokens) {
                let [groups] = tile.groups_from(token);
                let groups = &groups[first_group..][..L::STEP / GROUP];
                accumulate::<L>(&decoded, groups, acc);
            }
            first_group += L::STEP / GROUP;
        });
        *products = acc.map(sum16);
    }
}

fn for_each_step<L: Layout>(row: &[u8], mut f: impl FnMut(&L::Step)) {
    for [steps] in Rows::<L, 1>::cut(&[row]).segments() {
        steps.iter().for_each(&mut f);
    }
}

#[expect(clippy::cast_precision_loss, reason = "sums are below 2^24 in size")]
fn accumulate<L: Layout>(step: &Decoded, groups: &[Group], acc: &mut [f32; 16]) {
    for first in (0..L::STEP).step_by(L::CHUNK) {
        let group = &groups[first / GROUP];
        let mut sum = [0_i32; 16];
        for e in first..first + L::CHUNK {
            let x = group.codes.as_flattened()[e % GROUP];
            sum[e % 32 / 2] += i32::from(step.codes[e]) * i32::from(x);
        }
        for l in 0..16 {
            let scale = step.scales[first / HALF + l / 8] * group.scale;
            acc[l] += scale * sum[l] as f32;
        }
    }
    if L::MINS {
        for h in 0..L::STEP / HALF {
            acc[h] -= step.mins[h] * groups[h / 8].sums[h % 8];
        }
    }
}
