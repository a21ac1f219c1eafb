//! The items of an input, and the messages that they become.
//!
//! Thoughts, text and calls of the assistant that follow each other are one message to a template.

use serde::Deserialize;
use serde_json::Value;
use toko_engine::{Message, ToolCall};

use crate::body::Object;
use crate::error::ApiError;
use crate::text_or::TextOr;
use crate::validate::{invalid, missing, unsupported};

/// An item as clients write it, with the fields of all kinds.
#[derive(Debug, Deserialize)]
pub(super) struct Item {
    #[serde(rename = "type")]
    kind: Option<String>,
    role: Option<String>,
    content: Option<Content>,
    call_id: Option<String>,
    name: Option<String>,
    arguments: Option<String>,
    output: Option<Content>,
    summary: Option<Vec<Object<Part>>>,
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

/// Appends what an item, which stands at `at`, adds to the conversation.
pub(super) fn append(messages: &mut Vec<Message>, item: Item, at: &str) -> Result<(), ApiError> {
    match item.kind.as_deref() {
        None | Some("message") => item.message(messages, at),
        Some("reasoning") => item.thoughts(messages, at),
        Some("function_call") => item.call(messages, at),
        Some("function_call_output") => item.result(messages, at),
        Some(other) => Err(unsupported(
            format!("{at}.type"),
            format!(
                "must be message, reasoning, function_call or function_call_output, got {other:?}"
            ),
        )),
    }
}

/// Appends words of the operator, which templates want in one piece at the beginning.
pub(super) fn instruct(messages: &mut Vec<Message>, text: String) {
    match messages.last_mut() {
        Some(last) if last.role == "system" => last.content = format!("{}\n{text}", last.content),
        _ => messages.push(Message::new("system", text)),
    }
}

/// Returns the message of the assistant that the next of its items belongs to.
fn assistant(
    messages: &mut Vec<Message>,
    has_room: impl Fn(&Message) -> bool,
) -> Option<&mut Message> {
    if !messages.last().is_some_and(|last| last.role == "assistant" && has_room(last)) {
        messages.push(Message::new("assistant", ""));
    }
    messages.last_mut()
}

impl Item {
    fn message(self, messages: &mut Vec<Message>, at: &str) -> Result<(), ApiError> {
        let role = self.role.ok_or_else(|| missing(format!("{at}.role")))?;
        let content = self.content.ok_or_else(|| missing(format!("{at}.content")))?;
        let content = text(content, &format!("{at}.content"))?;
        match role.as_str() {
            "user" => messages.push(Message::new("user", content)),
            "system" | "developer" => instruct(messages, content),
            "assistant" => {
                let is_empty =
                    |last: &Message| last.content.is_empty() && last.tool_calls.is_empty();
                if let Some(message) = assistant(messages, is_empty) {
                    message.content = content;
                }
            }
            other => {
                let reason = format!("must be user, assistant, system or developer, got {other:?}");
                return Err(invalid(format!("{at}.role"), reason));
            }
        }
        Ok(())
    }

    /// What is encrypted tells the model nothing; then the summary has to do.
    fn thoughts(self, messages: &mut Vec<Message>, at: &str) -> Result<(), ApiError> {
        let (content, field) = match self.content {
            Some(content) => (content, "content"),
            None => (TextOr::Several(self.summary.unwrap_or_default()), "summary"),
        };
        let thoughts = text(content, &format!("{at}.{field}"))?;
        if !thoughts.is_empty()
            && let Some(message) = assistant(messages, |_| false)
        {
            message.reasoning_content = Some(thoughts);
        }
        Ok(())
    }

    fn call(self, messages: &mut Vec<Message>, at: &str) -> Result<(), ApiError> {
        let id = self.call_id.ok_or_else(|| missing(format!("{at}.call_id")))?;
        let name = self.name.ok_or_else(|| missing(format!("{at}.name")))?;
        let text = self.arguments.ok_or_else(|| missing(format!("{at}.arguments")))?;
        let parsed = serde_json::from_str(&text).ok().filter(Value::is_object);
        let arguments = parsed.unwrap_or(Value::String(text));
        if let Some(message) = assistant(messages, |_| true) {
            message.tool_calls.push(ToolCall { id, name, arguments });
        }
        Ok(())
    }

    fn result(self, messages: &mut Vec<Message>, at: &str) -> Result<(), ApiError> {
        let id = self.call_id.ok_or_else(|| missing(format!("{at}.call_id")))?;
        let output = self.output.ok_or_else(|| missing(format!("{at}.output")))?;
        let output = text(output, &format!("{at}.output"))?;
        messages.push(Message { tool_call_id: Some(id), ..Message::new("tool", output) });
        Ok(())
    }
}

/// Joins text parts by line breaks.
fn text(content: Content, at: &str) -> Result<String, ApiError> {
    let parts = match content {
        TextOr::Text(text) => return Ok(text),
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
        match self.kind.as_deref() {
            None => Err(missing(format!("{at}.type"))),
            Some("input_text" | "output_text" | "text" | "reasoning_text" | "summary_text") => {
                self.text.ok_or_else(|| missing(format!("{at}.text")))
            }
            Some("refusal") => self.refusal.ok_or_else(|| missing(format!("{at}.refusal"))),
            Some(kind @ ("input_image" | "input_file" | "input_audio")) => {
                Err(unsupported(at, format!("the model reads text only, not {kind}")))
            }
            Some(other) => Err(invalid(
                format!("{at}.type"),
                format!("must be input_text, output_text or refusal, got {other:?}"),
            )),
        }
    }
}
