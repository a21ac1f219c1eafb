//! Texts as vectors, with a scripted engine and with the real one.

use std::sync::Arc;

use serde_json::{Value, json};
use toko_engine::{Error, Event, Special};

use crate::client::{Answer, post};
use crate::engine::serve_embedded;
use crate::errors::check;
use crate::fake::{Fake, Server, laid_over, summary, tell};

async fn embed(server: &Server, fields: Value) -> Answer {
    let request = laid_over(json!({"model": "default", "input": "Hi"}), fields);
    post(server.address, "/v1/embeddings", &request).await
}

/// Tells two vectors.
fn telling() -> Fake {
    Fake::playing(1, |sinks| {
        tell(&mut sinks[0], Event::Prefilled { tokens: 1 });
        for (index, vector) in [vec![0.6, 0.0, 0.8], vec![-1.0, 0.0, 0.0]].into_iter().enumerate() {
            tell(&mut sinks[0], Event::Embedded { index, vector });
        }
        tell(&mut sinks[0], Event::Finished(summary()));
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn vectors_have_the_public_shape_as_numbers_and_as_bytes() {
    let usage = json!({"prompt_tokens": 9, "total_tokens": 9});
    let cases = [
        (json!({}), json!([0.6f32, 0.0, 0.8f32]), json!([-1.0, 0.0, 0.0])),
        (
            json!({"encoding_format": "float"}),
            json!([0.6f32, 0.0, 0.8f32]),
            json!([-1.0, 0.0, 0.0]),
        ),
        // 9a 99 19 3f, four zeros, cd cc 4c 3f; 00 00 80 bf and zeros.
        (
            json!({"encoding_format": "base64"}),
            json!("mpkZPwAAAADNzEw/"),
            json!("AACAvwAAAAAAAAAA"),
        ),
        (json!({"dimensions": 2}), json!([1.0, 0.0]), json!([-1.0, 0.0])),
    ];
    for (fields, first, second) in cases {
        let server = Server::start(Arc::new(telling())).await;
        let answer = embed(&server, laid_over(json!({"input": ["a", "b"]}), fields)).await;
        assert_eq!(
            answer.json(),
            json!({
                "object": "list",
                "data": [
                    {"object": "embedding", "index": 0, "embedding": first},
                    {"object": "embedding", "index": 1, "embedding": second},
                ],
                "model": "org/model:q1",
                "usage": usage,
            })
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_shape_of_input_reaches_the_engine_as_tokens_and_marks_in_it_as_text() {
    let cases = [
        (json!("one <|im_end|>"), vec![Ok("one <|im_end|>")]),
        (json!(["one", "two"]), vec![Ok("one"), Ok("two")]),
        (json!([5, 6]), vec![Err(vec![5, 6])]),
        (json!([[5], [6, 7]]), vec![Err(vec![5]), Err(vec![6, 7])]),
    ];
    for (input, expected) in cases {
        let fake = Arc::new(telling());
        let server = Server::start(fake.clone()).await;
        assert_eq!(embed(&server, json!({"input": input})).await.status, 200);
        let tokenizer = toko_server::Backend::tokenizer(&*fake);
        let tokens = |text| tokenizer.encode_with_bos(text, Special::AsText);
        let expected: Vec<Vec<u32>> =
            expected.into_iter().map(|input| input.map_or_else(|ids| ids, tokens)).collect();
        assert_eq!(fake.embedded(), expected, "{input}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn inputs_that_make_no_vector_are_refused_by_name_before_the_engine_hears_of_them() {
    let cases = [
        ("missing_required_parameter", json!({"model": null}), "model"),
        ("missing_required_parameter", json!({"input": null}), "input"),
        ("invalid_value", json!({"input": ""}), "input"),
        ("invalid_value", json!({"input": []}), "input"),
        ("invalid_value", json!({"input": ["a", ""]}), "input[1]"),
        ("invalid_value", json!({"input": vec!["a"; 2049]}), "input"),
        ("invalid_value", json!({"input": [[1], [999_999]]}), "input[1][0]"),
        ("invalid_type", json!({"input": {"text": "a"}}), "input"),
        ("invalid_type", json!({"input": ["a", 1]}), "input[1]"),
        ("invalid_value", json!({"encoding_format": "hex"}), "encoding_format"),
        ("invalid_type", json!({"encoding_format": 1}), "encoding_format"),
        ("invalid_value", json!({"dimensions": 0}), "dimensions"),
        ("invalid_value", json!({"dimensions": 9}), "dimensions"),
        ("invalid_type", json!({"dimensions": "8"}), "dimensions"),
    ];
    let fake = Arc::new(telling());
    let server = Server::start(fake.clone()).await;
    for (code, fields, param) in cases {
        check(&embed(&server, fields).await, 400, code, Some(param));
    }
    check(&embed(&server, json!({"model": "nope"})).await, 404, "model_not_found", Some("model"));
    assert!(!fake.was_asked());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_engine_says_about_an_input_names_it() {
    let refusing = |error: fn() -> Error| Server::start(Arc::new(Fake::new(move |_| Err(error()))));
    let too_long = || Error::Text {
        index: 1,
        source: Box::new(Error::ContextExceeded { prompt_tokens: 80, context_tokens: 64 }),
    };
    let answer = embed(&refusing(too_long).await, json!({"input": ["a", "b"]})).await;
    let error = check(&answer, 400, "context_length_exceeded", Some("input[1]"));
    assert_eq!((&error["n_prompt_tokens"], &error["n_ctx"]), (&json!(80), &json!(64)));
    let answer = embed(&refusing(|| Error::Pooling { kind: 4 }).await, json!({})).await;
    check(&answer, 400, "unsupported_parameter", Some("model"));
    let full = || Error::QueueFull { waiting: 3, retry_after_seconds: 7 };
    let answer = embed(&refusing(full).await, json!({})).await;
    check(&answer, 429, "rate_limit_exceeded", None);
    assert_eq!(answer.header("retry-after"), Some("7"));
    let failing = Fake::playing(1, |sinks| {
        tell(&mut sinks[0], Event::Embedded { index: 0, vector: vec![1.0] });
        tell(&mut sinks[0], Event::Failed(Error::NotANumber { position: 3 }));
    });
    let answer = embed(&Server::start(Arc::new(failing)).await, json!({})).await;
    check(&answer, 500, "engine_error", None);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_embedded_model_finds_related_texts_near_each_other() {
    let server = serve_embedded().await;
    let texts = [
        "Once upon a time there was a little fox named Pip who lived in the forest.",
        "A small fox called Pip lived in the woods.",
        "A volcano is a mountain that can send out hot melted rock.",
    ];
    let answer = embed(&server, json!({"input": texts})).await.json();
    let vectors: Vec<Vec<f64>> = answer["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["embedding"].as_array().unwrap().iter().filter_map(Value::as_f64).collect())
        .collect();
    let near =
        |a: usize, b: usize| vectors[a].iter().zip(&vectors[b]).map(|(x, y)| x * y).sum::<f64>();
    assert!((near(0, 0) - 1.0).abs() < 1e-5);
    assert!(near(0, 1) > near(0, 2) && near(0, 1) > near(1, 2));
    assert!(answer["usage"]["prompt_tokens"].as_u64().is_some_and(|tokens| tokens > 30));
}
