//! The tools that an Anthropic request offers.

use serde::Deserialize;
use serde_json::Value;

use crate::answer::Limit;
use crate::body::Object;
use crate::error::ApiError;
use crate::tools::{Choice, Tool, Tools};
use crate::validate::{invalid, missing, unsupported};

/// A tool as clients describe it.
#[derive(Debug, Deserialize)]
pub(super) struct WireTool {
    #[serde(rename = "type")]
    kind: Option<String>,
    name: Option<String>,
    description: Option<String>,
    input_schema: Option<Value>,
    strict: Option<bool>,
}

/// Which of the tools are to be called.
#[derive(Debug, Deserialize)]
pub(super) struct WireChoice {
    #[serde(rename = "type")]
    kind: Option<String>,
    name: Option<String>,
    disable_parallel_tool_use: Option<bool>,
}

/// Returns the tools that the model may call, if any.
pub(super) fn accept(
    tools: Option<Vec<Object<WireTool>>>,
    choice: Option<Object<WireChoice>>,
) -> Result<Option<Tools>, ApiError> {
    let (choice, limit) = match choice {
        Some(Object(choice)) => choice.accept()?,
        None => (Choice::Auto, Limit::Any),
    };
    let mut offered = Vec::new();
    for (index, Object(tool)) in tools.into_iter().flatten().enumerate() {
        offered.push(tool.accept(&format!("tools[{index}]"))?);
    }
    Tools::accept("tools", offered, "tool_choice", choice, limit)
}

impl WireChoice {
    fn accept(self) -> Result<(Choice, Limit), ApiError> {
        let limit =
            if self.disable_parallel_tool_use == Some(true) { Limit::One } else { Limit::Any };
        let choice = match self.kind.as_deref() {
            None => return Err(missing("tool_choice.type")),
            Some("auto") => Choice::Auto,
            Some("none") => Choice::None,
            Some("any") => Choice::Required,
            Some("tool") => Choice::Named(self.name.ok_or_else(|| missing("tool_choice.name"))?),
            Some(other) => {
                let reason = format!("must be auto, any, tool or none, got {other:?}");
                return Err(invalid("tool_choice.type", reason));
            }
        };
        Ok((choice, limit))
    }
}

impl WireTool {
    fn accept(self, at: &str) -> Result<Tool, ApiError> {
        match self.kind.as_deref() {
            None | Some("custom") => {}
            Some(other) => {
                let reason = format!("this server runs no tools of its own, got {other:?}");
                return Err(unsupported(format!("{at}.type"), reason));
            }
        }
        let name = self.name.ok_or_else(|| missing(format!("{at}.name")))?;
        let schema = self.input_schema.ok_or_else(|| missing(format!("{at}.input_schema")))?;
        Ok(Tool {
            name,
            name_param: format!("{at}.name"),
            description: self.description,
            parameters: Some(schema),
            strict: self.strict == Some(true),
            parameters_param: format!("{at}.input_schema"),
        })
    }
}
