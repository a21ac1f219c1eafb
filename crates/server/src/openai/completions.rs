//! `POST /v1/completions`: texts and tokens that are continued as they are, without a chat template.
//!
//! Each prompt is a sequence of its own and becomes the choice with its index.

use std::sync::Arc;
use std::time::SystemTime;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::Event as Frame;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use toko_engine::{Error as EngineError, Summary, TokenDetails};

use super::chat::{FINGERPRINT, Heading, finish_reason, usage};
use super::completion_request::{self, CompletionRequest};
use super::controls::{Controls, Delivery, UsageChunk};
use super::stream::{data, done};
use super::tools::CallShape;
use crate::answer::{Account, Answer, End, Piece, Reader, Reading};
use crate::backend::{self, Sender};
use crate::error::ApiError;
use crate::relay::{Dialect, Frames, Step};
use crate::state::Shared;
use crate::{answer, body, intake, sse};

/// Continues the prompts, whole or as a stream.
pub(crate) async fn create(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let (sender, events) = mpsc::unbounded_channel();
    let queue = move |shared: &Shared, bytes: &[u8]| start(shared, bytes, &sender);
    let Begun { heading, delivery, echoes } =
        intake::digest(&shared, &headers, body, queue).await?;
    let readers = echoes.iter().map(|_| Reader::new(&Reading::Plain)).collect();
    match delivery {
        Delivery::Whole => {
            let answers = tokio::select! {
                answers = answer::collect(events, readers) => answers?,
                () = shared.cut() => return Err(ApiError::ShuttingDown),
            };
            Ok(Json(completion(&heading, &echoes, &answers)).into_response())
        }
        Delivery::Stream(usage) => {
            let pieces = Pieces { heading, usage, echoes, ended: Vec::new() };
            sse::respond(events, readers, pieces, shared.cut(), shared.limits.ping_every).await
        }
    }
}

/// An answer whose events are on their way.
struct Begun {
    heading: Heading,
    delivery: Delivery,
    /// With what text each choice begins.
    echoes: Vec<String>,
}

/// Takes a request from its bytes to the engine's queue.
fn start(shared: &Shared, bytes: &[u8], sender: &Sender) -> Result<Begun, ApiError> {
    let request: CompletionRequest = body::parse(bytes)?;
    let controls: Controls = body::parse(bytes)?;
    let model = request.model(shared)?;
    let accepted = completion_request::accept(request, &controls, body::parse(bytes)?, &model)?;
    let backend = &*model.backend;
    let mut echoes = Vec::with_capacity(accepted.prompts.len());
    for (choice, start) in accepted.prompts.into_iter().enumerate() {
        backend::start_choice(backend, choice, start.prompt, accepted.params.clone(), sender)
            .map_err(|error| match error {
                EngineError::Constraint { reason } => {
                    ApiError::Constraint { param: accepted.demanded_by.clone(), reason }
                }
                error => ApiError::Prompt { param: start.param, error },
            })?;
        echoes.push(start.echo);
    }
    let heading = Heading::new("cmpl", SystemTime::now(), &model);
    Ok(Begun { heading, delivery: accepted.delivery, echoes })
}

fn completion(heading: &Heading, echoes: &[String], answers: &[Answer]) -> Value {
    let account = total(answers.iter().map(|answer| &answer.account));
    let choices = answers.iter().zip(echoes).enumerate().map(|(index, (answer, echo))| {
        choice(
            index,
            &format!("{echo}{}", answer.content),
            Some(finish_reason(answer.end, CallShape::ToolCalls)),
        )
    });
    let mut completion = document(heading, &choices.collect::<Vec<_>>());
    completion["usage"] = account;
    completion
}

/// Returns what whole answers and chunks have in common.
fn document(heading: &Heading, choices: &[Value]) -> Value {
    json!({
        "id": heading.id,
        "object": "text_completion",
        "created": heading.created,
        "model": heading.model,
        "system_fingerprint": FINGERPRINT,
        "choices": choices,
    })
}

fn choice(index: usize, text: &str, finish_reason: Option<&str>) -> Value {
    json!({"text": text, "index": index, "logprobs": null, "finish_reason": finish_reason})
}

/// Returns the account of all choices together.
fn total<'a>(accounts: impl Iterator<Item = &'a Account>) -> Value {
    let add = |sum: Account, next: Account| Account {
        summary: Summary {
            prompt_tokens: sum.summary.prompt_tokens + next.summary.prompt_tokens,
            cached_tokens: sum.summary.cached_tokens + next.summary.cached_tokens,
            completion_tokens: sum.summary.completion_tokens + next.summary.completion_tokens,
            ..next.summary
        },
        reasoning_tokens: sum.reasoning_tokens + next.reasoning_tokens,
    };
    accounts.cloned().reduce(add).map_or(Value::Null, |sum| usage(&sum))
}

/// Writes the chunks of one answer; all carry its heading.
struct Pieces {
    heading: Heading,
    usage: UsageChunk,
    /// What each choice begins with.
    echoes: Vec<String>,
    /// The accounts of the choices that are complete.
    ended: Vec<Account>,
}

impl Pieces {
    fn chunk(&self, choices: &[Value], usage: &Value) -> Frame {
        let mut chunk = document(&self.heading, choices);
        if self.usage == UsageChunk::Sent {
            chunk["usage"] = usage.clone();
        }
        data(&chunk)
    }
}

impl Dialect for Pieces {
    type Frame = Frame;

    fn opening(&mut self, frames: &mut Frames<Frame>) {
        for (index, echo) in self.echoes.iter().enumerate().filter(|(_, echo)| !echo.is_empty()) {
            frames.push_back(self.chunk(&[choice(index, echo, None)], &Value::Null));
        }
    }

    fn told(
        &mut self,
        index: usize,
        pieces: &[Piece],
        _: &[TokenDetails],
        frames: &mut Frames<Frame>,
    ) {
        for piece in pieces {
            // A text that is continued is plain and holds nothing else.
            if let Piece::Content(text) = piece {
                frames.push_back(self.chunk(&[choice(index, text, None)], &Value::Null));
            }
        }
    }

    fn finished(
        &mut self,
        index: usize,
        end: End,
        account: &Account,
        frames: &mut Frames<Frame>,
    ) -> Step {
        let last = choice(index, "", Some(finish_reason(end, CallShape::ToolCalls)));
        frames.push_back(self.chunk(&[last], &Value::Null));
        self.ended.push(account.clone());
        if self.ended.len() < self.echoes.len() {
            return Step::More;
        }
        if self.usage == UsageChunk::Sent {
            frames.push_back(self.chunk(&[], &total(self.ended.iter())));
        }
        frames.push_back(done());
        Step::Last
    }

    fn failed(&mut self, error: &ApiError, frames: &mut Frames<Frame>) {
        frames.push_back(data(&error.object()));
        frames.push_back(done());
    }
}
