//! What the operator sees and sets of the machine's memory: the policy, who holds what, and what a load would be told.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use serde::Deserialize;
use serde_json::{Value, json};
use toko_admission::policy::Policy;
use toko_engine::Error as EngineError;

use crate::error::ApiError;
use crate::state::{Proposal, Shared};
use crate::validate::missing;
use crate::{admin, body, intake};

/// A policy as it is written on the command line.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyRequest {
    policy: Option<String>,
}

/// A model, and how somebody would like to load it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExplainRequest {
    model: Option<String>,
    context_tokens: Option<usize>,
    replicas: Option<usize>,
}

/// Tells which policy holds, how it is known, and what it allows here.
pub(crate) async fn policy(State(shared): State<Arc<Shared>>) -> Result<Json<Value>, ApiError> {
    intake::work(&shared, |shared| Ok(described(shared))).await.map(Json)
}

/// Makes a policy the one that holds from the next decision on; models that are loaded stay.
pub(crate) async fn set_policy(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let set = |shared: &Shared, bytes: &[u8]| {
        let request: PolicyRequest = body::parse(bytes)?;
        let text = request.policy.ok_or_else(|| missing("policy"))?;
        let policy: Policy = text.parse().map_err(|error: toko_admission::policy::Error| {
            ApiError::InvalidValue { param: "policy".to_owned(), reason: error.to_string() }
        })?;
        shared
            .steward
            .set_policy(&policy)
            .map_err(|error| ApiError::PolicyNotSaved { reason: error.to_string() })?;
        Ok(described(shared))
    };
    intake::digest(&shared, &headers, body, set).await.map(Json)
}

fn described(shared: &Shared) -> Value {
    let loaded = shared.steward.policy();
    json!({
        "policy": loaded.policy.to_string(),
        "profile": loaded.policy.profile,
        "custom_max_model_mb": loaded.policy.custom_max_model_mb,
        "source": loaded.source,
        "warning": loaded.warning,
        "budget": shared.steward.preview(&loaded.policy, None),
    })
}

/// Tells where the memory is and who holds it, other processes included.
pub(crate) async fn memory(State(shared): State<Arc<Shared>>) -> Result<Json<Value>, ApiError> {
    let told = |shared: &Shared| {
        let memory = shared.steward.memory(&shared.catalog.candidates());
        let mut told = json!(memory);
        let models = shared.catalog.entries().iter().map(|entry| {
            json!({
                "id": entry.id,
                "state": admin::state(entry),
                "bytes": entry.loaded().map(|backend| backend.held()),
                "kv_bytes": entry.loaded().map(|backend| backend.kv_bytes()),
                "idle_seconds": entry.idle().map(|idle| idle.as_secs()),
                "keep_alive_seconds": entry.keep_alive().map(|keep| keep.as_secs()),
                "is_pinned": entry.is_pinned,
            })
        });
        told["models"] = models.collect();
        Ok(told)
    };
    intake::work(&shared, told).await.map(Json)
}

/// Tells what is still written down about loads: begun, done, failed, refused, forced, unloaded, and the policy's changes.
pub(crate) async fn events(State(shared): State<Arc<Shared>>) -> Result<Json<Value>, ApiError> {
    let told = |shared: &Shared| {
        let events = shared.steward.events();
        let events =
            events.map_err(|error| ApiError::JournalUnreadable { reason: error.to_string() })?;
        Ok(json!({"events": events}))
    };
    intake::work(&shared, told).await.map(Json)
}

/// Tells what a load would be answered, and loads nothing.
pub(crate) async fn explain(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let explain = |shared: &Shared, bytes: &[u8]| {
        let request: ExplainRequest = body::parse(bytes)?;
        let entry = shared.catalog.find(&request.model.ok_or_else(|| missing("model"))?)?;
        let (context_tokens, replicas) = (request.context_tokens, request.replicas);
        let proposal = Proposal { context_tokens, replicas };
        let decision = (entry.explain)(&proposal, &shared.catalog.candidates());
        let decision = decision.map_err(|error| match error.downcast_ref() {
            Some(EngineError::Context { .. }) => ApiError::InvalidValue {
                param: "context_tokens".to_owned(),
                reason: error.to_string(),
            },
            _ => ApiError::LoadFailed { model: entry.id.clone(), reason: error.to_string() },
        })?;
        let mut told = json!(decision);
        told["sentence"] = json!(decision.sentence());
        Ok(told)
    };
    intake::digest(&shared, &headers, body, explain).await.map(Json)
}
