//! What the embedded model says, alone and among others.

use toko_engine::{Chat, Message, Sampling};
use toko_fixtures::embedded_model_golden;

use crate::harness::{GREEDY, OPTIONS, ask, collect, embedded, params, submit};

/// The golden conversations: prompt, answer, and the reference's smallest margin.
struct Golden {
    prompt: Vec<u32>,
    text: String,
    tokens: usize,
    margin: f64,
}

fn golden() -> Vec<Golden> {
    let golden = embedded_model_golden();
    let read = |prompt: &serde_json::Value| {
        let ids = prompt["prompt_ids"].as_array().expect("ids").iter();
        let margins = prompt["margins"].as_array().expect("margins").iter();
        Golden {
            prompt: ids
                .map(|id| u32::try_from(id.as_u64().expect("an id")).expect("u32"))
                .collect(),
            text: prompt["greedy_text"].as_str().expect("a text").replace("<|im_end|>", ""),
            tokens: prompt["greedy_ids"].as_array().expect("ids").len(),
            margin: margins
                .map(|margin| margin.as_f64().expect("a number"))
                .fold(f64::MAX, f64::min),
        }
    };
    golden.as_array().expect("prompts").iter().map(read).collect()
}

#[test]
fn clear_golden_answers_come_out_word_for_word() {
    let engine = embedded(&OPTIONS);
    let clear: Vec<Golden> = golden().into_iter().filter(|golden| golden.margin > 0.1).collect();
    assert!(clear.len() >= 4, "the golden file has clear answers");
    for golden in clear {
        let answer = ask(&engine, &golden.prompt, params(GREEDY, golden.tokens));
        assert_eq!(answer.text, golden.text);
        assert_eq!(answer.summary().completion_tokens, golden.tokens);
        assert_eq!(answer.summary().prompt_tokens, golden.prompt.len());
    }
}

#[test]
fn a_conversation_becomes_the_golden_prompt() {
    let engine = embedded(&OPTIONS);
    let question = Message::new("user", "What is the capital of France?");
    let chat = Chat::new(vec![question], std::time::SystemTime::UNIX_EPOCH);
    let prompt = engine.chat_prompt(&chat).expect("the template renders");
    let golden = golden();
    assert!(golden.iter().any(|golden| golden.prompt == prompt.tokens), "{prompt:?}");
}

#[test]
fn p21_eight_at_once_get_the_answers_that_they_get_alone() {
    let engine = embedded(&OPTIONS);
    let seeded = |seed| Sampling { temperature: 0.8, top_k: 40, seed: Some(seed), ..GREEDY };
    let requests: Vec<_> = golden()
        .into_iter()
        .take(8)
        .enumerate()
        .map(|(index, golden)| {
            (golden.prompt, params(if index % 2 == 0 { GREEDY } else { seeded(7) }, 60))
        })
        .collect();
    let alone: Vec<String> =
        requests.iter().map(|(prompt, params)| ask(&engine, prompt, params.clone()).text).collect();
    let together: Vec<_> = requests
        .iter()
        .map(|(prompt, params)| submit(&engine, prompt, params.clone()).expect("accepted"))
        .collect();
    let together: Vec<String> = together.iter().map(|events| collect(events).text).collect();
    assert_eq!(together, alone);
    assert!((1..alone.len()).all(|index| !alone[..index].contains(&alone[index])), "{alone:?}");
}

#[test]
fn a_seed_repeats_its_answer_and_another_seed_changes_it() {
    let engine = embedded(&OPTIONS);
    let prompt = &golden()[1].prompt;
    let run = |seed| {
        let sampling = Sampling { temperature: 1.0, seed: Some(seed), ..GREEDY };
        ask(&engine, prompt, params(sampling, 80)).text
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn more_requests_than_places_wait_their_turn() {
    let engine = embedded(&toko_engine::Options { replicas: Some(2), ..OPTIONS });
    let golden = golden();
    let queued: Vec<_> = golden
        .iter()
        .map(|golden| submit(&engine, &golden.prompt, params(GREEDY, 20)).expect("accepted"))
        .collect();
    for (golden, events) in golden.iter().zip(&queued) {
        let expected = ask(&engine, &golden.prompt, params(GREEDY, 20)).text;
        assert_eq!(collect(events).text, expected);
    }
}
