//! Normalization, `SwiGLU`, addition and the exponential against plain f64 arithmetic.

#![expect(clippy::cast_precision_loss, reason = "sizes and indices are small numbers")]

use half::f16;
use proptest::prelude::*;
use toko_kernels::blocks::{BLOCK, block_maxima, block_powers};
use toko_kernels::convert::to_f16;
use toko_kernels::exp::exp;
use toko_kernels::isa::Tier;
use toko_kernels::norm::{add_rms_norm, rms_norm, rms_norm_in_place};
use toko_kernels::swiglu::{add_in_place, swiglu_in_place};

fn assert_same_bits(tier: Tier, ours: &[f32], reference: &[f32]) {
    let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
    assert!(ours.len() == reference.len() && ours.iter().zip(reference).all(same), "{tier}");
}

/// Runs `op` on every tier, checks that all give the same bits, and returns them.
fn on_all_tiers(op: impl Fn(Tier) -> Vec<f32>) -> Vec<f32> {
    let reference = op(Tier::Reference);
    for tier in Tier::available() {
        assert_same_bits(tier, &op(tier), &reference);
    }
    reference
}

fn values(len: impl Into<prop::collection::SizeRange>) -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec(-8.0_f32..8.0, len)
}

/// Asserts that `ours` is within `relative` of `expected`.
fn assert_close(ours: f32, expected: f64, relative: f64) {
    let error = (f64::from(ours) - expected).abs();
    assert!(error <= relative * expected.abs() + 1e-40, "{ours} is not {expected}");
}

proptest! {
    #[test]
    fn rms_norm_is_within_a_millionth_of_its_definition(
        rows in 1_usize..4,
        (weight, x) in (1_usize..300).prop_flat_map(|w| (values(w), values(3 * w))),
    ) {
        let x = &x[..rows * weight.len()];
        let eps = 1e-6;
        let ours = on_all_tiers(|tier| {
            let mut out = vec![0.0; x.len()];
            rms_norm(tier, x, &weight, eps, &mut out);
            let mut in_place = x.to_vec();
            rms_norm_in_place(tier, &mut in_place, &weight, eps);
            assert_same_bits(tier, &in_place, &out);
            out
        });
        for (x, ours) in x.chunks(weight.len()).zip(ours.chunks(weight.len())) {
            let squares: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
            let scale = 1.0 / (squares / x.len() as f64 + f64::from(eps)).sqrt();
            for ((x, weight), ours) in x.iter().zip(&weight).zip(ours) {
                assert_close(*ours, f64::from(*x) * scale * f64::from(*weight), 1e-6);
            }
        }
    }

    #[test]
    fn a_norm_of_sums_is_the_addition_and_then_the_norm(
        rows in 1_usize..4,
        (weight, x, y) in (1_usize..300).prop_flat_map(|w| (values(w), values(3 * w), values(3 * w))),
    ) {
        let (x, y) = (&x[..rows * weight.len()], &y[..rows * weight.len()]);
        let sums: Vec<f32> = x.iter().zip(y).map(|(x, y)| x + y).collect();
        let mut normed = vec![0.0; x.len()];
        rms_norm(Tier::Reference, &sums, &weight, 1e-5, &mut normed);
        let ours = on_all_tiers(|tier| {
            let (mut x, mut y) = (x.to_vec(), y.to_vec());
            add_rms_norm(tier, &mut x, &mut y, &weight, 1e-5);
            [x, y].concat()
        });
        assert_same_bits(Tier::Reference, &ours, &[sums, normed].concat());
    }

    #[test]
    fn swiglu_is_within_a_millionth_of_its_definition(
        pairs in prop::collection::vec((-90.0_f32..90.0, -8.0_f32..8.0), 0..100),
    ) {
        let (gate, up): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
        let ours = on_all_tiers(|tier| {
            let mut out = gate.clone();
            swiglu_in_place(tier, &mut out, &up);
            out
        });
        for ((gate, up), ours) in gate.iter().zip(up).zip(ours) {
            let gate = f64::from(*gate);
            // Below −88 exp(−gate) is infinite in f32 and the result 0 instead of up to 1e-36.
            let expected = gate / (1.0 + (-gate).exp()) * f64::from(up);
            prop_assert!((f64::from(ours) - expected).abs() <= 1e-6 * expected.abs() + 1e-35);
        }
    }

    #[test]
    fn the_maxima_of_blocks_are_their_largest_values(
        x in prop::collection::vec(
            prop_oneof![20 => -9.0_f32..9.0, 2 => Just(f32::NEG_INFINITY)], 0..700),
    ) {
        let ours = on_all_tiers(|tier| {
            let mut out = vec![0.0; x.len().div_ceil(BLOCK)];
            block_maxima(tier, &x, &mut out);
            out
        });
        let largest = |block: &[f32]| block.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        prop_assert_eq!(ours, x.chunks(BLOCK).map(largest).collect::<Vec<_>>());
    }

    #[test]
    fn a_block_with_an_improper_value_has_no_maximum(
        (mut x, place) in (1_usize..400).prop_flat_map(|n| (values(n), 0..n)),
        improper in prop::sample::select(vec![f32::NAN, -f32::NAN, f32::INFINITY]),
    ) {
        x[place] = improper;
        let ours = on_all_tiers(|tier| {
            let mut out = vec![0.0; x.len().div_ceil(BLOCK)];
            block_maxima(tier, &x, &mut out);
            out
        });
        for (block, maximum) in ours.into_iter().enumerate() {
            prop_assert_eq!(maximum.is_nan(), block == place / BLOCK);
        }
    }

    #[test]
    fn the_sums_of_powers_are_within_a_millionth_of_their_definition(
        x in prop::collection::vec(-9.0_f32..9.0, 0..700),
        divisor in 0.3_f32..3.0,
    ) {
        let ours = on_all_tiers(|tier| {
            let mut out = vec![0.0; x.len().div_ceil(BLOCK)];
            block_powers(tier, &x, 9.0, divisor, &mut out);
            out
        });
        for (ours, block) in ours.into_iter().zip(x.chunks(BLOCK)) {
            let power = |x: &f32| ((f64::from(*x) - 9.0) / f64::from(divisor)).exp();
            // The quotient is rounded to f32: at 60, by up to 2e-6.
            assert_close(ours, block.iter().map(power).sum(), 5e-6);
        }
    }

    #[test]
    fn addition_is_rounded_once(pairs in prop::collection::vec((-8.0_f32..8.0, -8.0_f32..8.0), 0..100)) {
        let (x, y): (Vec<f32>, Vec<f32>) = pairs.iter().copied().unzip();
        let ours = on_all_tiers(|tier| {
            let mut x = x.clone();
            add_in_place(tier, &mut x, &y);
            x
        });
        let expected: Vec<f32> = pairs.iter().map(|(x, y)| x + y).collect();
        assert_same_bits(Tier::Reference, &ours, &expected);
    }

    #[test]
    fn narrowing_to_f16_takes_the_nearest_value(x in -70_000.0_f32..70_000.0, small in -1e-4_f32..1e-4) {
        for x in [x, small] {
            let mut out = [f16::ZERO];
            to_f16(&[x], &mut out);
            let ours = out[0];
            if x.abs() >= 65_520.0 {
                prop_assert!(ours.is_infinite());
                continue;
            }
            let error = (ours.to_f64() - f64::from(x)).abs();
            for neighbour in [ours.to_bits().wrapping_sub(1), ours.to_bits() + 1] {
                let other = f16::from_bits(neighbour).to_f64();
                prop_assert!(!other.is_finite() || error <= (other - f64::from(x)).abs());
            }
        }
    }
}

/// The distance of `ours` from `exact` in units of the last place of `exact`.
fn ulps(ours: f32, exact: f64) -> f64 {
    let exponent = exact.log2().floor().max(-126.0);
    (f64::from(ours) - exact).abs() / (exponent - 23.0).exp2()
}

#[test]
fn exp_is_within_two_ulp_over_its_whole_range() {
    let mut worst = 0.0_f64;
    let mut bits = 0_u32;
    // Every 997th of the numbers whose exponential is neither 0 nor infinite.
    while f32::from_bits(bits) < 104.5 {
        for x in [f32::from_bits(bits), -f32::from_bits(bits)] {
            let exact = f64::from(x).exp();
            if exact < f64::from(f32::MAX) {
                worst = worst.max(ulps(exp(x), exact));
            } else {
                assert!(exp(x) == f32::INFINITY || ulps(exp(x), exact) <= 2.0, "{x}");
            }
        }
        bits += 997;
    }
    assert!(worst <= 2.0, "{worst}");
}

#[test]
fn exp_of_the_extremes() {
    assert_eq!(exp(0.0).to_bits(), 1.0_f32.to_bits());
    assert_eq!(exp(f32::NEG_INFINITY).to_bits(), 0.0_f32.to_bits());
    assert_eq!(exp(-1e30).to_bits(), 0.0_f32.to_bits());
    assert!(exp(f32::INFINITY).is_infinite());
    assert!(exp(88.8).is_infinite());
    assert!(exp(88.7).is_finite());
    assert!(exp(f32::NAN).is_nan());
}
