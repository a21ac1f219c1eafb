//! What is loaded, in Ollama's words: `/api/version`, `/api/tags`, `/api/ps`, `/api/show`; and what is not done there.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::SystemTime;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use toko_engine::ModelInfo;

use super::request::find;
use crate::answer;
use crate::catalog::{Entry, Model};
use crate::error::ApiError;
use crate::state::Shared;
use crate::{body, intake, thinking};

/// The version of Ollama whose API this is; clients look at it to find out what they may send.
const API_VERSION: &str = "0.12.6";

/// Models stay until somebody unloads them; a day that never comes.
const NEVER: &str = "9999-12-31T23:59:59Z";

/// A question about a model.
#[derive(Debug, Deserialize)]
struct ShowRequest {
    model: Option<String>,
    /// An older word for `model`; clients may send both, one of them empty.
    name: Option<String>,
}

/// Names the API's version.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": API_VERSION}))
}

/// Lists the models that can be asked.
pub(crate) async fn tags(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let models: Vec<Value> = shared.catalog.entries().iter().map(|entry| listed(entry)).collect();
    Json(json!({"models": models}))
}

/// Lists the models that are in memory.
pub(crate) async fn ps(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let running = |entry: &Arc<Entry>| {
        let context_tokens = entry.loaded()?.info().context_tokens;
        let mut model = listed(entry);
        model["expires_at"] = json!(NEVER);
        model["size_vram"] = json!(0);
        model["context_length"] = json!(context_tokens);
        Some(model)
    };
    let models: Vec<Value> = shared.catalog.entries().iter().filter_map(running).collect();
    Json(json!({"models": models}))
}

/// Describes the model that a request names.
pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    intake::digest(&shared, &headers, body, described).await.map(Json)
}

/// Answers for the routes that would change which models there are.
pub(crate) async fn unmanaged() -> ApiError {
    ApiError::Unmanaged
}

fn described(shared: &Shared, bytes: &[u8]) -> Result<Value, ApiError> {
    let request: ShowRequest = body::parse(bytes)?;
    let model = request.model.filter(|model| !model.is_empty()).or(request.name);
    let model = Model::of(find(shared, model.as_deref())?, shared)?;
    let info = model.backend.info();
    let template = model.backend.chat_template();
    let mut facts = Map::new();
    facts.insert("general.architecture".to_owned(), json!(info.architecture));
    facts.insert("general.basename".to_owned(), json!(info.name));
    facts.insert("general.parameter_count".to_owned(), json!(info.parameters));
    let of_family = |name: &str| format!("{}.{name}", info.architecture);
    facts.insert(of_family("context_length"), json!(info.trained_context_tokens));
    facts.insert(of_family("embedding_length"), json!(info.embedding_length));
    Ok(json!({
        "modelfile": format!("FROM {}\n", model.id),
        "parameters": format!("num_ctx {}\n", info.context_tokens),
        "template": template.source(),
        "details": details(Some(info)),
        "model_info": facts,
        "capabilities": capabilities(&model),
        "modified_at": time(model.created),
    }))
}

fn capabilities(model: &Model) -> Vec<&'static str> {
    let template = model.backend.chat_template();
    let mut known = vec!["completion"];
    if answer::syntax(template).is_ok() {
        known.push("tools");
    }
    if thinking::is_known_to(template) {
        known.push("thinking");
    }
    known
}

/// Returns what a list says of a model; its sizes are known while it is loaded.
fn listed(entry: &Entry) -> Value {
    let backend = entry.loaded();
    let info = backend.as_ref().map(|backend| backend.info());
    json!({
        "name": entry.id,
        "model": entry.id,
        "modified_at": time(entry.created),
        "size": info.map_or(0, |info| info.weight_bytes),
        "digest": digest(entry),
        "details": details(info),
    })
}

fn details(info: Option<&ModelInfo>) -> Value {
    let family = info.map_or("", |info| &info.architecture);
    let families: Vec<&str> = info.iter().map(|info| &*info.architecture).collect();
    json!({
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": families,
        "parameter_size": info.map(|info| parameter_size(info.parameters)).unwrap_or_default(),
        "quantization_level": "unknown",
    })
}

/// Returns what tells a model from another, in the form of a digest; clients only show and compare it.
fn digest(entry: &Entry) -> String {
    let part = |index: usize| {
        let mut hasher = DefaultHasher::new();
        (index, &entry.id, entry.created).hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    };
    (0..4).map(part).collect()
}

fn time(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

/// Returns a number of parameters as people write it, such as 135M or 7.6B.
fn parameter_size(parameters: u64) -> String {
    let scaled = |unit: u64, sign: char| {
        let tenths = (parameters * 10 + unit / 2) / unit;
        match (tenths / 10, tenths % 10) {
            (whole, 0) => format!("{whole}{sign}"),
            (whole, _) if whole >= 100 => format!("{whole}{sign}"),
            (whole, tenth) => format!("{whole}.{tenth}{sign}"),
        }
    };
    match parameters {
        0..1_000 => parameters.to_string(),
        1_000..1_000_000 => scaled(1_000, 'K'),
        1_000_000..1_000_000_000 => scaled(1_000_000, 'M'),
        _ => scaled(1_000_000_000, 'B'),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_counted_as_people_write_them() {
        let cases = [
            (0, "0"),
            (999, "999"),
            (1_000, "1K"),
            (134_515_008, "134M"),
            (1_540_000_000, "1.5B"),
            (7_615_616_512, "7.6B"),
            (8_030_261_248, "8B"),
        ];
        for (parameters, words) in cases {
            assert_eq!(parameter_size(parameters), words);
        }
    }
}
