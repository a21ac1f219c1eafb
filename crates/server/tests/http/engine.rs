//! The real engine on the embedded model behind the server, against values from outside.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use toko_admission::handles::Admission;
use toko_engine::{Applicant, Engine, KvType, Options};
use toko_gguf::Gguf;

use crate::client::{Answer, chat};
use crate::fake::Server;

pub(crate) async fn serve_embedded() -> Server {
    let file = Gguf::open(toko_fixtures::embedded_model_path()).unwrap();
    let options = Options {
        context_tokens: None,
        threads: Some(1),
        tier: None,
        kv_type: KvType::F16,
        replicas: Some(4),
        seed: 0,
        queue_limit: 8,
        queue_timeout: Duration::MAX,
        prefix_cache_tokens: None,
    };
    Server::start(Arc::new(
        Engine::load(&file, &options, &Applicant::new(&Admission::unlimited(), "test")).unwrap(),
    ))
    .await
}

/// A greedy request for the answer to one question.
pub(crate) fn question(text: &str, fields: Value) -> Value {
    let Value::Object(fields) = fields else { panic!("fields are an object") };
    let mut request = json!({
        "model": "default",
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "repeat_penalty": 1,
        "frequency_penalty": 0,
        "presence_penalty": 0,
    });
    request.as_object_mut().unwrap().extend(fields);
    request
}

fn content(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

/// The questions whose greedy answers have no near ties, with the outside engine's account.
struct Known {
    question: String,
    answer: String,
    prompt_tokens: usize,
    completion_tokens: usize,
}

fn known() -> Vec<Known> {
    let golden = toko_fixtures::embedded_model_golden();
    let known: Vec<_> = golden.as_array().unwrap().iter().filter_map(known_answer).collect();
    assert_eq!(known.len(), 3);
    known
}

/// Takes a prompt of one user turn whose smallest margin between the best two tokens is above 2.
fn known_answer(golden: &Value) -> Option<Known> {
    let question = golden["prompt"]
        .as_str()?
        .strip_prefix("<|im_start|>user\n")?
        .strip_suffix("<|im_end|>\n<|im_start|>assistant\n")?;
    let answer = golden["greedy_text"].as_str()?.strip_suffix("<|im_end|>")?;
    let is_clear = golden["margins"].as_array()?.iter().all(|margin| margin.as_f64() > Some(2.0));
    is_clear.then(|| Known {
        question: question.to_owned(),
        answer: answer.to_owned(),
        prompt_tokens: golden["prompt_ids"].as_array().map_or(0, Vec::len),
        completion_tokens: golden["greedy_ids"].as_array().map_or(0, Vec::len),
    })
}

/// The text of a stream, its finish reason and its usage.
fn streamed(answer: &Answer) -> (String, Value, Value) {
    assert_eq!(answer.status, 200, "{}", answer.body);
    let mut frames = answer.frames();
    assert_eq!(frames.pop(), Some("[DONE]"));
    let chunks: Vec<Value> =
        frames.iter().map(|frame| serde_json::from_str(frame).unwrap()).collect();
    let deltas = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str());
    let [.., finish, usage] = chunks.as_slice() else { panic!("{}", answer.body) };
    (deltas.collect(), finish["choices"][0]["finish_reason"].clone(), usage["usage"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn greedy_answers_and_their_accounts_equal_the_reference() {
    let server = serve_embedded().await;
    for known in known() {
        let answer = chat(server.address, &question(&known.question, json!({}))).await;
        assert_eq!(content(&answer), known.answer, "{}", known.question);
        let body = answer.json();
        assert_eq!(body["choices"][0]["finish_reason"], "stop");
        assert_eq!(body["usage"]["prompt_tokens"], known.prompt_tokens);
        assert_eq!(body["usage"]["completion_tokens"], known.completion_tokens);
        assert_eq!(body["usage"]["total_tokens"], known.prompt_tokens + known.completion_tokens);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_do_not_depend_on_who_else_asks() {
    let server = serve_embedded().await;
    let address = server.address;
    let asking: Vec<_> = known()
        .into_iter()
        .chain(known())
        .map(|known| {
            let fields = json!({"stream": true, "stream_options": {"include_usage": true}});
            let request = question(&known.question, fields);
            tokio::spawn(async move { (known, chat(address, &request).await) })
        })
        .collect();
    for task in asking {
        let (known, answer) = task.await.unwrap();
        let (text, finish, usage) = streamed(&answer);
        assert_eq!((text, finish), (known.answer, json!("stop")));
        assert_eq!(usage["prompt_tokens"], known.prompt_tokens);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streamed_answer_is_the_whole_answer_in_pieces() {
    let server = serve_embedded().await;
    let story = "Tell me a story about a fox named Pip.";
    let fields = json!({"temperature": 0.8, "seed": 7, "max_tokens": 40});
    let whole = chat(server.address, &question(story, fields)).await;
    let fields = json!({
        "temperature": 0.8, "seed": 7, "max_tokens": 40, "stream": true, "stream_options": {"include_usage": true},
    });
    let (text, finish, usage) = streamed(&chat(server.address, &question(story, fields)).await);
    assert_eq!(text, content(&whole));
    assert!(text.len() > 60, "{text}");
    let body = whole.json();
    assert_eq!((&finish, &usage), (&body["choices"][0]["finish_reason"], &body["usage"]));
    assert_eq!((finish, &usage["completion_tokens"]), (json!("length"), &json!(40)));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_account_tells_what_was_known_from_an_earlier_request() {
    let server = serve_embedded().await;
    let long = "Tell me a story about a fox named Pip. ".repeat(12);
    let cached = |usage: &Value| usage["prompt_tokens_details"]["cached_tokens"].clone();
    let usage =
        chat(server.address, &question(&long, json!({"max_tokens": 3}))).await.json()["usage"]
            .take();
    assert_eq!(cached(&usage), 0);
    let prompt_tokens = usage["prompt_tokens"].as_u64().unwrap();
    assert!(prompt_tokens > 130, "{usage}");
    // Whole pages of 64, and the last token is always computed.
    let known = json!((prompt_tokens - 1) / 64 * 64);
    let again = chat(server.address, &question(&long, json!({"max_tokens": 3}))).await.json();
    assert_eq!(cached(&again["usage"]), known);
    let fields =
        json!({"max_tokens": 3, "stream": true, "stream_options": {"include_usage": true}});
    let (_, _, usage) = streamed(&chat(server.address, &question(&long, fields)).await);
    assert_eq!(cached(&usage), known);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_text_and_what_follows_it_are_never_given_out() {
    let server = serve_embedded().await;
    let known = &known()[0];
    let at = known.answer.find(" capital").unwrap();
    let stop = json!({"stop": ["nothing like it", " capital of"]});
    let whole = chat(server.address, &question(&known.question, stop)).await;
    assert_eq!(content(&whole), known.answer[..at]);
    assert_eq!(whole.json()["choices"][0]["finish_reason"], "stop");
    let fields =
        json!({"stop": " capital of", "stream": true, "stream_options": {"include_usage": true}});
    let (text, finish, _) =
        streamed(&chat(server.address, &question(&known.question, fields)).await);
    assert_eq!((text.as_str(), finish), (&known.answer[..at], json!("stop")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_longer_than_the_context_is_refused_and_not_cut() {
    let server = serve_embedded().await;
    let long = "word ".repeat(5000);
    for stream in [false, true] {
        let answer = chat(server.address, &question(&long, json!({"stream": stream}))).await;
        let error = answer.json()["error"].take();
        assert_eq!((answer.status, &error["code"]), (400, &json!("context_length_exceeded")));
        assert_eq!((&error["param"], &error["n_ctx"]), (&json!("messages"), &json!(1024)));
        assert!(error["n_prompt_tokens"].as_u64().is_some_and(|tokens| tokens > 5000), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn choices_are_what_their_seeds_give_alone() {
    let server = serve_embedded().await;
    let story = "Tell me a story about a fox named Pip.";
    let fields =
        |n: u64, seed: u64| json!({"temperature": 0.9, "seed": seed, "n": n, "max_tokens": 20});
    let together = chat(server.address, &question(story, fields(3, 7))).await.json();
    let mut texts = Vec::new();
    for index in 0..3 {
        let alone = content(&chat(server.address, &question(story, fields(1, 7 + index))).await);
        let choice = &together["choices"][usize::try_from(index).unwrap()];
        assert_eq!(
            (&choice["index"], &choice["message"]["content"]),
            (&json!(index), &json!(alone))
        );
        texts.push(alone);
    }
    assert!(texts[0] != texts[1] && texts[1] != texts[2], "{texts:?}");
    assert_eq!(together["usage"]["completion_tokens"], 60);
}

#[tokio::test(flavor = "multi_thread")]
async fn told_tokens_are_the_text_and_a_bias_forces_one() {
    let server = serve_embedded().await;
    let known = &known()[0];
    let fields = json!({"logprobs": true, "top_logprobs": 3});
    let answer = chat(server.address, &question(&known.question, fields)).await.json();
    let tokens = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let texts: String = tokens.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!((texts, tokens.len()), (known.answer.clone(), known.completion_tokens - 1));
    assert!(tokens.iter().all(|token| token["top_logprobs"].as_array().unwrap().len() == 3));
    // 11 is the comma (models/golden.json).
    let fields = json!({"logit_bias": {"11": 100}, "max_tokens": 3});
    let forced = chat(server.address, &question(&known.question, fields)).await;
    assert_eq!(content(&forced), ",,,");
}
