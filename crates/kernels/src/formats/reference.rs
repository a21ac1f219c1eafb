//! The scalar tier: the order of operations that all tiers share, in plain words.
//!
//! Invariant: what this file computes is right by definition; speed has no say in it.

use super::{Decoded, HALF, Layout, StepBytes, dispatch, float};
use crate::format::Format;
use crate::kernel::{BlockFn, Products, Tile};
use crate::quantized::{GROUP, Group};

/// Returns the scalar code for a format.
pub(crate) fn block_fn(format: Format) -> BlockFn<()> {
    dispatch!(
        format,
        L => |(), block, out| block.in_tiles(out, tile::<L>),
        E => |(), block, out| block.in_tiles(out, float::tile::<E>)
    )
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

pub(super) fn tile<L: Layout>(tile: &Tile<'_>, products: &mut Products) {
    for (row, products) in products.iter_mut().enumerate().take(tile.rows) {
        let mut decoded = Decoded::ZERO;
        let mut acc = [[0.0; 4]; crate::kernel::TILE_TOKENS];
        let mut first_group = 0;
        let [bytes] = tile.rows_from(row);
        for_each_step::<L>(bytes, |step| {
            L::decode(step, &mut decoded);
            for (token, acc) in acc.iter_mut().enumerate().take(tile.tokens) {
                let [groups] = tile.groups_from(token);
                accumulate::<L>(&decoded, groups, first_group, acc);
            }
            first_group += L::STEP / GROUP;
        });
        *products = acc.map(|[a, b, c, d]| (a + c) + (b + d));
    }
}

/// Calls `f` for each step of a row; the last may be filled up with zeros.
fn for_each_step<L: Layout>(row: &[u8], mut f: impl FnMut(&L::Step)) {
    const {
        let block = (L::FORMAT.block_elements(), L::FORMAT.block_bytes());
        assert!(L::Step::LEN * block.0 == L::STEP * block.1, "a step is whole blocks");
    };
    let (whole, rest) = L::Step::split(row);
    whole.iter().for_each(&mut f);
    if !rest.is_empty() {
        f(&L::Step::padded(rest));
    }
}

/// Adds a step that begins with group number `first_group` of the row.
#[expect(clippy::cast_precision_loss, reason = "the one rounding of a chunk's sum")]
fn accumulate<L: Layout>(step: &Decoded, groups: &[Group], first_group: usize, acc: &mut [f32; 4]) {
    for first in (0..L::STEP).step_by(L::CHUNK) {
        let group = &groups[first_group + first / GROUP];
        let codes = group.codes.as_chunks().0[first % GROUP..].iter().take(L::CHUNK);
        let products = step.codes[first..].iter().zip(codes);
        let sum: i32 =
            products.map(|(&w, &x)| i32::from(w) * i32::from(i16::from_le_bytes(x))).sum();
        let acc = &mut acc[(first_group * GROUP + first) / L::CHUNK % 4];
        *acc = (step.scales[first / HALF] * group.scale).mul_add(sum as f32, *acc);
        if L::MINS {
            let x_sum = match L::CHUNK {
                16 => group.scaled_16[first % GROUP / 16],
                _ => group.scaled_32[first % GROUP / 32],
            };
            *acc = (-step.mins[first / HALF]).mul_add(x_sum, *acc);
        }
    }
}
