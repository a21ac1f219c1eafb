//! What a completion tells about its tokens, and several completions of one prompt.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use toko_engine::{Event, FinishReason, Summary, TokenDetails, TokenLogprob};

use crate::client::{Answer, post};
use crate::engine::serve_embedded;
use crate::fake::{Fake, Server, ask_to_continue, summary, tell, text};
use crate::stream::{parsed, readable};

async fn complete(server: &Server, fields: Value) -> Answer {
    let answer = post(server.address, "/v1/completions", &ask_to_continue(fields)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer
}

fn token(id: u32, text: &str, logprob: f32) -> TokenLogprob {
    TokenLogprob { id, bytes: text.as_bytes().to_vec(), logprob }
}

fn details(id: u32, text: &str) -> TokenDetails {
    let rival = token(9, "?", -0.25);
    TokenDetails { token: token(id, text, -1.5), top: vec![rival] }
}

/// Tells two parts of a prompt and an answer of which one token waits for its text.
fn telling() -> Fake {
    Fake::playing(1, |sinks| {
        let sink = &mut sinks[0];
        tell(sink, Event::Prefilled { tokens: 2 });
        tell(sink, Event::Prompt { tokens: vec![details(2, "!")] });
        tell(sink, Event::Prompt { tokens: vec![details(3, "é")] });
        tell(sink, Event::Text { text: " x".to_owned(), tokens: vec![details(4, " x")] });
        tell(sink, Event::Text { text: String::new(), tokens: Vec::new() });
        let last = vec![details(5, "😀"), details(6, "<end>")];
        tell(sink, Event::Text { text: "😀".to_owned(), tokens: last });
        tell(sink, Event::Finished(summary()));
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_told_in_four_arrays_and_the_first_of_the_prompt_without_a_probability() {
    let server = Server::start(Arc::new(telling())).await;
    let fields = json!({"prompt": "ab!é", "echo": true, "logprobs": 1});
    let choice = complete(&server, fields).await.json()["choices"][0].clone();
    assert_eq!(
        choice,
        json!({
            "text": "ab!é x😀", "index": 0, "finish_reason": "stop",
            "logprobs": {
                "tokens": ["ab", "!", "é", " x", "😀", "<end>"],
                "token_logprobs": [null, -1.5, -1.5, -1.5, -1.5, -1.5],
                "top_logprobs": [
                    null, {"?": -0.25, "!": -1.5}, {"?": -0.25, "é": -1.5}, {"?": -0.25, " x": -1.5},
                    {"?": -0.25, "😀": -1.5}, {"?": -0.25, "<end>": -1.5},
                ],
                "text_offset": [0, 2, 3, 4, 6, 7],
            },
        })
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_tells_the_prompt_before_the_answer_and_each_token_with_its_text() {
    let server = Server::start(Arc::new(telling())).await;
    let fields = json!({"prompt": "ab!é", "echo": true, "logprobs": 0, "stream": true});
    insta::assert_snapshot!(readable(&complete(&server, fields).await), @r#"
    {"choices":[{"text":"ab!é","index":0,"logprobs":{"tokens":["ab","!","é"],"token_logprobs":[null,-1.5,-1.5],"top_logprobs":[null,{"?":-0.25,"!":-1.5},{"?":-0.25,"é":-1.5}],"text_offset":[0,2,3]},"finish_reason":null}]}
    {"choices":[{"text":" x","index":0,"logprobs":{"tokens":[" x"],"token_logprobs":[-1.5],"top_logprobs":[{"?":-0.25," x":-1.5}],"text_offset":[4]},"finish_reason":null}]}
    {"choices":[{"text":"😀","index":0,"logprobs":{"tokens":["😀","<end>"],"token_logprobs":[-1.5,-1.5],"top_logprobs":[{"?":-0.25,"😀":-1.5},{"?":-0.25,"<end>":-1.5}],"text_offset":[6,7]},"finish_reason":null}]}
    {"choices":[{"text":"","index":0,"logprobs":null,"finish_reason":"stop"}]}
    [DONE]
    "#);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_engine_is_asked_about_the_prompt_only_where_it_is_repeated() {
    for (fields, told, prompt) in [
        (json!({"logprobs": 3}), Some(3), None),
        (json!({"logprobs": 0, "echo": true}), Some(0), Some(0)),
        (json!({"echo": true}), None, None),
    ] {
        let fake = Arc::new(Fake::saying(&["ok"]));
        let server = Server::start(fake.clone()).await;
        complete(&server, fields).await;
        let (_, params) = fake.continued().remove(0);
        assert_eq!((params.logprobs, params.prompt_logprobs), (told, prompt));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_prompt_gets_its_choices_in_order_and_is_counted_once() {
    let number = Mutex::new(0);
    let fake = Arc::new(Fake::new(move |mut sink| {
        let mut number = number.lock().unwrap();
        *number += 1;
        tell(&mut sink, text(["a", "b", "c", "d"][*number - 1]));
        let end = Summary { reason: FinishReason::Length, cached_tokens: *number, ..summary() };
        tell(&mut sink, Event::Finished(end));
        Ok(())
    }));
    let server = Server::start(fake.clone()).await;
    let fields = json!({"prompt": ["x", "y"], "n": 2, "seed": 40, "logit_bias": {"7": -3}});
    let body = complete(&server, fields).await.json();
    let choices = body["choices"].as_array().unwrap().iter();
    let told: Vec<_> = choices.map(|choice| (&choice["index"], &choice["text"])).collect();
    let indices = [0, 1, 2, 3].map(|index| json!(index));
    let texts = ["a", "b", "c", "d"].map(|text| json!(text));
    assert_eq!(told, indices.iter().zip(&texts).collect::<Vec<_>>());
    let asked = fake.continued();
    let seeds: Vec<_> = asked.iter().map(|(_, params)| params.sampling.seed).collect();
    assert_eq!(seeds, [Some(40), Some(41), Some(40), Some(41)]);
    assert!(asked.iter().all(|(_, params)| params.logit_bias == [(7, -3.0)]));
    assert!(asked[0].0 == asked[1].0 && asked[0].0 != asked[2].0);
    let usage = &body["usage"];
    assert_eq!(
        (&usage["prompt_tokens"], &usage["completion_tokens"]),
        (&json!(9 + 9), &json!(4 * 4))
    );
    // The least of each prompt's choices: what one computed another may have re-used.
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 1 + 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tokens_of_an_echo_are_those_of_the_text_however_it_is_delivered() {
    let server = serve_embedded().await;
    let golden = toko_fixtures::embedded_model_golden();
    for prompt in golden.as_array().unwrap() {
        let ids = prompt["prompt_ids"].as_array().unwrap();
        for asked in [&prompt["prompt"], &prompt["prompt_ids"]] {
            // As evaluation harnesses ask: every token of the text, and one more.
            let fields = json!({
                "prompt": asked, "echo": true, "logprobs": 1, "max_tokens": 1, "temperature": 0,
            });
            let whole = complete(&server, fields.clone()).await.json()["choices"][0].clone();
            let told = &whole["logprobs"];
            let counts = ["tokens", "token_logprobs", "top_logprobs", "text_offset"]
                .map(|list| told[list].as_array().unwrap().len());
            assert_eq!(counts, [ids.len() + 1; 4]);
            let mut text = String::new();
            let pairs = told["tokens"].as_array().unwrap().iter();
            for (token, offset) in pairs.zip(told["text_offset"].as_array().unwrap()) {
                assert_eq!(offset.as_u64(), u64::try_from(text.chars().count()).ok());
                text.push_str(token.as_str().unwrap());
            }
            assert!(text.starts_with(whole["text"].as_str().unwrap()), "{text}");
            let mut streamed = fields;
            streamed["stream"] = json!(true);
            let chunks = parsed(&complete(&server, streamed).await);
            for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
                let parts = chunks.iter().map(|chunk| &chunk["choices"][0]["logprobs"][list]);
                let joined: Vec<Value> =
                    parts.filter_map(Value::as_array).flatten().cloned().collect();
                assert_eq!(json!(joined), told[list], "{list}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_goes_before_a_suffix_where_the_model_can_fill_gaps() {
    let fake = Arc::new(telling().with_gap_marks([5, 6, 7]));
    let server = Server::start(fake.clone()).await;
    // One token, then two that the script tells of.
    let fields = json!({"prompt": [300], "suffix": " end", "echo": true, "logprobs": 0});
    let body = complete(&server, fields).await.json();
    let tokenizer = toko_server::Backend::tokenizer(&*fake);
    let after = tokenizer.encode(" end", toko_engine::Special::AsText);
    let (prompt, _) = fake.continued().remove(0);
    assert_eq!(prompt.tokens, [&[5, 300, 6], after.as_slice(), &[7]].concat());
    // The token in front of the gap follows a mark, so that it has a probability.
    let logprobs = &body["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["!", " x", "😀", "<end>"]));
    assert_eq!(logprobs["token_logprobs"], json!([-1.5, -1.5, -1.5, -1.5]));
}
