//! The messages request: the wire type, and the rules that make it a conversation to answer or to count.
//!
//! A field that would change the answer is obeyed or refused by name. Fields that cannot change it are ignored, like
//! fields that nobody knows, and need no mention here.

use std::sync::Arc;
use std::time::SystemTime;

use serde::Deserialize;
use serde_json::Value;
use toko_engine::{Chat, Form, Params};

use super::message::{self, Blocks, WireMessage};
use super::tools::{self, WireChoice, WireTool};
use crate::answer::{Ask, Format, Offer};
use crate::body::Object;
use crate::catalog::Model;
use crate::error::ApiError;
use crate::sampling::Wishes;
use crate::state::Shared;
use crate::thinking;
use crate::validate::{at_least, invalid, missing, off, stop_texts, within};

/// A request for an answer, or for the number of its tokens; `null` is the same as absent everywhere.
#[derive(Debug, Deserialize)]
pub(super) struct MessagesRequest {
    model: Option<String>,
    messages: Option<Vec<Object<WireMessage>>>,
    system: Option<Blocks>,
    tools: Option<Vec<Object<WireTool>>>,
    tool_choice: Option<Object<WireChoice>>,
    thinking: Option<Object<Thinking>>,

    stream: Option<bool>,
    max_tokens: Option<i64>,
    stop_sequences: Option<Vec<String>>,
    temperature: Option<f32>,
    top_k: Option<i64>,
    top_p: Option<f32>,

    output_config: Option<Object<OutputConfig>>,
    /// An older place for the format.
    output_format: Option<Object<OutputFormat>>,

    // What follows is checked, and refused unless it asks for what happens anyway.
    container: Option<Value>,
    mcp_servers: Option<Value>,
}

/// Whether the model is to think; how long it does is up to it.
#[derive(Debug, Deserialize)]
struct Thinking {
    #[serde(rename = "type")]
    kind: Option<String>,
    budget_tokens: Option<i64>,
}

#[derive(Debug, Deserialize)]
struct OutputConfig {
    format: Option<Object<OutputFormat>>,
}

#[derive(Debug, Deserialize)]
struct OutputFormat {
    #[serde(rename = "type")]
    kind: Option<String>,
    schema: Option<Value>,
}

/// A request that can be answered.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) ask: Ask,
    pub(super) delivery: Delivery,
    /// What may end the answer, as its summary counts it.
    pub(super) stop: Vec<String>,
}

/// How the client wants its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivery {
    /// In one piece.
    Whole,
    /// Event by event.
    Stream,
}

impl MessagesRequest {
    /// Returns the model that is meant.
    pub(super) fn model(&self, shared: &Shared) -> Result<Arc<Model>, ApiError> {
        shared.model(self.model.as_deref().ok_or_else(|| missing("model"))?)
    }

    /// Checks a request against the rules of the public API and of this server.
    pub(super) fn accept(self, model: &Model, now: SystemTime) -> Result<Accepted, ApiError> {
        let limit = at_least("max_tokens", self.max_tokens, 1)?;
        let limit = limit.ok_or_else(|| missing("max_tokens"))?;
        within("temperature", self.temperature, &(0.0..=1.0), "between 0 and 1")?;
        let wishes = Wishes {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            ..Wishes::default()
        };
        let stop = stop_texts("stop_sequences", self.stop_sequences.as_deref().unwrap_or(&[]))?;
        let params = Params {
            sampling: wishes.over("", &model.defaults.sampling)?,
            max_tokens: Some(limit),
            stop: stop.clone(),
            constraint: None,
            logit_bias: Vec::new(),
            logprobs: None,
            prompt_logprobs: None,
        };
        let delivery = if self.stream == Some(true) { Delivery::Stream } else { Delivery::Whole };
        let format = self.format()?;
        let (chat, offer) = self.conversation(model, now)?;
        if chat.messages.last().is_some_and(|last| last.role == "assistant") {
            let reason = "must not end with the assistant's words, which cannot be continued";
            return Err(invalid("messages", reason));
        }
        let template = model.backend.chat_template();
        let ask = Ask::new(chat, vec![params], offer.as_ref(), format, template)?;
        Ok(Accepted { ask, delivery, stop })
    }

    /// Returns the form that the text of the answer has to have.
    fn format(&self) -> Result<Option<Format>, ApiError> {
        let current = self.output_config.as_ref().and_then(|Object(config)| config.format.as_ref());
        match (current, &self.output_format) {
            (Some(Object(format)), _) => format.accept("output_config.format").map(Some),
            (None, Some(Object(format))) => format.accept("output_format").map(Some),
            (None, None) => Ok(None),
        }
    }

    /// Returns the conversation, and the functions that its answer may call.
    pub(super) fn conversation(
        self,
        model: &Model,
        now: SystemTime,
    ) -> Result<(Chat, Option<Offer>), ApiError> {
        off("container", self.container.as_ref())?;
        off("mcp_servers", self.mcp_servers.as_ref())?;
        let template = model.backend.chat_template();
        let messages = self.messages.ok_or_else(|| missing("messages"))?;
        let mut chat = Chat::new(message::conversation(self.system, messages)?, now);
        if let Some(Object(thinking)) = self.thinking
            && let Some(is_wanted) = thinking.accept()?
        {
            thinking::switch(template, &mut chat, is_wanted);
        }
        let offer = tools::accept(self.tools, self.tool_choice)?
            .map(|tools| Offer { tools, param: "tools" });
        if let Some(Offer { tools, param }) = &offer {
            tools.calls(param, template)?;
            chat.tools = Some(tools.definitions());
        }
        Ok((chat, offer))
    }
}

impl OutputFormat {
    fn accept(&self, at: &str) -> Result<Format, ApiError> {
        match self.kind.as_deref() {
            None => Err(missing(format!("{at}.type"))),
            Some("json_schema") => {
                let param = format!("{at}.schema");
                let schema = self.schema.clone().ok_or_else(|| missing(&*param))?;
                Ok(Format { form: Form::Json(schema), param })
            }
            Some(other) => {
                let reason = format!("must be json_schema, got {other:?}");
                Err(invalid(format!("{at}.type"), reason))
            }
        }
    }
}

impl Thinking {
    /// Says whether thoughts are wanted, if the request decides it.
    fn accept(self) -> Result<Option<bool>, ApiError> {
        at_least("thinking.budget_tokens", self.budget_tokens, 1)?;
        match self.kind.as_deref() {
            None => Err(missing("thinking.type")),
            Some("enabled") => Ok(Some(true)),
            Some("disabled") => Ok(Some(false)),
            Some("adaptive") => Ok(None),
            Some(other) => {
                let reason = format!("must be enabled, disabled or adaptive, got {other:?}");
                Err(invalid("thinking.type", reason))
            }
        }
    }
}
