//! API keys, asked for and shown.

use std::sync::Arc;

use serde_json::json;
use toko_server::ApiKey;

use crate::client::{Answer, exchange, get};
use crate::fake::{Fake, Server, ask};

const KEYS: [&str; 2] = ["sk-first-0123", "second"];

async fn guarded() -> (Arc<Fake>, Server) {
    let fake = Arc::new(Fake::saying(&["Hi"]));
    let server = Server::start_with(fake.clone(), |state| {
        state.access.keys = KEYS.map(|key| ApiKey::new(key).unwrap()).to_vec();
    })
    .await;
    (fake, server)
}

#[track_caller]
fn check_refused(answer: &Answer) {
    assert_eq!((answer.status, answer.header("www-authenticate")), (401, Some("Bearer")));
    let error = answer.json()["error"].take();
    assert_eq!(
        (&error["type"], &error["code"], &error["param"]),
        (&json!("authentication_error"), &json!("invalid_api_key"), &json!(null))
    );
    for key in KEYS {
        assert!(!answer.body.contains(key), "{}", answer.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_of_the_keys_in_either_header_opens_the_server() {
    let (_, server) = guarded().await;
    for key in KEYS {
        for header in [
            format!("authorization: Bearer {key}"),
            format!("Authorization: bearer {key}"),
            format!("x-api-key: {key}"),
        ] {
            let answer = exchange(server.address, "GET", "/v1/models", &[&header], b"").await;
            assert_eq!(answer.status, 200, "{header}");
        }
    }
    // Clients that have a key of another service in the other header still get in.
    let both = ["authorization: Bearer other", "x-api-key: second"];
    assert_eq!(exchange(server.address, "GET", "/v1/models", &both, b"").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_right_key_nothing_but_health_is_answered() {
    let (fake, server) = guarded().await;
    let body = ask(json!({})).to_string();
    let wrong: [&[&str]; 7] = [
        &[],
        &["authorization: Bearer sk-first-012"],
        &["authorization: Bearer sk-first-0123x"],
        &["authorization: Basic sk-first-0123"],
        &["authorization: sk-first-0123"],
        &["authorization: Bearer "],
        &["x-api-key: Second"],
    ];
    for headers in wrong {
        for (method, path) in [
            ("POST", "/v1/chat/completions"),
            ("POST", "/chat/completions"),
            ("GET", "/v1/chat/completions"),
            ("GET", "/v1/models"),
            ("GET", "/v1/models/default"),
            ("GET", "/version"),
            ("GET", "/nope"),
            ("GET", "/health/../v1/models"),
        ] {
            let headers = [headers, &["content-type: application/json"]].concat();
            check_refused(&exchange(server.address, method, path, &headers, body.as_bytes()).await);
        }
    }
    assert!(!fake.was_asked());
}

#[tokio::test(flavor = "multi_thread")]
async fn health_needs_no_key() {
    let (_, server) = guarded().await;
    for path in ["/", "/health", "/v1/health", "/healthz", "/livez", "/readyz"] {
        assert_eq!(get(server.address, path).await.status, 200, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preflight_needs_no_key_and_a_page_can_read_the_refusal() {
    let (_, server) = guarded().await;
    let headers = [
        "origin: http://localhost:5173",
        "access-control-request-method: POST",
        "access-control-request-headers: authorization,x-api-key",
    ];
    let answer = exchange(server.address, "OPTIONS", "/v1/chat/completions", &headers, b"").await;
    assert_eq!(
        (answer.status, answer.header("access-control-allow-headers")),
        (200, Some("authorization,x-api-key"))
    );
    let refused = exchange(server.address, "GET", "/v1/models", &headers[..1], b"").await;
    check_refused(&refused);
    assert_eq!(refused.header("access-control-allow-origin"), Some("http://localhost:5173"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_keys_ignores_those_that_clients_send() {
    let server = Server::saying(&["Hi"]).await;
    let headers = ["authorization: Bearer none"];
    assert_eq!(exchange(server.address, "GET", "/v1/models", &headers, b"").await.status, 200);
}
