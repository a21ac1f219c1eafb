//! A chat answer as chunks: the role, pieces and finish of each choice, usage if asked for, `[DONE]`.
//!
//! The chunks of several choices are mixed as their texts come.

use axum::response::sse::Event as Frame;
use serde_json::{Value, json};
use toko_engine::TokenDetails;

use super::chat::{FINGERPRINT, Heading, finish_reason, usage_of_choices};
use super::controls::UsageChunk;
use super::logprobs;
use super::request::Shape;
use super::tools::CallShape;
use crate::answer::{Account, End, Piece};
use crate::error::ApiError;
use crate::relay::{Dialect, Frames, Step};

/// Writes the chunks of one answer; all carry its heading.
pub(super) struct Chunks {
    pub(super) heading: Heading,
    pub(super) usage: UsageChunk,
    pub(super) shape: Shape,
    /// The accounts of the choices that are complete.
    pub(super) ended: Vec<Account>,
}

impl Chunks {
    fn choice(&self, index: usize, delta: &Value, finish_reason: Option<&str>) -> Frame {
        self.told_choice(index, delta, &Value::Null, finish_reason)
    }

    fn told_choice(
        &self,
        index: usize,
        delta: &Value,
        logprobs: &Value,
        finish_reason: Option<&str>,
    ) -> Frame {
        let choice = json!({
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        });
        self.chunk(&json!([choice]), &Value::Null)
    }

    fn chunk(&self, choices: &Value, usage: &Value) -> Frame {
        let Heading { id, created, model } = &self.heading;
        let mut chunk = json!({
            "id": id,
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
            "system_fingerprint": FINGERPRINT,
            "choices": choices,
        });
        if self.usage == UsageChunk::Sent {
            chunk["usage"] = usage.clone();
        }
        data(&chunk)
    }
}

impl Dialect for Chunks {
    type Frame = Frame;

    fn opening(&mut self, frames: &mut Frames<Frame>) {
        for index in 0..self.shape.choices {
            frames.push_back(self.choice(
                index,
                &json!({"role": "assistant", "content": ""}),
                None,
            ));
        }
    }

    fn told(
        &mut self,
        choice: usize,
        pieces: &[Piece],
        tokens: &[TokenDetails],
        frames: &mut Frames<Frame>,
    ) {
        let has_logprobs = self.shape.has_logprobs;
        let mut logprobs = if has_logprobs { logprobs::told(tokens) } else { Value::Null };
        if pieces.is_empty() {
            let delta = json!({"content": ""});
            frames.push_back(self.told_choice(choice, &delta, &logprobs, None));
        }
        for piece in pieces {
            let delta = delta(piece, self.shape.calls);
            frames.push_back(self.told_choice(choice, &delta, &logprobs.take(), None));
        }
    }

    fn finished(
        &mut self,
        choice: usize,
        end: End,
        account: &Account,
        frames: &mut Frames<Frame>,
    ) -> Step {
        frames.push_back(self.choice(
            choice,
            &json!({}),
            Some(finish_reason(end, self.shape.calls)),
        ));
        self.ended.push(account.clone());
        if self.ended.len() < self.shape.choices {
            return Step::More;
        }
        if self.usage == UsageChunk::Sent {
            frames.push_back(self.chunk(&json!([]), &usage_of_choices(self.ended.iter())));
        }
        frames.push_back(done());
        Step::Last
    }

    fn failed(&mut self, error: &ApiError, frames: &mut Frames<Frame>) {
        frames.push_back(data(&error.object()));
        frames.push_back(done());
    }
}

/// Returns what a piece adds to the message.
fn delta(piece: &Piece, calls: CallShape) -> Value {
    let (head, function) = match piece {
        Piece::Content(text) => return json!({"content": text}),
        Piece::Reasoning(text) => return json!({"reasoning_content": text}),
        Piece::CallStart { index, id, name } => (
            json!({"index": index, "id": id, "type": "function"}),
            json!({"name": name, "arguments": ""}),
        ),
        Piece::CallArguments { index, fragment } => {
            (json!({"index": index}), json!({"arguments": fragment}))
        }
    };
    match calls {
        CallShape::FunctionCall => json!({"function_call": function}),
        CallShape::ToolCalls => {
            let mut call = head;
            call["function"] = function;
            json!({"tool_calls": [call]})
        }
    }
}

/// A frame of compact JSON, which has no line break that would split it.
pub(super) fn data(value: &Value) -> Frame {
    Frame::default().data(value.to_string())
}

/// The frame after which nothing follows.
pub(super) fn done() -> Frame {
    Frame::default().data("[DONE]")
}
