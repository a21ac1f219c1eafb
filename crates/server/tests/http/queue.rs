//! Requests beyond what runs: which wait, which are sent away, and what they are told.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use toko_admission::handles::Admission;
use toko_engine::{Applicant, Engine, Error, Event, KvType, Options};
use toko_gguf::Gguf;

use crate::client::{Answer, Connection, chat, get};
use crate::fake::{Fake, Server, ask, tell};

const CHAT: &str = "/v1/chat/completions";

#[track_caller]
fn check(answer: &Answer, status: u16, kind: &str, code: &str, retry_after: &str) {
    assert_eq!((answer.status, answer.header("retry-after")), (status, Some(retry_after)));
    let milliseconds = format!("{retry_after}000");
    assert_eq!(answer.header("retry-after-ms"), Some(milliseconds.as_str()));
    let error = answer.json()["error"].take();
    assert_eq!((&error["type"], &error["code"]), (&json!(kind), &json!(code)));
    assert_eq!(error["param"], json!(null));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_is_a_429_that_says_when_to_come_back() {
    let full = || Error::QueueFull { waiting: 7, retry_after_seconds: 13 };
    let server = Server::start(Arc::new(Fake::new(move |_| Err(full())))).await;
    for stream in [false, true] {
        let answer = chat(server.address, &ask(json!({"stream": stream}))).await;
        check(&answer, 429, "rate_limit_error", "rate_limit_exceeded", "13");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waited_in_vain_gets_a_503_that_says_when_to_come_back() {
    let server = Server::start(Arc::new(Fake::new(|mut sink| {
        tell(&mut sink, Event::Waiting);
        let waited = Duration::from_secs(9);
        tell(&mut sink, Event::Failed(Error::QueueTimeout { waited, retry_after_seconds: 60 }));
        Ok(())
    })))
    .await;
    for stream in [false, true] {
        let answer = chat(server.address, &ask(json!({"stream": stream}))).await;
        check(&answer, 503, "server_error", "queue_timeout", "60");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_begins_only_when_its_turn_has_come_so_that_waiting_in_vain_has_a_status() {
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = std::sync::Mutex::new(Some(released));
    let fake = Arc::new(Fake::new(move |mut sink| {
        tell(&mut sink, Event::Waiting);
        let released = released.lock().unwrap().take().expect("one request");
        std::thread::spawn(move || {
            released.recv().unwrap();
            let waited = Duration::from_secs(9);
            tell(&mut sink, Event::Failed(Error::QueueTimeout { waited, retry_after_seconds: 2 }));
        });
        Ok(())
    }));
    let server = Server::start_with(fake.clone(), |state| {
        state.limits.ping_every = Duration::from_millis(1);
    })
    .await;
    let waiting = Connection::post(server.address, CHAT, &ask(json!({"stream": true}))).await;
    while !fake.was_asked() {
        tokio::task::yield_now().await;
    }
    // Many pings' time: whoever began the stream at the first one has begun it by then.
    for _ in 0..50 {
        assert_eq!(get(server.address, "/health").await.status, 200);
    }
    release.send(()).unwrap();
    check(&waiting.answer().await, 503, "server_error", "queue_timeout", "2");
}

/// A server around the real engine, which the test keeps a handle of.
async fn one_place(queue_limit: usize, queue_timeout: Duration) -> (Engine, Server) {
    let file = Gguf::open(toko_fixtures::embedded_model_path()).unwrap();
    let options = Options {
        prefix_cache_tokens: None,
        context_tokens: None,
        threads: Some(1),
        tier: None,
        kv_type: KvType::F16,
        replicas: Some(1),
        seed: 0,
        queue_limit,
        queue_timeout,
    };
    let engine =
        Engine::load(&file, &options, &Applicant::new(&Admission::unlimited(), "test")).unwrap();
    (engine.clone(), Server::start(Arc::new(engine)).await)
}

/// Takes the engine's only place until the returned sender is dropped.
async fn occupy(engine: &Engine) -> std::sync::mpsc::Sender<()> {
    let (holder, held) = std::sync::mpsc::channel::<()>();
    let sampling = crate::fake::sampling();
    let params = toko_engine::Params {
        sampling,
        max_tokens: Some(30),
        stop: Vec::new(),
        constraint: None,
        logit_bias: Vec::new(),
        logprobs: None,
        prompt_logprobs: None,
    };
    let lease = engine
        .pool()
        .acquire(std::future::pending())
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    lease
        .generate(engine.text_prompt("Once"), params, move |event| {
            if matches!(event, Event::Prefilled { tokens: 1.. }) {
                let (Ok(()) | Err(_)) = held.recv();
            }
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    holder
}

async fn until_waiting(engine: &Engine, count: usize) {
    while engine.pool().occupancy().waiting != count || engine.pool().occupancy().leased != 1 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_is_answered_or_sent_away_and_health_stays_up() {
    let (engine, server) = one_place(2, Duration::MAX).await;
    let holder = occupy(&engine).await;
    until_waiting(&engine, 0).await;
    let request = ask(json!({"max_tokens": 3}));
    let mut waiting = Vec::new();
    for count in 1..=2 {
        waiting.push(Connection::post(server.address, CHAT, &request).await);
        until_waiting(&engine, count).await;
    }
    for stream in [false, true] {
        let answer = chat(server.address, &ask(json!({"stream": stream}))).await;
        assert_eq!(answer.status, 429, "{}", answer.body);
    }
    assert_eq!(get(server.address, "/readyz").await.status, 200);
    drop(holder);
    for connection in waiting {
        let answer = connection.answer().await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(answer.json()["usage"]["completion_tokens"], 3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_may_not_wait_gets_its_503_while_the_other_runs_on() {
    let (engine, server) = one_place(2, Duration::ZERO).await;
    let holder = occupy(&engine).await;
    until_waiting(&engine, 0).await;
    for stream in [false, true] {
        let answer = chat(server.address, &ask(json!({"stream": stream}))).await;
        check(&answer, 503, "server_error", "queue_timeout", "1");
    }
    assert_eq!(engine.pool().occupancy().leased, 1);
    drop(holder);
}
