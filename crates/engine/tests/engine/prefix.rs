//! Prompts that begin like earlier ones: what need not be computed, and that nobody can tell.

use std::time::SystemTime;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use toko_engine::{Chat, Engine, KvType, Message, Options, Params, Sampling};

use crate::harness::{Answer, GREEDY, OPTIONS, ask, collect, embedded, params, submit};

/// A prompt whose every token differs from the one before.
fn prompt(tokens: u32) -> Vec<u32> {
    (0..tokens).map(|at| 300 + at * 7 % 1000).collect()
}

fn cached_tokens(engine: &Engine, prompt: &[u32]) -> usize {
    ask(engine, prompt, params(GREEDY, 2)).summary().cached_tokens
}

#[test]
fn whole_pages_of_a_known_beginning_are_not_computed_again() {
    let engine = embedded(&OPTIONS);
    let long = prompt(200);
    assert_eq!(cached_tokens(&engine, &long), 0);
    assert_eq!(cached_tokens(&engine, &long), 192);
    assert_eq!(cached_tokens(&engine, &long[..100]), 64);
    assert_eq!(cached_tokens(&engine, &[&long[..150], &[999; 80]].concat()), 128);
    assert_eq!(cached_tokens(&engine, &long[1..]), 0);
}

#[test]
fn the_last_token_of_a_prompt_is_always_computed() {
    let engine = embedded(&OPTIONS);
    let long = prompt(192);
    assert_eq!(cached_tokens(&engine, &long), 0);
    assert_eq!(cached_tokens(&engine, &long), 128);
}

#[test]
fn an_answer_is_kept_like_its_prompt() {
    let engine = embedded(&OPTIONS);
    let story = [603, 874, 257, 465];
    let answer = ask(&engine, &story, params(GREEDY, 80)).text;
    let told = engine.text_prompt(&format!("Once upon a time{answer}")).tokens;
    assert!(told.len() > 70, "{told:?}");
    assert_eq!(cached_tokens(&engine, &told), 64);
}

#[test]
fn a_prompt_that_waits_behind_its_like_need_not_be_computed() {
    let engine = embedded(&OPTIONS);
    let long = prompt(600);
    let asked = [1, 2].map(|_| submit(&engine, &long, params(GREEDY, 3)).expect("accepted"));
    let [first, second] = asked.map(|events| collect(&events));
    assert_eq!(first.summary().cached_tokens, 0);
    // There is room for the second when less than a chunk of 256 is left of the first.
    assert!(second.summary().cached_tokens >= 320, "{:?}", second.end);
    assert_eq!(first.text, second.text);
}

#[test]
fn a_cache_of_no_tokens_keeps_nothing() {
    let engine = embedded(&Options { prefix_cache_tokens: Some(0), ..OPTIONS });
    assert_eq!(cached_tokens(&engine, &prompt(200)), 0);
    assert_eq!(cached_tokens(&engine, &prompt(200)), 0);
}

/// A conversation that is about to be had.
#[derive(Debug, Clone)]
struct Plan {
    /// Which of the two system texts it has.
    system: usize,
    /// The words of each question.
    questions: Vec<Vec<usize>>,
    temperature: f32,
    seed: u64,
}

const WORDS: [&str; 12] =
    ["fox", "tree", "story", "Pip", "runs", "the", "blue", "and", "why", "river", "tell", "old"];

const SYSTEM_SENTENCE: [&str; 2] =
    ["You tell short stories to children. ", "You answer in one sentence and stay polite. "];

fn plans() -> impl Strategy<Value = Vec<Plan>> {
    let question = proptest::collection::vec(0..WORDS.len(), 1..40);
    let questions = proptest::collection::vec(question, 1..4);
    let plan = (0usize..2, questions, prop_oneof![Just(0.0f32), Just(0.9)], any::<u64>()).prop_map(
        |(system, questions, temperature, seed)| Plan { system, questions, temperature, seed },
    );
    proptest::collection::vec(plan, 1..4)
}

/// Has all conversations at once, turn by turn, and returns their answers.
fn talk(engine: &Engine, plans: &[Plan]) -> Vec<Answer> {
    let system = |plan: &Plan| Message::new("system", SYSTEM_SENTENCE[plan.system].repeat(9));
    let mut messages: Vec<_> = plans.iter().map(|plan| vec![system(plan)]).collect();
    let mut answers = Vec::new();
    for turn in 0..3 {
        let mut asked = Vec::new();
        for (plan, messages) in plans.iter().zip(&mut messages) {
            let Some(question) = plan.questions.get(turn) else { continue };
            let words: Vec<&str> = question.iter().map(|&word| WORDS[word]).collect();
            messages.push(Message::new("user", words.join(" ")));
            let chat = Chat::new(messages.clone(), SystemTime::UNIX_EPOCH);
            let prompt = engine.chat_prompt(&chat).expect("the template renders");
            let (temperature, seed) = (plan.temperature, Some(plan.seed));
            let params = params(Sampling { temperature, seed, ..GREEDY }, 24);
            let params = Params { logprobs: Some(3), ..params };
            let events = submit(engine, &prompt.tokens, params).expect("accepted");
            asked.push((messages, events));
        }
        for (messages, events) in asked {
            let answer = collect(&events);
            messages.push(Message::new("assistant", answer.text.clone()));
            answers.push(answer);
        }
    }
    answers
}

#[test]
fn conversations_get_the_same_answers_with_and_without_the_cache() {
    check_conversations(KvType::F16, 6);
}

#[test]
fn conversations_get_the_same_answers_with_and_without_the_cache_in_q8_0() {
    check_conversations(KvType::Q8_0, 3);
}

fn check_conversations(kv_type: KvType, cases: u32) {
    let options = Options { kv_type, ..OPTIONS };
    // Room for one conversation and a half: pages are shared and evicted all the time.
    let with = embedded(&Options { prefix_cache_tokens: Some(448), ..options.clone() });
    let without = embedded(&Options { prefix_cache_tokens: Some(0), ..options });
    let cached = std::cell::Cell::new(0);
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new_with_rng(
        config,
        proptest::test_runner::TestRng::deterministic_rng(
            proptest::test_runner::RngAlgorithm::ChaCha,
        ),
    )
    .run(&plans(), |plans| {
        let (with, without) = (talk(&with, &plans), talk(&without, &plans));
        for (with, without) in with.iter().zip(&without) {
            prop_assert_eq!(&with.text, &without.text);
            // To the last bit of each token's log-probability and its rivals'.
            prop_assert_eq!(&with.tokens, &without.tokens);
            let (with, without) = (with.summary(), without.summary());
            prop_assert_eq!(with.completion_tokens, without.completion_tokens);
            prop_assert_eq!(with.reason, without.reason);
            prop_assert_eq!(without.cached_tokens, 0);
            cached.set(cached.get() + with.cached_tokens);
        }
        prop_assert_eq!(with.len(), without.len());
        Ok(())
    })
    .expect("the cache cannot be told from its absence");
    assert!(cached.get() > 500, "the cache was used: {}", cached.get());
}
