//! Whole answers, and what of a request reaches the engine.

use std::sync::Arc;

use serde_json::{Value, json};
use toko_engine::{Event, FinishReason, Message, Params, Sampling, Summary, ToolCall};

use crate::client::{chat, post};
use crate::fake::{Fake, Server, ask, sampling, summary, tell};

/// Returns the conversation and the parameters that a request becomes.
async fn understood(fields: Value) -> (toko_engine::Chat, Params) {
    let fake = Arc::new(Fake::saying(&["ok"]));
    let server = Server::start(fake.clone()).await;
    let answer = chat(server.address, &ask(fields)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    fake.asked()
}

async fn messages(messages: Value) -> Vec<Message> {
    understood(json!({"messages": messages})).await.0.messages
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_answer_has_the_public_shape() {
    let server = Server::saying(&["Once", " upon", " a time…"]).await;
    let answer = chat(server.address, &ask(json!({}))).await;
    assert_eq!(answer.status, 200);
    let mut body = answer.json();
    let id = body["id"].take();
    assert!(id.as_str().is_some_and(|id| id.starts_with("chatcmpl-") && id.len() == 41), "{id}");
    assert!(body["created"].take().as_u64().is_some_and(|seconds| seconds > 1_700_000_000));
    let fingerprint = body["system_fingerprint"].take();
    assert_eq!(fingerprint, concat!("tokonoma-", env!("CARGO_PKG_VERSION")));
    insta::assert_snapshot!(format!("{body:#}"), @r#"
    {
      "id": null,
      "object": "chat.completion",
      "created": null,
      "model": "org/model:q1",
      "system_fingerprint": null,
      "choices": [
        {
          "index": 0,
          "message": {
            "role": "assistant",
            "content": "Once upon a time…",
            "refusal": null
          },
          "logprobs": null,
          "finish_reason": "stop"
        }
      ],
      "usage": {
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "total_tokens": 13,
        "prompt_tokens_details": {
          "cached_tokens": 6
        },
        "completion_tokens_details": {
          "reasoning_tokens": 0
        }
      }
    }
    "#);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_path_without_a_version_gives_the_same_answer() {
    let server = Server::saying(&["same"]).await;
    let answer = post(server.address, "/chat/completions", &ask(json!({}))).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "same");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_cut_off_says_length() {
    let server = Server::start(Arc::new(Fake::new(|mut sink| {
        tell(&mut sink, Event::Finished(Summary { reason: FinishReason::Length, ..summary() }));
        Ok(())
    })))
    .await;
    let choice = chat(server.address, &ask(json!({}))).await.json()["choices"][0].take();
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("length"), &json!(""))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_have_different_ids() {
    let server = Server::saying(&["a"]).await;
    let first = chat(server.address, &ask(json!({}))).await.json();
    let second = chat(server.address, &ask(json!({}))).await.json();
    assert_ne!(first["id"], second["id"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_name_of_the_model_works_and_the_answer_has_its_id() {
    let server = Server::saying(&["a"]).await;
    for name in ["org/model:q1", "model-q1", "default"] {
        let answer = chat(server.address, &ask(json!({"model": name}))).await;
        assert_eq!(
            (answer.status, &answer.json()["model"]),
            (200, &json!("org/model:q1")),
            "{name}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_says_nothing_gets_the_defaults() {
    let nothing = Params {
        sampling: sampling(),
        max_tokens: Some(77),
        stop: Vec::new(),
        constraint: None,
        logit_bias: Vec::new(),
        logprobs: None,
        prompt_logprobs: None,
    };
    assert_eq!(understood(json!({})).await.1, nothing);
    let nulls = json!({
        "temperature": null, "top_k": null, "top_p": null, "min_p": null, "repeat_penalty": null, "seed": null,
        "frequency_penalty": null, "presence_penalty": null, "max_tokens": null, "max_completion_tokens": null,
        "stop": null, "stream": null, "stream_options": null, "n": null, "logprobs": null, "top_logprobs": null,
        "logit_bias": null, "tools": null, "tool_choice": null, "functions": null, "function_call": null,
        "response_format": null, "modalities": null, "audio": null, "web_search_options": null, "grammar": null,
        "chat_template_kwargs": null, "reasoning_effort": null, "add_generation_prompt": null, "options": null,
    });
    assert_eq!(understood(nulls).await.1, nothing);
}

#[tokio::test(flavor = "multi_thread")]
async fn sampling_fields_reach_the_engine() {
    let (_, params) = understood(json!({
        "temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0.25, "repeat_penalty": 1.5, "frequency_penalty": -2,
        "presence_penalty": 2, "seed": -3, "max_tokens": 9, "stop": ["a", "b"],
    }))
    .await;
    let sampling = Sampling {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.25,
        repeat_penalty: 1.5,
        frequency_penalty: -2.0,
        presence_penalty: 2.0,
        penalty_window_tokens: 17,
        seed: Some(u64::MAX - 2),
    };
    assert_eq!(
        params,
        Params {
            sampling,
            max_tokens: Some(9),
            stop: vec!["a".to_owned(), "b".to_owned()],
            constraint: None,
            logit_bias: Vec::new(),
            logprobs: None,
            prompt_logprobs: None
        }
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn no_tokens_may_be_asked_for() {
    for field in ["max_tokens", "max_completion_tokens"] {
        assert_eq!(understood(json!({field: 0})).await.1.max_tokens, Some(0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newer_token_limit_wins_and_one_stop_text_needs_no_array() {
    let (_, params) =
        understood(json!({"max_tokens": 9, "max_completion_tokens": 3, "stop": "end"})).await;
    assert_eq!((params.max_tokens, params.stop), (Some(3), vec!["end".to_owned()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_that_cannot_change_the_answer_are_ignored() {
    let (_, params) = understood(json!({
        "store": true, "metadata": {"a": "b"}, "user": "u", "service_tier": "auto", "parallel_tool_calls": true,
        "prompt_cache_key": "k", "safety_identifier": "s", "verbosity": "low", "prediction": null, "foo_bar": {"x": [1]},
        "audio": {"voice": "alloy", "format": "wav"}, "web_search_options": {"search_context_size": "low"},
        "n": 1, "best_of": 1, "logprobs": false, "top_logprobs": 0, "logit_bias": {"foo": 0, "5": 0.0}, "tools": [], "tool_choice": "auto",
        "functions": [], "function_call": "none", "response_format": {"type": "text"}, "modalities": ["text"],
        "ignore_eos": false, "mirostat": 0, "typical_p": 1, "echo": false, "suffix": "", "options": {},
        "stream_options": {"include_usage": true},
    }))
    .await;
    assert_eq!(
        params,
        Params {
            sampling: sampling(),
            max_tokens: Some(77),
            stop: Vec::new(),
            constraint: None,
            logit_bias: Vec::new(),
            logprobs: None,
            prompt_logprobs: None
        }
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_that_must_not_be_called_are_kept_from_the_model() {
    let tool =
        json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    let (chat, _) = understood(json!({"tools": [tool], "tool_choice": "none"})).await;
    assert_eq!(chat.tools, None);
    let both = json!({
        "tools": [tool], "tool_choice": "none", "functions": [{"name": "f"}], "function_call": "none",
    });
    assert_eq!(understood(both).await.0.tools, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_and_text_parts_become_what_templates_know() {
    let seen = messages(json!([
        {"role": "developer", "content": "be brief"},
        {"role": "system", "content": ""},
        {"role": "user", "name": "ann", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "content": null, "refusal": "never"},
        {"role": "user", "content": "a\u{0}b 😀"},
    ]))
    .await;
    let ann = Message { name: Some("ann".to_owned()), ..Message::new("user", "a\nb") };
    let expected = vec![
        Message::new("system", "be brief"),
        Message::new("system", ""),
        ann,
        Message::new("assistant", "no"),
        Message::new("assistant", "never"),
        Message::new("user", "a\u{0}b 😀"),
    ];
    assert_eq!(seen, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn earlier_calls_and_their_results_reach_the_template() {
    let seen = messages(json!([
        {"role": "user", "content": "w?"},
        {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}},
            {"id": "call_2", "function": {"name": "g", "arguments": "[oops"}},
        ]},
        {"role": "tool", "tool_call_id": "call_1", "content": "ok"},
        {"role": "assistant", "content": null, "function_call": {"name": "h", "arguments": "{}"}},
        {"role": "function", "name": "h", "content": "done"},
    ]))
    .await;
    let call = |id: &str, name: &str, arguments| ToolCall {
        id: id.to_owned(),
        name: name.to_owned(),
        arguments,
    };
    let calls = vec![call("call_1", "f", json!({"x": 1})), call("call_2", "g", json!("[oops"))];
    let asking = Message {
        tool_calls: calls,
        reasoning_content: Some("hm".to_owned()),
        ..Message::new("assistant", "")
    };
    let answering =
        Message { tool_call_id: Some("call_1".to_owned()), ..Message::new("tool", "ok") };
    let older =
        Message { tool_calls: vec![call("", "h", json!({}))], ..Message::new("assistant", "") };
    let result = Message { name: Some("h".to_owned()), ..Message::new("tool", "done") };
    assert_eq!(seen, [Message::new("user", "w?"), asking, answering, older, result]);
}

#[tokio::test(flavor = "multi_thread")]
async fn template_variables_reach_the_template() {
    let (chat, _) = understood(json!({
        "chat_template_kwargs": {"enable_thinking": false}, "reasoning_effort": "low", "add_generation_prompt": false,
    }))
    .await;
    let variables = json!({"enable_thinking": false, "reasoning_effort": "low"});
    assert_eq!((Value::Object(chat.variables), chat.add_generation_prompt), (variables, false));
}
