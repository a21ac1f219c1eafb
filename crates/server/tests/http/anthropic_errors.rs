//! Errors of the Anthropic dialect: each in its words, whatever goes wrong and wherever.

use std::sync::Arc;

use serde_json::{Value, json};
use toko_engine::{Error, Event};
use toko_server::ApiKey;

use crate::anthropic::{COUNT, MESSAGES, TEMPLATE, ask, events};
use crate::client::{Answer, exchange, post};
use crate::fake::{Fake, Server, laid_over, tell, text};

/// Checks an error answer and returns its message.
#[track_caller]
pub(crate) fn check_error(answer: &Answer, status: u16, kind: &str) -> String {
    let body = answer.json();
    assert_eq!(
        (answer.status, &body["type"], &body["error"]["type"]),
        (status, &json!("error"), &json!(kind)),
        "{body}"
    );
    let id = body["request_id"].as_str();
    assert!(id.is_some_and(|id| id.starts_with("req_")), "{body}");
    assert_eq!((answer.header("request-id"), answer.header("x-request-id")), (id, id));
    body["error"]["message"].as_str().unwrap().to_owned()
}

/// Checks that each set of fields is refused, naming the parameter, before the engine hears of it.
async fn check_refused(cases: &[(Value, &str)]) {
    let fake = Arc::new(Fake::saying(&["never"]).with_template(TEMPLATE));
    let server = Server::start(fake.clone()).await;
    for (fields, param) in cases {
        for stream in [false, true] {
            let request = laid_over(json!({"stream": stream}), fields.clone());
            let answer = post(server.address, MESSAGES, &ask(request)).await;
            let message = check_error(&answer, 400, "invalid_request_error");
            let named = message.split([':', ' ']).next();
            assert_eq!(named, Some(*param), "{fields}: {message}");
        }
    }
    assert!(!fake.was_asked());
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_are_none_are_refused_by_their_place() {
    let user = |content: Value| json!([{"role": "user", "content": content}]);
    let assistant = |content: Value| json!([{"role": "assistant", "content": content}, {"role": "user", "content": "x"}]);
    let cases = [
        (json!({"messages": null}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": "Hi"}), "messages"),
        (json!({"messages": [{"content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "tool", "content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user"}]}), "messages[0].content"),
        (json!({"messages": user(json!([]))}), "messages[0].content"),
        (json!({"messages": user(json!(1))}), "messages[0].content"),
        (json!({"messages": user(json!([{"text": "x"}]))}), "messages[0].content[0].type"),
        (json!({"messages": user(json!([{"type": "text"}]))}), "messages[0].content[0].text"),
        (
            json!({"messages": user(json!([{"type": "text", "text": 1}]))}),
            "messages[0].content[0].text",
        ),
        (
            json!({"messages": user(json!([{"type": "image", "source": {}}]))}),
            "messages[0].content[0]",
        ),
        (
            json!({"messages": user(json!([{"type": "document", "source": {}}]))}),
            "messages[0].content[0]",
        ),
        (
            json!({"messages": user(json!([{"type": "thinking", "thinking": "x"}]))}),
            "messages[0].content[0].type",
        ),
        (
            json!({"messages": user(json!([{"type": "tool_use", "id": "a", "name": "f", "input": {}}]))}),
            "messages[0].content[0].type",
        ),
        (
            json!({"messages": user(json!([{"type": "tool_result"}]))}),
            "messages[0].content[0].tool_use_id",
        ),
        (
            json!({"messages": user(json!([{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}]))}),
            "messages[0].content[0].content[0]",
        ),
        (
            json!({"messages": assistant(json!([{"type": "tool_use", "id": "a", "name": "f"}]))}),
            "messages[0].content[0].input",
        ),
        (
            json!({"messages": assistant(json!([{"type": "tool_use", "id": "a", "name": "f", "input": "{}"}]))}),
            "messages[0].content[0].input",
        ),
        (
            json!({"messages": assistant(json!([{"type": "tool_result", "tool_use_id": "a"}]))}),
            "messages[0].content[0].type",
        ),
        (
            json!({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}),
            "messages",
        ),
    ];
    check_refused(&cases).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_fields_are_refused_by_name() {
    let cases = [
        (json!({"model": null}), "model"),
        (json!({"max_tokens": null}), "max_tokens"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": 1.5}), "max_tokens"),
        (json!({"system": 1}), "system"),
        (json!({"system": [{"type": "image"}]}), "system[0]"),
        (json!({"temperature": 1.1}), "temperature"),
        (json!({"temperature": -0.1}), "temperature"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"top_p": 2}), "top_p"),
        (json!({"top_k": -1}), "top_k"),
        (json!({"stop_sequences": "x"}), "stop_sequences"),
        (json!({"stop_sequences": ["a", ""]}), "stop_sequences[1]"),
        (json!({"stream": 1}), "stream"),
        (json!({"thinking": {}}), "thinking.type"),
        (json!({"thinking": {"type": "maybe"}}), "thinking.type"),
        (json!({"thinking": {"type": "enabled", "budget_tokens": 0}}), "thinking.budget_tokens"),
        (json!({"output_config": {"format": {}}}), "output_config.format.type"),
        (json!({"output_config": {"format": {"type": "poem"}}}), "output_config.format.type"),
        (
            json!({"output_config": {"format": {"type": "json_schema"}}}),
            "output_config.format.schema",
        ),
        (json!({"output_format": {"type": "json_schema"}}), "output_format.schema"),
        (json!({"container": "c"}), "container"),
        (json!({"mcp_servers": [{"url": "x"}]}), "mcp_servers"),
        (json!({"tools": [{"input_schema": {"type": "object"}}]}), "tools[0].name"),
        (json!({"tools": [{"name": "a b", "input_schema": {"type": "object"}}]}), "tools[0].name"),
        (json!({"tools": [{"name": "f"}]}), "tools[0].input_schema"),
        (json!({"tools": [{"name": "f", "input_schema": "x"}]}), "tools[0].input_schema"),
        (
            json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
            "tools[0].type",
        ),
        (json!({"tool_choice": "auto"}), "tool_choice"),
        (json!({"tool_choice": {}}), "tool_choice.type"),
        (json!({"tool_choice": {"type": "some"}}), "tool_choice.type"),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice"),
        (json!({"tool_choice": {"type": "tool"}}), "tool_choice.name"),
        (json!({"tool_choice": {"type": "tool", "name": "f"}}), "tool_choice"),
    ];
    check_refused(&cases).await;
}

/// Method, path, headers and body of a request; status and type of its answer.
type Case<'a> = (&'a str, &'a str, &'a [&'a str], &'a str, u16, &'a str);

#[tokio::test(flavor = "multi_thread")]
async fn whatever_goes_wrong_on_these_paths_is_told_in_these_words() {
    let server = Server::start_with(Arc::new(Fake::saying(&["never"])), |state| {
        state.access.keys = vec![ApiKey::new("k").unwrap()];
        state.limits.body_bytes = 300;
    })
    .await;
    let key = "x-api-key: k";
    let send = async |method: &str, path: &str, headers: &[&str], body: &str| {
        exchange(server.address, method, path, headers, body.as_bytes()).await
    };
    let json = "content-type: application/json";
    let unlisted = ask(json!({"model": "nope"})).to_string();
    let long = ask(json!({"system": "x".repeat(300)})).to_string();
    let cases: [Case<'_>; 9] = [
        ("POST", MESSAGES, &[json], "{}", 401, "authentication_error"),
        ("POST", MESSAGES, &[json, "host: evil.example"], "{}", 403, "permission_error"),
        ("POST", MESSAGES, &[json, key], &unlisted, 404, "not_found_error"),
        ("POST", COUNT, &[json, key], &unlisted, 404, "not_found_error"),
        ("GET", "/v1/messages/batches", &[key], "", 404, "not_found_error"),
        ("GET", MESSAGES, &[key], "", 405, "invalid_request_error"),
        ("POST", MESSAGES, &[json, key], &long, 413, "request_too_large"),
        ("POST", MESSAGES, &["content-type: text/plain", key], "{}", 415, "invalid_request_error"),
        ("POST", MESSAGES, &[json, key], "[", 400, "invalid_request_error"),
    ];
    for (method, path, headers, body, status, kind) in cases {
        check_error(&send(method, path, headers, body).await, status, kind);
    }
    let answer = send("POST", MESSAGES, &[json], "{}").await;
    assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
    assert_eq!(send("GET", MESSAGES, &[key], "").await.header("allow"), Some("POST"));
    let openai = send("GET", "/v1/messages2", &[key], "").await.json();
    assert_eq!(openai["error"]["code"], "not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_engine_says_has_the_word_for_its_status() {
    type Refusal = fn() -> Error;
    let cases: [(Refusal, u16, &str, Option<&str>); 4] = [
        (
            || Error::QueueFull { waiting: 3, retry_after_seconds: 7 },
            429,
            "rate_limit_error",
            Some("7"),
        ),
        (|| Error::Closed, 503, "overloaded_error", Some("5")),
        (
            || Error::ContextExceeded { prompt_tokens: 9, context_tokens: 8 },
            400,
            "invalid_request_error",
            None,
        ),
        (|| Error::Panicked, 500, "api_error", None),
    ];
    for (refusal, status, kind, retry_after) in cases {
        let server = Server::start(Arc::new(Fake::new(move |_| Err(refusal())))).await;
        for stream in [false, true] {
            let answer = post(server.address, MESSAGES, &ask(json!({"stream": stream}))).await;
            check_error(&answer, status, kind);
            assert_eq!(answer.header("retry-after"), retry_after);
        }
    }
    let server = Server::start(Arc::new(Fake::new(|_| panic!("a bug")))).await;
    check_error(&post(server.address, MESSAGES, &ask(json!({}))).await, 500, "api_error");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_on_the_way_is_the_last_event_and_one_before_is_an_answer() {
    let server = Server::start(Arc::new(Fake::new(|mut sink| {
        tell(&mut sink, text("half"));
        tell(&mut sink, Event::Failed(Error::NotANumber { position: 3 }));
        Ok(())
    })))
    .await;
    let headers = ["content-type: application/json", "x-request-id: req_mine"];
    let body = ask(json!({"stream": true})).to_string();
    let answer = exchange(server.address, "POST", MESSAGES, &headers, body.as_bytes()).await;
    assert_eq!(answer.status, 200);
    let events = events(&answer);
    let (name, error) = events.last().unwrap();
    assert_eq!((*name, &error["error"]["type"]), ("error", &json!("api_error")));
    assert_eq!(error["request_id"], "req_mine");
    assert!(events.iter().all(|(name, _)| *name != "message_stop"));
    check_error(&post(server.address, MESSAGES, &ask(json!({}))).await, 500, "api_error");
}
