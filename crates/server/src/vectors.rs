//! Texts as vectors: from tokens to the engine's queue, and what comes back.
//!
//! Knows no wire format. All texts of a request are one job of the engine.

use toko_engine::{Error as EngineError, Event, Special, Summary};

use crate::backend::{self, Events, Sender};
use crate::catalog::Model;
use crate::error::ApiError;
use crate::validate::invalid;

/// Texts as tokens, each with the place where it stands in the request.
pub(crate) type Texts = Vec<(String, Vec<u32>)>;

/// Returns the tokens of a text, which stands at `param`; what it spells out is never a control token.
pub(crate) fn tokens(model: &Model, param: &str, text: &str) -> Result<Vec<u32>, ApiError> {
    if text.is_empty() {
        return Err(invalid(param, "must not be empty"));
    }
    Ok(model.backend.tokenizer().encode_with_bos(text, Special::AsText))
}

/// Queues the texts; an error that is about none of them names the field `all`.
pub(crate) fn start(
    model: &Model,
    texts: Texts,
    all: &str,
    sender: &Sender,
) -> Result<(), ApiError> {
    let (params, texts): (Vec<String>, Vec<Vec<u32>>) = texts.into_iter().unzip();
    backend::start_embedding(&*model.backend, texts, sender).map_err(|error| match error {
        EngineError::Text { index, source } => {
            ApiError::Prompt { param: params[index].clone(), error: *source }
        }
        error => ApiError::Prompt { param: all.to_owned(), error },
    })
}

/// Waits for all vectors, in the order of the texts; failures name the field `all`.
pub(crate) async fn collect(
    mut events: Events,
    all: &str,
) -> Result<(Vec<Vec<f32>>, Summary), ApiError> {
    let mut vectors = Vec::new();
    loop {
        // Without a sender left, what has not come never will.
        let (_, event) = events.recv().await.ok_or(ApiError::Vanished)?;
        match event {
            Event::Embedded { index, vector } => vectors.push((index, vector)),
            Event::Finished(summary) => {
                vectors.sort_by_key(|&(index, _)| index);
                return Ok((vectors.into_iter().map(|(_, vector)| vector).collect(), summary));
            }
            Event::Failed(error) => {
                return Err(ApiError::Prompt { param: all.to_owned(), error });
            }
            Event::Waiting
            | Event::Prefilled { .. }
            | Event::Prompt { .. }
            | Event::Text { .. } => {}
        }
    }
}

/// Returns the first numbers of a vector, with length 1 again.
pub(crate) fn shortened(mut vector: Vec<f32>, length: usize) -> Vec<f32> {
    if length < vector.len() {
        vector.truncate(length);
        let norm = vector.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
        if norm > 0.0 {
            #[expect(clippy::cast_possible_truncation, reason = "rounds to the vector's precision")]
            for value in &mut vector {
                *value = (f64::from(*value) / norm) as f32;
            }
        }
    }
    vector
}
