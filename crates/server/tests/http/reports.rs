//! What people reported of other servers, where no other test here covers it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use toko_engine::{Error, Event};

use crate::client::{Connection, chat, exchange, get};
use crate::errors::check;
use crate::fake::{Fake, Server, ask, summary, tell, text};

const CHAT: &str = "/v1/chat/completions";

async fn impatient() -> Server {
    Server::start_with(Arc::new(Fake::saying(&["ok"])), |state| {
        state.limits.client_silence = Duration::from_millis(300);
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_sends_half_a_head_is_cut() {
    let server = impatient().await;
    for half in ["", "POST /v1/chat/completions HTTP/1.1\r\nhost: local"] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(half.as_bytes()).await.unwrap();
        let mut received = Vec::new();
        // Returns when the server closes, which it would never do on its own.
        stream.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, b"", "{half:?}");
    }
    assert_eq!(get(server.address, "/health").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_sends_half_a_body_gets_a_408() {
    let server = impatient().await;
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
                content-type: application/json\r\ncontent-length: 1000\r\n\r\n{\"model\"";
    let mut connection = Connection::open(server.address).await;
    connection.send(head.as_bytes().to_vec()).await;
    let error = check(&connection.answer().await, 408, "request_timeout", None);
    assert_eq!(error["type"], "invalid_request_error");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_answer_is_not_cut_because_its_client_is_silent() {
    let (release, released) = mpsc::channel::<()>();
    let released = Arc::new(Mutex::new(released));
    let fake = Fake::new(move |mut sink| {
        let released = Arc::clone(&released);
        thread::spawn(move || {
            tell(&mut sink, Event::Prefilled { tokens: 1 });
            released.lock().unwrap().recv().unwrap();
            tell(&mut sink, text("late"));
            tell(&mut sink, Event::Finished(summary()));
        });
        Ok(())
    });
    let server = Server::start_with(Arc::new(fake), |state| {
        state.limits.client_silence = Duration::from_millis(300);
        state.limits.ping_every = Duration::from_millis(600);
    })
    .await;
    let mut connection =
        Connection::post(server.address, CHAT, &ask(json!({"stream": true}))).await;
    // By the first ping it has been silent for twice as long as it may be within a request.
    connection.read_until("\n:\n\n").await;
    release.send(()).unwrap();
    assert!(connection.answer().await.body.contains("late"));
}

#[tokio::test(flavor = "multi_thread")]
async fn hundreds_at_once_are_answered_or_told_when_to_come_back() {
    const PLACES: usize = 20;
    const CLIENTS: usize = 330;
    let (taken, places) = (AtomicUsize::new(0), Arc::new(Mutex::new(Vec::new())));
    let waiting = Arc::clone(&places);
    let fake = Fake::new(move |sink| {
        if taken.fetch_add(1, Ordering::Relaxed) >= PLACES {
            return Err(Error::QueueFull { waiting: PLACES, retry_after_seconds: 3 });
        }
        waiting.lock().unwrap().push(sink);
        Ok(())
    });
    let server = Server::start(Arc::new(fake)).await;
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let address = server.address;
        clients.spawn(async move { chat(address, &ask(json!({}))).await });
    }
    let (mut answered, mut refused) = (0, 0);
    while let Some(answer) = clients.join_next().await {
        let answer = answer.unwrap();
        match answer.status {
            200 => answered += 1,
            429 => {
                assert_eq!(answer.header("retry-after"), Some("3"));
                refused += 1;
            }
            other => panic!("{other}: {}", answer.body),
        }
        // Those that have places are answered once all others were sent away.
        if refused == CLIENTS - PLACES && answered == 0 {
            assert_eq!(get(server.address, "/readyz").await.status, 200);
            for mut sink in places.lock().unwrap().drain(..) {
                tell(&mut sink, Event::Finished(summary()));
            }
        }
    }
    assert_eq!((answered, refused), (PLACES, CLIENTS - PLACES));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_request_has_the_head_of_the_answer_and_no_body() {
    let server = Server::saying(&[]).await;
    for path in ["/", "/health", "/v1/models", "/v1/models/model-q1"] {
        let whole = get(server.address, path).await;
        let head = exchange(server.address, "HEAD", path, &[], b"").await;
        assert_eq!((head.status, head.body.as_str()), (200, ""), "{path}");
        assert_eq!(head.header("content-type"), whole.header("content-type"), "{path}");
    }
    let wrong = exchange(server.address, "HEAD", "/v1/completions", &[], b"").await;
    assert_eq!((wrong.status, wrong.header("allow")), (405, Some("POST")));
}

#[tokio::test(flavor = "multi_thread")]
async fn options_are_answered_everywhere_and_open_nothing() {
    let server = Server::saying(&[]).await;
    for path in ["/", CHAT, "/v1/nope"] {
        let plain = exchange(server.address, "OPTIONS", path, &[], b"").await;
        assert_eq!((plain.status, plain.header("access-control-allow-origin")), (200, None));
        let foreign = ["origin: https://example.org", "access-control-request-method: POST"];
        let foreign = exchange(server.address, "OPTIONS", path, &foreign, b"").await;
        assert_eq!((foreign.status, foreign.header("access-control-allow-origin")), (200, None));
    }
}
