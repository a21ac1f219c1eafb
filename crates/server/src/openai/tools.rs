//! The functions that a chat request offers, in the current spelling and in the older one.

use serde::Deserialize;
use serde_json::Value;

use crate::answer::{Limit, Offer};
use crate::body::Object;
use crate::error::ApiError;
use crate::tools::{Choice, Tool, Tools};
use crate::validate::{invalid, unsupported};

/// What a request says about tools.
#[derive(Debug, Deserialize)]
pub(super) struct WireTools {
    tools: Option<Vec<Object<WireTool>>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    functions: Option<Vec<Object<WireFunction>>>,
    function_call: Option<Value>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct WireTool {
    #[serde(rename = "type")]
    kind: Option<String>,
    function: Option<Object<WireFunction>>,
}

#[derive(Debug, Deserialize)]
struct WireFunction {
    name: Option<String>,
    description: Option<String>,
    parameters: Option<Value>,
    strict: Option<bool>,
}

/// How calls are told to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallShape {
    /// A list of calls with ids.
    ToolCalls,
    /// One call, as clients of the older spelling expect it.
    FunctionCall,
}

/// Functions that may be called, and what the client wants to hear of it.
#[derive(Debug)]
pub(super) struct Offered {
    pub(super) offer: Offer,
    pub(super) shape: CallShape,
}

impl WireTools {
    /// Returns the functions that the model may call, if any.
    pub(super) fn accept(self) -> Result<Option<Offered>, ApiError> {
        let current = choice("tool_choice", self.tool_choice)?;
        let older = choice("function_call", self.function_call)?;
        let limit = if self.parallel_tool_calls == Some(false) { Limit::One } else { Limit::Any };
        let mut tools = Vec::new();
        for (index, Object(tool)) in self.tools.into_iter().flatten().enumerate() {
            tools.push(tool.accept(&format!("tools[{index}]"))?);
        }
        let mut functions = Vec::new();
        for (index, Object(function)) in self.functions.into_iter().flatten().enumerate() {
            functions.push(function.accept(&format!("functions[{index}]"))?);
        }
        let offered = |param, shape| move |tools| Offered { offer: Offer { tools, param }, shape };
        let current = Tools::accept("tools", tools, "tool_choice", current, limit)?
            .map(offered("tools", CallShape::ToolCalls));
        let older = Tools::accept("functions", functions, "function_call", older, Limit::One)?
            .map(offered("functions", CallShape::FunctionCall));
        if current.is_some() && older.is_some() {
            return Err(invalid("functions", "must not be offered beside tools"));
        }
        Ok(current.or(older))
    }
}

/// Reads a choice of tools.
pub(super) fn choice(param: &str, choice: Option<Value>) -> Result<Choice, ApiError> {
    let fields = match choice {
        None => return Ok(Choice::Auto),
        Some(Value::String(word)) => {
            return match word.as_str() {
                "none" => Ok(Choice::None),
                "auto" => Ok(Choice::Auto),
                "required" => Ok(Choice::Required),
                _ => Err(invalid(param, format!("must be none, auto or required, got {word:?}"))),
            };
        }
        Some(Value::Object(fields)) => fields,
        Some(_) => {
            let reason = "must be a string or an object".to_owned();
            return Err(ApiError::InvalidType { param: param.to_owned(), reason });
        }
    };
    // The older spelling names the function directly.
    let (holder, at) = match fields.get("type").and_then(Value::as_str) {
        Some("function") => (fields.get("function"), format!("{param}.function")),
        Some(kind @ ("allowed_tools" | "custom")) => {
            let reason = format!("{kind} is not supported by this server");
            return Err(unsupported(format!("{param}.type"), reason));
        }
        Some(other) => {
            let reason = format!("must be function, got {other:?}");
            return Err(invalid(format!("{param}.type"), reason));
        }
        None if fields.contains_key("name") => {
            return named(fields.get("name"), &format!("{param}.name"));
        }
        None => return Err(ApiError::Missing { param: format!("{param}.type") }),
    };
    let Some(holder) = holder else { return Err(ApiError::Missing { param: at }) };
    named(holder.get("name"), &format!("{at}.name"))
}

fn named(name: Option<&Value>, param: &str) -> Result<Choice, ApiError> {
    match name {
        None => Err(ApiError::Missing { param: param.to_owned() }),
        Some(Value::String(name)) => Ok(Choice::Named(name.clone())),
        Some(_) => {
            let reason = "must be a string".to_owned();
            Err(ApiError::InvalidType { param: param.to_owned(), reason })
        }
    }
}

impl WireTool {
    pub(crate) fn accept(self, at: &str) -> Result<Tool, ApiError> {
        match self.kind.as_deref() {
            None | Some("function") => {}
            Some(other) => {
                let reason = format!("must be function, got {other:?}");
                return Err(unsupported(format!("{at}.type"), reason));
            }
        }
        let Some(Object(function)) = self.function else {
            return Err(ApiError::Missing { param: format!("{at}.function") });
        };
        function.accept(&format!("{at}.function"))
    }
}

impl WireFunction {
    fn accept(self, at: &str) -> Result<Tool, ApiError> {
        let name_param = format!("{at}.name");
        let Some(name) = self.name else { return Err(ApiError::Missing { param: name_param }) };
        Ok(Tool {
            name,
            description: self.description,
            parameters: self.parameters,
            strict: self.strict == Some(true),
            name_param,
            parameters_param: format!("{at}.parameters"),
        })
    }
}
