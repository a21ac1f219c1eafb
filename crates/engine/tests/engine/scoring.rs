//! What an engine tells about the tokens of a prompt.

use serde_json::Value;
use toko_admission::handles::Admission;
use toko_engine::{
    Applicant, Engine, Event, FinishReason, KvType, Options, Params, Sampling, Special,
    TokenDetails,
};
use toko_fixtures::{embedded_model_golden, golden_json, golden_path, smollm2_path};
use toko_gguf::Gguf;

use crate::harness::{GREEDY, OPTIONS, ask, collect, embedded, params, submit};

fn ids(json: &Value) -> Vec<u32> {
    let ids = json.as_array().expect("ids").iter();
    ids.map(|id| u32::try_from(id.as_u64().expect("an id")).expect("u32")).collect()
}

/// The golden prompts with their greedy answers, the longest first.
fn texts() -> Vec<Vec<u32>> {
    let golden = embedded_model_golden();
    let prompts = golden.as_array().expect("prompts").iter();
    let mut texts: Vec<Vec<u32>> = prompts
        .map(|prompt| [ids(&prompt["prompt_ids"]), ids(&prompt["greedy_ids"])].concat())
        .collect();
    texts.sort_by_key(|text| std::cmp::Reverse(text.len()));
    texts
}

fn scoring(top: usize, max_tokens: usize) -> Params {
    Params { logprobs: Some(top), prompt_logprobs: Some(top), ..params(GREEDY, max_tokens) }
}

/// What is told about the tokens of a prompt.
fn scores(engine: &Engine, prompt: &[u32], params: Params) -> Vec<TokenDetails> {
    let events = submit(engine, prompt, params).expect("accepted");
    let mut told = Vec::new();
    loop {
        match events.recv().expect("every request is told its end") {
            Event::Prompt { tokens } => told.extend(tokens),
            Event::Finished(_) => return told,
            Event::Failed(error) => panic!("{error}"),
            Event::Waiting
            | Event::Prefilled { .. }
            | Event::Text { .. }
            | Event::Embedded { .. } => {}
        }
    }
}

#[test]
fn the_scores_of_a_text_are_its_perplexity_in_float64() {
    let file = Gguf::open(smollm2_path()).expect("the test model opens");
    let options = Options { context_tokens: Some(1024), kv_type: KvType::F16, ..OPTIONS };
    let engine = Engine::load(&file, &options, &Applicant::new(&Admission::unlimited(), "test"))
        .expect("the test model loads");
    let text = std::fs::read_to_string(golden_path("ppl_text.txt")).expect("the text");
    let tokens = engine.tokenizer().encode(&text, Special::AsText);
    let told = scores(&engine, &tokens[..512], scoring(0, 0));
    let ids: Vec<u32> = told.iter().map(|details| details.token.id).collect();
    assert_eq!(ids, tokens[1..512]);
    let sum: f64 = told.iter().map(|details| f64::from(-details.token.logprob)).sum();
    let golden = golden_json("smollm2/Q4_1.f64ppl.json");
    let float64 = golden["chunk_mean_nll"][0].as_f64().expect("the float64 mean");
    let ours = sum / 511.0;
    assert!((ours - float64).abs() < 0.001, "{ours}, float64's is {float64}");
}

#[test]
fn each_token_of_a_prompt_is_told_as_if_it_had_been_generated_there() {
    let engine = embedded(&OPTIONS);
    let text = &texts()[0];
    let told = scores(&engine, text, scoring(4, 0));
    assert_eq!(told.len(), text.len() - 1);
    for place in [1, 2, 15, 16, 17, 31, 32, 33, text.len() - 1] {
        let next = text[place];
        let forced = Params { logit_bias: vec![(next, 1e6)], ..scoring(4, 1) };
        let answer = ask(&engine, &text[..place], forced);
        assert_eq!(answer.tokens, [told[place - 1].clone()], "token {place}");
        assert_eq!(told[place - 1].token.id, next);
    }
}

#[test]
fn a_prompt_is_told_the_same_in_company_and_after_others_and_re_uses_nothing() {
    let engine = embedded(&OPTIONS);
    let texts = texts();
    let alone: Vec<_> = texts.iter().map(|text| scores(&engine, text, scoring(3, 0))).collect();
    let plain = ask(&engine, &texts[0], params(GREEDY, 8));
    assert!(plain.summary().cached_tokens > 0, "an earlier scored prompt serves others");
    let scored: Vec<_> =
        texts.iter().map(|text| submit(&engine, text, scoring(3, 8)).expect("accepted")).collect();
    let others: Vec<_> =
        (0..2).map(|_| submit(&engine, &texts[0], params(GREEDY, 8)).expect("accepted")).collect();
    for (events, alone) in scored.iter().zip(&alone) {
        let mut told = Vec::new();
        let summary = loop {
            match events.recv().expect("every request is told its end") {
                Event::Prompt { tokens } => told.extend(tokens),
                Event::Finished(summary) => break summary,
                Event::Failed(error) => panic!("{error}"),
                Event::Waiting
                | Event::Prefilled { .. }
                | Event::Text { .. }
                | Event::Embedded { .. } => {}
            }
        };
        assert_eq!((&told, summary.cached_tokens), (alone, 0));
    }
    assert!(others.iter().all(|events| collect(events).text == plain.text));
}

#[test]
fn after_a_scored_prompt_the_token_that_ends_the_answer_is_told_too() {
    let engine = embedded(&OPTIONS);
    let golden = embedded_model_golden();
    let clear = |prompt: &&Value| {
        prompt["margins"].as_array().expect("margins").iter().all(|m| m.as_f64() > Some(2.0))
    };
    let prompt = golden.as_array().expect("prompts").iter().find(clear).expect("a clear answer");
    let answer = ask(&engine, &ids(&prompt["prompt_ids"]), scoring(1, 200));
    let told: Vec<u32> = answer.tokens.iter().map(|details| details.token.id).collect();
    assert_eq!(told, ids(&prompt["greedy_ids"]));
    assert_eq!(answer.summary().reason, FinishReason::Stop);
    assert_eq!(answer.tokens.last().expect("tokens").token.bytes, b"<|im_end|>");
}

#[test]
fn nothing_of_a_prompt_is_told_to_those_who_do_not_ask() {
    let engine = embedded(&OPTIONS);
    let sampling = Sampling { seed: Some(1), ..GREEDY };
    let asked = Params { logprobs: Some(2), ..params(sampling, 4) };
    assert_eq!(scores(&engine, &texts()[0], asked), []);
}
