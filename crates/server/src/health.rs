//! Routes that say whether the process lives and whether it takes work; they never load a model.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::catalog::Entry;
use crate::error::ApiError;
use crate::state::Shared;

/// Answers as long as the process does.
pub(crate) async fn live() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

/// Tells whether all pools are whole.
pub(crate) async fn health(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let lost =
        |entry: &Arc<Entry>| entry.loaded().is_some_and(|backend| backend.occupancy().lost > 0);
    let is_degraded = shared.catalog.entries().iter().any(lost);
    Json(json!({"status": if is_degraded { "degraded" } else { "ok" }}))
}

/// Answers 200 while new requests are accepted and 503 once the shutdown has begun.
pub(crate) async fn ready(State(shared): State<Arc<Shared>>) -> Result<Json<Value>, ApiError> {
    if shared.is_open() { Ok(live().await) } else { Err(ApiError::ShuttingDown) }
}

/// Names the program's version.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}

/// Tells a person in a browser what this is, and clients of Ollama's API what they look for.
pub(crate) async fn index() -> &'static str {
    "Tokonoma is running; to clients of its API, Ollama is running\n"
}
