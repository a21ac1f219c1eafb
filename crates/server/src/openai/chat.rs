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
use super::tools::CallShape;
use crate::answer::{Account, Answer, Call, End, Reader};
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
            Ok(Json(completion(&heading, &answers, shape)).into_response())
        }
        Delivery::Stream(usage) => {
            let chunks = Chunks { heading, usage, shape, ended: Vec::new() };
            sse::respond(events, readers, chunks, shared.cut(), shared.limits.ping_every).await
        }
    }
}

/// Lists the answers that are stored: none ever are.
pub(crate) async fn stored() -> Json<Value> {
    Json(
        json!({"object": "list", "data": [], "first_id": null, "last_id": null, "has_more": false}),
    )
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
    let Accepted { ask, shape } =
        request::accept(request, &controls, body::parse(bytes)?, body::parse(bytes)?, &model, now)?;
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
    request::accept_unanswered(body::parse(bytes)?, body::parse(bytes)?, shared, now)
}

fn completion(heading: &Heading, answers: &[Answer], shape: Shape) -> Value {
    let usage = usage_of_choices(answers.iter().map(|answer| &answer.account));
    let choices: Vec<Value> = answers
        .iter()
        .enumerate()
        .map(|(index, answer)| {
            json!({
                "index": index,
                "message": message(answer, shape.calls),
                "logprobs": shape.has_logprobs.then(|| logprobs::told(&answer.tokens)),
                "finish_reason": finish_reason(answer.end, shape.calls),
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

/// Returns a whole answer as a message of the conversation.
fn message(answer: &Answer, calls: CallShape) -> Value {
    let has_text = !answer.content.is_empty() || answer.calls.is_empty();
    let content = has_text.then_some(&answer.content);
    let mut message = json!({"role": "assistant", "content": content, "refusal": null});
    if !answer.reasoning.is_empty() {
        message["reasoning_content"] = json!(answer.reasoning);
    }
    let function = |call: &Call| json!({"name": call.name, "arguments": call.arguments});
    match (calls, answer.calls.as_slice()) {
        (_, []) => {}
        (CallShape::FunctionCall, [call, ..]) => message["function_call"] = function(call),
        (CallShape::ToolCalls, calls) => {
            let call = |call: &Call| json!({"id": call.id, "type": "function", "function": function(call)});
            message["tool_calls"] = calls.iter().map(call).collect();
        }
    }
    message
}

/// Returns the public word for the end of an answer.
pub(super) fn finish_reason(end: End, calls: CallShape) -> &'static str {
    match (end, calls) {
        (End::Stop, _) => "stop",
        (End::Length, _) => "length",
        (End::ToolCalls, CallShape::ToolCalls) => "tool_calls",
        (End::ToolCalls, CallShape::FunctionCall) => "function_call",
    }
}

/// Returns the account of all choices of one prompt as it is told.
pub(super) fn usage_of_choices<'a>(accounts: impl Iterator<Item = &'a Account>) -> Value {
    of_one_prompt(accounts).map_or(Value::Null, |sum| usage(&sum))
}

/// Returns the account of all choices of one prompt, which is counted once however often it was computed.
pub(super) fn of_one_prompt<'a>(accounts: impl Iterator<Item = &'a Account>) -> Option<Account> {
    let add = |sum: Account, next: Account| Account {
        summary: Summary {
            completion_tokens: sum.summary.completion_tokens + next.summary.completion_tokens,
            // What one choice computed and another re-used was not known before this request.
            cached_tokens: sum.summary.cached_tokens.min(next.summary.cached_tokens),
            ..sum.summary
        },
        reasoning_tokens: sum.reasoning_tokens + next.reasoning_tokens,
    };
    accounts.cloned().reduce(add)
}

/// Returns the account of tokens.
pub(super) fn usage(account: &Account) -> Value {
    let Account { summary, reasoning_tokens } = account;
    json!({
        "prompt_tokens": summary.prompt_tokens,
        "completion_tokens": summary.completion_tokens,
        "total_tokens": summary.prompt_tokens + summary.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": summary.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
    })
}
