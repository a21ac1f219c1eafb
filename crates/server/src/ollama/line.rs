//! An Ollama answer as lines, or as the one object that they come to.

use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use toko_engine::TokenDetails;

use crate::answer::{self, Account, Answer, End, Piece};
use crate::error::ApiError;
use crate::relay::{Dialect, Frames, Step};

/// What all lines of one answer have in common.
#[derive(Debug)]
pub(super) struct Lines {
    model: String,
    shape: Shape,
    began: Instant,
    /// The call that is being written, with its arguments so far.
    call: Option<Call>,
}

/// Where the text of an answer stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// In a message.
    Chat,
    /// Beside the other fields.
    Generate,
}

/// How far a model is when nothing else was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Readiness {
    Loaded,
    Unloaded,
}

#[derive(Debug)]
struct Call {
    id: String,
    name: String,
    arguments: String,
}

/// A part of an answer that one line tells.
enum Part<'a> {
    Text(&'a str),
    Thinking(&'a str),
    Calls(Value),
}

impl Lines {
    /// Begins an answer of a model; the time that it takes is counted from here.
    pub(super) fn new(model: &str, shape: Shape) -> Self {
        Self { model: model.to_owned(), shape, began: Instant::now(), call: None }
    }

    /// Returns a whole answer.
    pub(super) fn whole(&self, answer: &Answer) -> Value {
        let mut line = self.object(Part::Text(&answer.content));
        let place = self.place(&mut line);
        if !answer.reasoning.is_empty() {
            place["thinking"] = json!(answer.reasoning);
        }
        if !answer.calls.is_empty() {
            let call = |call: &answer::Call| function(&call.id, &call.name, &call.arguments);
            place["tool_calls"] = answer.calls.iter().map(call).collect();
        }
        self.end(line, answer.end, &answer.account)
    }

    /// Returns what is answered when nothing was asked but to have the model there, or gone.
    pub(super) fn ready(&self, readiness: Readiness) -> Value {
        let mut line = self.object(Part::Text(""));
        line["done"] = json!(true);
        line["done_reason"] = json!(match readiness {
            Readiness::Loaded => "load",
            Readiness::Unloaded => "unload",
        });
        line
    }

    fn object(&self, part: Part<'_>) -> Value {
        let created_at = humantime::format_rfc3339_micros(SystemTime::now()).to_string();
        let mut line = json!({"model": self.model, "created_at": created_at});
        match self.shape {
            Shape::Chat => line["message"] = json!({"role": "assistant", "content": ""}),
            Shape::Generate => line["response"] = json!(""),
        }
        let text = match self.shape {
            Shape::Chat => "content",
            Shape::Generate => "response",
        };
        let place = self.place(&mut line);
        match part {
            Part::Text(told) => place[text] = json!(told),
            Part::Thinking(told) => place["thinking"] = json!(told),
            Part::Calls(told) => place["tool_calls"] = told,
        }
        line["done"] = json!(false);
        line
    }

    fn place<'a>(&self, line: &'a mut Value) -> &'a mut Value {
        match self.shape {
            Shape::Chat => &mut line["message"],
            Shape::Generate => line,
        }
    }

    /// Lays the end over a line.
    fn end(&self, mut line: Value, end: End, account: &Account) -> Value {
        let summary = &account.summary;
        let reason = match end {
            End::Stop | End::ToolCalls => "stop",
            End::Length => "length",
        };
        line["done"] = json!(true);
        line["done_reason"] = json!(reason);
        line["total_duration"] = json!(nanoseconds(self.began.elapsed()));
        line["load_duration"] = json!(0);
        line["prompt_eval_count"] = json!(summary.prompt_tokens);
        line["prompt_eval_duration"] = json!(nanoseconds(summary.prefill));
        line["eval_count"] = json!(summary.completion_tokens);
        line["eval_duration"] = json!(nanoseconds(summary.decode));
        line
    }

    /// Appends the call that is complete by now, if there is one: the clients know calls as a whole only.
    fn tell_call(&mut self, frames: &mut Frames<String>) {
        if let Some(Call { id, name, arguments }) = self.call.take() {
            let calls = json!([function(&id, &name, &arguments)]);
            frames.push_back(written(&self.object(Part::Calls(calls))));
        }
    }
}

impl Dialect for Lines {
    type Frame = String;

    fn opening(&mut self, _frames: &mut Frames<String>) {}

    fn told(
        &mut self,
        _choice: usize,
        pieces: &[Piece],
        _tokens: &[TokenDetails],
        frames: &mut Frames<String>,
    ) {
        for piece in pieces {
            let part = match piece {
                Piece::CallArguments { fragment, .. } => {
                    if let Some(call) = &mut self.call {
                        call.arguments.push_str(fragment);
                    }
                    continue;
                }
                Piece::CallStart { id, name, .. } => {
                    self.tell_call(frames);
                    let (id, name) = (id.clone(), name.clone());
                    self.call = Some(Call { id, name, arguments: String::new() });
                    continue;
                }
                Piece::Content(text) => Part::Text(text),
                Piece::Reasoning(text) => Part::Thinking(text),
            };
            self.tell_call(frames);
            frames.push_back(written(&self.object(part)));
        }
    }

    fn finished(
        &mut self,
        _choice: usize,
        end: End,
        account: &Account,
        frames: &mut Frames<String>,
    ) -> Step {
        self.tell_call(frames);
        let line = self.end(self.object(Part::Text("")), end, account);
        frames.push_back(written(&line));
        Step::Last
    }

    fn failed(&mut self, error: &ApiError, frames: &mut Frames<String>) {
        frames.push_back(written(&error_object(error)));
    }
}

/// Returns the error object as it stands in a body or in a line.
pub(crate) fn error_object(error: &ApiError) -> Value {
    json!({"error": error.to_string()})
}

fn written(line: &Value) -> String {
    format!("{line}\n")
}

/// A call whose arguments were cut has none that could be used.
fn function(id: &str, name: &str, arguments: &str) -> Value {
    let arguments = serde_json::from_str(arguments).ok().filter(Value::is_object);
    let arguments = arguments.unwrap_or_else(|| json!({}));
    json!({"id": id, "function": {"name": name, "arguments": arguments}})
}

pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
