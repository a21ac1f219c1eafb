//! Many rows times many tokens: the codes of 32 rows are laid side by side once and meet all tokens.
//!
//! Invariant: a vector of sums has a row in each lane, and a chunk is added to the accumulator of
//! its number modulo 4, in the order of the row.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::x86_64::{
    __m512i, _MM_HINT_T0, _mm_prefetch, _mm512_add_ps, _mm512_castps_si512, _mm512_castsi512_ps,
    _mm512_cvtepi32_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_fnmadd_ps, _mm512_loadu_ps,
    _mm512_mul_ps, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_si512,
    _mm512_slli_epi32, _mm512_storeu_ps, _mm512_storeu_si512, _mm512_sub_epi8, _mm512_sub_epi32,
};

use std::mem::MaybeUninit;

use super::lanes::transpose;
use super::{Unpack, load_64};
use crate::formats::StepBytes;
use crate::kernel::{BLOCK_TOKENS, Block, Out};
use crate::quantized::{GROUP, Group};

/// Rows laid side by side.
pub(in crate::formats) const ROWS: usize = 32;

/// Weights of a row laid out at once: they stay in the first cache while the tokens pass.
const DEPTH: usize = 512;

/// The most chunks in so many weights.
const CHUNKS: usize = DEPTH / 16;

/// Returns the tokens multiplied at once: with two vectors each, enough sums to hide the latency of
/// a product, and few enough to leave registers for the scaling of short chunks.
const fn tokens_at_once<U: Unpack>() -> usize {
    if U::CHUNK < 64 { 6 } else { 8 }
}

/// Some weights of 32 rows.
#[repr(align(64))]
pub(in crate::formats) struct Panel {
    /// Four bytes of each row, then the next four of each.
    pub(in crate::formats) bytes: [[u8; 4 * ROWS]; DEPTH / 4],
    /// The scales of the rows' first chunks, then of their second ones, and so on.
    pub(in crate::formats) scales: [[f32; ROWS]; CHUNKS],
    pub(in crate::formats) mins: [[f32; ROWS]; CHUNKS],
    /// Scales and minima of 16 rows, as they come, with room for a vector behind the last chunk.
    of_rows: [[[f32; CHUNKS + 16]; 16]; 2],
}

/// The weights that are laid out next; they are fetched into the cache while tokens pass.
pub(in crate::formats) struct Next {
    first: *const u8,
    row_bytes: usize,
    bytes: usize,
    /// Rows that are not yet fetched.
    rows: usize,
    /// Rows that are fetched at once.
    at_once: usize,
}

impl Next {
    /// Returns the same rows' next weights or, behind the last, the next rows' first.
    fn after(block: &Block<'_>, first_row: usize, from: usize, depth_bytes: usize) -> Self {
        let is_last = from + depth_bytes >= block.row_bytes;
        let (row, from) =
            if is_last { (first_row + ROWS, 0) } else { (first_row, from + depth_bytes) };
        // There may be no such rows.
        let first = block.weights.as_ptr().wrapping_add(row * block.row_bytes + from);
        let bytes = depth_bytes.min(block.row_bytes - from);
        Self { first, row_bytes: block.row_bytes, bytes, rows: ROWS, at_once: ROWS }
    }

    /// Spreads the rows over so many calls of [`Self::fetch`].
    pub(in crate::formats) fn spread(&mut self, calls: usize) {
        self.at_once = ROWS.div_ceil(calls);
    }

    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
    #[inline]
    pub(in crate::formats) fn fetch(&mut self) {
        for _ in 0..self.at_once.min(self.rows) {
            for line in (0..self.bytes).step_by(64) {
                _mm_prefetch::<_MM_HINT_T0>(self.first.wrapping_add(line).cast());
            }
            self.first = self.first.wrapping_add(self.row_bytes);
            self.rows -= 1;
        }
    }
}

/// The accumulators of a token: four for each row.
pub(in crate::formats) type Sums = [[f32; ROWS]; 4];

/// How a panel meets the tokens.
pub(in crate::formats) trait Multiply {
    /// Whether the bytes of a panel are signed codes, and not codes before their zero is taken.
    const SIGNED: bool;

    /// Adds the chunks of a panel times the tokens of a block, in their group number `first_group`
    /// and those behind, to the accumulators of the tokens, and fetches the next weights the while;
    /// callers have the features of `Avx512`.
    unsafe fn add<U: Unpack>(
        &mut self,
        panel: &Panel,
        chunks: usize,
        block: &Block<'_>,
        first_group: usize,
        next: &mut Next,
        sums: &mut [Sums],
    );
}

/// Vectors of bytes: a few tokens at a time.
pub(in crate::formats) struct Vectors;

impl Multiply for Vectors {
    const SIGNED: bool = false;

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
        let each = block.tokens.div_ceil(block.tokens.div_ceil(tokens_at_once::<U>()));
        next.spread(chunks * block.tokens.div_ceil(each).min(8));
        for (i, sums) in sums.chunks_mut(each).enumerate() {
            let token = |t: usize| &block.token(i * each + t)[first_group..];
            match sums.len() {
                8 => add::<U, 8>(panel, chunks, token, next, sums),
                7 => add::<U, 7>(panel, chunks, token, next, sums),
                6 => add::<U, 6>(panel, chunks, token, next, sums),
                5 => add::<U, 5>(panel, chunks, token, next, sums),
                4 => add::<U, 4>(panel, chunks, token, next, sums),
                3 => add::<U, 3>(panel, chunks, token, next, sums),
                2 => add::<U, 2>(panel, chunks, token, next, sums),
                _ => add::<U, 1>(panel, chunks, token, next, sums),
            }
        }
    }
}

/// Computes a block.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
pub(in crate::formats) fn rows<U: Unpack>(
    multiply: &mut impl Multiply,
    block: &Block<'_>,
    out: &mut Out<'_, '_>,
) {
    if block.tokens <= 16 {
        rows_with::<U, _, 16>(multiply, block, out);
    } else {
        rows_with::<U, _, BLOCK_TOKENS>(multiply, block, out);
    }
}

/// Computes a block of at most `MAX` tokens.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
fn rows_with<U: Unpack, M: Multiply, const MAX: usize>(
    multiply: &mut M,
    block: &Block<'_>,
    out: &mut Out<'_, '_>,
) {
    let mut sums = [const { MaybeUninit::<Sums>::uninit() }; MAX];
    let mut panel = Panel {
        bytes: [[0; 4 * ROWS]; DEPTH / 4],
        scales: [[0.0; ROWS]; CHUNKS],
        mins: [[0.0; ROWS]; CHUNKS],
        of_rows: [[[0.0; CHUNKS + 16]; 16]; 2],
    };
    let depth_bytes = DEPTH / U::STEP * U::Step::LEN;
    for first_row in (0..block.rows).step_by(ROWS) {
        let sums = cleared(&mut sums[..block.tokens]);
        for (depth, from) in (0..block.row(0).len()).step_by(depth_bytes).enumerate() {
            let chunks = lay_out::<U, M>(&mut panel, block, first_row, from);
            let first_group = depth * DEPTH / GROUP;
            let mut next = Next::after(block, first_row, from, depth_bytes);
            // SAFETY: this function has the features that `Multiply` asks of its callers.
            unsafe { multiply.add::<U>(&panel, chunks, block, first_group, &mut next, sums) };
        }
        store(sums, first_row, block.rows, out);
    }
}

/// Returns accumulators at zero.
fn cleared(sums: &mut [MaybeUninit<Sums>]) -> &mut [Sums] {
    for sums in &mut *sums {
        sums.write([[0.0; ROWS]; 4]);
    }
    // SAFETY: all of them have just been written.
    unsafe { sums.assume_init_mut() }
}

/// Lays out the weights of 32 rows that begin `from` bytes into each; what juts out repeats the last
/// row. Returns the number of chunks.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline(never)]
#[expect(clippy::needless_range_loop, reason = "several arrays have the index")]
fn lay_out<U: Unpack, M: Multiply>(
    panel: &mut Panel,
    block: &Block<'_>,
    first_row: usize,
    from: usize,
) -> usize {
    let steps = (block.row_bytes - from).div_ceil(U::Step::LEN).min(DEPTH / U::STEP);
    let chunks = steps * (U::STEP / U::CHUNK);
    for half in 0..2 {
        let rows: [&[u8]; 16] = std::array::from_fn(|r| {
            &block.row((first_row + half * 16 + r).min(block.rows - 1))[from..]
        });
        let [scales, mins] = &mut panel.of_rows;
        for s in 0..steps {
            let is_whole = rows[0].len() >= (s + 1) * U::Step::LEN;
            let mut padded = [None; 16];
            if !is_whole {
                padded = rows.map(|row| Some(U::Step::padded(&row[s * U::Step::LEN..])));
            }
            let mut bytes = [[_mm512_setzero_si512(); 16]; 4];
            for r in 0..16 {
                let step = match &padded[r] {
                    Some(padded) => padded,
                    None => &U::Step::split(rows[r]).0[s],
                };
                let chunk = s * (U::STEP / U::CHUNK);
                // SAFETY: this function has the features that `Unpack` asks of its callers.
                put(unsafe { U::scales(step) }, &mut scales[r], chunk);
                if U::MINS {
                    // SAFETY: as above.
                    put(unsafe { U::mins(step) }, &mut mins[r], chunk);
                }
                for part in 0..U::STEP / 64 {
                    // SAFETY: as above.
                    bytes[part][r] = unsafe { U::bytes(step, part) };
                    if let (true, Some(zero)) = (M::SIGNED, U::ZERO_LOG2) {
                        let zero = _mm512_set1_epi8((1_u8 << zero).cast_signed());
                        bytes[part][r] = _mm512_sub_epi8(bytes[part][r], zero);
                    }
                }
            }
            for part in 0..U::STEP / 64 {
                let columns = transpose(&bytes[part]);
                let first = (s * U::STEP / 64 + part) * 16;
                for (column, to) in columns.iter().zip(&mut panel.bytes[first..][..16]) {
                    let to: &mut [u8; 64] = &mut to.as_chunks_mut().0[half];
                    // SAFETY: the array has room for the 64 bytes that are written.
                    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), *column) };
                }
            }
        }
        side_by_side(scales, chunks, &mut panel.scales, half);
        if U::MINS {
            side_by_side(mins, chunks, &mut panel.mins, half);
        }
    }
    chunks
}

/// Writes the values of a step's chunks, and anything behind them, from chunk number `chunk` on.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
fn put(values: std::arch::x86_64::__m512, to: &mut [f32; CHUNKS + 16], chunk: usize) {
    let to: &mut [f32; 16] = to[chunk..].first_chunk_mut().expect("room behind the last chunk");
    // SAFETY: the array has room for the sixteen floats that are written.
    unsafe { _mm512_storeu_ps(to.as_mut_ptr(), values) };
}

/// Writes the values of 16 rows to their lanes of each chunk.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
fn side_by_side(
    rows: &[[f32; CHUNKS + 16]; 16],
    count: usize,
    chunks: &mut [[f32; ROWS]; CHUNKS],
    half: usize,
) {
    for first in (0..count).step_by(16) {
        let mut vectors = [_mm512_setzero_si512(); 16];
        for (vector, row) in vectors.iter_mut().zip(rows) {
            // SAFETY: the sixteen floats from `first` on are inside the row, which has 16 to spare.
            *vector = _mm512_castps_si512(unsafe { _mm512_loadu_ps(row[first..].as_ptr()) });
        }
        let vectors = transpose(&vectors);
        for (vector, to) in vectors.iter().zip(&mut chunks[first..][..16]) {
            let to: &mut [f32; 16] = &mut to.as_chunks_mut().0[half];
            let vector = _mm512_castsi512_ps(*vector);
            // SAFETY: the array has room for the sixteen floats that are written.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr(), vector) };
        }
    }
}

/// Adds the chunks of a panel times `T` tokens.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline(never)]
#[expect(clippy::needless_range_loop, reason = "several arrays have the index")]
fn add<'a, U: Unpack, const T: usize>(
    panel: &Panel,
    chunks: usize,
    token: impl Fn(usize) -> &'a [Group],
    next: &mut Next,
    sums: &mut [Sums],
) {
    let tokens: [&[Group]; T] = std::array::from_fn(token);
    for turn in 0..4 {
        let mut acc = [[_mm512_castsi512_ps(_mm512_setzero_si512()); 2]; T];
        for t in 0..T {
            acc[t] = [load(&sums[t][turn], 0), load(&sums[t][turn], 1)];
        }
        for chunk in (turn..chunks).step_by(4) {
            next.fetch();
            let group = chunk * U::CHUNK / GROUP;
            let mut groups = [&Group::ZERO; T];
            for t in 0..T {
                groups[t] = &tokens[t][group];
            }
            let totals = totals::<U, T>(panel, chunk, &groups);
            let scales = &panel.scales[chunk];
            let mins = &panel.mins[chunk];
            for t in 0..T {
                let x_scale = _mm512_set1_ps(groups[t].scale);
                for half in 0..2 {
                    let scale = _mm512_mul_ps(load(scales, half), x_scale);
                    let total = _mm512_cvtepi32_ps(totals[t][half]);
                    acc[t][half] = _mm512_fmadd_ps(scale, total, acc[t][half]);
                    if U::MINS {
                        let x_sum = _mm512_set1_ps(scaled::<U>(groups[t], chunk));
                        acc[t][half] = _mm512_fnmadd_ps(load(mins, half), x_sum, acc[t][half]);
                    }
                }
            }
        }
        for t in 0..T {
            for half in 0..2 {
                let to: &mut [f32; 16] = &mut sums[t][turn].as_chunks_mut().0[half];
                // SAFETY: the array has room for the sixteen floats that are written.
                unsafe { _mm512_storeu_ps(to.as_mut_ptr(), acc[t][half]) };
            }
        }
    }
}

/// Returns the sums of products of a chunk of 32 rows times `T` groups of activations.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
#[expect(clippy::needless_range_loop, reason = "several arrays have the index")]
fn totals<U: Unpack, const T: usize>(
    panel: &Panel,
    chunk: usize,
    groups: &[&Group; T],
) -> [[__m512i; 2]; T] {
    // Plain loops over indices: what closures and iterators do may be compiled apart from here,
    // without the instructions of this tier.
    let fours = &panel.bytes[chunk * (U::CHUNK / 4)..][..U::CHUNK / 4];
    let at = chunk * U::CHUNK % GROUP;
    let mut totals = [[_mm512_setzero_si512(); 2]; T];
    for part in [0, GROUP] {
        let mut x = [&[][..]; T];
        for t in 0..T {
            x[t] = &groups[t].codes[part + at..][..U::CHUNK];
        }
        for i in 0..U::CHUNK / 4 {
            let bytes = [load_64(&fours[i], 0), load_64(&fours[i], 64)];
            for t in 0..T {
                // SAFETY: there are four codes for each of `fours` in the slice.
                let four = unsafe { x[t].as_chunks().0.get_unchecked(i) };
                let x = _mm512_set1_epi32(i32::from_le_bytes(*four));
                totals[t][0] = _mm512_dpbusd_epi32(totals[t][0], bytes[0], x);
                totals[t][1] = _mm512_dpbusd_epi32(totals[t][1], bytes[1], x);
            }
        }
        if part == 0 {
            for t in 0..T {
                totals[t][0] = _mm512_slli_epi32::<8>(totals[t][0]);
                totals[t][1] = _mm512_slli_epi32::<8>(totals[t][1]);
            }
        }
    }
    if let Some(zero) = U::ZERO_LOG2 {
        for t in 0..T {
            let x_sum = _mm512_set1_epi32(sum::<U>(groups[t], chunk) << zero);
            totals[t][0] = _mm512_sub_epi32(totals[t][0], x_sum);
            totals[t][1] = _mm512_sub_epi32(totals[t][1], x_sum);
        }
    }
    totals
}

/// Returns the sum of the codes that a chunk meets.
#[inline]
fn sum<U: Unpack>(group: &Group, chunk: usize) -> i32 {
    match U::CHUNK {
        16 => group.sums_16[chunk % 8],
        32 => group.sums_32[chunk % 4],
        64 => group.sums_64[chunk % 2],
        _ => group.sum,
    }
}

/// Returns the scaled sum of the codes that a chunk meets.
#[inline]
pub(in crate::formats) fn scaled<U: Unpack>(group: &Group, chunk: usize) -> f32 {
    match U::CHUNK {
        16 => group.scaled_16[chunk % 8],
        _ => group.scaled_32[chunk % 4],
    }
}

#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
#[inline]
pub(in crate::formats) fn load(rows: &[f32; ROWS], half: usize) -> std::arch::x86_64::__m512 {
    let half: &[f32; 16] = &rows.as_chunks().0[half];
    // SAFETY: the array has the sixteen floats that are read.
    unsafe { _mm512_loadu_ps(half.as_ptr()) }
}

/// Writes the products of 32 rows, or of as many as there are.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni")]
fn store(sums: &[Sums], first_row: usize, rows: usize, out: &mut Out<'_, '_>) {
    for (token, sums) in sums.iter().enumerate() {
        let mut products = [0.0; ROWS];
        for half in 0..2 {
            let even = _mm512_add_ps(load(&sums[0], half), load(&sums[2], half));
            let odd = _mm512_add_ps(load(&sums[1], half), load(&sums[3], half));
            let product = _mm512_add_ps(even, odd);
            let to: &mut [f32; 16] = &mut products.as_chunks_mut().0[half];
            // SAFETY: the array has room for the sixteen floats that are written.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr(), product) };
        }
        let count = ROWS.min(rows - first_row);
        out.token(token)[first_row..][..count].copy_from_slice(&products[..count]);
    }
}
