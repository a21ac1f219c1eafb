//! Several choices of one answer, what is told about their tokens, and the bias on them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use serde_json::{Value, json};
use toko_engine::{Error, Event, FinishReason, Params, Summary, TokenDetails, TokenLogprob};

use crate::client::{Answer, Connection, chat};
use crate::fake::{Fake, Server, ask, summary, tell, text};

fn finished(reason: FinishReason, completion_tokens: usize) -> Event {
    Event::Finished(Summary { reason, completion_tokens, ..summary() })
}

/// Two choices whose pieces come in turns and of which the second ends first.
fn two_choices() -> Arc<Fake> {
    Arc::new(Fake::playing(2, |sinks| {
        tell(&mut sinks[1], text("Two"));
        tell(&mut sinks[0], text("One"));
        tell(&mut sinks[1], text(" b"));
        tell(&mut sinks[1], finished(FinishReason::Length, 2));
        tell(&mut sinks[0], text(" a"));
        tell(&mut sinks[0], finished(FinishReason::Stop, 3));
    }))
}

/// The choices of each chunk and the usage, one chunk a line.
fn readable(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{}", answer.body);
    let frames = answer.frames().into_iter().map(|frame| match frame {
        "[DONE]" => frame.to_owned(),
        chunk => {
            let chunk: Value = serde_json::from_str(chunk).unwrap();
            format!("{} {}", chunk["choices"], chunk["usage"])
        }
    });
    frames.collect::<Vec<_>>().join("\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn choices_stand_in_order_and_share_one_account() {
    let server = Server::start(two_choices()).await;
    let body = chat(server.address, &ask(json!({"n": 2}))).await.json();
    let message = |content| json!({"role": "assistant", "content": content, "refusal": null});
    let expected = json!([
        {"index": 0, "message": message("One a"), "logprobs": null, "finish_reason": "stop"},
        {"index": 1, "message": message("Two b"), "logprobs": null, "finish_reason": "length"},
    ]);
    assert_eq!(body["choices"], expected);
    let usage = &body["usage"];
    assert_eq!(
        [&usage["prompt_tokens"], &usage["completion_tokens"], &usage["total_tokens"]],
        [9, 5, 14]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn streamed_choices_are_mixed_as_they_come_and_each_ends_once() {
    let server = Server::start(two_choices()).await;
    let fields = json!({"n": 2, "stream": true, "stream_options": {"include_usage": true}});
    let answer = chat(server.address, &ask(fields)).await;
    insta::assert_snapshot!(readable(&answer), @r#"
    [{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}] null
    [{"index":1,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}] null
    [{"index":1,"delta":{"content":"Two"},"logprobs":null,"finish_reason":null}] null
    [{"index":0,"delta":{"content":"One"},"logprobs":null,"finish_reason":null}] null
    [{"index":1,"delta":{"content":" b"},"logprobs":null,"finish_reason":null}] null
    [{"index":1,"delta":{},"logprobs":null,"finish_reason":"length"}] null
    [{"index":0,"delta":{"content":" a"},"logprobs":null,"finish_reason":null}] null
    [{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}] null
    [] {"prompt_tokens":9,"completion_tokens":5,"total_tokens":14,"prompt_tokens_details":{"cached_tokens":6},"completion_tokens_details":{"reasoning_tokens":0}}
    [DONE]
    "#);
}

/// The parameters of each choice that a request becomes.
async fn understood(fields: Value) -> Vec<Params> {
    let fake = Arc::new(Fake::saying(&["ok"]));
    let server = Server::start(fake.clone()).await;
    let answer = chat(server.address, &ask(fields)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    fake.all_params()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_choice_has_the_next_seed_and_nothing_else_of_its_own() {
    let asked = understood(json!({"n": 8, "seed": -2, "temperature": 1})).await;
    let seeds: Vec<_> = asked.iter().map(|params| params.sampling.seed).collect();
    let expected = [u64::MAX - 1, u64::MAX, 0, 1, 2, 3, 4, 5];
    assert_eq!(seeds, expected.map(Some));
    for params in &asked {
        let mut same = params.clone();
        same.sampling.seed = asked[0].sampling.seed;
        assert_eq!(same, asked[0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn logprobs_and_bias_reach_the_engine() {
    let told = async |fields| understood(fields).await[0].logprobs;
    assert_eq!(told(json!({"logprobs": true})).await, Some(0));
    assert_eq!(told(json!({"logprobs": true, "top_logprobs": 20})).await, Some(20));
    assert_eq!(told(json!({"logprobs": false, "top_logprobs": 0})).await, None);
    let asked = understood(json!({"logit_bias": {"299": -100, "0": 100, "7": 0.5}})).await;
    assert_eq!(asked[0].logit_bias, [(299, -100.0), (0, 100.0), (7, 0.5)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_choice_that_fails_ends_the_whole_answer() {
    let fake = || {
        Arc::new(Fake::playing(2, |sinks| {
            tell(&mut sinks[0], text("One"));
            tell(&mut sinks[0], finished(FinishReason::Stop, 3));
            tell(&mut sinks[1], Event::Failed(Error::NotANumber { position: 3 }));
        }))
    };
    let server = Server::start(fake()).await;
    let whole = chat(server.address, &ask(json!({"n": 2}))).await;
    assert_eq!((whole.status, &whole.json()["error"]["code"]), (500, &json!("engine_error")));
    let server = Server::start(fake()).await;
    let streamed = chat(server.address, &ask(json!({"n": 2, "stream": true}))).await;
    let frames = streamed.frames();
    let error: Value = serde_json::from_str(frames[frames.len() - 2]).unwrap();
    assert_eq!(
        (&error["error"]["code"], frames[frames.len() - 1]),
        (&json!("engine_error"), "[DONE]")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_choice_that_goes_away_is_missed() {
    let fake = Arc::new(Fake::playing(2, |sinks| {
        tell(&mut sinks[0], finished(FinishReason::Stop, 3));
    }));
    let server = Server::start(fake).await;
    let answer = chat(server.address, &ask(json!({"n": 2}))).await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (500, &json!("internal_error")));
}

/// An engine whose choices go on until nobody listens, which is counted down; the one at `refused` is refused.
fn endless_choices(refused: usize) -> (Fake, mpsc::Receiver<()>) {
    let (given_up, nobody_waits) = mpsc::channel();
    let asked = AtomicUsize::new(0);
    let fake = Fake::new(move |mut sink| {
        if asked.fetch_add(1, Ordering::Relaxed) == refused {
            return Err(Error::Closed);
        }
        let given_up = given_up.clone();
        thread::spawn(move || {
            while sink(Event::Prefilled { tokens: 1 }).is_continue() {
                thread::yield_now();
            }
            given_up.send(()).unwrap();
        });
        Ok(())
    });
    (fake, nobody_waits)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_ends_all_choices() {
    let (fake, nobody_waits) = endless_choices(usize::MAX);
    let server = Server::start(Arc::new(fake)).await;
    let request = ask(json!({"n": 3, "stream": true}));
    let mut connection = Connection::post(server.address, "/v1/chat/completions", &request).await;
    connection.read_until("\"index\":2").await;
    drop(connection);
    for _ in 0..3 {
        nobody_waits.recv().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_choice_that_is_refused_ends_those_before_it() {
    let (fake, nobody_waits) = endless_choices(2);
    let server = Server::start(Arc::new(fake)).await;
    let answer = chat(server.address, &ask(json!({"n": 3, "stream": true}))).await;
    assert_eq!(answer.status, 503);
    for _ in 0..2 {
        nobody_waits.recv().unwrap();
    }
}

fn token(bytes: &[u8], logprob: f32) -> TokenLogprob {
    TokenLogprob { id: 1, bytes: bytes.to_vec(), logprob }
}

/// An engine that tells about the tokens of "Hi😀".
fn telling() -> Arc<Fake> {
    Arc::new(Fake::playing(1, |sinks| {
        let first = TokenDetails {
            token: token(b"Hi", -0.25),
            top: vec![token(b"Hi", -0.25), token(b"<eos>", f32::NEG_INFINITY)],
        };
        let half = |bytes| TokenDetails { token: token(bytes, -8.0), top: Vec::new() };
        let both = vec![half(b"\xF0\x9F"), half(b"\x98\x80")];
        let piece = |text: &str, tokens| Event::Text { text: text.to_owned(), tokens };
        tell(&mut sinks[0], piece("Hi", vec![first]));
        tell(&mut sinks[0], piece("", Vec::new()));
        tell(&mut sinks[0], piece("😀", both));
        tell(&mut sinks[0], piece("!", Vec::new()));
        tell(&mut sinks[0], finished(FinishReason::Stop, 5));
    }))
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_told_in_the_public_shape_with_their_real_bytes() {
    let server = Server::start(telling()).await;
    let body =
        chat(server.address, &ask(json!({"logprobs": true, "top_logprobs": 2}))).await.json();
    let hi = json!({"token": "Hi", "bytes": [72, 105], "logprob": -0.25});
    let eos = json!({"token": "<eos>", "bytes": [60, 101, 111, 115, 62], "logprob": -9999.0});
    let mut first = hi.clone();
    first["top_logprobs"] = json!([hi, eos]);
    let half = |text: &str, bytes: [u8; 2]| json!({"token": text, "bytes": bytes, "logprob": -8.0, "top_logprobs": []});
    let content =
        json!([first, half("\u{FFFD}", [0xF0, 0x9F]), half("\u{FFFD}\u{FFFD}", [0x98, 0x80])]);
    let choice = &body["choices"][0];
    assert_eq!(choice["logprobs"], json!({"content": content, "refusal": null}));
    assert_eq!(choice["message"]["content"], "Hi😀!");
}

#[tokio::test(flavor = "multi_thread")]
async fn streamed_tokens_come_with_their_text() {
    let server = Server::start(telling()).await;
    let fields = json!({"logprobs": true, "top_logprobs": 2, "stream": true});
    let answer = chat(server.address, &ask(fields)).await;
    let mut seen = Vec::new();
    for frame in answer.frames().into_iter().filter(|frame| *frame != "[DONE]") {
        let chunk: Value = serde_json::from_str(frame).unwrap();
        let choice = &chunk["choices"][0];
        let count = choice["logprobs"]["content"].as_array().map(Vec::len);
        seen.push((choice["delta"]["content"].as_str().map(str::to_owned), count));
    }
    let piece = |text: &str, count| (Some(text.to_owned()), count);
    let expected = [
        piece("", None),
        piece("Hi", Some(1)),
        piece("😀", Some(2)),
        piece("!", Some(0)),
        (None, None),
    ];
    assert_eq!(seen, expected);
}
