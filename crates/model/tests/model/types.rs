//! Small random models of every family in every tensor type.

use toko_fixtures::small::{Family, Layout, small_model};
use toko_gguf::Gguf;
use toko_gguf::tensor::TensorType;
use toko_gguf::write::Writer;
use toko_kernels::format::Format;
use toko_kernels::isa::Tier;
use toko_kernels::kernel::Kernel;
use toko_kernels::matmul::Weights;
use toko_model::KvType;

use crate::harness::Runner;

fn logits(file: &Gguf, tier: Tier, tokens: &[u32]) -> Vec<f32> {
    Runner::new(file, tier, 1, KvType::F32, 64).last_logits(tokens)
}

/// The same model with its matrices written out as floats, which other code multiplies.
fn written_out(file: &Gguf, format: Format) -> Gguf {
    let mut writer = Writer::new();
    for (key, value) in file.metadata().iter() {
        writer.copy(key, value);
    }
    for tensor in file.tensors() {
        let data = file.data(tensor).to_vec();
        let [cols, rows] = *tensor.shape else {
            writer.tensor(&tensor.name, &tensor.shape, tensor.kind, data);
            continue;
        };
        let (rows, cols) = (rows.try_into().expect("small"), cols.try_into().expect("small"));
        let kernel = Kernel::new(format, Tier::Reference);
        let weights = Weights::new(kernel, &data, rows, cols).expect("whole blocks");
        let mut floats = vec![0.0; cols];
        let mut bytes = Vec::new();
        for row in 0..rows {
            weights.dequantize_row(row, &mut floats);
            bytes.extend(floats.iter().flat_map(|float| float.to_le_bytes()));
        }
        writer.tensor(&tensor.name, &tensor.shape, TensorType::F32, bytes);
    }
    Gguf::from_bytes(writer.into_bytes().expect("writable")).expect("readable")
}

fn format(layout: &Layout) -> Format {
    match layout.name {
        "Q2_0 by 64" => Format::Q2_0,
        "Q2_0 by 128, scale first" | "PQ2_0" => Format::Q2_0G128,
        "Q2_0 by 128, scale last" => Format::Tq2_0G128,
        name => *Format::ALL.iter().find(|format| format.name() == name).expect("a known type"),
    }
}

#[test]
fn every_type_and_family_has_the_logits_of_its_weights_written_out() {
    for family in Family::ALL {
        for layout in &Layout::ALL {
            let file = Gguf::from_bytes(small_model(family, layout, 5)).expect("readable");
            let found = logits(&file, Tier::detect(), &[3, 200, 7]);
            let expected =
                logits(&written_out(&file, format(layout)), Tier::Reference, &[3, 200, 7]);
            let largest = expected.iter().fold(0f32, |largest, logit| largest.max(logit.abs()));
            assert!(largest > 0.1, "{family:?} {}: the logits are degenerate", layout.name);
            for (found, expected) in found.iter().zip(&expected) {
                let error = (found - expected).abs();
                assert!(
                    error < largest * 1e-3,
                    "{family:?} {}: {found}, not {expected}",
                    layout.name
                );
            }
        }
    }
}

#[test]
fn every_type_has_the_same_bits_on_every_tier() {
    for layout in &Layout::ALL {
        let file = Gguf::from_bytes(small_model(Family::Qwen3, layout, 9)).expect("readable");
        let bits = |tier| -> Vec<u32> {
            logits(&file, tier, &[40, 41, 90, 11]).iter().map(|logit| logit.to_bits()).collect()
        };
        let expected = bits(Tier::Reference);
        for tier in Tier::available() {
            assert!(bits(tier) == expected, "{} differs on {tier}", layout.name);
        }
    }
}
