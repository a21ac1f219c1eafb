//! The response object and its items, as far as an answer has come.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::request::Echo;
use crate::answer::{Account, Answer, Call, End};
use crate::catalog::Model;
use crate::error::ApiError;
use crate::ids;

/// What all that is told of one answer repeats.
pub(super) struct Heading {
    id: String,
    created_at: u64,
    model: String,
    echo: Echo,
}

/// An item of an answer, with its text so far.
pub(super) struct Item {
    pub(super) id: String,
    pub(super) kind: Kind,
    pub(super) text: String,
}

/// What an item holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Message,
    Reasoning,
    Call { call_id: String, name: String },
}

/// How far an item or an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    InProgress,
    Completed,
    Incomplete,
}

impl Status {
    fn word(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete => "incomplete",
        }
    }

    /// Returns what an answer with this end is.
    pub(super) fn at(end: End) -> Self {
        match end {
            End::Stop | End::ToolCalls => Self::Completed,
            End::Length => Self::Incomplete,
        }
    }
}

impl Item {
    pub(super) fn new(kind: Kind) -> Self {
        let prefix = match kind {
            Kind::Message => "msg",
            Kind::Reasoning => "rs",
            Kind::Call { .. } => "fc",
        };
        Self { id: format!("{prefix}_{}", ids::unique()), kind, text: String::new() }
    }

    fn filled(kind: Kind, text: &str) -> Self {
        Self { text: text.to_owned(), ..Self::new(kind) }
    }

    /// Returns the item as it stands in an answer.
    pub(super) fn told(&self, status: Status) -> Value {
        let Self { id, kind, text } = self;
        let status_word = status.word();
        // An item that has only begun shows none of the parts that follow.
        let content: Vec<Value> = match status {
            Status::InProgress => Vec::new(),
            Status::Completed | Status::Incomplete => self.part(text).into_iter().collect(),
        };
        match kind {
            Kind::Message => json!({
                "id": id, "type": "message", "role": "assistant", "status": status_word, "content": content,
            }),
            Kind::Reasoning => json!({
                "id": id, "type": "reasoning", "status": status_word, "summary": [], "content": content,
            }),
            Kind::Call { call_id, name } => json!({
                "id": id, "type": "function_call", "status": status_word, "call_id": call_id, "name": name,
                "arguments": text,
            }),
        }
    }

    /// Returns the only part of an item with this text; a call has none.
    pub(super) fn part(&self, text: &str) -> Option<Value> {
        match self.kind {
            Kind::Message => Some(
                json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []}),
            ),
            Kind::Reasoning => Some(json!({"type": "reasoning_text", "text": text})),
            Kind::Call { .. } => None,
        }
    }
}

impl Heading {
    pub(super) fn new(model: &Model, echo: Echo, now: SystemTime) -> Self {
        Self {
            id: format!("resp_{}", ids::unique()),
            created_at: now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            model: model.id.clone(),
            echo,
        }
    }

    /// Returns an answer that is not complete.
    pub(super) fn begun(&self) -> Value {
        self.object(Status::InProgress.word(), &[])
    }

    /// Returns an answer that ended, with its items.
    pub(super) fn ended(&self, end: End, account: &Account, items: &[Value]) -> Value {
        let status = Status::at(end);
        let mut response = self.object(status.word(), items);
        if status == Status::Incomplete {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        response["usage"] = usage(account);
        response
    }

    /// Returns an answer that could not go on, with the items that were complete.
    pub(super) fn failed(&self, error: &ApiError, items: &[Value]) -> Value {
        let mut response = self.object("failed", items);
        response["error"] = json!({"code": "server_error", "message": error.to_string()});
        response
    }

    /// Returns a whole answer.
    pub(super) fn whole(&self, answer: &Answer) -> Value {
        let mut items = Vec::new();
        if !answer.reasoning.is_empty() {
            items.push(Item::filled(Kind::Reasoning, &answer.reasoning));
        }
        if !answer.content.is_empty() || (items.is_empty() && answer.calls.is_empty()) {
            items.push(Item::filled(Kind::Message, &answer.content));
        }
        let call = |Call { id, name, arguments }: &Call| {
            let kind = Kind::Call { call_id: id.clone(), name: name.clone() };
            Item::filled(kind, arguments)
        };
        items.extend(answer.calls.iter().map(call));
        let last = items.len() - 1;
        // Only the last item can have been cut.
        let status = |index| if index == last { Status::at(answer.end) } else { Status::Completed };
        let items: Vec<Value> =
            items.iter().enumerate().map(|(index, item)| item.told(status(index))).collect();
        self.ended(answer.end, &answer.account, &items)
    }

    fn object(&self, status: &str, items: &[Value]) -> Value {
        let echo = &self.echo;
        json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "background": false,
            "error": null,
            "incomplete_details": null,
            "instructions": echo.instructions,
            "max_output_tokens": echo.max_output_tokens,
            "metadata": echo.metadata,
            "model": self.model,
            "output": items,
            "parallel_tool_calls": echo.parallel_tool_calls,
            "previous_response_id": null,
            "store": false,
            "temperature": plain(echo.temperature),
            "text": {"format": echo.text_format},
            "tool_choice": echo.tool_choice,
            "tools": echo.tools,
            "top_p": plain(echo.top_p),
            "truncation": "disabled",
            "usage": null,
        })
    }
}

/// Returns a number without the digits that only its rounding to binary has.
fn plain(number: f32) -> f64 {
    (f64::from(number) * 1e6).round() / 1e6
}

/// Returns the account of tokens.
fn usage(account: &Account) -> Value {
    let Account { summary, reasoning_tokens } = account;
    json!({
        "input_tokens": summary.prompt_tokens,
        "input_tokens_details": {"cached_tokens": summary.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": summary.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": summary.prompt_tokens + summary.completion_tokens,
    })
}
