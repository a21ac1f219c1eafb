//! `POST /api/embed`, and `/api/embeddings`, its older form for one text.
//!
//! A text that is longer than the context is refused; half of it would have another meaning.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::line::nanoseconds;
use super::request::Common;
use crate::backend::Sender;
use crate::error::ApiError;
use crate::state::Shared;
use crate::text_or::TextOr;
use crate::validate::{invalid, missing, within};
use crate::vectors::{self, Texts, shortened};
use crate::{body, intake};

/// Most texts of a request.
const TEXTS: usize = 2048;

/// Texts that are to become vectors.
#[derive(Debug, Deserialize)]
struct EmbedRequest {
    input: Option<TextOr<String>>,
    dimensions: Option<i64>,
}

/// One such text, in the older form.
#[derive(Debug, Deserialize)]
struct EmbeddingsRequest {
    prompt: Option<String>,
}

/// Vectors on their way.
struct Begun {
    model: String,
    began: Instant,
    /// How many numbers of each are wanted.
    length: usize,
}

/// Answers with the vectors of all texts.
pub(crate) async fn create(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let (sender, events) = mpsc::unbounded_channel();
    let queue = move |shared: &Shared, bytes: &[u8]| start(shared, bytes, &sender);
    let begun = intake::digest(&shared, &headers, body, queue).await?;
    let (vectors, summary) = tokio::select! {
        collected = vectors::collect(events, "input") => collected?,
        () = shared.cut() => return Err(ApiError::ShuttingDown),
    };
    let embeddings: Vec<Vec<f32>> =
        vectors.into_iter().map(|vector| shortened(vector, begun.length)).collect();
    Ok(Json(json!({
        "model": begun.model,
        "embeddings": embeddings,
        "total_duration": nanoseconds(begun.began.elapsed()),
        "load_duration": 0,
        "prompt_eval_count": summary.prompt_tokens,
    })))
}

/// Answers with the vector of one text.
pub(crate) async fn create_one(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let (sender, events) = mpsc::unbounded_channel();
    let queue = move |shared: &Shared, bytes: &[u8]| start_one(shared, bytes, &sender);
    intake::digest(&shared, &headers, body, queue).await?;
    let (mut vectors, _) = tokio::select! {
        collected = vectors::collect(events, "prompt") => collected?,
        () = shared.cut() => return Err(ApiError::ShuttingDown),
    };
    let vector = vectors.pop().ok_or(ApiError::Vanished)?;
    Ok(Json(json!({"embedding": vector})))
}

fn start(shared: &Shared, bytes: &[u8], sender: &Sender) -> Result<Begun, ApiError> {
    let began = Instant::now();
    let common: Common = body::parse(bytes)?;
    let request: EmbedRequest = body::parse(bytes)?;
    common.check()?;
    let texts = match request.input.ok_or_else(|| missing("input"))? {
        TextOr::Text(text) => vec![("input".to_owned(), text)],
        TextOr::Several(texts) if texts.is_empty() || texts.len() > TEXTS => {
            let reason = format!("must have 1 to {TEXTS} texts, got {}", texts.len());
            return Err(invalid("input", reason));
        }
        TextOr::Several(texts) => {
            let place = |(index, text)| (format!("input[{index}]"), text);
            texts.into_iter().enumerate().map(place).collect()
        }
    };
    let model = common.model(shared)?;
    let longest = model.backend.info().embedding_length;
    let words = format!("between 1 and {longest}, the length of the model's vectors");
    let range = 1..=i64::try_from(longest).unwrap_or(i64::MAX);
    let length = within("dimensions", request.dimensions, &range, &words)?
        .and_then(|length| usize::try_from(length).ok())
        .unwrap_or(longest);
    let texts: Result<Texts, ApiError> = texts
        .into_iter()
        .map(|(param, text)| vectors::tokens(&model, &param, &text).map(|tokens| (param, tokens)))
        .collect();
    vectors::start(&model, texts?, "input", sender)?;
    Ok(Begun { model: model.id.clone(), began, length })
}

fn start_one(shared: &Shared, bytes: &[u8], sender: &Sender) -> Result<(), ApiError> {
    let common: Common = body::parse(bytes)?;
    let request: EmbeddingsRequest = body::parse(bytes)?;
    common.check()?;
    let text = request.prompt.ok_or_else(|| missing("prompt"))?;
    let model = common.model(shared)?;
    let tokens = vectors::tokens(&model, "prompt", &text)?;
    vectors::start(&model, vec![("prompt".to_owned(), tokens)], "prompt", sender)
}
