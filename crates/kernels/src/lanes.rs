//! Sums over explicit lanes.
//!
//! Invariant: one fixed tree, so that a sum has the same bits whatever the width of the vectors.

/// Returns the sum of 16 lanes: the upper half is added to the lower until one is left.
#[expect(clippy::inline_always, reason = "each tier compiles its own copy into its loops")]
#[inline(always)]
pub(crate) fn sum16(lanes: [f32; 16]) -> f32 {
    let a: [f32; 8] = std::array::from_fn(|i| lanes[i] + lanes[i + 8]);
    let b: [f32; 4] = std::array::from_fn(|i| a[i] + a[i + 4]);
    (b[0] + b[2]) + (b[1] + b[3])
}
