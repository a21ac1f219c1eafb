//! An answer as the events of the responses API: the response, its items and their parts as they come, the response.

use axum::response::sse::Event as Frame;
use serde_json::{Value, json};
use toko_engine::TokenDetails;

use super::object::{Heading, Item, Kind, Status};
use crate::answer::{Account, End, Piece};
use crate::error::ApiError;
use crate::relay::{Dialect, Frames, Step};

/// Writes the events of one answer.
pub(super) struct Events {
    heading: Heading,
    /// Events that were written.
    written: usize,
    /// The item that is being written.
    open: Option<Item>,
    /// The items that are complete.
    done: Vec<Value>,
}

impl Events {
    pub(super) fn new(heading: Heading) -> Self {
        Self { heading, written: 0, open: None, done: Vec::new() }
    }

    /// Appends an event; its number tells the client whether it has missed one.
    fn write(&mut self, kind: &str, mut fields: Value, frames: &mut Frames<Frame>) {
        fields["type"] = json!(kind);
        fields["sequence_number"] = json!(self.written);
        self.written += 1;
        frames.push_back(Frame::default().event(kind).data(fields.to_string()));
    }

    /// Appends an event about the open item.
    fn write_of(&mut self, item: &Item, kind: &str, mut fields: Value, frames: &mut Frames<Frame>) {
        fields["item_id"] = json!(item.id);
        fields["output_index"] = json!(self.done.len());
        if item.part("").is_some() {
            fields["content_index"] = json!(0);
        }
        self.write(kind, fields, frames);
    }

    /// Begins an item.
    fn begin(&mut self, kind: Kind, frames: &mut Frames<Frame>) {
        self.close(Status::Completed, frames);
        let item = Item::new(kind);
        let added = json!({"output_index": self.done.len(), "item": item.told(Status::InProgress)});
        self.write("response.output_item.added", added, frames);
        if let Some(part) = item.part("") {
            self.write_of(&item, "response.content_part.added", json!({"part": part}), frames);
        }
        self.open = Some(item);
    }

    /// Ends the open item, if there is one.
    fn close(&mut self, status: Status, frames: &mut Frames<Frame>) {
        let Some(item) = self.open.take() else { return };
        let (kind, fields) = match &item.kind {
            Kind::Message => {
                ("response.output_text.done", json!({"text": item.text, "logprobs": []}))
            }
            Kind::Reasoning => ("response.reasoning_text.done", json!({"text": item.text})),
            Kind::Call { name, .. } => (
                "response.function_call_arguments.done",
                json!({"name": name, "arguments": item.text}),
            ),
        };
        self.write_of(&item, kind, fields, frames);
        if let Some(part) = item.part(&item.text) {
            self.write_of(&item, "response.content_part.done", json!({"part": part}), frames);
        }
        let told = item.told(status);
        let done = json!({"output_index": self.done.len(), "item": told});
        self.write("response.output_item.done", done, frames);
        self.done.push(told);
    }

    /// Adds text to the open item, which is of this kind.
    fn add(&mut self, text: &str, frames: &mut Frames<Frame>) {
        let Some(mut item) = self.open.take() else { return };
        item.text.push_str(text);
        let (kind, fields) = match item.kind {
            Kind::Message => ("response.output_text.delta", json!({"delta": text, "logprobs": []})),
            Kind::Reasoning => ("response.reasoning_text.delta", json!({"delta": text})),
            Kind::Call { .. } => ("response.function_call_arguments.delta", json!({"delta": text})),
        };
        self.write_of(&item, kind, fields, frames);
        self.open = Some(item);
    }

    fn is_open(&self, kind: &Kind) -> bool {
        self.open.as_ref().is_some_and(|item| item.kind == *kind)
    }

    /// Makes sure that an item of this kind is open, and adds text to it.
    fn tell(&mut self, kind: Kind, text: &str, frames: &mut Frames<Frame>) {
        if !self.is_open(&kind) {
            self.begin(kind, frames);
        }
        self.add(text, frames);
    }
}

impl Dialect for Events {
    type Frame = Frame;

    fn opening(&mut self, frames: &mut Frames<Frame>) {
        for kind in ["response.created", "response.in_progress"] {
            let begun = json!({"response": self.heading.begun()});
            self.write(kind, begun, frames);
        }
    }

    fn told(
        &mut self,
        _choice: usize,
        pieces: &[Piece],
        _tokens: &[TokenDetails],
        frames: &mut Frames<Frame>,
    ) {
        for piece in pieces {
            match piece {
                Piece::Content(text) => self.tell(Kind::Message, text, frames),
                Piece::Reasoning(text) => self.tell(Kind::Reasoning, text, frames),
                Piece::CallStart { id, name, .. } => {
                    let kind = Kind::Call { call_id: id.clone(), name: name.clone() };
                    self.begin(kind, frames);
                }
                Piece::CallArguments { fragment, .. } => self.add(fragment, frames),
            }
        }
    }

    fn finished(
        &mut self,
        _choice: usize,
        end: End,
        account: &Account,
        frames: &mut Frames<Frame>,
    ) -> Step {
        // Clients expect an item even where the model had nothing to say.
        if self.open.is_none() && self.done.is_empty() {
            self.begin(Kind::Message, frames);
        }
        self.close(Status::at(end), frames);
        let kind = match Status::at(end) {
            Status::Incomplete => "response.incomplete",
            Status::InProgress | Status::Completed => "response.completed",
        };
        let response = self.heading.ended(end, account, &self.done);
        self.write(kind, json!({"response": response}), frames);
        Step::Last
    }

    fn failed(&mut self, error: &ApiError, frames: &mut Frames<Frame>) {
        let response = self.heading.failed(error, &self.done);
        self.write("response.failed", json!({"response": response}), frames);
    }
}
