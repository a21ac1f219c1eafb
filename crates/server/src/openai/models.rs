//! `GET /v1/models` and `GET /v1/models/{id}`.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use serde_json::{Value, json};

use crate::admin;
use crate::catalog::Entry;
use crate::error::ApiError;
use crate::state::Shared;

/// Lists the models, loaded or not.
pub(crate) async fn list(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let models: Vec<Value> = shared.catalog.entries().iter().map(|entry| describe(entry)).collect();
    Json(json!({"object": "list", "data": models}))
}

/// Describes the model that the path names; names may contain slashes and colons, escaped or not.
pub(crate) async fn retrieve(
    State(shared): State<Arc<Shared>>,
    asked: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Json<Value>, ApiError> {
    // An escape that is no UTF-8 names nothing.
    let Path(asked) = asked.map_err(|_| ApiError::UnknownPath { path: uri.path().to_owned() })?;
    Ok(Json(describe(shared.catalog.find(&asked)?)))
}

/// The public fields, and those that local clients look for beside them; some are known only of a loaded model.
fn describe(entry: &Entry) -> Value {
    let created = entry.created.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut model = json!({
        "id": entry.id,
        "object": "model",
        "created": created,
        "owned_by": "tokonoma",
        "aliases": entry.aliases,
        "status": {"value": admin::state(entry)},
    });
    if let Some(backend) = entry.loaded() {
        let info = backend.info();
        model["max_model_len"] = json!(info.context_tokens);
        model["meta"] = json!({
            "name": info.name,
            "architecture": info.architecture,
            "n_params": info.parameters,
            "size": info.weight_bytes,
            "n_ctx_train": info.trained_context_tokens,
            "n_embd": info.embedding_length,
            "n_vocab": info.vocabulary_tokens,
        });
    }
    model
}
