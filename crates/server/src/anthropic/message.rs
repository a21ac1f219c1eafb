//! One message of an Anthropic conversation: blocks of content, and what becomes of them.
//!
//! Results of calls become messages of their own, since templates know them so. What is not text is refused by name.

use serde::Deserialize;
use serde_json::Value;
use toko_engine::{Message, ToolCall};

use crate::body::Object;
use crate::error::ApiError;
use crate::text_or::TextOr;
use crate::validate::{invalid, missing, unsupported};

/// A message as clients write it.
#[derive(Debug, Deserialize)]
pub(super) struct WireMessage {
    role: Option<String>,
    content: Option<Blocks>,
}

/// Content, of which a string is the short form of one text block.
pub(super) type Blocks = TextOr<Object<Block>>;

/// A block of content, with the fields of all kinds.
#[derive(Debug, Deserialize)]
pub(super) struct Block {
    #[serde(rename = "type")]
    kind: Option<String>,
    text: Option<String>,
    thinking: Option<String>,
    id: Option<String>,
    name: Option<String>,
    input: Option<Value>,
    tool_use_id: Option<String>,
    content: Option<Blocks>,
}

/// Turns a conversation into the messages that chat templates see.
///
/// Messages of the same speaker in a row become one, as the public API has it.
pub(super) fn conversation(
    system: Option<Blocks>,
    messages: Vec<Object<WireMessage>>,
) -> Result<Vec<Message>, ApiError> {
    if messages.is_empty() {
        return Err(invalid("messages", "must have at least one message"));
    }
    let mut told = Vec::new();
    if let Some(system) = system {
        told.push(Message::new("system", text(system, "system")?));
    }
    for (index, Object(message)) in messages.into_iter().enumerate() {
        for message in message.accept(&format!("messages[{index}]"))? {
            append(&mut told, message);
        }
    }
    Ok(told)
}

fn append(told: &mut Vec<Message>, next: Message) {
    match told.last_mut() {
        Some(last) if last.role == next.role && next.role != "tool" => {
            last.content = join(vec![std::mem::take(&mut last.content), next.content]);
            last.tool_calls.extend(next.tool_calls);
            if let Some(thoughts) = next.reasoning_content {
                last.reasoning_content.get_or_insert_default().push_str(&thoughts);
            }
        }
        _ => told.push(next),
    }
}

fn join(mut texts: Vec<String>) -> String {
    texts.retain(|text| !text.is_empty());
    texts.join("\n")
}

impl WireMessage {
    fn accept(self, at: &str) -> Result<Vec<Message>, ApiError> {
        let role = self.role.ok_or_else(|| missing(format!("{at}.role")))?;
        let content = self.content.ok_or_else(|| missing(format!("{at}.content")))?;
        let at_content = format!("{at}.content");
        match role.as_str() {
            "user" => from_user(content, &at_content),
            "assistant" => Ok(vec![from_assistant(content, &at_content)?]),
            "system" => Ok(vec![Message::new("system", text(content, &at_content)?)]),
            other => Err(invalid(
                format!("{at}.role"),
                format!("must be user, assistant or system, got {other:?}"),
            )),
        }
    }
}

/// Reads texts and results of calls, in their order.
fn from_user(content: Blocks, at: &str) -> Result<Vec<Message>, ApiError> {
    let blocks = match content {
        TextOr::Text(text) => return Ok(vec![Message::new("user", text)]),
        TextOr::Several(blocks) => filled(blocks, at)?,
    };
    let mut messages = Vec::new();
    for (index, Object(block)) in blocks.into_iter().enumerate() {
        let at = format!("{at}[{index}]");
        let message = match block.kind(&at)? {
            "tool_result" => block.result(&at)?,
            _ => Message::new("user", block.text(&at)?),
        };
        append(&mut messages, message);
    }
    Ok(messages)
}

/// Reads thoughts, texts and calls.
fn from_assistant(content: Blocks, at: &str) -> Result<Message, ApiError> {
    let blocks = match content {
        TextOr::Text(text) => return Ok(Message::new("assistant", text)),
        TextOr::Several(blocks) => blocks,
    };
    let (mut texts, mut thoughts, mut tool_calls) = (Vec::new(), Vec::new(), Vec::new());
    for (index, Object(block)) in blocks.into_iter().enumerate() {
        let at = format!("{at}[{index}]");
        match block.kind(&at)? {
            "thinking" => {
                thoughts.push(block.thinking.ok_or_else(|| missing(format!("{at}.thinking")))?);
            }
            // What only its author could read tells a model nothing.
            "redacted_thinking" => {}
            "tool_use" => tool_calls.push(block.call(&at)?),
            _ => texts.push(block.text(&at)?),
        }
    }
    Ok(Message {
        tool_calls,
        reasoning_content: (!thoughts.is_empty()).then(|| join(thoughts)),
        ..Message::new("assistant", join(texts))
    })
}

/// Joins content that may have text only.
fn text(content: Blocks, at: &str) -> Result<String, ApiError> {
    let blocks = match content {
        TextOr::Text(text) => return Ok(text),
        TextOr::Several(blocks) => blocks,
    };
    let texts = blocks
        .into_iter()
        .enumerate()
        .map(|(index, Object(block))| block.text(&format!("{at}[{index}]")));
    Ok(join(texts.collect::<Result<_, _>>()?))
}

fn filled(blocks: Vec<Object<Block>>, at: &str) -> Result<Vec<Object<Block>>, ApiError> {
    if blocks.is_empty() { Err(invalid(at, "must have at least one block")) } else { Ok(blocks) }
}

impl Block {
    fn kind(&self, at: &str) -> Result<&str, ApiError> {
        self.kind.as_deref().ok_or_else(|| missing(format!("{at}.type")))
    }

    fn text(self, at: &str) -> Result<String, ApiError> {
        match self.kind(at)? {
            "text" => self.text.ok_or_else(|| missing(format!("{at}.text"))),
            kind @ ("image" | "document" | "search_result") => {
                Err(unsupported(at, format!("the model reads text only, not {kind}")))
            }
            other => Err(unsupported(
                format!("{at}.type"),
                format!("a block of type {other:?} cannot stand here"),
            )),
        }
    }

    fn result(self, at: &str) -> Result<Message, ApiError> {
        let id = self.tool_use_id.ok_or_else(|| missing(format!("{at}.tool_use_id")))?;
        let content = match self.content {
            Some(content) => text(content, &format!("{at}.content"))?,
            None => String::new(),
        };
        Ok(Message { tool_call_id: Some(id), ..Message::new("tool", content) })
    }

    fn call(self, at: &str) -> Result<ToolCall, ApiError> {
        let id = self.id.ok_or_else(|| missing(format!("{at}.id")))?;
        let name = self.name.ok_or_else(|| missing(format!("{at}.name")))?;
        let param = format!("{at}.input");
        match self.input {
            Some(arguments @ Value::Object(_)) => Ok(ToolCall { id, name, arguments }),
            Some(_) => Err(ApiError::InvalidType { param, reason: "must be an object".to_owned() }),
            None => Err(missing(param)),
        }
    }
}
