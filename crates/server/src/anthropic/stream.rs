//! An Anthropic answer as events: the message's start, its blocks one after the other, its end.

use axum::http::HeaderValue;
use axum::response::sse::Event as Frame;
use serde_json::{Value, json};
use toko_engine::TokenDetails;

use super::error;
use super::messages::{Heading, opened, stop_reason, text_block, thinking, tool_use, usage};
use crate::answer::{Account, End, Piece};
use crate::error::ApiError;
use crate::relay::{Dialect, Frames, Step};

/// Writes the events of one answer.
pub(super) struct Events {
    heading: Heading,
    prompt_tokens: usize,
    request_id: Option<HeaderValue>,
    /// The block that is being written.
    open: Option<Kind>,
    /// Blocks that were begun.
    begun: usize,
}

/// What a block holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Thinking,
    Call,
}

impl Events {
    pub(super) fn new(
        heading: Heading,
        prompt_tokens: usize,
        request_id: Option<HeaderValue>,
    ) -> Self {
        Self { heading, prompt_tokens, request_id, open: None, begun: 0 }
    }

    /// Makes sure that a block of this kind is open.
    fn enter(&mut self, kind: Kind, empty: &Value, frames: &mut Frames<Frame>) {
        if self.open != Some(kind) {
            self.begin(kind, empty, frames);
        }
    }

    fn begin(&mut self, kind: Kind, block: &Value, frames: &mut Frames<Frame>) {
        self.close(frames);
        let start = json!({
            "type": "content_block_start", "index": self.begun, "content_block": block,
        });
        frames.push_back(event(&start));
        if self.begun == 0 {
            frames.push_back(ping());
        }
        self.open = Some(kind);
        self.begun += 1;
    }

    fn close(&mut self, frames: &mut Frames<Frame>) {
        if self.open.take().is_some() {
            let stop = json!({"type": "content_block_stop", "index": self.begun - 1});
            frames.push_back(event(&stop));
        }
    }

    fn delta(&self, delta: &Value) -> Frame {
        let index = self.begun - 1;
        event(&json!({"type": "content_block_delta", "index": index, "delta": delta}))
    }

    fn tell(&mut self, piece: &Piece, frames: &mut Frames<Frame>) {
        let delta = match piece {
            Piece::Content(text) => {
                self.enter(Kind::Text, &text_block(""), frames);
                json!({"type": "text_delta", "text": text})
            }
            Piece::Reasoning(text) => {
                self.enter(Kind::Thinking, &thinking(""), frames);
                json!({"type": "thinking_delta", "thinking": text})
            }
            Piece::CallStart { id, name, .. } => {
                return self.begin(Kind::Call, &tool_use(id, name, &json!({})), frames);
            }
            Piece::CallArguments { fragment, .. } => {
                json!({"type": "input_json_delta", "partial_json": fragment})
            }
        };
        frames.push_back(self.delta(&delta));
    }
}

impl Dialect for Events {
    type Frame = Frame;

    fn opening(&mut self, frames: &mut Frames<Frame>) {
        let mut message = opened(&self.heading, &[]);
        // How many of them are re-used is known at the end, and told there.
        message["usage"] = json!({
            "input_tokens": self.prompt_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        });
        frames.push_back(event(&json!({"type": "message_start", "message": message})));
    }

    fn told(
        &mut self,
        _choice: usize,
        pieces: &[Piece],
        _tokens: &[TokenDetails],
        frames: &mut Frames<Frame>,
    ) {
        for piece in pieces {
            self.tell(piece, frames);
        }
    }

    fn finished(
        &mut self,
        _choice: usize,
        end: End,
        account: &Account,
        frames: &mut Frames<Frame>,
    ) -> Step {
        self.close(frames);
        let (reason, sequence) = stop_reason(&self.heading, end, account);
        frames.push_back(event(&json!({
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": sequence},
            "usage": usage(account),
        })));
        frames.push_back(event(&json!({"type": "message_stop"})));
        Step::Last
    }

    fn failed(&mut self, error: &ApiError, frames: &mut Frames<Frame>) {
        frames.push_back(event(&error::object(error, self.request_id.as_ref())));
    }
}

/// The frame that says nothing but that the connection lives.
pub(super) fn ping() -> Frame {
    event(&json!({"type": "ping"}))
}

/// A frame whose name is the type of its data, by which the clients tell frames apart.
fn event(data: &Value) -> Frame {
    Frame::default().event(data["type"].as_str().unwrap_or_default()).data(data.to_string())
}
