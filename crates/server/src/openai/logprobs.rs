//! Tokens as the public API tells them and as requests name them: `logprobs` and `logit_bias`.

use serde_json::{Map, Value, json};
use toko_engine::{TokenDetails, TokenLogprob};

use crate::error::ApiError;
use crate::validate::invalid;

/// The farthest that a request may move a logit, up or down.
const BIAS_LIMIT: f64 = 100.0;

/// What stands for the log-probability of the impossible, for which JSON has no number.
const VERY_UNLIKELY: f32 = -9999.0;

/// Returns what a `logit_bias` says about the tokens of a vocabulary of this size.
pub(super) fn logit_bias(
    bias: &Map<String, Value>,
    vocabulary_tokens: usize,
) -> Result<Vec<(u32, f32)>, ApiError> {
    // A bias of 0 asks for nothing, whatever it is for.
    let asked = bias.iter().filter(|(_, value)| value.as_f64() != Some(0.0));
    asked.map(|(id, value)| entry(id, value, vocabulary_tokens)).collect()
}

fn entry(id: &str, value: &Value, vocabulary_tokens: usize) -> Result<(u32, f32), ApiError> {
    let param = format!("logit_bias.{id}");
    // One spelling for each id, so that none is named twice.
    let token = id.parse::<u32>().ok().filter(|token| token.to_string() == id);
    let Some(token) = token.filter(|&token| (token as usize) < vocabulary_tokens) else {
        let reason = format!("must be named by a token id below {vocabulary_tokens}, got {id:?}");
        return Err(invalid(param, reason));
    };
    let Some(number) = value.as_f64() else {
        return Err(ApiError::InvalidType { param, reason: "must be a number".to_owned() });
    };
    if !(-BIAS_LIMIT..=BIAS_LIMIT).contains(&number) {
        let reason = format!("must be between -{BIAS_LIMIT} and {BIAS_LIMIT}, got {value}");
        return Err(invalid(param, reason));
    }
    #[expect(clippy::cast_possible_truncation, reason = "rounds to the precision of the logits")]
    let number = number as f32;
    Ok((token, number))
}

/// Returns the `logprobs` object of a choice or of a chunk.
pub(super) fn told(tokens: &[TokenDetails]) -> Value {
    let content: Vec<Value> = tokens
        .iter()
        .map(|details| {
            let mut entry = token(&details.token);
            entry["top_logprobs"] = details.top.iter().map(token).collect();
            entry
        })
        .collect();
    json!({"content": content, "refusal": null})
}

/// A token's text may be part of a character; `bytes` has what it really is.
fn token(token: &TokenLogprob) -> Value {
    json!({
        "token": String::from_utf8_lossy(&token.bytes),
        "bytes": token.bytes,
        "logprob": number(token.logprob),
    })
}

/// Returns a log-probability as JSON can write it.
pub(super) fn number(logprob: f32) -> Value {
    json!(logprob.max(VERY_UNLIKELY))
}
