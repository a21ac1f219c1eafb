//! The Ollama dialect: chats and continuations whole and line by line, the list of models, and errors in its words.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::oneshot;
use toko_engine::{Chat, Error, Event, FinishReason, Message, Params, Sampling, Summary, ToolCall};
use toko_server::ApiKey;

use crate::anthropic::TEMPLATE;
use crate::client::{Answer, Connection, exchange, get, post};
use crate::engine::serve_embedded;
use crate::fake::{Fake, Server, laid_over, sampling, summary, tell, text};
use crate::responses::{check_city, city};

const CHAT: &str = "/api/chat";
const GENERATE: &str = "/api/generate";

fn ask(fields: Value) -> Value {
    let messages = json!([{"role": "user", "content": "Hi"}]);
    laid_over(json!({"model": "default", "messages": messages}), fields)
}

fn prompt(fields: Value) -> Value {
    laid_over(json!({"model": "default", "prompt": "Hi"}), fields)
}

fn tools() -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    json!([
        {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": parameters}},
        {"type": "function", "function": {"name": "time"}},
    ])
}

/// Returns the conversation and the parameters that a request becomes.
async fn understood(path: &str, request: Value) -> (Chat, Params) {
    let fake = Arc::new(Fake::saying(&["ok"]).with_template(TEMPLATE));
    let server = Server::start(fake.clone()).await;
    let answer = post(server.address, path, &request).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    fake.asked()
}

/// The lines of an answer.
fn lines(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.header("content-type"), Some("application/x-ndjson"));
    assert!(answer.body.ends_with('\n'), "{}", answer.body);
    answer.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Checks and removes what differs from run to run.
fn steady(mut line: Value) -> String {
    let fields = line.as_object_mut().unwrap();
    let time = fields["created_at"].take();
    let time = time.as_str().unwrap();
    assert!(time.len() == 27 && time.starts_with("20") && time.ends_with('Z'), "{time}");
    if let Some(total) = fields.get_mut("total_duration") {
        assert!(total.take().as_u64().unwrap() > 0);
    }
    let calls = fields.get_mut("message").and_then(|message| message.get_mut("tool_calls"));
    for call in calls.and_then(Value::as_array_mut).into_iter().flatten() {
        let id = call["id"].take();
        assert!(id.as_str().is_some_and(|id| id.starts_with("call_")), "{id}");
    }
    line.to_string()
}

fn readable(answer: &Answer) -> String {
    lines(answer).into_iter().map(steady).collect::<Vec<_>>().join("\n")
}

/// Checks an error answer and returns its text.
#[track_caller]
fn check_error(answer: &Answer, status: u16) -> String {
    let body = answer.json();
    assert_eq!((answer.status, body.as_object().unwrap().len()), (status, 1), "{body}");
    body["error"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_is_answered_line_by_line_unless_it_says_otherwise() {
    let server = Server::saying(&["Once", "", " upon"]).await;
    let answer = post(server.address, CHAT, &ask(json!({}))).await;
    assert_eq!(answer.status, 200);
    insta::assert_snapshot!(readable(&answer), @r#"
    {"model":"org/model:q1","created_at":null,"message":{"role":"assistant","content":"Once"},"done":false}
    {"model":"org/model:q1","created_at":null,"message":{"role":"assistant","content":" upon"},"done":false}
    {"model":"org/model:q1","created_at":null,"message":{"role":"assistant","content":""},"done":true,"done_reason":"stop","total_duration":null,"load_duration":0,"prompt_eval_count":9,"prompt_eval_duration":5000000,"eval_count":4,"eval_duration":7000000}
    "#);
    let whole = post(server.address, CHAT, &ask(json!({"stream": false}))).await;
    insta::assert_snapshot!(steady(whole.json()), @r#"
    {"model":"org/model:q1","created_at":null,"message":{"role":"assistant","content":"Once upon"},"done":true,"done_reason":"stop","total_duration":null,"load_duration":0,"prompt_eval_count":9,"prompt_eval_duration":5000000,"eval_count":4,"eval_duration":7000000}
    "#);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_is_answered_line_by_line_unless_it_says_otherwise() {
    let server = Server::saying(&["Once", " upon"]).await;
    let answer = post(server.address, GENERATE, &prompt(json!({}))).await;
    insta::assert_snapshot!(readable(&answer), @r#"
    {"model":"org/model:q1","created_at":null,"response":"Once","done":false}
    {"model":"org/model:q1","created_at":null,"response":" upon","done":false}
    {"model":"org/model:q1","created_at":null,"response":"","done":true,"done_reason":"stop","total_duration":null,"load_duration":0,"prompt_eval_count":9,"prompt_eval_duration":5000000,"eval_count":4,"eval_duration":7000000}
    "#);
    let whole = post(server.address, GENERATE, &prompt(json!({"stream": false}))).await;
    insta::assert_snapshot!(steady(whole.json()), @r#"
    {"model":"org/model:q1","created_at":null,"response":"Once upon","done":true,"done_reason":"stop","total_duration":null,"load_duration":0,"prompt_eval_count":9,"prompt_eval_duration":5000000,"eval_count":4,"eval_duration":7000000}
    "#);
}

/// Thoughts, a text and two calls.
const EVERYTHING: &[&str] = &[
    "<think>Hm",
    "m.</think>",
    "Let me look.",
    "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\"",
    ": \"Paris\"}}\n</tool_call>",
    "\n<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>",
];

#[tokio::test(flavor = "multi_thread")]
async fn thoughts_and_whole_calls_are_told_beside_the_text() {
    let fake = Fake::saying(EVERYTHING).with_template(TEMPLATE);
    let server = Server::start(Arc::new(fake)).await;
    let fields = json!({"tools": tools(), "think": true});
    let answer = post(server.address, CHAT, &ask(fields.clone())).await;
    insta::assert_snapshot!(readable(&answer), @r#"
    {"model":"org/model:q1","created_at":null,"message":{"role":"assistant","content":"","thinking":"Hm"},"done":false}
    {"model":"org/model:q1","created_at":null,"message":{"role":"assistant","content":"","thinking":"m."},"done":false}
    {"model":"org/model:q1","created_at":null,"message":{"role":"assistant","content":"Let me look."},"done":false}
    {"model":"org/model:q1","created_at":null,"message":{"role":"assistant","content":"","tool_calls":[{"id":null,"function":{"name":"weather","arguments":{"city":"Paris"}}}]},"done":false}
    {"model":"org/model:q1","created_at":null,"message":{"role":"assistant","content":"","tool_calls":[{"id":null,"function":{"name":"time","arguments":{}}}]},"done":false}
    {"model":"org/model:q1","created_at":null,"message":{"role":"assistant","content":""},"done":true,"done_reason":"stop","total_duration":null,"load_duration":0,"prompt_eval_count":9,"prompt_eval_duration":5000000,"eval_count":4,"eval_duration":7000000}
    "#);
    let whole = ask(laid_over(fields, json!({"stream": false})));
    insta::assert_snapshot!(steady(post(server.address, CHAT, &whole).await.json()), @r#"
    {"model":"org/model:q1","created_at":null,"message":{"role":"assistant","content":"Let me look.","thinking":"Hmm.","tool_calls":[{"id":null,"function":{"name":"weather","arguments":{"city":"Paris"}}},{"id":null,"function":{"name":"time","arguments":{}}}]},"done":true,"done_reason":"stop","total_duration":null,"load_duration":0,"prompt_eval_count":9,"prompt_eval_duration":5000000,"eval_count":4,"eval_duration":7000000}
    "#);
    let whole = prompt(json!({"stream": false, "think": true}));
    let whole = post(server.address, GENERATE, &whole).await.json();
    assert_eq!(whole["thinking"], "Hmm.");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_prompt_the_model_is_only_made_ready() {
    let fake = Arc::new(Fake::saying(&["never"]));
    let server = Server::start(fake.clone()).await;
    let empty =
        post(server.address, GENERATE, &json!({"model": "default", "keep_alive": "5m"})).await;
    insta::assert_snapshot!(steady(empty.json()), @r#"
    {"model":"org/model:q1","created_at":null,"response":"","done":true,"done_reason":"load"}
    "#);
    let empty = post(server.address, CHAT, &json!({"model": "default", "messages": []})).await;
    insta::assert_snapshot!(steady(empty.json()), @r#"
    {"model":"org/model:q1","created_at":null,"message":{"role":"assistant","content":""},"done":true,"done_reason":"load"}
    "#);
    assert_eq!(get(server.address, "/api/ps").await.json()["models"].as_array().unwrap().len(), 1);
    for nothing in [json!(0), json!("0"), json!("0s")] {
        let gone = json!({"model": "default", "keep_alive": nothing});
        let gone = post(server.address, GENERATE, &gone).await.json();
        assert_eq!((&gone["done"], &gone["done_reason"]), (&json!(true), &json!("unload")));
        assert_eq!(get(server.address, "/api/ps").await.json(), json!({"models": []}));
    }
    assert!(!fake.was_asked());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_cut_off_says_length() {
    let server = Server::start(Arc::new(Fake::new(|mut sink| {
        tell(&mut sink, Event::Finished(Summary { reason: FinishReason::Length, ..summary() }));
        Ok(())
    })))
    .await;
    let answer = post(server.address, CHAT, &ask(json!({"stream": false}))).await.json();
    assert_eq!(answer["done_reason"], "length");
}

#[tokio::test(flavor = "multi_thread")]
async fn options_reach_the_engine_and_the_rest_are_defaults() {
    let defaults = Params {
        sampling: sampling(),
        max_tokens: Some(77),
        stop: Vec::new(),
        constraint: None,
        logit_bias: Vec::new(),
        logprobs: None,
        prompt_logprobs: None,
    };
    for nothing in [
        json!({}),
        json!({"options": null, "format": "", "think": null, "keep_alive": -1, "tools": null}),
        json!({"options": {"num_ctx": 64, "seed": -1, "num_gpu": 1, "mirostat": 0, "typical_p": 1, "foo": 1}}),
    ] {
        assert_eq!(understood(CHAT, ask(nothing)).await.1, defaults);
    }
    let options = json!({
        "temperature": 0, "top_k": 3, "top_p": 0.5, "min_p": 0.25, "repeat_penalty": 1.5, "frequency_penalty": 1,
        "presence_penalty": -1, "repeat_last_n": 5, "seed": 7, "num_predict": 3, "stop": ["a", "b"],
    });
    let sampling = Sampling {
        temperature: 0.0,
        top_k: 3,
        top_p: 0.5,
        min_p: 0.25,
        repeat_penalty: 1.5,
        frequency_penalty: 1.0,
        presence_penalty: -1.0,
        penalty_window_tokens: 5,
        seed: Some(7),
    };
    let stop = vec!["a".to_owned(), "b".to_owned()];
    let wished = Params { sampling, max_tokens: Some(3), stop, ..defaults.clone() };
    assert_eq!(understood(GENERATE, prompt(json!({"options": options}))).await.1, wished);
    for without_limit in [-1, -2] {
        let options = json!({"options": {"num_predict": without_limit}});
        assert_eq!(
            understood(CHAT, ask(options)).await.1,
            Params { max_tokens: None, ..defaults.clone() }
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_becomes_what_templates_know() {
    let (chat, _) = understood(CHAT, ask(json!({
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "w?", "images": []},
            {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [
                {"id": "call_1", "function": {"index": 0, "name": "weather", "arguments": {"city": "Rome"}}},
                {"function": {"name": "time"}},
            ]},
            {"role": "tool", "content": "sunny", "tool_name": "weather", "tool_call_id": "call_1"},
        ],
        "tools": tools(),
        "think": "low",
    })))
    .await;
    let call = |id: &str, name: &str, arguments| ToolCall {
        id: id.to_owned(),
        name: name.to_owned(),
        arguments,
    };
    let calls =
        vec![call("call_1", "weather", json!({"city": "Rome"})), call("", "time", json!({}))];
    let asking = Message {
        tool_calls: calls,
        reasoning_content: Some("hm".to_owned()),
        ..Message::new("assistant", "")
    };
    let result = Message {
        name: Some("weather".to_owned()),
        tool_call_id: Some("call_1".to_owned()),
        ..Message::new("tool", "sunny")
    };
    let expected =
        vec![Message::new("system", "Be kind."), Message::new("user", "w?"), asking, result];
    assert_eq!(chat.messages, expected);
    assert_eq!(chat.tools.unwrap()[0], tools()[0]);
    assert_eq!(
        Value::Object(chat.variables),
        json!({"reasoning_effort": "low", "enable_thinking": true})
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_is_a_question_with_its_system_text_or_raw() {
    let (chat, _) =
        understood(GENERATE, prompt(json!({"system": "Be kind.", "think": false}))).await;
    assert_eq!(chat.messages, [Message::new("system", "Be kind."), Message::new("user", "Hi")]);
    assert_eq!(Value::Object(chat.variables), json!({"enable_thinking": false}));
    let fake = Arc::new(Fake::saying(&["<think>ok"]).with_template(TEMPLATE));
    let server = Server::start(fake.clone()).await;
    let request = prompt(json!({"raw": true, "stream": false}));
    assert_eq!(post(server.address, GENERATE, &request).await.json()["response"], "<think>ok");
    let continued = fake.continued();
    assert_eq!(continued.len(), 1);
    assert_eq!(continued[0].0, toko_server::Backend::text_prompt(&*fake, "Hi"));
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_fields_are_refused_by_name_before_the_engine_hears_of_them() {
    let message = |fields: Value| json!({"messages": [laid_over(json!({"role": "user", "content": "x"}), fields)]});
    let both = [
        (json!({"model": null}), "model"),
        (json!({"model": ""}), "model"),
        (json!({"model": 1}), "model"),
        (json!({"stream": "no"}), "stream"),
        (json!({"format": "poem"}), "format"),
        (json!({"format": true}), "format"),
        (json!({"keep_alive": {}}), "keep_alive"),
        (json!({"keep_alive": "soon"}), "keep_alive"),
        (json!({"think": "much"}), "think"),
        (json!({"think": 1}), "think"),
        (json!({"logprobs": true}), "logprobs"),
        (json!({"options": []}), "options"),
        (json!({"options": {"temperature": 3}}), "options.temperature"),
        (json!({"options": {"temperature": "hot"}}), "options.temperature"),
        (json!({"options": {"top_k": -1}}), "options.top_k"),
        (json!({"options": {"num_predict": 0}}), "options.num_predict"),
        (json!({"options": {"num_predict": -3}}), "options.num_predict"),
        (json!({"options": {"num_ctx": 65}}), "options.num_ctx"),
        (json!({"options": {"num_ctx": 0}}), "options.num_ctx"),
        (json!({"options": {"stop": [""]}}), "options.stop[0]"),
        (json!({"options": {"mirostat": 1}}), "options.mirostat"),
        (json!({"options": {"typical_p": 0.5}}), "options.typical_p"),
    ];
    let chat = [
        (message(json!({"role": null})), "messages[0].role"),
        (message(json!({"role": "martian"})), "messages[0].role"),
        (message(json!({"content": ["x"]})), "messages[0].content"),
        (message(json!({"images": ["AAAA"]})), "messages[0].images"),
        (message(json!({"tool_calls": [{"function": {"name": "f"}}]})), "messages[0].tool_calls"),
        (
            message(
                json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}),
            ),
            "messages[0].tool_calls[0].function.arguments",
        ),
        (json!({"tools": [{"type": "function"}]}), "tools[0].function"),
        (
            json!({"tools": [{"type": "function", "function": {"name": "a b"}}]}),
            "tools[0].function.name",
        ),
    ];
    let generate = [
        (json!({"suffix": "x"}), "suffix"),
        (json!({"template": "{{ .Prompt }}"}), "template"),
        (json!({"context": [1, 2]}), "context"),
        (json!({"images": ["AAAA"]}), "images"),
        (json!({"prompt": ["x"]}), "prompt"),
    ];
    let fake = Arc::new(Fake::saying(&["never"]).with_template(TEMPLATE));
    let server = Server::start(fake.clone()).await;
    let cases = both.iter().flat_map(|case| [(CHAT, case), (GENERATE, case)]);
    let cases = cases.chain(chat.iter().map(|case| (CHAT, case)));
    for (path, (fields, param)) in cases.chain(generate.iter().map(|case| (GENERATE, case))) {
        let request = if path == CHAT { ask(fields.clone()) } else { prompt(fields.clone()) };
        let said = check_error(&post(server.address, path, &request).await, 400);
        assert_eq!(said.split([':', ' ']).next(), Some(*param), "{fields}: {said}");
    }
    assert!(!fake.was_asked());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_cannot_think_is_not_asked_to() {
    let server = Server::saying(&["ok"]).await;
    let said = check_error(&post(server.address, CHAT, &ask(json!({"think": true}))).await, 400);
    assert!(said.starts_with("think: "), "{said}");
    assert_eq!(post(server.address, CHAT, &ask(json!({"think": false}))).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tag_latest_may_be_left_out_and_added() {
    let server = Server::start_with(Arc::new(Fake::saying(&["ok"])), |state| {
        state.models[0].aliases = vec!["sprout:latest".to_owned(), "fern".to_owned()];
    })
    .await;
    for name in ["default", "org/model:q1", "sprout", "sprout:latest", "fern", "fern:latest"] {
        let answer = post(server.address, CHAT, &ask(json!({"model": name}))).await;
        assert_eq!(
            (answer.status, &lines(&answer)[0]["model"]),
            (200, &json!("org/model:q1")),
            "{name}"
        );
    }
    for name in ["sprou", "fern:q4", "model:latest", ":latest"] {
        let said =
            check_error(&post(server.address, CHAT, &ask(json!({"model": name}))).await, 404);
        assert!(said.contains(&format!("{name:?}")), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn models_are_listed_and_described() {
    let server = Server::saying(&["never"]).await;
    let unload = json!({"model": "default", "keep_alive": 0});
    assert_eq!(post(server.address, CHAT, &unload).await.status, 200);
    let unloaded = get(server.address, "/api/tags").await.json()["models"][0].take();
    assert_eq!((&unloaded["name"], &unloaded["size"]), (&json!("org/model:q1"), &json!(0)));
    assert_eq!(post(server.address, CHAT, &json!({"model": "default"})).await.status, 200);
    let mut tags = get(server.address, "/api/tags").await.json();
    let digest = tags["models"][0]["digest"].take();
    assert!(digest.as_str().is_some_and(|digest| digest.len() == 64), "{digest}");
    insta::assert_snapshot!(format!("{tags:#}"), @r#"
    {
      "models": [
        {
          "name": "org/model:q1",
          "model": "org/model:q1",
          "modified_at": "2023-11-14T22:13:20Z",
          "size": 500,
          "digest": null,
          "details": {
            "parent_model": "",
            "format": "gguf",
            "family": "qwen3",
            "families": [
              "qwen3"
            ],
            "parameter_size": "1K",
            "quantization_level": "unknown"
          }
        }
      ]
    }
    "#);
    let running = get(server.address, "/api/ps").await.json()["models"][0].take();
    assert_eq!((&running["digest"], &running["size_vram"]), (&digest, &json!(0)));
    assert_eq!(
        (&running["context_length"], &running["name"]),
        (&json!(64), &json!("org/model:q1"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_described_by_either_word_for_its_name() {
    let server = Server::saying(&["never"]).await;
    let version = get(server.address, "/api/version").await.json();
    assert!(version["version"].as_str().is_some_and(|version| version.split('.').count() == 3));
    let mut shown = post(server.address, "/api/show", &json!({"model": "default"})).await.json();
    let older = json!({"name": "org/model:q1", "model": ""});
    assert_eq!(post(server.address, "/api/show", &older).await.json(), shown);
    assert!(shown["template"].take().as_str().unwrap().contains("messages"));
    insta::assert_snapshot!(format!("{shown:#}"), @r#"
    {
      "modelfile": "FROM org/model:q1\n",
      "parameters": "num_ctx 64\n",
      "template": null,
      "details": {
        "parent_model": "",
        "format": "gguf",
        "family": "qwen3",
        "families": [
          "qwen3"
        ],
        "parameter_size": "1K",
        "quantization_level": "unknown"
      },
      "model_info": {
        "general.architecture": "qwen3",
        "general.basename": "Scripted",
        "general.parameter_count": 1000,
        "qwen3.context_length": 128,
        "qwen3.embedding_length": 8
      },
      "capabilities": [
        "completion",
        "tools"
      ],
      "modified_at": "2023-11-14T22:13:20Z"
    }
    "#);
    check_error(&post(server.address, "/api/show", &json!({"model": "nope"})).await, 404);
    check_error(&post(server.address, "/api/show", &json!({})).await, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_model_can_do_is_read_from_its_template() {
    let fake = Fake::saying(&["never"]).with_template(TEMPLATE);
    let server = Server::start(Arc::new(fake)).await;
    let shown = post(server.address, "/api/show", &json!({"model": "default"})).await.json();
    assert_eq!(shown["capabilities"], json!(["completion", "tools", "thinking"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_find_out_that_the_server_is_there() {
    let server = Server::saying(&["never"]).await;
    assert!(get(server.address, "/").await.body.contains("Ollama is running"));
    let head = exchange(server.address, "HEAD", "/", &[], b"").await;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn models_are_not_changed_over_this_api() {
    let server = Server::saying(&["never"]).await;
    for (method, path) in [
        ("POST", "/api/pull"),
        ("POST", "/api/push"),
        ("POST", "/api/create"),
        ("POST", "/api/copy"),
        ("DELETE", "/api/delete"),
    ] {
        let body = json!({"model": "default"}).to_string();
        let headers = ["content-type: application/json"];
        let answer = exchange(server.address, method, path, &headers, body.as_bytes()).await;
        assert!(check_error(&answer, 400).contains("command line"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_goes_wrong_on_these_paths_is_told_in_these_words() {
    let server = Server::start_with(Arc::new(Fake::saying(&["never"])), |state| {
        state.access.keys = vec![ApiKey::new("k").unwrap()];
    })
    .await;
    let key = "authorization: Bearer k";
    let json = "content-type: application/json";
    for (method, path, headers, status) in [
        ("POST", CHAT, &[json][..], 401),
        ("GET", "/api/tags", &[], 401),
        ("POST", CHAT, &[json, key], 400),
        ("POST", CHAT, &[key], 415),
        ("GET", CHAT, &[key], 405),
        ("GET", "/api/nope", &[key], 404),
        ("GET", "/api", &[key], 404),
    ] {
        check_error(&exchange(server.address, method, path, headers, b"[").await, status);
    }
    let full = || Error::QueueFull { waiting: 3, retry_after_seconds: 7 };
    let server = Server::start(Arc::new(Fake::new(move |_| Err(full())))).await;
    let answer = post(server.address, CHAT, &ask(json!({}))).await;
    check_error(&answer, 429);
    assert_eq!(answer.header("retry-after"), Some("7"));
    let server = Server::start(Arc::new(Fake::new(|_| panic!("a bug")))).await;
    check_error(&post(server.address, GENERATE, &prompt(json!({"raw": true}))).await, 500);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_on_the_way_is_the_last_line() {
    let server = Server::start(Arc::new(Fake::new(|mut sink| {
        tell(&mut sink, text("half"));
        tell(&mut sink, Event::Failed(Error::NotANumber { position: 3 }));
        Ok(())
    })))
    .await;
    let lines = lines(&post(server.address, CHAT, &ask(json!({}))).await);
    assert_eq!((lines.len(), &lines[0]["done"]), (2, &json!(false)));
    assert!(lines[1]["error"].as_str().is_some_and(|error| error.contains("position 3")));
    check_error(&post(server.address, CHAT, &ask(json!({"stream": false}))).await, 500);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_ends_the_sequence() {
    for stream in [true, false] {
        let (given_up, nobody_waits) = oneshot::channel();
        let fake = Arc::new(Fake::endless(given_up));
        let server = Server::start(fake.clone()).await;
        let mut connection =
            Connection::post(server.address, CHAT, &ask(json!({"stream": stream}))).await;
        if stream {
            connection.read_until("application/x-ndjson").await;
        } else {
            while !fake.was_asked() {
                tokio::task::yield_now().await;
            }
        }
        drop(connection);
        nobody_waits.await.expect("the engine is told that the client left");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_outlasts_the_drain_is_cut_with_an_error_line() {
    let (given_up, nobody_waits) = oneshot::channel();
    let fake = Arc::new(Fake::endless(given_up));
    let server = Server::start_with(fake, |state| state.limits.drain = Duration::ZERO).await;
    let mut connection = Connection::post(server.address, CHAT, &ask(json!({}))).await;
    connection.read_until("application/x-ndjson").await;
    let ended = server.stop();
    let lines = lines(&connection.answer().await);
    assert_eq!(lines, [json!({"error": "the server is shutting down"})]);
    nobody_waits.await.expect("the engine is told");
    ended.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_real_engine_answers_chats_and_raw_prompts() {
    let server = serve_embedded().await;
    let options = json!({"temperature": 0, "repeat_penalty": 1, "frequency_penalty": 0, "presence_penalty": 0});
    let question = "What is the capital of France?";
    let chat =
        ask(json!({"messages": [{"role": "user", "content": question}], "options": options}));
    let told = lines(&post(server.address, CHAT, &chat).await);
    let content: String =
        told.iter().map(|line| line["message"]["content"].as_str().unwrap()).collect();
    assert_eq!(content, "Paris is the capital of France.");
    let last = told.last().unwrap();
    assert_eq!((&last["prompt_eval_count"], &last["done_reason"]), (&json!(17), &json!("stop")));
    let raw = format!("<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n");
    let raw = prompt(json!({"prompt": raw, "raw": true, "stream": false, "options": options}));
    let answer = post(server.address, GENERATE, &raw).await.json();
    assert_eq!(answer["response"], "Paris is the capital of France.");
    assert_eq!(answer["eval_count"], last["eval_count"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_format_holds_the_text_and_one_that_cannot_is_refused() {
    let server = serve_embedded().await;
    let options = json!({"num_predict": 60});
    let fields = json!({"format": city(), "stream": false, "options": options});
    let answer = post(server.address, CHAT, &ask(fields.clone())).await.json();
    check_city(answer["message"]["content"].as_str().unwrap());
    for raw in [false, true] {
        let request = prompt(laid_over(fields.clone(), json!({"raw": raw})));
        let answer = post(server.address, GENERATE, &request).await.json();
        check_city(answer["response"].as_str().unwrap());
        let unenforceable = json!({"type": "array", "uniqueItems": true});
        let request = prompt(json!({"format": unenforceable, "raw": raw}));
        let said = check_error(&post(server.address, GENERATE, &request).await, 400);
        assert!(said.starts_with("format: "), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_become_the_vectors_that_the_other_api_gives() {
    let server = serve_embedded().await;
    let texts = json!(["The sun is hot.", "Rain"]);
    let request = json!({"model": "default", "input": texts});
    let known = post(server.address, "/v1/embeddings", &request).await.json();
    let vectors = [&known["data"][0]["embedding"], &known["data"][1]["embedding"]];
    let answer = post(server.address, "/api/embed", &request).await.json();
    assert_eq!(answer["embeddings"], json!(vectors));
    assert_eq!(answer["prompt_eval_count"], known["usage"]["prompt_tokens"]);
    let one =
        post(server.address, "/api/embed", &json!({"name": "default", "input": "Rain"})).await;
    assert_eq!(one.json()["embeddings"], json!([vectors[1]]));
    let older = json!({"model": "default", "prompt": "Rain"});
    let older = post(server.address, "/api/embeddings", &older).await.json();
    assert_eq!(older, json!({"embedding": vectors[1]}));
    let shorter = json!({"model": "default", "input": "Rain", "dimensions": 8});
    let shorter = post(server.address, "/api/embed", &shorter).await.json();
    let squares =
        shorter["embeddings"][0].as_array().unwrap().iter().map(|it| it.as_f64().unwrap().powi(2));
    assert_eq!(squares.len(), 8);
    assert!((squares.sum::<f64>() - 1.0).abs() < 1e-5);
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_that_cannot_be_vectors_are_refused_by_their_place() {
    let server = serve_embedded().await;
    let long = "word ".repeat(5000);
    for (path, fields, param) in [
        ("/api/embed", json!({}), "input"),
        ("/api/embed", json!({"input": []}), "input"),
        ("/api/embed", json!({"input": ""}), "input"),
        ("/api/embed", json!({"input": ["a", ""]}), "input[1]"),
        ("/api/embed", json!({"input": 1}), "input"),
        ("/api/embed", json!({"input": "a", "dimensions": 0}), "dimensions"),
        ("/api/embed", json!({"input": "a", "dimensions": 1 << 20}), "dimensions"),
        ("/api/embed", json!({"input": long}), "the"),
        ("/api/embeddings", json!({}), "prompt"),
        ("/api/embeddings", json!({"prompt": ""}), "prompt"),
    ] {
        let request = laid_over(json!({"model": "default"}), fields);
        let said = check_error(&post(server.address, path, &request).await, 400);
        assert_eq!(said.split([':', ' ']).next(), Some(param), "{said}");
    }
}
