//! Texts and tokens that are continued, with a scripted engine and with the real one.

use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use toko_engine::{Error, Event, FinishReason, Opening, Params, Sampling, Summary};
use toko_server::Sink;

use crate::client::{Answer, Connection, post};
use crate::engine::serve_embedded;
use crate::errors::check;
use crate::fake::{Fake, Server, ask_to_continue, sampling, summary, tell, text};
use crate::stream::{parsed, readable};

const COMPLETIONS: &str = "/v1/completions";

async fn complete(server: &Server, fields: Value) -> Answer {
    post(server.address, COMPLETIONS, &ask_to_continue(fields)).await
}

/// Returns the tokens and the parameters that a request becomes, in the order of its prompts.
async fn understood(fields: Value) -> Vec<(Vec<u32>, Params)> {
    let fake = Arc::new(Fake::saying(&["ok"]));
    let server = Server::start(fake.clone()).await;
    let answer = complete(&server, fields).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let prompts = fake.continued().into_iter().map(|(prompt, params)| {
        assert_eq!(prompt.opening, Opening::Continuation);
        (prompt.tokens, params)
    });
    prompts.collect()
}

/// An engine that waits until `prompts` are there and then hands all their sinks to `play`.
fn together(prompts: usize, play: impl Fn(Vec<Sink>) + Send + Sync + 'static) -> Fake {
    let waiting = Mutex::new(Vec::new());
    Fake::new(move |sink| {
        let mut waiting = waiting.lock().unwrap();
        waiting.push(sink);
        if waiting.len() == prompts {
            play(std::mem::take(&mut *waiting));
        }
        Ok(())
    })
}

/// Answers three prompts with their texts mixed and their ends in another order.
fn mixed() -> Fake {
    together(3, |mut sinks| {
        tell(&mut sinks[2], text("c1"));
        tell(&mut sinks[0], text("a1"));
        tell(&mut sinks[2], Event::Finished(summary()));
        tell(&mut sinks[0], text("a2"));
        tell(&mut sinks[1], text("b1"));
        let cut = Summary {
            reason: FinishReason::Length,
            prompt_tokens: 1,
            cached_tokens: 0,
            completion_tokens: 2,
            ..summary()
        };
        tell(&mut sinks[1], Event::Finished(cut));
        tell(&mut sinks[0], Event::Finished(summary()));
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_completion_has_the_public_shape() {
    let server = Server::saying(&[" upon", " a time…"]).await;
    let answer = complete(&server, json!({})).await;
    assert_eq!(answer.status, 200);
    let mut body = answer.json();
    let id = body["id"].take();
    assert!(id.as_str().is_some_and(|id| id.starts_with("cmpl-") && id.len() == 37), "{id}");
    assert!(body["created"].take().as_u64().is_some_and(|seconds| seconds > 1_700_000_000));
    let fingerprint = body["system_fingerprint"].take();
    assert_eq!(fingerprint, concat!("tokonoma-", env!("CARGO_PKG_VERSION")));
    insta::assert_snapshot!(format!("{body:#}"), @r#"
    {
      "id": null,
      "object": "text_completion",
      "created": null,
      "model": "org/model:q1",
      "system_fingerprint": null,
      "choices": [
        {
          "text": " upon a time…",
          "index": 0,
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
async fn a_streamed_completion_is_texts_finish_and_done() {
    let server = Server::saying(&[" upon", "", " a"]).await;
    let answer = complete(&server, json!({"stream": true})).await;
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (200, Some("text/event-stream; charset=utf-8"))
    );
    insta::assert_snapshot!(readable(&answer), @r#"
    {"choices":[{"text":" upon","index":0,"logprobs":null,"finish_reason":null}]}
    {"choices":[{"text":" a","index":0,"logprobs":null,"finish_reason":null}]}
    {"choices":[{"text":"","index":0,"logprobs":null,"finish_reason":"stop"}]}
    [DONE]
    "#);
    let chunks = parsed(&answer);
    assert!(chunks[0]["id"].as_str().is_some_and(|id| id.starts_with("cmpl-")));
    for chunk in &chunks {
        assert_eq!((&chunk["id"], &chunk["created"]), (&chunks[0]["id"], &chunks[0]["created"]));
        assert_eq!(
            (&chunk["object"], &chunk["model"]),
            (&json!("text_completion"), &json!("org/model:q1"))
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_prompts_are_choices_by_index_whichever_ends_first() {
    let prompts = json!({"prompt": ["a", "b", "c"]});
    let answer = complete(&Server::start(Arc::new(mixed())).await, prompts).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let body = answer.json();
    assert_eq!(
        body["choices"],
        json!([
            {"text": "a1a2", "index": 0, "logprobs": null, "finish_reason": "stop"},
            {"text": "b1", "index": 1, "logprobs": null, "finish_reason": "length"},
            {"text": "c1", "index": 2, "logprobs": null, "finish_reason": "stop"},
        ])
    );
    let usage = &body["usage"];
    let counts =
        ["prompt_tokens", "completion_tokens", "total_tokens"].map(|key| usage[key].as_u64());
    assert_eq!(counts, [Some(9 + 1 + 9), Some(4 + 2 + 4), Some(29)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_several_prompts_mixes_them_and_ends_with_one_account() {
    let server = Server::start(Arc::new(mixed())).await;
    let fields = json!({
        "prompt": ["a", "b", "c"], "echo": true, "stream": true, "stream_options": {"include_usage": true},
    });
    insta::assert_snapshot!(readable(&complete(&server, fields).await), @r#"
    {"choices":[{"text":"a","index":0,"logprobs":null,"finish_reason":null}],"usage":null}
    {"choices":[{"text":"b","index":1,"logprobs":null,"finish_reason":null}],"usage":null}
    {"choices":[{"text":"c","index":2,"logprobs":null,"finish_reason":null}],"usage":null}
    {"choices":[{"text":"c1","index":2,"logprobs":null,"finish_reason":null}],"usage":null}
    {"choices":[{"text":"a1","index":0,"logprobs":null,"finish_reason":null}],"usage":null}
    {"choices":[{"text":"","index":2,"logprobs":null,"finish_reason":"stop"}],"usage":null}
    {"choices":[{"text":"a2","index":0,"logprobs":null,"finish_reason":null}],"usage":null}
    {"choices":[{"text":"b1","index":1,"logprobs":null,"finish_reason":null}],"usage":null}
    {"choices":[{"text":"","index":1,"logprobs":null,"finish_reason":"length"}],"usage":null}
    {"choices":[{"text":"","index":0,"logprobs":null,"finish_reason":"stop"}],"usage":null}
    {"choices":[],"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29,"prompt_tokens_details":{"cached_tokens":12},"completion_tokens_details":{"reasoning_tokens":0}}}
    [DONE]
    "#);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_shape_of_prompt_reaches_the_engine_as_its_tokens() {
    let golden = toko_fixtures::embedded_model_golden();
    let of = |index: usize| {
        let ids = golden[index]["prompt_ids"].as_array().unwrap().iter();
        let ids: Vec<u32> = ids.map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect();
        (golden[index]["prompt"].as_str().unwrap(), ids)
    };
    let ((story, story_ids), (chat, chat_ids)) = (of(0), of(2));
    let cases = [
        (json!(story), vec![&story_ids]),
        (json!([story]), vec![&story_ids]),
        (json!([chat, story]), vec![&chat_ids, &story_ids]),
        (json!(story_ids), vec![&story_ids]),
        (json!([chat_ids, story_ids]), vec![&chat_ids, &story_ids]),
    ];
    for (prompt, expected) in cases {
        let understood = understood(json!({"prompt": prompt})).await;
        assert_eq!(
            understood.iter().map(|(tokens, _)| tokens).collect::<Vec<_>>(),
            expected,
            "{prompt}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_that_says_nothing_gets_the_defaults_and_sixteen_tokens() {
    let nothing = Params {
        sampling: sampling(),
        max_tokens: Some(16),
        stop: Vec::new(),
        constraint: None,
        logit_bias: Vec::new(),
        logprobs: None,
        prompt_logprobs: None,
    };
    let ignored = json!({
        "echo": null, "stop": null, "stream": null, "suffix": null, "best_of": null, "logprobs": null, "n": null,
        "logit_bias": null, "max_tokens": null, "user": "u", "foo": {"x": 1}, "grammar": null,
    });
    let harmless = json!({
        "echo": false, "suffix": "", "best_of": 1, "n": 1, "logit_bias": {}, "stream_options": {"include_usage": true},
        "response_format": {"type": "text"}, "stop": [],
    });
    for fields in [json!({}), ignored, harmless] {
        let understood = understood(fields.clone()).await;
        assert_eq!((understood.len(), &understood[0].1), (1, &nothing), "{fields}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_of_a_completion_reach_the_engine_with_each_prompt() {
    let understood = understood(json!({
        "prompt": ["a", "b"], "temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0.25, "repeat_penalty": 1.5,
        "frequency_penalty": -2, "presence_penalty": 2, "seed": 3, "max_tokens": 0, "stop": "end",
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
        seed: Some(3),
    };
    let expected = Params {
        sampling,
        max_tokens: Some(0),
        stop: vec!["end".to_owned()],
        constraint: None,
        logit_bias: Vec::new(),
        logprobs: None,
        prompt_logprobs: None,
    };
    assert_eq!(understood.len(), 2);
    assert!(understood.iter().all(|(_, params)| *params == expected), "{understood:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_of_a_completion_are_refused_by_name_before_the_engine_hears_of_them() {
    let cases = [
        ("missing_required_parameter", json!({"model": null}), "model"),
        ("missing_required_parameter", json!({"prompt": null}), "prompt"),
        ("invalid_value", json!({"prompt": []}), "prompt"),
        ("invalid_value", json!({"prompt": vec!["a"; 129]}), "prompt"),
        ("invalid_value", json!({"prompt": [999_999]}), "prompt[0]"),
        ("invalid_value", json!({"prompt": [1, -1]}), "prompt[1]"),
        ("invalid_value", json!({"prompt": [1, 1u64 << 32]}), "prompt[1]"),
        ("invalid_value", json!({"prompt": [u64::MAX]}), "prompt[0]"),
        ("invalid_value", json!({"prompt": [[1], [1, 2, 999_999]]}), "prompt[1][2]"),
        ("invalid_type", json!({"prompt": 1}), "prompt"),
        ("invalid_type", json!({"prompt": {"text": "a"}}), "prompt"),
        ("invalid_type", json!({"prompt": [1.5]}), "prompt[0]"),
        ("invalid_type", json!({"prompt": [null]}), "prompt[0]"),
        ("invalid_type", json!({"prompt": ["a", 1]}), "prompt[1]"),
        ("invalid_type", json!({"prompt": [1, "a"]}), "prompt[1]"),
        ("invalid_type", json!({"prompt": ["a", [1]]}), "prompt[1]"),
        ("invalid_type", json!({"prompt": [[1], ["a"]]}), "prompt[1][0]"),
        ("invalid_type", json!({"prompt": [["a"]]}), "prompt[0][0]"),
        ("invalid_type", json!({"echo": "yes"}), "echo"),
        ("invalid_type", json!({"max_tokens": 1.5}), "max_tokens"),
        ("invalid_type", json!({"temperature": "hot"}), "temperature"),
        ("invalid_value", json!({"max_tokens": -1}), "max_tokens"),
        ("invalid_value", json!({"temperature": 3}), "temperature"),
        ("invalid_value", json!({"stop": ""}), "stop"),
        ("invalid_value", json!({"n": 0}), "n"),
        ("invalid_value", json!({"n": 9}), "n"),
        ("invalid_value", json!({"n": 8, "prompt": vec!["a"; 17]}), "n"),
        ("invalid_value", json!({"n": 3, "best_of": 2}), "best_of"),
        ("invalid_value", json!({"logit_bias": {"5": 101}}), "logit_bias.5"),
        ("invalid_value", json!({"logit_bias": {"999999": 1}}), "logit_bias.999999"),
        ("invalid_type", json!({"logit_bias": [5, 1]}), "logit_bias"),
        ("invalid_type", json!({"logprobs": true}), "logprobs"),
        ("invalid_value", json!({"best_of": 21}), "best_of"),
        ("invalid_value", json!({"logprobs": 6}), "logprobs"),
        ("unsupported_parameter", json!({"best_of": 2}), "best_of"),
        ("unsupported_parameter", json!({"suffix": "x"}), "suffix"),
        ("unsupported_parameter", json!({"ignore_eos": true}), "ignore_eos"),
    ];
    let fake = Arc::new(Fake::saying(&["never"]));
    let server = Server::start(fake.clone()).await;
    for (code, fields, param) in cases {
        check(&complete(&server, fields.clone()).await, 400, code, Some(param));
        let mut streamed = fields;
        streamed["stream"] = json!(true);
        check(&complete(&server, streamed).await, 400, code, Some(param));
    }
    let unknown = complete(&server, json!({"model": "nope"})).await;
    check(&unknown, 404, "model_not_found", Some("model"));
    assert!(!fake.was_asked());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_the_engine_refuses_is_named_and_the_others_are_given_up() {
    let (given_up, mut nobody_waits) = mpsc::unbounded_channel();
    let first = Mutex::new(true);
    let server = Server::start(Arc::new(Fake::new(move |sink| {
        if !std::mem::take(&mut *first.lock().unwrap()) {
            return Err(Error::ContextExceeded { prompt_tokens: 80, context_tokens: 64 });
        }
        work_until_given_up(sink, given_up.clone());
        Ok(())
    })))
    .await;
    let answer = complete(&server, json!({"prompt": ["short", "long"], "stream": true})).await;
    let error = check(&answer, 400, "context_length_exceeded", Some("prompt[1]"));
    assert_eq!((&error["n_prompt_tokens"], &error["n_ctx"]), (&json!(80), &json!(64)));
    assert_eq!(nobody_waits.recv().await, Some(()));
}

/// Works without end, until the sink tells that nobody waits any more.
fn work_until_given_up(mut sink: Sink, given_up: mpsc::UnboundedSender<()>) {
    thread::spawn(move || {
        while sink(Event::Prefilled { tokens: 1 }).is_continue() {
            thread::yield_now();
        }
        given_up.send(()).unwrap();
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_ends_every_choice() {
    let (given_up, mut nobody_waits) = mpsc::unbounded_channel();
    let server = Server::start(Arc::new(together(2, move |sinks| {
        for mut sink in sinks {
            tell(&mut sink, text("more"));
            work_until_given_up(sink, given_up.clone());
        }
    })))
    .await;
    let request = ask_to_continue(json!({"prompt": ["a", "b"], "stream": true}));
    let mut connection = Connection::post(server.address, COMPLETIONS, &request).await;
    connection.read_until("more").await;
    drop(connection);
    assert_eq!((nobody_waits.recv().await, nobody_waits.recv().await), (Some(()), Some(())));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_choice_that_fails_ends_the_answer() {
    let failing = || {
        Arc::new(together(2, |mut sinks| {
            tell(&mut sinks[0], text("half"));
            tell(&mut sinks[0], Event::Finished(summary()));
            tell(&mut sinks[1], Event::Failed(Error::NotANumber { position: 3 }));
        }))
    };
    let prompts = json!({"prompt": ["a", "b"]});
    let whole = complete(&Server::start(failing()).await, prompts).await;
    check(&whole, 500, "engine_error", None);
    let fields =
        json!({"prompt": ["a", "b"], "stream": true, "stream_options": {"include_usage": true}});
    let streamed = complete(&Server::start(failing()).await, fields).await;
    let frames = streamed.frames();
    let [.., error, done] = frames.as_slice() else { panic!("{frames:?}") };
    let error: Value = serde_json::from_str(error).unwrap();
    assert_eq!(
        (&error["error"]["code"], *done, frames.len()),
        (&json!("engine_error"), "[DONE]", 4)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_choice_that_goes_away_is_reported_when_the_others_are_complete() {
    let leaving = || {
        Arc::new(together(2, |mut sinks| {
            tell(&mut sinks[1], text("b"));
            tell(&mut sinks[1], Event::Finished(summary()));
        }))
    };
    let whole = complete(&Server::start(leaving()).await, json!({"prompt": ["a", "b"]})).await;
    check(&whole, 500, "internal_error", None);
    let fields = json!({"prompt": ["a", "b"], "stream": true});
    let streamed = complete(&Server::start(leaving()).await, fields).await;
    let frames = streamed.frames();
    assert!(frames[2].contains("internal_error"), "{frames:?}");
    assert_eq!((frames.len(), frames[3]), (4, "[DONE]"));
}

/// A golden prompt whose greedy continuation has no near ties.
struct Known {
    prompt: String,
    ids: Vec<u64>,
    text: String,
    tokens: usize,
}

fn known() -> Vec<Known> {
    let golden = toko_fixtures::embedded_model_golden();
    let clear = golden.as_array().unwrap().iter().filter(|golden| {
        golden["margins"].as_array().unwrap().iter().all(|margin| margin.as_f64() > Some(2.0))
    });
    let known: Vec<_> = clear
        .map(|golden| Known {
            prompt: golden["prompt"].as_str().unwrap().to_owned(),
            ids: golden["prompt_ids"]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(Value::as_u64)
                .collect(),
            text: golden["greedy_text"].as_str().unwrap().replace("<|im_end|>", ""),
            tokens: golden["greedy_ids"].as_array().unwrap().len(),
        })
        .collect();
    assert!(known.len() >= 3);
    known
}

/// Asks the embedded model for the most likely continuation.
async fn continued(server: &Server, mut fields: Value) -> Value {
    let greedy = json!({
        "temperature": 0, "repeat_penalty": 1, "frequency_penalty": 0, "presence_penalty": 0,
    });
    let Value::Object(greedy) = greedy else { unreachable!("an object") };
    fields.as_object_mut().unwrap().extend(greedy);
    let answer = complete(server, fields).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_and_tokens_are_continued_as_the_reference_continues_them() {
    let server = serve_embedded().await;
    let known = known();
    let prompts: Vec<_> = known.iter().map(|known| &known.prompt).collect();
    let ids: Vec<_> = known.iter().map(|known| &known.ids).collect();
    for prompt in [json!(prompts), json!(ids)] {
        let body = continued(&server, json!({"prompt": prompt, "max_tokens": 100})).await;
        let choices = body["choices"].as_array().unwrap();
        assert_eq!(choices.len(), known.len());
        for (index, (choice, known)) in choices.iter().zip(&known).enumerate() {
            assert_eq!((&choice["index"], &choice["text"]), (&json!(index), &json!(known.text)));
            assert_eq!(choice["finish_reason"], "stop");
        }
        let asked: usize = known.iter().map(|known| known.ids.len()).sum();
        let given: usize = known.iter().map(|known| known.tokens).sum();
        assert_eq!(
            (&body["usage"]["prompt_tokens"], &body["usage"]["completion_tokens"]),
            (&json!(asked), &json!(given))
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_echo_is_the_prompt_itself_before_the_answer() {
    let server = serve_embedded().await;
    let known = &known()[0];
    let whole = format!("{}{}", known.prompt, known.text);
    for prompt in [json!(known.prompt), json!(known.ids)] {
        let body =
            continued(&server, json!({"prompt": prompt, "echo": true, "max_tokens": 100})).await;
        assert_eq!(body["choices"][0]["text"], whole);
        let body =
            continued(&server, json!({"prompt": prompt, "echo": true, "max_tokens": 0})).await;
        let choice = &body["choices"][0];
        assert_eq!(
            (&choice["text"], &choice["finish_reason"]),
            (&json!(known.prompt), &json!("length"))
        );
        assert_eq!(body["usage"]["completion_tokens"], 0);
        let streamed =
            complete(&server, json!({"prompt": prompt, "echo": true, "stream": true})).await;
        assert_eq!(parsed(&streamed)[0]["choices"][0]["text"], known.prompt);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_texts_and_the_default_limit_end_a_completion() {
    let server = serve_embedded().await;
    let known = known().into_iter().find(|known| known.tokens > 20).unwrap();
    let body = continued(&server, json!({"prompt": known.prompt})).await;
    let choice = &body["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &body["usage"]["completion_tokens"]),
        (&json!("length"), &json!(16))
    );
    let text = choice["text"].as_str().unwrap();
    assert!(text.len() > 16 && known.text.starts_with(text) && text != known.text, "{text}");
    // A stop text that is in the prompt too, which is repeated and never searched.
    let word = known.text.split(' ').nth(2).unwrap();
    let fields = json!({"prompt": known.prompt, "max_tokens": 100, "echo": true, "stop": [word]});
    let body = continued(&server, fields).await;
    let before = &known.text[..known.text.find(word).unwrap()];
    assert!(known.prompt.contains(word), "{word}");
    assert_eq!(body["choices"][0]["text"], format!("{}{before}", known.prompt));
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_without_tokens_and_prompts_beyond_the_context_are_refused() {
    let server = serve_embedded().await;
    let long = "word ".repeat(5000);
    for (prompt, param) in [(json!(long), "prompt"), (json!(["short", long]), "prompt[1]")] {
        let answer = complete(&server, json!({"prompt": prompt})).await;
        let error = check(&answer, 400, "context_length_exceeded", Some(param));
        assert_eq!(error["n_ctx"], 1024);
        assert!(error["n_prompt_tokens"].as_u64().is_some_and(|tokens| tokens > 5000), "{error}");
    }
    for (prompt, param) in [(json!(""), "prompt"), (json!([[1], []]), "prompt[1]")] {
        check(
            &complete(&server, json!({"prompt": prompt})).await,
            400,
            "invalid_value",
            Some(param),
        );
    }
}
