//! `POST /v1/completions`: texts and tokens that are continued as they are, without a chat template.
//!
//! Each prompt gets `n` choices, one after the other; each is a sequence of its own.

use std::ops::Range;
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
use toko_engine::{Error as EngineError, Params, Summary, TokenDetails};

use super::chat::{FINGERPRINT, Heading, finish_reason, of_one_prompt, usage};
use super::completion_logprobs::{Entry, Places, object};
use super::completion_request::{self, CompletionRequest, Start};
use super::controls::{Controls, Delivery, UsageChunk};
use super::request;
use super::stream::{data, done};
use super::tools::CallShape;
use crate::answer::{Account, Answer, End, Piece, Reader, Reading};
use crate::backend::{self, Sender};
use crate::error::ApiError;
use crate::relay::{Dialect, Frames, Step};
use crate::state::Shared;
use crate::{Backend, answer, body, intake, sse};

/// Continues the prompts, whole or as a stream.
pub(crate) async fn create(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let (sender, events) = mpsc::unbounded_channel();
    let queue = move |shared: &Shared, bytes: &[u8]| start(shared, bytes, &sender);
    let Begun { heading, delivery, choices } =
        intake::digest(&shared, &headers, body, queue).await?;
    let readers = choices.iter().map(|_| Reader::new(&Reading::Plain)).collect();
    match delivery {
        Delivery::Whole => {
            let answers = tokio::select! {
                answers = answer::collect(events, readers) => answers?,
                () = shared.cut() => return Err(ApiError::ShuttingDown),
            };
            Ok(Json(completion(&heading, choices, answers)).into_response())
        }
        Delivery::Stream(usage) => {
            let pieces = Pieces { heading, usage, choices, ended: Vec::new() };
            sse::respond(events, readers, pieces, shared.cut(), shared.limits.ping_every).await
        }
    }
}

/// An answer whose events are on their way.
struct Begun {
    heading: Heading,
    delivery: Delivery,
    choices: Vec<Choice>,
}

/// A choice whose text is on its way.
struct Choice {
    /// The index of its prompt.
    prompt: usize,
    /// What it begins with, until that is told.
    echo: Option<Echo>,
    /// Where its tokens stand, if they are asked about.
    places: Option<Places>,
}

/// A prompt that is repeated.
struct Echo {
    text: String,
    /// What its first token stands for, if nothing foretells that.
    first: Option<Vec<u8>>,
    /// Where the others stand among those that are told.
    own: Range<usize>,
    /// Those that were told so far.
    told: Vec<TokenDetails>,
}

impl Echo {
    /// Returns the entries of the prompt's tokens.
    fn entries(&self, told: &[TokenDetails], places: &mut Places) -> Vec<Entry> {
        let own = self.own.start..self.own.end.min(told.len());
        let told = told.get(own).unwrap_or_default();
        places.echoed(&self.text, self.first.as_deref(), told)
    }
}

impl Choice {
    /// Returns the text and the `logprobs` of the prompt, once.
    fn echoed(&mut self) -> Option<(String, Value)> {
        let echo = self.echo.take()?;
        let entries = self.places.as_mut().map(|places| echo.entries(&echo.told, places));
        Some((echo.text, entries.map_or(Value::Null, |entries| object(&entries))))
    }

    /// Returns the text and the `logprobs` of the prompt, if it is repeated, and of the whole answer.
    fn whole(
        &mut self,
        prompt: &[TokenDetails],
        content: &str,
        tokens: &[TokenDetails],
    ) -> (String, Value) {
        let echo = self.echo.take();
        let mut text = echo.as_ref().map_or_else(String::new, |echo| echo.text.clone());
        text.push_str(content);
        let Some(places) = &mut self.places else { return (text, Value::Null) };
        let mut entries = Vec::new();
        if let Some(echo) = &echo {
            entries.extend(echo.entries(prompt, places));
        }
        entries.extend(places.told(content, tokens));
        (text, object(&entries))
    }

    /// Returns the `logprobs` of more text.
    fn told(&mut self, text: &str, tokens: &[TokenDetails]) -> Value {
        let entries = self.places.as_mut().map(|places| places.told(text, tokens));
        entries.map_or(Value::Null, |entries| object(&entries))
    }
}

/// Takes a request from its bytes to the engine's queue.
fn start(shared: &Shared, bytes: &[u8], sender: &Sender) -> Result<Begun, ApiError> {
    let request: CompletionRequest = body::parse(bytes)?;
    let controls: Controls = body::parse(bytes)?;
    let model = request.model(shared)?;
    let accepted = completion_request::accept(request, &controls, body::parse(bytes)?, &model)?;
    let backend = &*model.backend;
    let demanded_by = &accepted.demanded_by;
    let mut choices = Vec::with_capacity(accepted.prompts.len() * accepted.choices);
    for (prompt, start) in accepted.prompts.into_iter().enumerate() {
        for index in (0..).take(accepted.choices) {
            let params = request::choice(&accepted.params, index);
            choices.push(begin(backend, prompt, &start, &params));
            let (choice, prompt) = (choices.len() - 1, start.prompt.clone());
            backend::start_choice(backend, choice, prompt, params, sender).map_err(|error| {
                match error {
                    EngineError::Constraint { reason } => {
                        ApiError::Constraint { param: demanded_by.clone(), reason }
                    }
                    error => ApiError::Prompt { param: start.param.clone(), error },
                }
            })?;
        }
    }
    let heading = Heading::new("cmpl", SystemTime::now(), &model);
    Ok(Begun { heading, delivery: accepted.delivery, choices })
}

fn begin(backend: &dyn Backend, prompt: usize, start: &Start, params: &Params) -> Choice {
    let (own, tokens) = (&start.own, &start.prompt.tokens);
    // What is told of a prompt begins with its second token.
    let first = tokens.first().filter(|_| own.start == 0);
    let echo = start.echo.as_ref().map(|text| Echo {
        text: text.clone(),
        first: first.map(|&token| backend.tokenizer().token_bytes(token).to_vec()),
        own: own.start.max(1) - 1..own.end.max(1) - 1,
        told: Vec::new(),
    });
    Choice { prompt, echo, places: params.logprobs.map(|_| Places::default()) }
}

fn completion(heading: &Heading, choices: Vec<Choice>, answers: Vec<Answer>) -> Value {
    let mut ended = Vec::with_capacity(choices.len());
    let mut written = Vec::with_capacity(choices.len());
    for (index, (mut choice, answer)) in choices.into_iter().zip(answers).enumerate() {
        let (text, logprobs) = choice.whole(&answer.prompt, &answer.content, &answer.tokens);
        written.push(write(
            index,
            &text,
            &logprobs,
            Some(finish_reason(answer.end, CallShape::ToolCalls)),
        ));
        ended.push((choice.prompt, answer.account));
    }
    let mut completion = document(heading, &written);
    completion["usage"] = total(ended);
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

fn write(index: usize, text: &str, logprobs: &Value, finish_reason: Option<&str>) -> Value {
    json!({"text": text, "index": index, "logprobs": logprobs, "finish_reason": finish_reason})
}

/// Returns the account of all choices, each with the index of its prompt.
fn total(mut ended: Vec<(usize, Account)>) -> Value {
    ended.sort_by_key(|(prompt, _)| *prompt);
    let prompts = ended.chunk_by(|(a, _), (b, _)| a == b);
    let accounts =
        prompts.filter_map(|choices| of_one_prompt(choices.iter().map(|(_, account)| account)));
    let add = |sum: Account, next: Account| Account {
        summary: Summary {
            prompt_tokens: sum.summary.prompt_tokens + next.summary.prompt_tokens,
            cached_tokens: sum.summary.cached_tokens + next.summary.cached_tokens,
            completion_tokens: sum.summary.completion_tokens + next.summary.completion_tokens,
            ..next.summary
        },
        reasoning_tokens: sum.reasoning_tokens + next.reasoning_tokens,
    };
    accounts.reduce(add).map_or(Value::Null, |sum| usage(&sum))
}

/// Writes the chunks of one answer; all carry its heading.
struct Pieces {
    heading: Heading,
    usage: UsageChunk,
    choices: Vec<Choice>,
    /// The accounts of the choices that are complete, each with the index of its prompt.
    ended: Vec<(usize, Account)>,
}

impl Pieces {
    /// Appends the prompt of a choice, once.
    fn echo(&mut self, index: usize, frames: &mut Frames<Frame>) {
        if let Some((text, logprobs)) = self.choices[index].echoed()
            && !text.is_empty()
        {
            let written = write(index, &text, &logprobs, None);
            frames.push_back(self.chunk(&[written], &Value::Null));
        }
    }

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
        for index in 0..self.choices.len() {
            // With their tokens, prompts are told when they are computed.
            if self.choices[index].places.is_none() {
                self.echo(index, frames);
            }
        }
    }

    fn told_prompt(&mut self, index: usize, tokens: Vec<TokenDetails>) {
        if let Some(echo) = &mut self.choices[index].echo {
            echo.told.extend(tokens);
        }
    }

    fn told(
        &mut self,
        index: usize,
        pieces: &[Piece],
        tokens: &[TokenDetails],
        frames: &mut Frames<Frame>,
    ) {
        self.echo(index, frames);
        // A text that is continued is plain and holds nothing else.
        let content = pieces.iter().filter_map(|piece| match piece {
            Piece::Content(text) => Some(text.as_str()),
            _ => None,
        });
        let text: String = content.collect();
        let logprobs = self.choices[index].told(&text, tokens);
        let written = write(index, &text, &logprobs, None);
        frames.push_back(self.chunk(&[written], &Value::Null));
    }

    fn finished(
        &mut self,
        index: usize,
        end: End,
        account: &Account,
        frames: &mut Frames<Frame>,
    ) -> Step {
        self.echo(index, frames);
        let reason = finish_reason(end, CallShape::ToolCalls);
        let last = write(index, "", &Value::Null, Some(reason));
        frames.push_back(self.chunk(&[last], &Value::Null));
        self.ended.push((self.choices[index].prompt, account.clone()));
        if self.ended.len() < self.choices.len() {
            return Step::More;
        }
        if self.usage == UsageChunk::Sent {
            let account = total(std::mem::take(&mut self.ended));
            frames.push_back(self.chunk(&[], &account));
        }
        frames.push_back(done());
        Step::Last
    }

    fn failed(&mut self, error: &ApiError, frames: &mut Frames<Frame>) {
        frames.push_back(data(&error.object()));
        frames.push_back(done());
    }
}
