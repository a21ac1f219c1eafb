//! The responses API: whole and streamed, what of a request reaches the engine, and what is refused.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::oneshot;
use toko_engine::{Chat, Error, Event, FinishReason, Message, Params, Sampling, Summary, ToolCall};

use crate::anthropic::TEMPLATE;
use crate::client::{Answer, Connection, post};
use crate::engine::serve_embedded;
use crate::errors::check;
use crate::fake::{Fake, Server, laid_over, sampling, summary, tell, text};

const RESPONSES: &str = "/v1/responses";

/// Thoughts, a text and two calls.
const EVERYTHING: &[&str] = &[
    "<think>Hm",
    "m.</think>",
    "Let me look.",
    "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\"",
    ": \"Paris\"}}\n</tool_call>",
    "\n<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>",
];

/// A schema that says all of a document but one short text.
pub(crate) fn city() -> Value {
    let city = json!({"type": "string", "maxLength": 8});
    json!({"type": "object", "properties": {"city": city}, "required": ["city"], "additionalProperties": false})
}

/// Checks that a text is a document of that schema.
#[track_caller]
pub(crate) fn check_city(text: &str) {
    let document: Value = serde_json::from_str(text).unwrap();
    assert_eq!(document.as_object().unwrap().len(), 1, "{text}");
    assert!(document["city"].as_str().unwrap().chars().count() <= 8, "{text}");
}

/// The smallest useful request with the fields laid over it.
fn ask(fields: Value) -> Value {
    laid_over(json!({"model": "default", "input": "Hi"}), fields)
}

fn tools() -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    json!([
        {"type": "function", "name": "weather", "description": "Tells it.", "parameters": parameters, "strict": false},
        {"type": "function", "name": "time"},
    ])
}

async fn saying(texts: &'static [&'static str]) -> Server {
    Server::start(Arc::new(Fake::saying(texts).with_template(TEMPLATE))).await
}

/// Returns the conversation and the parameters that a request becomes.
async fn understood(request: Value) -> (Chat, Params) {
    let fake = Arc::new(Fake::saying(&["ok"]).with_template(TEMPLATE));
    let server = Server::start(fake.clone()).await;
    let answer = post(server.address, RESPONSES, &request).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    fake.asked()
}

/// The data of each event; names must be types, and numbers must count.
fn events(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let blocks = answer.body.split_terminator("\n\n").filter(|block| !block.starts_with(':'));
    let event = |(number, block): (usize, &str)| {
        let (name, data) = block.split_once('\n').expect("an event has two lines");
        let data = data.strip_prefix("data: ").expect("an event has data");
        let event: Value = serde_json::from_str(data).unwrap();
        assert_eq!(name.strip_prefix("event: "), event["type"].as_str());
        assert_eq!(event["sequence_number"], number);
        event
    };
    blocks.enumerate().map(event).collect()
}

/// Replaces what differs from answer to answer.
fn steady(text: &str) -> String {
    ["resp_", "msg_", "rs_", "fc_", "call_"].into_iter().fold(text.to_owned(), |text, kind| {
        let mark = format!("\"{kind}");
        let mut parts = text.split(&mark);
        let first = parts.next().unwrap_or_default().to_owned();
        // Names of fields begin like ids.
        parts.fold(first, |text, part| match part.split_at_checked(32) {
            Some((id, rest)) if id.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                format!("{text}\"{kind}…{rest}")
            }
            _ => format!("{text}{mark}{part}"),
        })
    })
}

/// The events, one a line, without their numbers and with the responses cut to what changes in them.
fn readable(answer: &Answer) -> String {
    let line = |mut event: Value| {
        event.as_object_mut().unwrap().remove("sequence_number");
        if let Some(response) = event.get_mut("response") {
            let kept = ["status", "error", "incomplete_details", "output", "usage"];
            response.as_object_mut().unwrap().retain(|name, _| kept.contains(&name.as_str()));
        }
        event.to_string()
    };
    steady(&events(answer).into_iter().map(line).collect::<Vec<_>>().join("\n"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_response_has_the_public_shape() {
    let server = Server::saying(&["Once", " upon"]).await;
    let answer = post(server.address, RESPONSES, &ask(json!({}))).await;
    assert_eq!(answer.status, 200);
    let mut body = answer.json();
    assert!(body["created_at"].take().as_u64().is_some_and(|seconds| seconds > 1_700_000_000));
    insta::assert_snapshot!(steady(&format!("{body:#}")), @r#"
    {
      "id": "resp_…",
      "object": "response",
      "created_at": null,
      "status": "completed",
      "background": false,
      "error": null,
      "incomplete_details": null,
      "instructions": null,
      "max_output_tokens": null,
      "metadata": {},
      "model": "org/model:q1",
      "output": [
        {
          "id": "msg_…",
          "type": "message",
          "role": "assistant",
          "status": "completed",
          "content": [
            {
              "type": "output_text",
              "text": "Once upon",
              "annotations": [],
              "logprobs": []
            }
          ]
        }
      ],
      "parallel_tool_calls": true,
      "previous_response_id": null,
      "store": false,
      "temperature": 0.61,
      "text": {
        "format": {
          "type": "text"
        }
      },
      "tool_choice": "auto",
      "tools": [],
      "top_p": 0.91,
      "truncation": "disabled",
      "usage": {
        "input_tokens": 9,
        "input_tokens_details": {
          "cached_tokens": 6,
          "cache_write_tokens": 0
        },
        "output_tokens": 4,
        "output_tokens_details": {
          "reasoning_tokens": 0
        },
        "total_tokens": 13
      }
    }
    "#);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_the_response_its_items_and_the_response() {
    let server = Server::saying(&["Once", "", " upon"]).await;
    let answer = post(server.address, RESPONSES, &ask(json!({"stream": true}))).await;
    assert_eq!(answer.status, 200);
    insta::assert_snapshot!(readable(&answer), @r#"
    {"response":{"status":"in_progress","error":null,"incomplete_details":null,"output":[],"usage":null},"type":"response.created"}
    {"response":{"status":"in_progress","error":null,"incomplete_details":null,"output":[],"usage":null},"type":"response.in_progress"}
    {"output_index":0,"item":{"id":"msg_…","type":"message","role":"assistant","status":"in_progress","content":[]},"type":"response.output_item.added"}
    {"part":{"type":"output_text","text":"","annotations":[],"logprobs":[]},"item_id":"msg_…","output_index":0,"content_index":0,"type":"response.content_part.added"}
    {"delta":"Once","logprobs":[],"item_id":"msg_…","output_index":0,"content_index":0,"type":"response.output_text.delta"}
    {"delta":" upon","logprobs":[],"item_id":"msg_…","output_index":0,"content_index":0,"type":"response.output_text.delta"}
    {"text":"Once upon","logprobs":[],"item_id":"msg_…","output_index":0,"content_index":0,"type":"response.output_text.done"}
    {"part":{"type":"output_text","text":"Once upon","annotations":[],"logprobs":[]},"item_id":"msg_…","output_index":0,"content_index":0,"type":"response.content_part.done"}
    {"output_index":0,"item":{"id":"msg_…","type":"message","role":"assistant","status":"completed","content":[{"type":"output_text","text":"Once upon","annotations":[],"logprobs":[]}]},"type":"response.output_item.done"}
    {"response":{"status":"completed","error":null,"incomplete_details":null,"output":[{"id":"msg_…","type":"message","role":"assistant","status":"completed","content":[{"type":"output_text","text":"Once upon","annotations":[],"logprobs":[]}]}],"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":6,"cache_write_tokens":0},"output_tokens":4,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":13}},"type":"response.completed"}
    "#);
}

#[tokio::test(flavor = "multi_thread")]
async fn thoughts_texts_and_calls_are_items_one_after_the_other() {
    let server = saying(EVERYTHING).await;
    let fields = json!({"tools": tools(), "reasoning": {"effort": "low"}});
    let streamed = ask(laid_over(fields.clone(), json!({"stream": true})));
    let answer = post(server.address, RESPONSES, &streamed).await;
    insta::assert_snapshot!(readable(&answer), @r#"
    {"response":{"status":"in_progress","error":null,"incomplete_details":null,"output":[],"usage":null},"type":"response.created"}
    {"response":{"status":"in_progress","error":null,"incomplete_details":null,"output":[],"usage":null},"type":"response.in_progress"}
    {"output_index":0,"item":{"id":"rs_…","type":"reasoning","status":"in_progress","summary":[],"content":[]},"type":"response.output_item.added"}
    {"part":{"type":"reasoning_text","text":""},"item_id":"rs_…","output_index":0,"content_index":0,"type":"response.content_part.added"}
    {"delta":"Hm","item_id":"rs_…","output_index":0,"content_index":0,"type":"response.reasoning_text.delta"}
    {"delta":"m.","item_id":"rs_…","output_index":0,"content_index":0,"type":"response.reasoning_text.delta"}
    {"text":"Hmm.","item_id":"rs_…","output_index":0,"content_index":0,"type":"response.reasoning_text.done"}
    {"part":{"type":"reasoning_text","text":"Hmm."},"item_id":"rs_…","output_index":0,"content_index":0,"type":"response.content_part.done"}
    {"output_index":0,"item":{"id":"rs_…","type":"reasoning","status":"completed","summary":[],"content":[{"type":"reasoning_text","text":"Hmm."}]},"type":"response.output_item.done"}
    {"output_index":1,"item":{"id":"msg_…","type":"message","role":"assistant","status":"in_progress","content":[]},"type":"response.output_item.added"}
    {"part":{"type":"output_text","text":"","annotations":[],"logprobs":[]},"item_id":"msg_…","output_index":1,"content_index":0,"type":"response.content_part.added"}
    {"delta":"Let me look.","logprobs":[],"item_id":"msg_…","output_index":1,"content_index":0,"type":"response.output_text.delta"}
    {"text":"Let me look.","logprobs":[],"item_id":"msg_…","output_index":1,"content_index":0,"type":"response.output_text.done"}
    {"part":{"type":"output_text","text":"Let me look.","annotations":[],"logprobs":[]},"item_id":"msg_…","output_index":1,"content_index":0,"type":"response.content_part.done"}
    {"output_index":1,"item":{"id":"msg_…","type":"message","role":"assistant","status":"completed","content":[{"type":"output_text","text":"Let me look.","annotations":[],"logprobs":[]}]},"type":"response.output_item.done"}
    {"output_index":2,"item":{"id":"fc_…","type":"function_call","status":"in_progress","call_id":"call_…","name":"weather","arguments":""},"type":"response.output_item.added"}
    {"delta":"{\"city\"","item_id":"fc_…","output_index":2,"type":"response.function_call_arguments.delta"}
    {"delta":": \"Paris\"}","item_id":"fc_…","output_index":2,"type":"response.function_call_arguments.delta"}
    {"name":"weather","arguments":"{\"city\": \"Paris\"}","item_id":"fc_…","output_index":2,"type":"response.function_call_arguments.done"}
    {"output_index":2,"item":{"id":"fc_…","type":"function_call","status":"completed","call_id":"call_…","name":"weather","arguments":"{\"city\": \"Paris\"}"},"type":"response.output_item.done"}
    {"output_index":3,"item":{"id":"fc_…","type":"function_call","status":"in_progress","call_id":"call_…","name":"time","arguments":""},"type":"response.output_item.added"}
    {"delta":"{}","item_id":"fc_…","output_index":3,"type":"response.function_call_arguments.delta"}
    {"name":"time","arguments":"{}","item_id":"fc_…","output_index":3,"type":"response.function_call_arguments.done"}
    {"output_index":3,"item":{"id":"fc_…","type":"function_call","status":"completed","call_id":"call_…","name":"time","arguments":"{}"},"type":"response.output_item.done"}
    {"response":{"status":"completed","error":null,"incomplete_details":null,"output":[{"id":"rs_…","type":"reasoning","status":"completed","summary":[],"content":[{"type":"reasoning_text","text":"Hmm."}]},{"id":"msg_…","type":"message","role":"assistant","status":"completed","content":[{"type":"output_text","text":"Let me look.","annotations":[],"logprobs":[]}]},{"id":"fc_…","type":"function_call","status":"completed","call_id":"call_…","name":"weather","arguments":"{\"city\": \"Paris\"}"},{"id":"fc_…","type":"function_call","status":"completed","call_id":"call_…","name":"time","arguments":"{}"}],"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":6,"cache_write_tokens":0},"output_tokens":4,"output_tokens_details":{"reasoning_tokens":1},"total_tokens":13}},"type":"response.completed"}
    "#);
    let last = events(&answer).pop().unwrap()["response"].take();
    let whole = post(server.address, RESPONSES, &ask(fields)).await.json();
    let items = |response: &Value| steady(&response["output"].to_string());
    assert_eq!(items(&last), items(&whole));
    assert_eq!((&last["usage"], &last["status"]), (&whole["usage"], &whole["status"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_cut_off_is_incomplete() {
    let script = |mut sink: toko_server::Sink| {
        tell(&mut sink, text("so"));
        tell(&mut sink, Event::Finished(Summary { reason: FinishReason::Length, ..summary() }));
        Ok(())
    };
    let server = Server::start(Arc::new(Fake::new(script))).await;
    let whole = post(server.address, RESPONSES, &ask(json!({}))).await.json();
    let streamed = post(server.address, RESPONSES, &ask(json!({"stream": true}))).await;
    let mut last = events(&streamed).pop().unwrap();
    assert_eq!(last["type"], "response.incomplete");
    for response in [whole, last["response"].take()] {
        assert_eq!(response["status"], "incomplete");
        assert_eq!(response["incomplete_details"], json!({"reason": "max_output_tokens"}));
        assert_eq!(response["output"][0]["status"], "incomplete");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_said_is_an_empty_message() {
    let server = Server::saying(&[]).await;
    let whole = post(server.address, RESPONSES, &ask(json!({}))).await.json();
    let streamed = post(server.address, RESPONSES, &ask(json!({"stream": true}))).await;
    let last = events(&streamed).pop().unwrap();
    for response in [&whole, &last["response"]] {
        assert_eq!(response["output"][0]["content"][0]["text"], "");
        assert_eq!(response["output"].as_array().unwrap().len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sampling_fields_reach_the_engine_and_the_rest_are_defaults() {
    let defaults = Params {
        sampling: sampling(),
        max_tokens: Some(77),
        stop: Vec::new(),
        constraint: None,
        logit_bias: Vec::new(),
        logprobs: None,
        prompt_logprobs: None,
    };
    let nothing = json!({
        "instructions": null, "temperature": null, "top_p": null, "max_output_tokens": null, "tools": null,
        "tool_choice": null, "previous_response_id": null, "conversation": null, "background": false, "store": true,
        "metadata": {"a": "b"}, "user": "u", "service_tier": "auto", "include": ["reasoning.encrypted_content"],
        "truncation": "disabled", "text": {"format": {"type": "text"}, "verbosity": "low"}, "top_logprobs": 0,
        "reasoning": {"summary": "auto"}, "prompt_cache_key": "k", "foo": 1,
    });
    assert_eq!(understood(ask(nothing)).await.1, defaults);
    let sampling = Sampling { temperature: 1.5, top_p: 0.5, ..sampling() };
    let wished = Params { sampling, max_tokens: Some(3), ..defaults };
    let fields = json!({"temperature": 1.5, "top_p": 0.5, "max_output_tokens": 3});
    assert_eq!(understood(ask(fields)).await.1, wished);
}

#[tokio::test(flavor = "multi_thread")]
async fn items_become_what_templates_know() {
    let (chat, _) = understood(ask(json!({
        "instructions": "Be kind.",
        "input": [
            {"role": "developer", "content": "Be brief."},
            {"type": "message", "role": "user", "content": [
                {"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"},
            ]},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "message", "id": "msg_1", "role": "assistant", "content": [
                {"type": "output_text", "text": "I look.", "annotations": []},
            ]},
            {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{\"city\": \"Rome\"}"},
            {"type": "function_call", "call_id": "call_2", "name": "time", "arguments": "[oops"},
            {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
            {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "late"}]},
            {"role": "assistant", "content": "Sunny."},
            {"role": "assistant", "content": "Late."},
            {"role": "user", "content": "Well?"},
        ],
        "tools": tools(),
        "reasoning": {"effort": "low"},
    })))
    .await;
    let call = |id: &str, name: &str, arguments| ToolCall {
        id: id.to_owned(),
        name: name.to_owned(),
        arguments,
    };
    let calls = vec![
        call("call_1", "weather", json!({"city": "Rome"})),
        call("call_2", "time", json!("[oops")),
    ];
    let asking = Message {
        tool_calls: calls,
        reasoning_content: Some("hm".to_owned()),
        ..Message::new("assistant", "I look.")
    };
    let result = |id: &str, text: &str| Message {
        tool_call_id: Some(id.to_owned()),
        ..Message::new("tool", text)
    };
    let expected = vec![
        Message::new("system", "Be kind.\nBe brief."),
        Message::new("user", "a\nb"),
        asking,
        result("call_1", "sunny"),
        result("call_2", "late"),
        Message::new("assistant", "Sunny."),
        Message::new("assistant", "Late."),
        Message::new("user", "Well?"),
    ];
    assert_eq!(chat.messages, expected);
    assert_eq!(chat.tools.unwrap()[0]["function"]["parameters"], tools()[0]["parameters"]);
    assert_eq!(
        Value::Object(chat.variables),
        json!({"enable_thinking": true, "reasoning_effort": "low"})
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn instructions_alone_are_answered_and_so_is_nothing() {
    let (chat, _) = understood(json!({"instructions": "Tell a story."})).await;
    assert_eq!(chat.messages, [Message::new("system", "Tell a story.")]);
    let (chat, _) = understood(json!({})).await;
    assert_eq!(chat.messages, [Message::new("user", "")]);
}

/// Checks that each set of fields is refused with the code, naming the parameter, before the engine hears of it.
async fn check_refused(cases: &[(&str, Value, &str)]) {
    let fake = Arc::new(Fake::saying(&["never"]).with_template(TEMPLATE));
    let server = Server::start(fake.clone()).await;
    for (code, fields, param) in cases {
        let request = laid_over(json!({"model": "default"}), fields.clone());
        check(&post(server.address, RESPONSES, &request).await, 400, code, Some(*param));
    }
    let unknown = post(server.address, RESPONSES, &ask(json!({"model": "nope"}))).await;
    check(&unknown, 404, "model_not_found", Some("model"));
    assert!(!fake.was_asked());
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_fields_are_refused_by_name() {
    let cases = [
        ("invalid_type", json!({"input": 1}), "input"),
        ("invalid_type", json!({"instructions": ["x"]}), "instructions"),
        ("invalid_type", json!({"stream": "yes"}), "stream"),
        ("invalid_value", json!({"max_output_tokens": 0}), "max_output_tokens"),
        ("invalid_value", json!({"temperature": 3}), "temperature"),
        ("invalid_value", json!({"top_p": 2}), "top_p"),
        ("invalid_value", json!({"truncation": "some"}), "truncation"),
        ("invalid_value", json!({"tool_choice": "maybe"}), "tool_choice"),
        ("invalid_type", json!({"tool_choice": 1}), "tool_choice"),
        ("invalid_value", json!({"tool_choice": "required"}), "tool_choice"),
        (
            "missing_required_parameter",
            json!({"tool_choice": {"type": "function"}}),
            "tool_choice.name",
        ),
        (
            "invalid_value",
            json!({"tools": tools(), "tool_choice": {"type": "function", "name": "f"}}),
            "tool_choice",
        ),
        (
            "unsupported_parameter",
            json!({"previous_response_id": "resp_1"}),
            "previous_response_id",
        ),
        ("unsupported_parameter", json!({"conversation": "conv_1"}), "conversation"),
        ("unsupported_parameter", json!({"prompt": {"id": "p"}}), "prompt"),
        ("unsupported_parameter", json!({"background": true}), "background"),
        ("unsupported_parameter", json!({"top_logprobs": 2}), "top_logprobs"),
        ("unsupported_parameter", json!({"include": ["message.output_text.logprobs"]}), "include"),
        ("invalid_value", json!({"text": {"format": {"type": "poem"}}}), "text.format.type"),
        (
            "missing_required_parameter",
            json!({"text": {"format": {"type": "json_schema", "name": "s"}}}),
            "text.format.schema",
        ),
        ("missing_required_parameter", json!({"text": {"format": {}}}), "text.format.type"),
        ("unsupported_parameter", json!({"tools": [{"type": "web_search"}]}), "tools[0].type"),
        ("missing_required_parameter", json!({"tools": [{"name": "f"}]}), "tools[0].type"),
        ("missing_required_parameter", json!({"tools": [{"type": "function"}]}), "tools[0].name"),
    ];
    check_refused(&cases).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn items_that_are_none_are_refused_by_their_place() {
    let item = |item: Value| json!({"input": [item]});
    let cases = [
        (
            "unsupported_parameter",
            item(json!({"type": "item_reference", "id": "x"})),
            "input[0].type",
        ),
        ("missing_required_parameter", item(json!({"content": "x"})), "input[0].role"),
        ("missing_required_parameter", item(json!({"role": "user"})), "input[0].content"),
        ("invalid_value", item(json!({"role": "martian", "content": "x"})), "input[0].role"),
        (
            "unsupported_parameter",
            item(json!({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]})),
            "input[0].content[0]",
        ),
        (
            "invalid_value",
            item(json!({"role": "user", "content": [{"type": "smell"}]})),
            "input[0].content[0].type",
        ),
        (
            "missing_required_parameter",
            item(json!({"type": "function_call", "call_id": "a", "name": "f"})),
            "input[0].arguments",
        ),
        (
            "missing_required_parameter",
            item(json!({"type": "function_call_output", "call_id": "a"})),
            "input[0].output",
        ),
    ];
    check_refused(&cases).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_on_the_way_is_the_last_event_and_one_before_is_an_answer() {
    let server = Server::start(Arc::new(Fake::new(|mut sink| {
        tell(&mut sink, text("half"));
        tell(&mut sink, Event::Failed(Error::NotANumber { position: 3 }));
        Ok(())
    })))
    .await;
    let answer = post(server.address, RESPONSES, &ask(json!({"stream": true}))).await;
    assert_eq!(answer.status, 200);
    let last = events(&answer).pop().unwrap();
    assert_eq!(
        (&last["type"], &last["response"]["status"]),
        (&json!("response.failed"), &json!("failed"))
    );
    assert_eq!(last["response"]["error"]["code"], "server_error");
    let whole = post(server.address, RESPONSES, &ask(json!({}))).await;
    check(&whole, 500, "engine_error", None);
    let full = || Error::QueueFull { waiting: 3, retry_after_seconds: 7 };
    let server = Server::start(Arc::new(Fake::new(move |_| Err(full())))).await;
    let answer = post(server.address, RESPONSES, &ask(json!({"stream": true}))).await;
    check(&answer, 429, "rate_limit_exceeded", None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_ends_the_sequence() {
    let (given_up, nobody_waits) = oneshot::channel();
    let server = Server::start(Arc::new(Fake::endless(given_up))).await;
    let request = ask(json!({"stream": true}));
    let mut connection = Connection::post(server.address, RESPONSES, &request).await;
    connection.read_until("response.in_progress").await;
    drop(connection);
    nobody_waits.await.expect("the engine is told that the client left");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_outlasts_the_drain_is_cut_with_a_failure() {
    let (given_up, nobody_waits) = oneshot::channel();
    let fake = Arc::new(Fake::endless(given_up));
    let server = Server::start_with(fake, |state| state.limits.drain = Duration::ZERO).await;
    let request = ask(json!({"stream": true}));
    let mut connection = Connection::post(server.address, RESPONSES, &request).await;
    connection.read_until("response.in_progress").await;
    let ended = server.stop();
    let last = events(&connection.answer().await).pop().unwrap();
    assert_eq!(last["type"], "response.failed");
    nobody_waits.await.expect("the engine is told");
    ended.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_real_engine_answers_and_counts() {
    let server = serve_embedded().await;
    let fields = json!({"input": "What is the capital of France?", "temperature": 0, "max_output_tokens": 30});
    let counted = post(server.address, "/v1/responses/input_tokens", &ask(fields.clone())).await;
    assert_eq!(counted.json(), json!({"object": "response.input_tokens", "input_tokens": 17}));
    let whole = post(server.address, RESPONSES, &ask(fields.clone())).await.json();
    assert_eq!(whole["output"][0]["content"][0]["text"], "Paris is the capital of France.");
    assert_eq!(
        (&whole["status"], &whole["usage"]["input_tokens"]),
        (&json!("completed"), &json!(17))
    );
    let streamed = ask(laid_over(fields, json!({"stream": true})));
    let events = events(&post(server.address, RESPONSES, &streamed).await);
    let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
    let text: String = deltas.map(|event| event["delta"].as_str().unwrap()).collect();
    assert_eq!(text, "Paris is the capital of France.");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_holds_the_text_and_one_that_cannot_is_refused() {
    let server = serve_embedded().await;
    let form = |schema: Value| json!({"type": "json_schema", "name": "s", "schema": schema});
    let request = ask(json!({"text": {"format": form(city())}, "max_output_tokens": 60}));
    let answer = post(server.address, RESPONSES, &request).await.json();
    check_city(answer["output"][0]["content"][0]["text"].as_str().unwrap());
    assert_eq!(answer["text"]["format"]["schema"], city());
    let unenforceable = json!({"type": "array", "uniqueItems": true});
    let request = ask(json!({"text": {"format": form(unenforceable)}}));
    let answer = post(server.address, RESPONSES, &request).await;
    check(&answer, 400, "invalid_json_schema", Some("text.format.schema"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_is_called_when_it_has_to_be() {
    let server = serve_embedded().await;
    let tool = json!({"type": "function", "name": "look", "parameters": city(), "strict": true});
    for choice in [json!("required"), json!({"type": "function", "name": "look"})] {
        let fields = json!({"tools": [tool], "tool_choice": choice, "parallel_tool_calls": false});
        let answer = post(server.address, RESPONSES, &ask(fields)).await.json();
        let call = answer["output"].as_array().unwrap().last().unwrap();
        assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("look")));
        check_city(call["arguments"].as_str().unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn counting_refuses_what_answering_refuses() {
    let server = Server::saying(&[]).await;
    let request = ask(json!({"top_p": 2}));
    let counted = post(server.address, "/v1/responses/input_tokens", &request).await;
    check(&counted, 400, "invalid_value", Some("top_p"));
}
