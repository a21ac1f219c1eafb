//! `POST /tokenize`, `/detokenize` and `/apply-template`, in the shapes of llama-server.
//!
//! They look at texts and never run the model.

use std::sync::Arc;
use std::time::SystemTime;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use serde::Deserialize;
use serde_json::{Value, json};
use toko_engine::Special;

use crate::error::ApiError;
use crate::state::Shared;
use crate::validate::{missing, token_ids};
use crate::{body, intake, openai};

/// A text to take apart; `null` is the same as absent everywhere.
#[derive(Debug, Deserialize)]
struct TokenizeRequest {
    model: Option<String>,
    content: Option<String>,
    /// Whether the model's BOS and EOS go around the text; they don't by default.
    add_special: Option<bool>,
    /// Whether special tokens that the text spells out count as such; they do by default.
    parse_special: Option<bool>,
    /// Whether each token comes with its text.
    with_pieces: Option<bool>,
}

/// Tokens to put together.
#[derive(Debug, Deserialize)]
struct DetokenizeRequest {
    model: Option<String>,
    tokens: Option<Vec<i64>>,
}

/// Returns the tokens of a text.
pub(crate) async fn tokenize(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    intake::digest(&shared, &headers, body, tokens).await.map(Json)
}

/// Returns the text of tokens.
pub(crate) async fn detokenize(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    intake::digest(&shared, &headers, body, text).await.map(Json)
}

/// Returns the prompt that the chat template makes of a conversation.
pub(crate) async fn apply_template(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    intake::digest(&shared, &headers, body, prompt).await.map(Json)
}

fn tokens(shared: &Shared, bytes: &[u8]) -> Result<Value, ApiError> {
    let request: TokenizeRequest = body::parse(bytes)?;
    let model = shared.model_or_default(request.model.as_deref())?;
    let tokenizer = model.backend.tokenizer();
    let text = request.content.ok_or_else(|| missing("content"))?;
    let special = match request.parse_special {
        None | Some(true) => Special::Parse,
        Some(false) => Special::AsText,
    };
    let tokens = match request.add_special {
        Some(true) => tokenizer.encode_with_bos(&text, special),
        None | Some(false) => tokenizer.encode(&text, special),
    };
    if request.with_pieces != Some(true) {
        return Ok(json!({"tokens": tokens}));
    }
    let piece = |id: u32| json!({"id": id, "piece": piece(tokenizer.token_bytes(id))});
    Ok(json!({"tokens": tokens.into_iter().map(piece).collect::<Vec<_>>()}))
}

/// Returns text as a string, and bytes that are none as an array of numbers.
fn piece(bytes: &[u8]) -> Value {
    str::from_utf8(bytes).map_or_else(|_| json!(bytes), |text| json!(text))
}

fn text(shared: &Shared, bytes: &[u8]) -> Result<Value, ApiError> {
    let request: DetokenizeRequest = body::parse(bytes)?;
    let model = shared.model_or_default(request.model.as_deref())?;
    let tokenizer = model.backend.tokenizer();
    let ids = request.tokens.ok_or_else(|| missing("tokens"))?;
    let tokens = token_ids("tokens", &ids, tokenizer.len())?;
    Ok(json!({"content": tokenizer.decode(&tokens, true)}))
}

fn prompt(shared: &Shared, bytes: &[u8]) -> Result<Value, ApiError> {
    let (model, chat) = openai::chat::conversation(shared, bytes, SystemTime::now())?;
    let prompt = model.backend.chat_template().render(&chat).map_err(toko_engine::Error::from)?;
    Ok(json!({"prompt": prompt}))
}
