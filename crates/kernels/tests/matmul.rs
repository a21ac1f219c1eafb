//! Products of matrices: every tier has the reference's bits, and the reference is right.

use proptest::prelude::*;
use toko_kernels::format::Format;
use toko_kernels::isa::Tier;
use toko_kernels::kernel::Kernel;
use toko_kernels::matmul::{Input, Weights, matmul};
use toko_kernels::pool::Pool;
use toko_kernels::quantized::Quantized;

/// A matrix's bytes and as many activations as `tokens` rows have.
#[derive(Clone, Debug)]
struct Case {
    format: Format,
    data: Vec<u8>,
    rows: usize,
    cols: usize,
    values: Vec<f32>,
    tokens: usize,
}

impl Case {
    fn new(format: Format, rows: usize, cols: usize, tokens: usize, seed: u64) -> Self {
        let mut noise = Noise(seed);
        let row_bytes = format.row_bytes(cols).expect("whole blocks");
        let mut data: Vec<u8> = (0..rows * row_bytes).map(|_| noise.byte()).collect();
        for block in data.chunks_exact_mut(format.block_bytes()) {
            for at in halves(format) {
                let scale = 2.0_f32.powi(-6) * noise.float();
                block[at..at + 2].copy_from_slice(&half::f16::from_f32(scale).to_le_bytes());
            }
            if let Format::F32 = format {
                block.copy_from_slice(&noise.float().to_le_bytes());
            }
            if let Format::Bf16 = format {
                block.copy_from_slice(&half::bf16::from_f32(noise.float()).to_le_bytes());
            }
        }
        let values = (0..tokens * cols).map(|_| noise.float()).collect();
        Self { format, data, rows, cols, values, tokens }
    }

    fn product(&self, tier: Tier, pool: &Pool) -> Vec<f32> {
        let weights =
            Weights::new(Kernel::new(self.format, tier), &self.data, self.rows, self.cols)
                .expect("the bytes are those of the rows");
        let mut quantized = Quantized::new(self.tokens, self.cols);
        quantized.quantize(pool, tier, &self.values, self.cols);
        let input = Input {
            values: &self.values,
            quantized: &quantized,
            tokens: self.tokens,
            cols: self.cols,
        };
        let mut out = vec![0.0; self.tokens * self.rows];
        matmul(pool, [weights], &input, [&mut out]);
        out
    }

    /// Compares all tiers and numbers of threads with one scalar row and token at a time.
    fn check(&self) {
        let one = Pool::new(1);
        let mut expected = vec![0.0; self.tokens * self.rows];
        let row_bytes = self.data.len() / self.rows;
        for token in 0..self.tokens {
            for row in 0..self.rows {
                let alone = Self {
                    data: self.data[row * row_bytes..][..row_bytes].to_vec(),
                    rows: 1,
                    values: self.values[token * self.cols..][..self.cols].to_vec(),
                    tokens: 1,
                    ..*self
                };
                expected[token * self.rows + row] = alone.product(Tier::Reference, &one)[0];
            }
        }
        for tier in Tier::available() {
            for threads in 1..=3 {
                let out = self.product(tier, &Pool::new(threads));
                for (i, (a, b)) in out.iter().zip(&expected).enumerate() {
                    // The sign and payload of a NaN depend on the order of an instruction's operands.
                    let equal = a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
                    let Self { format, rows, cols, tokens, .. } = self;
                    let place = format!("{rows}x{cols} by {tokens}, output {i}, {threads} threads");
                    assert!(equal, "{format} {tier}: {place}: {a} is not {b}");
                }
            }
        }
    }
}

/// Small integer hash, so that a case is the same on every machine.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    /// Between −2 and 2, denser at 0.
    fn float(&mut self) -> f32 {
        let mut unit = || f32::from(self.next().to_le_bytes()[0].cast_signed()) / 128.0;
        let (coarse, fine) = (unit(), unit());
        2.0 * unit() * (coarse + fine / 256.0)
    }
}

/// Where a format's blocks hold halves.
fn halves(format: Format) -> Vec<usize> {
    match format {
        Format::F32 | Format::Bf16 => vec![],
        Format::Q4_1 | Format::Q5_1 | Format::Q4K | Format::Q5K => vec![0, 2],
        Format::Q2K => vec![80, 82],
        Format::Tq2_0G128 | Format::Tq1_0 | Format::Tq2_0 | Format::Q3K | Format::Q6K => {
            vec![format.block_bytes() - 2]
        }
        _ => vec![0],
    }
}

fn formats() -> impl Strategy<Value = Format> {
    prop::sample::select(&Format::ALL[..])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_tier_and_thread_count_has_the_bits_of_one_scalar_row(
        format in formats(), rows in 1_usize..14, blocks in 1_usize..12, tokens in 1_usize..=9,
        seed: u64,
    ) {
        let blocks = if format.is_float() { blocks * 37 } else { blocks };
        Case::new(format, rows, blocks * format.block_elements(), tokens, seed).check();
    }

    #[test]
    fn arbitrary_bytes_and_activations_give_every_tier_the_same_bits(
        format in formats(), data in prop::collection::vec(any::<u8>(), 3 * 840),
        values in prop::collection::vec(any::<f32>(), 256), tokens in 1_usize..=5,
    ) {
        let mut case = Case::new(format, 3, 256, tokens, 1);
        let len = case.data.len();
        case.data = data.into_iter().cycle().take(len).collect();
        let len = case.values.len();
        case.values = values.into_iter().cycle().take(len).collect();
        case.check();
    }
}

#[test]
fn every_row_length_up_to_nine_blocks_has_equal_bits_on_every_tier() {
    for format in Format::ALL {
        let lengths = if format.is_float() { 1..70 } else { 1..10 };
        for blocks in lengths {
            Case::new(format, 5, blocks * format.block_elements(), 3, 7).check();
        }
    }
}

#[test]
fn every_number_of_tokens_has_equal_bits_on_every_tier() {
    for format in Format::ALL {
        for tokens in (1..=9).chain([63, 64, 65, 130]) {
            Case::new(format, 6, 256, tokens, 8).check();
        }
    }
}

/// Rows, tokens and lengths one more than what any tier multiplies at once.
#[test]
fn what_juts_out_of_every_panel_has_equal_bits_on_every_tier() {
    for format in Format::ALL {
        let blocks = 1024 / format.block_elements() + 1;
        for (rows, tokens) in [(33, 5), (17, 7), (5, 257)] {
            Case::new(format, rows, blocks * format.block_elements(), tokens, 15).check();
        }
    }
}

#[test]
fn extreme_blocks_have_equal_bits_on_every_tier() {
    let scales = [0x0000_u16, 0x0001, 0x03ff, 0x3c00, 0xbc00, 0x7bff, 0xfbff, 0x7c00, 0x7e00];
    let activations = [1.0, -1.0, f32::MAX, f32::MIN, 1e-30, -1e-38, 0.0, f32::INFINITY, f32::NAN];
    for format in Format::ALL {
        for fill in [0x00, 0xff, 0x80, 0x7f, 0x55, 0xaa] {
            for (i, scale) in scales.iter().enumerate() {
                let mut case = Case::new(format, 4, 512, 2, 9);
                case.data.fill(fill);
                for block in case.data.chunks_exact_mut(format.block_bytes()) {
                    for at in halves(format) {
                        block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
                    }
                }
                case.check();
                case.values.fill(activations[i]);
                case.check();
            }
        }
    }
}

/// The largest codes of both signs with the largest activations: the sums that could overflow.
#[test]
fn the_largest_sums_of_products_are_exact() {
    for (format, byte, code) in [(Format::Q8_0, 0x80_u8, -128.0), (Format::Q1_0, 0xff, 1.0)] {
        let mut case = Case::new(format, 4, 256, 1, 10);
        case.data.fill(byte);
        for block in case.data.chunks_exact_mut(format.block_bytes()) {
            block[..2].copy_from_slice(&half::f16::ONE.to_le_bytes());
        }
        case.values.fill(1.0); // has the largest code
        for tier in Tier::available() {
            let out = case.product(tier, &Pool::new(1));
            assert!(out.iter().all(|&out| (out - 256.0 * code).abs() < 0.01), "{tier}: {out:?}");
        }
    }
}

/// Ties the reference to the truth: a plain sum in double precision over the decoded weights.
///
/// The bound: an activation is off by half a code, max|x| / 65,024 of its group; the float sums of
/// some 50 terms add a few times 2⁻²⁴ of the sum of sizes each.
#[test]
fn products_are_those_of_the_decoded_weights_within_the_error_of_the_codes() {
    for format in Format::ALL {
        for tokens in [1, 4] {
            let case = Case::new(format, 7, 1024, tokens, 11);
            let kernel = Kernel::new(format, Tier::Reference);
            let weights = Weights::new(kernel, &case.data, case.rows, case.cols).expect("rows");
            let out = case.product(Tier::detect(), &Pool::new(2));
            let mut row = vec![0.0; case.cols];
            for (r, token) in (0..case.rows).flat_map(|r| (0..tokens).map(move |t| (r, t))) {
                weights.dequantize_row(r, &mut row);
                let x = &case.values[token * case.cols..][..case.cols];
                let (mut exact, mut sizes, mut code_errors) = (0.0, 0.0, 0.0);
                for (w, x) in row.chunks(128).zip(x.chunks(128)) {
                    let max = x.iter().fold(0.0, |max: f64, &x| max.max(f64::from(x).abs()));
                    for (&w, &x) in w.iter().zip(x) {
                        exact += f64::from(w) * f64::from(x);
                        sizes += f64::from(w).abs() * f64::from(x).abs();
                        code_errors += f64::from(w).abs() * max / 65024.0;
                    }
                }
                let out = f64::from(out[token * case.rows + r]);
                let codes = if format.is_float() { 0.0 } else { code_errors };
                let bound = codes + sizes * 50.0 * 2.0_f64.powi(-24);
                let error = (out - exact).abs();
                assert!(error <= bound, "{format}: {out} for {exact}: off by {error}, not {bound}");
                assert!(sizes > 0.1, "{format}: the weights are not all zero");
            }
        }
    }
}

#[test]
fn fused_matrices_of_several_formats_have_the_bits_of_single_ones() {
    let formats = [Format::Q4K, Format::Q6K, Format::F16];
    let cases = formats.map(|format| Case::new(format, 5 + format.block_bytes() % 7, 256, 2, 12));
    let values = &cases[0].values;
    for tier in Tier::available() {
        for threads in 1..=3 {
            let pool = Pool::new(threads);
            let weights = cases.each_ref().map(|case| {
                let kernel = Kernel::new(case.format, tier);
                Weights::new(kernel, &case.data, case.rows, case.cols).expect("rows")
            });
            let mut quantized = Quantized::new(2, 256);
            quantized.quantize(&pool, tier, values, 256);
            let input = Input { values, quantized: &quantized, tokens: 2, cols: 256 };
            let mut outs = cases.each_ref().map(|case| vec![0.0; 2 * case.rows]);
            matmul(&pool, weights, &input, outs.each_mut().map(|out| &mut out[..]));
            for (case, out) in cases.iter().zip(outs) {
                let alone = Case { values: values.clone(), ..case.clone() };
                assert_eq!(out, alone.product(Tier::Reference, &Pool::new(1)), "{}", case.format);
            }
        }
    }
}

#[test]
fn a_token_with_a_value_that_is_no_number_gives_only_itself_nan() {
    for format in Format::ALL {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut case = Case::new(format, 3, 256, 3, 13);
            case.values[256 + 17] = bad;
            for tier in Tier::available() {
                let out = case.product(tier, &Pool::new(1));
                assert!(out[..3].iter().chain(&out[6..]).all(|out| out.is_finite()), "{format}");
                assert!(!out[3..6].iter().any(|out| out.is_finite()), "{format} {tier}: {out:?}");
            }
        }
    }
}

#[test]
fn quantizing_a_batch_on_many_threads_gives_the_products_of_single_tokens() {
    // More than 16,384 values, from where on the pool takes part.
    Case::new(Format::Q8_0, 2, 4096 + 32, 5, 14).check();
}
