//! The elementwise operations between matrix products: `SwiGLU` (arXiv:2002.05202) and the residual
//! addition.
//!
//! Invariant: each output depends on the inputs of its own index alone.

use crate::exp::exp;
use crate::isa::Tier;
use crate::isa::tiered::tiered;

/// Replaces `gate` by `silu(gate) · up`, where silu(g) = g / (1 + exp(−g)).
///
/// # Panics
/// If the lengths differ.
pub fn swiglu_in_place(tier: Tier, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "one gate per value");
    gated(tier, gate, up);
}

/// Adds `y` to `x`.
///
/// # Panics
/// If the lengths differ.
pub fn add_in_place(tier: Tier, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "one addend per value");
    added(tier, x, y);
}

tiered!(fn gated(gate: &mut [f32], up: &[f32]) = gate_all);
tiered!(fn added(x: &mut [f32], y: &[f32]) = add_all);

#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn gate_all(gate: &mut [f32], up: &[f32]) {
    for (gate, up) in gate.iter_mut().zip(up) {
        *gate = *gate / (1.0 + exp(-*gate)) * up;
    }
}

#[expect(clippy::inline_always, reason = "each tier compiles its own copy")]
#[inline(always)]
fn add_all(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}
