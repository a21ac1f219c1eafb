//! Thoughts and tool calls: what clients are told of them, streamed and whole.

use std::sync::Arc;

use serde_json::{Value, json};
use toko_engine::FinishReason;

use crate::client::{Answer, chat, post};
use crate::fake::{Fake, Server, ask, summary, tell, text};
use crate::stream::readable;

/// Shows tools and writes calls between marks.
const TAGGED: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n\
    {% if loop.first and tools %}{{ tools | tojson }}\n{% endif %}{{ m.content }}\
    {% for c in m.tool_calls or [] %}\n<tool_call>\n\
    {\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}\
    <|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Shows tools; an answer that calls one is nothing else.
const BARE: &str = "{% for m in messages %}<|{{ m.role }}|>\n\
    {% if loop.first and tools %}{{ tools | tojson }}\n{% endif %}\
    {% if m.tool_calls %}{% set c = m.tool_calls[0].function %}\
    {\"name\": \"{{ c.name }}\", \"parameters\": {{ c.arguments | tojson }}}\
    {% else %}{{ m.content }}{% endif %}<|end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|assistant|>\n{% endif %}";

/// Knows thoughts and no tools.
const THINKING: &str = "{% for m in messages %}<|{{ m.role }}|>{{ m.content.split('</think>') | last }}\n{% endfor %}\
    {% if add_generation_prompt %}<|assistant|>{% if think_first %}<think>\n{% endif %}{% endif %}";

/// Shows tools and writes calls in a syntax of its own.
const FOREIGN: &str = "{{ tools | tojson }}{% for m in messages %}{{ m.content }}\
    {% for c in m.tool_calls or [] %}call {{ c.function.name }}{% endfor %}{% endfor %}";

/// A function to offer.
fn function(name: &str) -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    json!({"name": name, "description": "Tells something.", "parameters": parameters})
}

fn tools(names: &[&str]) -> Value {
    let tool = |name: &&str| json!({"type": "function", "function": function(name)});
    names.iter().map(tool).collect()
}

/// A server whose engine has the template and says the texts.
async fn saying(template: &str, texts: &'static [&'static str]) -> Server {
    Server::start(Arc::new(Fake::saying(texts).with_template(template))).await
}

/// The frames with what differs from run to run left out.
fn steady(answer: &Answer) -> String {
    let text = readable(answer);
    let mut parts = text.split("\"id\":\"call_");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| format!("{text}\"id\":\"call_…{}", &part[32..]))
}

const TWO_CALLS: &[&str] = &[
    "Let me",
    " look.\n",
    "<tool_call>",
    "\n{\"name\": \"weather\", ",
    "\"arguments\": {\"city\"",
    ": \"Paris\"}}",
    "\n</tool_call>",
    "\n<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n",
    "</tool_call>",
];

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_streamed_with_their_name_first_and_their_arguments_as_they_come() {
    let server = saying(TAGGED, TWO_CALLS).await;
    let fields = json!({"stream": true, "tools": tools(&["weather", "time"])});
    let answer = chat(server.address, &ask(fields)).await;
    insta::assert_snapshot!(steady(&answer), @r#"
    {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}
    {"choices":[{"index":0,"delta":{"content":"Let me"},"logprobs":null,"finish_reason":null}]}
    {"choices":[{"index":0,"delta":{"content":" look."},"logprobs":null,"finish_reason":null}]}
    {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call_…","type":"function","function":{"name":"weather","arguments":""}}]},"logprobs":null,"finish_reason":null}]}
    {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"city\""}}]},"logprobs":null,"finish_reason":null}]}
    {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":": \"Paris\"}"}}]},"logprobs":null,"finish_reason":null}]}
    {"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"call_…","type":"function","function":{"name":"time","arguments":""}}]},"logprobs":null,"finish_reason":null}]}
    {"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"function":{"arguments":"{}"}}]},"logprobs":null,"finish_reason":null}]}
    {"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"tool_calls"}]}
    [DONE]
    "#);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_answer_has_the_calls_of_a_streamed_one() {
    let server = saying(TAGGED, TWO_CALLS).await;
    let fields = json!({"tools": tools(&["weather", "time"])});
    let answer = chat(server.address, &ask(fields)).await.json();
    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("tool_calls"), &json!("Let me look."))
    );
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    let functions: Vec<&Value> = calls.iter().map(|call| &call["function"]).collect();
    assert_eq!(
        json!(functions),
        json!([
            {"name": "weather", "arguments": "{\"city\": \"Paris\"}"},
            {"name": "time", "arguments": "{}"},
        ])
    );
    assert!(calls.iter().all(|call| call["type"] == "function"));
    assert_ne!(calls[0]["id"], calls[1]["id"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_only_calls_has_no_content() {
    let texts = &["{\"name\": \"weather\", \"para", "meters\": {\"city\": \"Rome\"}}"];
    let server = saying(BARE, texts).await;
    let fields = json!({"tools": tools(&["weather"])});
    let message = chat(server.address, &ask(fields)).await.json()["choices"][0]["message"].take();
    assert_eq!(message["content"], Value::Null);
    assert_eq!(message["tool_calls"][0]["function"]["arguments"], "{\"city\": \"Rome\"}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tools_marks_of_calls_are_text() {
    let server = saying(TAGGED, &["<tool_call>{\"name\": \"f\"}</tool_call>"]).await;
    let choice = chat(server.address, &ask(json!({}))).await.json()["choices"][0].take();
    assert_eq!(choice["message"]["content"], "<tool_call>{\"name\": \"f\"}</tool_call>");
    assert_eq!(choice["finish_reason"], "stop");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_cut_ends_by_length() {
    let fake = Fake::new(|mut sink| {
        tell(&mut sink, text("<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Pa"));
        let summary = toko_engine::Summary { reason: FinishReason::Length, ..summary() };
        tell(&mut sink, toko_engine::Event::Finished(summary));
        Ok(())
    });
    let server = Server::start(Arc::new(fake.with_template(TAGGED))).await;
    let fields = json!({"tools": tools(&["weather"])});
    let choice = chat(server.address, &ask(fields)).await.json()["choices"][0].take();
    assert_eq!(choice["finish_reason"], "length");
    let function = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(function["arguments"], "{\"city\": \"Pa");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_parallel_calls_only_the_first_is_told() {
    let server = saying(TAGGED, TWO_CALLS).await;
    let fields = json!({"tools": tools(&["weather", "time"]), "parallel_tool_calls": false});
    let message = chat(server.address, &ask(fields)).await.json()["choices"][0]["message"].take();
    let calls = message["tool_calls"].as_array().unwrap();
    assert_eq!((calls.len(), &calls[0]["function"]["name"]), (1, &json!("weather")));
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_the_older_spelling_get_one_function_call() {
    let server = saying(TAGGED, TWO_CALLS).await;
    let functions = json!([function("weather"), function("time")]);
    let answer = chat(server.address, &ask(json!({"functions": functions}))).await.json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "function_call");
    let call = json!({"name": "weather", "arguments": "{\"city\": \"Paris\"}"});
    assert_eq!(choice["message"]["function_call"], call);
    assert_eq!(choice["message"].get("tool_calls"), None);
    let streamed =
        chat(server.address, &ask(json!({"functions": functions, "stream": true}))).await;
    insta::assert_snapshot!(steady(&streamed), @r#"
    {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}
    {"choices":[{"index":0,"delta":{"content":"Let me"},"logprobs":null,"finish_reason":null}]}
    {"choices":[{"index":0,"delta":{"content":" look."},"logprobs":null,"finish_reason":null}]}
    {"choices":[{"index":0,"delta":{"function_call":{"name":"weather","arguments":""}},"logprobs":null,"finish_reason":null}]}
    {"choices":[{"index":0,"delta":{"function_call":{"arguments":"{\"city\""}},"logprobs":null,"finish_reason":null}]}
    {"choices":[{"index":0,"delta":{"function_call":{"arguments":": \"Paris\"}"}},"logprobs":null,"finish_reason":null}]}
    {"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"function_call"}]}
    [DONE]
    "#);
}

#[tokio::test(flavor = "multi_thread")]
async fn templates_see_the_tools_as_they_were_trained_on() {
    let fake = Arc::new(Fake::saying(&["x"]).with_template(TAGGED));
    let server = Server::start(fake.clone()).await;
    let strict = json!({"name": "bare", "strict": false, "description": null});
    let mut tools = tools(&["weather"]);
    tools.as_array_mut().unwrap().push(json!({"type": "function", "function": strict}));
    assert_eq!(chat(server.address, &ask(json!({"tools": tools}))).await.status, 200);
    let nothing = json!({"type": "object", "properties": {}});
    let expected = json!([
        {"type": "function", "function": function("weather")},
        {"type": "function", "function": {"name": "bare", "parameters": nothing}},
    ]);
    assert_eq!(fake.asked().0.tools, Some(expected));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_without_tools_is_offered_none() {
    for template in [THINKING, FOREIGN] {
        let fake = Arc::new(Fake::saying(&["x"]).with_template(template));
        let server = Server::start(fake.clone()).await;
        for (field, offered) in [("tools", tools(&["f"])), ("functions", json!([function("f")]))] {
            let answer = chat(server.address, &ask(json!({field: offered}))).await;
            let error = answer.json()["error"].take();
            assert_eq!((answer.status, &error["code"]), (400, &json!("unsupported_parameter")));
            assert_eq!(error["param"], field);
        }
        assert!(!fake.was_asked());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_that_cannot_be_called_are_refused_by_place() {
    let fake = Arc::new(Fake::saying(&["x"]).with_template(TAGGED));
    let server = Server::start(fake.clone()).await;
    let tool = |function: Value| json!([{"type": "function", "function": function}]);
    let cases = [
        (json!([{"type": "function"}]), "missing_required_parameter", "tools[0].function"),
        (json!([{"type": "custom", "custom": {}}]), "unsupported_parameter", "tools[0].type"),
        (json!(["f"]), "invalid_type", "tools[0]"),
        (tool(json!({})), "missing_required_parameter", "tools[0].function.name"),
        (tool(json!({"name": 3})), "invalid_type", "tools[0].function.name"),
        (tool(json!({"name": ""})), "invalid_value", "tools[0].function.name"),
        (tool(json!({"name": "get weather"})), "invalid_value", "tools[0].function.name"),
        (tool(json!({"name": "f".repeat(65)})), "invalid_value", "tools[0].function.name"),
        (
            tool(json!({"name": "f", "parameters": []})),
            "invalid_type",
            "tools[0].function.parameters",
        ),
        (
            tool(json!({"name": "f", "parameters": {"type": "string"}})),
            "invalid_value",
            "tools[0].function.parameters.type",
        ),
        (tools(&["f", "g", "f"]), "invalid_value", "tools[2].function.name"),
        (tools(&["f"; 129]), "invalid_value", "tools"),
    ];
    for (offered, code, param) in cases {
        for path in ["/v1/chat/completions", "/apply-template"] {
            let answer = post(server.address, path, &ask(json!({"tools": offered}))).await;
            let error = answer.json()["error"].take();
            assert_eq!((answer.status, &error["code"]), (400, &json!(code)), "{offered}");
            assert_eq!(error["param"], param, "{offered}");
        }
    }
    let both = json!({"tools": tools(&["f"]), "functions": [function("f")]});
    let answer = chat(server.address, &ask(both)).await;
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("functions")));
    assert!(!fake.was_asked());
}

const THOUGHT: &[&str] = &["<think>", "\n", "Hm", ".", "\n", "</think>", "\n\n", "Yes", "."];

#[tokio::test(flavor = "multi_thread")]
async fn thoughts_are_told_apart_from_the_answer_and_counted() {
    let server = saying(THINKING, THOUGHT).await;
    let answer = chat(server.address, &ask(json!({}))).await.json();
    let message = &answer["choices"][0]["message"];
    assert_eq!(
        (&message["reasoning_content"], &message["content"]),
        (&json!("Hm."), &json!("Yes."))
    );
    // The account says that four tokens came in all.
    let details = &answer["usage"]["completion_tokens_details"];
    assert_eq!(details["reasoning_tokens"], 4);
    let fields = json!({"stream": true, "stream_options": {"include_usage": true}});
    let streamed = chat(server.address, &ask(fields)).await;
    insta::assert_snapshot!(steady(&streamed), @r#"
    {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null}
    {"choices":[{"index":0,"delta":{"reasoning_content":"Hm"},"logprobs":null,"finish_reason":null}],"usage":null}
    {"choices":[{"index":0,"delta":{"reasoning_content":"."},"logprobs":null,"finish_reason":null}],"usage":null}
    {"choices":[{"index":0,"delta":{"content":"Yes"},"logprobs":null,"finish_reason":null}],"usage":null}
    {"choices":[{"index":0,"delta":{"content":"."},"logprobs":null,"finish_reason":null}],"usage":null}
    {"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null}
    {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13,"prompt_tokens_details":{"cached_tokens":6},"completion_tokens_details":{"reasoning_tokens":4}}}
    [DONE]
    "#);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_begins_in_thoughts_where_the_prompt_opens_them() {
    let server = saying(THINKING, &["Hm.", "</think>", "Yes."]).await;
    let message = |fields: Value| async {
        chat(server.address, &ask(fields)).await.json()["choices"][0]["message"].take()
    };
    let opened = message(json!({"chat_template_kwargs": {"think_first": true}})).await;
    assert_eq!((&opened["reasoning_content"], &opened["content"]), (&json!("Hm."), &json!("Yes.")));
    let closed = message(json!({})).await;
    assert_eq!(closed["content"], "Hm.</think>Yes.");
    assert_eq!(closed.get("reasoning_content"), None);
}
