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
use toko_engine::{Chat, Event, FinishReason, Summary, TokenDetails};

use super::controls::{Controls, Delivery};
use super::logprobs;
use super::request::{self, ChatRequest, Shape};
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
    let queue = move |shared: &Shared, bytes: &[u8]| start(shared, bytes, now, &sender);
    let shape = intake::digest(&shared, &headers, body, queue).await?;

    let heading = Heading::new("chatcmpl", now, &shared.state.model);
    match shape.delivery {
        Delivery::Whole => {
            let choices = tokio::select! {
                choices = collect(events, shape.choices) => choices?,
                () = shared.cut() => return Err(ApiError::ShuttingDown),
            };
            Ok(Json(completion(&heading, &choices, shape.has_logprobs)).into_response())
        }
        Delivery::Stream(usage) => {
            let chunks = Chunks { heading, usage, shape, ended: Vec::new() };
            sse::respond(events, chunks, shared.cut(), shared.state.limits.ping_every).await
        }
    }
}

/// Takes a request from its bytes to the engine's queue.
fn start(
    shared: &Shared,
    bytes: &[u8],
    now: SystemTime,
    sender: &Sender,
) -> Result<Shape, ApiError> {
    let request: ChatRequest = body::parse(bytes)?;
    let controls: Controls = body::parse(bytes)?;
    let accepted = request::accept(request, &controls, &shared.state, now)?;
    backend::start(&*shared.state.model.backend, &accepted.chat, accepted.params, sender)?;
    Ok(accepted.shape)
}

/// Returns the conversation in a body from which no answer is wanted.
pub(crate) fn conversation(
    shared: &Shared,
    bytes: &[u8],
    now: SystemTime,
) -> Result<Chat, ApiError> {
    request::accept_unanswered(body::parse(bytes)?, &shared.state, now)
}

/// A finished choice.
#[derive(Debug)]
struct Choice {
    text: String,
    tokens: Vec<TokenDetails>,
    summary: Summary,
}

/// Waits for the end of all choices and returns them in order.
async fn collect(mut events: Events, choices: usize) -> Result<Vec<Choice>, ApiError> {
    let mut answers = vec![(String::new(), Vec::new()); choices];
    let mut summaries = vec![None; choices];
    while summaries.iter().any(Option::is_none) {
        match events.recv().await {
            Some((_, Event::Prefilled { .. })) => {}
            Some((index, Event::Text { text, tokens })) => {
                answers[index].0.push_str(&text);
                answers[index].1.extend(tokens);
            }
            Some((index, Event::Finished(summary))) => summaries[index] = Some(summary),
            Some((_, Event::Failed(error))) => return Err(error.into()),
            None => return Err(ApiError::Vanished),
        }
    }
    let finished = answers.into_iter().zip(summaries.into_iter().flatten());
    Ok(finished.map(|((text, tokens), summary)| Choice { text, tokens, summary }).collect())
}

fn completion(heading: &Heading, choices: &[Choice], has_logprobs: bool) -> Value {
    let usage = account(choices.iter().map(|choice| &choice.summary));
    let choices: Vec<Value> = choices
        .iter()
        .enumerate()
        .map(|(index, choice)| {
            json!({
                "index": index,
                "message": {"role": "assistant", "content": choice.text, "refusal": null},
                "logprobs": has_logprobs.then(|| logprobs::told(&choice.tokens)),
                "finish_reason": finish_reason(choice.summary.reason),
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
pub(super) fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
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
