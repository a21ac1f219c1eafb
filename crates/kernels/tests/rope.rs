//! Rotary embedding against the rotation's definition and `YaRN`'s formulas.

#![expect(clippy::cast_precision_loss, reason = "sizes and indices are small numbers")]

use std::f64::consts::PI;

use toko_kernels::isa::Tier;
use toko_kernels::rope::{Rope, RopeLayout, RopeParams, RopeScaling, Yarn};

fn rope(rotary_dims: usize, base: f32, layout: RopeLayout, scaling: RopeScaling) -> Rope {
    Rope::new(&RopeParams { rotary_dims, base, layout, scaling })
}

fn angles(rope: &Rope, position: u32, dims: usize) -> Vec<f32> {
    let mut angles = vec![0.0; dims];
    rope.angles(position, &mut angles);
    angles
}

/// Values between −2 and 2 without a pattern.
fn head(len: usize) -> Vec<f32> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f32::from(u16::try_from(state >> 16).expect("16 bits")) / 16384.0 - 2.0
    };
    (0..len).map(|_| next()).collect()
}

fn frequency(base: f64, pair: usize, dims: usize) -> f64 {
    base.powf(-2.0 * pair as f64 / dims as f64)
}

#[test]
fn each_pair_is_multiplied_by_a_unit_complex_number() {
    for layout in [RopeLayout::Neox, RopeLayout::Interleaved] {
        let (dims, len, base) = (48, 64, 10_000.0);
        let rope = rope(dims, base, layout, RopeScaling::None);
        for position in [0, 1, 7, 1000, 131_071] {
            let before = head(len);
            let mut after = before.clone();
            rope.rotate(Tier::detect(), &angles(&rope, position, dims), &mut after);
            for pair in 0..dims / 2 {
                let angle = f64::from(position) * frequency(f64::from(base), pair, dims);
                let (a, b) = match layout {
                    RopeLayout::Neox => (pair, pair + dims / 2),
                    RopeLayout::Interleaved => (2 * pair, 2 * pair + 1),
                };
                let (re, im) = (f64::from(before[a]), f64::from(before[b]));
                let expected =
                    [re * angle.cos() - im * angle.sin(), re * angle.sin() + im * angle.cos()];
                assert!(
                    (f64::from(after[a]) - expected[0]).abs() < 1e-6,
                    "{layout:?} {position} {pair}"
                );
                assert!(
                    (f64::from(after[b]) - expected[1]).abs() < 1e-6,
                    "{layout:?} {position} {pair}"
                );
            }
            assert_eq!(before[dims..], after[dims..], "what lies beyond is not rotated");
        }
    }
}

#[test]
fn all_tiers_rotate_to_the_same_bits() {
    for layout in [RopeLayout::Neox, RopeLayout::Interleaved] {
        for dims in [2, 6, 30, 64, 128] {
            let rope = rope(dims, 1e6, layout, RopeScaling::None);
            let angles = angles(&rope, 777, dims);
            let mut expected = head(dims + 3);
            rope.rotate(Tier::Reference, &angles, &mut expected);
            for tier in Tier::available() {
                let mut ours = head(dims + 3);
                rope.rotate(tier, &angles, &mut ours);
                assert!(
                    ours.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()),
                    "{tier}"
                );
            }
        }
    }
}

#[test]
fn linear_scaling_and_factors_divide_the_angles() {
    let (dims, base, position) = (16, 500_000.0, 4321);
    let factors: Vec<f32> = (0..8).map(|i| 1.0 + 0.5 * i as f32).collect();
    let linear = rope(dims, base, RopeLayout::Neox, RopeScaling::Linear { factor: 8.0 });
    let llama = rope(dims, base, RopeLayout::Neox, RopeScaling::Factors(factors.clone()));
    let (linear, llama) = (angles(&linear, position, dims), angles(&llama, position, dims));
    for pair in 0..8 {
        let angle = f64::from(position) * frequency(f64::from(base), pair, dims);
        assert!((f64::from(linear[pair]) - (angle / 8.0).cos()).abs() < 1e-7);
        assert!((f64::from(linear[8 + pair]) - (angle / 8.0).sin()).abs() < 1e-7);
        let divided = angle / f64::from(factors[pair]);
        assert!((f64::from(llama[pair]) - divided.cos()).abs() < 1e-7);
        assert!((f64::from(llama[8 + pair]) - divided.sin()).abs() < 1e-7);
    }
}

fn yarn(ext_factor: f32, attn_factor: f32) -> RopeScaling {
    let (factor, original_context) = (4.0, 16384);
    let (beta_fast, beta_slow) = (32.0, 1.0);
    RopeScaling::Yarn(Yarn {
        factor,
        original_context,
        ext_factor,
        attn_factor,
        beta_fast,
        beta_slow,
    })
}

/// The length of each pair's (cosine, sine) and its angle at position 1, within ±π.
fn polar(rope: &Rope, dims: usize) -> Vec<(f64, f64)> {
    let angles = angles(rope, 1, dims);
    let (cosines, sines) = angles.split_at(dims / 2);
    let both = cosines.iter().zip(sines);
    both.map(|(&c, &s)| (f64::from(c).hypot(f64::from(s)), f64::from(s).atan2(f64::from(c))))
        .collect()
}

#[test]
fn yarn_keeps_fast_pairs_interpolates_slow_ones_and_ramps_between() {
    // base 1e6, 128 dims, 16384 positions. A pair turns 16384 · 1e6^(−i/64) / 2π times in the
    // trained context: 32 times at i = 64 · ln(16384 / (2π · 32)) / ln(1e6) = 20.38, once at
    // 36.44. So pairs up to 20 are kept, pairs from 37 on interpolated.
    let rope = rope(128, 1e6, RopeLayout::Neox, yarn(1.0, 1.0));
    for (pair, (length, angle)) in polar(&rope, 128).into_iter().enumerate() {
        assert!((length - 1.138_629_436).abs() < 1e-6, "0.1 · ln 4 + 1, not {length}");
        let kept = match pair {
            0..=20 => 1.0,
            21..37 => 1.0 - (pair as f64 - 20.0) / 17.0,
            _ => 0.0,
        };
        let expected = 1e6_f64.powf(-(pair as f64) / 64.0) * (0.25 + 0.75 * kept);
        assert!((angle / expected - 1.0).abs() < 1e-6, "pair {pair}: {angle} is not {expected}");
        assert!(expected < PI);
    }
}

#[test]
fn without_its_ramp_yarn_is_linear_and_leaves_the_temperature_alone() {
    let rope = rope(128, 1e6, RopeLayout::Neox, yarn(0.0, 0.5));
    for (pair, (length, angle)) in polar(&rope, 128).into_iter().enumerate() {
        assert!((length - 0.5).abs() < 1e-6);
        let expected = frequency(1e6, pair, 128) / 4.0;
        assert!((angle / expected - 1.0).abs() < 1e-6);
    }
}
