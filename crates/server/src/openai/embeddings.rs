//! `POST /v1/embeddings`: texts or tokens as vectors of length 1.
//!
//! All inputs of a request are one job of the engine. How a vector is made of the hidden states is the model's business.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::prompts::{Input, Prompts};
use crate::backend::{Events, Sender};
use crate::catalog::Model;
use crate::error::ApiError;
use crate::state::Shared;
use crate::validate::{invalid, missing, token_ids, within};
use crate::vectors::{self, Texts, shortened};
use crate::{body, intake};

/// Most inputs of a request; the public API's own figure.
const INPUTS: usize = 2048;

/// A request for vectors; `null` is the same as absent everywhere.
#[derive(Debug, Deserialize)]
struct EmbeddingRequest {
    model: Option<String>,
    input: Option<Prompts>,
    encoding_format: Option<String>,
    dimensions: Option<i64>,
}

/// How a vector is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    /// As numbers.
    Float,
    /// As the bytes of its little-endian 32-bit floats.
    Base64,
}

/// Vectors on their way.
struct Begun {
    /// The name of the model.
    model: String,
    encoding: Encoding,
    /// How many numbers of each vector are wanted.
    length: usize,
}

/// Answers with the vectors of all inputs.
pub(crate) async fn create(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let (sender, events) = mpsc::unbounded_channel();
    let queue = move |shared: &Shared, bytes: &[u8]| start(shared, bytes, &sender);
    let begun = intake::digest(&shared, &headers, body, queue).await?;
    tokio::select! {
        answer = collect(events, &begun) => answer.map(Json),
        () = shared.cut() => Err(ApiError::ShuttingDown),
    }
}

/// Takes a request from its bytes to the engine's queue.
fn start(shared: &Shared, bytes: &[u8], sender: &Sender) -> Result<Begun, ApiError> {
    let request: EmbeddingRequest = body::parse(bytes)?;
    let model = shared.model(request.model.as_deref().ok_or_else(|| missing("model"))?)?;
    let encoding = match request.encoding_format.as_deref() {
        None | Some("float") => Encoding::Float,
        Some("base64") => Encoding::Base64,
        Some(other) => {
            let reason = format!("must be float or base64, got {other:?}");
            return Err(invalid("encoding_format", reason));
        }
    };
    let longest = model.backend.info().embedding_length;
    let words = format!("between 1 and {longest}, the length of the model's vectors");
    let range = 1..=i64::try_from(longest).unwrap_or(i64::MAX);
    let length = within("dimensions", request.dimensions, &range, &words)?
        .and_then(|length| usize::try_from(length).ok())
        .unwrap_or(longest);
    let inputs = request.input.ok_or_else(|| missing("input"))?.split("input", INPUTS)?;
    let texts: Result<Texts, ApiError> = inputs
        .into_iter()
        .map(|(param, input)| tokens(&model, &param, input).map(|tokens| (param, tokens)))
        .collect();
    vectors::start(&model, texts?, "input", sender)?;
    Ok(Begun { model: model.id.clone(), encoding, length })
}

/// Returns the tokens of one input.
fn tokens(model: &Model, param: &str, input: Input) -> Result<Vec<u32>, ApiError> {
    match input {
        Input::Text(text) => vectors::tokens(model, param, &text),
        Input::Tokens(ids) => token_ids(param, &ids, model.backend.tokenizer().len()),
    }
}

/// Waits for all vectors.
async fn collect(events: Events, begun: &Begun) -> Result<Value, ApiError> {
    let (vectors, summary) = vectors::collect(events, "input").await?;
    let told = |(index, vector): (usize, Vec<f32>)| {
        json!({
            "object": "embedding",
            "index": index,
            "embedding": written(shortened(vector, begun.length), begun.encoding),
        })
    };
    let data: Vec<Value> = vectors.into_iter().enumerate().map(told).collect();
    let tokens = summary.prompt_tokens;
    Ok(json!({
        "object": "list",
        "data": data,
        "model": begun.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }))
}

fn written(vector: Vec<f32>, encoding: Encoding) -> Value {
    match encoding {
        Encoding::Float => json!(vector),
        Encoding::Base64 => {
            let bytes: Vec<u8> = vector.into_iter().flat_map(f32::to_le_bytes).collect();
            json!(BASE64_STANDARD.encode(bytes))
        }
    }
}
