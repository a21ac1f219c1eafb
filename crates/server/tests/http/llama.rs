//! Tokens and prompts for clients of llama-server, against what other programs made of the same texts.

use std::sync::Arc;

use serde_json::{Value, json};
use toko_fixtures::{embedded_model_golden, golden_json, golden_path};

use crate::client::post;
use crate::errors::check;
use crate::fake::{Fake, Server};

async fn ask(server: &Server, path: &str, body: Value) -> Value {
    let answer = post(server.address, path, &body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

async fn with_vocabulary(relative: &str) -> Server {
    Server::start(Arc::new(Fake::with_vocabulary(&golden_path(relative)))).await
}

/// Joins the bytes of pieces: texts, and arrays of bytes where the bytes are no text.
fn joined(pieces: &[Value]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for token in pieces {
        match &token["piece"] {
            Value::String(text) => bytes.extend_from_slice(text.as_bytes()),
            Value::Array(piece) => {
                let piece: Vec<u8> = piece
                    .iter()
                    .map(|byte| u8::try_from(byte.as_u64().unwrap()).unwrap())
                    .collect();
                assert!(str::from_utf8(&piece).is_err(), "{piece:?} is a text");
                bytes.extend(piece);
            }
            other => panic!("{other} is no piece"),
        }
    }
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_and_its_special_tokens_become_the_reference_tokens_and_back() {
    let server = Server::saying(&[]).await;
    let golden = embedded_model_golden();
    for golden in golden.as_array().unwrap() {
        let (text, ids) = (&golden["prompt"], &golden["prompt_ids"]);
        let tokens = ask(&server, "/tokenize", json!({"content": text})).await;
        assert_eq!(tokens, json!({"tokens": ids}), "{text}");
        let content = ask(&server, "/detokenize", json!({"tokens": ids})).await;
        assert_eq!(content, json!({"content": text}));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn special_tokens_are_text_when_they_are_not_to_be_parsed() {
    let server = Server::saying(&[]).await;
    let text = "<|im_start|>user\nHi<|im_end|>";
    let body =
        json!({"content": text, "parse_special": false, "with_pieces": true, "model": "default"});
    let answer = ask(&server, "/tokenize", body).await;
    let pieces = answer["tokens"].as_array().unwrap();
    assert_eq!(joined(pieces), text.as_bytes());
    assert!(
        pieces
            .iter()
            .all(|token| token["piece"].as_str().is_some_and(|piece| !piece.contains("<|im")))
    );
    let parsed = ask(&server, "/tokenize", json!({"content": text, "with_pieces": true})).await;
    let parsed = parsed["tokens"].as_array().unwrap();
    assert_eq!(
        (&parsed[0]["piece"], joined(parsed)),
        (&json!("<|im_start|>"), text.as_bytes().to_vec())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_piece_that_is_no_text_is_an_array_of_bytes() {
    let server = Server::saying(&[]).await;
    let text = "héllo 😀 \u{0}世";
    let answer = ask(&server, "/tokenize", json!({"content": text, "with_pieces": true})).await;
    let pieces = answer["tokens"].as_array().unwrap();
    assert_eq!(joined(pieces), text.as_bytes());
    assert!(pieces.iter().any(|token| token["piece"].is_array()), "{answer}");
    let ids: Vec<_> = pieces.iter().map(|token| &token["id"]).collect();
    let plain = ask(&server, "/tokenize", json!({"content": text})).await;
    assert_eq!(plain, json!({"tokens": ids}));
    assert_eq!(ask(&server, "/detokenize", json!({"tokens": ids})).await, json!({"content": text}));
    let first = pieces
        .iter()
        .find(|token| token["piece"] == json!([0xf0]))
        .expect("the emoji's first byte");
    let half = ask(&server, "/detokenize", json!({"tokens": [first["id"]]})).await;
    assert_eq!(half, json!({"content": "\u{fffd}"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn bos_goes_before_a_text_only_when_asked_for() {
    let server = with_vocabulary("vocab/ggml-vocab-llama-spm.gguf").await;
    let read = |extension: &str| {
        let path = golden_path(&format!("vocab/ggml-vocab-llama-spm.gguf.{extension}"));
        std::fs::read_to_string(path).unwrap()
    };
    let (texts, ids) = (read("inp"), read("out"));
    let mut checked = 0;
    for (text, ids) in texts.split("\n__ggml_vocab_test__\n").zip(ids.lines()) {
        let ids: Vec<u32> = ids.split_whitespace().map(|id| id.parse().unwrap()).collect();
        let plain = ask(&server, "/tokenize", json!({"content": text})).await;
        assert_eq!(plain, json!({"tokens": ids}), "{text:?}");
        let with_bos = [&[1], ids.as_slice()].concat();
        let marked = ask(&server, "/tokenize", json!({"content": text, "add_special": true})).await;
        assert_eq!(marked, json!({"tokens": with_bos}), "{text:?}");
        let content = ask(&server, "/detokenize", json!({"tokens": ids})).await;
        assert_eq!(content, json!({"content": text}));
        checked += 1;
    }
    assert!(checked > 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_becomes_the_prompt_that_other_programs_make_of_it() {
    let server = with_vocabulary("tiny/tiny-qwen3.Q8_0.gguf").await;
    let golden = golden_json("chat/qwen3.json");
    let agreed: Vec<_> =
        golden["chats"].as_array().unwrap().iter().filter(|chat| chat["agree"] == true).collect();
    assert!(agreed.len() >= 9);
    for chat in agreed {
        let messages = &chat["messages"];
        let prompt = ask(&server, "/apply-template", json!({"messages": messages})).await;
        assert_eq!(prompt, json!({"prompt": chat["llamacpp_prompt"]}), "{}", chat["name"]);
        let fields = json!({"model": "model-q1", "messages": messages, "add_generation_prompt": false, "stream": true});
        let prompt = ask(&server, "/apply-template", fields).await;
        assert_eq!(prompt, json!({"prompt": chat["jinja2_no_generation_prompt"]}));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_text_a_token_or_a_conversation_is_named() {
    let server = Server::saying(&[]).await;
    let user = json!([{"role": "user", "content": "Hi"}]);
    let cases = [
        ("/tokenize", json!({}), "missing_required_parameter", "content"),
        ("/tokenize", json!({"content": null}), "missing_required_parameter", "content"),
        ("/tokenize", json!({"content": ["a"]}), "invalid_type", "content"),
        ("/tokenize", json!({"content": "a", "add_special": 1}), "invalid_type", "add_special"),
        ("/tokenize", json!({"content": "a", "with_pieces": "yes"}), "invalid_type", "with_pieces"),
        ("/detokenize", json!({}), "missing_required_parameter", "tokens"),
        ("/detokenize", json!({"tokens": "1"}), "invalid_type", "tokens"),
        ("/detokenize", json!({"tokens": [1, "2"]}), "invalid_type", "tokens[1]"),
        ("/detokenize", json!({"tokens": [1, 2.5]}), "invalid_type", "tokens[1]"),
        ("/detokenize", json!({"tokens": [1, 2, 999_999]}), "invalid_value", "tokens[2]"),
        ("/detokenize", json!({"tokens": [-1]}), "invalid_value", "tokens[0]"),
        ("/apply-template", json!({}), "missing_required_parameter", "messages"),
        ("/apply-template", json!({"messages": []}), "invalid_value", "messages"),
        (
            "/apply-template",
            json!({"messages": [{"role": "user"}]}),
            "missing_required_parameter",
            "messages[0].content",
        ),
        (
            "/apply-template",
            json!({"messages": user, "continue_final_message": true}),
            "unsupported_parameter",
            "continue_final_message",
        ),
    ];
    for (path, body, code, param) in cases {
        check(&post(server.address, path, &body).await, 400, code, Some(param));
    }
    for path in ["/tokenize", "/detokenize", "/apply-template"] {
        let body = json!({"model": "nope", "content": "a", "tokens": [1], "messages": user});
        check(&post(server.address, path, &body).await, 404, "model_not_found", Some("model"));
        check(&post(server.address, path, &json!([1])).await, 400, "invalid_json", None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_at_all_has_no_tokens_and_no_tokens_are_no_text() {
    let server = Server::saying(&[]).await;
    assert_eq!(ask(&server, "/tokenize", json!({"content": ""})).await, json!({"tokens": []}));
    assert_eq!(ask(&server, "/detokenize", json!({"tokens": []})).await, json!({"content": ""}));
}
