//! The Anthropic dialect: messages whole and streamed, what of a request reaches the engine, and errors in its words.

use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::oneshot;
use toko_engine::{Chat, Event, FinishReason, Message, Params, Sampling, Summary, ToolCall};

use crate::anthropic_errors::check_error;
use crate::client::{Answer, Connection, get, post};
use crate::engine::serve_embedded;
use crate::fake::{Fake, Server, laid_over, sampling, summary, tell, text};
use crate::responses::{check_city, city};

pub(crate) const MESSAGES: &str = "/v1/messages";
pub(crate) const COUNT: &str = "/v1/messages/count_tokens";

/// Shows tools, writes calls between marks and thinks when it is told to.
pub(crate) const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n\
    {% if loop.first and tools %}{{ tools | tojson }}\n{% endif %}{{ m.content }}\
    {% for c in m.tool_calls or [] %}\n<tool_call>\n\
    {\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}\
    <|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n\
    {% if not enable_thinking %}<think></think>{% endif %}{% endif %}";

/// Thoughts, a text and two calls.
const EVERYTHING: &[&str] = &[
    "<think>",
    "Hm",
    "m.</think>",
    "Let me",
    " look.\n",
    "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\"",
    ": \"Paris\"}}\n</tool_call>",
    "\n<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>",
];

/// The smallest request with the fields laid over it.
pub(crate) fn ask(fields: Value) -> Value {
    let messages = json!([{"role": "user", "content": "Hi"}]);
    laid_over(json!({"model": "default", "max_tokens": 9, "messages": messages}), fields)
}

pub(crate) fn tools() -> Value {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    json!([
        {"name": "weather", "description": "Tells it.", "input_schema": schema},
        {"type": "custom", "name": "time", "input_schema": {"type": "object"}},
    ])
}

/// A server whose engine has the template and says the texts.
async fn saying(texts: &'static [&'static str]) -> Server {
    Server::start(Arc::new(Fake::saying(texts).with_template(TEMPLATE))).await
}

/// A server whose engine says the texts and ends with the account.
async fn ending(texts: &'static [&'static str], account: Summary) -> Server {
    let script = move |mut sink: toko_server::Sink| {
        for piece in texts {
            tell(&mut sink, text(piece));
        }
        tell(&mut sink, Event::Finished(account.clone()));
        Ok(())
    };
    Server::start(Arc::new(Fake::new(script))).await
}

/// Returns the conversation and the parameters that a request becomes.
async fn understood(fields: Value) -> (Chat, Params) {
    let fake = Arc::new(Fake::saying(&["ok"]).with_template(TEMPLATE));
    let server = Server::start(fake.clone()).await;
    let answer = post(server.address, MESSAGES, &ask(fields)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    fake.asked()
}

/// The name and the data of each event of a stream.
pub(crate) fn events(answer: &Answer) -> Vec<(&str, Value)> {
    assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let blocks = answer.body.split_terminator("\n\n");
    blocks
        .map(|block| {
            let (name, data) = block.split_once('\n').expect("an event has two lines");
            let name = name.strip_prefix("event: ").expect("an event has a name");
            let data = data.strip_prefix("data: ").expect("an event has data");
            (name, serde_json::from_str(data).unwrap())
        })
        .collect()
}

/// Replaces what differs from answer to answer.
fn steady(text: &str) -> String {
    ["msg_", "toolu_"].into_iter().fold(text.to_owned(), |text, kind| {
        let mut parts = text.split(kind);
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |text, part| format!("{text}{kind}…{}", &part[32..]))
    })
}

/// The events, one a line; their names must be the types of their data.
fn readable(answer: &Answer) -> String {
    let line = |(name, data): (&str, Value)| {
        assert_eq!(data["type"], name);
        data.to_string()
    };
    steady(&events(answer).into_iter().map(line).collect::<Vec<_>>().join("\n"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_message_has_the_public_shape() {
    let server = Server::saying(&["Once", " upon"]).await;
    let answer = post(server.address, MESSAGES, &ask(json!({}))).await;
    assert_eq!(answer.status, 200);
    assert!(answer.header("request-id").is_some_and(|id| id.starts_with("req_")));
    insta::assert_snapshot!(steady(&format!("{:#}", answer.json())), @r#"
    {
      "id": "msg_…",
      "type": "message",
      "role": "assistant",
      "model": "org/model:q1",
      "content": [
        {
          "type": "text",
          "text": "Once upon"
        }
      ],
      "stop_reason": "end_turn",
      "stop_sequence": null,
      "usage": {
        "input_tokens": 3,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 6,
        "output_tokens": 4,
        "output_tokens_details": {
          "thinking_tokens": 0
        }
      }
    }
    "#);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_the_message_its_blocks_and_its_end() {
    let server = Server::saying(&["Once", "", " upon"]).await;
    let answer = post(server.address, MESSAGES, &ask(json!({"stream": true}))).await;
    assert_eq!(answer.status, 200);
    insta::assert_snapshot!(readable(&answer), @r#"
    {"type":"message_start","message":{"id":"msg_…","type":"message","role":"assistant","model":"org/model:q1","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":9,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0}}}
    {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}
    {"type":"ping"}
    {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Once"}}
    {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" upon"}}
    {"type":"content_block_stop","index":0}
    {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"input_tokens":3,"cache_creation_input_tokens":0,"cache_read_input_tokens":6,"output_tokens":4,"output_tokens_details":{"thinking_tokens":0}}}
    {"type":"message_stop"}
    "#);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_without_text_has_no_block() {
    let server = Server::saying(&[]).await;
    let answer = post(server.address, MESSAGES, &ask(json!({"stream": true}))).await;
    let names: Vec<_> = events(&answer).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["message_start", "message_delta", "message_stop"]);
    assert_eq!(post(server.address, MESSAGES, &ask(json!({}))).await.json()["content"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn thoughts_texts_and_calls_are_blocks_one_after_the_other() {
    let server = saying(EVERYTHING).await;
    let fields = json!({"stream": true, "tools": tools(), "thinking": {"type": "enabled", "budget_tokens": 4}});
    let answer = post(server.address, MESSAGES, &ask(fields)).await;
    insta::assert_snapshot!(readable(&answer), @r#"
    {"type":"message_start","message":{"id":"msg_…","type":"message","role":"assistant","model":"org/model:q1","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":85,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0}}}
    {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}
    {"type":"ping"}
    {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Hm"}}
    {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"m."}}
    {"type":"content_block_stop","index":0}
    {"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}
    {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"Let me"}}
    {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":" look."}}
    {"type":"content_block_stop","index":1}
    {"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"toolu_…","name":"weather","input":{}}}
    {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"city\""}}
    {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":": \"Paris\"}"}}
    {"type":"content_block_stop","index":2}
    {"type":"content_block_start","index":3,"content_block":{"type":"tool_use","id":"toolu_…","name":"time","input":{}}}
    {"type":"content_block_delta","index":3,"delta":{"type":"input_json_delta","partial_json":"{}"}}
    {"type":"content_block_stop","index":3}
    {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"input_tokens":3,"cache_creation_input_tokens":0,"cache_read_input_tokens":6,"output_tokens":4,"output_tokens_details":{"thinking_tokens":2}}}
    {"type":"message_stop"}
    "#);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_message_has_the_blocks_of_a_streamed_one() {
    let server = saying(EVERYTHING).await;
    let fields = json!({"tools": tools(), "thinking": {"type": "enabled", "budget_tokens": 4}});
    let message = post(server.address, MESSAGES, &ask(fields)).await.json();
    assert_eq!(
        (&message["stop_reason"], &message["stop_sequence"]),
        (&json!("tool_use"), &json!(null))
    );
    insta::assert_snapshot!(steady(&format!("{:#}", message["content"])), @r#"
    [
      {
        "type": "thinking",
        "thinking": "Hmm.",
        "signature": ""
      },
      {
        "type": "text",
        "text": "Let me look."
      },
      {
        "type": "tool_use",
        "id": "toolu_…",
        "name": "weather",
        "input": {
          "city": "Paris"
        }
      },
      {
        "type": "tool_use",
        "id": "toolu_…",
        "name": "time",
        "input": {}
      }
    ]
    "#);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_text_that_ended_an_answer_is_named() {
    let stopped = Summary { stop_text: Some(1), ..summary() };
    let server = ending(&["so"], stopped).await;
    let fields = json!({"stop_sequences": ["never", "\n\nHuman:"]});
    let message = post(server.address, MESSAGES, &ask(fields.clone())).await.json();
    assert_eq!(
        (&message["stop_reason"], &message["stop_sequence"]),
        (&json!("stop_sequence"), &json!("\n\nHuman:"))
    );
    let streamed = ask(laid_over(fields, json!({"stream": true})));
    let answer = post(server.address, MESSAGES, &streamed).await;
    let (_, delta) =
        events(&answer).into_iter().find(|(name, _)| *name == "message_delta").unwrap();
    assert_eq!(
        delta["delta"],
        json!({"stop_reason": "stop_sequence", "stop_sequence": "\n\nHuman:"})
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_cut_off_says_max_tokens() {
    let server = ending(&["so"], Summary { reason: FinishReason::Length, ..summary() }).await;
    let message = post(server.address, MESSAGES, &ask(json!({}))).await.json();
    assert_eq!(message["stop_reason"], "max_tokens");
}

#[tokio::test(flavor = "multi_thread")]
async fn sampling_fields_reach_the_engine_and_the_rest_are_defaults() {
    let defaults = Params {
        sampling: sampling(),
        max_tokens: Some(9),
        stop: Vec::new(),
        constraint: None,
        logit_bias: Vec::new(),
        logprobs: None,
        prompt_logprobs: None,
    };
    let nothing = json!({
        "system": null, "temperature": null, "top_k": null, "top_p": null, "stop_sequences": null, "stream": null,
        "tools": null, "tool_choice": null, "thinking": null, "metadata": {"user_id": "u"}, "service_tier": "auto",
        "output_config": {"effort": "low"}, "container": null, "mcp_servers": [], "foo": {"bar": 1},
    });
    assert_eq!(understood(nothing).await.1, defaults);
    let fields = json!({"temperature": 1, "top_k": 3, "top_p": 0.5, "stop_sequences": ["a"], "max_tokens": 1});
    let sampling = Sampling { temperature: 1.0, top_k: 3, top_p: 0.5, ..sampling() };
    let wished = Params { sampling, max_tokens: Some(1), stop: vec!["a".to_owned()], ..defaults };
    assert_eq!(understood(fields).await.1, wished);
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_become_what_templates_know() {
    let (chat, _) = understood(json!({
        "system": [{"type": "text", "text": "Be", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "kind."}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "c"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "xx"},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}},
                {"type": "tool_use", "id": "toolu_2", "name": "time", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "sunny"}]},
                {"type": "tool_result", "tool_use_id": "toolu_2", "is_error": true},
                {"type": "text", "text": "Well?"},
            ]},
        ],
    }))
    .await;
    let call = |id: &str, name: &str, arguments| ToolCall {
        id: id.to_owned(),
        name: name.to_owned(),
        arguments,
    };
    let calls = vec![
        call("toolu_1", "weather", json!({"city": "Rome"})),
        call("toolu_2", "time", json!({})),
    ];
    let asking = Message {
        tool_calls: calls,
        reasoning_content: Some("hm".to_owned()),
        ..Message::new("assistant", "Let me see.")
    };
    let result = |id: &str, text: &str| Message {
        tool_call_id: Some(id.to_owned()),
        ..Message::new("tool", text)
    };
    let expected = vec![
        Message::new("system", "Be\nkind."),
        Message::new("user", "a\nb\nc"),
        asking,
        result("toolu_1", "sunny"),
        result("toolu_2", ""),
        Message::new("user", "Well?"),
    ];
    assert_eq!(chat.messages, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_are_shown_to_the_template_unless_none_may_be_called() {
    let (chat, _) = understood(json!({"tools": tools(), "tool_choice": {"type": "auto"}})).await;
    let shown = chat.tools.unwrap();
    assert_eq!(shown[0]["function"]["name"], "weather");
    assert_eq!(shown[0]["function"]["description"], "Tells it.");
    assert_eq!(shown[0]["function"]["parameters"], tools()[0]["input_schema"]);
    assert_eq!(shown.as_array().unwrap().len(), 2);
    let (chat, _) = understood(json!({"tools": tools(), "tool_choice": {"type": "none"}})).await;
    assert_eq!(chat.tools, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_can_be_told_is_told_whether_to_think() {
    for (thinking, told) in [
        (json!({"type": "enabled", "budget_tokens": 1024}), json!({"enable_thinking": true})),
        (json!({"type": "disabled"}), json!({"enable_thinking": false})),
        (json!({"type": "adaptive"}), json!({})),
        (json!(null), json!({})),
    ] {
        let (chat, _) = understood(json!({"thinking": thinking})).await;
        assert_eq!(Value::Object(chat.variables), told, "{thinking}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_stream_is_kept_alive_by_events() {
    let (release, held) = mpsc::channel();
    let held = Mutex::new(Some(held));
    let fake = Fake::new(move |mut sink| {
        let held: mpsc::Receiver<()> = held.lock().unwrap().take().expect("one request");
        thread::spawn(move || {
            held.recv().unwrap();
            tell(&mut sink, text("late"));
            tell(&mut sink, Event::Finished(summary()));
        });
        Ok(())
    });
    let server = Server::start_with(Arc::new(fake), |state| {
        state.limits.ping_every = Duration::from_millis(1);
    })
    .await;
    let mut connection =
        Connection::post(server.address, MESSAGES, &ask(json!({"stream": true}))).await;
    connection.read_until("event: ping\ndata: {\"type\":\"ping\"}\n\n").await;
    release.send(()).unwrap();
    let answer = connection.answer().await;
    let events = events(&answer);
    assert_eq!(events[0].0, "message_start");
    assert_eq!(events.last().unwrap().0, "message_stop");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_ends_the_sequence() {
    for (stream, sign) in [(true, Some("message_start")), (false, None)] {
        let (given_up, nobody_waits) = oneshot::channel();
        let fake = Arc::new(Fake::endless(given_up));
        let server = Server::start(fake.clone()).await;
        let mut connection =
            Connection::post(server.address, MESSAGES, &ask(json!({"stream": stream}))).await;
        match sign {
            Some(sign) => connection.read_until(sign).await,
            None => {
                while !fake.was_asked() {
                    tokio::task::yield_now().await;
                }
            }
        }
        drop(connection);
        nobody_waits.await.expect("the engine is told that the client left");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_outlasts_the_drain_is_cut_with_an_error_event() {
    let (given_up, nobody_waits) = oneshot::channel();
    let fake = Arc::new(Fake::endless(given_up));
    let server = Server::start_with(fake, |state| state.limits.drain = Duration::ZERO).await;
    let mut connection =
        Connection::post(server.address, MESSAGES, &ask(json!({"stream": true}))).await;
    connection.read_until("message_start").await;
    let ended = server.stop();
    let answer = connection.answer().await;
    let (name, error) = events(&answer).pop().unwrap();
    assert_eq!((name, &error["error"]["type"]), ("error", &json!("overloaded_error")));
    nobody_waits.await.expect("the engine is told");
    ended.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tokens_of_a_conversation_are_counted_without_answering_it() {
    let fake = Arc::new(Fake::saying(&["never"]));
    let server = Server::start(fake.clone()).await;
    // The prompt of the golden answers: 17 tokens by another engine's account.
    let messages = json!([{"role": "user", "content": "What is the capital of France?"}]);
    let request = json!({"model": "default", "messages": messages});
    let answer = post(server.address, COUNT, &request).await;
    assert_eq!((answer.status, answer.json()), (200, json!({"input_tokens": 17})));
    for fields in [json!({"messages": null}), json!({"model": null})] {
        let answer = post(server.address, COUNT, &laid_over(request.clone(), fields)).await;
        check_error(&answer, 400, "invalid_request_error");
    }
    assert!(!fake.was_asked());
    check_error(&get(server.address, COUNT).await, 405, "invalid_request_error");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_real_engine_answers_and_its_account_adds_up() {
    let server = serve_embedded().await;
    let fields = json!({
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": 30, "temperature": 0, "top_k": 1,
    });
    let whole = post(server.address, MESSAGES, &ask(fields.clone())).await.json();
    assert_eq!(
        whole["content"],
        json!([{"type": "text", "text": "Paris is the capital of France."}])
    );
    assert_eq!(whole["stop_reason"], "end_turn");
    let streamed = ask(laid_over(fields.clone(), json!({"stream": true})));
    let answer = post(server.address, MESSAGES, &streamed).await;
    let events = events(&answer);
    assert_eq!(events[0].1["message"]["usage"]["input_tokens"], 17);
    let delta = |event: &(&str, Value)| event.1["delta"]["text"].as_str().map(str::to_owned);
    let text: String = events.iter().filter_map(delta).collect();
    assert_eq!(text, "Paris is the capital of France.");
    for usage in [&whole["usage"], &events[events.len() - 2].1["usage"]] {
        let of = |name: &str| usage[name].as_u64().unwrap();
        assert_eq!(of("input_tokens") + of("cache_read_input_tokens"), 17, "{usage}");
        assert_eq!(usage["output_tokens"], whole["usage"]["output_tokens"]);
    }
    let stopped = ask(laid_over(fields, json!({"stop_sequences": ["zzz", " capital"]})));
    let message = post(server.address, MESSAGES, &stopped).await.json();
    assert_eq!(message["content"][0]["text"], "Paris is the");
    assert_eq!(message["stop_sequence"], " capital");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_holds_the_text_and_a_tool_is_called_when_it_has_to_be() {
    let server = serve_embedded().await;
    let format = json!({"type": "json_schema", "schema": city()});
    for place in [json!({"output_config": {"format": format}}), json!({"output_format": format})] {
        let request = ask(laid_over(json!({"max_tokens": 60}), place));
        let message = post(server.address, MESSAGES, &request).await.json();
        check_city(message["content"][0]["text"].as_str().unwrap());
    }
    let tool = json!({"name": "look", "input_schema": city(), "strict": true});
    for choice in [json!({"type": "any"}), json!({"type": "tool", "name": "look"})] {
        let fields = json!({"max_tokens": 90, "tools": [tool], "tool_choice": choice});
        let message = post(server.address, MESSAGES, &ask(fields)).await.json();
        assert_eq!(message["stop_reason"], "tool_use", "{message}");
        assert_eq!(message["content"][0]["name"], "look");
        check_city(&message["content"][0]["input"].to_string());
    }
}
