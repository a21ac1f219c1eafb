//! RMS normalization (arXiv:1910.07467).
//!
//! Invariant: the squares of a row are summed in 32 lanes by fused multiply-adds and those in a fixed
//! tree, so a row's result depends on that row alone. Knows nothing about where the rows come from.

use crate::isa::Tier;
use crate::isa::tiered::tiered;
use crate::lanes::sum16;

const LANES: usize = 32;

/// Normalizes the rows of `x`: `out = x / sqrt(mean(x²) + eps) · weight`.
///
/// `x`, `out`: `[rows, weight.len()]`.
///
/// # Panics
/// If the lengths differ or are not whole rows.
pub fn rms_norm(tier: Tier, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    check_rows(x.len(), weight.len());
    assert_eq!(x.len(), out.len(), "one output per input");
    norm(tier, x, weight, eps, out);
}

/// Adds the rows of `y` to `x` and replaces them by what [`rms_norm`] makes of the sums.
///
/// `x`, `y`: `[rows, weight.len()]`.
///
/// # Panics
/// If the lengths differ or are not whole rows.
pub fn add_rms_norm(tier: Tier, x: &mut [f32], y: &mut [f32], weight: &[f32], eps: f32) {
    check_rows(x.len(), weight.len());
    assert_eq!(x.len(), y.len(), "one addend per value");
    add_norm(tier, x, y, weight, eps);
}

/// Normalizes the rows of `x` in place, as the per-head normalization of queries and keys does.
///
/// # Panics
/// If `x` is not made of whole rows of `weight.len()`.
pub fn rms_norm_in_place(tier: Tier, x: &mut [f32], weight: &[f32], eps: f32) {
    check_rows(x.len(), weight.len());
    norm_in_place(tier, x, weight, eps);
}

fn check_rows(len: usize, width: usize) {
    assert!(width > 0 && len.is_multiple_of(width), "{len} values are no whole rows of {width}");
}

tiered!(fn norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) = rows);
tiered!(fn add_norm(x: &mut [f32], y: &mut [f32], weight: &[f32], eps: f32) = add_rows);
tiered!(fn norm_in_place(x: &mut [f32], weight: &[f32], eps: f32) = rows_in_place);

#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn rows(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    for (x, out) in x.chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
        let scale = scale(x, eps);
        for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
            *out = (x * scale) * weight;
        }
    }
}

#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn add_rows(x: &mut [f32], y: &mut [f32], weight: &[f32], eps: f32) {
    for (x, y) in x.chunks_exact_mut(weight.len()).zip(y.chunks_exact_mut(weight.len())) {
        for (x, y) in x.iter_mut().zip(&*y) {
            *x += y;
        }
        rows(x, weight, eps, y);
    }
}

#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn rows_in_place(x: &mut [f32], weight: &[f32], eps: f32) {
    for x in x.chunks_exact_mut(weight.len()) {
        let scale = scale(x, eps);
        for (x, weight) in x.iter_mut().zip(weight) {
            *x = (*x * scale) * weight;
        }
    }
}

/// Returns 1 / sqrt(mean(x²) + eps).
#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[expect(clippy::cast_precision_loss, reason = "a row is far shorter than 2^52")]
#[expect(clippy::cast_possible_truncation, reason = "the scale is rounded to f32 on purpose")]
#[inline(always)]
fn scale(x: &[f32], eps: f32) -> f32 {
    let mut sums = [0.0_f32; LANES];
    let mut whole = x.chunks_exact(LANES);
    for x in &mut whole {
        for (sum, x) in sums.iter_mut().zip(x) {
            *sum = x.mul_add(*x, *sum);
        }
    }
    for (sum, x) in sums.iter_mut().zip(whole.remainder()) {
        *sum = x.mul_add(*x, *sum);
    }
    let mean = f64::from(sum16(std::array::from_fn(|i| sums[i] + sums[i + 16]))) / x.len() as f64;
    (1.0 / (mean + f64::from(eps)).sqrt()) as f32
}
