//! `toko show`: facts of files that run and of files that don't.

use serde_json::{Value, json};
use toko_fixtures::golden_path;

use crate::command::{run, text, toko};

fn document(model: &str) -> Value {
    serde_json::from_str(&run(&["show", model, "--json"]).answer()).unwrap()
}

#[test]
fn the_embedded_model_is_shown_with_the_facts_of_its_recipe() {
    let shown = document("embedded");
    let expected = [
        ("/architecture", json!("qwen3")),
        ("/gguf_version", json!(3)),
        ("/problem", Value::Null),
        ("/tensors", json!(68)),
        ("/geometry/context_length", json!(1024)),
        ("/geometry/block_count", json!(6)),
        ("/geometry/embedding_length", json!(384)),
        ("/geometry/feed_forward_length", json!(1024)),
        ("/geometry/head_count", json!(6)),
        ("/geometry/head_count_kv", json!(2)),
        ("/geometry/key_length", json!(64)),
        ("/rope/freq_base", json!(10000.0)),
        // Six layers, two heads, 64 keys and 64 values.
        ("/kv_bytes_per_token/f16", json!(3072)),
        ("/kv_bytes_per_token/f32", json!(6144)),
        ("/kv_bytes_per_token/q8_0", json!(6 * 2 * 2 * (2 * 34))),
        ("/tensor_types/0/type", json!("Q1_0")),
        ("/tensor_types/0/id", json!(41)),
        ("/tensor_types/0/tensors", json!(43)),
        ("/tensor_types/0/bytes", json!(1_437_696)),
        ("/tensor_types/1/type", json!("F32")),
        ("/tensor_types/1/tensors", json!(25)),
        ("/tensor_types/1/bytes", json!(23_040)),
        ("/tokenizer/model", json!("gpt2")),
        ("/tokenizer/pre", json!("qwen2")),
        ("/tokenizer/tokens", json!(2048)),
        ("/tokenizer/merges", json!(1783)),
        ("/tokenizer/add_bos", json!(false)),
        ("/q2_layout", Value::Null),
        ("/metadata/general.file_type", json!(40)),
    ];
    for (pointer, value) in expected {
        assert_eq!(shown.pointer(pointer), Some(&value), "{pointer}");
    }
    let special = shown["tokenizer"]["special"].as_array().unwrap();
    let eos = special.iter().find(|token| token["role"] == "eos").unwrap();
    assert_eq!((&eos["id"], &eos["text"]), (&json!(2041), &json!("<|im_end|>")));
    assert_eq!(shown["metadata"].as_object().unwrap().len(), 26 - 1, "all but the template");
}

#[test]
fn people_see_the_same_facts() {
    insta::assert_snapshot!("embedded", run(&["show", "embedded"]).answer());
}

#[test]
fn the_template_alone_is_the_one_of_the_recipe() {
    let recipe = toko_fixtures::embedded_model_path().with_file_name("recipe/chat_template.jinja");
    let expected = std::fs::read_to_string(recipe).unwrap();
    assert_eq!(run(&["show", "embedded", "--template"]).answer().trim_end(), expected.trim_end());
}

#[test]
fn a_vocabulary_without_weights_is_shown() {
    let path = golden_path("vocab/ggml-vocab-llama-spm.gguf");
    let shown = document(text(&path));
    assert_eq!((&shown["tensors"], &shown["problem"]), (&json!(0), &Value::Null));
    assert_eq!(shown["tokenizer"]["tokens"], json!(32000));
    let output = run(&["show", text(&path)]).answer();
    assert!(output.contains("no: it has a vocabulary but no weights"), "{output}");
}

#[test]
fn the_layout_of_type_42_is_named_with_its_reason() {
    let shown = document(text(&golden_path("tiny/tiny-llama.Q2_0.gguf")));
    let layout = &shown["q2_layout"];
    assert_eq!(layout["layout"], json!("64 weights in 18 bytes, scale first"));
    assert!(layout["why"].as_str().unwrap().contains("18 bytes per 64"), "{layout}");
}

#[test]
fn a_missing_file_is_not_found() {
    let error = run(&["show", "missing.gguf"]).error(3);
    assert!(error.contains("missing.gguf"), "{error}");
}

#[test]
fn colour_comes_when_forced_and_never_against_no_color() {
    let shown = |variables: &[(&str, &str)]| {
        let mut command = toko(&["show", "embedded"]);
        command.envs(variables.iter().copied());
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert!(!shown(&[]).contains('\x1b'), "a pipe is no terminal");
    assert!(shown(&[("CLICOLOR_FORCE", "1")]).contains("\x1b[1mGeometry\x1b[0m"));
    assert!(!shown(&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]).contains('\x1b'));
}
