//! How fast each format is multiplied on each tier of this machine, and what stands between the products.
//!
//! Names are `what/format/tier` and so on, so a part of a name picks what is run. Weights are 256 MiB, read from memory,
//! or 1 MiB, read from a cache. Everything runs on one thread.

use std::hint::black_box;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput};
use half::f16;
use toko_kernels::attention::{Codes, PAGE, Page, Queries, attend, state_length};
use toko_kernels::convert::to_q8_0;
use toko_kernels::format::Format;
use toko_kernels::isa::Tier;
use toko_kernels::kernel::Kernel;
use toko_kernels::matmul::{Input, Weights, matmul};
use toko_kernels::norm::rms_norm;
use toko_kernels::pool::Pool;
use toko_kernels::quantized::Quantized;

/// A multiple of every block, and the width of a model of 1.7 billion weights.
const COLS: usize = 2048;
/// Usual in models of this size.
const HEAD: usize = 128;
/// Query heads that share keys and values.
const GROUP: usize = 2;

/// Tokens at once, and the bytes of weights that they meet.
const CASES: [(usize, usize); 4] = [(1, 256 << 20), (1, 1 << 20), (8, 1 << 20), (256, 1 << 20)];

/// Returns numbers in -1..1 that are the same each time.
fn floats(count: usize) -> Vec<f32> {
    let mut state = 1_u32;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f32::from(u16::try_from(state >> 16).unwrap_or_default()) / 32768.0 - 1.0
    };
    (0..count).map(next).collect()
}

/// Returns about so many bytes of whole rows: one quantized row over and over, or bytes that are numbers at least where no
/// quantizer is.
fn rows(format: Format, bytes: usize) -> Vec<u8> {
    let mut row = vec![0x2c; format.row_bytes(COLS).expect("a row is whole blocks")];
    if let Some(quantize) = format.quantizer() {
        quantize(&floats(COLS), &mut row);
    }
    row.repeat((bytes / row.len()).max(1))
}

fn products(criterion: &mut Criterion) {
    let pool = Pool::new(1);
    for format in Format::ALL {
        for (tokens, bytes) in CASES {
            let data = rows(format, bytes);
            let rows = data.len() / format.row_bytes(COLS).expect("a row is whole blocks");
            let values = floats(tokens * COLS);
            let mut out = vec![0.0; tokens * rows];
            let mut group = criterion.benchmark_group(format!("product-{tokens}"));
            // Gigabytes of weights a second for one token, billions of operations for more.
            let operations = 2 * tokens * rows * COLS;
            group.throughput(match tokens {
                1 => Throughput::Bytes(data.len() as u64),
                _ => Throughput::Elements(operations as u64),
            });
            group.sample_size(10);
            for tier in Tier::available() {
                let weights = Weights::new(Kernel::new(format, tier), &data, rows, COLS)
                    .expect("whole rows of whole blocks");
                let mut quantized = Quantized::new(tokens, COLS);
                quantized.quantize(&pool, tier, &values, COLS);
                let input = Input { values: &values, quantized: &quantized, tokens, cols: COLS };
                let id = BenchmarkId::new(format!("{format}/{tier}"), bytes);
                group.bench_function(id, |bencher| {
                    bencher.iter(|| matmul(&pool, [weights], &input, [&mut out]));
                });
            }
        }
    }
}

/// Runs one case of a group on every tier.
fn on_every_tier(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, run: &mut dyn FnMut(Tier)) {
    for tier in Tier::available() {
        group.bench_function(BenchmarkId::new(name, tier), |bencher| bencher.iter(|| run(tier)));
    }
}

fn rows_of_activations(criterion: &mut Criterion) {
    let pool = Pool::new(1);
    let (values, weight) = (floats(COLS), floats(COLS));
    let (mut quantized, mut out) = (Quantized::new(1, COLS), vec![0.0; COLS]);
    let mut group = criterion.benchmark_group("row");
    group.throughput(Throughput::Elements(COLS as u64));
    on_every_tier(&mut group, "quantize", &mut |tier| {
        quantized.quantize(&pool, tier, &values, COLS);
    });
    on_every_tier(&mut group, "rms_norm", &mut |tier| {
        rms_norm(tier, &values, &weight, 1e-6, &mut out);
    });
}

fn attention(criterion: &mut Criterion) {
    for positions in [128, 2048, 8192] {
        // Values of their own, so that as much is read as with a model.
        let numbers = floats(positions * HEAD);
        let halves: Vec<f16> = numbers.iter().map(|&number| f16::from_f32(number)).collect();
        let halves_too = halves.clone();
        let mut codes = vec![0; numbers.len()];
        let mut scales = vec![f16::ZERO; numbers.len() / Format::Q8_0.block_elements()];
        to_q8_0(Tier::detect(), &numbers, &mut codes, &mut scales);
        let (codes_too, scales_too) = (codes.clone(), scales.clone());
        let queries = Queries {
            values: &floats(GROUP * HEAD),
            stride: GROUP * HEAD,
            tokens: 1,
            group: GROUP,
            head_dim: HEAD,
            scale: 0.088,
            position: positions - 1,
        };
        let mut states = vec![0.0; 2 * GROUP * state_length(HEAD)];
        let mut out = vec![0.0; GROUP * HEAD];
        let mut group = criterion.benchmark_group(format!("attention-{positions}"));
        group.throughput(Throughput::Bytes(2 * size_of_val(halves.as_slice()) as u64));
        on_every_tier(&mut group, "f16", &mut |tier| {
            let pages = halves.chunks(PAGE * HEAD).zip(halves_too.chunks(PAGE * HEAD));
            let pages = pages.map(|(keys, values)| Page::F16 { keys, values });
            attend(tier, &queries, pages, &mut states, &mut out);
        });
        let bytes = size_of_val(codes.as_slice()) + size_of_val(scales.as_slice());
        group.throughput(Throughput::Bytes(2 * bytes as u64));
        on_every_tier(&mut group, "q8_0", &mut |tier| {
            let of = |codes, scales| pages_of(codes, scales);
            let pages = of(&codes, &scales).zip(of(&codes_too, &scales_too));
            let pages = pages.map(|(keys, values)| Page::Q8_0 { keys, values });
            attend(tier, &queries, pages, &mut states, &mut out);
        });
        black_box(&out);
    }
}

fn pages_of<'a>(codes: &'a [i8], scales: &'a [f16]) -> impl Iterator<Item = Codes<'a>> {
    let block = Format::Q8_0.block_elements();
    let pages = codes.chunks(PAGE * HEAD).zip(scales.chunks(PAGE * HEAD / block));
    pages.map(|(codes, scales)| Codes { codes, scales })
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    products(&mut criterion);
    rows_of_activations(&mut criterion);
    attention(&mut criterion);
    criterion.final_summary();
}
