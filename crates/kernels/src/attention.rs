//! Grouped-query attention of one position over one KV head (arXiv:2305.13245).
//!
//! Invariant: a score depends on its own key alone, and values are added in the order of positions,
//! so neither the sizes of the pages nor the number of query heads that share a KV head change a
//! bit. Knows nothing about who owns the pages.

use std::array::from_fn;

use half::f16;

use crate::convert::Stored;
use crate::isa::Tier;
use crate::isa::tiered::tiered;
use crate::lanes::sum16;
use crate::softmax::softmax;

/// The f32 values that are worked on together.
const LANES: usize = 16;

/// One page of one KV head: keys and values `[positions, head_dim]`.
#[derive(Clone, Copy)]
pub enum KvSlice<'a> {
    /// Half precision.
    F16 {
        /// One key per position.
        keys: &'a [f16],
        /// One value per position.
        values: &'a [f16],
    },
    /// Single precision.
    F32 {
        /// One key per position.
        keys: &'a [f32],
        /// One value per position.
        values: &'a [f32],
    },
}

/// The queries of one position that share a KV head.
#[derive(Clone, Copy)]
pub struct Query<'a> {
    /// `[group, head_dim]`, already rotated.
    pub values: &'a [f32],
    /// The length of one head.
    pub head_dim: usize,
    /// What the dot products are multiplied with, usually 1 / √`head_dim`.
    pub scale: f32,
}

/// Writes softmax(query · keys · scale) · values to `out`, over the first `positions` positions of
/// `pages`.
///
/// `scores`: scratch, at least `group · positions`. `out`: `[group, head_dim]`.
///
/// # Panics
/// If the lengths do not fit each other or `pages` hold fewer than `positions` positions.
pub fn attend<'a>(
    tier: Tier,
    query: &Query<'_>,
    pages: impl Iterator<Item = KvSlice<'a>> + Clone,
    positions: usize,
    scores: &mut [f32],
    out: &mut [f32],
) {
    let Query { values: queries, head_dim, scale } = *query;
    assert!(head_dim > 0 && queries.len().is_multiple_of(head_dim), "queries are whole heads");
    assert_eq!(queries.len(), out.len(), "one output per query");
    let scores = &mut scores[..queries.len() / head_dim * positions];
    if positions == 0 {
        return out.fill(0.0);
    }
    for_each_page(pages.clone(), head_dim, positions, |page, at, count| {
        let shape = Shape { head_dim, positions, at, count };
        match page {
            KvSlice::F16 { keys, .. } => score_f16(tier, queries, keys, scale, shape, scores),
            KvSlice::F32 { keys, .. } => score_f32(tier, queries, keys, scale, shape, scores),
        }
    });
    for scores in scores.chunks_exact_mut(positions) {
        softmax(tier, scores);
    }
    out.fill(0.0);
    for_each_page(pages, head_dim, positions, |page, at, count| {
        let shape = Shape { head_dim, positions, at, count };
        match page {
            KvSlice::F16 { values, .. } => mix_f16(tier, scores, values, shape, out),
            KvSlice::F32 { values, .. } => mix_f32(tier, scores, values, shape, out),
        }
    });
}

/// Where a page lies among the positions.
#[derive(Clone, Copy)]
struct Shape {
    head_dim: usize,
    /// All positions, the length of a row of scores.
    positions: usize,
    /// The first position of the page.
    at: usize,
    /// How many positions of the page count.
    count: usize,
}

/// Calls `f(page, first position, positions of it that count)` until `positions` are covered.
fn for_each_page<'a>(
    pages: impl Iterator<Item = KvSlice<'a>>,
    head_dim: usize,
    positions: usize,
    mut f: impl FnMut(KvSlice<'a>, usize, usize),
) {
    let mut at = 0;
    for page in pages {
        let (keys, values) = match page {
            KvSlice::F16 { keys, values } => (keys.len(), values.len()),
            KvSlice::F32 { keys, values } => (keys.len(), values.len()),
        };
        assert_eq!(keys, values, "a page holds one value per key");
        let count = (keys / head_dim).min(positions - at);
        f(page, at, count);
        at += count;
        if at == positions {
            return;
        }
    }
    assert_eq!(at, positions, "the pages hold fewer positions than asked for");
}

tiered!(fn score_f16(q: &[f32], keys: &[f16], scale: f32, shape: Shape, scores: &mut [f32])
    = score_page::<f16>);
tiered!(fn score_f32(q: &[f32], keys: &[f32], scale: f32, shape: Shape, scores: &mut [f32])
    = score_page::<f32>);
tiered!(fn mix_f16(scores: &[f32], values: &[f16], shape: Shape, out: &mut [f32])
    = mix_page::<f16>);
tiered!(fn mix_f32(scores: &[f32], values: &[f32], shape: Shape, out: &mut [f32])
    = mix_page::<f32>);

/// Writes the scores of one page for all query heads, up to four of them per pass over the keys.
#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn score_page<T: Stored>(q: &[f32], keys: &[T], scale: f32, shape: Shape, scores: &mut [f32]) {
    let heads = q.len() / shape.head_dim;
    let mut head = 0;
    while head < heads {
        let q = &q[head * shape.head_dim..];
        let scores = &mut scores[head * shape.positions..];
        head += match heads - head {
            1 => score_heads::<T, 1>(q, keys, scale, shape, scores),
            2 => score_heads::<T, 2>(q, keys, scale, shape, scores),
            3 => score_heads::<T, 3>(q, keys, scale, shape, scores),
            _ => score_heads::<T, 4>(q, keys, scale, shape, scores),
        };
    }
}

/// Writes the scores of one page for `G` heads and returns `G`.
#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn score_heads<T: Stored, const G: usize>(
    q: &[f32],
    keys: &[T],
    scale: f32,
    shape: Shape,
    scores: &mut [f32],
) -> usize {
    let dim = shape.head_dim;
    let q: [&[f32]; G] = from_fn(|g| &q[g * dim..][..dim]);
    for (i, key) in keys.chunks_exact(dim).take(shape.count).enumerate() {
        let mut sums = [[0.0_f32; LANES]; G];
        let mut whole = key.chunks_exact(LANES);
        let mut d = 0;
        for key in &mut whole {
            let key: [f32; LANES] = from_fn(|l| key[l].widen());
            for (sums, q) in sums.iter_mut().zip(q) {
                let q = &q[d..d + LANES];
                for l in 0..LANES {
                    sums[l] += key[l] * q[l];
                }
            }
            d += LANES;
        }
        for (l, key) in whole.remainder().iter().enumerate() {
            for (sums, q) in sums.iter_mut().zip(q) {
                sums[l] += key.widen() * q[d + l];
            }
        }
        for (g, sums) in sums.into_iter().enumerate() {
            scores[g * shape.positions + shape.at + i] = sum16(sums) * scale;
        }
    }
    G
}

/// Adds the weighted values of one page to all heads of `out`, up to four of them per pass.
#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn mix_page<T: Stored>(scores: &[f32], values: &[T], shape: Shape, out: &mut [f32]) {
    let heads = out.len() / shape.head_dim;
    let mut head = 0;
    while head < heads {
        let scores = &scores[head * shape.positions..];
        let out = &mut out[head * shape.head_dim..];
        head += match heads - head {
            1 => mix_heads::<T, 1>(scores, values, shape, out),
            2 => mix_heads::<T, 2>(scores, values, shape, out),
            3 => mix_heads::<T, 3>(scores, values, shape, out),
            _ => mix_heads::<T, 4>(scores, values, shape, out),
        };
    }
}

/// Adds the weighted values of one page to `G` heads and returns `G`.
#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn mix_heads<T: Stored, const G: usize>(
    scores: &[f32],
    values: &[T],
    shape: Shape,
    out: &mut [f32],
) -> usize {
    let dim = shape.head_dim;
    let scores: [&[f32]; G] = from_fn(|g| &scores[g * shape.positions + shape.at..][..shape.count]);
    let mut d = 0;
    while d + LANES <= dim {
        let mut sums: [[f32; LANES]; G] = from_fn(|g| from_fn(|l| out[g * dim + d + l]));
        for (i, value) in values.chunks_exact(dim).take(shape.count).enumerate() {
            let value = &value[d..d + LANES];
            let value: [f32; LANES] = from_fn(|l| value[l].widen());
            for (sums, scores) in sums.iter_mut().zip(scores) {
                let score = scores[i];
                for l in 0..LANES {
                    sums[l] += score * value[l];
                }
            }
        }
        for (g, sums) in sums.iter().enumerate() {
            out[g * dim + d..][..LANES].copy_from_slice(sums);
        }
        d += LANES;
    }
    for d in d..dim {
        for (g, scores) in scores.iter().enumerate() {
            let out = &mut out[g * dim + d];
            for (value, score) in values.chunks_exact(dim).zip(*scores) {
                *out += score * value[d].widen();
            }
        }
    }
    G
}
