//! The `options` of a request, by the names that Ollama gives them.
//!
//! What says how a model is loaded is ignored, since it is loaded already; what would change the answer and is not
//! implemented is refused.

use serde::Deserialize;
use serde_json::Value;
use toko_engine::Params;

use crate::catalog::Model;
use crate::error::ApiError;
use crate::sampling::Wishes;
use crate::validate::{at_least, invalid, off, stop_texts, unsupported, within};

/// How to answer; `null` is the same as absent everywhere.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Options {
    num_ctx: Option<i64>,
    num_predict: Option<i64>,
    stop: Option<Vec<String>>,
    temperature: Option<f32>,
    top_k: Option<i64>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repeat_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    repeat_last_n: Option<i64>,
    seed: Option<i64>,

    // What follows is refused unless it asks for what happens anyway.
    mirostat: Option<Value>,
    typical_p: Option<f32>,
}

impl Options {
    /// Returns the parameters of an answer.
    pub(super) fn accept(&self, model: &Model) -> Result<Params, ApiError> {
        self.check_context(model.backend.info().context_tokens)?;
        off("options.mirostat", self.mirostat.as_ref())?;
        let typical = within("options.typical_p", self.typical_p, &(0.0..=1.0), "between 0 and 1")?;
        if typical.is_some_and(|p| p < 1.0) {
            return Err(unsupported("options.typical_p", "is not supported by this server"));
        }
        let wishes = Wishes {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            penalty_window_tokens: self.penalty_window(model),
            // Ollama's word for a seed that nobody chose.
            seed: self.seed.filter(|&seed| seed != -1),
        };
        let stop = self.stop.as_deref().unwrap_or(&[]);
        Ok(Params {
            sampling: wishes.over("options.", &model.defaults.sampling)?,
            max_tokens: self.max_tokens(model.defaults.max_tokens)?,
            stop: stop_texts("options.stop", stop)?,
            constraint: None,
            logit_bias: Vec::new(),
            logprobs: None,
            prompt_logprobs: None,
        })
    }

    /// The context is chosen when the server starts; less of it changes nothing, more is not there.
    fn check_context(&self, context_tokens: usize) -> Result<(), ApiError> {
        match at_least("options.num_ctx", self.num_ctx, 1)? {
            Some(asked) if asked > context_tokens => Err(invalid(
                "options.num_ctx",
                format!("the server was started with a context of {context_tokens}, got {asked}"),
            )),
            _ => Ok(()),
        }
    }

    /// Returns the limit of an answer; -1 and -2 are Ollama's words for none but the context.
    fn max_tokens(&self, default: Option<usize>) -> Result<Option<usize>, ApiError> {
        match self.num_predict {
            Some(-2 | -1) => Ok(None),
            limit => Ok(at_least("options.num_predict", limit, 1)?.or(default)),
        }
    }

    /// -1 is Ollama's word for all tokens.
    fn penalty_window(&self, model: &Model) -> Option<i64> {
        match self.repeat_last_n {
            Some(-1) => i64::try_from(model.backend.info().context_tokens).ok(),
            window => window,
        }
    }
}
