//! The completion request: texts or tokens to continue, in the four shapes that the public API allows.
//!
//! Fields are obeyed, refused or ignored as in a chat request.

use std::ops::Range;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value};
use toko_engine::{Constraint, Opening, Params, Prompt, Special};

use super::controls::{Controls, Delivery};
use super::prompts::{Input, Prompts};
use super::structure::WireStructure;
use super::{logprobs, request};
use crate::Backend;
use crate::catalog::Model;
use crate::error::ApiError;
use crate::state::Shared;
use crate::validate::{at_least, invalid, missing, token_ids, unsupported, within};

/// Most prompts of a request, and most choices of all its prompts together.
const PROMPTS: usize = 128;

/// Most tokens that are told beside another.
const TOP_LOGPROBS: i64 = 5;

/// Most tokens of an answer when the request does not say; the public API's own figure.
const MAX_TOKENS: usize = 16;

/// A request to continue texts; `null` is the same as absent everywhere.
#[derive(Debug, Deserialize)]
pub(super) struct CompletionRequest {
    model: Option<String>,
    prompt: Option<Prompts>,
    max_tokens: Option<i64>,
    echo: Option<bool>,
    suffix: Option<String>,
    n: Option<i64>,
    logprobs: Option<i64>,
    logit_bias: Option<Map<String, Value>>,

    // What follows is checked, and refused unless it asks for what happens anyway.
    best_of: Option<i64>,
}

/// A request that can be answered.
pub(super) struct Accepted {
    /// At least one, in the order of the choices.
    pub(super) prompts: Vec<Start>,
    pub(super) params: Params,
    /// The field that holds the answers to something, if any does.
    pub(super) demanded_by: String,
    /// Choices of each prompt.
    pub(super) choices: usize,
    pub(super) delivery: Delivery,
}

/// One prompt.
pub(super) struct Start {
    pub(super) prompt: Prompt,
    /// Which of its tokens are the client's; others are the model's own marks.
    pub(super) own: Range<usize>,
    /// What the answer repeats before its own text, if asked for.
    pub(super) echo: Option<String>,
    /// Where the prompt stands in the request.
    pub(super) param: String,
}

/// Checks a request against the rules of the public API and of this server.
pub(super) fn accept(
    request: CompletionRequest,
    controls: &Controls,
    structure: WireStructure,
    model: &Model,
) -> Result<Accepted, ApiError> {
    let choices = request.choices()?;
    controls.refuse_extensions()?;
    let format = structure.accept()?;
    let demanded_by = format.as_ref().map(|format| format.param.clone()).unwrap_or_default();
    let top = request.logprobs()?;
    let is_echoed = request.echo.unwrap_or(false);
    let params = Params {
        sampling: controls.sampling(&model.defaults)?,
        max_tokens: Some(at_least("max_tokens", request.max_tokens, 0)?.unwrap_or(MAX_TOKENS)),
        stop: controls.stop_texts()?,
        constraint: format.map(|format| Constraint::from(format.form)),
        logit_bias: match &request.logit_bias {
            Some(bias) => logprobs::logit_bias(bias, model.backend.info().vocabulary_tokens)?,
            None => Vec::new(),
        },
        logprobs: top,
        prompt_logprobs: top.filter(|_| is_echoed),
    };
    let prompts = request.prompt.ok_or_else(|| missing("prompt"))?;
    let prompts = starts(
        prompts.split("prompt", PROMPTS)?,
        request.suffix.as_deref(),
        &*model.backend,
        is_echoed,
    )?;
    if prompts.len() * choices > PROMPTS {
        let reason = format!(
            "gives {} choices with {} prompts; at most {PROMPTS} can be had at once",
            prompts.len() * choices,
            prompts.len()
        );
        return Err(invalid("n", reason));
    }
    let param = if choices > 1 { "n" } else { "prompt" };
    request::check_room(param, prompts.len() * choices, &*model.backend)?;
    Ok(Accepted { prompts, params, demanded_by, choices, delivery: controls.delivery() })
}

impl CompletionRequest {
    /// Returns the model that is to answer.
    pub(super) fn model(&self, shared: &Shared) -> Result<Arc<Model>, ApiError> {
        shared.model(self.model.as_deref().ok_or_else(|| missing("model"))?)
    }

    /// Returns how many choices each prompt gets; all that are made are given out.
    fn choices(&self) -> Result<usize, ApiError> {
        let choices = request::choices(self.n)?;
        let best_of = within("best_of", self.best_of, &(0..=20), "between 0 and 20")?;
        let made = best_of.and_then(|best_of| usize::try_from(best_of).ok()).filter(|&of| of > 0);
        match made {
            Some(made) if made > choices => Err(unsupported(
                "best_of",
                "this server gives out all that it makes; n says how many",
            )),
            Some(made) if made < choices => Err(invalid(
                "best_of",
                format!("must be at least n, which is {choices}, got {made}"),
            )),
            _ => Ok(choices),
        }
    }

    fn logprobs(&self) -> Result<Option<usize>, ApiError> {
        let words = format!("between 0 and {TOP_LOGPROBS}");
        let top = within("logprobs", self.logprobs, &(0..=TOP_LOGPROBS), &words)?;
        Ok(top.and_then(|top| usize::try_from(top).ok()))
    }
}

/// Turns prompts into tokens, and into the texts that the answer repeats if `echo`.
///
/// With a `suffix` the answer goes between the two.
fn starts(
    prompts: Vec<(String, Input)>,
    suffix: Option<&str>,
    backend: &dyn Backend,
    echo: bool,
) -> Result<Vec<Start>, ApiError> {
    let tokenizer = backend.tokenizer();
    let after = suffix.filter(|suffix| !suffix.is_empty());
    let after = after.map(|suffix| tokenizer.encode(suffix, Special::AsText));
    let start = |(param, input): (String, Input)| {
        let (tokens, text) = match input {
            Input::Text(text) if after.is_none() => (backend.text_prompt(&text).tokens, text),
            Input::Text(text) => (tokenizer.encode(&text, Special::AsText), text),
            Input::Tokens(ids) => {
                let tokens = token_ids(&param, &ids, tokenizer.len())?;
                let text = if echo { tokenizer.decode(&tokens, true) } else { String::new() };
                (tokens, text)
            }
        };
        let (prompt, own) = match &after {
            None => {
                let own = 0..tokens.len();
                (Prompt { tokens, opening: Opening::Continuation }, own)
            }
            Some(after) => {
                let infill = backend.infill_prompt(&tokens, after).ok_or_else(|| {
                    unsupported("suffix", "the model was not made to fill a gap between texts")
                })?;
                (infill.prompt, infill.before)
            }
        };
        Ok(Start { prompt, own, echo: echo.then_some(text), param })
    };
    prompts.into_iter().map(start).collect()
}
