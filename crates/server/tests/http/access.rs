//! Who may call, and the headers that every answer has.

use std::sync::Arc;

use serde_json::json;

use crate::client::exchange;
use crate::fake::{Fake, Server};

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_was_rebound_to_this_machine_is_refused() {
    let server = Server::saying(&[]).await;
    for host in [
        "example.org",
        "example.org:80",
        "localhost.example.org",
        "192.168.0.1",
        "",
        "a b",
        "localhost@evil.org",
    ] {
        let answer =
            exchange(server.address, "GET", "/v1/models", &[&format!("host: {host}")], b"").await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["code"]),
            (403, &json!("host_not_allowed")),
            "{host}"
        );
    }
    for host in ["localhost", "LocalHost:1234", "127.0.0.1:80", "[::1]:80"] {
        let answer =
            exchange(server.address, "GET", "/v1/models", &[&format!("host: {host}")], b"").await;
        assert_eq!(answer.status, 200, "{host}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn further_hosts_and_origins_can_be_allowed() {
    let server = Server::start_with(Arc::new(Fake::saying(&[])), |state| {
        state.access.hosts = vec!["Box.Lan".to_owned()];
        state.access.origins = vec!["https://chat.example.org".to_owned()];
    })
    .await;
    let headers = ["host: box.lan:1", "origin: https://chat.example.org"];
    let answer = exchange(server.address, "GET", "/v1/models", &headers, b"").await;
    assert_eq!(
        (answer.status, answer.header("access-control-allow-origin")),
        (200, Some("https://chat.example.org"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_star_lets_every_page_read_answers() {
    let server = Server::start_with(Arc::new(Fake::saying(&[])), |state| {
        state.access.origins = vec!["*".to_owned()];
    })
    .await;
    let headers = ["origin: https://anywhere.example.org"];
    let answer = exchange(server.address, "GET", "/v1/models", &headers, b"").await;
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://anywhere.example.org"));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_pages_of_this_machine_may_read_answers() {
    let server = Server::saying(&[]).await;
    for origin in ["http://localhost:3000", "http://127.0.0.1", "https://[::1]:8443"] {
        let answer =
            exchange(server.address, "GET", "/v1/models", &[&format!("origin: {origin}")], b"")
                .await;
        assert_eq!(answer.header("access-control-allow-origin"), Some(origin));
    }
    for origin in [
        "https://example.org",
        "null",
        "http://localhost.example.org",
        "http://localhost:1@example.org",
    ] {
        let answer =
            exchange(server.address, "GET", "/v1/models", &[&format!("origin: {origin}")], b"")
                .await;
        assert_eq!(answer.header("access-control-allow-origin"), None, "{origin}");
    }
    let plain = exchange(server.address, "GET", "/v1/models", &[], b"").await;
    assert_eq!(plain.header("access-control-allow-origin"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preflight_allows_the_headers_that_browsers_clients_send() {
    let server = Server::saying(&[]).await;
    let headers = [
        "origin: http://localhost:5173",
        "access-control-request-method: POST",
        "access-control-request-headers: authorization,content-type,x-stainless-os",
    ];
    let answer = exchange(server.address, "OPTIONS", "/v1/chat/completions", &headers, b"").await;
    assert_eq!(answer.status, 200);
    let allowed = answer.header("access-control-allow-headers").unwrap();
    assert_eq!(allowed, "authorization,content-type,x-stainless-os");
    assert!(answer.header("access-control-allow-methods").unwrap().contains("POST"));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_carries_a_request_id() {
    let server = Server::saying(&[]).await;
    let echoed = exchange(server.address, "GET", "/nope", &["x-request-id: mine-7"], b"").await;
    assert_eq!(echoed.header("x-request-id"), Some("mine-7"));
    let first = exchange(server.address, "GET", "/health", &[], b"").await;
    let second = exchange(server.address, "GET", "/health", &["host: example.org"], b"").await;
    let ids = [first.header("x-request-id").unwrap(), second.header("x-request-id").unwrap()];
    assert!(ids[0].starts_with("req_") && ids[0] != ids[1], "{ids:?}");
    assert!(first.header("server").unwrap().starts_with("tokonoma/"));
    assert!(first.header("openai-processing-ms").unwrap().parse::<u64>().is_ok());
}
