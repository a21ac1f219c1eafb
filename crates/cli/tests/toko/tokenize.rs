//! `toko tokenize`: golden ids, special tokens, forms of output.

use serde_json::Value;
use toko_fixtures::{embedded_model_golden, embedded_model_path, golden_path};

use crate::command::{run, run_with_stdin, text};

fn ids(arguments: &[&str]) -> Value {
    let output = run(arguments).answer();
    let document: Value = serde_json::from_str(&output).unwrap();
    assert_eq!(document.as_object().unwrap().len(), 1, "{output}");
    document["tokens"].clone()
}

#[test]
fn the_embedded_model_has_the_golden_ids_of_every_prompt() {
    for entry in embedded_model_golden().as_array().unwrap() {
        let prompt = entry["prompt"].as_str().unwrap();
        let found = ids(&["tokenize", "embedded", prompt, "--json", "--special"]);
        assert_eq!(found, entry["prompt_ids"], "{prompt}");
    }
}

#[test]
fn special_tokens_are_plain_text_unless_asked_for() {
    let plain = ids(&["tokenize", "embedded", "<|im_end|>", "--json"]);
    let special = ids(&["tokenize", "embedded", "<|im_end|>", "--json", "--special"]);
    assert_eq!(special, serde_json::json!([2041]));
    assert!(plain.as_array().unwrap().len() > 1, "{plain}");
}

#[test]
fn json_is_exactly_one_compact_document() {
    let output = run(&["tokenize", "--json", "Once upon a time"]).answer();
    assert_eq!(output, "{\"tokens\":[603,874,257,465]}\n");
}

#[test]
fn plain_output_has_an_id_and_its_piece_on_every_line() {
    let output = run(&["tokenize", "Once upon a time"]).answer();
    insta::assert_snapshot!("pieces", output);
}

#[test]
fn text_is_read_from_standard_input_for_a_dash_or_for_a_lone_model() {
    let model = embedded_model_path();
    for arguments in [
        &["tokenize", text(&model), "-", "--json"][..],
        &["tokenize", text(&model), "--json"],
        &["tokenize", "--json", "-"],
    ] {
        let output = run_with_stdin(arguments, b"Once upon a time").answer();
        assert_eq!(output, "{\"tokens\":[603,874,257,465]}\n", "{arguments:?}");
    }
}

#[test]
fn nothing_has_no_tokens() {
    assert_eq!(run(&["tokenize", "embedded", "", "--json"]).answer(), "{\"tokens\":[]}\n");
}

#[test]
fn a_file_with_a_vocabulary_alone_is_enough() {
    let vocabulary = golden_path("vocab/ggml-vocab-llama-spm.gguf");
    let plain = ids(&["tokenize", text(&vocabulary), "Hello world", "--json"]);
    let with_bos = ids(&["tokenize", text(&vocabulary), "Hello world", "--json", "--bos"]);
    // The published ids of Llama 2: BOS is 1.
    assert_eq!(plain, serde_json::json!([15043, 3186]));
    assert_eq!(with_bos, serde_json::json!([1, 15043, 3186]));
}

#[test]
fn a_missing_model_is_not_found() {
    let error = run(&["tokenize", "no-such-model", "text"]).error(3);
    assert!(error.contains("no-such-model"), "{error}");
}

#[test]
fn a_text_that_brings_its_own_bos_gets_no_second_one() {
    let vocabulary = golden_path("vocab/ggml-vocab-llama-spm.gguf");
    let found = ids(&["tokenize", text(&vocabulary), "<s>Hello", "--json", "--bos", "--special"]);
    let found = found.as_array().unwrap();
    assert_eq!(found.iter().filter(|id| **id == 1).count(), 1, "{found:?}");
    assert_eq!(found[0], 1);
}
