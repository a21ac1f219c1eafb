//! A conversation as chat templates see it.
//!
//! Invariant: plain data; absent text is the empty string, so that no template meets a null content.

use std::time::SystemTime;

use serde_json::{Map, Value};

/// Holds a conversation and everything else that a template may ask about.
#[derive(Debug, Clone)]
pub struct Chat {
    /// The messages, oldest first.
    pub messages: Vec<Message>,
    /// The tools on offer, as the request gave them: an array of function definitions.
    pub tools: Option<Value>,
    /// Whether the prompt ends where the assistant is to speak.
    pub add_generation_prompt: bool,
    /// Further template variables, such as `enable_thinking`.
    pub variables: Map<String, Value>,
    /// The time that `strftime_now` formats, in UTC.
    pub now: SystemTime,
}

impl Chat {
    /// Makes a conversation without tools or variables, ready for the assistant to speak.
    pub fn new(messages: Vec<Message>, now: SystemTime) -> Self {
        Self { messages, tools: None, add_generation_prompt: true, variables: Map::new(), now }
    }
}

/// Holds one message of a conversation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, `tool`, or another word that the template knows.
    pub role: String,
    /// The text; empty when the message has none.
    pub content: String,
    /// The speaker's name, or the tool's.
    pub name: Option<String>,
    /// The calls that an assistant made.
    pub tool_calls: Vec<ToolCall>,
    /// The call that a tool message answers.
    pub tool_call_id: Option<String>,
    /// What the assistant thought before it answered.
    pub reasoning_content: Option<String>,
}

impl Message {
    /// Makes a message of plain text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), ..Self::default() }
    }
}

/// Holds one function call that an assistant made.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// The call's id; empty when it has none.
    pub id: String,
    /// The function's name.
    pub name: String,
    /// The arguments: an object, or the text that a client sent where that was no JSON object.
    pub arguments: Value,
}
