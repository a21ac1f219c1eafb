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
use toko_engine::{Chat, Summary};

use super::controls::{Controls, Delivery};
use super::logprobs;
use super::request::{self, Accepted, ChatRequest, Shape};
use super::stream::Chunks;
use crate::answer::{Answer, End, Reader};
use crate::backend::Sender;
use crate::catalog::Model;
use crate::error::ApiError;
use crate::state::Shared;
use crate::{answer, body, ids, intake, sse};

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
    let queue = move |shared: &Shared, bytes: &[u8]| start(shared, bytes, now, &sender);
    let Begun { heading, shape, readers } = intake::digest(&shared, &headers, body, queue).await?;
    match shape.delivery {
        Delivery::Whole => {
            let answers = tokio::select! {
                answers = answer::collect(events, readers) => answers?,
                () = shared.cut() => return Err(ApiError::ShuttingDown),
            };
            Ok(Json(completion(&heading, &answers, shape.has_logprobs)).into_response())
        }
        Delivery::Stream(usage) => {
            let chunks = Chunks { heading, usage, shape, ended: Vec::new() };
            sse::respond(events, readers, chunks, shared.cut(), shared.limits.ping_every).await
        }
    }
}

/// An answer whose events are on their way.
struct Begun {
    heading: Heading,
    shape: Shape,
    readers: Vec<Reader>,
}

/// Takes a request from its bytes to the engine's queue.
fn start(
    shared: &Shared,
    bytes: &[u8],
    now: SystemTime,
    sender: &Sender,
) -> Result<Begun, ApiError> {
    let request: ChatRequest = body::parse(bytes)?;
    let controls: Controls = body::parse(bytes)?;
    let model = request.model(shared)?;
    let Accepted { ask, shape } = request::accept(request, &controls, &model, now)?;
    let readers = ask.readers();
    ask.start(&*model.backend, sender)?;
    Ok(Begun { heading: Heading::new("chatcmpl", now, &model), shape, readers })
}

/// Returns the conversation in a body from which no answer is wanted, and the model that it means.
pub(crate) fn conversation(
    shared: &Shared,
    bytes: &[u8],
    now: SystemTime,
) -> Result<(Arc<Model>, Chat), ApiError> {
    request::accept_unanswered(body::parse(bytes)?, shared, now)
}

fn completion(heading: &Heading, answers: &[Answer], has_logprobs: bool) -> Value {
    let usage = account(answers.iter().map(|answer| &answer.summary));
    let choices: Vec<Value> = answers
        .iter()
        .enumerate()
        .map(|(index, answer)| {
            json!({
                "index": index,
                "message": {"role": "assistant", "content": answer.content, "refusal": null},
                "logprobs": has_logprobs.then(|| logprobs::told(&answer.tokens)),
                "finish_reason": finish_reason(answer.end),
            })
        })
        .collect();
    json!({
        "id": heading.id,
        "object": "chat.completion",
        "created": heading.created,
        "model": heading.model,
        "system_fingerprint": FINGERPRINT,
        "choices": choices,
        "usage": usage,
    })
}

/// Returns the public word for the end of an answer.
pub(super) fn finish_reason(end: End) -> &'static str {
    match end {
        End::Stop => "stop",
        End::Length => "length",
    }
}

/// Returns the account of all choices of one prompt, which is counted once however often it was computed.
pub(super) fn account<'a>(summaries: impl Iterator<Item = &'a Summary>) -> Value {
    let add = |sum: Summary, next: Summary| Summary {
        completion_tokens: sum.completion_tokens + next.completion_tokens,
        // What one choice computed and another re-used was not known before this request.
        cached_tokens: sum.cached_tokens.min(next.cached_tokens),
        ..sum
    };
    summaries.cloned().reduce(add).map_or(Value::Null, |sum| usage(&sum))
}

/// Returns the account of tokens.
pub(super) fn usage(summary: &Summary) -> Value {
    json!({
        "prompt_tokens": summary.prompt_tokens,
        "completion_tokens": summary.completion_tokens,
        "total_tokens": summary.prompt_tokens + summary.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": summary.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
    })
}
