//! Real files are read as other implementations read them.
//!
//! The figures come from the files' makers and from a listing by the Python package `gguf`.

use std::collections::BTreeMap;
use std::path::Path;

use toko_fixtures::{embedded_model_path, golden_path};
use toko_gguf::Gguf;
use toko_gguf::tensor::TensorType;
use toko_gguf::value::Value;

fn open(path: &Path) -> Gguf {
    Gguf::open(path).unwrap_or_else(|error| panic!("{error}"))
}

fn tiny(name: &str) -> Gguf {
    open(&golden_path(&format!("tiny/{name}.gguf")))
}

/// Number and bytes of the tensors of each type.
fn totals(gguf: &Gguf) -> BTreeMap<u32, (usize, u64)> {
    let mut totals = BTreeMap::new();
    for tensor in gguf.tensors() {
        let (count, bytes) = totals.entry(tensor.kind.0).or_insert((0, 0));
        *count += 1;
        *bytes += tensor.bytes;
    }
    totals
}

#[test]
fn the_embedded_model_has_the_settings_that_its_maker_states() {
    let gguf = open(&embedded_model_path());
    let meta = gguf.metadata();
    assert_eq!((gguf.version(), gguf.alignment(), meta.len()), (3, 32, 26));
    assert_eq!(meta.str("general.architecture").unwrap(), "qwen3");
    assert_eq!(meta.str("general.name").unwrap(), "Bonsai Sprout");
    let sizes = [
        ("block_count", 6),
        ("context_length", 1024),
        ("embedding_length", 384),
        ("feed_forward_length", 1024),
        ("attention.head_count", 6),
        ("attention.head_count_kv", 2),
        ("attention.key_length", 64),
        ("attention.value_length", 64),
        ("vocab_size", 2048),
    ];
    for (key, value) in sizes {
        assert_eq!(meta.u32(&format!("qwen3.{key}")).unwrap(), value, "{key}");
    }
    assert_eq!(meta.get("qwen3.attention.layer_norm_rms_epsilon"), Some(Value::F32(1e-6)));
    assert_eq!(meta.get("qwen3.rope.freq_base"), Some(Value::F32(10_000.0)));
    assert!(!meta.bool("tokenizer.ggml.add_bos_token").unwrap());
    let tokens = meta.string_array("tokenizer.ggml.tokens").unwrap();
    assert_eq!((tokens.len(), tokens[0], tokens[2040]), (2048, "!", "<|im_start|>"));
    let types = meta.i32_array("tokenizer.ggml.token_type").unwrap();
    assert_eq!((types[0], types[2039], types[2042]), (1, 3, 4));
    assert_eq!(meta.string_array("tokenizer.ggml.merges").unwrap().len(), 1783);
}

#[test]
fn the_embedded_model_has_the_tensors_that_its_maker_states() {
    let gguf = open(&embedded_model_path());
    let expected = [(TensorType::F32.0, (25, 23_040)), (TensorType::Q1_0.0, (43, 1_437_696))];
    assert_eq!(totals(&gguf), BTreeMap::from(expected));
    let embedding = gguf.tensor("token_embd.weight").unwrap();
    assert_eq!((embedding.shape.as_slice(), embedding.bytes), (&[384, 2048][..], 110_592));
    assert_eq!(embedding.offset, 67_360);
    assert_eq!(gguf.data(embedding).len(), 110_592);
    assert!(gguf.tensor("output.weight").is_none());
}

#[test]
fn every_tensor_type_of_the_tiny_models_is_known_with_its_size() {
    let matrices = [
        ("Q1_0", TensorType::Q1_0, 184_320),
        ("Q2_0", TensorType::Q2_0, 368_640),
        ("Q2_K", TensorType::Q2_K, 430_080),
        ("Q3_K_M", TensorType::Q3_K, 563_200),
        ("Q4_0", TensorType::Q4_0, 737_280),
        ("Q4_1", TensorType::Q4_1, 819_200),
        ("Q4_K_M", TensorType::Q4_K, 737_280),
        ("Q5_0", TensorType::Q5_0, 901_120),
        ("Q5_1", TensorType::Q5_1, 983_040),
        ("Q5_K_M", TensorType::Q5_K, 901_120),
        ("Q6_K", TensorType::Q6_K, 1_075_200),
        ("Q8_0", TensorType::Q8_0, 1_392_640),
        ("TQ1_0", TensorType::TQ1_0, 276_480),
        ("TQ2_0", TensorType::TQ2_0, 337_920),
    ];
    for (name, kind, bytes) in matrices {
        let expected = BTreeMap::from([(0, (5, 5120)), (kind.0, (15, bytes))]);
        assert_eq!(totals(&tiny(&format!("tiny-llama.{name}"))), expected, "{name}");
    }
    assert_eq!(totals(&tiny("tiny-llama.F32")), BTreeMap::from([(0, (20, 5_248_000))]));
}

#[test]
fn large_vocabularies_have_as_many_tokens_as_published() {
    let published =
        [("gpt-2", 50_257), ("llama-bpe", 128_256), ("llama-spm", 32_000), ("qwen2", 151_936)];
    for (name, count) in published {
        let gguf = open(&golden_path(&format!("vocab/ggml-vocab-{name}.gguf")));
        let tokens = gguf.metadata().string_array("tokenizer.ggml.tokens").unwrap();
        assert_eq!(tokens.len(), count, "{name}");
        assert!(gguf.tensors().is_empty());
    }
}

#[test]
fn a_model_in_memory_reads_like_the_file() {
    let path = embedded_model_path();
    let mapped = open(&path);
    let owned = Gguf::from_bytes(std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(mapped.tensors(), owned.tensors());
    for tensor in mapped.tensors() {
        assert_eq!(mapped.data(tensor)[..], owned.data(tensor)[..], "{}", tensor.name);
    }
    assert!(mapped.metadata().iter().eq(owned.metadata().iter()));
}

#[test]
fn version_2_has_the_same_fields_as_version_3() {
    let bytes = std::fs::read(embedded_model_path()).unwrap();
    let mut older = bytes.clone();
    older[4] = 2;
    let (newer, older) = (Gguf::from_bytes(bytes).unwrap(), Gguf::from_bytes(older).unwrap());
    assert_eq!((newer.version(), older.version()), (3, 2));
    assert_eq!(newer.tensors(), older.tensors());
    assert!(newer.metadata().iter().eq(older.metadata().iter()));
}

#[test]
fn an_embedded_model_is_not_copied() {
    static BYTES: &[u8] = include_bytes!("../../../models/sprout-10m-q1_0.gguf");
    let gguf = Gguf::from_static(BYTES).unwrap();
    let tensor = gguf.tensor("output_norm.weight").unwrap();
    let data = gguf.data(tensor);
    let start = usize::try_from(tensor.offset).unwrap();
    assert!(std::ptr::eq(&raw const data[0], &raw const BYTES[start]));
}

#[test]
fn the_bytes_of_a_tensor_outlive_the_model() {
    let gguf = open(&embedded_model_path());
    let tensor = gguf.tensor("output_norm.weight").unwrap();
    let (data, expected) = (gguf.data(tensor), gguf.data(tensor).to_vec());
    drop(gguf);
    assert_eq!(data.clone()[..], expected[..]);
    assert!(expected.iter().any(|&byte| byte != 0));
}

#[cfg(target_os = "linux")]
#[test]
fn the_file_is_unmapped_with_the_last_view_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("watched.gguf");
    std::fs::copy(embedded_model_path(), &path).unwrap();
    let is_mapped = || std::fs::read_to_string("/proc/self/maps").unwrap().contains("watched.gguf");
    let gguf = open(&path);
    let data = gguf.data(&gguf.tensors()[0]);
    drop(gguf);
    assert!(is_mapped());
    drop(data);
    assert!(!is_mapped());
}
