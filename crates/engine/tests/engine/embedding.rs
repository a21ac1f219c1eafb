//! Texts that become vectors.

use std::ops::ControlFlow;
use std::sync::mpsc::channel;

use serde_json::Value;
use toko_admission::handles::Admission;
use toko_engine::{Applicant, Engine, Error, Event, KvType, Options, Summary};
use toko_fixtures::{golden_json, tiny_model};
use toko_gguf::Gguf;
use toko_gguf::write::Writer;

use crate::harness::{GREEDY, OPTIONS, collect, embed_texts, embedded, params, submit};

/// What a request for vectors was told.
struct Told {
    vectors: Vec<Vec<f32>>,
    summary: Summary,
}

fn embed(engine: &Engine, texts: &[Vec<u32>]) -> Told {
    let (sender, events) = channel();
    let sink = move |event| match sender.send(event) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    };
    embed_texts(engine, texts, sink).expect("the texts are accepted");
    let mut vectors = Vec::new();
    loop {
        match events.recv().expect("every request is told its end") {
            Event::Embedded { index, vector } => {
                assert_eq!(index, vectors.len());
                vectors.push(vector);
            }
            Event::Finished(summary) => return Told { vectors, summary },
            Event::Failed(error) => panic!("{error}"),
            Event::Waiting
            | Event::Prefilled { .. }
            | Event::Prompt { .. }
            | Event::Text { .. } => {}
        }
    }
}

fn refusal(engine: &Engine, texts: &[Vec<u32>]) -> Error {
    let untold = |event| panic!("nothing was queued, but {event:?} was told");
    embed_texts(engine, texts, untold).expect_err("the texts are refused")
}

fn tiny(architecture: &str, pooling_type: Option<u32>) -> Engine {
    let mut bytes = tiny_model(architecture, "F32");
    if let Some(kind) = pooling_type {
        let file = Gguf::from_bytes(bytes).expect("golden files open");
        let mut writer = Writer::new();
        for (key, value) in file.metadata().iter() {
            writer.copy(key, value);
        }
        writer.set(&format!("{architecture}.pooling_type"), kind);
        for tensor in file.tensors() {
            writer.tensor(&tensor.name, &tensor.shape, tensor.kind, file.data(tensor).to_vec());
        }
        bytes = writer.into_bytes().expect("a model that was read can be written");
    }
    let file = Gguf::from_bytes(bytes).expect("golden files open");
    let options = Options { context_tokens: Some(512), kv_type: KvType::F32, ..OPTIONS };
    Engine::load(&file, &options, &Applicant::new(&Admission::unlimited(), "test"))
        .expect("the tiny model loads")
}

fn ids(json: &Value) -> Vec<u32> {
    let ids = json.as_array().expect("ids").iter();
    ids.map(|id| u32::try_from(id.as_u64().expect("an id")).expect("u32")).collect()
}

/// The texts of the reference for one family, and what it computed of them.
fn reference(architecture: &str, pooling: &str) -> Vec<(Vec<u32>, Vec<f64>)> {
    let golden = golden_json("tiny/embeddings.f64.json");
    let models = golden["models"].as_array().expect("models").iter();
    let model = models.filter(|model| model["architecture"] == architecture);
    let texts = model.flat_map(|model| model["texts"].as_array().expect("texts").clone());
    let numbers = |vector: &Value| {
        vector.as_array().expect("a vector").iter().filter_map(Value::as_f64).collect()
    };
    texts.map(|text| (ids(&text["ids"]), numbers(&text[pooling]))).collect()
}

fn check(engine: &Engine, architecture: &str, pooling: &str) {
    let (texts, known): (Vec<_>, Vec<_>) = reference(architecture, pooling).into_iter().unzip();
    assert_eq!(texts.len(), 3);
    for (vector, known) in embed(engine, &texts).vectors.iter().zip(known) {
        assert_eq!((vector.len(), known.len()), (256, 256));
        let pairs = vector.iter().zip(&known);
        let errors = pairs.map(|(ours, float64)| (f64::from(*ours) - float64).abs());
        let worst = errors.fold(0.0, f64::max);
        assert!(worst < 2e-5, "{architecture}, {pooling}: {worst}");
    }
}

#[test]
fn vectors_are_the_mean_of_the_hidden_states_in_float64() {
    for architecture in ["llama", "qwen2", "qwen3"] {
        check(&tiny(architecture, None), architecture, "mean");
    }
}

#[test]
fn a_file_that_names_its_pooling_is_obeyed() {
    for (kind, pooling) in [(0, "mean"), (1, "mean"), (2, "first"), (3, "last")] {
        check(&tiny("qwen3", Some(kind)), "qwen3", pooling);
    }
    let error = refusal(&tiny("qwen3", Some(4)), &[vec![1]]);
    assert!(matches!(error, Error::Pooling { kind: 4 }), "{error}");
}

/// Texts of many lengths, some of them longer than a pass.
fn texts() -> Vec<Vec<u32>> {
    let lengths = [5, 1, 300, 64, 65, 2, 700, 130, 256, 3, 1, 1, 90];
    let text =
        |(index, length): (u32, u32)| (0..length).map(|i| (i * 31 + index * 7) % 2000).collect();
    (0..).zip(lengths).map(text).collect()
}

#[test]
fn a_text_has_the_same_vector_alone_and_among_others_to_the_last_bit() {
    let engine = embedded(&OPTIONS);
    let texts = texts();
    let alone: Vec<_> =
        texts.iter().flat_map(|text| embed(&engine, std::slice::from_ref(text)).vectors).collect();
    let busy: Vec<_> = (0..3)
        .map(|_| submit(&engine, &[603, 874, 257, 465], params(GREEDY, 200)).expect("accepted"))
        .collect();
    let together = embed(&engine, &texts);
    assert!(together.vectors == alone);
    let answers: Vec<_> = busy.iter().map(|events| collect(events).text).collect();
    assert!(answers.iter().all(|answer| *answer == answers[0] && answer.len() > 100));
    for vector in &alone {
        let length: f64 = vector.iter().map(|&value| f64::from(value).powi(2)).sum();
        assert!((length - 1.0).abs() < 1e-6, "{length}");
    }
    for (index, vector) in alone.iter().enumerate() {
        assert!(!alone[..index].contains(vector), "text {index}");
    }
}

#[test]
fn all_tokens_are_counted_and_one_place_is_given_back() {
    let engine = embedded(&Options { replicas: Some(1), queue_limit: 0, ..OPTIONS });
    let texts = texts();
    for _ in 0..2 {
        let summary = embed(&engine, &texts).summary;
        let tokens = texts.iter().map(Vec::len).sum();
        assert_eq!(
            (summary.prompt_tokens, summary.cached_tokens, summary.completion_tokens),
            (tokens, 0, 0)
        );
    }
}

#[test]
fn texts_that_cannot_be_used_are_refused_with_their_index() {
    let engine = embedded(&OPTIONS);
    let context = engine.info().context_tokens;
    let error = refusal(&engine, &[vec![1], vec![]]);
    assert!(
        matches!(&error, Error::Text { index: 1, source } if matches!(**source, Error::EmptyPrompt)),
        "{error}"
    );
    let error = refusal(&engine, &[vec![1; context + 1]]);
    assert!(
        matches!(&error, Error::Text { index: 0, source } if matches!(**source, Error::ContextExceeded { .. })),
        "{error}"
    );
    let error = refusal(&engine, &[vec![1], vec![5, 2048]]);
    assert!(matches!(error, Error::UnknownToken { token: 2048, .. }), "{error}");
    assert_eq!(embed(&engine, &[vec![1; context]]).vectors.len(), 1);
}

#[test]
fn a_client_that_leaves_ends_its_texts() {
    let engine = embedded(&Options { replicas: Some(1), queue_limit: 0, ..OPTIONS });
    let (sender, told) = channel();
    let sink = move |event| {
        if matches!(event, Event::Embedded { .. }) {
            sender.send(()).expect("the test listens");
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    };
    embed_texts(&engine, &vec![vec![7; 200]; 100], sink).expect("accepted");
    // The channel closes when the sink is dropped, and with it the place is free.
    assert_eq!(told.iter().count(), 1);
    assert_eq!(embed(&engine, &[vec![1]]).vectors.len(), 1);
}
