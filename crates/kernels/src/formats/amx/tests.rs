//! The tier with tiles in plain code, so that it is tested on machines without tiles as well.

use half::f16;
use proptest::prelude::*;

use super::{Tiled, panel};
use crate::format::Format;
use crate::formats::avx512::Unpack;
use crate::formats::{dispatch, float};
use crate::isa::tiles::emulated::Emulated;
use crate::isa::{Avx512, Tier};
use crate::kernel::{Block, BlockFn, Kernel, Out};
use crate::matmul::{Input, Weights, matmul};
use crate::pool::Pool;
use crate::quantized::Quantized;

/// Computes a block by emulated tiles, however few its tokens are.
fn emulated<U: Unpack>(_: Avx512, block: &Block<'_>, out: &mut Out<'_, '_>) {
    let mut tiled = Tiled::new(Emulated::new());
    // SAFETY: the token proves that the machine has every feature the function enables.
    unsafe { panel::rows::<U>(&mut tiled, block, out) }
}

fn emulated_fn(format: Format) -> BlockFn<Avx512> {
    dispatch!(format, L => emulated::<L>, E => float::avx512::block::<E>)
}

/// Tiles come with AVX-512, which scales their sums: a machine without has nothing to test here.
fn avx512() -> Option<(Tier, Avx512)> {
    Tier::available().into_iter().find_map(|tier| match tier {
        Tier::Avx512(isa) => Some((tier, isa)),
        _ => None,
    })
}

fn product(
    kernel: Kernel,
    tier: Tier,
    data: &[u8],
    [rows, cols, tokens]: [usize; 3],
    values: &[f32],
) -> Vec<u32> {
    let pool = Pool::new(1);
    let weights = Weights::new(kernel, data, rows, cols).expect("the bytes are those of the rows");
    let mut quantized = Quantized::new(tokens, cols);
    quantized.quantize(&pool, tier, values, cols);
    let input = Input { values, quantized: &quantized, tokens, cols };
    let mut out = vec![0.0; tokens * rows];
    matmul(&pool, [weights], &input, [&mut out]);
    // What a NaN looks like depends on the order of an instruction's operands.
    out.iter().map(|out| if out.is_nan() { f32::NAN } else { *out }.to_bits()).collect()
}

/// Compares the products by tiles with those of the reference.
fn check(format: Format, shape: [usize; 3], data: &[u8], values: &[f32]) {
    let Some((tier, isa)) = avx512() else { return };
    let reference = Kernel::new(format, Tier::Reference);
    let expected = product(reference, Tier::Reference, data, shape, values);
    let tiled = Kernel::of_vectors(format, isa, emulated_fn(format));
    let found = product(tiled, tier, data, shape, values);
    let differs = found.iter().zip(&expected).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{format}: [rows, cols, tokens] {shape:?}: first differing output");
}

/// Bytes in which each 16 bits are a small enough half for any scale, or any code.
fn weights(format: Format, len: usize, byte: impl FnMut() -> u8) -> Vec<u8> {
    let mut byte = byte;
    let mut data: Vec<u8> = (0..len).map(|_| byte()).collect();
    for block in data.chunks_exact_mut(format.block_bytes()) {
        let last = block.len() - 2;
        let scales = match format {
            Format::Q4_1 | Format::Q5_1 | Format::Q4K | Format::Q5K => [0, 2],
            Format::Q2K => [80, 82],
            Format::Tq2_0G128 | Format::Tq1_0 | Format::Tq2_0 | Format::Q3K | Format::Q6K => {
                [last, last]
            }
            _ => [0, 0],
        };
        for at in scales {
            let scale = f16::from_f32(f32::from(byte().cast_signed()) / 4096.0);
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
    data
}

/// Small integer hash, so that a case is the same on every machine.
fn noise(seed: u64) -> impl FnMut() -> u8 {
    let mut state = seed;
    move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56).to_le_bytes()[0]
    }
}

fn check_noise(format: Format, shape: [usize; 3], seed: u64) {
    let [rows, cols, tokens] = shape;
    let mut noise = noise(seed);
    let len = rows * format.row_bytes(cols).expect("whole blocks");
    let data = weights(format, len, &mut noise);
    let value = |_| f32::from(noise().cast_signed()) * (1.0 + f32::from(noise()) / 256.0);
    let values: Vec<f32> = (0..tokens * cols).map(value).collect();
    check(format, shape, &data, &values);
}

fn quantized_formats() -> impl Iterator<Item = Format> {
    Format::ALL.into_iter().filter(|format| !format.is_float())
}

#[test]
fn every_number_of_tokens_has_the_bits_of_the_reference_in_tiles() {
    for format in quantized_formats() {
        for tokens in 1..=70 {
            check_noise(format, [3, 256, tokens], 1);
        }
    }
}

#[test]
fn every_number_of_rows_has_the_bits_of_the_reference_in_tiles() {
    for format in quantized_formats() {
        for rows in 1..=70 {
            check_noise(format, [rows, 256, 5], 2);
        }
    }
}

#[test]
fn every_row_length_up_to_forty_blocks_has_the_bits_of_the_reference_in_tiles() {
    for format in quantized_formats() {
        for blocks in 1..=40 {
            check_noise(format, [2, blocks * format.block_elements(), 18], 3);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arbitrary_bytes_and_activations_have_the_bits_of_the_reference_in_tiles(
        format in prop::sample::select(quantized_formats().collect::<Vec<_>>()),
        data in prop::collection::vec(any::<u8>(), 3 * 840),
        values in prop::collection::vec(any::<f32>(), 256 * 17),
    ) {
        let len = 3 * format.row_bytes(256).expect("whole blocks");
        let data: Vec<u8> = data.into_iter().cycle().take(len).collect();
        check(format, [3, 256, 17], &data, &values);
    }
}

/// The largest codes of both signs with the largest activations of both signs.
#[test]
fn the_largest_sums_have_the_bits_of_the_reference_in_tiles() {
    for format in quantized_formats() {
        for fill in [0x00, 0xff, 0x80, 0x7f] {
            for value in [1.0, -1.0] {
                let len = format.row_bytes(256).expect("whole blocks");
                let data = weights(format, len, || fill);
                check(format, [1, 256, 2], &data, &[value; 512]);
            }
        }
    }
}
