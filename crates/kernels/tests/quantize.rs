//! The bytes of stored weights, against those of llama.cpp for the same weights.

use toko_gguf::Gguf;
use toko_gguf::tensor::TensorType;
use toko_kernels::format::Format;

const FORMATS: [(Format, TensorType); 9] = [
    (Format::Q1_0, TensorType::Q1_0),
    (Format::Q2_0, TensorType::Q2_0),
    (Format::Tq1_0, TensorType::TQ1_0),
    (Format::Tq2_0, TensorType::TQ2_0),
    (Format::Q4_0, TensorType::Q4_0),
    (Format::Q4_1, TensorType::Q4_1),
    (Format::Q5_0, TensorType::Q5_0),
    (Format::Q5_1, TensorType::Q5_1),
    (Format::Q8_0, TensorType::Q8_0),
];

fn open(architecture: &str, kind: &str) -> Gguf {
    let path = toko_fixtures::golden_path(&format!("tiny/tiny-{architecture}.{kind}.gguf"));
    Gguf::open(path).expect("the golden model opens")
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

#[test]
fn stored_weights_have_the_bytes_that_llama_cpp_gives_them() {
    for architecture in ["llama", "qwen3"] {
        let source = open(architecture, "F32");
        for (format, kind) in FORMATS {
            let golden = open(architecture, format.name());
            let quantize = format.quantizer().expect("the format can be stored");
            let mut matrices = 0;
            for tensor in golden.tensors().iter().filter(|tensor| tensor.kind == kind) {
                let original = source.tensor(&tensor.name).expect("both files have the tensor");
                let weights = floats(&source.data(original));
                let expected = golden.data(tensor);
                let mut out = vec![0; expected.len()];
                quantize(&weights, &mut out);
                let differ = out.iter().zip(&*expected).position(|(a, b)| a != b);
                assert_eq!(differ, None, "{architecture} {format} {}: first byte", tensor.name);
                matrices += 1;
            }
            assert!(matrices >= 14, "{architecture} {format}: only {matrices} matrices compared");
        }
    }
}

#[test]
fn weights_that_are_no_numbers_are_stored_without_a_panic() {
    let weights: Vec<f32> = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 1e-45]
        .into_iter()
        .cycle()
        .take(512)
        .collect();
    for format in Format::ALL {
        let Some(quantize) = format.quantizer() else { continue };
        let mut out = vec![0xff; format.row_bytes(512).expect("whole blocks")];
        quantize(&weights, &mut out);
        assert!(out.iter().any(|&byte| byte != 0xff), "{format}: something was stored");
    }
}
