//! What the bytes of each format mean, against the decoders of another project.

use std::path::Path;

use toko_kernels::format::Format;
use toko_kernels::isa::Tier;
use toko_kernels::kernel::Kernel;
use toko_kernels::matmul::Weights;

fn vectors() -> serde_json::Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/vectors.json");
    let text = std::fs::read_to_string(path).expect("the vectors are in the repository");
    serde_json::from_str(&text).expect("the vectors are JSON")
}

fn bytes(value: &serde_json::Value) -> Vec<u8> {
    let text = value.as_str().expect("bytes are a string of hexadecimal digits");
    let byte = |i| u8::from_str_radix(&text[i..i + 2], 16).expect("a byte has two digits");
    (0..text.len()).step_by(2).map(byte).collect()
}

fn bits(value: &serde_json::Value) -> Vec<u32> {
    bytes(value).as_chunks().0.iter().map(|&bytes| u32::from_le_bytes(bytes)).collect()
}

#[test]
fn every_format_decodes_to_the_weights_of_the_outside_decoder() {
    let vectors = vectors();
    for format in Format::ALL.into_iter().filter(|&format| format != Format::F32) {
        let blocks = bytes(&vectors[format.name()]["bytes"]);
        let expected = bits(&vectors[format.name()]["weights"]);
        let cols = blocks.len() / format.block_bytes() * format.block_elements();
        assert_eq!(cols, expected.len(), "{format}: size of a block");
        for tier in Tier::available() {
            let kernel = Kernel::new(format, tier);
            let weights = Weights::new(kernel, &blocks, 1, cols).expect("one row of whole blocks");
            let mut out = vec![0.0; cols];
            weights.dequantize_row(0, &mut out);
            for (i, (&out, &expected)) in out.iter().zip(&expected).enumerate() {
                let equal = out.to_bits() == expected;
                assert!(equal, "{format}: weight {i}: {out} is not {}", f32::from_bits(expected));
            }
        }
    }
}

#[test]
fn a_row_in_the_middle_of_a_matrix_decodes_like_a_row_of_its_own() {
    for format in Format::ALL {
        let cols = 512;
        let row_bytes = format.row_bytes(cols).expect("512 is whole blocks of every format");
        let data: Vec<u8> = (0..=250).map(|i| i & 0x3b).cycle().take(3 * row_bytes).collect();
        let kernel = Kernel::new(format, Tier::Reference);
        let all = Weights::new(kernel, &data, 3, cols).expect("three rows");
        let middle = &data[row_bytes..2 * row_bytes];
        let one = Weights::new(kernel, middle, 1, cols).expect("one row");
        let (mut from_all, mut from_one) = (vec![0.0; cols], vec![0.0; cols]);
        all.dequantize_row(1, &mut from_all);
        one.dequantize_row(0, &mut from_one);
        assert_eq!(from_all, from_one, "{format}");
        assert!(from_one.iter().any(|&w| w != 0.0), "{format}: the weights are not all zero");
    }
}

#[test]
fn bytes_that_are_not_rows_of_whole_blocks_are_refused() {
    for format in Format::ALL {
        let kernel = Kernel::new(format, Tier::Reference);
        let cols = 256;
        let data = vec![0; 2 * format.row_bytes(cols).expect("whole blocks")];
        assert!(Weights::new(kernel, &data, 2, cols).is_some(), "{format}");
        assert!(Weights::new(kernel, &data, 1, cols).is_none(), "{format}: a row too many");
        assert!(Weights::new(kernel, &data[1..], 2, cols).is_none(), "{format}: a byte too few");
        assert!(Weights::new(kernel, &data, 3, cols).is_none(), "{format}: a row too few");
        assert!(Weights::new(kernel, &[], 2, 0).is_none(), "{format}: rows of nothing");
        assert!(Weights::new(kernel, &data, usize::MAX, cols).is_none(), "{format}: an overflow");
        assert!(
            Weights::new(kernel, &data, 2, usize::MAX - 255).is_none(),
            "{format}: cols overflow"
        );
        if format.block_elements() > 1 {
            assert!(Weights::new(kernel, &data, 2, cols - 1).is_none(), "{format}: half a block");
        }
    }
}

#[test]
fn halves_are_the_nearest_to_the_floats_and_even_on_ties() {
    let floats = &vectors()["floats"];
    let values: Vec<f32> = bits(&floats["F32"]).into_iter().map(f32::from_bits).collect();
    for format in [Format::F16, Format::Bf16] {
        let mut out = vec![0; values.len() * 2];
        format.quantizer().expect("floats can be stored")(&values, &mut out);
        assert_eq!(out, bytes(&floats[format.name()]), "{format}");
    }
}
