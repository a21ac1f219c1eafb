//! `POST /v1/messages` and `/v1/messages/count_tokens`: from bytes to a running request, its whole answer, or a number.

use std::sync::Arc;
use std::time::SystemTime;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::request::{Accepted, Delivery, MessagesRequest};
use super::stream::{self, Events};
use crate::answer::{Account, Answer, Call, End, Reader};
use crate::backend::Sender;
use crate::error::ApiError;
use crate::state::Shared;
use crate::{answer, body, ids, intake, sse};

/// What the beginning and the end of one answer need.
pub(super) struct Heading {
    pub(super) id: String,
    pub(super) model: String,
    /// What may end the answer, as its summary counts it.
    pub(super) stop: Vec<String>,
}

/// Answers a conversation, whole or as a stream.
pub(crate) async fn create(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let (sender, events) = mpsc::unbounded_channel();
    let queue = move |shared: &Shared, bytes: &[u8]| start(shared, bytes, &sender);
    let Begun { heading, prompt_tokens, reader } =
        intake::digest(&shared, &headers, body, queue).await?;
    let Some(prompt_tokens) = prompt_tokens else {
        let answer = answer::one(events, reader, shared.cut()).await?;
        return Ok(Json(message(&heading, &answer)).into_response());
    };
    let request_id = headers.get("x-request-id").cloned();
    let dialect = Events::new(heading, prompt_tokens, request_id);
    let (cut, every) = (shared.cut(), shared.limits.ping_every);
    sse::respond_with(stream::ping(), events, vec![reader], dialect, cut, every).await
}

/// Counts the tokens of a conversation.
pub(crate) async fn count_tokens(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    intake::digest(&shared, &headers, body, count).await.map(Json)
}

fn count(shared: &Shared, bytes: &[u8]) -> Result<Value, ApiError> {
    let request: MessagesRequest = body::parse(bytes)?;
    let model = request.model(shared)?;
    let (chat, _) = request.conversation(&model, SystemTime::now())?;
    Ok(json!({"input_tokens": answer::prompt_tokens(&*model.backend, &chat)?}))
}

/// An answer whose events are on their way.
struct Begun {
    heading: Heading,
    /// For a stream, which tells them at once.
    prompt_tokens: Option<usize>,
    reader: Reader,
}

/// Takes a request from its bytes to the engine's queue.
fn start(shared: &Shared, bytes: &[u8], sender: &Sender) -> Result<Begun, ApiError> {
    let request: MessagesRequest = body::parse(bytes)?;
    let model = request.model(shared)?;
    let Accepted { ask, delivery, stop } = request.accept(&model, SystemTime::now())?;
    let prompt_tokens = match delivery {
        Delivery::Stream => Some(answer::prompt_tokens(&*model.backend, &ask.chat)?),
        Delivery::Whole => None,
    };
    let reader = ask.reader();
    ask.start(&*model.backend, sender)?;
    let heading = Heading { id: format!("msg_{}", ids::unique()), model: model.id.clone(), stop };
    Ok(Begun { heading, prompt_tokens, reader })
}

fn message(heading: &Heading, answer: &Answer) -> Value {
    let mut content = Vec::new();
    if !answer.reasoning.is_empty() {
        content.push(thinking(&answer.reasoning));
    }
    if !answer.content.is_empty() {
        content.push(text_block(&answer.content));
    }
    content.extend(answer.calls.iter().map(called));
    let mut message = opened(heading, &content);
    let (reason, sequence) = stop_reason(heading, answer.end, &answer.account);
    message["stop_reason"] = json!(reason);
    message["stop_sequence"] = json!(sequence);
    message["usage"] = usage(&answer.account);
    message
}

/// Returns a message that has not ended.
pub(super) fn opened(heading: &Heading, content: &[Value]) -> Value {
    json!({
        "id": heading.id,
        "type": "message",
        "role": "assistant",
        "model": heading.model,
        "content": content,
        "stop_reason": null,
        "stop_sequence": null,
        "usage": null,
    })
}

/// Returns a block of text.
pub(super) fn text_block(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// Returns a block of thoughts; there is nobody who would look at a signature.
pub(super) fn thinking(text: &str) -> Value {
    json!({"type": "thinking", "thinking": text, "signature": ""})
}

/// Returns the block of a call.
pub(super) fn tool_use(id: &str, name: &str, input: &Value) -> Value {
    // The clients know calls by this beginning.
    let id = format!("toolu_{}", id.strip_prefix("call_").unwrap_or(id));
    json!({"type": "tool_use", "id": id, "name": name, "input": input})
}

/// A call whose arguments were cut has none that could be used.
fn called(call: &Call) -> Value {
    let input = serde_json::from_str(&call.arguments).ok().filter(Value::is_object);
    tool_use(&call.id, &call.name, &input.unwrap_or_else(|| json!({})))
}

/// Returns the public word for the end of an answer, and the text that ended it if one did.
pub(super) fn stop_reason<'a>(
    heading: &'a Heading,
    end: End,
    account: &Account,
) -> (&'static str, Option<&'a str>) {
    let sequence = account.summary.stop_text.and_then(|stop| heading.stop.get(stop));
    match (end, sequence) {
        (End::Stop, Some(sequence)) => ("stop_sequence", Some(sequence)),
        (End::Stop, None) => ("end_turn", None),
        (End::Length, _) => ("max_tokens", None),
        (End::ToolCalls, _) => ("tool_use", None),
    }
}

/// Returns the account of tokens, in which those that were re-used are not counted as input a second time.
pub(super) fn usage(account: &Account) -> Value {
    let Account { summary, reasoning_tokens } = account;
    json!({
        "input_tokens": summary.prompt_tokens - summary.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": summary.cached_tokens,
        "output_tokens": summary.completion_tokens,
        "output_tokens_details": {"thinking_tokens": reasoning_tokens},
    })
}
