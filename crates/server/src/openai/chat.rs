//! `POST /v1/chat/completions`: from bytes to a running request, and its whole answer.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use toko_engine::{Chat, Event, FinishReason, Summary};

use super::controls::{Controls, Delivery};
use super::request::{self, ChatRequest};
use super::stream::Chunks;
use crate::backend::{self, Events, Sender};
use crate::error::ApiError;
use crate::state::{Model, Shared};
use crate::{body, ids, intake, sse};

/// Says which build answered.
pub(super) const FINGERPRINT: &str = concat!("tokonoma-", env!("CARGO_PKG_VERSION"));

/// What every piece of one answer repeats.
pub(super) struct Heading {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
}

impl Heading {
    /// Heads an answer whose id begins with `kind`.
    pub(super) fn new(kind: &str, now: SystemTime, model: &Model) -> Self {
        Self {
            id: format!("{kind}-{}", ids::unique()),
            created: now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            model: model.id.clone(),
        }
    }
}

/// Answers a conversation, whole or as a stream.
pub(crate) async fn create(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let now = SystemTime::now();
    let (sender, events) = mpsc::unbounded_channel();
    let queue = move |shared: &Shared, bytes: &[u8]| start(shared, bytes, now, sender);
    let delivery = intake::digest(&shared, &headers, body, queue).await?;

    let heading = Heading::new("chatcmpl", now, &shared.state.model);
    match delivery {
        Delivery::Whole => {
            let (text, summary) = tokio::select! {
                answer = collect(events) => answer?,
                () = shared.cut() => return Err(ApiError::ShuttingDown),
            };
            Ok(Json(completion(&heading, &text, &summary)).into_response())
        }
        Delivery::Stream(usage) => {
            let chunks = Chunks { heading, usage };
            Ok(sse::respond(events, chunks, shared.cut(), shared.state.limits.ping_every))
        }
    }
}

/// Takes a request from its bytes to the engine's queue.
fn start(
    shared: &Shared,
    bytes: &[u8],
    now: SystemTime,
    sender: Sender,
) -> Result<Delivery, ApiError> {
    let request: ChatRequest = body::parse(bytes)?;
    let controls: Controls = body::parse(bytes)?;
    let accepted = request::accept(request, &controls, &shared.state, now)?;
    backend::start(&*shared.state.model.backend, &accepted.chat, accepted.params, sender)?;
    Ok(accepted.delivery)
}

/// Returns the conversation in a body from which no answer is wanted.
pub(crate) fn conversation(
    shared: &Shared,
    bytes: &[u8],
    now: SystemTime,
) -> Result<Chat, ApiError> {
    request::accept_unanswered(body::parse(bytes)?, &shared.state, now)
}

/// Waits for the end of the answer.
async fn collect(mut events: Events) -> Result<(String, Summary), ApiError> {
    let mut answer = String::new();
    while let Some((_, event)) = events.recv().await {
        match event {
            Event::Prefilled { .. } => {}
            Event::Text(text) => answer.push_str(&text),
            Event::Finished(summary) => return Ok((answer, summary)),
            Event::Failed(error) => return Err(error.into()),
        }
    }
    Err(ApiError::Vanished)
}

fn completion(heading: &Heading, text: &str, summary: &Summary) -> Value {
    json!({
        "id": heading.id,
        "object": "chat.completion",
        "created": heading.created,
        "model": heading.model,
        "system_fingerprint": FINGERPRINT,
        "choices": [{
            "index": 0,
            "message": {"role": "assistant", "content": text, "refusal": null},
            "logprobs": null,
            "finish_reason": finish_reason(summary.reason),
        }],
        "usage": usage(summary),
    })
}

/// Returns the public word for the end of an answer.
pub(super) fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}

/// Returns the account of tokens.
pub(super) fn usage(summary: &Summary) -> Value {
    json!({
        "prompt_tokens": summary.prompt_tokens,
        "completion_tokens": summary.completion_tokens,
        "total_tokens": summary.prompt_tokens + summary.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    })
}
