//! `GET /metrics`: exact counts after known requests.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use toko_admission::handles::Admission;
use toko_engine::{Applicant, Engine, Event, KvType, Options};
use toko_gguf::Gguf;

use crate::client::{Connection, chat, exchange, get};
use crate::fake::{Fake, Server, ask, tell, text};

/// The samples of a scrape by name and labels.
async fn scrape(server: &Server) -> HashMap<String, f64> {
    let answer = get(server.address, "/metrics").await;
    let expected = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!((answer.status, answer.header("content-type")), (200, Some(expected)));
    assert!(answer.body.ends_with("# EOF\n"), "{}", answer.body);
    let samples = answer.body.lines().filter(|line| !line.starts_with('#'));
    samples
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(name.starts_with("toko_"), "{line}");
            (name.to_owned(), value.parse().unwrap())
        })
        .collect()
}

#[track_caller]
fn check(samples: &HashMap<String, f64>, expected: &[(&str, f64)]) {
    for (name, value) in expected {
        assert_eq!(samples.get(*name), Some(value), "{name} in {samples:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_and_times_of_known_answers_are_counted_exactly() {
    let file = Gguf::open(toko_fixtures::embedded_model_path()).unwrap();
    let options = Options {
        prefix_cache_tokens: None,
        context_tokens: None,
        threads: Some(1),
        tier: None,
        kv_type: KvType::F16,
        replicas: Some(1),
        seed: 0,
        queue_limit: 8,
        queue_timeout: Duration::MAX,
    };
    let server = Server::start(Arc::new(
        Engine::load(&file, &options, &Applicant::new(&Admission::unlimited(), "test")).unwrap(),
    ))
    .await;
    let mut prompt_tokens = 0.0;
    for (max_tokens, stream) in [(1, false), (7, false), (12, true)] {
        let fields = json!({
            "max_tokens": max_tokens, "stream": stream, "temperature": 0, "repeat_penalty": 1,
            "frequency_penalty": 0, "presence_penalty": 0,
        });
        let mut request = ask(fields);
        request["messages"][0]["content"] = json!("Tell me a story about a fox named Pip.");
        let answer = chat(server.address, &request).await;
        assert_eq!(answer.status, 200);
        if !stream {
            let usage = answer.json()["usage"].take();
            assert_eq!(usage["completion_tokens"], max_tokens);
            prompt_tokens = usage["prompt_tokens"].as_f64().unwrap();
        }
    }
    check(
        &scrape(&server).await,
        &[
            ("toko_prompt_tokens_total", 3.0 * prompt_tokens),
            ("toko_generated_tokens_total", 20.0),
            ("toko_time_to_first_token_seconds_count", 3.0),
            ("toko_time_to_first_token_seconds_bucket{le=\"2560.0\"}", 3.0),
            ("toko_inter_token_latency_seconds_count", 17.0),
            ("toko_inter_token_latency_seconds_bucket{le=\"+Inf\"}", 17.0),
            ("toko_http_requests_total{route=\"/v1/chat/completions\",status=\"200\"}", 3.0),
            ("toko_prompt_tokens_cached_total", 0.0),
            ("toko_requests_ended_total{reason=\"length\"}", 3.0),
            ("toko_request_queue_seconds_count", 3.0),
            ("toko_request_seconds_count", 3.0),
            ("toko_pool_replicas{model=\"org/model:q1\",state=\"idle\"}", 1.0),
            ("toko_pool_replicas{model=\"org/model:q1\",state=\"leased\"}", 0.0),
            ("toko_pool_replicas{model=\"org/model:q1\",state=\"lost\"}", 0.0),
            ("toko_requests_waiting{model=\"org/model:q1\"}", 0.0),
        ],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_counted_by_route_pattern_and_status_and_never_by_path() {
    let server = Server::saying(&["Hi"]).await;
    for path in
        ["/v1/models/default", "/v1/models/org%2Fmodel:q1", "/v1/models/x", "/nope", "/no/pe"]
    {
        get(server.address, path).await;
    }
    chat(server.address, &ask(json!({"temperature": 9}))).await;
    chat(server.address, &ask(json!({"stream": true}))).await;
    exchange(server.address, "PUT", "/v1/chat/completions", &[], b"").await;
    let samples = scrape(&server).await;
    let mut counted: Vec<_> = samples
        .iter()
        .filter_map(|(name, value)| Some((name.strip_prefix("toko_http_requests_total")?, *value)))
        .collect();
    counted.sort_by_key(|(labels, _)| *labels);
    assert_eq!(
        counted,
        [
            ("{route=\"/v1/chat/completions\",status=\"200\"}", 1.0),
            ("{route=\"/v1/chat/completions\",status=\"400\"}", 1.0),
            ("{route=\"/v1/chat/completions\",status=\"405\"}", 1.0),
            ("{route=\"/v1/models/{*id}\",status=\"200\"}", 2.0),
            ("{route=\"/v1/models/{*id}\",status=\"404\"}", 1.0),
            ("{route=\"none\",status=\"404\"}", 2.0),
        ]
    );
    // The scrape itself is under way while it is written.
    check(&samples, &[("toko_http_requests_in_flight", 1.0)]);
    check(
        &scrape(&server).await,
        &[
            ("toko_http_requests_total{route=\"/metrics\",status=\"200\"}", 1.0),
            ("toko_http_requests_in_flight", 1.0),
        ],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_in_flight_until_its_end_and_a_broken_answer_counts_what_was_computed() {
    let (release, released) = tokio::sync::oneshot::channel::<()>();
    let released = std::sync::Mutex::new(Some(released));
    let server = Server::start(Arc::new(Fake::new(move |mut sink| {
        let released = released.lock().unwrap().take().expect("one request");
        std::thread::spawn(move || {
            tell(&mut sink, Event::Prefilled { tokens: 5 });
            tell(&mut sink, text("a"));
            tell(&mut sink, text("b"));
            released.blocking_recv().unwrap();
            tell(&mut sink, Event::Failed(toko_engine::Error::Panicked));
        });
        Ok(())
    })))
    .await;
    let request = ask(json!({"stream": true}));
    let mut streamed = Connection::post(server.address, "/v1/chat/completions", &request).await;
    streamed.read_until("\"b\"").await;
    check(
        &scrape(&server).await,
        &[
            ("toko_http_requests_in_flight", 2.0),
            ("toko_http_requests_total{route=\"/v1/chat/completions\",status=\"200\"}", 1.0),
            ("toko_time_to_first_token_seconds_count", 1.0),
        ],
    );
    release.send(()).unwrap();
    assert!(streamed.answer().await.body.ends_with("data: [DONE]\n\n"));
    check(
        &scrape(&server).await,
        &[
            ("toko_http_requests_in_flight", 1.0),
            ("toko_prompt_tokens_total", 5.0),
            ("toko_generated_tokens_total", 2.0),
            ("toko_inter_token_latency_seconds_count", 1.0),
            ("toko_requests_ended_total{reason=\"failed\"}", 1.0),
            ("toko_request_seconds_count", 1.0),
        ],
    );
}
