//! What the operator asks for: which models are loaded and how busy they are; load and unload.
//!
//! The routes have the shapes of llama.cpp's router and of llama-swap where those have one.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::response::sse::{Event as Frame, KeepAlive, Sse};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use toko_engine::Residence;

use crate::catalog::Entry;
use crate::error::ApiError;
use crate::state::Shared;
use crate::validate::missing;
use crate::{body, intake, sse};

/// How often it is looked whether a model has come or gone.
const WATCH_EVERY: Duration = Duration::from_millis(100);

/// Names the model that is to come or go.
#[derive(Debug, Deserialize)]
struct ModelRequest {
    model: Option<String>,
}

/// Loads a model and answers when it is there.
pub(crate) async fn load(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let load = |shared: &Shared, bytes: &[u8]| {
        let model = shared.model(&named(bytes)?)?;
        Ok(json!({"success": true, "model": model.id}))
    };
    intake::digest(&shared, &headers, body, load).await.map(Json)
}

/// Unloads a model and answers when its memory is free.
pub(crate) async fn unload(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let unload = |shared: &Shared, bytes: &[u8]| take_away(shared, &named(bytes)?);
    intake::digest(&shared, &headers, body, unload).await.map(Json)
}

/// Unloads every model.
pub(crate) async fn unload_all(State(shared): State<Arc<Shared>>) -> Result<Json<Value>, ApiError> {
    let unload = |shared: &Shared| {
        for entry in shared.catalog.entries() {
            entry.unload(shared);
        }
        Ok(json!({"success": true}))
    };
    intake::work(&shared, unload).await.map(Json)
}

/// Unloads the model that the path names.
pub(crate) async fn unload_named(
    State(shared): State<Arc<Shared>>,
    Path(asked): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let unload = move |shared: &Shared| take_away(shared, &asked);
    intake::work(&shared, unload).await.map(Json)
}

fn take_away(shared: &Shared, asked: &str) -> Result<Value, ApiError> {
    let entry = shared.catalog.find(asked)?;
    entry.unload(shared);
    Ok(json!({"success": true, "model": entry.id}))
}

/// Lists the models that take memory.
pub(crate) async fn running(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let entries = shared.catalog.entries().iter();
    let running: Vec<Value> = entries
        .filter(|entry| entry.residence() != Residence::Unloaded)
        .map(|entry| json!({"model": entry.id, "state": state(entry)}))
        .collect();
    Json(json!({"running": running}))
}

/// Tells how far each model is, and whenever that changes, until the shutdown begins.
pub(crate) async fn events(State(shared): State<Arc<Shared>>) -> Response {
    let ping_every = shared.limits.ping_every;
    let (sender, frames) = mpsc::channel(1);
    tokio::spawn(watch(shared, sender));
    let frames = ReceiverStream::new(frames).map(Ok::<_, Infallible>);
    sse::stream(Sse::new(frames).keep_alive(KeepAlive::new().interval(ping_every)))
}

async fn watch(shared: Arc<Shared>, sender: mpsc::Sender<Frame>) {
    let mut told = vec![None; shared.catalog.entries().len()];
    let mut ticks = tokio::time::interval(WATCH_EVERY);
    while shared.is_open() && !sender.is_closed() {
        ticks.tick().await;
        for (entry, told) in shared.catalog.entries().iter().zip(&mut told) {
            let state = state(entry);
            if told.replace(state) == Some(state) {
                continue;
            }
            let data = json!({"status": if state == "ready" { "loaded" } else { state }});
            let event = json!({"model": entry.id, "event": "model_status", "data": data});
            if sender.send(Frame::default().data(event.to_string())).await.is_err() {
                return;
            }
        }
    }
}

/// Tells for each model how many replicas it has and how many requests run and wait.
pub(crate) async fn queue(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let entries = shared.catalog.entries().iter();
    let models: Vec<Value> = entries.map(|entry| occupancy(entry)).collect();
    Json(json!({"models": models}))
}

fn occupancy(entry: &Entry) -> Value {
    let mut model = json!({"id": entry.id, "state": state(entry)});
    if let Some(backend) = entry.loaded() {
        let occupancy = backend.occupancy();
        model["context_tokens"] = json!(backend.info().context_tokens);
        model["replicas"] = json!({
            "size": occupancy.size,
            "idle": occupancy.idle,
            "leased": occupancy.leased,
            "lost": occupancy.lost,
        });
        model["waiting"] = json!(occupancy.waiting);
    }
    model
}

/// Returns the public word for how far a model is.
pub(crate) fn state(entry: &Entry) -> &'static str {
    match entry.residence() {
        Residence::Unloaded => "unloaded",
        Residence::Loading => "loading",
        Residence::Loaded => "ready",
        Residence::Unloading => "unloading",
    }
}

fn named(bytes: &[u8]) -> Result<String, ApiError> {
    let request: ModelRequest = body::parse(bytes)?;
    request.model.ok_or_else(|| missing("model"))
}
