//! The API's own description, held against the routes, the statuses and the version.

use std::collections::BTreeSet;

use axum::http::StatusCode;
use serde_json::Value;

use crate::client::{exchange, get};
use crate::fake::Server;

const ROUTES: [&str; 2] =
    [include_str!("../../src/lib.rs"), include_str!("../../src/ollama/mod.rs")];
const ERRORS: &str = include_str!("../../src/error.rs");

async fn document() -> Value {
    let server = Server::saying(&[]).await;
    let answer = get(server.address, "/openapi.json").await;
    assert_eq!(answer.status, 200);
    answer.json()
}

/// The method and the path of each operation.
fn operations(document: &Value) -> BTreeSet<(String, String)> {
    let paths = document["paths"].as_object().unwrap().iter();
    let each = paths.flat_map(|(path, methods)| {
        let methods = methods.as_object().unwrap().keys();
        methods.map(move |method| (method.clone(), path.clone()))
    });
    each.collect()
}

/// The method and the path of each route, as the source lays them out.
fn routes() -> BTreeSet<(String, String)> {
    let lines: Vec<&str> =
        ROUTES.iter().flat_map(|source| source.split(".route(\"").skip(1)).collect();
    let route = |line: &&str| {
        let (path, rest) = line.split_once("\", ").unwrap();
        let (method, _) = rest.split_once('(').unwrap();
        (method.to_owned(), path.replace("{*", "{"))
    };
    lines.iter().map(route).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_is_described_and_nothing_else_is() {
    let document = document().await;
    assert_eq!(operations(&document), routes());
    assert!(routes().len() > 20);
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_described_operation_is_there() {
    let server = Server::saying(&[]).await;
    // The stream of changes ends with the server.
    let operations = operations(&document().await).into_iter();
    for (method, path) in operations.filter(|(_, path)| path != "/models/sse") {
        let place = path.replace("{id}", "model-q1");
        let headers = ["content-type: application/json"];
        let method = method.to_uppercase();
        let answer = exchange(server.address, &method, &place, &headers, b"{}").await;
        assert!(matches!(answer.status, 200 | 400), "{method} {path}: {}", answer.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_status_of_the_error_table_is_described() {
    let document = document().await;
    let paths = document["paths"].as_object().unwrap().values();
    let operations = paths.flat_map(|methods| methods.as_object().unwrap().values());
    let described: BTreeSet<u16> = operations
        .flat_map(|operation| operation["responses"].as_object().unwrap().keys())
        .map(|status| status.parse().unwrap())
        .collect();
    let can_be_given = (400..600).filter(|&status| {
        let reason = StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
        reason.is_some_and(|reason| {
            let name = reason.to_uppercase().replace(' ', "_");
            ["S::", "StatusCode::"].iter().any(|of| ERRORS.contains(&format!("{of}{name},")))
        })
    });
    // A method that a path does not take is no operation of that path.
    let expected: BTreeSet<u16> =
        can_be_given.filter(|&status| status != 405).chain([200]).collect();
    assert!(expected.len() > 9, "{expected:?}");
    assert_eq!(described, expected);
}
