//! Models that are loaded and unloaded, and what the server tells about its pools.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use toko_admission::handles::Admission;
use toko_engine::{Applicant, Engine, Error, KvType, Occupancy, Options};
use toko_gguf::Gguf;
use toko_server::{Backend, LoadError};

use crate::client::{Connection, chat, exchange, get, post};
use crate::fake::{Fake, Server, ask};

/// A server whose model is loaded by `load`, and a second one that cannot be loaded.
async fn loading(
    load: impl Fn() -> Result<Arc<dyn Backend>, LoadError> + Send + Sync + 'static,
) -> Server {
    Server::start_with(Arc::new(Fake::saying(&[])), |state| {
        let mut broken =
            crate::fake::served("broken", || Err(LoadError::Failed("its file is gone".into())));
        broken.aliases.clear();
        state.models = vec![crate::fake::served("org/model:q1", load), broken];
    })
    .await
}

async fn state_of(server: &Server, index: usize) -> Value {
    get(server.address, "/admin/v1/queue").await.json()["models"][index]["state"].take()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unloaded_model_is_loaded_again_by_whoever_asks_for_it() {
    let loads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&loads);
    let server = loading(move || {
        counted.fetch_add(1, Ordering::SeqCst);
        Ok(Arc::new(Fake::saying(&["Hi"])))
    })
    .await;
    assert_eq!(state_of(&server, 0).await, "ready");
    let named = json!({"model": "org/model:q1"});
    for _ in 0..2 {
        let unloaded = post(server.address, "/models/unload", &named).await;
        assert_eq!(unloaded.json(), json!({"success": true, "model": "org/model:q1"}));
        assert_eq!(state_of(&server, 0).await, "unloaded");
    }
    let listed = get(server.address, "/v1/models/org/model:q1").await.json();
    assert_eq!((&listed["status"]["value"], &listed["meta"]), (&json!("unloaded"), &json!(null)));
    assert_eq!(loads.load(Ordering::SeqCst), 1, "looking does not load");
    let answer = chat(server.address, &ask(json!({}))).await;
    assert_eq!((answer.status, loads.load(Ordering::SeqCst)), (200, 2), "{}", answer.body);
    let loaded = post(server.address, "/models/load", &named).await;
    assert_eq!((loaded.status, loads.load(Ordering::SeqCst)), (200, 2), "it is there already");
    let running = get(server.address, "/running").await.json();
    assert_eq!(running, json!({"running": [{"model": "org/model:q1", "state": "ready"}]}));
    let unloaded =
        exchange(server.address, "POST", "/api/models/unload/org/model:q1", &[], b"").await;
    assert_eq!(unloaded.status, 200, "{}", unloaded.body);
    assert_eq!(get(server.address, "/running").await.json(), json!({"running": []}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_cannot_be_loaded_says_why_and_the_other_goes_on() {
    let server = loading(|| Ok(Arc::new(Fake::saying(&["Hi"])))).await;
    let mut request = ask(json!({}));
    request["model"] = json!("broken");
    let requests =
        [("/v1/chat/completions", request), ("/models/load", json!({"model": "broken"}))];
    for (path, request) in requests {
        let answer = post(server.address, path, &request).await;
        assert_eq!((answer.status, answer.header("x-should-retry")), (500, Some("false")));
        let error = answer.json()["error"].take();
        assert_eq!(error["code"], "model_load_failed");
        assert_eq!(error["message"], "the model broken could not be loaded: its file is gone");
    }
    assert_eq!(chat(server.address, &ask(json!({}))).await.status, 200);
    let exact = exchange(server.address, "POST", "/api/models/unload", &[], b"").await;
    assert_eq!(exact.json(), json!({"success": true}));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_names_no_model_loads_and_unloads_nothing() {
    let server = loading(|| Ok(Arc::new(Fake::saying(&["Hi"])))).await;
    for path in ["/models/load", "/models/unload"] {
        let unknown = post(server.address, path, &json!({"model": "nope"})).await;
        assert_eq!((unknown.status, &unknown.json()["error"]["param"]), (404, &json!("model")));
        let missing = post(server.address, path, &json!({})).await;
        assert_eq!(missing.json()["error"]["code"], "missing_required_parameter");
    }
    let unknown = exchange(server.address, "POST", "/api/models/unload/nope", &[], b"").await;
    assert_eq!(unknown.status, 404);
    assert_eq!(state_of(&server, 0).await, "ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn p07_health_says_degraded_until_the_pool_is_whole() {
    for (lost, status) in [(0, "ok"), (1, "degraded")] {
        let occupancy = Occupancy { size: 3, idle: 1, leased: 2 - lost, lost, waiting: 4 };
        let server = Server::start(Arc::new(Fake::occupied(occupancy))).await;
        for path in ["/health", "/v1/health", "/healthz"] {
            let health = get(server.address, path).await;
            assert_eq!((health.status, health.json()), (200, json!({"status": status})));
        }
        let queue = get(server.address, "/admin/v1/queue").await.json();
        let pool = &queue["models"][0];
        assert_eq!(
            pool["replicas"],
            json!({"size": 3, "idle": 1, "leased": 2 - lost, "lost": lost})
        );
        assert_eq!((&pool["waiting"], &pool["context_tokens"]), (&json!(4), &json!(64)));
    }
}

/// The real engine with one replica, which the test keeps a handle of.
async fn one_replica() -> (Engine, Server) {
    let file = Gguf::open(toko_fixtures::embedded_model_path()).unwrap();
    let options = Options {
        context_tokens: None,
        threads: Some(1),
        tier: None,
        kv_type: KvType::F16,
        replicas: Some(1),
        queue_limit: 8,
        queue_timeout: Duration::MAX,
        seed: 0,
        prefix_cache_tokens: None,
    };
    let engine =
        Engine::load(&file, &options, &Applicant::new(&Admission::unlimited(), "test")).unwrap();
    (engine.clone(), Server::start(Arc::new(engine)).await)
}

async fn until(engine: &Engine, leased: usize, waiting: usize) {
    loop {
        let occupancy = engine.pool().occupancy();
        if (occupancy.leased, occupancy.waiting) == (leased, waiting) {
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p18_clients_that_leave_while_they_wait_or_are_answered_leave_a_whole_pool() {
    let (engine, server) = one_replica().await;
    let held = engine.pool().acquire(std::future::pending()).await;
    let mut connections = Vec::new();
    for (waiting, stream) in [(1, true), (2, false)] {
        let request = ask(json!({"stream": stream}));
        connections.push(Connection::post(server.address, "/v1/chat/completions", &request).await);
        until(&engine, 1, waiting).await;
    }
    drop(connections);
    until(&engine, 1, 0).await;
    drop(held);

    let story = json!({
        "model": "default", "prompt": "Once upon a time", "max_tokens": 900, "temperature": 0, "stream": true,
    });
    let mut reading = Connection::post(server.address, "/v1/completions", &story).await;
    reading.read_until("text_completion").await;
    drop(reading);
    until(&engine, 0, 0).await;
    let metrics = get(server.address, "/metrics").await.body;
    let generated =
        metrics.lines().find_map(|line| line.strip_prefix("toko_generated_tokens_total "));
    let generated: f64 = generated.unwrap().parse().unwrap();
    assert!(generated < 600.0, "{generated} tokens were generated for nobody");
    let answer = chat(server.address, &ask(json!({"max_tokens": 2}))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn p19_a_shutdown_sends_the_waiting_away_and_lets_the_running_finish() {
    let (engine, server) = one_replica().await;
    let address = server.address;
    let path = "/v1/chat/completions";
    let fields = json!({"max_tokens": 60, "temperature": 0, "stream": true});
    let mut running = Connection::post(address, path, &ask(fields)).await;
    running.read_until("content").await;
    let waiting = Connection::post(address, path, &ask(json!({}))).await;
    until(&engine, 1, 1).await;
    let ended = server.stop();
    let refused = waiting.answer().await;
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert_eq!(refused.json()["error"]["code"], "server_shutting_down");
    assert!(refused.header("retry-after").is_some());
    let answer = running.answer().await;
    assert!(answer.body.ends_with("data: [DONE]\n\n"), "{}", answer.body);
    assert!(!answer.body.contains("error"), "{}", answer.body);
    ended.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_watches_is_told_what_is_loaded_and_what_changes_until_the_shutdown() {
    let server = loading(|| Ok(Arc::new(Fake::saying(&["Hi"])))).await;
    let mut watching = Connection::open(server.address).await;
    watching.send(crate::client::request("GET", "/models/sse", &[], b"")).await;
    watching.read_until("broken").await;
    let named = json!({"model": "org/model:q1"});
    assert_eq!(post(server.address, "/models/unload", &named).await.status, 200);
    watching
        .read_until(
            "\"org/model:q1\",\"event\":\"model_status\",\"data\":{\"status\":\"unloaded\"}",
        )
        .await;
    let ended = server.stop();
    let answer = watching.answer().await;
    assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let told: Vec<Value> =
        answer.frames().iter().map(|frame| serde_json::from_str(frame).unwrap()).collect();
    let statuses: Vec<_> = told
        .iter()
        .filter(|event| event["model"] == "org/model:q1")
        .map(|event| event["data"]["status"].as_str().unwrap())
        .collect();
    let seen = ["loaded", "unloading", "unloaded"];
    assert!(statuses == seen || statuses == [seen[0], seen[2]], "{statuses:?}");
    ended.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn p05_a_broken_pool_is_a_503_that_says_when_to_come_back() {
    let damages: [fn() -> Error; 2] = [|| Error::PoolEmpty, || Error::PoolPoisoned];
    for damage in damages {
        let server = Server::start(Arc::new(Fake::new(move |_| Err(damage())))).await;
        let answer = chat(server.address, &ask(json!({}))).await;
        assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")));
        assert_eq!(answer.json()["error"]["code"], "pool_degraded");
    }
}
