//! Models that share too little memory: who is let in, who has to go, and what is said about it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use toko_admission::decision::{Decision, Load};
use toko_admission::eviction::Candidate;
use toko_admission::handles::{Admission, Admitted};
use toko_admission::ledger::{Env, ModelId, Outside, ScopeId, Verdict};
use toko_admission::sizing::{Kind, Term};
use toko_admission::surroundings::Fixed;
use toko_admission::units::Bytes;
use toko_engine::Event;
use toko_server::{Backend, LoadError, ServedModel};

use crate::client::{chat, exchange, get, post};
use crate::fake::{self, Fake, Server, ask};

/// A machine on which models may take 1,000 MiB together.
fn admission() -> Admission {
    let env = Env {
        ceiling: Bytes::from_mib(1000),
        ceiling_by: "the test".to_owned(),
        available: Some(Bytes::from_mib(8000)),
        others: Some(Outside::default()),
        total: Some(Bytes::from_mib(16_000)),
        ..Env::default()
    };
    Admission::new(Box::new(Fixed(env)), ScopeId(0))
}

fn wanted(model: &str, mib: u64) -> Load {
    let mut load = Load { model: ModelId::new(model), ..Load::of_nothing() };
    if let Some(sizing) = &mut load.sizing {
        let (kind, bytes, source) = (Kind::Runtime, Bytes::from_mib(mib), "the test".to_owned());
        sizing.fixed = vec![Term { kind, bytes, source }];
    }
    load
}

/// Loads a scripted model as a real one is loaded.
fn load(
    admission: &Admission,
    load: &Load,
    idle: &[Candidate],
    script: Fake,
) -> Result<Arc<dyn Backend>, LoadError> {
    let explain = |preflight| {
        admission.inspect(|ledger, env| Decision::explain(load, &preflight, ledger, env, idle))
    };
    match admission.reserve(&load.ask()) {
        Ok((Admitted::Cold(reservation), _)) => {
            let resident = reservation.launch().1.publish(Bytes::ZERO);
            let bytes = load.footprint().expect("it has a size").total();
            Ok(Arc::new(script.holding(bytes, resident)))
        }
        Ok((Admitted::Warm(_), _)) => panic!("a load is cold"),
        Err(refusal) => Err(LoadError::Refused(Box::new(explain(refusal)))),
    }
}

fn model(admission: &Admission, name: &'static str, mib: u64) -> ServedModel {
    let (admission, wanted) = (admission.clone(), wanted(name, mib));
    let explained = (admission.clone(), wanted.clone());
    let mut served = fake::served(name, || panic!("replaced below"));
    served.aliases.clear();
    served.load = Box::new(move |idle| load(&admission, &wanted, idle, Fake::saying(&["Hi"])));
    served.explain = Box::new(move |_, idle| {
        let (admission, wanted) = &explained;
        Ok(admission.inspect(|ledger, env| Decision::of(wanted, ledger, env, idle)))
    });
    served
}

async fn serving(admission: &Admission, models: Vec<ServedModel>) -> Server {
    let steward = Arc::new(fake::steward(admission.clone(), std::path::Path::new("no/such")));
    Server::start_with(Arc::new(Fake::saying(&[])), |state| {
        state.models = models;
        state.steward = steward;
    })
    .await
}

async fn states(server: &Server) -> Vec<String> {
    let queue = get(server.address, "/admin/v1/queue").await.json();
    let models = queue["models"].as_array().expect("there are models").clone();
    models.iter().map(|model| model["state"].as_str().expect("a state").to_owned()).collect()
}

fn to(model: &str) -> Value {
    ask(json!({"model": model, "stream": false}))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_model_goes_for_one_that_has_no_room_beside_it() {
    let admission = admission();
    let models =
        vec![model(&admission, "a", 700), model(&admission, "b", 400), model(&admission, "c", 250)];
    let server = serving(&admission, models).await;
    assert_eq!(chat(server.address, &to("a")).await.status, 200);
    assert_eq!(chat(server.address, &to("c")).await.status, 200);
    assert_eq!(states(&server).await, ["ready", "unloaded", "ready"], "both have room");
    let answer = chat(server.address, &to("b")).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(
        states(&server).await,
        ["unloaded", "ready", "ready"],
        "only who had to go has gone"
    );
    let metrics = get(server.address, "/metrics").await.body;
    assert!(metrics.contains("toko_evictions_total{reason=\"room\"} 1"), "{metrics}");
    assert!(metrics.contains("toko_memory_bytes{kind=\"charged\"} 681574400"), "{metrics}");
    assert!(metrics.contains("toko_model_state{model=\"b\",state=\"ready\"} 1"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pinned_model_stays_and_the_refusal_tells_who_holds_what() {
    let admission = admission();
    let pinned = ServedModel { is_pinned: true, ..model(&admission, "a", 700) };
    let server = serving(&admission, vec![pinned, model(&admission, "b", 400)]).await;
    let refusal = chat(server.address, &to("b")).await;
    assert_eq!((refusal.status, refusal.header("retry-after")), (503, Some("5")));
    let error = &refusal.json()["error"];
    assert_eq!(error["code"], "insufficient_memory");
    assert_eq!(error["required_bytes"], 400 << 20);
    assert_eq!(error["limit_bytes"], 300 << 20);
    let decision = &error["decision"];
    assert_eq!(
        (&decision["verdict"], &decision["reason"]),
        (&json!("refuse"), &json!("exceeds_configured_ceiling"))
    );
    let holder = &decision["holders"][0];
    assert_eq!(
        (&holder["model"], &holder["bytes"], &holder["is_pinned"]),
        (&json!("a"), &json!(700 << 20), &json!(true))
    );
    assert_eq!(states(&server).await, ["ready", "unloaded"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_never_fits_is_the_requests_fault() {
    let admission = admission();
    let server =
        serving(&admission, vec![model(&admission, "a", 100), model(&admission, "b", 1001)]).await;
    let refusal = chat(server.address, &to("b")).await;
    assert_eq!((refusal.status, refusal.header("x-should-retry")), (400, Some("false")));
    let body = refusal.json();
    assert_eq!(body["error"]["code"], "model_too_large");
    assert_eq!(body["error"]["param"], "model");
    assert_eq!(states(&server).await, ["ready", "unloaded"], "nobody goes in vain");
}

/// A model whose answers end when `go` says so, and which tells `begun` that one has begun.
fn slow(
    admission: &Admission,
    name: &'static str,
    mib: u64,
) -> (ServedModel, Receiver<()>, Sender<()>) {
    let ((begins, begun), (go, goes)) = (channel(), channel());
    let goes = Arc::new(Mutex::new(goes));
    let (admission, wanted) = (admission.clone(), wanted(name, mib));
    let mut served = fake::served(name, || panic!("replaced below"));
    served.aliases.clear();
    served.load = Box::new(move |idle| {
        let (begins, goes) = (begins.clone(), Arc::clone(&goes));
        let running = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&running);
        let script = Fake::new(move |mut sink| {
            let (begins, goes, counted) = (begins.clone(), Arc::clone(&goes), Arc::clone(&counted));
            counted.fetch_add(1, Ordering::SeqCst);
            std::thread::spawn(move || {
                begins.send(()).expect("the test waits");
                goes.lock().expect("one at a time").recv().expect("the test goes on");
                counted.fetch_sub(1, Ordering::SeqCst);
                fake::tell(&mut sink, Event::Finished(fake::summary()));
            });
            Ok(())
        });
        load(&admission, &wanted, idle, script.running(&running))
    });
    (served, begun, go)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_in_use_never_goes() {
    let admission = admission();
    let (busy, begun, go) = slow(&admission, "a", 700);
    let server = serving(&admission, vec![busy, model(&admission, "b", 400)]).await;
    let address = server.address;
    let running = tokio::spawn(async move { chat(address, &to("a")).await.status });
    tokio::task::spawn_blocking(move || begun.recv()).await.unwrap().unwrap();
    let refusal = chat(server.address, &to("b")).await;
    assert_eq!(refusal.status, 503, "{}", refusal.body);
    let fixes = refusal.json()["error"]["decision"]["fixes"].take();
    let kinds: Vec<&Value> = fixes.as_array().unwrap().iter().map(|fix| &fix["kind"]).collect();
    assert_eq!(kinds, ["policy"], "no unload is proposed");
    go.send(()).unwrap();
    assert_eq!(running.await.unwrap(), 200);
    let mut status = 503;
    // The answer is complete a moment before its model is out of use.
    while status == 503 {
        status = chat(server.address, &to("b")).await.status;
    }
    assert_eq!(
        (status, states(&server).await),
        (200, vec!["unloaded".to_owned(), "ready".to_owned()])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resident_model_answers_while_another_is_being_loaded() {
    let admission = admission();
    let ((begins, begun), (go, goes)) = (channel(), channel());
    let (goes, slow_load) = (Mutex::new(goes), admission.clone());
    let mut late = model(&admission, "late", 100);
    late.load = Box::new(move |idle| {
        begins.send(()).expect("the test waits");
        goes.lock().expect("one load").recv().expect("the test goes on");
        load(&slow_load, &wanted("late", 100), idle, Fake::saying(&["at last"]))
    });
    let server = serving(&admission, vec![model(&admission, "a", 100), late]).await;
    let address = server.address;
    let waiting = tokio::spawn(async move { chat(address, &to("late")).await.status });
    tokio::task::spawn_blocking(move || begun.recv()).await.unwrap().unwrap();
    for _ in 0..20 {
        assert_eq!(chat(server.address, &to("a")).await.status, 200);
    }
    assert_eq!(states(&server).await, ["ready", "loading"]);
    assert!(!waiting.is_finished());
    go.send(()).unwrap();
    assert_eq!(waiting.await.unwrap(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_is_kept_for_no_time_goes_after_its_answer() {
    let admission = admission();
    let kept = ServedModel { keep_alive: Some(Duration::ZERO), ..model(&admission, "a", 700) };
    let server = serving(&admission, vec![kept]).await;
    while states(&server).await != ["unloaded"] {}
    assert_eq!(admission.snapshot().charged, Bytes::ZERO);
    let answer = chat(server.address, &to("a")).await;
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "Hi");
    while states(&server).await != ["unloaded"] {}
}

#[tokio::test(flavor = "multi_thread")]
async fn ollama_clients_say_for_how_long_a_model_is_kept() {
    let admission = admission();
    let server = serving(&admission, vec![model(&admission, "a", 700)]).await;
    let kept = || async {
        let memory = get(server.address, "/admin/v1/memory").await.json();
        memory["models"][0]["keep_alive_seconds"].clone()
    };
    assert_eq!(kept().await, json!(null));
    for (keep_alive, expected) in
        [(json!("1h30m"), json!(5400)), (json!(7), json!(7)), (json!(-1), json!(null))]
    {
        let request =
            json!({"model": "a", "prompt": "Hi", "stream": false, "keep_alive": keep_alive});
        assert_eq!(post(server.address, "/api/generate", &request).await.status, 200);
        assert_eq!(kept().await, expected, "{keep_alive}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_sees_the_memory_and_asks_what_would_fit() {
    let admission = admission();
    let server =
        serving(&admission, vec![model(&admission, "a", 700), model(&admission, "b", 400)]).await;
    let memory = get(server.address, "/admin/v1/memory").await.json();
    assert_eq!(memory["ceiling_bytes"], 1000 << 20);
    assert_eq!(memory["charged_bytes"], 700 << 20);
    assert_eq!(memory["room_bytes"], 300 << 20);
    assert_eq!(memory["holders"][0]["model"], "a");
    assert_eq!(memory["models"][0]["bytes"], 700 << 20);
    assert_eq!(memory["models"][1]["bytes"], json!(null));
    let decision = post(server.address, "/admin/v1/explain", &json!({"model": "b"})).await.json();
    assert_eq!((&decision["verdict"], &decision["model"]), (&json!("refuse"), &json!("b")));
    assert_eq!(decision["need"]["total_bytes"], 400 << 20);
    assert_eq!(decision["fixes"][0]["kind"], "unload");
    assert_eq!(decision["fixes"][0]["models"], json!(["a"]));
    assert_eq!(states(&server).await, ["ready", "unloaded"], "asking loads nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_policy_is_shown_and_set() {
    let folder = tempfile::tempdir().unwrap();
    let steward = Arc::new(fake::steward(Admission::unlimited(), folder.path()));
    let server =
        Server::start_with(Arc::new(Fake::saying(&[])), |state| state.steward = steward).await;
    let shown = get(server.address, "/admin/v1/policy").await.json();
    assert_eq!(
        (&shown["policy"], &shown["source"]),
        (&json!("everyday"), &json!("missing_default"))
    );
    let set = |policy: Value| {
        let body = json!({"policy": policy}).to_string();
        async move {
            let headers = ["content-type: application/json"];
            exchange(server.address, "PUT", "/admin/v1/policy", &headers, body.as_bytes()).await
        }
    };
    let answer = set(json!("custom:12.5GB")).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.json()["custom_max_model_mb"], 12_800);
    let saved = std::fs::read(folder.path().join("model-resource-policy.json")).unwrap();
    let saved: Value = serde_json::from_slice(&saved).unwrap();
    assert_eq!(saved, json!({"profile": "custom", "custom_max_model_mb": 12_800}));
    let refused = set(json!("custom:12.3GB")).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("policy")));
    assert_eq!(get(server.address, "/admin/v1/policy").await.json()["policy"], "custom:12.5GB");
    let events = get(server.address, "/admin/v1/events").await;
    assert_eq!((events.status, events.json()["events"].is_array()), (200, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn kept_prompts_go_before_a_model_does() {
    let kept = Arc::new(Mutex::new(Bytes::from_mib(64)));
    let (admission, has_room) = (admission(), Arc::clone(&kept));
    let keeper = (admission.clone(), Arc::clone(&kept));
    let mut first = model(&admission, "a", 100);
    first.load = Box::new(move |idle| {
        let (admission, kept) = &keeper;
        load(admission, &wanted("a", 100), idle, Fake::saying(&["Hi"]).keeping(kept))
    });
    let mut second = model(&admission, "b", 100);
    second.load = Box::new(move |idle| {
        if *has_room.lock().unwrap() > Bytes::ZERO {
            let mut refusal =
                admission.inspect(|ledger, env| Decision::of(&wanted("b", 100), ledger, env, idle));
            refusal.reason = Verdict::InsufficientLiveMemory;
            return Err(LoadError::Refused(Box::new(refusal)));
        }
        load(&admission, &wanted("b", 100), idle, Fake::saying(&["Hi"]))
    });
    let server = serving(&Admission::unlimited(), vec![first, second]).await;
    assert_eq!(chat(server.address, &to("b")).await.status, 200);
    assert_eq!(states(&server).await, ["ready", "ready"]);
    assert_eq!(*kept.lock().unwrap(), Bytes::ZERO);
}
