//! Answers that have to be something: every field that demands it, on a model that would say something else.

use std::sync::Arc;

use serde_json::{Value, json};
use toko_engine::{Constraint, Form};

use crate::client::{Answer, chat, post};
use crate::engine::{question, serve_embedded};
use crate::fake::{Fake, Server, ask, ask_to_continue};

const STORY: &str = "Tell me a story about a fox named Pip.";

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 9}, "count": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["name", "count"],
        "additionalProperties": false,
    })
}

fn satisfies(document: &Value) -> bool {
    let fields = document.as_object();
    fields.is_some_and(|fields| fields.keys().eq(["name", "count"]))
        && document["name"].as_str().is_some_and(|name| name.chars().count() <= 9)
        && document["count"].as_u64().is_some_and(|count| count <= 99)
}

/// Every way to demand a form, the field that is to blame for it, and the form.
fn demands() -> Vec<(Value, &'static str, Form)> {
    let object = || Form::Json(json!({"type": "object"}));
    let named = json!({"name": "pip", "strict": true, "schema": schema()});
    let regex = || Form::Regex("[a-f]{4}".to_owned());
    let choice = || Form::Choice(vec!["fox".to_owned(), "hare".to_owned()]);
    let lark = || Form::Grammar("start: \"a\" | \"b\"".to_owned());
    let grammar = "start: \"a\" | \"b\"";
    vec![
        (json!({"response_format": {"type": "json_object"}}), "response_format", object()),
        (
            json!({"response_format": {"type": "json_object", "schema": schema()}}),
            "response_format.schema",
            Form::Json(schema()),
        ),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": named}}),
            "response_format.json_schema.schema",
            Form::Json(schema()),
        ),
        (json!({"json_schema": schema()}), "json_schema", Form::Json(schema())),
        (json!({"guided_json": schema()}), "guided_json", Form::Json(schema())),
        (json!({"guided_json": schema().to_string()}), "guided_json", Form::Json(schema())),
        (
            json!({"structured_outputs": {"json": schema()}}),
            "structured_outputs.json",
            Form::Json(schema()),
        ),
        (
            json!({"structured_outputs": {"json_object": true}}),
            "structured_outputs.json_object",
            object(),
        ),
        (json!({"regex": "[a-f]{4}"}), "regex", regex()),
        (json!({"guided_regex": "[a-f]{4}"}), "guided_regex", regex()),
        (json!({"structured_outputs": {"regex": "[a-f]{4}"}}), "structured_outputs.regex", regex()),
        (json!({"guided_choice": ["fox", "hare"]}), "guided_choice", choice()),
        (
            json!({"structured_outputs": {"choice": ["fox", "hare"]}}),
            "structured_outputs.choice",
            choice(),
        ),
        (json!({"grammar": grammar}), "grammar", lark()),
        (json!({"guided_grammar": grammar}), "guided_grammar", lark()),
        (json!({"structured_outputs": {"grammar": grammar}}), "structured_outputs.grammar", lark()),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn every_field_that_demands_a_form_reaches_the_engine() {
    let fake = Arc::new(Fake::saying(&["x"]));
    let server = Server::start(fake.clone()).await;
    for (fields, _, form) in demands() {
        let expected = Some(Constraint::from(form));
        assert_eq!(chat(server.address, &ask(fields.clone())).await.status, 200, "{fields}");
        assert_eq!(
            fake.asked().1.constraint.map(|it| it.parts),
            expected.clone().map(|it| it.parts)
        );
        let answer =
            post(server.address, "/v1/completions", &ask_to_continue(fields.clone())).await;
        assert_eq!(answer.status, 200, "{fields}");
        assert_eq!(fake.continued()[0].1.constraint, expected, "{fields}");
    }
    for nothing in [
        json!({"response_format": {"type": "text"}}),
        json!({"response_format": null, "grammar": "", "json_schema": {}, "structured_outputs": {}}),
    ] {
        assert_eq!(chat(server.address, &ask(nothing)).await.status, 200);
        assert_eq!(fake.asked().1.constraint, None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn demands_that_are_incomplete_or_contradict_each_other_are_refused() {
    let server = Server::saying(&["x"]).await;
    let cases = [
        (json!({"response_format": {}}), "missing_required_parameter", "response_format.type"),
        (json!({"response_format": "json_object"}), "invalid_type", "response_format"),
        (json!({"response_format": {"type": "yaml"}}), "invalid_value", "response_format.type"),
        (
            json!({"response_format": {"type": "structural_tag"}}),
            "unsupported_parameter",
            "response_format.type",
        ),
        (
            json!({"response_format": {"type": "json_schema"}}),
            "missing_required_parameter",
            "response_format.json_schema",
        ),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}),
            "missing_required_parameter",
            "response_format.json_schema.schema",
        ),
        (json!({"guided_choice": "fox"}), "invalid_type", "guided_choice"),
        (json!({"guided_json": "{"}), "invalid_value", "guided_json"),
        (json!({"grammar": 3}), "invalid_type", "grammar"),
        (json!({"regex": "a", "guided_choice": ["a"]}), "invalid_value", "guided_choice"),
        (
            json!({"structured_outputs": {"regex": "a", "choice": ["a"]}}),
            "invalid_value",
            "structured_outputs.choice",
        ),
        (
            json!({"structured_outputs": {"structural_tag": "{}"}}),
            "unsupported_parameter",
            "structured_outputs.structural_tag",
        ),
    ];
    for (fields, code, param) in cases {
        for answer in [
            chat(server.address, &ask(fields.clone())).await,
            post(server.address, "/v1/completions", &ask_to_continue(fields.clone())).await,
        ] {
            let error = answer.json()["error"].take();
            assert_eq!((answer.status, &error["code"]), (400, &json!(code)), "{fields}");
            assert_eq!(error["param"], param, "{fields}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_enforced_is_refused_and_never_answered() {
    let server = serve_embedded().await;
    let broken = json!({"type": "array", "uniqueItems": true});
    let named = json!({"name": "x", "strict": true, "schema": broken});
    let tool = json!([{"type": "function", "function": {"name": "f", "strict": true, "parameters": {"not": {}}}}]);
    let cases = [
        (json!({"grammar": "root ::= this is (not valid"}), "grammar"),
        (json!({"regex": "a(?=b)"}), "regex"),
        (json!({"guided_choice": []}), "guided_choice"),
        (json!({"json_schema": {"type": "object", "required": 3}}), "json_schema"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": named}}),
            "response_format.json_schema.schema",
        ),
        (json!({"tools": tool}), "tools"),
        (json!({"tools": tool, "tool_choice": "required"}), "tools"),
    ];
    for (fields, param) in cases {
        let stream = json!({"stream": true});
        let mut streamed = question(STORY, fields.clone());
        streamed.as_object_mut().unwrap().extend(stream.as_object().unwrap().clone());
        let mut answers = vec![
            chat(server.address, &question(STORY, fields.clone())).await,
            chat(server.address, &streamed).await,
        ];
        if param != "tools" {
            answers.push(
                post(server.address, "/v1/completions", &ask_to_continue(fields.clone())).await,
            );
        }
        for answer in answers {
            let error = answer.json()["error"].take();
            assert_eq!(
                (answer.status, &error["code"]),
                (400, &json!("invalid_json_schema")),
                "{fields}"
            );
            assert_eq!(error["param"], param, "{fields}");
        }
    }
    assert_eq!(chat(server.address, &question(STORY, json!({"max_tokens": 2}))).await.status, 200);
}

fn message(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()["choices"][0]["message"].take()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_tells_stories_writes_what_a_schema_says() {
    let server = serve_embedded().await;
    let named = json!({"name": "pip", "strict": true, "schema": schema()});
    let format = json!({"type": "json_schema", "json_schema": named});
    for (temperature, seed) in [(0.0, 1), (1.3, 2), (1.3, 3), (1.3, 4)] {
        let fields = json!({"response_format": format, "temperature": temperature, "seed": seed});
        let answer = chat(server.address, &question(STORY, fields)).await;
        assert_eq!(answer.json()["choices"][0]["finish_reason"], "stop");
        let text = message(&answer)["content"].as_str().unwrap().to_owned();
        assert!(satisfies(&serde_json::from_str(&text).unwrap()), "{text}");
    }
    let fields = json!({"prompt": STORY, "json_schema": schema(), "max_tokens": 200});
    let answer = post(server.address, "/v1/completions", &ask_to_continue(fields)).await.json();
    let text = answer["choices"][0]["text"].as_str().unwrap();
    assert!(satisfies(&serde_json::from_str(text).unwrap()), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strict_pattern_is_enforced() {
    let server = serve_embedded().await;
    let schema = json!({"type": "string", "pattern": "^hello there indeed\\!$"});
    let named = json!({"name": "hello", "strict": true, "schema": schema});
    let fields = json!({"response_format": {"type": "json_schema", "json_schema": named}});
    let answer = chat(server.address, &question(STORY, fields)).await;
    assert_eq!(message(&answer)["content"], "\"hello there indeed!\"");
}

/// Two functions, of which only the first has parameters.
fn tools(strict: bool) -> Value {
    json!([
        {"type": "function", "function": {"name": "weather", "strict": strict, "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city", "days"], "additionalProperties": false,
        }}},
        {"type": "function", "function": {"name": "time", "strict": strict}},
    ])
}

fn is_legal(call: &Value) -> bool {
    let arguments: Value =
        serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    match call["function"]["name"].as_str() {
        Some("weather") => {
            ["Paris", "Rome"].iter().any(|city| arguments["city"] == *city)
                && arguments["days"].as_u64().is_some_and(|days| (1..=9).contains(&days))
        }
        Some("time") => arguments == json!({}),
        _ => false,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_required_are_made_with_legal_arguments() {
    let server = serve_embedded().await;
    for seed in 0..5 {
        let fields = json!({
            "tools": tools(false), "tool_choice": "required", "temperature": 1.2, "seed": seed, "max_tokens": 600,
        });
        let answer = chat(server.address, &question(STORY, fields)).await;
        let message = message(&answer);
        let calls = message["tool_calls"].as_array().unwrap();
        assert!(!calls.is_empty() && calls.iter().all(is_legal), "{message}");
        assert_eq!(message["content"], Value::Null);
        assert_eq!(answer.json()["choices"][0]["finish_reason"], "tool_calls");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_named_is_made_once() {
    let server = serve_embedded().await;
    for (choice, name) in [("weather", "weather"), ("time", "time")] {
        let choice = json!({"type": "function", "function": {"name": choice}});
        let fields = json!({"tools": tools(false), "tool_choice": choice});
        let message = message(&chat(server.address, &question(STORY, fields)).await);
        let calls = message["tool_calls"].as_array().unwrap();
        assert_eq!((calls.len(), &calls[0]["function"]["name"]), (1, &json!(name)), "{message}");
        assert!(is_legal(&calls[0]), "{message}");
    }
    let functions = json!([{"name": "time"}]);
    let fields = json!({"functions": functions, "function_call": {"name": "time"}});
    let message = message(&chat(server.address, &question(STORY, fields)).await);
    assert_eq!(message["function_call"], json!({"name": "time", "arguments": "{}"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn with_strict_tools_text_stays_free() {
    let server = serve_embedded().await;
    let plain = question(STORY, json!({"tools": tools(false), "max_tokens": 40}));
    let strict = question(STORY, json!({"tools": tools(true), "max_tokens": 40}));
    let plain = message(&chat(server.address, &plain).await);
    assert_eq!(plain, message(&chat(server.address, &strict).await));
    assert!(plain["content"].as_str().is_some_and(|text| text.len() > 60), "{plain}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_choice_of_tools_that_cannot_be_met_is_refused() {
    let server = serve_embedded().await;
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    let cases = [
        (json!({"tool_choice": "required"}), "invalid_value", "tool_choice"),
        (json!({"tool_choice": "required", "tools": []}), "invalid_value", "tool_choice"),
        (json!({"tool_choice": named("time")}), "invalid_value", "tool_choice"),
        (
            json!({"tool_choice": named("fly"), "tools": tools(false)}),
            "invalid_value",
            "tool_choice",
        ),
        (
            json!({"tool_choice": {"type": "function"}, "tools": tools(false)}),
            "missing_required_parameter",
            "tool_choice.function",
        ),
        (
            json!({"tool_choice": {"type": "function", "function": {}}}),
            "missing_required_parameter",
            "tool_choice.function.name",
        ),
        (
            json!({"tool_choice": {"type": "allowed_tools"}}),
            "unsupported_parameter",
            "tool_choice.type",
        ),
        (json!({"tool_choice": {}}), "missing_required_parameter", "tool_choice.type"),
        (
            json!({"function_call": {"name": "fly"}, "functions": [{"name": "time"}]}),
            "invalid_value",
            "function_call",
        ),
        (json!({"function_call": {"name": 3}}), "invalid_type", "function_call.name"),
    ];
    for (fields, code, param) in cases {
        let answer = chat(server.address, &question(STORY, fields.clone())).await;
        let error = answer.json()["error"].take();
        assert_eq!((answer.status, &error["code"]), (400, &json!(code)), "{fields}");
        assert_eq!(error["param"], param, "{fields}");
    }
}
