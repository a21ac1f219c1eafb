//! The chat request: the wire type with the public field names, and the rules that make it a conversation to answer.
//!
//! A field that would change the answer is obeyed or refused by name. Fields that cannot change it are ignored, like
//! fields that nobody knows, and need no mention here.

use std::fmt;
use std::ops::Bound;
use std::time::SystemTime;

use serde::Deserialize;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde_json::{Map, Value};
use toko_engine::{Chat, Message, Params, Sampling};

use super::message::WireMessage;
use crate::body::Object;
use crate::error::ApiError;
use crate::state::{Defaults, State};
use crate::validate::{at_least, invalid, off, unsupported, within};

/// Most stop texts of a request.
const STOP_TEXTS: usize = 16;

/// A request for a chat answer; `null` is the same as absent everywhere.
#[derive(Debug, Deserialize)]
pub(super) struct ChatRequest {
    model: Option<String>,
    messages: Option<Vec<Object<WireMessage>>>,
    add_generation_prompt: Option<bool>,
    chat_template_kwargs: Option<Map<String, Value>>,
    reasoning_effort: Option<String>,

    stream: Option<bool>,
    stream_options: Option<Object<StreamOptions>>,

    max_completion_tokens: Option<i64>,
    max_tokens: Option<i64>,
    stop: Option<Stop>,

    temperature: Option<f32>,
    top_k: Option<i64>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    #[serde(alias = "repetition_penalty")]
    repeat_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    seed: Option<i64>,

    // What follows is checked, and refused unless it asks for what happens anyway.
    n: Option<i64>,
    logprobs: Option<bool>,
    top_logprobs: Option<i64>,
    logit_bias: Option<Map<String, Value>>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    functions: Option<Vec<Value>>,
    function_call: Option<Value>,
    response_format: Option<Object<ResponseFormat>>,
    modalities: Option<Vec<String>>,
    audio: Option<Value>,
    web_search_options: Option<Value>,
    continue_final_message: Option<Value>,
    grammar: Option<Value>,
    json_schema: Option<Value>,
    structured_outputs: Option<Value>,
    guided_json: Option<Value>,
    guided_regex: Option<Value>,
    guided_choice: Option<Value>,
    guided_grammar: Option<Value>,
    ignore_eos: Option<Value>,
    min_tokens: Option<Value>,
    mirostat: Option<Value>,
    typical_p: Option<f32>,
    n_probs: Option<Value>,
    echo: Option<Value>,
    suffix: Option<Value>,
    best_of: Option<i64>,
    options: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct ResponseFormat {
    #[serde(rename = "type")]
    kind: Option<String>,
}

#[derive(Debug)]
enum Stop {
    One(String),
    Several(Vec<String>),
}

/// How the client wants its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivery {
    /// In one piece.
    Whole,
    /// Chunk by chunk.
    Stream(UsageChunk),
}

/// Whether a stream tells its token counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UsageChunk {
    /// In a chunk of its own before the end.
    Sent,
    /// Not at all.
    Omitted,
}

/// A request that can be answered.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) chat: Chat,
    pub(super) params: Params,
    pub(super) delivery: Delivery,
}

/// Checks a request against the rules of the public API and of this server.
pub(super) fn accept(
    request: ChatRequest,
    state: &State,
    now: SystemTime,
) -> Result<Accepted, ApiError> {
    let asked = request.model.as_deref().ok_or_else(|| missing("model"))?;
    if !state.model.answers_to(asked) {
        return Err(ApiError::UnknownModel {
            asked: asked.to_owned(),
            loaded: state.model.id.clone(),
        });
    }
    request.refuse_tools()?;
    request.refuse_formats()?;
    request.refuse_extensions()?;
    let delivery = request.delivery();
    let params = Params {
        sampling: request.sampling(&state.defaults)?,
        max_tokens: request.max_tokens()?.or(state.defaults.max_tokens),
        stop: request.stop_texts()?,
    };
    Ok(Accepted { chat: request.into_chat(now)?, params, delivery })
}

fn missing(param: &str) -> ApiError {
    ApiError::Missing { param: param.to_owned() }
}

impl ChatRequest {
    fn delivery(&self) -> Delivery {
        let wants_usage = self
            .stream_options
            .as_ref()
            .is_some_and(|options| options.0.include_usage == Some(true));
        match (self.stream, wants_usage) {
            (Some(true), true) => Delivery::Stream(UsageChunk::Sent),
            (Some(true), false) => Delivery::Stream(UsageChunk::Omitted),
            (None | Some(false), _) => Delivery::Whole,
        }
    }

    fn sampling(&self, defaults: &Defaults) -> Result<Sampling, ApiError> {
        let default = &defaults.sampling;
        let unit = "between 0 and 1";
        let penalty = "between -2 and 2";
        let above_zero = (Bound::Excluded(0.0), Bound::Included(1.0));
        let factor = (Bound::Excluded(0.0), Bound::Excluded(f32::INFINITY));
        Ok(Sampling {
            temperature: within("temperature", self.temperature, &(0.0..=2.0), "between 0 and 2")?
                .unwrap_or(default.temperature),
            top_k: at_least("top_k", self.top_k, 0)?.unwrap_or(default.top_k),
            top_p: within("top_p", self.top_p, &above_zero, "above 0 and at most 1")?
                .unwrap_or(default.top_p),
            min_p: within("min_p", self.min_p, &(0.0..=1.0), unit)?.unwrap_or(default.min_p),
            repeat_penalty: within(
                "repeat_penalty",
                self.repeat_penalty,
                &factor,
                "above 0 and finite",
            )?
            .unwrap_or(default.repeat_penalty),
            frequency_penalty: within(
                "frequency_penalty",
                self.frequency_penalty,
                &(-2.0..=2.0),
                penalty,
            )?
            .unwrap_or(default.frequency_penalty),
            presence_penalty: within(
                "presence_penalty",
                self.presence_penalty,
                &(-2.0..=2.0),
                penalty,
            )?
            .unwrap_or(default.presence_penalty),
            penalty_window_tokens: default.penalty_window_tokens,
            seed: self.seed.map(i64::cast_unsigned).or(default.seed),
        })
    }

    fn max_tokens(&self) -> Result<Option<usize>, ApiError> {
        let current = at_least("max_completion_tokens", self.max_completion_tokens, 1)?;
        let older = at_least("max_tokens", self.max_tokens, 1)?;
        Ok(current.or(older))
    }

    fn stop_texts(&self) -> Result<Vec<String>, ApiError> {
        let texts = match &self.stop {
            None => return Ok(Vec::new()),
            Some(Stop::One(text)) if text.is_empty() => {
                return Err(invalid("stop", "must not be empty"));
            }
            Some(Stop::One(text)) => return Ok(vec![text.clone()]),
            Some(Stop::Several(texts)) => texts,
        };
        if texts.len() > STOP_TEXTS {
            return Err(invalid(
                "stop",
                format!("must have at most {STOP_TEXTS} texts, got {}", texts.len()),
            ));
        }
        match texts.iter().position(String::is_empty) {
            Some(index) => Err(invalid(format!("stop[{index}]"), "must not be empty")),
            None => Ok(texts.clone()),
        }
    }

    /// Tools may be offered only where the model must not call them, and are then kept from it.
    fn refuse_tools(&self) -> Result<(), ApiError> {
        let mut are_wanted = true;
        for (param, choice) in
            [("tool_choice", &self.tool_choice), ("function_call", &self.function_call)]
        {
            match choice {
                None => {}
                Some(Value::String(word)) if word == "none" => are_wanted = false,
                Some(Value::String(word)) if word == "auto" => {}
                Some(Value::String(word)) if word != "required" => {
                    return Err(invalid(
                        param,
                        format!("must be none, auto or required, got {word:?}"),
                    ));
                }
                Some(Value::String(_) | Value::Object(_)) => {
                    return Err(unsupported(param, "calls cannot be forced by this server"));
                }
                Some(_) => {
                    let reason = "must be a string or an object".to_owned();
                    return Err(ApiError::InvalidType { param: param.to_owned(), reason });
                }
            }
        }
        for (param, offered) in [("tools", &self.tools), ("functions", &self.functions)] {
            if are_wanted && offered.as_ref().is_some_and(|offered| !offered.is_empty()) {
                return Err(unsupported(
                    param,
                    "calls are not supported by this server; send tool_choice \"none\"",
                ));
            }
        }
        Ok(())
    }

    /// Answers are text, free in form.
    fn refuse_formats(&self) -> Result<(), ApiError> {
        if let Some(Object(format)) = &self.response_format {
            match format.kind.as_deref() {
                Some("text") => {}
                None => return Err(missing("response_format.type")),
                Some("json_object" | "json_schema" | "grammar" | "structural_tag") => {
                    return Err(unsupported(
                        "response_format",
                        "answers cannot be constrained by this server",
                    ));
                }
                Some(other) => {
                    let reason = format!("must be text, json_object or json_schema, got {other:?}");
                    return Err(invalid("response_format.type", reason));
                }
            }
        }
        for (index, modality) in self.modalities.iter().flatten().enumerate() {
            match modality.as_str() {
                "text" => {}
                "audio" => return Err(unsupported("modalities", "the model writes text only")),
                other => {
                    return Err(invalid(
                        format!("modalities[{index}]"),
                        format!("must be text or audio, got {other:?}"),
                    ));
                }
            }
        }
        Ok(())
    }

    fn refuse_extensions(&self) -> Result<(), ApiError> {
        if within("n", self.n, &(1..=128), "between 1 and 128")?.is_some_and(|n| n > 1) {
            return Err(unsupported("n", "this server gives one answer for each request"));
        }
        if within("best_of", self.best_of, &(1..=128), "between 1 and 128")?
            .is_some_and(|best_of| best_of > 1)
        {
            return Err(unsupported("best_of", "this server gives one answer for each request"));
        }
        if self.logprobs == Some(true) {
            return Err(unsupported("logprobs", "is not supported by this server"));
        }
        if within("top_logprobs", self.top_logprobs, &(0..=20), "between 0 and 20")?
            .is_some_and(|count| count > 0)
        {
            return Err(invalid("top_logprobs", "needs logprobs to be true"));
        }
        if self.logit_bias.as_ref().is_some_and(|bias| !bias.is_empty()) {
            return Err(unsupported("logit_bias", "is not supported by this server"));
        }
        if within("typical_p", self.typical_p, &(0.0..=1.0), "between 0 and 1")?
            .is_some_and(|p| p < 1.0)
        {
            return Err(unsupported("typical_p", "is not supported by this server"));
        }
        let rest = [
            ("audio", &self.audio),
            ("web_search_options", &self.web_search_options),
            ("continue_final_message", &self.continue_final_message),
            ("grammar", &self.grammar),
            ("json_schema", &self.json_schema),
            ("structured_outputs", &self.structured_outputs),
            ("guided_json", &self.guided_json),
            ("guided_regex", &self.guided_regex),
            ("guided_choice", &self.guided_choice),
            ("guided_grammar", &self.guided_grammar),
            ("ignore_eos", &self.ignore_eos),
            ("min_tokens", &self.min_tokens),
            ("mirostat", &self.mirostat),
            ("n_probs", &self.n_probs),
            ("echo", &self.echo),
            ("suffix", &self.suffix),
            ("options", &self.options),
        ];
        rest.into_iter().try_for_each(|(param, value)| off(param, value.as_ref()))
    }

    fn into_chat(self, now: SystemTime) -> Result<Chat, ApiError> {
        let messages = self.messages.ok_or_else(|| missing("messages"))?;
        if messages.is_empty() {
            return Err(invalid("messages", "must have at least one message"));
        }
        let messages = messages.into_iter().enumerate();
        let messages: Result<Vec<Message>, _> = messages
            .map(|(index, Object(message))| message.accept(&format!("messages[{index}]")))
            .collect();
        let mut chat = Chat::new(messages?, now);
        chat.add_generation_prompt = self.add_generation_prompt.unwrap_or(true);
        chat.variables = self.chat_template_kwargs.unwrap_or_default();
        if let Some(effort) = self.reasoning_effort {
            chat.variables.entry("reasoning_effort").or_insert(Value::String(effort));
        }
        Ok(chat)
    }
}

impl<'de> Deserialize<'de> for Stop {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrSeveral;

        impl<'de> Visitor<'de> for OneOrSeveral {
            type Value = Stop;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a string or an array of strings")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Stop, E> {
                Ok(Stop::One(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, texts: A) -> Result<Stop, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(texts)).map(Stop::Several)
            }
        }

        deserializer.deserialize_any(OneOrSeveral)
    }
}
