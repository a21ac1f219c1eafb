//! The chat request: the wire type with the public names of its own fields, and the rules that make it a conversation to answer.
//!
//! A field that would change the answer is obeyed or refused by name. Fields that cannot change it are ignored, like
//! fields that nobody knows, and need no mention here.

use std::sync::Arc;
use std::time::SystemTime;

use serde::Deserialize;
use serde_json::{Map, Value};
use toko_engine::{Chat, Message, Params, Sampling};

use super::controls::{Controls, Delivery};
use super::logprobs;
use super::message::WireMessage;
use super::structure::WireStructure;
use super::tools::{CallShape, Offered, WireTools};
use crate::Backend;
use crate::answer::{Ask, Offer};
use crate::body::Object;
use crate::catalog::Model;
use crate::error::ApiError;
use crate::state::Shared;
use crate::validate::{at_least, invalid, missing, off, unsupported, within};

/// Most choices of an answer.
const CHOICES: i64 = 8;

/// Most tokens that are told beside a generated one.
const TOP_LOGPROBS: i64 = 20;

/// A request for a chat answer; `null` is the same as absent everywhere.
#[derive(Debug, Deserialize)]
pub(super) struct ChatRequest {
    model: Option<String>,
    messages: Option<Vec<Object<WireMessage>>>,
    add_generation_prompt: Option<bool>,
    chat_template_kwargs: Option<Map<String, Value>>,
    reasoning_effort: Option<String>,

    max_completion_tokens: Option<i64>,
    max_tokens: Option<i64>,

    n: Option<i64>,
    logprobs: Option<bool>,
    top_logprobs: Option<i64>,
    logit_bias: Option<Map<String, Value>>,

    // What follows is checked, and refused unless it asks for what happens anyway.
    modalities: Option<Vec<String>>,
    continue_final_message: Option<Value>,
    echo: Option<Value>,
    suffix: Option<Value>,
    best_of: Option<i64>,
}

/// A request that can be answered.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) ask: Ask,
    pub(super) shape: Shape,
}

/// What an answer consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) delivery: Delivery,
    pub(super) choices: usize,
    pub(super) has_logprobs: bool,
    pub(super) calls: CallShape,
}

/// Checks a request against the rules of the public API and of this server.
pub(super) fn accept(
    request: ChatRequest,
    controls: &Controls,
    structure: WireStructure,
    tools: WireTools,
    model: &Model,
    now: SystemTime,
) -> Result<Accepted, ApiError> {
    let params = Params {
        sampling: controls.sampling(&model.defaults)?,
        max_tokens: request.max_tokens()?.or(model.defaults.max_tokens),
        stop: controls.stop_texts()?,
        constraint: None,
        logit_bias: match &request.logit_bias {
            Some(bias) => logprobs::logit_bias(bias, model.backend.info().vocabulary_tokens)?,
            None => Vec::new(),
        },
        logprobs: request.logprobs()?,
        prompt_logprobs: None,
    };
    controls.refuse_extensions()?;
    let format = structure.accept()?;
    let offered = tools.accept()?;
    let shape = Shape {
        delivery: controls.delivery(),
        choices: request.choices()?,
        has_logprobs: params.logprobs.is_some(),
        calls: offered.as_ref().map_or(CallShape::ToolCalls, |offered| offered.shape),
    };
    let params = (0..).take(shape.choices).map(|index| choice(&params, index)).collect();
    check_room("n", shape.choices, &*model.backend)?;
    let chat = request.conversation(now)?;
    let offer = offered.as_ref().map(|offered| &offered.offer);
    let ask = Ask::new(chat, params, offer, format, model.backend.chat_template())?;
    Ok(Accepted { ask, shape })
}

/// Returns the parameters of one choice: each has a seed of its own, from which it can be had alone.
pub(super) fn choice(params: &Params, index: u64) -> Params {
    let seed = params.sampling.seed.map(|seed| seed.wrapping_add(index));
    Params { sampling: Sampling { seed, ..params.sampling.clone() }, ..params.clone() }
}

/// Checks a request whose conversation is wanted and not its answer; it need not name the model.
pub(super) fn accept_unanswered(
    request: ChatRequest,
    tools: WireTools,
    shared: &Shared,
    now: SystemTime,
) -> Result<(Arc<Model>, Chat), ApiError> {
    let model = shared.model_or_default(request.model.as_deref())?;
    let mut chat = request.conversation(now)?;
    if let Some(Offered { offer: Offer { tools, param }, .. }) = tools.accept()? {
        tools.calls(param, model.backend.chat_template())?;
        chat.tools = Some(tools.definitions());
    }
    Ok((model, chat))
}

/// Refuses more choices than can be here at once, which no retry would change.
pub(super) fn check_room(
    param: &str,
    choices: usize,
    backend: &dyn Backend,
) -> Result<(), ApiError> {
    let capacity = backend.capacity();
    if choices <= capacity {
        return Ok(());
    }
    let reason = format!("asks for {choices} answers, but this server takes {capacity} at once");
    Err(invalid(param, reason))
}

/// Returns how many answers are wanted to each prompt.
pub(super) fn choices(n: Option<i64>) -> Result<usize, ApiError> {
    let words = format!("between 1 and {CHOICES}");
    let n = within("n", n, &(1..=CHOICES), &words)?;
    Ok(n.and_then(|n| usize::try_from(n).ok()).unwrap_or(1))
}

impl ChatRequest {
    /// Returns the model that is to answer.
    pub(super) fn model(&self, shared: &Shared) -> Result<Arc<Model>, ApiError> {
        shared.model(self.model.as_deref().ok_or_else(|| missing("model"))?)
    }

    fn max_tokens(&self) -> Result<Option<usize>, ApiError> {
        let current = at_least("max_completion_tokens", self.max_completion_tokens, 0)?;
        let older = at_least("max_tokens", self.max_tokens, 0)?;
        Ok(current.or(older))
    }

    fn choices(&self) -> Result<usize, ApiError> {
        choices(self.n)
    }

    /// Returns how many tokens are told beside each; none when not even that one is told.
    fn logprobs(&self) -> Result<Option<usize>, ApiError> {
        let words = format!("between 0 and {TOP_LOGPROBS}");
        let top = within("top_logprobs", self.top_logprobs, &(0..=TOP_LOGPROBS), &words)?;
        let top = top.and_then(|top| usize::try_from(top).ok()).unwrap_or(0);
        match self.logprobs {
            Some(true) => Ok(Some(top)),
            None | Some(false) if top > 0 => {
                Err(invalid("top_logprobs", "needs logprobs to be true"))
            }
            None | Some(false) => Ok(None),
        }
    }

    /// Answers are text.
    fn refuse_modalities(&self) -> Result<(), ApiError> {
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
        if within("best_of", self.best_of, &(1..=128), "between 1 and 128")?
            .is_some_and(|best_of| best_of > 1)
        {
            return Err(unsupported("best_of", "is not supported by this server; n is"));
        }
        let rest = [
            ("continue_final_message", &self.continue_final_message),
            ("echo", &self.echo),
            ("suffix", &self.suffix),
        ];
        rest.into_iter().try_for_each(|(param, value)| off(param, value.as_ref()))
    }

    fn conversation(self, now: SystemTime) -> Result<Chat, ApiError> {
        self.refuse_modalities()?;
        self.refuse_extensions()?;
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
