//! The fields that requests for any kind of answer have: how tokens are chosen, what ends them, how they are delivered.
//!
//! They are read from the body a second time, beside the request that has the prompt: a struct inside of a struct
//! would lose the path of a wrong field.

use serde::Deserialize;
use serde_json::Value;
use toko_engine::Sampling;

use crate::body::Object;
use crate::error::ApiError;
use crate::sampling::Wishes;
use crate::state::Defaults;
use crate::text_or::TextOr;
use crate::validate::{invalid, off, stop_texts, unsupported, within};

/// The common fields; `null` is the same as absent everywhere.
#[derive(Debug, Deserialize)]
pub(super) struct Controls {
    stream: Option<bool>,
    stream_options: Option<Object<StreamOptions>>,

    stop: Option<TextOr<String>>,

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
    ignore_eos: Option<Value>,
    min_tokens: Option<Value>,
    mirostat: Option<Value>,
    typical_p: Option<f32>,
    n_probs: Option<Value>,
    options: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
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

impl Controls {
    /// Returns how the client wants its answer.
    pub(super) fn delivery(&self) -> Delivery {
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

    /// Returns how tokens are chosen.
    pub(super) fn sampling(&self, defaults: &Defaults) -> Result<Sampling, ApiError> {
        let wishes = Wishes {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            penalty_window_tokens: None,
            seed: self.seed,
        };
        wishes.over("", &defaults.sampling)
    }

    /// Returns the texts that end an answer.
    pub(super) fn stop_texts(&self) -> Result<Vec<String>, ApiError> {
        match &self.stop {
            None => Ok(Vec::new()),
            Some(TextOr::Text(text)) if text.is_empty() => {
                Err(invalid("stop", "must not be empty"))
            }
            Some(TextOr::Text(text)) => Ok(vec![text.clone()]),
            Some(TextOr::Several(texts)) => stop_texts("stop", texts),
        }
    }

    /// Refuses what would bend an answer in a way that is not implemented.
    pub(super) fn refuse_extensions(&self) -> Result<(), ApiError> {
        if within("typical_p", self.typical_p, &(0.0..=1.0), "between 0 and 1")?
            .is_some_and(|p| p < 1.0)
        {
            return Err(unsupported("typical_p", "is not supported by this server"));
        }
        let rest = [
            ("ignore_eos", &self.ignore_eos),
            ("min_tokens", &self.min_tokens),
            ("mirostat", &self.mirostat),
            ("n_probs", &self.n_probs),
            ("options", &self.options),
        ];
        rest.into_iter().try_for_each(|(param, value)| off(param, value.as_ref()))
    }
}
