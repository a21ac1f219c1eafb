//! What llama-server was seen to do with unusual requests, answered rightly, where no other test here covers it.

use std::sync::Arc;

use serde_json::json;

use crate::client::{chat, exchange, post};
use crate::engine::serve_embedded;
use crate::errors::check;
use crate::fake::{Fake, Server, ask, ask_to_continue};

#[tokio::test(flavor = "multi_thread")]
async fn zero_tokens_are_none_and_not_one() {
    let server = serve_embedded().await;
    let whole = chat(server.address, &ask(json!({"max_tokens": 0}))).await.json();
    let choice = &whole["choices"][0];
    assert_eq!(
        (&choice["message"]["content"], &choice["finish_reason"]),
        (&json!(""), &json!("length"))
    );
    assert_eq!(whole["usage"]["completion_tokens"], 0);
    assert!(whole["usage"]["prompt_tokens"].as_u64().is_some_and(|tokens| tokens > 0));
    let streamed = chat(server.address, &ask(json!({"max_tokens": 0, "stream": true}))).await;
    assert!(streamed.body.contains("\"finish_reason\":\"length\""), "{}", streamed.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_prompt_is_refused_and_not_answered_with_nothing() {
    let server = serve_embedded().await;
    for prompt in [json!(""), json!([]), json!([""]), json!([[]])] {
        let request = ask_to_continue(json!({"prompt": prompt}));
        let answer = post(server.address, "/v1/completions", &request).await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["code"]),
            (400, &json!("invalid_value"))
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_model_must_be_named_and_known_on_every_route_that_generates() {
    let fake = Arc::new(Fake::saying(&["never"]));
    let server = Server::start(fake.clone()).await;
    for path in ["/v1/chat/completions", "/chat/completions", "/v1/completions", "/v1/embeddings"] {
        let request = |model| {
            let mut request = ask(json!({"prompt": "Hi", "input": "Hi"}));
            request["model"] = model;
            request
        };
        let answer = post(server.address, path, &request(json!(null))).await;
        check(&answer, 400, "missing_required_parameter", Some("model"));
        let answer = post(server.address, path, &request(json!("nope"))).await;
        check(&answer, 404, "model_not_found", Some("model"));
        let body = request(json!("default")).to_string();
        let answer =
            exchange(server.address, "POST", path, &["content-type: text/plain"], body.as_bytes());
        check(&answer.await, 415, "unsupported_media_type", None);
        // The list of stored answers has the path of the chat.
        if path != "/v1/chat/completions" {
            let answer = exchange(server.address, "GET", path, &[], b"").await;
            check(&answer, 405, "method_not_allowed", None);
        }
    }
    assert!(!fake.was_asked());
}

#[tokio::test(flavor = "multi_thread")]
async fn more_choices_than_replicas_are_answered_one_after_the_other() {
    let server = serve_embedded().await;
    let request = ask(json!({"n": 8, "max_tokens": 2, "temperature": 1, "seed": 1}));
    let answer = chat(server.address, &request).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.json()["choices"].as_array().unwrap().len(), 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_choices_than_could_ever_wait_are_a_bad_request_and_not_a_full_queue() {
    let fake = Arc::new(Fake::saying(&["ok"]).with_capacity(3));
    let server = Server::start(fake.clone()).await;
    check(&chat(server.address, &ask(json!({"n": 4}))).await, 400, "invalid_value", Some("n"));
    let cases = [
        (json!({"n": 4}), "n"),
        (json!({"prompt": ["a", "b"], "n": 2}), "n"),
        (json!({"prompt": ["a", "b", "c", "d"]}), "prompt"),
    ];
    for (fields, param) in cases {
        let answer = post(server.address, "/v1/completions", &ask_to_continue(fields)).await;
        check(&answer, 400, "invalid_value", Some(param));
    }
    assert!(!fake.was_asked());
    assert_eq!(chat(server.address, &ask(json!({"n": 3}))).await.status, 200);
}
