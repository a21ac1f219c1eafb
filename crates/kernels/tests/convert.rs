//! Blocks of eight-bit codes against the format that they are in.

use half::f16;
use proptest::prelude::*;
use toko_kernels::convert::{Q8_LENGTH, to_q8_0};
use toko_kernels::format::Format;
use toko_kernels::isa::Tier;

fn coded(tier: Tier, values: &[f32]) -> (Vec<i8>, Vec<f16>) {
    let (mut codes, mut scales) =
        (vec![99; values.len()], vec![f16::NAN; values.len() / Q8_LENGTH]);
    to_q8_0(tier, values, &mut codes, &mut scales);
    (codes, scales)
}

/// The bytes of the format's blocks.
fn bytes((codes, scales): &(Vec<i8>, Vec<f16>)) -> Vec<u8> {
    let codes = codes.chunks(Q8_LENGTH).map(|codes| codes.iter().map(|code| code.cast_unsigned()));
    scales
        .iter()
        .zip(codes)
        .flat_map(|(s, codes)| s.to_le_bytes().into_iter().chain(codes))
        .collect()
}

fn decode((codes, scales): &(Vec<i8>, Vec<f16>)) -> Vec<f64> {
    let scales = scales.iter().flat_map(|scale| [scale.to_f64(); Q8_LENGTH]);
    codes.iter().zip(scales).map(|(&code, scale)| f64::from(code) * scale).collect()
}

/// Rows of one to four blocks: of ordinary numbers, of halves that round either way, of anything.
fn row() -> impl Strategy<Value = Vec<f32>> {
    let finite = any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |x| x.is_finite());
    let halves = (-254_i16..=254).prop_map(|x| f32::from(x) / 2.0);
    let number = prop_oneof![-9.0_f32..9.0, halves, Just(127.0), Just(0.0), Just(-0.0)];
    let block = prop_oneof![
        4 => prop::collection::vec(number, Q8_LENGTH),
        1 => prop::collection::vec(finite, Q8_LENGTH),
    ];
    prop::collection::vec(block, 1..5).prop_map(|blocks| blocks.concat())
}

proptest! {
    #[test]
    fn a_row_has_the_bytes_that_the_format_s_quantizer_gives_on_every_tier(row in row()) {
        let quantize = Format::Q8_0.quantizer().expect("the format can be stored");
        let mut expected = vec![0; Format::Q8_0.row_bytes(row.len()).expect("whole blocks")];
        quantize(&row, &mut expected);
        for tier in Tier::available() {
            prop_assert_eq!(&bytes(&coded(tier, &row)), &expected, "{}", tier);
        }
    }

    #[test]
    fn what_is_read_back_is_off_by_half_a_code_and_the_rounding_of_the_scale(
        row in prop::collection::vec(-9.0_f32..9.0, Q8_LENGTH),
    ) {
        let largest = row.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
        // f16 keeps eleven bits of the scale, whose error counts up to 127 times; below its normal
        // range, steps of 2⁻²⁴.
        let step = f64::from(largest) / 127.0;
        let bound = step * 0.5001 + f64::from(largest) / 2048.0 + 127.0 / f64::from(1 << 25);
        for (read, written) in decode(&coded(Tier::detect(), &row)).into_iter().zip(&row) {
            let error = (read - f64::from(*written)).abs();
            prop_assert!(error <= bound, "{} became {}", written, read);
        }
    }
}

#[test]
fn a_block_with_a_number_that_is_not_finite_is_read_back_as_no_number() {
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for tier in Tier::available() {
            let mut row = [1.0; 2 * Q8_LENGTH];
            row[7] = bad;
            let read = decode(&coded(tier, &row));
            let (bad_block, next) = read.split_at(Q8_LENGTH);
            assert!(bad_block.iter().all(|x| x.is_nan()), "{bad} on {tier}");
            assert!(next.iter().all(|x| (x - 1.0).abs() < 1e-3), "the next block is whole");
        }
    }
}
