//! The responses request: the wire type, and the rules that make it a conversation to answer.
//!
//! Everything may be absent in the public API. What relies on stored answers is refused, and so is what other tools
//! than functions would have to do.

use std::sync::Arc;
use std::time::SystemTime;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use toko_engine::{Chat, Form, Params};

use super::item::{self, Item};
use crate::answer::{Ask, Format, Limit, Offer};
use crate::body::Object;
use crate::catalog::Model;
use crate::error::ApiError;
use crate::openai::tools;
use crate::sampling::Wishes;
use crate::state::Shared;
use crate::text_or::TextOr;
use crate::thinking;
use crate::tools::{Choice, Tool, Tools};
use crate::validate::{at_least, invalid, missing, off, unsupported};

/// A request for an answer; `null` is the same as absent everywhere.
#[derive(Debug, Deserialize)]
pub(super) struct ResponsesRequest {
    model: Option<String>,
    input: Option<TextOr<Object<Item>>>,
    instructions: Option<String>,
    stream: Option<bool>,
    max_output_tokens: Option<i64>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    tools: Option<Vec<Object<WireTool>>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    reasoning: Option<Object<Reasoning>>,
    metadata: Option<Map<String, Value>>,

    // What follows is checked, and refused unless it asks for what happens anyway.
    text: Option<Object<Text>>,
    truncation: Option<String>,
    include: Option<Vec<String>>,
    top_logprobs: Option<Value>,
    previous_response_id: Option<Value>,
    conversation: Option<Value>,
    prompt: Option<Value>,
    background: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct WireTool {
    #[serde(rename = "type")]
    kind: Option<String>,
    name: Option<String>,
    description: Option<String>,
    parameters: Option<Value>,
    strict: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct Reasoning {
    effort: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Text {
    format: Option<Value>,
}

/// A request that can be answered.
pub(super) struct Accepted {
    pub(super) ask: Ask,
    pub(super) delivery: Delivery,
    pub(super) echo: Echo,
}

/// How the client wants its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivery {
    /// In one piece.
    Whole,
    /// Event by event.
    Stream,
}

/// What an answer repeats of its request.
pub(super) struct Echo {
    pub(super) instructions: Option<String>,
    pub(super) max_output_tokens: Option<usize>,
    pub(super) metadata: Map<String, Value>,
    pub(super) parallel_tool_calls: bool,
    pub(super) temperature: f32,
    pub(super) top_p: f32,
    pub(super) text_format: Value,
    pub(super) tool_choice: Value,
    pub(super) tools: Vec<Value>,
}

impl ResponsesRequest {
    /// Returns the model that is meant, which need not be named.
    pub(super) fn model(&self, shared: &Shared) -> Result<Arc<Model>, ApiError> {
        shared.model_or_default(self.model.as_deref())
    }

    /// Checks a request against the rules of the public API and of this server.
    pub(super) fn accept(self, model: &Model, now: SystemTime) -> Result<Accepted, ApiError> {
        let wishes =
            Wishes { temperature: self.temperature, top_p: self.top_p, ..Wishes::default() };
        let sampling = wishes.over("", &model.defaults.sampling)?;
        let limit = at_least("max_output_tokens", self.max_output_tokens, 1)?;
        let delivery = if self.stream == Some(true) { Delivery::Stream } else { Delivery::Whole };
        let echo = Echo {
            instructions: self.instructions.clone(),
            max_output_tokens: limit,
            metadata: self.metadata.clone().unwrap_or_default(),
            parallel_tool_calls: self.parallel_tool_calls.unwrap_or(true),
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            text_format: self.text_format().cloned().unwrap_or_else(|| json!({"type": "text"})),
            tool_choice: self.tool_choice.clone().unwrap_or_else(|| json!("auto")),
            tools: self.tools.iter().flatten().map(|Object(tool)| tool.echo()).collect(),
        };
        let params = Params {
            sampling,
            max_tokens: limit.or(model.defaults.max_tokens),
            stop: Vec::new(),
            constraint: None,
            logit_bias: Vec::new(),
            logprobs: None,
            prompt_logprobs: None,
        };
        let format = format(self.text_format())?;
        let (chat, offer) = self.conversation(model, now)?;
        let template = model.backend.chat_template();
        let ask = Ask::new(chat, vec![params], offer.as_ref(), format, template)?;
        Ok(Accepted { ask, delivery, echo })
    }

    fn text_format(&self) -> Option<&Value> {
        self.text.as_ref().and_then(|Object(text)| text.format.as_ref())
    }

    /// Returns the conversation, and the functions that its answer may call.
    fn conversation(
        self,
        model: &Model,
        now: SystemTime,
    ) -> Result<(Chat, Option<Offer>), ApiError> {
        self.refuse_extensions()?;
        let mut messages = Vec::new();
        if let Some(instructions) = self.instructions {
            item::instruct(&mut messages, instructions);
        }
        match self.input {
            None => {}
            Some(TextOr::Text(text)) => messages.push(toko_engine::Message::new("user", text)),
            Some(TextOr::Several(items)) => {
                for (index, Object(item)) in items.into_iter().enumerate() {
                    item::append(&mut messages, item, &format!("input[{index}]"))?;
                }
            }
        }
        if messages.is_empty() {
            // Every field may be absent; templates, though, want somebody to have said something.
            messages.push(toko_engine::Message::new("user", ""));
        }
        let mut chat = Chat::new(messages, now);
        if let Some(effort) = self.reasoning.and_then(|Object(reasoning)| reasoning.effort) {
            thinking::switch(model.backend.chat_template(), &mut chat, effort != "none");
            chat.variables.insert("reasoning_effort".to_owned(), Value::String(effort));
        }
        let limit = if self.parallel_tool_calls == Some(false) { Limit::One } else { Limit::Any };
        let mut offered = Vec::new();
        for (index, Object(tool)) in self.tools.into_iter().flatten().enumerate() {
            offered.push(tool.accept(&format!("tools[{index}]"))?);
        }
        let choice = choice(self.tool_choice)?;
        let offer = Tools::accept("tools", offered, "tool_choice", choice, limit)?
            .map(|tools| Offer { tools, param: "tools" });
        if let Some(Offer { tools, param }) = &offer {
            tools.calls(param, model.backend.chat_template())?;
            chat.tools = Some(tools.definitions());
        }
        Ok((chat, offer))
    }

    fn refuse_extensions(&self) -> Result<(), ApiError> {
        if let Some(other) =
            self.truncation.as_deref().filter(|it| !["auto", "disabled"].contains(it))
        {
            return Err(invalid("truncation", format!("must be auto or disabled, got {other:?}")));
        }
        if self.include.iter().flatten().any(|it| it == "message.output_text.logprobs") {
            return Err(unsupported("include", "logprobs are not told on this route"));
        }
        let rest = [
            ("top_logprobs", &self.top_logprobs),
            ("previous_response_id", &self.previous_response_id),
            ("conversation", &self.conversation),
            ("prompt", &self.prompt),
            ("background", &self.background),
        ];
        rest.into_iter().try_for_each(|(param, value)| off(param, value.as_ref()))
    }
}

/// Returns the form that the text of an answer has to have.
fn format(format: Option<&Value>) -> Result<Option<Format>, ApiError> {
    let Some(format) = format else { return Ok(None) };
    let (schema, param) = match format["type"].as_str() {
        None => return Err(missing("text.format.type")),
        Some("text") => return Ok(None),
        Some("json_object") => (json!({"type": "object"}), "text.format"),
        Some("json_schema") => {
            let param = "text.format.schema";
            (format.get("schema").cloned().ok_or_else(|| missing(param))?, param)
        }
        Some(other) => {
            let reason = format!("must be text, json_object or json_schema, got {other:?}");
            return Err(invalid("text.format.type", reason));
        }
    };
    Ok(Some(Format { form: Form::Json(schema), param: param.to_owned() }))
}

/// Reads a choice of tools, in which a function is named directly.
fn choice(mut choice: Option<Value>) -> Result<Choice, ApiError> {
    if let Some(Value::Object(fields)) = &mut choice
        && fields.get("type").is_some_and(|kind| kind == "function")
    {
        fields.remove("type");
        if !fields.contains_key("name") {
            return Err(missing("tool_choice.name"));
        }
    }
    tools::choice("tool_choice", choice)
}

impl WireTool {
    fn accept(self, at: &str) -> Result<Tool, ApiError> {
        match self.kind.as_deref() {
            None => return Err(missing(format!("{at}.type"))),
            Some("function") => {}
            Some(other) => {
                let reason = format!("must be function, got {other:?}");
                return Err(unsupported(format!("{at}.type"), reason));
            }
        }
        Ok(Tool {
            name: self.name.ok_or_else(|| missing(format!("{at}.name")))?,
            name_param: format!("{at}.name"),
            description: self.description,
            parameters: self.parameters,
            strict: self.strict == Some(true),
            parameters_param: format!("{at}.parameters"),
        })
    }

    fn echo(&self) -> Value {
        json!({
            "type": "function",
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "strict": self.strict == Some(true),
        })
    }
}
