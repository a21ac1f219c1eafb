//! How requests end: limits, stop texts, refusals, clients that go, an engine that closes.

use std::sync::mpsc::channel;

use toko_admission::handles::Admission;
use toko_engine::{Applicant, Engine, Error, Event, FinishReason, KvType, Options, Params};
use toko_fixtures::{embedded_model_path, tiny_model};
use toko_gguf::Gguf;
use toko_gguf::tensor::TensorType;
use toko_gguf::write::Writer;

use crate::harness::{GREEDY, OPTIONS, answer_to, ask, collect, embedded, params, run, submit};

/// "Once upon a time": the model goes on for hundreds of tokens.
const STORY: [u32; 4] = [603, 874, 257, 465];

#[test]
fn max_tokens_cuts_the_answer_there() {
    let engine = embedded(&OPTIONS);
    let answer = ask(&engine, &STORY, params(GREEDY, 5));
    assert_eq!(answer.summary().reason, FinishReason::Length);
    assert_eq!(answer.summary().completion_tokens, 5);
    assert_eq!(answer.text, ", a little boy named");
}

#[test]
fn a_full_context_cuts_the_answer_there() {
    let engine = embedded(&Options { context_tokens: Some(24), ..OPTIONS });
    let answer = ask(&engine, &STORY, Params { max_tokens: None, ..params(GREEDY, 0) });
    assert_eq!(answer.summary().reason, FinishReason::Length);
    assert_eq!(answer.summary().completion_tokens, 20);
}

#[test]
fn a_stop_text_ends_the_answer_before_it_and_is_named() {
    let engine = embedded(&OPTIONS);
    let unstopped = ask(&engine, &STORY, params(GREEDY, 40));
    assert_eq!(unstopped.summary().stop_text, None);
    let whole = unstopped.text;
    let stop = "boy named";
    let stops = vec!["never said".to_owned(), stop.to_owned()];
    let answer = ask(&engine, &STORY, Params { stop: stops, ..params(GREEDY, 40) });
    assert_eq!(answer.summary().reason, FinishReason::Stop);
    assert_eq!(answer.summary().stop_text, Some(1));
    assert_eq!(answer.text, whole[..whole.find(stop).expect("the story has a boy")]);
}

#[test]
fn prompts_that_cannot_be_served_are_refused_at_once() {
    let engine = embedded(&Options { context_tokens: Some(16), ..OPTIONS });
    let refusal = |prompt: &[u32]| submit(&engine, prompt, params(GREEDY, 1)).expect_err("refused");
    assert!(matches!(refusal(&[]), Error::EmptyPrompt));
    assert!(matches!(
        refusal(&[257; 16]),
        Error::ContextExceeded { prompt_tokens: 16, context_tokens: 16 }
    ));
    assert!(matches!(
        refusal(&[257, 2048]),
        Error::UnknownToken { token: 2048, vocabulary_tokens: 2048 }
    ));
}

#[test]
fn a_context_beyond_the_models_own_is_refused() {
    let file = Gguf::open(embedded_model_path()).expect("the embedded model opens");
    for asked in [0, 1025] {
        let options = Options { context_tokens: Some(asked), ..OPTIONS };
        let error = Engine::load(&file, &options, &Applicant::new(&Admission::unlimited(), "test"))
            .err()
            .expect("refused");
        assert!(matches!(error, Error::Context { trained_tokens: 1024, .. }), "{error}");
    }
}

#[test]
fn heads_that_are_no_whole_blocks_are_refused_for_a_cache_in_blocks() {
    let file = Gguf::from_bytes(tiny_model("llama", "F32")).expect("golden files open");
    // The same matrices, cut into four times as many heads of 16.
    let changed: [(&str, u32); 5] = [
        ("llama.attention.head_count", 16),
        ("llama.attention.head_count_kv", 8),
        ("llama.attention.key_length", 16),
        ("llama.attention.value_length", 16),
        ("llama.rope.dimension_count", 16),
    ];
    let mut writer = Writer::new();
    for (key, value) in changed {
        writer.set(key, value);
    }
    for (key, value) in file.metadata().iter() {
        if changed.iter().all(|(changed, _)| *changed != key) {
            writer.copy(key, value);
        }
    }
    for tensor in file.tensors() {
        let data = file.data(tensor).to_vec();
        writer.tensor(&tensor.name, &tensor.shape, tensor.kind, data);
    }
    let file = Gguf::from_bytes(writer.into_bytes().expect("writable")).expect("readable");
    Engine::load(&file, &OPTIONS, &Applicant::new(&Admission::unlimited(), "test"))
        .expect("the model itself runs");
    let options = Options { kv_type: KvType::Q8_0, ..OPTIONS };
    let error = Engine::load(&file, &options, &Applicant::new(&Admission::unlimited(), "test"))
        .err()
        .expect("refused");
    assert_eq!(
        error.to_string(),
        "keys and values have 16 numbers a head, which blocks of 32 do not divide; \
         keep them as f16 or f32"
    );
}

#[test]
fn a_client_that_goes_stops_its_request_and_no_other() {
    let engine = embedded(&Options { replicas: Some(1), ..OPTIONS });
    let (calls, told) = channel();
    run(&engine, answer_to(&STORY), params(GREEDY, 900), move |event| {
        let text = matches!(event, Event::Text { .. });
        calls.send(()).expect("the test listens");
        if text { std::ops::ControlFlow::Break(()) } else { std::ops::ControlFlow::Continue(()) }
    })
    .expect("accepted");
    // With one place, the next request starts only when the first has ended.
    assert_eq!(ask(&engine, &STORY, params(GREEDY, 3)).summary().completion_tokens, 3);
    assert_eq!(told.iter().count(), 3, "the start, the prompt and one text, then no more");
}

#[test]
fn a_client_that_left_while_waiting_costs_no_pass() {
    let engine = embedded(&Options { replicas: Some(1), ..OPTIONS });
    let running = submit(&engine, &STORY, params(GREEDY, 50)).expect("accepted");
    let (calls, told) = channel();
    run(&engine, answer_to(&STORY), params(GREEDY, 50), move |event| {
        calls.send(matches!(event, Event::Prefilled { tokens: 0 })).expect("the test listens");
        std::ops::ControlFlow::Break(())
    })
    .expect("accepted");
    assert_eq!(collect(&running).summary().completion_tokens, 50);
    assert_eq!(told.iter().collect::<Vec<_>>(), [true]);
}

#[test]
fn dropping_the_engine_ends_what_is_running() {
    let engine = embedded(&OPTIONS);
    let events = submit(&engine, &STORY, params(GREEDY, 900)).expect("accepted");
    assert!(matches!(events.recv(), Ok(Event::Prefilled { tokens: 0 })));
    drop(engine);
    assert!(matches!(collect(&events).end, Err(Error::Closed)));
}

#[test]
fn an_engine_dropped_by_its_own_sink_ends_all_the_same() {
    let engine = embedded(&OPTIONS);
    let (finished, told) = channel();
    let mut last = Some(engine.clone());
    run(&engine, answer_to(&STORY), params(GREEDY, 3), move |event| {
        if matches!(event, Event::Text { .. }) {
            last.take();
        }
        if matches!(event, Event::Finished(_) | Event::Failed(_)) {
            finished.send(()).expect("the test listens");
        }
        std::ops::ControlFlow::Continue(())
    })
    .expect("accepted");
    drop(engine);
    told.recv().expect("the request was told its end");
}

#[test]
fn logits_that_are_not_numbers_fail_the_request() {
    let file = Gguf::open(embedded_model_path()).expect("the embedded model opens");
    let mut writer = Writer::new();
    for (key, value) in file.metadata().iter() {
        writer.copy(key, value);
    }
    for tensor in file.tensors() {
        let mut data = file.data(tensor).to_vec();
        if tensor.name == "output_norm.weight" {
            assert_eq!(tensor.kind, TensorType::F32);
            data[..4].copy_from_slice(&f32::NAN.to_le_bytes());
        }
        writer.tensor(&tensor.name, &tensor.shape, tensor.kind, data);
    }
    let damaged = Gguf::from_bytes(writer.into_bytes().expect("writable")).expect("readable");
    let engine = Engine::load(&damaged, &OPTIONS, &Applicant::new(&Admission::unlimited(), "test"))
        .expect("the damage is in the numbers");
    let answer = ask(&engine, &STORY, params(GREEDY, 3));
    assert!(matches!(answer.end, Err(Error::NotANumber { position: 3 })), "{:?}", answer.end);
}
