//! What an engine tells about its tokens, and the bias that a request puts on them.

use std::sync::mpsc::Receiver;

use serde_json::Value;
use toko_admission::handles::Admission;
use toko_engine::{
    Applicant, Engine, Error, Event, KvType, Options, Params, Sampling, TokenDetails,
};
use toko_fixtures::{embedded_model_golden, golden_json, smollm2_model, smollm2_path, tiny_model};
use toko_gguf::Gguf;

use crate::harness::{GREEDY, OPTIONS, ask, collect, embedded, params, submit};

/// "Once upon a time": the model goes on for hundreds of tokens.
const STORY: [u32; 4] = [603, 874, 257, 465];

fn with_logprobs(sampling: Sampling, max_tokens: usize, top: usize) -> Params {
    Params { logprobs: Some(top), ..params(sampling, max_tokens) }
}

fn ids(json: &Value) -> Vec<u32> {
    let ids = json.as_array().expect("ids").iter();
    ids.map(|id| u32::try_from(id.as_u64().expect("an id")).expect("u32")).collect()
}

/// The largest distance of the first token's log-probabilities from the ten best of the reference.
fn error(engine: &Engine, reference: &Value) -> f64 {
    let answer = ask(engine, &ids(&reference["ids"]), with_logprobs(GREEDY, 1, 64));
    let [first] = answer.tokens.as_slice() else { panic!("{answer:?}") };
    assert_eq!(first.token, first.top[0], "greedy takes the most likely");
    let best = reference["top10"].as_array().expect("ten best").iter();
    let distance = |entry: &Value| {
        let found = first.top.iter().find(|found| entry["id"] == found.id);
        let found = found.unwrap_or_else(|| panic!("{entry} is far from the best"));
        (f64::from(found.logprob) - entry["logprob"].as_f64().expect("a number")).abs()
    };
    best.map(distance).fold(0.0, f64::max)
}

fn errors(file: &Gguf, kv_type: KvType, reference: &str) -> Vec<f64> {
    let options = Options { context_tokens: Some(256), kv_type, ..OPTIONS };
    let engine = Engine::load(file, &options, &Applicant::new(&Admission::unlimited(), "test"))
        .expect("the test model loads");
    let reference = golden_json(reference);
    let prompts = reference["prompts"].as_array().expect("prompts");
    prompts.iter().map(|prompt| error(&engine, prompt)).collect()
}

#[test]
fn tiny_models_in_f32_are_within_a_hundredth_of_float64() {
    for architecture in ["llama", "qwen2", "qwen3"] {
        let file = Gguf::from_bytes(tiny_model(architecture, "F32")).expect("golden files open");
        let found = errors(&file, KvType::F32, &format!("tiny/tiny-{architecture}.F32.f64.json"));
        assert!(found.iter().all(|error| *error < 0.01), "{architecture}: {found:?}");
    }
}

#[test]
fn smollm2_in_f16_is_within_a_fiftieth_of_float64() {
    let file = Gguf::from_bytes(smollm2_model("F16")).expect("the test model opens");
    let found = errors(&file, KvType::F16, "smollm2/F16.f64.json");
    assert!(found.iter().all(|error| *error < 0.02), "{found:?}");
}

#[test]
fn smollm2_in_q4_1_is_within_a_fiftieth_of_float64() {
    let file = Gguf::open(smollm2_path()).expect("the test model opens");
    let found = errors(&file, KvType::F16, "smollm2/Q4_1.f64.json");
    assert!(found.iter().all(|error| *error < 0.02), "{found:?}");
}

/// Reads a request's events to its end: each piece of text with the tokens that came with it.
fn pieces(events: &Receiver<Event>) -> Vec<(String, Vec<TokenDetails>)> {
    let mut pieces = Vec::new();
    loop {
        match events.recv().expect("every request is told its end") {
            Event::Waiting
            | Event::Prefilled { .. }
            | Event::Prompt { .. }
            | Event::Embedded { .. } => {}
            Event::Text { text, tokens } => pieces.push((text, tokens)),
            Event::Finished(_) => return pieces,
            Event::Failed(error) => panic!("{error}"),
        }
    }
}

fn bytes(tokens: &[TokenDetails]) -> Vec<u8> {
    tokens.iter().flat_map(|details| details.token.bytes.clone()).collect()
}

#[test]
fn told_tokens_are_the_golden_ones_without_the_end_of_the_answer() {
    let engine = embedded(&OPTIONS);
    let golden = embedded_model_golden();
    let margin = |prompt: &&Value| {
        prompt["margins"].as_array().expect("margins").iter().all(|m| m.as_f64() > Some(2.0))
    };
    let clear: Vec<&Value> = golden.as_array().expect("prompts").iter().filter(margin).collect();
    assert!(!clear.is_empty(), "the golden file has clear answers");
    for prompt in clear {
        let expected = ids(&prompt["greedy_ids"]);
        let answer = ask(&engine, &ids(&prompt["prompt_ids"]), with_logprobs(GREEDY, 200, 0));
        let told: Vec<u32> = answer.tokens.iter().map(|details| details.token.id).collect();
        assert_eq!(told, expected[..expected.len() - 1]);
        assert_eq!(bytes(&answer.tokens), answer.text.as_bytes());
        assert!(answer.tokens.iter().all(|details| details.top.is_empty()));
    }
}

#[test]
fn nothing_is_told_to_those_who_do_not_ask() {
    let answer = ask(&embedded(&OPTIONS), &STORY, params(GREEDY, 10));
    assert_eq!((answer.text.is_empty(), answer.tokens), (false, Vec::new()));
}

#[test]
fn the_probabilities_of_all_tokens_add_up_to_one() {
    let engine = embedded(&OPTIONS);
    let answer = ask(&engine, &STORY, with_logprobs(GREEDY, 5, usize::MAX));
    for details in answer.tokens {
        let total: f64 = details.top.iter().map(|found| f64::from(found.logprob).exp()).sum();
        assert_eq!(details.top.len(), engine.info().vocabulary_tokens);
        assert!((total - 1.0).abs() < 1e-5, "{total}");
        assert!(details.top.is_sorted_by(|a, b| a.logprob >= b.logprob));
    }
}

#[test]
fn neither_sampling_nor_bias_nor_company_moves_the_log_probabilities() {
    let engine = embedded(&OPTIONS);
    let plain = ask(&engine, &STORY, with_logprobs(GREEDY, 1, 20)).tokens;
    let sampling =
        Sampling { temperature: 1.5, top_k: 3, repeat_penalty: 1.3, seed: Some(4), ..GREEDY };
    let bent = Params { logit_bias: vec![(11, -100.0)], ..with_logprobs(sampling, 30, 20) };
    let alone = ask(&engine, &STORY, bent.clone()).tokens;
    assert_ne!(alone[0].token.id, plain[0].token.id, "the bias forbids the comma");
    assert_eq!(alone[0].top, plain[0].top);
    let together: Vec<_> =
        (0..6).map(|_| submit(&engine, &STORY, bent.clone()).expect("accepted")).collect();
    for events in together {
        assert_eq!(collect(&events).tokens, alone);
    }
}

#[test]
fn tokens_come_with_the_end_of_their_text_whatever_is_held_back() {
    let engine = embedded(&OPTIONS);
    let whole = ask(&engine, &STORY, with_logprobs(GREEDY, 40, 0)).tokens;
    for stop in ["named X", "little boy nam!", "e", "boy named", "oy", " the old"] {
        let params = Params { stop: vec![stop.to_owned()], ..with_logprobs(GREEDY, 40, 0) };
        let (mut text, mut told) = (String::new(), Vec::new());
        for (piece, tokens) in pieces(&submit(&engine, &STORY, params).expect("accepted")) {
            text.push_str(&piece);
            told.extend(tokens);
            let told_bytes = bytes(&told);
            assert!(text.as_bytes().starts_with(&told_bytes), "{stop:?}: {text:?}, {told_bytes:?}");
            // A token that is not told yet has a part that is not given out.
            let next = whole.get(told.len()).map_or(usize::MAX, |next| next.token.bytes.len());
            assert!(text.len() - told_bytes.len() < next, "{stop:?}: {text:?}, {told_bytes:?}");
        }
        assert_eq!(told, whole[..told.len()]);
        assert!(!text.contains(stop), "{text:?}");
    }
}

/// Parameters under which the tokens of these bytes come out, each once, in order.
fn forced(engine: &Engine, bytes: &[u8]) -> Params {
    let tokenizer = engine.tokenizer();
    let token = |byte: u8| (0..2048).find(|&id| tokenizer.token_bytes(id) == [byte]);
    let logit_bias = (0u8..)
        .zip(bytes)
        .map(|(rank, &byte)| {
            (token(byte).expect("a byte token"), 9000.0 - 1000.0 * f32::from(rank))
        })
        .collect();
    let sampling = Sampling { presence_penalty: 50_000.0, ..GREEDY };
    Params { logit_bias, ..with_logprobs(sampling, bytes.len(), 1) }
}

#[test]
fn each_byte_of_a_character_is_told_with_the_character() {
    let engine = embedded(&OPTIONS);
    let params = forced(&engine, b"h\xF0\x9F\x98\x80");
    let mut pieces = pieces(&submit(&engine, &STORY, params).expect("accepted"));
    let end = pieces.split_off(5);
    assert!(end.iter().all(|(text, tokens)| text.is_empty() && tokens.is_empty()), "{end:?}");
    let texts: Vec<&str> = pieces.iter().map(|(text, _)| text.as_str()).collect();
    assert_eq!(texts, ["h", "", "", "", "😀"]);
    let told: Vec<Vec<&[u8]>> = pieces
        .iter()
        .map(|(_, tokens)| tokens.iter().map(|details| details.token.bytes.as_slice()).collect())
        .collect();
    let character: Vec<&[u8]> = vec![b"\xF0", b"\x9F", b"\x98", b"\x80"];
    assert_eq!(told, [vec![b"h".as_slice()], vec![], vec![], vec![], character]);
    // The model itself thinks little of them: the bias is not in the log-probabilities.
    let (_, tokens) = &pieces[4];
    assert!(tokens.iter().all(|details| details.token.logprob < details.top[0].logprob));
}

#[test]
fn a_character_that_stays_unfinished_is_told_byte_by_byte() {
    let engine = embedded(&OPTIONS);
    let answer = ask(&engine, &STORY, forced(&engine, b"\xF0\x9F"));
    assert_eq!((answer.text.as_str(), bytes(&answer.tokens)), ("\u{FFFD}", b"\xF0\x9F".to_vec()));
}

#[test]
fn a_bias_on_a_token_that_does_not_exist_is_refused() {
    let params = Params { logit_bias: vec![(5, 1.0), (2048, 1.0)], ..params(GREEDY, 1) };
    let refusal = submit(&embedded(&OPTIONS), &STORY, params).expect_err("refused");
    assert!(matches!(refusal, Error::UnknownToken { token: 2048, vocabulary_tokens: 2048 }));
}
