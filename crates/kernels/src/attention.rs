//! Grouped-query attention (arXiv:2305.13245) with a softmax that is corrected page by page
//! (arXiv:1805.02867).
//!
//! Invariant: what a query gets depends on its position and on the keys and values up to there, bit
//! for bit: positions are taken in pages and pages in parts whose bounds are the same for every
//! query, so neither the other queries of a call nor who computes which part changes anything.
//! Knows nothing about who owns the pages.

use half::f16;

use crate::convert::Q8_LENGTH;
use crate::isa::Tier;

mod page;
mod state;

pub use state::{finish, merge, state_length};

/// Positions in a page.
pub const PAGE: usize = 64;

/// Positions in a part, whose sums are computed from zero and then merged.
pub const PART: usize = 4 * PAGE;

/// One page of one KV head: keys `[head_dim, PAGE]`, so that a vector holds one number of several
/// keys, and values `[PAGE, head_dim]`.
#[derive(Clone, Copy)]
pub enum Page<'a> {
    /// Half precision.
    F16 {
        /// Keys.
        keys: &'a [f16],
        /// Values.
        values: &'a [f16],
    },
    /// Single precision.
    F32 {
        /// Keys.
        keys: &'a [f32],
        /// Values.
        values: &'a [f32],
    },
    /// Eight-bit codes; `head_dim` is a multiple of [`Q8_LENGTH`].
    Q8_0 {
        /// Keys.
        keys: Codes<'a>,
        /// Values.
        values: Codes<'a>,
    },
}

/// Numbers as codes; a number is scale · code.
#[derive(Clone, Copy)]
pub struct Codes<'a> {
    /// In the order of the page's numbers.
    pub codes: &'a [i8],
    /// `[head_dim / Q8_LENGTH, PAGE]`.
    pub scales: &'a [f16],
}

/// Stores a key, or the scales of a key or of a value, at a place of a page; `PAGE` are there.
///
/// # Panics
/// If the page is not made of such keys.
pub fn put_key<T: Copy>(place: usize, key: &[T], page: &mut [T]) {
    let numbers = page.as_chunks_mut::<PAGE>().0;
    assert_eq!(key.len(), numbers.len(), "a page of keys of this length");
    for (numbers, &number) in numbers.iter_mut().zip(key) {
        numbers[place] = number;
    }
}

/// Stores a value at a place of a page.
///
/// # Panics
/// If the page has no such place.
pub fn put_value<T: Copy>(place: usize, value: &[T], page: &mut [T]) {
    page[place * value.len()..][..value.len()].copy_from_slice(value);
}

/// Queries of one or more tokens in a row that share a KV head.
#[derive(Clone, Copy)]
pub struct Queries<'a> {
    /// Heads of `head_dim` numbers, already rotated: `group` of them for each token.
    pub values: &'a [f32],
    /// How far apart the first heads of two tokens are.
    pub stride: usize,
    /// How many tokens there are.
    pub tokens: usize,
    /// How many heads share the KV head.
    pub group: usize,
    /// The length of one head.
    pub head_dim: usize,
    /// What the dot products are multiplied with, usually 1 / √`head_dim`.
    pub scale: f32,
    /// The position of the first token, which sees the positions up to its own.
    pub position: usize,
}

impl<'a> Queries<'a> {
    /// Returns how many heads of how many tokens there are.
    pub fn rows(&self) -> usize {
        self.tokens * self.group
    }

    /// Returns how many positions the last token sees.
    pub fn positions(&self) -> usize {
        self.position + self.tokens
    }

    /// Returns where a row lies in a buffer like `values`.
    fn offset(&self, row: usize) -> usize {
        row / self.group * self.stride + row % self.group * self.head_dim
    }

    fn row(&self, row: usize) -> &'a [f32] {
        &self.values[self.offset(row)..][..self.head_dim]
    }

    /// Returns how many positions a row sees.
    fn limit(&self, row: usize) -> usize {
        self.position + row / self.group + 1
    }
}

/// Writes softmax(query · keys · scale) · values of every row to `out`, which is laid out like
/// the queries.
///
/// `pages`: from position 0 on. `states`: scratch, two times `rows` of [`state_length`].
///
/// # Panics
/// If the lengths do not fit each other or there are too few pages.
pub fn attend<'a>(
    tier: Tier,
    queries: &Queries<'_>,
    mut pages: impl Iterator<Item = Page<'a>>,
    states: &mut [f32],
    out: &mut [f32],
) {
    let length = state_length(queries.head_dim);
    let (whole, rest) = states.split_at_mut(queries.rows() * length);
    let part = &mut rest[..whole.len()];
    state::clear(queries.head_dim, whole);
    for index in 0..queries.positions().div_ceil(PART) {
        attend_part(tier, queries, index, &mut pages, part);
        merge(tier, queries.head_dim, part, whole);
    }
    for (row, state) in whole.chunks_exact(length).enumerate() {
        finish(state, &mut out[queries.offset(row)..][..queries.head_dim]);
    }
}

/// Writes to `states` what every row has of one part of the positions.
///
/// `pages`: from the part's first position on; those of the part are taken. `states`: one of
/// [`state_length`] for each row.
///
/// # Panics
/// If the lengths do not fit each other or there are too few pages.
pub fn attend_part<'a>(
    tier: Tier,
    queries: &Queries<'_>,
    part: usize,
    mut pages: impl Iterator<Item = Page<'a>>,
    states: &mut [f32],
) {
    let head_dim = queries.head_dim;
    assert_eq!(states.len(), queries.rows() * state_length(head_dim), "a state for each row");
    state::clear(head_dim, states);
    let bounds = part * PART..queries.positions().min((part + 1) * PART);
    let mut next = pages.next();
    for at in bounds.clone().step_by(PAGE) {
        let page = next.expect("there is a page for each position");
        // The last page of the part fetches nothing ahead, as its successor may be somebody else's.
        next = if at + PAGE < bounds.end { pages.next() } else { None };
        match page {
            Page::F16 { keys, values } => {
                let [keys, values] = [keys, values].map(|x| plain(x, head_dim));
                page::add_f16(tier, queries, at, keys, values, next, states);
            }
            Page::F32 { keys, values } => {
                let [keys, values] = [keys, values].map(|x| plain(x, head_dim));
                page::add_f32(tier, queries, at, keys, values, next, states);
            }
            Page::Q8_0 { keys, values } => {
                let [keys, values] = [keys, values].map(|x| coded(x, head_dim));
                page::add_q8_0(tier, queries, at, keys, values, next, states);
            }
        }
    }
}

/// The keys or the values of a page.
#[derive(Clone, Copy)]
struct Numbers<'a, T> {
    numbers: &'a [T],
    /// What the numbers are multiplied with, `[head_dim / Q8_LENGTH]`, or nothing.
    scales: &'a [[f16; PAGE]],
}

fn plain<T>(numbers: &[T], head_dim: usize) -> Numbers<'_, T> {
    assert_eq!(numbers.len(), PAGE * head_dim, "a page has a key and a value per position");
    Numbers { numbers, scales: &[] }
}

fn coded(Codes { codes, scales }: Codes<'_>, head_dim: usize) -> Numbers<'_, i8> {
    assert_eq!(codes.len(), scales.len() * Q8_LENGTH, "a scale for each 32 codes");
    Numbers { scales: scales.as_chunks().0, ..plain(codes, head_dim) }
}
