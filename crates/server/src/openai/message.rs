//! One message of a conversation: the wire type and what becomes of it.
//!
//! Text is joined, absent text becomes the empty string, older spellings become the current ones. What is not text is
//! refused by name.

use serde::Deserialize;
use serde_json::Value;
use toko_engine::{Message, ToolCall};

use crate::body::Object;
use crate::error::ApiError;
use crate::text_or::TextOr;
use crate::validate::{invalid, off, unsupported};

/// A message as clients write it.
#[derive(Debug, Deserialize)]
pub(super) struct WireMessage {
    role: Option<String>,
    content: Option<Content>,
    name: Option<String>,
    refusal: Option<String>,
    reasoning_content: Option<String>,
    tool_calls: Option<Vec<Object<WireCall>>>,
    function_call: Option<Object<WireFunction>>,
    tool_call_id: Option<String>,
    audio: Option<Value>,
}

/// Content, of which a string is the short form of one text part.
type Content = TextOr<Object<Part>>;

#[derive(Debug, Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: Option<String>,
    text: Option<String>,
    refusal: Option<String>,
}

#[derive(Debug, Deserialize)]
struct WireCall {
    id: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    function: Option<Object<WireFunction>>,
}

#[derive(Debug, Deserialize)]
struct WireFunction {
    name: Option<String>,
    arguments: Option<String>,
}

impl WireMessage {
    /// Checks the message, which stands at `at`, and returns what chat templates see.
    pub(super) fn accept(self, at: &str) -> Result<Message, ApiError> {
        let role = match self.role.as_deref() {
            None => return Err(ApiError::Missing { param: format!("{at}.role") }),
            Some("system" | "developer") => "system",
            Some("user") => "user",
            Some("assistant") => "assistant",
            Some("tool" | "function") => "tool",
            Some(other) => {
                let reason = format!(
                    "must be system, developer, user, assistant, tool or function, got {other:?}"
                );
                return Err(invalid(format!("{at}.role"), reason));
            }
        };
        let speaks_for_model = role == "assistant";
        off(&format!("{at}.audio"), self.audio.as_ref())?;
        let content = match self.content {
            Some(content) => join(content, &format!("{at}.content"))?,
            None if speaks_for_model => self.refusal.unwrap_or_default(),
            None => return Err(ApiError::Missing { param: format!("{at}.content") }),
        };
        let tool_calls = calls(self.tool_calls, self.function_call, at)?;
        if !speaks_for_model && !tool_calls.is_empty() {
            return Err(invalid(
                format!("{at}.tool_calls"),
                format!("a message of role {role} makes no calls"),
            ));
        }
        Ok(Message {
            role: role.to_owned(),
            content,
            name: self.name,
            tool_calls,
            tool_call_id: self.tool_call_id,
            reasoning_content: self.reasoning_content,
        })
    }
}

/// Joins text parts by line breaks.
fn join(content: Content, at: &str) -> Result<String, ApiError> {
    let parts = match content {
        TextOr::Text(text) => return Ok(text),
        TextOr::Several(parts) if parts.is_empty() => {
            return Err(invalid(at, "must have at least one part"));
        }
        TextOr::Several(parts) => parts,
    };
    let texts = parts
        .into_iter()
        .enumerate()
        .map(|(index, Object(part))| part.text(&format!("{at}[{index}]")));
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
}

impl Part {
    fn text(self, at: &str) -> Result<String, ApiError> {
        let (field, text) = match self.kind.as_deref() {
            None => return Err(ApiError::Missing { param: format!("{at}.type") }),
            Some("text") => ("text", self.text),
            Some("refusal") => ("refusal", self.refusal),
            Some(kind @ ("image_url" | "input_audio" | "file" | "video_url" | "audio_url")) => {
                return Err(unsupported(at, format!("the model reads text only, not {kind}")));
            }
            Some(other) => {
                return Err(invalid(
                    format!("{at}.type"),
                    format!("must be text or refusal, got {other:?}"),
                ));
            }
        };
        text.ok_or_else(|| ApiError::Missing { param: format!("{at}.{field}") })
    }
}

/// Reads the calls of an assistant message, of which the older spelling allows one without an id.
fn calls(
    tool_calls: Option<Vec<Object<WireCall>>>,
    function_call: Option<Object<WireFunction>>,
    at: &str,
) -> Result<Vec<ToolCall>, ApiError> {
    let mut calls = Vec::new();
    for (index, Object(call)) in tool_calls.into_iter().flatten().enumerate() {
        let at = format!("{at}.tool_calls[{index}]");
        if let Some(kind) = call.kind.filter(|kind| kind != "function") {
            return Err(unsupported(
                format!("{at}.type"),
                format!("must be function, got {kind:?}"),
            ));
        }
        let Some(Object(function)) = call.function else {
            return Err(ApiError::Missing { param: format!("{at}.function") });
        };
        calls.push(function.accept(call.id.unwrap_or_default(), &format!("{at}.function"))?);
    }
    if let Some(Object(function)) = function_call {
        calls.push(function.accept(String::new(), &format!("{at}.function_call"))?);
    }
    Ok(calls)
}

impl WireFunction {
    fn accept(self, id: String, at: &str) -> Result<ToolCall, ApiError> {
        let name = self.name.ok_or_else(|| ApiError::Missing { param: format!("{at}.name") })?;
        let text =
            self.arguments.ok_or_else(|| ApiError::Missing { param: format!("{at}.arguments") })?;
        // Templates want the object; a model may have written something that is none, and that is kept as it was.
        let arguments = match serde_json::from_str(&text) {
            Ok(Value::Object(fields)) => Value::Object(fields),
            _ => Value::String(text),
        };
        Ok(ToolCall { id, name, arguments })
    }
}
