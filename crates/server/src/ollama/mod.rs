//! The Ollama dialect: wire types, rules and shapes of the routes under `/api`.
//!
//! Models are looked at and answer here; they are not fetched, made or removed.

mod chat;
mod embed;
mod generate;
mod keep_alive;
mod line;
mod message;
mod models;
mod options;
mod request;

use std::sync::Arc;

use axum::Router;
use axum::routing::{delete, get, post};

use crate::state::Shared;

pub(crate) use line::error_object;

/// Lays out the routes.
pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/api/version", get(models::version))
        .route("/api/tags", get(models::tags))
        .route("/api/ps", get(models::ps))
        .route("/api/show", post(models::show))
        .route("/api/chat", post(chat::create))
        .route("/api/generate", post(generate::create))
        .route("/api/embed", post(embed::create))
        .route("/api/embeddings", post(embed::create_one))
        .route("/api/pull", post(models::unmanaged))
        .route("/api/push", post(models::unmanaged))
        .route("/api/create", post(models::unmanaged))
        .route("/api/copy", post(models::unmanaged))
        .route("/api/delete", delete(models::unmanaged))
}
