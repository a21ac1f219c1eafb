//! The functions that a chat request offers, in the current spelling and in the older one.

use serde::Deserialize;
use serde_json::Value;

use crate::answer::Limit;
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
}

/// How calls are told to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallShape {
    /// A list of calls with ids.
    ToolCalls,
    /// One call, as clients of the older spelling expect it.
    FunctionCall,
}

/// Functions that may be called.
#[derive(Debug)]
pub(super) struct Offered {
    pub(super) tools: Tools,
    /// The field that offers them.
    pub(super) param: &'static str,
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
        if !tools.is_empty() && !functions.is_empty() {
            return Err(invalid("functions", "must not be sent beside tools"));
        }
        let offered = |param, shape| move |tools| Offered { tools, param, shape };
        let current = Tools::accept("tools", tools, &current, limit)?
            .map(offered("tools", CallShape::ToolCalls));
        let older = Tools::accept("functions", functions, &older, Limit::One)?
            .map(offered("functions", CallShape::FunctionCall));
        Ok(current.or(older))
    }
}

/// Reads a choice of tools.
fn choice(param: &str, choice: Option<Value>) -> Result<Choice, ApiError> {
    match choice {
        None => Ok(Choice::Auto),
        Some(Value::String(word)) if word == "none" => Ok(Choice::None),
        Some(Value::String(word)) if word == "auto" => Ok(Choice::Auto),
        Some(Value::String(word)) if word != "required" => {
            Err(invalid(param, format!("must be none, auto or required, got {word:?}")))
        }
        Some(Value::String(_) | Value::Object(_)) => {
            Err(unsupported(param, "calls cannot be forced by this server"))
        }
        Some(_) => {
            let reason = "must be a string or an object".to_owned();
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
            name_param,
            parameters_param: format!("{at}.parameters"),
        })
    }
}
