//! How tokens are chosen, as requests of any dialect say it: the ranges, and what holds where a request says nothing.

use std::ops::Bound;

use toko_engine::Sampling;

use crate::error::ApiError;
use crate::validate::{at_least, within};

/// What a request says; a field that it does not have stays absent.
#[derive(Debug, Default)]
pub(crate) struct Wishes {
    pub(crate) temperature: Option<f32>,
    pub(crate) top_k: Option<i64>,
    pub(crate) top_p: Option<f32>,
    pub(crate) min_p: Option<f32>,
    pub(crate) repeat_penalty: Option<f32>,
    pub(crate) frequency_penalty: Option<f32>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) penalty_window_tokens: Option<i64>,
    pub(crate) seed: Option<i64>,
}

impl Wishes {
    /// Checks the wishes, whose fields stand behind `at`, and lays them over the defaults.
    pub(crate) fn over(&self, at: &str, default: &Sampling) -> Result<Sampling, ApiError> {
        let number = |name: &str, value, range: (Bound<f32>, Bound<f32>), words, default| {
            let checked = within(&format!("{at}{name}"), value, &range, words)?;
            Ok::<f32, ApiError>(checked.unwrap_or(default))
        };
        let count = |name: &str, value, default| {
            let checked = at_least(&format!("{at}{name}"), value, 0)?;
            Ok::<usize, ApiError>(checked.unwrap_or(default))
        };
        let (from, above) = (Bound::Included::<f32>, Bound::Excluded::<f32>);
        let (to, below) = (Bound::Included::<f32>, Bound::Excluded::<f32>);
        let penalty = (from(-2.0), to(2.0));
        let penalty_words = "between -2 and 2";
        Ok(Sampling {
            temperature: number(
                "temperature",
                self.temperature,
                (from(0.0), to(2.0)),
                "between 0 and 2",
                default.temperature,
            )?,
            top_k: count("top_k", self.top_k, default.top_k)?,
            top_p: number(
                "top_p",
                self.top_p,
                (above(0.0), to(1.0)),
                "above 0 and at most 1",
                default.top_p,
            )?,
            min_p: number(
                "min_p",
                self.min_p,
                (from(0.0), to(1.0)),
                "between 0 and 1",
                default.min_p,
            )?,
            repeat_penalty: number(
                "repeat_penalty",
                self.repeat_penalty,
                (above(0.0), below(f32::INFINITY)),
                "above 0 and finite",
                default.repeat_penalty,
            )?,
            frequency_penalty: number(
                "frequency_penalty",
                self.frequency_penalty,
                penalty,
                penalty_words,
                default.frequency_penalty,
            )?,
            presence_penalty: number(
                "presence_penalty",
                self.presence_penalty,
                penalty,
                penalty_words,
                default.presence_penalty,
            )?,
            penalty_window_tokens: count(
                "repeat_last_n",
                self.penalty_window_tokens,
                default.penalty_window_tokens,
            )?,
            seed: self.seed.map(i64::cast_unsigned).or(default.seed),
        })
    }
}
