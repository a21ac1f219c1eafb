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

use super::avx512::Unpack;
use super::avx512::panel::{self, Multiply, Next, Panel, ROWS, Sums, load, scaled};
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
    dispatch!(
        format,
        L => block::<L>,
        E => |isa, block, out| float::avx512::block::<E>(isa.vectors(), block, out)
    )
}

fn block<U: Unpack>(isa: Amx, block: &Block<'_>, out: &mut Out<'_, '_>) {
    if block.tokens < tokens_for_tiles::<U>() {
        avx512::block_fn(U::FORMAT)(isa.vectors(), block, out);
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

/// The sums of a chunk for half of the rows, `[token][row]`.
#[repr(align(64))]
struct Totals {
    high: [[i32; HALF]; TOKENS],
    low: [[i32; HALF]; TOKENS],
}

/// Multiplies panels by tiles.
struct Tiled<T: Tiles> {
    tiles: T,
    /// How many tokens of how many bytes the tiles are shaped for; none before the first.
    shaped_for: (usize, usize),
    /// Of both halves of the rows. They fill one page: what is stored into one half while the other
    /// is read differs from it also in the bits by which processors tell addresses apart first.
    totals: [Totals; 2],
}

impl<T: Tiles> Tiled<T> {
    fn new(tiles: T) -> Self {
        const ZERO: Totals = Totals { high: [[0; HALF]; TOKENS], low: [[0; HALF]; TOKENS] };
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

    /// Computes the sums of a chunk for all rows and tokens; they are in the tiles then.
    ///
    /// # Safety
    /// The tiles are shaped for the tokens and for `U`.
    #[inline]
    unsafe fn sum<U: Layout>(&mut self, panel: &Panel, chunk: usize, tokens: &Tokens<'_>) {
        let tiles = &mut self.tiles;
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
    }

    /// Stores the sums of half of the rows.
    #[inline]
    fn store<const HIGH: u8, const LOW: u8>(&mut self, half: usize) {
        let Totals { high, low } = &mut self.totals[half];
        // SAFETY: no tile has more rows, or longer ones, than `high`.
        unsafe { self.tiles.store::<HIGH>(high.as_mut_ptr().cast(), size_of_val(&high[0])) };
        // SAFETY: as above, than `low`.
        unsafe { self.tiles.store::<LOW>(low.as_mut_ptr().cast(), size_of_val(&low[0])) };
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
            self.store::<HIGH_0, LOW_0>(0);
            // The next sums are computed while these are scaled.
            for chunk in 0..chunks {
                next.fetch();
                self.store::<HIGH_1, LOW_1>(1);
                scale::<U>(panel, chunk, 0, &self.totals[0], &tokens, sums);
                if chunk + 1 < chunks {
                    // SAFETY: as above.
                    unsafe { self.sum::<U>(panel, chunk + 1, &tokens) };
                    self.store::<HIGH_0, LOW_0>(0);
                }
                scale::<U>(panel, chunk, 1, &self.totals[1], &tokens, sums);
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

/// Adds the sums of a chunk to the accumulators of each token, for half of the rows.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
fn scale<U: Unpack>(
    panel: &Panel,
    chunk: usize,
    half: usize,
    totals: &Totals,
    tokens: &Tokens<'_>,
    sums: &mut [Sums],
) {
    let scales = load(&panel.scales[chunk], half);
    let mins = load(&panel.mins[chunk], half);
    let group = tokens.group::<U>(chunk);
    let groups = tokens.groups.chunks_exact(tokens.token_groups).map(|groups| &groups[group]);
    let totals = totals.high.iter().zip(&totals.low);
    for ((sums, group), (high, low)) in sums.iter_mut().zip(groups).zip(totals) {
        let total = _mm512_add_epi32(_mm512_slli_epi32::<8>(integers(high)), integers(low));
        let scale = _mm512_mul_ps(scales, _mm512_set1_ps(group.scale));
        let acc = &mut sums[chunk % 4];
        let mut sum = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(total), load(acc, half));
        if U::MINS {
            sum = _mm512_fnmadd_ps(mins, _mm512_set1_ps(scaled::<U>(group, chunk)), sum);
        }
        let to: &mut [f32; HALF] = &mut acc.as_chunks_mut().0[half];
        // SAFETY: the array has room for the sixteen floats that are written.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), sum) };
    }
}

#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
fn integers(row: &[i32; HALF]) -> __m512i {
    // SAFETY: the array has the sixteen integers that are read.
    unsafe { _mm512_loadu_si512(row.as_ptr().cast()) }
}
