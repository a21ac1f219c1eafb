//! Grouped-query attention of one position over one KV head (arXiv:2305.13245).
//!
//! Invariant: a score depends on its own key alone, and values are added in the order of positions,
//! so neither the sizes of the pages nor the number of query heads that share a KV head change a
//! bit. Knows nothing about who owns the pages.

use std::array::from_fn;

use half::f16;

use crate::convert::{Q8Block, Stored};
use crate::isa::Tier;
use crate::isa::lanes::{LANES, Lanes, padded};
use crate::isa::tiered::tiered;
use crate::softmax::softmax;

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
    /// Eight-bit codes in blocks; `head_dim` is whole blocks.
    Q8_0 {
        /// One key per position.
        keys: &'a [Q8Block],
        /// One value per position.
        values: &'a [Q8Block],
    },
}

impl KvSlice<'_> {
    /// Returns how many keys there are.
    ///
    /// # Panics
    /// If the values are not as many, or keys of this length are not whole blocks.
    fn positions(&self, head_dim: usize) -> usize {
        fn count<T: Stored>(keys: &[T], values: &[T], head_dim: usize) -> usize {
            assert_eq!(keys.len(), values.len(), "a page holds one value per key");
            assert!(head_dim.is_multiple_of(T::LENGTH), "a key is whole blocks");
            keys.len() / (head_dim / T::LENGTH)
        }
        match self {
            Self::F16 { keys, values } => count(keys, values, head_dim),
            Self::F32 { keys, values } => count(keys, values, head_dim),
            Self::Q8_0 { keys, values } => count(keys, values, head_dim),
        }
    }
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
            KvSlice::Q8_0 { keys, .. } => score_q8_0(tier, queries, keys, scale, shape, scores),
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
            KvSlice::Q8_0 { values, .. } => mix_q8_0(tier, scores, values, shape, out),
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
        let count = page.positions(head_dim).min(positions - at);
        f(page, at, count);
        at += count;
        if at == positions {
            return;
        }
    }
    assert_eq!(at, positions, "the pages hold fewer positions than asked for");
}

tiered!(fn score_f16(q: &[f32], keys: &[f16], scale: f32, shape: Shape, scores: &mut [f32])
    = score_page::<f16> in lanes);
tiered!(fn score_f32(q: &[f32], keys: &[f32], scale: f32, shape: Shape, scores: &mut [f32])
    = score_page::<f32> in lanes);
tiered!(fn score_q8_0(q: &[f32], keys: &[Q8Block], scale: f32, shape: Shape, scores: &mut [f32])
    = score_page::<Q8Block> in lanes);
tiered!(fn mix_f16(scores: &[f32], values: &[f16], shape: Shape, out: &mut [f32])
    = mix_page::<f16> in lanes);
tiered!(fn mix_f32(scores: &[f32], values: &[f32], shape: Shape, out: &mut [f32])
    = mix_page::<f32> in lanes);
tiered!(fn mix_q8_0(scores: &[f32], values: &[Q8Block], shape: Shape, out: &mut [f32])
    = mix_page::<Q8Block> in lanes);

/// Writes the scores of one page for all query heads, up to four of them per pass over the keys.
#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn score_page<L: Lanes, T: Stored>(
    isa: L::Isa,
    q: &[f32],
    keys: &[T],
    scale: f32,
    shape: Shape,
    scores: &mut [f32],
) {
    let heads = q.len() / shape.head_dim;
    let mut head = 0;
    while head < heads {
        let q = &q[head * shape.head_dim..];
        let scores = &mut scores[head * shape.positions..];
        head += match heads - head {
            1 => score_heads::<L, T, 1>(isa, q, keys, scale, shape, scores),
            2 => score_heads::<L, T, 2>(isa, q, keys, scale, shape, scores),
            3 => score_heads::<L, T, 3>(isa, q, keys, scale, shape, scores),
            _ => score_heads::<L, T, 4>(isa, q, keys, scale, shape, scores),
        };
    }
}

/// Writes the scores of one page for `G` heads and returns `G`.
#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn score_heads<L: Lanes, T: Stored, const G: usize>(
    isa: L::Isa,
    q: &[f32],
    keys: &[T],
    scale: f32,
    shape: Shape,
    scores: &mut [f32],
) -> usize {
    let dim = shape.head_dim;
    let q: [&[f32]; G] = from_fn(|g| &q[g * dim..][..dim]);
    let whole_q: [&[[f32; LANES]]; G] = q.map(|q| q.as_chunks().0);
    let rest_q: [&[f32]; G] = q.map(|q| q.as_chunks::<LANES>().1);
    for (i, key) in keys.chunks_exact(dim / T::LENGTH).take(shape.count).enumerate() {
        let (whole, rest) = T::units(key);
        let mut sums = [L::splat(isa, 0.0); G];
        for (u, unit) in whole.iter().enumerate() {
            for chunk in 0..T::CHUNKS {
                let key = T::load::<L>(isa, unit, chunk);
                for g in 0..G {
                    let q = L::load(isa, &whole_q[g][u * T::CHUNKS + chunk]);
                    sums[g] = sums[g].add_product(key, q);
                }
            }
        }
        if !rest.is_empty() {
            let key = T::load::<L>(isa, &T::padded(rest), 0);
            for g in 0..G {
                sums[g] = sums[g].add_product(key, L::load(isa, &padded(rest_q[g], 0.0)));
            }
        }
        for (g, sums) in sums.into_iter().enumerate() {
            scores[g * shape.positions + shape.at + i] = sums.sum() * scale;
        }
    }
    G
}

/// Adds the weighted values of one page to all heads of `out`, up to four of them per pass.
#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn mix_page<L: Lanes, T: Stored>(
    isa: L::Isa,
    scores: &[f32],
    values: &[T],
    shape: Shape,
    out: &mut [f32],
) {
    let heads = out.len() / shape.head_dim;
    let mut head = 0;
    while head < heads {
        let scores = &scores[head * shape.positions + shape.at..];
        let out = &mut out[head * shape.head_dim..];
        head += match heads - head {
            1 => mix_heads::<L, T, 1>(isa, scores, values, shape, out),
            2 => mix_heads::<L, T, 2>(isa, scores, values, shape, out),
            3 => mix_heads::<L, T, 3>(isa, scores, values, shape, out),
            _ => mix_heads::<L, T, 4>(isa, scores, values, shape, out),
        };
    }
}

/// Adds the weighted values of one page to `G` heads and returns `G`.
#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn mix_heads<L: Lanes, T: Stored, const G: usize>(
    isa: L::Isa,
    scores: &[f32],
    values: &[T],
    shape: Shape,
    out: &mut [f32],
) -> usize {
    let dim = shape.head_dim;
    let scores: [&[f32]; G] = from_fn(|g| &scores[g * shape.positions..][..shape.count]);
    for c in 0..dim.div_ceil(LANES) {
        let (start, end) = (c * LANES, dim.min(c * LANES + LANES));
        let mut sums = [L::splat(isa, 0.0); G];
        for (g, sums) in sums.iter_mut().enumerate() {
            *sums = L::load(isa, &padded(&out[g * dim..][start..end], 0.0));
        }
        for (i, value) in values.chunks_exact(dim / T::LENGTH).take(shape.count).enumerate() {
            let (whole, rest) = T::units(value);
            let value = match whole.get(c / T::CHUNKS) {
                Some(unit) => T::load::<L>(isa, unit, c % T::CHUNKS),
                None => T::load::<L>(isa, &T::padded(rest), 0),
            };
            for g in 0..G {
                sums[g] = sums[g].add_product(value, L::splat(isa, scores[g][i]));
            }
        }
        for (g, sums) in sums.into_iter().enumerate() {
            let mut lanes = [0.0; LANES];
            sums.store(&mut lanes);
            out[g * dim..][start..end].copy_from_slice(&lanes[..end - start]);
        }
    }
    G
}
