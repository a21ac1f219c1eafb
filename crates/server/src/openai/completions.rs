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
use toko_engine::{Event, Summary, TokenDetails};

use super::chat::{FINGERPRINT, Heading, finish_reason, usage};
use super::completion_request::{self, CompletionRequest};
use super::controls::{Controls, Delivery, UsageChunk};
use super::stream::{data, done};
use crate::backend::{self, Events, Sender};
use crate::error::ApiError;
use crate::sse::{Dialect, Frames, Step};
use crate::state::Shared;
use crate::{body, intake, sse};

/// Continues the prompts, whole or as a stream.
pub(crate) async fn create(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let (sender, events) = mpsc::unbounded_channel();
    let queue = move |shared: &Shared, bytes: &[u8]| start(shared, bytes, &sender);
    let (delivery, echoes) = intake::digest(&shared, &headers, body, queue).await?;

    let heading = Heading::new("cmpl", SystemTime::now(), &shared.state.model);
    match delivery {
        Delivery::Whole => {
            let choices = tokio::select! {
                choices = collect(events, echoes) => choices?,
                () = shared.cut() => return Err(ApiError::ShuttingDown),
            };
            Ok(Json(completion(&heading, &choices)).into_response())
        }
        Delivery::Stream(usage) => {
            let pieces = Pieces { heading, usage, echoes, ended: Vec::new() };
            sse::respond(events, pieces, shared.cut(), shared.state.limits.ping_every).await
        }
    }
}

/// Takes a request from its bytes to the engine's queue; returns with what text each choice begins.
fn start(
    shared: &Shared,
    bytes: &[u8],
    sender: &Sender,
) -> Result<(Delivery, Vec<String>), ApiError> {
    let request: CompletionRequest = body::parse(bytes)?;
    let controls: Controls = body::parse(bytes)?;
    let accepted = completion_request::accept(request, &controls, &shared.state)?;
    let backend = &*shared.state.model.backend;
    let mut echoes = Vec::with_capacity(accepted.prompts.len());
    for (choice, start) in accepted.prompts.into_iter().enumerate() {
        backend::start_choice(backend, choice, start.prompt, accepted.params.clone(), sender)
            .map_err(|error| ApiError::Prompt { param: start.param, error })?;
        echoes.push(start.echo);
    }
    Ok((accepted.delivery, echoes))
}

/// A choice that is complete.
struct Choice {
    text: String,
    summary: Summary,
}

/// Waits for the ends of all choices, which begin with the `echoes`.
async fn collect(mut events: Events, echoes: Vec<String>) -> Result<Vec<Choice>, ApiError> {
    let mut open: Vec<(String, Option<Summary>)> =
        echoes.into_iter().map(|echo| (echo, None)).collect();
    while open.iter().any(|(_, summary)| summary.is_none()) {
        // Without a sender left, whoever has not finished never will.
        let (choice, event) = events.recv().await.ok_or(ApiError::Vanished)?;
        match event {
            Event::Prefilled { .. } => {}
            Event::Text { text, .. } => open[choice].0.push_str(&text),
            Event::Finished(summary) => open[choice].1 = Some(summary),
            Event::Failed(error) => return Err(error.into()),
        }
    }
    let complete =
        |(text, summary): (String, Option<Summary>)| Some(Choice { text, summary: summary? });
    open.into_iter().map(complete).collect::<Option<_>>().ok_or(ApiError::Vanished)
}

fn completion(heading: &Heading, choices: &[Choice]) -> Value {
    let account = total(choices.iter().map(|choice| &choice.summary));
    let choices = choices.iter().enumerate().map(|(index, Choice { text, summary })| {
        choice(index, text, Some(finish_reason(summary.reason)))
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
fn total<'a>(summaries: impl Iterator<Item = &'a Summary>) -> Value {
    let add = |sum: Summary, next: Summary| Summary {
        prompt_tokens: sum.prompt_tokens + next.prompt_tokens,
        cached_tokens: sum.cached_tokens + next.cached_tokens,
        completion_tokens: sum.completion_tokens + next.completion_tokens,
        ..next
    };
    summaries.cloned().reduce(add).map_or(Value::Null, |sum| usage(&sum))
}

/// Writes the chunks of one answer; all carry its heading.
struct Pieces {
    heading: Heading,
    usage: UsageChunk,
    /// What each choice begins with.
    echoes: Vec<String>,
    /// The accounts of the choices that are complete.
    ended: Vec<Summary>,
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
    fn opening(&self, frames: &mut Frames) {
        for (index, echo) in self.echoes.iter().enumerate().filter(|(_, echo)| !echo.is_empty()) {
            self.text(index, echo, &[], frames);
        }
    }

    fn text(&self, index: usize, text: &str, _: &[TokenDetails], frames: &mut Frames) {
        frames.push_back(self.chunk(&[choice(index, text, None)], &Value::Null));
    }

    fn finished(&mut self, index: usize, summary: &Summary, frames: &mut Frames) -> Step {
        let last = choice(index, "", Some(finish_reason(summary.reason)));
        frames.push_back(self.chunk(&[last], &Value::Null));
        self.ended.push(summary.clone());
        if self.ended.len() < self.echoes.len() {
            return Step::More;
        }
        if self.usage == UsageChunk::Sent {
            frames.push_back(self.chunk(&[], &total(self.ended.iter())));
        }
        frames.push_back(done());
        Step::Last
    }

    fn failed(&self, error: &ApiError, frames: &mut Frames) {
        frames.push_back(data(&error.object()));
        frames.push_back(done());
    }
}
