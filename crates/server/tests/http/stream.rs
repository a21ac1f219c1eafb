//! Streamed answers: their frames, their order and what keeps them alive.

use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use toko_engine::{Error, Event};

use crate::client::{Answer, Connection, chat};
use crate::fake::{Fake, Server, ask, summary, tell, text};

/// The frames, one a line, with what is the same in all chunks of an answer left out.
pub(crate) fn readable(answer: &Answer) -> String {
    let first = answer.frames()[0];
    let heading = &first[..first.find("\"choices\"").unwrap()];
    answer.frames().join("\n").replace(heading, "{")
}

/// The frames that are chunks.
pub(crate) fn parsed(answer: &Answer) -> Vec<Value> {
    let chunks = answer.frames().into_iter().filter(|frame| *frame != "[DONE]");
    chunks.map(|frame| serde_json::from_str(frame).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_role_texts_finish_and_done() {
    let server = Server::saying(&["Once", " upon"]).await;
    let answer = chat(server.address, &ask(json!({"stream": true}))).await;
    assert_eq!(answer.status, 200);
    insta::assert_snapshot!(readable(&answer), @r#"
    {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}
    {"choices":[{"index":0,"delta":{"content":"Once"},"logprobs":null,"finish_reason":null}]}
    {"choices":[{"index":0,"delta":{"content":" upon"},"logprobs":null,"finish_reason":null}]}
    {"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}
    [DONE]
    "#);
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_comes_in_a_chunk_of_its_own_when_asked_for() {
    let server = Server::saying(&["Once"]).await;
    let answer = chat(
        server.address,
        &ask(json!({"stream": true, "stream_options": {"include_usage": true}})),
    )
    .await;
    insta::assert_snapshot!(readable(&answer), @r#"
    {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null}
    {"choices":[{"index":0,"delta":{"content":"Once"},"logprobs":null,"finish_reason":null}],"usage":null}
    {"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null}
    {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13,"prompt_tokens_details":{"cached_tokens":6},"completion_tokens_details":{"reasoning_tokens":0}}}
    [DONE]
    "#);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_chunk_has_the_same_heading() {
    let server = Server::saying(&["a", "b", "c"]).await;
    let chunks = parsed(&chat(server.address, &ask(json!({"stream": true}))).await);
    assert_eq!(chunks.len(), 5);
    assert!(chunks[0]["id"].as_str().is_some_and(|id| id.starts_with("chatcmpl-")));
    assert!(chunks[0]["created"].as_u64().is_some_and(|seconds| seconds > 1_700_000_000));
    for chunk in &chunks {
        assert_eq!((&chunk["id"], &chunk["created"]), (&chunks[0]["id"], &chunks[0]["created"]));
        assert_eq!(
            (&chunk["object"], &chunk["model"]),
            (&json!("chat.completion.chunk"), &json!("org/model:q1"))
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_asks_proxies_not_to_hold_it_back() {
    let server = Server::saying(&["a"]).await;
    let answer = chat(server.address, &ask(json!({"stream": true}))).await;
    let expected = [
        ("content-type", "text/event-stream; charset=utf-8"),
        ("cache-control", "no-cache"),
        ("x-accel-buffering", "no"),
        ("transfer-encoding", "chunked"),
    ];
    for (name, value) in expected {
        assert_eq!(answer.header(name), Some(value), "{name}");
    }
    assert_eq!(answer.header("content-encoding"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn text_arrives_unchanged_whatever_its_characters() {
    let texts = &["héllo ", "世界 ", "😀", "\n\r\n", "\"\\\u{0}\u{7f}\u{2028}", "data: x\n\n"];
    let server = Server::saying(texts).await;
    let chunks = parsed(&chat(server.address, &ask(json!({"stream": true}))).await);
    let deltas: Vec<_> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(deltas[1..], texts[..]);
    let whole = chat(server.address, &ask(json!({}))).await.json();
    assert_eq!(whole["choices"][0]["message"]["content"], texts.concat());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_on_the_way_is_a_frame_before_done() {
    let server = Server::start(Arc::new(Fake::new(|mut sink| {
        tell(&mut sink, text("half"));
        tell(&mut sink, Event::Failed(Error::NotANumber { position: 3 }));
        Ok(())
    })))
    .await;
    let answer = chat(server.address, &ask(json!({"stream": true}))).await;
    assert_eq!(answer.status, 200);
    let frames = answer.frames();
    let error: Value = serde_json::from_str(frames[2]).unwrap();
    assert_eq!(
        (&error["error"]["code"], frames[3], frames.len()),
        (&json!("engine_error"), "[DONE]", 4)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_goes_away_ends_the_stream_with_an_error() {
    let server = Server::start(Arc::new(Fake::new(|mut sink| {
        tell(&mut sink, Event::Prefilled { tokens: 2 });
        Ok(())
    })))
    .await;
    let answer = chat(server.address, &ask(json!({"stream": true}))).await;
    let frames = answer.frames();
    let error: Value = serde_json::from_str(frames[1]).unwrap();
    assert_eq!((&error["error"]["code"], frames[2]), (&json!("internal_error"), "[DONE]"));
}

/// An engine that says nothing, or has computed a part of the prompt, until the returned sender is used.
fn held(is_computed: bool) -> (Fake, mpsc::Sender<()>) {
    let (release, released) = mpsc::channel();
    let released = Arc::new(Mutex::new(released));
    let fake = Fake::new(move |mut sink| {
        let released = Arc::clone(&released);
        thread::spawn(move || {
            tell(&mut sink, Event::Prefilled { tokens: 0 });
            if is_computed {
                tell(&mut sink, Event::Prefilled { tokens: 2 });
            }
            released.lock().unwrap().recv().unwrap();
            tell(&mut sink, text("late"));
            tell(&mut sink, Event::Finished(summary()));
        });
        Ok(())
    });
    (fake, release)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_before_anything_is_computed_is_an_answer_with_its_own_status() {
    let failing = Fake::new(|mut sink| {
        tell(&mut sink, Event::Prefilled { tokens: 0 });
        tell(&mut sink, Event::Failed(Error::NotANumber { position: 3 }));
        Ok(())
    });
    let gone = Fake::new(|mut sink| {
        tell(&mut sink, Event::Prefilled { tokens: 0 });
        Ok(())
    });
    for (fake, code) in [(failing, "engine_error"), (gone, "internal_error")] {
        let server = Server::start(Arc::new(fake)).await;
        let answer = chat(server.address, &ask(json!({"stream": true}))).await;
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (500, &json!(code)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_head_and_the_role_go_out_before_the_first_token() {
    let (fake, release) = held(true);
    let server = Server::start(Arc::new(fake)).await;
    let mut connection =
        Connection::post(server.address, "/v1/chat/completions", &ask(json!({"stream": true})))
            .await;
    connection.read_until("200 OK").await;
    connection.read_until("\"role\":\"assistant\"").await;
    release.send(()).unwrap();
    assert!(connection.answer().await.body.ends_with("data: [DONE]\n\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_stream_is_kept_alive_by_comments() {
    let (fake, release) = held(false);
    let server = Server::start_with(Arc::new(fake), |state| {
        state.limits.ping_every = Duration::from_millis(1);
    })
    .await;
    let mut connection =
        Connection::post(server.address, "/v1/chat/completions", &ask(json!({"stream": true})))
            .await;
    connection.read_until("\n:\n\n").await;
    release.send(()).unwrap();
    let answer = connection.answer().await;
    assert_eq!(answer.frames().len(), 4, "{}", answer.body);
}
