//! The layout of type id 42 is told from the offsets and the scales, or not at all.
#![expect(clippy::unwrap_used, reason = "a test stops where its own material is wrong")]

use toko_fixtures::golden_path;
use toko_fixtures::small::{Family, Layout, small_model};
use toko_gguf::q2::Q2Layout;
use toko_gguf::tensor::TensorType;
use toko_gguf::write::Writer;
use toko_gguf::{Error, Gguf};

fn small(name: &str, seed: u64) -> Gguf {
    let layout = Layout::ALL.iter().find(|layout| layout.name == name).unwrap();
    Gguf::from_bytes(small_model(Family::Qwen3, layout, seed)).unwrap()
}

fn layout(gguf: &Gguf) -> Q2Layout {
    gguf.q2_layout().unwrap().unwrap().layout
}

/// A model with one tensor of id 42 for each entry: row length, rows, and the bytes of its data.
fn with(tensors: &[(u64, u64, Vec<u8>)]) -> Gguf {
    let mut writer = Writer::new();
    for (index, (cols, rows, data)) in tensors.iter().enumerate() {
        let name = format!("w{index}");
        writer.tensor(&name, &[*cols, *rows], TensorType::Q2_0, data.clone());
    }
    Gguf::from_bytes(writer.into_bytes().unwrap()).unwrap()
}

#[track_caller]
fn check_refused(gguf: &Gguf, tensor: &str, why: &str) {
    let error = gguf.q2_layout().unwrap().unwrap_err();
    let Error::Q2Layout { tensor: named, why: said } = error else { panic!("{error}") };
    assert_eq!(named, tensor);
    assert!(said.contains(why), "{said}");
}

#[test]
fn upstream_files_have_groups_of_64() {
    for name in ["tiny-llama.Q2_0.gguf", "tiny-qwen3.Q2_0.gguf"] {
        let gguf = Gguf::open(golden_path(&format!("tiny/{name}"))).unwrap();
        assert_eq!(layout(&gguf), Q2Layout::Group64);
        let embedding = gguf.tensor("token_embd.weight").unwrap();
        assert_eq!(embedding.bytes, embedding.elements() / 64 * 18);
    }
}

#[test]
fn each_layout_is_told_from_the_others_for_many_seeds() {
    let layouts = [
        ("Q2_0 by 64", Q2Layout::Group64),
        ("Q2_0 by 128, scale first", Q2Layout::Group128ScaleFirst),
        ("Q2_0 by 128, scale last", Q2Layout::Group128ScaleLast),
    ];
    for (name, expected) in layouts {
        for seed in 0..20 {
            assert_eq!(layout(&small(name, seed)), expected, "{name}, seed {seed}");
        }
    }
}

#[test]
fn the_reason_is_a_sentence_with_its_numbers() {
    let choice = small("Q2_0 by 128, scale last", 1).q2_layout().unwrap().unwrap();
    assert!(choice.why.contains("34 bytes per 128 weights"), "{}", choice.why);
    assert!(choice.why.contains("sampled blocks the scale can only lie last"), "{}", choice.why);
}

#[test]
fn a_file_without_the_type_has_no_layout() {
    let layout = Layout::ALL.iter().find(|layout| layout.name == "PQ2_0").unwrap();
    let gguf = Gguf::from_bytes(small_model(Family::Llama, layout, 1)).unwrap();
    assert!(gguf.q2_layout().is_none());
}

#[test]
fn offsets_that_fit_no_group_are_refused_at_use_only() {
    let gguf = with(&[(128, 4, vec![0; 200])]);
    assert_eq!(gguf.tensors()[0].bytes, 224, "up to the end, padding included");
    check_refused(&gguf, "w0", "fit neither");
}

#[test]
fn a_tensor_so_small_that_both_groups_fit_is_refused() {
    check_refused(&with(&[(128, 1, vec![0; 36])]), "w0", "alike");
}

#[test]
fn tensors_that_contradict_each_other_are_refused() {
    let gguf = with(&[(128, 64, vec![0; 64 * 34]), (128, 64, vec![0; 64 * 36])]);
    check_refused(&gguf, "w0", "don't fit 18 per 64");
}

#[test]
fn blocks_that_fit_both_layouts_or_neither_are_refused() {
    let zeros = with(&[(128, 64, vec![0; 64 * 34])]);
    check_refused(&zeros, "w0", "0 have an impossible scale at the front and 0 at the end");
    let infinities = with(&[(128, 64, [0x00, 0x7c].repeat(64 * 17))]);
    check_refused(&infinities, "w0", "64 have an impossible scale at the front and 64 at the end");
}

#[test]
fn code_3_decides_where_the_scales_do_not() {
    // Scale 1.0 first; the last two code bytes are 0x3c00 too, so that both scales are plausible.
    // Only read with the scale last do the codes hold a 3: it is in the scale's 0x3c.
    let mut block = vec![0x00, 0x3c];
    block.extend([0x55; 30]);
    block.extend([0x00, 0x28]);
    let gguf = with(&[(128, 64, block.repeat(64))]);
    assert_eq!(layout(&gguf), Q2Layout::Group128ScaleFirst);
}
