//! The AMX tier: the sums of many rows times many tokens by matrix tiles, all else as AVX-512.
//!
//! Invariant: a tile's sums are those of a chunk, exact in integers; they are scaled and accumulated
//! by the reference's operations in its order. The tiles are given back before a block is done.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

#[cfg(test)]
mod tests;

use std::arch::x86_64::{
    __m512i, _mm512_add_epi32, _mm512_cvtepi32_ps, _mm512_fmadd_ps, _mm512_fnmadd_ps,
    _mm512_loadu_si512, _mm512_mul_ps, _mm512_set1_ps, _mm512_slli_epi32, _mm512_storeu_ps,
};
use std::mem::offset_of;

use super::avx512::panel::{self, Multiply, Next, Panel, ROWS, Sums, load, scaled};
use super::avx512::{Planar, Unpack};
use super::q1_0::Q1_0;
use super::ternary_pairs::{Q2_0, Q2_0G128, Tq2_0G128};
use super::{Layout, avx512, dispatch, float};
use crate::format::Format;
use crate::isa::Amx;
use crate::isa::amx::Instructions;
use crate::isa::tiles::{Shapes, TILE_ROW_BYTES, TILE_ROWS, Tiles};
use crate::kernel::{Block, BlockFn, Out};
use crate::quantized::{GROUP, Group};

/// Tokens whose sums are computed at once: the rows of a tile.
const TOKENS: usize = TILE_ROWS;

/// Rows of weights whose sums one tile holds.
const HALF: usize = ROWS / 2;

// The tiles. The first four are sums, of the tokens' high or low bytes with the first or the second
// half of the rows; then the tokens' bytes, `[token][depth]`; then the rows', `[depth / 4][row][4]`.
const HIGH_0: u8 = 0;
const HIGH_1: u8 = 1;
const LOW_0: u8 = 2;
const LOW_1: u8 = 3;
const HIGHS: u8 = 4;
const LOWS: u8 = 5;
const ROWS_0: u8 = 6;
const ROWS_1: u8 = 7;

/// Returns this tier's code for a format.
pub(crate) fn block_fn(format: Format) -> BlockFn<Amx> {
    match format {
        Format::Q1_0 => planar_block::<Q1_0>,
        Format::Q2_0 => planar_block::<Q2_0>,
        Format::Q2_0G128 => planar_block::<Q2_0G128>,
        Format::Tq2_0G128 => planar_block::<Tq2_0G128>,
        _ => dispatch!(
            format,
            L => block::<L>,
            E => |isa, block, out| float::avx512::block::<E>(isa.vectors(), block, out)
        ),
    }
}

fn planar_block<U: Unpack + Planar>(isa: Amx, block: &Block<'_>, out: &mut Out<'_, '_>) {
    if block.tokens < tokens_for_tiles::<U>() {
        avx512::planar_block::<U>(isa.vectors(), block, out);
    } else {
        self::block::<U>(isa, block, out);
    }
}

fn block<U: Unpack>(isa: Amx, block: &Block<'_>, out: &mut Out<'_, '_>) {
    if block.tokens < tokens_for_tiles::<U>() {
        avx512::block::<U>(isa.vectors(), block, out);
    } else {
        let mut tiled = Tiled::new(Instructions::new(isa));
        // SAFETY: the token proves that the machine has every feature the function enables.
        unsafe { panel::rows::<U>(&mut tiled, block, out) }
    }
}

/// Returns from how many tokens on tiles are worth their loading and storing, which is the same for
/// a long chunk and for a short one.
const fn tokens_for_tiles<U: Layout>() -> usize {
    if U::CHUNK < 64 { 16 } else { 8 }
}

/// Bytes of a row of weights, or of a token, that a tile holds: a chunk's, or half of the longest.
const fn depth<U: Layout>() -> usize {
    if U::CHUNK < TILE_ROW_BYTES { U::CHUNK } else { TILE_ROW_BYTES }
}

/// The sums of a chunk, `[token][row]`.
#[repr(align(64))]
struct Totals {
    high: [[i32; ROWS]; TOKENS],
    low: [[i32; ROWS]; TOKENS],
}

/// Multiplies panels by tiles.
struct Tiled<T: Tiles> {
    tiles: T,
    /// How many tokens of how many bytes the tiles are shaped for; none before the first.
    shaped_for: (usize, usize),
    /// Of chunks with even numbers and of those with odd ones: while one chunk is scaled the sums
    /// of the next are computed.
    totals: [Totals; 2],
}

impl<T: Tiles> Tiled<T> {
    fn new(tiles: T) -> Self {
        const ZERO: Totals = Totals { high: [[0; ROWS]; TOKENS], low: [[0; ROWS]; TOKENS] };
        Self { tiles, shaped_for: (0, 0), totals: [ZERO; 2] }
    }

    fn shape<U: Layout>(&mut self, tokens: usize) {
        if self.shaped_for == (tokens, depth::<U>()) {
            return;
        }
        let mut shapes = Shapes::NONE;
        for tile in [HIGH_0, HIGH_1, LOW_0, LOW_1] {
            shapes.set(tile, tokens, 4 * HALF);
        }
        for tile in [HIGHS, LOWS] {
            shapes.set(tile, tokens, depth::<U>());
        }
        for tile in [ROWS_0, ROWS_1] {
            shapes.set(tile, depth::<U>() / 4, 4 * HALF);
        }
        self.tiles.configure(&shapes);
        self.shaped_for = (tokens, depth::<U>());
    }

    /// Computes the sums of a chunk for all rows and tokens.
    ///
    /// # Safety
    /// The tiles are shaped for the tokens and for `U`.
    #[inline]
    unsafe fn sum<U: Layout>(&mut self, panel: &Panel, chunk: usize, tokens: &Tokens<'_>) {
        let (tiles, totals) = (&mut self.tiles, &mut self.totals[chunk % 2]);
        tiles.zero::<HIGH_0>();
        tiles.zero::<HIGH_1>();
        tiles.zero::<LOW_0>();
        tiles.zero::<LOW_1>();
        let stride = tokens.token_groups * size_of::<Group>();
        let highs = tokens.codes::<U>(chunk);
        let fours = &panel.bytes[chunk * (U::CHUNK / 4)..][..U::CHUNK / 4];
        for (part, fours) in fours.chunks_exact(depth::<U>() / 4).enumerate() {
            let rows = fours.as_ptr().cast::<u8>();
            let highs = highs.wrapping_add(part * depth::<U>());
            // SAFETY: the tile has as many rows as `fours`, of a half each; these are the first.
            unsafe { tiles.load::<ROWS_0>(rows, 4 * ROWS) };
            // SAFETY: as above; these are the second halves.
            unsafe { tiles.load::<ROWS_1>(rows.wrapping_add(4 * HALF), 4 * ROWS) };
            // SAFETY: the tile has as many rows as there are tokens, of a chunk or less.
            unsafe { tiles.load::<HIGHS>(highs, stride) };
            tiles.multiply::<HIGH_0, HIGHS, ROWS_0>();
            tiles.multiply::<HIGH_1, HIGHS, ROWS_1>();
            // SAFETY: as above; behind the high bytes of a whole group are the low ones.
            unsafe { tiles.load::<LOWS>(highs.wrapping_add(GROUP), stride) };
            tiles.multiply::<LOW_0, LOWS, ROWS_0>();
            tiles.multiply::<LOW_1, LOWS, ROWS_1>();
        }
        let [high, low] = [&mut totals.high, &mut totals.low].map(|totals| {
            let to = totals.as_mut_ptr().cast::<u8>();
            [to, to.wrapping_add(4 * HALF)]
        });
        // SAFETY: the tile has no more rows than `totals.high`, of a half each.
        unsafe { tiles.store::<HIGH_0>(high[0], 4 * ROWS) };
        // SAFETY: as above.
        unsafe { tiles.store::<HIGH_1>(high[1], 4 * ROWS) };
        // SAFETY: as above, of `totals.low`.
        unsafe { tiles.store::<LOW_0>(low[0], 4 * ROWS) };
        // SAFETY: as above.
        unsafe { tiles.store::<LOW_1>(low[1], 4 * ROWS) };
    }
}

impl<T: Tiles> Multiply for Tiled<T> {
    const SIGNED: bool = true;

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    unsafe fn add<U: Unpack>(
        &mut self,
        panel: &Panel,
        chunks: usize,
        block: &Block<'_>,
        first_group: usize,
        next: &mut Next,
        sums: &mut [Sums],
    ) {
        let token_groups = block.token_groups;
        next.spread(chunks * block.tokens.div_ceil(TOKENS).min(8));
        let all = block.groups.chunks(TOKENS * token_groups);
        for (groups, sums) in all.zip(sums.chunks_mut(TOKENS)) {
            let tokens = Tokens { groups, token_groups, first_group };
            self.shape::<U>(groups.len() / token_groups);
            // SAFETY: the tiles are shaped for as many tokens as `groups` has.
            unsafe { self.sum::<U>(panel, 0, &tokens) };
            for chunk in 0..chunks {
                next.fetch();
                if chunk + 1 < chunks {
                    // SAFETY: as above.
                    unsafe { self.sum::<U>(panel, chunk + 1, &tokens) };
                }
                scale::<U>(panel, chunk, &self.totals[chunk % 2], &tokens, sums);
            }
        }
    }
}

impl<T: Tiles> Drop for Tiled<T> {
    fn drop(&mut self) {
        self.tiles.release();
    }
}

/// The activations of some tokens that meet a panel.
struct Tokens<'a> {
    /// `[tokens, token_groups]`.
    groups: &'a [Group],
    token_groups: usize,
    /// The group that meets the first weights of the panel.
    first_group: usize,
}

impl Tokens<'_> {
    /// Returns the number of the group that a chunk of a panel meets.
    #[inline]
    fn group<U: Layout>(&self, chunk: usize) -> usize {
        self.first_group + chunk * U::CHUNK / GROUP
    }

    /// Returns where the first token's high bytes are that a chunk meets; those of the next token
    /// are `token_groups` groups behind.
    #[inline]
    fn codes<U: Layout>(&self, chunk: usize) -> *const u8 {
        const { assert!(offset_of!(Group, codes) == 0, "codes are what a group begins with") };
        let group = self.group::<U>(chunk);
        assert!(group < self.token_groups, "a token has a group for each chunk");
        let group = self.groups.as_ptr().wrapping_add(group).cast::<u8>();
        group.wrapping_add(chunk * U::CHUNK % GROUP)
    }
}

/// Adds the sums of a chunk to the accumulators of each token.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
fn scale<U: Unpack>(
    panel: &Panel,
    chunk: usize,
    totals: &Totals,
    tokens: &Tokens<'_>,
    sums: &mut [Sums],
) {
    let scales = [load(&panel.scales[chunk], 0), load(&panel.scales[chunk], 1)];
    let mins = [load(&panel.mins[chunk], 0), load(&panel.mins[chunk], 1)];
    let group = tokens.group::<U>(chunk);
    let groups = tokens.groups.chunks_exact(tokens.token_groups).map(|groups| &groups[group]);
    let totals = totals.high.iter().zip(&totals.low);
    for ((sums, group), (high, low)) in sums.iter_mut().zip(groups).zip(totals) {
        let x_scale = _mm512_set1_ps(group.scale);
        let acc = &mut sums[chunk % 4];
        for half in 0..2 {
            let total = _mm512_slli_epi32::<8>(load_sums(high, half));
            let total = _mm512_cvtepi32_ps(_mm512_add_epi32(total, load_sums(low, half)));
            let mut sum = load(acc, half);
            sum = _mm512_fmadd_ps(_mm512_mul_ps(scales[half], x_scale), total, sum);
            if U::MINS {
                let x_sum = _mm512_set1_ps(scaled::<U>(group, chunk));
                sum = _mm512_fnmadd_ps(mins[half], x_sum, sum);
            }
            let to: &mut [f32; HALF] = &mut acc.as_chunks_mut().0[half];
            // SAFETY: the array has room for the sixteen floats that are written.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr(), sum) };
        }
    }
}

#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
fn load_sums(rows: &[i32; ROWS], half: usize) -> __m512i {
    let half: &[i32; HALF] = &rows.as_chunks().0[half];
    // SAFETY: the array has the sixteen integers that are read.
    unsafe { _mm512_loadu_si512(half.as_ptr().cast()) }
}
