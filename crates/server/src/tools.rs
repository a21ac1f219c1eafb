//! The functions that a client offers to the model, in no dialect's words.
//!
//! Invariant: names are legal and differ, parameters are schemas of objects, and the choice is among what is offered.

use std::collections::HashSet;

use serde_json::{Map, Value, json};
use toko_engine::ChatTemplate;

use crate::answer::{self, Calls, Limit};
use crate::error::ApiError;
use crate::validate::{invalid, unsupported};

/// Most functions of a request.
const TOOLS: usize = 128;

/// Most characters of a function's name.
const NAME_CHARACTERS: usize = 64;

/// A function as a request describes it.
#[derive(Debug)]
pub(crate) struct Tool {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    /// A schema; none stands for a function without parameters.
    pub(crate) parameters: Option<Value>,
    /// Whether each call is held to the schema.
    pub(crate) strict: bool,
    /// Where the request has the name.
    pub(crate) name_param: String,
    /// Where the request has the parameters.
    pub(crate) parameters_param: String,
}

/// Which functions the model may or must call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Choice {
    /// None; it does not learn of them.
    None,
    /// What it finds right.
    Auto,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}

/// What is offered, checked.
#[derive(Debug)]
pub(crate) struct Tools {
    offered: Vec<Tool>,
    choice: Choice,
    limit: Limit,
}

impl Tools {
    /// Checks what a request offers in the field `param`, of which the field `chosen_by` chooses; none when nothing may
    /// be called.
    pub(crate) fn accept(
        param: &str,
        tools: Vec<Tool>,
        chosen_by: &str,
        choice: Choice,
        limit: Limit,
    ) -> Result<Option<Self>, ApiError> {
        if tools.len() > TOOLS {
            let reason = format!("must have at most {TOOLS} functions, got {}", tools.len());
            return Err(invalid(param, reason));
        }
        let mut names = HashSet::new();
        for tool in &tools {
            check_name(&tool.name_param, &tool.name)?;
            if !names.insert(&tool.name) {
                let reason = format!("is {:?} a second time", tool.name);
                return Err(invalid(&*tool.name_param, reason));
            }
            if let Some(parameters) = &tool.parameters {
                check_parameters(&tool.parameters_param, parameters)?;
            }
        }
        match &choice {
            Choice::Required if tools.is_empty() => {
                Err(invalid(chosen_by, format!("needs {param} to choose from")))
            }
            Choice::Named(name) if !names.contains(name) => {
                Err(invalid(chosen_by, format!("names {name:?}, which is not among {param}")))
            }
            Choice::None => Ok(None),
            _ if tools.is_empty() => Ok(None),
            _ => Ok(Some(Self { offered: tools, choice, limit })),
        }
    }

    /// Returns which functions the model may or must call.
    pub(crate) fn choice(&self) -> &Choice {
        &self.choice
    }

    /// Returns the functions that may be called.
    pub(crate) fn offered(&self) -> impl Iterator<Item = &Tool> {
        let is_offered = |tool: &&Tool| match &self.choice {
            Choice::Named(name) => tool.name == *name,
            _ => true,
        };
        self.offered.iter().filter(is_offered)
    }

    /// Returns the functions as chat templates show them.
    pub(crate) fn definitions(&self) -> Value {
        self.offered.iter().map(Tool::definition).collect()
    }

    /// Returns how calls are read from an answer of the template's model, or says that `param` cannot be had there.
    pub(crate) fn calls(&self, param: &str, template: &ChatTemplate) -> Result<Calls, ApiError> {
        let syntax =
            answer::syntax(template).map_err(|error| unsupported(param, error.to_string()))?;
        let names = self.offered.iter().map(|tool| tool.name.clone()).collect();
        Ok(Calls { syntax, names, limit: self.limit })
    }
}

impl Tool {
    fn definition(&self) -> Value {
        let mut function = Map::new();
        function.insert("name".to_owned(), json!(self.name));
        if let Some(description) = &self.description {
            function.insert("description".to_owned(), json!(description));
        }
        // Templates look into the parameters without asking whether there are any.
        let nothing = || json!({"type": "object", "properties": {}});
        let parameters = self.parameters.clone().unwrap_or_else(nothing);
        function.insert("parameters".to_owned(), parameters);
        json!({"type": "function", "function": function})
    }
}

/// Checks a function's name, which stands at `param`.
fn check_name(param: &str, name: &str) -> Result<(), ApiError> {
    let is_legal = |character: char| character.is_ascii_alphanumeric() || "_-".contains(character);
    if (1..=NAME_CHARACTERS).contains(&name.len()) && name.chars().all(is_legal) {
        return Ok(());
    }
    let reason = format!(
        "must have 1 to {NAME_CHARACTERS} of the characters a-z, A-Z, 0-9, _ and -, got {name:?}"
    );
    Err(invalid(param, reason))
}

fn check_parameters(param: &str, parameters: &Value) -> Result<(), ApiError> {
    let Value::Object(fields) = parameters else {
        let reason = "must be a schema, which is an object".to_owned();
        return Err(ApiError::InvalidType { param: param.to_owned(), reason });
    };
    match fields.get("type") {
        None => Ok(()),
        Some(Value::String(kind)) if kind == "object" => Ok(()),
        Some(other) => {
            Err(invalid(format!("{param}.type"), format!("must be \"object\", got {other}")))
        }
    }
}
