//! Routes that say whether the process lives and whether it takes work; they never touch the model.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::state::Shared;

/// Answers as long as the process does.
pub(crate) async fn live() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

/// Answers 200 while new requests are accepted and 503 once the shutdown has begun.
pub(crate) async fn ready(State(shared): State<Arc<Shared>>) -> Result<Json<Value>, ApiError> {
    if shared.is_open() { Ok(live().await) } else { Err(ApiError::ShuttingDown) }
}

/// Names the program's version.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}

/// Tells a person in a browser what this is.
pub(crate) async fn index() -> &'static str {
    "Tokonoma is running\n"
}
