//! A chat answer as chunks: role, texts, finish, usage if asked for, `[DONE]`.

use axum::response::sse::Event as Frame;
use serde_json::{Value, json};
use toko_engine::Summary;

use super::chat::{FINGERPRINT, Heading, finish_reason, usage};
use super::controls::UsageChunk;
use crate::error::ApiError;
use crate::sse::{Dialect, Frames, Step};

/// Writes the chunks of one answer; all carry its heading.
pub(super) struct Chunks {
    pub(super) heading: Heading,
    pub(super) usage: UsageChunk,
}

impl Chunks {
    fn choice(&self, index: usize, delta: &Value, finish_reason: Option<&str>) -> Frame {
        let choice = json!({
            "index": index,
            "delta": delta,
            "logprobs": null,
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
    fn opening(&self, frames: &mut Frames) {
        frames.push_back(self.choice(0, &json!({"role": "assistant", "content": ""}), None));
    }

    fn text(&self, choice: usize, text: &str, frames: &mut Frames) {
        frames.push_back(self.choice(choice, &json!({"content": text}), None));
    }

    fn finished(&mut self, choice: usize, summary: &Summary, frames: &mut Frames) -> Step {
        frames.push_back(self.choice(choice, &json!({}), Some(finish_reason(summary.reason))));
        if self.usage == UsageChunk::Sent {
            frames.push_back(self.chunk(&json!([]), &usage(summary)));
        }
        frames.push_back(done());
        Step::Last
    }

    fn failed(&self, error: &ApiError, frames: &mut Frames) {
        frames.push_back(data(&error.object()));
        frames.push_back(done());
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
