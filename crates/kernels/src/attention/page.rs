//! What one page of keys and values adds to the states of the queries that see it.
//!
//! Invariant: a score is summed over the numbers of its key in their order, a value over the
//! positions in theirs, and a position beyond a query's own adds nothing, whatever is stored there.
//! How many queries and vectors are computed at once is a matter of registers only.

use std::array::from_fn;
use std::ops::Range;

use half::f16;

use super::state::{finite, state_length};
use super::{Numbers, PAGE, Page, Queries};
use crate::convert::{Q8_LENGTH, Stored};
use crate::exp::{exp, exp_lanes};
use crate::isa::lanes::{LANES, Lanes, padded};
use crate::isa::tiered::tiered;

/// Rows that are computed together, at most.
const ROWS: usize = 6;

/// Bytes in a cache line.
const LINE: usize = 64;

/// Vectors of scores in a page.
const VECTORS: usize = PAGE / LANES;

/// Scores, and then powers, of some rows over a page.
type Scores<const R: usize> = [[f32; PAGE]; R];

/// The numbers of a kind of page.
trait Paged: Stored {
    /// Returns the keys of a page, if they are of this kind.
    fn keys(page: Page<'_>) -> Option<&[Self]>;
}

impl Paged for f16 {
    fn keys(page: Page<'_>) -> Option<&[Self]> {
        if let Page::F16 { keys, .. } = page { Some(keys) } else { None }
    }
}

impl Paged for f32 {
    fn keys(page: Page<'_>) -> Option<&[Self]> {
        if let Page::F32 { keys, .. } = page { Some(keys) } else { None }
    }
}

impl Paged for i8 {
    fn keys(page: Page<'_>) -> Option<&[Self]> {
        if let Page::Q8_0 { keys, .. } = page { Some(keys.codes) } else { None }
    }
}

tiered!(pub(super) fn add_f16(
    queries: &Queries<'_>, at: usize, keys: Numbers<'_, f16>, values: Numbers<'_, f16>,
    next: Option<Page<'_>>, states: &mut [f32]
) = add_page::<f16> in lanes);
tiered!(pub(super) fn add_f32(
    queries: &Queries<'_>, at: usize, keys: Numbers<'_, f32>, values: Numbers<'_, f32>,
    next: Option<Page<'_>>, states: &mut [f32]
) = add_page::<f32> in lanes);
tiered!(pub(super) fn add_q8_0(
    queries: &Queries<'_>, at: usize, keys: Numbers<'_, i8>, values: Numbers<'_, i8>,
    next: Option<Page<'_>>, states: &mut [f32]
) = add_page::<i8> in lanes);

/// Adds the page whose first position is `at` to the states of all rows that see it, while what
/// comes next in memory is fetched.
#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn add_page<L: Lanes, T: Paged>(
    isa: L::Isa,
    queries: &Queries<'_>,
    at: usize,
    keys: Numbers<'_, T>,
    values: Numbers<'_, T>,
    next: Option<Page<'_>>,
    states: &mut [f32],
) {
    let length = state_length(queries.head_dim);
    // Rows are in the order of tokens.
    let mut row = at.saturating_sub(queries.position) * queries.group;
    let mut step = Step { queries, at, row, keys, values, ahead: [&[]; 2] };
    // The first rows fetch the values while they read the keys, then the next page's keys.
    step.ahead = [values.numbers, next.and_then(T::keys).unwrap_or(&[])].map(|x| x.as_chunks().0);
    while row < queries.rows() {
        let left = queries.rows() - row;
        let states = &mut states[row * length..];
        step.row = row;
        // As even as possible.
        row += match left.div_ceil(left.div_ceil(ROWS)) {
            1 => add_rows::<L, T, 1>(isa, &step, states),
            2 => add_rows::<L, T, 2>(isa, &step, states),
            3 => add_rows::<L, T, 3>(isa, &step, states),
            4 => add_rows::<L, T, 4>(isa, &step, states),
            5 => add_rows::<L, T, 5>(isa, &step, states),
            _ => add_rows::<L, T, ROWS>(isa, &step, states),
        };
        step.ahead = [&[]; 2];
    }
}

/// Some rows at a page.
struct Step<'a, T> {
    queries: &'a Queries<'a>,
    at: usize,
    row: usize,
    keys: Numbers<'a, T>,
    values: Numbers<'a, T>,
    /// What to fetch while keys are read, and while values are.
    ahead: [&'a [[T; PAGE]]; 2],
}

/// Adds the page to the first `R` states and returns `R`.
#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn add_rows<L: Lanes, T: Stored, const R: usize>(
    isa: L::Isa,
    step: &Step<'_, T>,
    states: &mut [f32],
) -> usize {
    let (head_dim, length) = (step.queries.head_dim, state_length(step.queries.head_dim));
    let counts: [usize; R] = from_fn(|r| (step.queries.limit(step.row + r) - step.at).min(PAGE));
    // The last row sees the most.
    let vectors = counts[R - 1].div_ceil(LANES);
    let mut scores: Scores<R> = [[0.0; PAGE]; R];
    let mut first = 0;
    while first < vectors {
        first += if L::MANY && vectors > 1 {
            score::<L, T, R, VECTORS>(isa, step, first, &mut scores)
        } else {
            score::<L, T, R, 1>(isa, step, first, &mut scores)
        };
    }
    let rows = scores.iter_mut().zip(&counts).zip(states.chunks_exact_mut(length));
    for ((scores, &count), state) in rows {
        scores[count..].fill(f32::NEG_INFINITY);
        weigh::<L>(isa, &mut scores.as_chunks_mut().0[..count.div_ceil(LANES)], state);
    }
    let mut start = 0;
    while start < head_dim {
        start += mix::<L, T, R>(isa, step, &counts, start, &scores, states);
    }
    R
}

/// Writes the scores of `W` vectors of positions for `R` rows and returns `W`.
#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn score<L: Lanes, T: Stored, const R: usize, const W: usize>(
    isa: L::Isa,
    step: &Step<'_, T>,
    first: usize,
    scores: &mut Scores<R>,
) -> usize {
    let q: [&[f32]; R] = from_fn(|r| step.queries.row(step.row + r));
    let keys = step.keys.numbers.as_chunks().0;
    let ahead = if first == 0 { step.ahead[0] } else { &[] };
    let mut sums = [[L::splat(isa, 0.0); W]; R];
    if step.keys.scales.is_empty() {
        sums = dots(isa, q, keys, first, ahead);
    }
    for (block, scales) in step.keys.scales.iter().enumerate() {
        let start = block * Q8_LENGTH;
        let q = q.map(|q| &q[start..][..Q8_LENGTH]);
        let ahead = ahead.get(start..).unwrap_or(&[]);
        let dots: [[L; W]; R] = dots(isa, q, &keys[start..][..Q8_LENGTH], first, ahead);
        for w in 0..W {
            let scale = L::load_f16(isa, &scales.as_chunks().0[first + w]);
            for r in 0..R {
                sums[r][w] = sums[r][w].add_product(dots[r][w], scale);
            }
        }
    }
    let scale = L::splat(isa, step.queries.scale);
    for (scores, sums) in scores.iter_mut().zip(sums) {
        for (scores, sum) in scores.as_chunks_mut().0[first..].iter_mut().zip(sums) {
            sum.mul(scale).store(scores);
        }
    }
    W
}

/// Returns the products of `R` queries with the keys in `W` vectors of positions.
#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn dots<L: Lanes, T: Stored, const R: usize, const W: usize>(
    isa: L::Isa,
    q: [&[f32]; R],
    keys: &[[T; PAGE]],
    first: usize,
    ahead: &[[T; PAGE]],
) -> [[L; W]; R] {
    let q = q.map(|q| &q[..keys.len()]);
    let mut sums = [[L::splat(isa, 0.0); W]; R];
    for (d, keys) in keys.iter().enumerate() {
        fetch::<L, T>(isa, ahead, d..d + 1);
        let keys = &keys.as_chunks().0[first..][..W];
        let keys: [L; W] = from_fn(|w| T::load(isa, &keys[w]));
        for (sums, q) in sums.iter_mut().zip(q) {
            let q = L::splat(isa, q[d]);
            for (sum, key) in sums.iter_mut().zip(keys) {
                *sum = sum.add_product(key, q);
            }
        }
    }
    sums
}

/// Fetches chunks of what will be read next, where there are any.
#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn fetch<L: Lanes, T>(isa: L::Isa, ahead: &[[T; PAGE]], chunks: Range<usize>) {
    for chunk in ahead.get(chunks).unwrap_or(&[]) {
        for line in chunk.chunks_exact(LINE / size_of::<T>()) {
            L::prefetch(isa, &line[0]);
        }
    }
}

/// Turns scores into powers relative to the largest score so far and adds these to the state,
/// whose sums are made relative to it.
#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn weigh<L: Lanes>(isa: L::Isa, scores: &mut [[f32; LANES]], state: &mut [f32]) {
    let (max, sums) = state.split_last_mut().expect("a state has a largest score");
    let mut lanes = L::splat(isa, f32::NEG_INFINITY);
    for scores in &*scores {
        lanes = L::load(isa, scores).max(lanes);
    }
    let mut largest = [0.0; LANES];
    lanes.max(L::splat(isa, *max)).store(&mut largest);
    let new = largest_of(largest);
    if new > *max {
        let factor = exp(*max - new);
        for sum in &mut *sums {
            *sum *= factor;
        }
        *max = new;
    }
    let shift = L::splat(isa, -finite(*max));
    let powers = sums.last_chunk_mut().expect("a state has a sum of powers");
    let mut sum = L::load(isa, powers);
    for scores in scores {
        let power = exp_lanes(isa, L::load(isa, scores).add(shift));
        sum = sum.add(power);
        power.store(scores);
    }
    sum.store(powers);
}

/// Returns the largest of numbers of which none is NaN.
#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn largest_of(lanes: [f32; LANES]) -> f32 {
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let a: [f32; 8] = from_fn(|i| larger(lanes[i], lanes[i + 8]));
    let b: [f32; 4] = from_fn(|i| larger(a[i], a[i + 4]));
    larger(larger(b[0], b[2]), larger(b[1], b[3]))
}

/// Adds the weighted values, from the number `start` on, to the first `R` states and returns how
/// many numbers these were.
#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn mix<L: Lanes, T: Stored, const R: usize>(
    isa: L::Isa,
    step: &Step<'_, T>,
    counts: &[usize; R],
    start: usize,
    powers: &Scores<R>,
    states: &mut [f32],
) -> usize {
    let (mut weights, mut most) = (powers, if L::MANY { 4 } else { 1 });
    let mut scaled;
    if let Some(scales) = step.values.scales.get(start / Q8_LENGTH) {
        most = most.min(Q8_LENGTH / LANES);
        scaled = *powers;
        for powers in &mut scaled {
            times::<L>(isa, powers, scales);
        }
        weights = &scaled;
    }
    let left = (step.queries.head_dim - start) / LANES;
    match left.min(most) {
        0 => mix_rest::<L, T>(isa, step, counts, start, weights, states),
        1 => mix_columns::<L, T, R, 1>(isa, step, counts, start, weights, states),
        2 | 3 => mix_columns::<L, T, R, 2>(isa, step, counts, start, weights, states),
        _ => mix_columns::<L, T, R, 4>(isa, step, counts, start, weights, states),
    }
}

#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn times<L: Lanes>(isa: L::Isa, powers: &mut [f32; PAGE], scales: &[f16; PAGE]) {
    for (powers, scales) in powers.as_chunks_mut().0.iter_mut().zip(scales.as_chunks().0) {
        L::load(isa, powers).mul(L::load_f16(isa, scales)).store(powers);
    }
}

/// Adds `W` vectors of each weighted value and returns how many numbers these are.
#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn mix_columns<L: Lanes, T: Stored, const R: usize, const W: usize>(
    isa: L::Isa,
    step: &Step<'_, T>,
    counts: &[usize; R],
    start: usize,
    weights: &Scores<R>,
    states: &mut [f32],
) -> usize {
    let length = state_length(step.queries.head_dim);
    // The first row sees the fewest positions.
    add_values::<L, T, R, W>(isa, step, start, 0..counts[0], weights, states);
    for (r, &count) in counts.iter().enumerate().skip(1) {
        let weights = &[weights[r]];
        let state = &mut states[r * length..];
        add_values::<L, T, 1, W>(isa, step, start, counts[0]..count, weights, state);
    }
    W * LANES
}

/// Adds `W` vectors of the weighted values at some positions of the page.
#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn add_values<L: Lanes, T: Stored, const R: usize, const W: usize>(
    isa: L::Isa,
    step: &Step<'_, T>,
    start: usize,
    positions: Range<usize>,
    weights: &Scores<R>,
    states: &mut [f32],
) {
    if positions.is_empty() {
        return;
    }
    let (dim, length) = (step.queries.head_dim, state_length(step.queries.head_dim));
    let ahead = if start == 0 { step.ahead[1] } else { &[] };
    let mut sums: [[L; W]; R] =
        from_fn(|r| from_fn(|w| L::load(isa, &states[r * length + start..].as_chunks().0[w])));
    for i in positions {
        fetch::<L, T>(isa, ahead, i * dim / PAGE..(i + 1) * dim / PAGE);
        let value = &step.values.numbers[i * dim + start..][..W * LANES];
        let value: [L; W] = from_fn(|w| T::load(isa, &value.as_chunks().0[w]));
        for (sums, weights) in sums.iter_mut().zip(weights) {
            let weight = L::splat(isa, weights[i]);
            for (sum, value) in sums.iter_mut().zip(value) {
                *sum = sum.add_product(value, weight);
            }
        }
    }
    for (state, sums) in states.chunks_mut(length).zip(sums) {
        for (state, sum) in state[start..].as_chunks_mut().0.iter_mut().zip(sums) {
            sum.store(state);
        }
    }
}

/// Adds what is beyond the last whole vector of each weighted value and returns how much it is.
#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn mix_rest<L: Lanes, T: Stored>(
    isa: L::Isa,
    step: &Step<'_, T>,
    counts: &[usize],
    start: usize,
    weights: &[[f32; PAGE]],
    states: &mut [f32],
) -> usize {
    let dim = step.queries.head_dim;
    let rows = counts.iter().zip(weights).zip(states.chunks_mut(state_length(dim)));
    for ((&count, weights), state) in rows {
        let state = &mut state[start..dim];
        let mut sums = L::load(isa, &padded(state, 0.0));
        for (value, &weight) in step.values.numbers.chunks_exact(dim).zip(&weights[..count]) {
            let value = T::load::<L>(isa, &padded(&value[start..], T::ZERO));
            sums = sums.add_product(value, L::splat(isa, weight));
        }
        let mut lanes = [0.0; LANES];
        sums.store(&mut lanes);
        state.copy_from_slice(&lanes[..dim - start]);
    }
    dim - start
}
