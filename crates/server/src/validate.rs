//! Rules for single fields: each returns the value, or an error that names the field and what it may be.
//!
//! Knows no dialect: the routes say which field has which rule.

use std::fmt::Display;
use std::ops::RangeBounds;

use serde_json::Value;

use crate::error::ApiError;

/// Most stop texts of a request.
const STOP_TEXTS: usize = 16;

/// Returns a number that lies in `range`; `words` says the range to people.
pub(crate) fn within<T: PartialOrd + Display + Copy>(
    param: &str,
    value: Option<T>,
    range: &impl RangeBounds<T>,
    words: &str,
) -> Result<Option<T>, ApiError> {
    match value {
        Some(number) if !range.contains(&number) => {
            Err(invalid(param, format!("must be {words}, got {number}")))
        }
        _ => Ok(value),
    }
}

/// Returns a count of at least `least`.
pub(crate) fn at_least(
    param: &str,
    value: Option<i64>,
    least: usize,
) -> Result<Option<usize>, ApiError> {
    let Some(number) = value else { return Ok(None) };
    match usize::try_from(number) {
        Ok(count) if count >= least => Ok(Some(count)),
        _ => Err(invalid(param, format!("must be at least {least}, got {number}"))),
    }
}

/// Returns numbers as the tokens of a vocabulary of `vocabulary_tokens`; an error names the item that is none.
pub(crate) fn token_ids(
    param: &str,
    numbers: &[i64],
    vocabulary_tokens: usize,
) -> Result<Vec<u32>, ApiError> {
    let token = |(index, &number): (usize, &i64)| {
        let token =
            u32::try_from(number).ok().filter(|&token| (token as usize) < vocabulary_tokens);
        token.ok_or_else(|| {
            let reason =
                format!("must be a token from 0 to below {vocabulary_tokens}, got {number}");
            invalid(format!("{param}[{index}]"), reason)
        })
    };
    numbers.iter().enumerate().map(token).collect()
}

/// Returns the texts that end an answer; an error names the one that cannot.
pub(crate) fn stop_texts(param: &str, texts: &[String]) -> Result<Vec<String>, ApiError> {
    if texts.len() > STOP_TEXTS {
        let reason = format!("must have at most {STOP_TEXTS} texts, got {}", texts.len());
        return Err(invalid(param, reason));
    }
    match texts.iter().position(String::is_empty) {
        Some(index) => Err(invalid(format!("{param}[{index}]"), "must not be empty")),
        None => Ok(texts.to_vec()),
    }
}

/// Refuses a field whose value would change the answer in a way that is not implemented.
///
/// `false`, 0, `""`, `[]` and `{}` ask for nothing and pass.
pub(crate) fn off(param: &str, value: Option<&Value>) -> Result<(), ApiError> {
    let asks_for_nothing = match value {
        None | Some(Value::Null) => true,
        Some(Value::Bool(is_on)) => !is_on,
        Some(Value::Number(number)) => number.as_f64() == Some(0.0),
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(Value::Object(fields)) => fields.is_empty(),
    };
    if asks_for_nothing {
        Ok(())
    } else {
        Err(unsupported(param, "is not supported by this server"))
    }
}

/// Makes the error for a field that must not be absent.
pub(crate) fn missing(param: impl Into<String>) -> ApiError {
    ApiError::Missing { param: param.into() }
}

/// Makes the error for a value that a field cannot have.
pub(crate) fn invalid(param: impl Into<String>, reason: impl Into<String>) -> ApiError {
    ApiError::InvalidValue { param: param.into(), reason: reason.into() }
}

/// Makes the error for a field that asks for something this server does not do.
pub(crate) fn unsupported(param: impl Into<String>, reason: impl Into<String>) -> ApiError {
    ApiError::Unsupported { param: param.into(), reason: reason.into() }
}
