//! Each row of the error table, met from outside.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};
use toko_engine::{Error, Event};

use crate::client::{Answer, chat, exchange, get, post};
use crate::fake::{Fake, Server, ask, tell, text};

const JSON: &[&str] = &["content-type: application/json"];
const CHAT: &str = "/v1/chat/completions";

/// Checks an error answer: its status, code, parameter and that the object is whole.
#[track_caller]
pub(crate) fn check(answer: &Answer, status: u16, code: &str, param: Option<&str>) -> Value {
    let body = answer.json();
    let error = body["error"].as_object().unwrap_or_else(|| panic!("no error in {body}"));
    for key in ["message", "type", "param", "code"] {
        assert!(error.contains_key(key), "{key} is missing in {body}");
    }
    assert!(error["message"].as_str().is_some_and(|message| message.len() > 10), "{body}");
    assert_eq!(
        (answer.status, &error["code"], &error["param"]),
        (status, &json!(code), &json!(param)),
        "{body}"
    );
    body["error"].clone()
}

/// Checks that each set of fields is refused with the code, naming the parameter, before the engine hears of it.
async fn check_refused(code: &str, cases: &[(Value, &str)]) {
    let fake = Arc::new(Fake::saying(&["never"]));
    let server = Server::start(fake.clone()).await;
    for (fields, param) in cases {
        let answer = chat(server.address, &ask(fields.clone())).await;
        let error = check(&answer, 400, code, Some(*param));
        assert_eq!(error["type"], "invalid_request_error", "{fields}");
        let mut streamed = ask(fields.clone());
        if fields.get("stream").is_none() {
            streamed["stream"] = json!(true);
        }
        check(&chat(server.address, &streamed).await, 400, code, Some(*param));
    }
    assert!(!fake.was_asked());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_no_json_object_is_refused() {
    let server = Server::saying(&["never"]).await;
    let deep = ["[".repeat(100_000), format!("{{\"tools\":{}", "[".repeat(100_000))];
    let bodies: &[&[u8]] = &[
        b"",
        b" ",
        b"{\"model\":",
        b"{\"model\":\"default\"} x",
        b"[1,2]",
        b"\"x\"",
        b"42",
        b"null",
        b"{\"model\":\"default\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe\"}]}",
        b"{\"unknown\":\"\xff\"}",
        b"{\"model\":\"default\",\"messages\":[{\"role\":\"user\",\"content\":\"\\ud83d\"}]}",
        b"{\"model\":\"default\",\"model\":\"default\"}",
        deep[0].as_bytes(),
        deep[1].as_bytes(),
    ];
    for body in bodies {
        let answer = exchange(server.address, "POST", CHAT, JSON, body).await;
        let error = check(&answer, 400, "invalid_json", None);
        assert_eq!(error["type"], "invalid_request_error");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_field_is_named() {
    let cases = [
        (json!({"model": null}), "model"),
        (json!({"messages": null}), "messages"),
        (json!({"messages": [{"content": "x"}]}), "messages[0].role"),
        (
            json!({"messages": [{"role": "user", "content": "x"}, {"role": "user"}]}),
            "messages[1].content",
        ),
        (json!({"messages": [{"role": "user", "content": null}]}), "messages[0].content"),
        (
            json!({"messages": [{"role": "user", "content": [{"text": "x"}]}]}),
            "messages[0].content[0].type",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
            "messages[0].content[0].text",
        ),
        (
            json!({"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f"}}]}]}),
            "messages[0].tool_calls[0].function.arguments",
        ),
        (json!({"response_format": {}}), "response_format.type"),
    ];
    check_refused("missing_required_parameter", &cases).await;
    let server = Server::saying(&["never"]).await;
    let answer =
        chat(server.address, &json!({"messages": [{"role": "user", "content": "Hi"}]})).await;
    check(&answer, 400, "missing_required_parameter", Some("model"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_field_of_the_wrong_type_is_named_by_its_path() {
    let cases = [
        (json!({"model": 3}), "model"),
        (json!({"messages": "hi"}), "messages"),
        (json!({"messages": {"role": "user", "content": "hi"}}), "messages"),
        (json!({"messages": [["user", "hi"]]}), "messages[0]"),
        (json!({"messages": ["hi"]}), "messages[0]"),
        (json!({"messages": [{"role": "user", "content": "x"}, {"role": 1}]}), "messages[1].role"),
        (json!({"messages": [{"role": "user", "content": 1}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": {"text": "x"}}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": ["x"]}]}), "messages[0].content[0]"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}),
            "messages[0].content[0].text",
        ),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"max_tokens": "4"}), "max_tokens"),
        (json!({"max_tokens": 1.5}), "max_tokens"),
        (json!({"stop": 3}), "stop"),
        (json!({"stop": ["a", 3]}), "stop[1]"),
        (json!({"seed": "x"}), "seed"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"stream": true, "stream_options": true}), "stream_options"),
        (
            json!({"stream": true, "stream_options": {"include_usage": "yes"}}),
            "stream_options.include_usage",
        ),
        (json!({"logit_bias": []}), "logit_bias"),
        (json!({"logit_bias": {"5": "much"}}), "logit_bias.5"),
        (json!({"logit_bias": {"5": null}}), "logit_bias.5"),
        (json!({"tools": {}}), "tools"),
        (json!({"tool_choice": 1}), "tool_choice"),
        (json!({"response_format": "json_object"}), "response_format"),
        (json!({"logprobs": 2}), "logprobs"),
        (json!({"chat_template_kwargs": "x"}), "chat_template_kwargs"),
    ];
    check_refused("invalid_type", &cases).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_type_is_explained_in_words_of_json() {
    let server = Server::saying(&["never"]).await;
    let cases = [
        (
            json!({"temperature": "hot"}),
            "temperature: invalid type: string \"hot\", expected a number at line",
        ),
        (json!({"seed": "x, expected f32"}), "expected f32\", expected an integer at line"),
        (json!({"messages": "hi"}), "expected an array at line"),
        (json!({"messages": ["hi"]}), "expected an object at line"),
        (json!({"chat_template_kwargs": 1}), "expected an object at line"),
        (json!({"stream": 1}), "expected a boolean at line"),
    ];
    for (fields, words) in cases {
        let error = chat(server.address, &ask(fields)).await.json()["error"].take();
        assert!(
            error["message"].as_str().is_some_and(|message| message.contains(words)),
            "{error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_out_of_range_is_refused_and_not_clamped() {
    let cases = [
        (json!({"messages": []}), "messages"),
        (json!({"messages": [{"role": "martian", "content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user", "content": []}]}), "messages[0].content"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "smell"}]}]}),
            "messages[0].content[0].type",
        ),
        (
            json!({"messages": [
                {"role": "user", "content": "x", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
            ]}),
            "messages[0].tool_calls",
        ),
        (json!({"temperature": -1}), "temperature"),
        (json!({"temperature": 2.001}), "temperature"),
        (json!({"temperature": 1e300}), "temperature"),
        (json!({"top_p": 0}), "top_p"),
        (json!({"top_p": 1.01}), "top_p"),
        (json!({"top_k": -1}), "top_k"),
        (json!({"min_p": -0.1}), "min_p"),
        (json!({"min_p": 1.1}), "min_p"),
        (json!({"frequency_penalty": 5}), "frequency_penalty"),
        (json!({"presence_penalty": -2.1}), "presence_penalty"),
        (json!({"repeat_penalty": 0}), "repeat_penalty"),
        (json!({"repeat_penalty": 1e300}), "repeat_penalty"),
        (json!({"max_tokens": -5}), "max_tokens"),
        (json!({"max_completion_tokens": -1}), "max_completion_tokens"),
        (json!({"stop": ""}), "stop"),
        (json!({"stop": ["a", ""]}), "stop[1]"),
        (json!({"stop": vec!["a"; 17]}), "stop"),
        (json!({"seed": 1u64 << 63}), "seed"),
        (json!({"n": 0}), "n"),
        (json!({"n": -1}), "n"),
        (json!({"n": 9}), "n"),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
        (json!({"logprobs": true, "top_logprobs": -1}), "top_logprobs"),
        (json!({"logprobs": false, "top_logprobs": 3}), "top_logprobs"),
        (json!({"top_logprobs": 3}), "top_logprobs"),
        (json!({"logit_bias": {"299": 1, "300": 1}}), "logit_bias.300"),
        (json!({"logit_bias": {"4294967296": 1}}), "logit_bias.4294967296"),
        (json!({"logit_bias": {"-1": 1}}), "logit_bias.-1"),
        (json!({"logit_bias": {"+5": 1}}), "logit_bias.+5"),
        (json!({"logit_bias": {"05": 1}}), "logit_bias.05"),
        (json!({"logit_bias": {"foo": 1}}), "logit_bias.foo"),
        (json!({"logit_bias": {"5": 100.001}}), "logit_bias.5"),
        (json!({"logit_bias": {"5": -101}}), "logit_bias.5"),
        (json!({"logit_bias": {"5": 1e300}}), "logit_bias.5"),
        (json!({"tool_choice": "maybe"}), "tool_choice"),
        (json!({"response_format": {"type": "sound"}}), "response_format.type"),
        (json!({"modalities": ["text", "smell"]}), "modalities[1]"),
    ];
    check_refused("invalid_value", &cases).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_that_would_change_the_answer_are_refused_by_name() {
    let image = json!([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]);
    let cases = [
        (json!({"best_of": 2}), "best_of"),
        (json!({"modalities": ["text", "audio"]}), "modalities"),
        (json!({"messages": [{"role": "user", "content": image}]}), "messages[0].content[0]"),
        (json!({"messages": [{"role": "assistant", "audio": {"id": "a"}}]}), "messages[0].audio"),
        (json!({"continue_final_message": true}), "continue_final_message"),
        (json!({"ignore_eos": true}), "ignore_eos"),
        (json!({"min_tokens": 3}), "min_tokens"),
        (json!({"mirostat": 2}), "mirostat"),
        (json!({"typical_p": 0.9}), "typical_p"),
        (json!({"echo": true}), "echo"),
        (json!({"suffix": "x"}), "suffix"),
        (json!({"options": {"num_ctx": 1}}), "options"),
    ];
    check_refused("unsupported_parameter", &cases).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_model_is_not_found_and_the_loaded_one_is_named() {
    let server = Server::saying(&["never"]).await;
    let error = check(
        &chat(server.address, &ask(json!({"model": "nope"}))).await,
        404,
        "model_not_found",
        Some("model"),
    );
    assert_eq!(error["type"], "invalid_request_error");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("nope") && message.contains("org/model:q1"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_paths_and_wrong_methods_answer_in_json() {
    let server = Server::saying(&["never"]).await;
    for path in ["/v1/nope", "/v1/models/", "/v1/chat", "//", "/v1/chat/completions/"] {
        assert_eq!(
            check(&get(server.address, path).await, 404, "not_found", None)["type"],
            "not_found_error"
        );
    }
    let wrong = [
        ("PUT", CHAT, "GET,HEAD,POST"),
        ("GET", "/chat/completions", "POST"),
        ("GET", "/v1/completions", "POST"),
        ("GET", "/tokenize", "POST"),
        ("PUT", "/detokenize", "POST"),
        ("DELETE", "/apply-template", "POST"),
        ("POST", "/v1/models", "GET,HEAD"),
        ("PUT", "/v1/models/model-q1", "GET,HEAD"),
        ("POST", "/health", "GET,HEAD"),
    ];
    for (method, path, allowed) in wrong {
        let answer = exchange(server.address, method, path, &[], b"").await;
        check(&answer, 405, "method_not_allowed", None);
        assert_eq!(answer.header("allow"), Some(allowed), "{method} {path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_above_the_limit_is_refused_and_one_at_the_limit_is_not() {
    let server =
        Server::start_with(Arc::new(Fake::saying(&["ok"])), |state| state.limits.body_bytes = 200)
            .await;
    let mut body = ask(json!({})).to_string();
    body.push_str(&" ".repeat(200 - body.len()));
    assert_eq!(exchange(server.address, "POST", CHAT, JSON, body.as_bytes()).await.status, 200);
    body.push(' ');
    check(
        &exchange(server.address, "POST", CHAT, JSON, body.as_bytes()).await,
        413,
        "request_too_large",
        None,
    );
    let huge = vec![b' '; 20 << 20];
    check(
        &exchange(server.address, "POST", CHAT, JSON, &huge).await,
        413,
        "request_too_large",
        None,
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn only_json_content_is_read() {
    let server = Server::saying(&["ok"]).await;
    let body = ask(json!({})).to_string();
    let types = [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "json",
        "application/xml",
        "",
    ];
    for kind in types {
        let header = format!("content-type: {kind}");
        let answer = exchange(server.address, "POST", CHAT, &[&header], body.as_bytes()).await;
        check(&answer, 415, "unsupported_media_type", None);
    }
    let answer = exchange(server.address, "POST", CHAT, &[], body.as_bytes()).await;
    check(&answer, 415, "unsupported_media_type", None);
    for kind in ["application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"]
    {
        let header = format!("content-type: {kind}");
        assert_eq!(
            exchange(server.address, "POST", CHAT, &[&header], body.as_bytes()).await.status,
            200,
            "{kind}"
        );
    }
}

/// Checks the answer, whole and streamed, to a request that the engine refuses.
async fn refused_by_engine(error: impl Fn() -> Error + Send + Sync + 'static) -> Answer {
    let server = Server::start(Arc::new(Fake::new(move |_| Err(error())))).await;
    let streamed = chat(server.address, &ask(json!({"stream": true}))).await;
    let whole = chat(server.address, &ask(json!({}))).await;
    assert_eq!((streamed.status, &streamed.body), (whole.status, &whole.body));
    whole
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_is_too_long_is_refused_with_both_numbers() {
    let answer =
        refused_by_engine(|| Error::ContextExceeded { prompt_tokens: 5012, context_tokens: 64 })
            .await;
    let error = check(&answer, 400, "context_length_exceeded", Some("messages"));
    assert_eq!((&error["n_prompt_tokens"], &error["n_ctx"]), (&json!(5012), &json!(64)));
    assert_eq!(error["type"], "invalid_request_error");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_without_tokens_is_the_clients_fault() {
    check(&refused_by_engine(|| Error::EmptyPrompt).await, 400, "invalid_value", Some("messages"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_engine_says_when_to_come_back() {
    let answer = refused_by_engine(|| Error::Closed).await;
    check(&answer, 503, "server_shutting_down", None);
    assert_eq!(answer.header("retry-after"), Some("5"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_of_the_engine_before_the_end_of_a_whole_answer_is_a_500_that_is_not_retried() {
    let fake = Fake::new(|mut sink| {
        tell(&mut sink, text("half"));
        tell(&mut sink, Event::Failed(Error::NotANumber { position: 3 }));
        Ok(())
    });
    let server = Server::start(Arc::new(fake)).await;
    let answer = chat(server.address, &ask(json!({}))).await;
    let error = check(&answer, 500, "engine_error", None);
    assert_eq!(
        (&error["type"], answer.header("x-should-retry")),
        (&json!("server_error"), Some("false"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_goes_away_is_reported() {
    let server = Server::start(Arc::new(Fake::new(|mut sink| {
        tell(&mut sink, text("half"));
        Ok(())
    })))
    .await;
    check(&chat(server.address, &ask(json!({}))).await, 500, "internal_error", None);
}

async fn ends_in_a_bug(address: SocketAddr) {
    let answer = post(address, CHAT, &ask(json!({}))).await;
    let error = check(&answer, 500, "internal_error", None);
    assert_eq!(error["type"], "server_error");
    assert!(answer.header("x-request-id").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_is_a_500_and_the_server_lives() {
    let server = Server::start(Arc::new(Fake::new(|_| panic!("on purpose")))).await;
    ends_in_a_bug(server.address).await;
    ends_in_a_bug(server.address).await;
    assert_eq!(get(server.address, "/health").await.status, 200);
}
