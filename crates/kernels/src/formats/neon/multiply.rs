//! The instructions that multiply codes with activations, in each form that activations have.
//!
//! Invariant: sums are exact; which products a lane has is of no concern, since the lanes of a chunk
//! are added up before anything is rounded.
#![expect(
    unsafe_code,
    reason = "a tier: its functions run only where a token proves their features"
)]

use std::arch::aarch64::{
    int8x16_t, int16x8_t, int32x4_t, vaddq_s32, vdupq_n_s32, vget_low_s8, vget_low_s16, vld1q_s8,
    vmlal_high_s16, vmlal_s16, vmovl_high_s8, vmovl_s8, vreinterpretq_s8_u8, vreinterpretq_s16_u8,
    vshlq_n_s32,
};

use super::load_16;
use crate::isa::{Neon, NeonDot};
use crate::quantized::{GROUP, Group};

/// The products of a chunk; callers have the features of the token that implements it.
pub(super) trait Multiply: Copy {
    /// Returns four numbers whose sum is that of the products of `codes` and the activations of a
    /// group from number `at` on.
    unsafe fn products(codes: &[i8], group: &Group, at: usize) -> int32x4_t;
}

impl Multiply for Neon {
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn products(codes: &[i8], group: &Group, at: usize) -> int32x4_t {
        let mut sums = [vdupq_n_s32(0); 2];
        for (i, codes) in codes.as_chunks::<16>().0.iter().enumerate() {
            let codes = load_codes(codes);
            let x = [0, 8].map(|half| load_words(group, at + 16 * i + half));
            for (w, x) in [vmovl_s8(vget_low_s8(codes)), vmovl_high_s8(codes)].into_iter().zip(x) {
                sums[0] = vmlal_s16(sums[0], vget_low_s16(w), vget_low_s16(x));
                sums[1] = vmlal_high_s16(sums[1], w, x);
            }
        }
        vaddq_s32(sums[0], sums[1])
    }
}

impl Multiply for NeonDot {
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn products(codes: &[i8], group: &Group, at: usize) -> int32x4_t {
        let (mut high, mut low) = (vdupq_n_s32(0), vdupq_n_s32(0));
        for (i, codes) in codes.as_chunks::<16>().0.iter().enumerate() {
            let codes = load_codes(codes);
            let [highs, lows] = [0, GROUP]
                .map(|plane| vreinterpretq_s8_u8(load_16(&group.codes, plane + at + 16 * i)));
            // SAFETY: callers have the features of the token.
            high = unsafe { dot(high, codes, highs) };
            // SAFETY: as above.
            low = unsafe { dot(low, codes, lows) };
        }
        vaddq_s32(vshlq_n_s32::<8>(high), low)
    }
}

/// Adds to each sum the products of its four bytes; callers have the features of [`NeonDot`].
#[target_feature(enable = "neon")]
#[inline]
unsafe fn dot(mut sums: int32x4_t, codes: int8x16_t, x: int8x16_t) -> int32x4_t {
    // A function with the feature would not be inlined into those that lack it.
    // SAFETY: the instruction is of the set that the token proves; it has no other effects.
    unsafe {
        std::arch::asm!(
            ".arch_extension dotprod",
            "sdot {sums:v}.4s, {codes:v}.16b, {x:v}.16b",
            sums = inout(vreg) sums,
            codes = in(vreg) codes,
            x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

#[target_feature(enable = "neon")]
#[inline]
fn load_codes(codes: &[i8; 16]) -> int8x16_t {
    // SAFETY: the array has the 16 codes that are read.
    unsafe { vld1q_s8(codes.as_ptr()) }
}

/// Reads eight activations in the form of words.
#[target_feature(enable = "neon")]
#[inline]
fn load_words(group: &Group, at: usize) -> int16x8_t {
    vreinterpretq_s16_u8(load_16(&group.codes, 2 * at))
}
