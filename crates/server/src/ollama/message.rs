//! One message of an Ollama conversation: the wire type and what becomes of it.

use serde::Deserialize;
use serde_json::Value;
use toko_engine::{Message, ToolCall};

use crate::body::Object;
use crate::error::ApiError;
use crate::validate::{invalid, missing, off};

/// A message as clients write it.
#[derive(Debug, Deserialize)]
pub(super) struct WireMessage {
    role: Option<String>,
    content: Option<String>,
    thinking: Option<String>,
    tool_calls: Option<Vec<Object<WireCall>>>,
    tool_name: Option<String>,
    tool_call_id: Option<String>,
    images: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct WireCall {
    id: Option<String>,
    function: Option<Object<WireFunction>>,
}

#[derive(Debug, Deserialize)]
struct WireFunction {
    name: Option<String>,
    arguments: Option<Value>,
}

impl WireMessage {
    /// Checks the message, which stands at `at`, and returns what chat templates see.
    pub(super) fn accept(self, at: &str) -> Result<Message, ApiError> {
        let role = self.role.ok_or_else(|| missing(format!("{at}.role")))?;
        if !["system", "user", "assistant", "tool"].contains(&role.as_str()) {
            let reason = format!("must be system, user, assistant or tool, got {role:?}");
            return Err(invalid(format!("{at}.role"), reason));
        }
        off(&format!("{at}.images"), self.images.as_ref())?;
        let mut tool_calls = Vec::new();
        for (index, Object(call)) in self.tool_calls.into_iter().flatten().enumerate() {
            tool_calls.push(call.accept(&format!("{at}.tool_calls[{index}]"))?);
        }
        if role != "assistant" && !tool_calls.is_empty() {
            let reason = format!("a message of role {role} makes no calls");
            return Err(invalid(format!("{at}.tool_calls"), reason));
        }
        Ok(Message {
            role,
            content: self.content.unwrap_or_default(),
            name: self.tool_name.filter(|name| !name.is_empty()),
            tool_calls,
            tool_call_id: self.tool_call_id.filter(|id| !id.is_empty()),
            reasoning_content: self.thinking.filter(|thoughts| !thoughts.is_empty()),
        })
    }
}

impl WireCall {
    fn accept(self, at: &str) -> Result<ToolCall, ApiError> {
        let Some(Object(function)) = self.function else {
            return Err(missing(format!("{at}.function")));
        };
        let name = function.name.ok_or_else(|| missing(format!("{at}.function.name")))?;
        let arguments = match function.arguments {
            None => Value::Object(serde_json::Map::new()),
            Some(arguments @ Value::Object(_)) => arguments,
            Some(_) => {
                let param = format!("{at}.function.arguments");
                return Err(ApiError::InvalidType {
                    param,
                    reason: "must be an object".to_owned(),
                });
            }
        };
        Ok(ToolCall { id: self.id.unwrap_or_default(), name, arguments })
    }
}
