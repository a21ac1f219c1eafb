//! Clients that leave and a server that ends.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use toko_engine::Event;

use crate::client::{Connection, get, post};
use crate::fake::{Fake, Server, ask, summary, tell, text};

const CHAT: &str = "/v1/chat/completions";

/// Lets a client of an endless answer leave once `sign` of it has arrived.
async fn leaves(fields: Value, sign: Option<&str>) {
    let (given_up, nobody_waits) = oneshot::channel();
    let fake = Arc::new(Fake::endless(given_up));
    let server = Server::start(fake.clone()).await;
    let mut connection = Connection::post(server.address, CHAT, &ask(fields)).await;
    match sign {
        Some(sign) => connection.read_until(sign).await,
        None => {
            while !fake.was_asked() {
                tokio::task::yield_now().await;
            }
        }
    }
    drop(connection);
    nobody_waits.await.expect("the engine is told that the client left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_its_stream_ends_the_sequence() {
    leaves(json!({"stream": true}), Some("assistant")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_before_its_whole_answer_ends_the_sequence() {
    leaves(json!({}), None).await;
}

/// An engine that starts an answer, waits for the sender and ends the answer.
fn pausing() -> (Fake, mpsc::Sender<()>) {
    let (release, released) = mpsc::channel();
    let released = Arc::new(Mutex::new(released));
    let fake = Fake::new(move |mut sink| {
        let released = Arc::clone(&released);
        tell(&mut sink, text("first"));
        thread::spawn(move || {
            // A sender that is gone means a test in which the answer has no end.
            if released.lock().unwrap().recv().is_ok() {
                tell(&mut sink, text(" last"));
                tell(&mut sink, Event::Finished(summary()));
            } else {
                while sink(Event::Prefilled { tokens: 1 }).is_continue() {
                    thread::yield_now();
                }
            }
        });
        Ok(())
    });
    (fake, release)
}

/// Waits until the shutdown has begun, and checks what those hear that come now.
async fn sends_away(address: SocketAddr) {
    // A connection that comes at the very moment of the shutdown may be closed before it has asked anything.
    while tokio::spawn(get(address, "/readyz")).await.is_ok_and(|answer| answer.status == 200) {
        tokio::task::yield_now().await;
    }
    for (path, answer) in [
        ("/readyz", get(address, "/readyz").await),
        (CHAT, post(address, CHAT, &ask(json!({}))).await),
        (CHAT, post(address, CHAT, &ask(json!({"stream": true}))).await),
    ] {
        let code = &answer.json()["error"]["code"];
        assert_eq!((answer.status, code), (503, &json!("server_shutting_down")), "{path}");
        assert!(answer.header("retry-after").is_some());
    }
    assert_eq!(get(address, "/livez").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn running_answers_end_after_the_shutdown_began() {
    let (fake, release) = pausing();
    let fake = Arc::new(fake);
    let server = Server::start(fake.clone()).await;
    let address = server.address;
    let mut streamed = Connection::post(address, CHAT, &ask(json!({"stream": true}))).await;
    streamed.read_until("first").await;
    let ended = server.stop();
    sends_away(address).await;
    release.send(()).unwrap();
    let answer = streamed.answer().await;
    assert!(
        answer.body.contains(" last") && answer.body.ends_with("data: [DONE]\n\n"),
        "{}",
        answer.body
    );
    ended.await.unwrap().unwrap();
    assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_outlast_the_drain_are_cut_with_an_error() {
    let (fake, release) = pausing();
    drop(release);
    let server =
        Server::start_with(Arc::new(fake), |state| state.limits.drain = Duration::ZERO).await;
    let mut streamed = Connection::post(server.address, CHAT, &ask(json!({"stream": true}))).await;
    streamed.read_until("first").await;
    let ended = server.stop();
    let answer = streamed.answer().await;
    let frames = answer.frames();
    let error: Value = serde_json::from_str(frames[frames.len() - 2]).unwrap();
    assert_eq!(
        (&error["error"]["code"], frames[frames.len() - 1]),
        (&json!("server_shutting_down"), "[DONE]")
    );
    ended.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_answer_that_outlasts_the_drain_is_a_503() {
    let (fake, release) = pausing();
    drop(release);
    let fake = Arc::new(fake);
    let server =
        Server::start_with(fake.clone(), |state| state.limits.drain = Duration::ZERO).await;
    let connection = Connection::post(server.address, CHAT, &ask(json!({}))).await;
    while !fake.was_asked() {
        tokio::task::yield_now().await;
    }
    let ended = server.stop();
    let answer = connection.answer().await;
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("5")));
    assert_eq!(answer.json()["error"]["code"], "server_shutting_down");
    ended.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_takes_nothing_does_not_hold_the_end_back() {
    let flood = Fake::new(|mut sink| {
        thread::spawn(move || {
            let filler = "x".repeat(1 << 16);
            for _ in 0..512 {
                if sink(text(&filler)).is_break() {
                    return;
                }
            }
            while sink(Event::Prefilled { tokens: 1 }).is_continue() {
                thread::yield_now();
            }
        });
        Ok(())
    });
    let server = Server::start_with(Arc::new(flood), |state| {
        state.limits.drain = Duration::ZERO;
        state.limits.cut_grace = Duration::ZERO;
    })
    .await;
    let mut stuck = Connection::post(server.address, CHAT, &ask(json!({"stream": true}))).await;
    stuck.read_until("assistant").await;
    server.stop().await.unwrap().unwrap();
    drop(stuck);
}
