//! From a request's bytes to a wire type: content type, size, UTF-8, JSON, field types.
//!
//! Knows no field by name. A wrong field is reported with its path in the document.

use std::fmt;
use std::marker::PhantomData;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde_json::error::Category;
use tokio_stream::StreamExt;

use crate::error::ApiError;
use crate::state::Limits;

/// How much of a body that is too large is still read, so that the client has sent all and listens for the answer.
const DISCARD_LIMIT_BYTES: usize = 64 << 20;

/// Reads a body that says it is JSON, up to the limit, from a client that keeps sending it.
pub(crate) async fn read(
    headers: &HeaderMap,
    body: Body,
    limits: &Limits,
) -> Result<Vec<u8>, ApiError> {
    check_content_type(headers)?;
    let limit_bytes = limits.body_bytes;
    let mut bytes = Vec::new();
    let mut seen_bytes = 0usize;
    let mut chunks = body.into_data_stream();
    let silence = |_| ApiError::SlowBody { limit: limits.client_silence };
    while let Some(chunk) =
        tokio::time::timeout(limits.client_silence, chunks.next()).await.map_err(silence)?
    {
        let chunk = chunk.map_err(|error| ApiError::BrokenBody { reason: error.to_string() })?;
        seen_bytes = seen_bytes.saturating_add(chunk.len());
        if seen_bytes <= limit_bytes {
            bytes.extend_from_slice(&chunk);
        } else if seen_bytes - limit_bytes > DISCARD_LIMIT_BYTES {
            break;
        }
    }
    if seen_bytes > limit_bytes { Err(ApiError::BodyTooLarge { limit_bytes }) } else { Ok(bytes) }
}

/// Accepts `application/json` and every `application/…+json`, with or without parameters.
fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else {
        return Err(ApiError::MediaType { found: "missing".to_owned() });
    };
    let found = String::from_utf8_lossy(value.as_bytes());
    let essence = found.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match essence.strip_prefix("application/") {
        Some(subtype) if subtype == "json" || subtype.ends_with("+json") => Ok(()),
        _ => Err(ApiError::MediaType { found: format!("{found:?}") }),
    }
}

/// Parses a body into a wire type, which must be an object.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let text = str::from_utf8(bytes).map_err(|error| ApiError::InvalidJson {
        reason: format!("byte {} is not UTF-8", error.valid_up_to()),
    })?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let parsed: Result<Object<T>, _> = serde_path_to_error::deserialize(&mut deserializer);
    let Object(value) = parsed.map_err(|error| explain(&error))?;
    deserializer.end().map_err(|error| ApiError::InvalidJson { reason: error.to_string() })?;
    Ok(value)
}

fn explain(error: &serde_path_to_error::Error<serde_json::Error>) -> ApiError {
    let reason = in_words_of_json(&error.inner().to_string());
    let param = error.path().to_string();
    let is_whole_body = error.path().iter().next().is_none();
    match error.inner().classify() {
        Category::Data if is_whole_body => ApiError::InvalidJson { reason },
        // serde gives the kind of a data error only in the words that its documentation fixes.
        Category::Data if reason.starts_with("invalid type") => {
            ApiError::InvalidType { param, reason }
        }
        Category::Data => ApiError::InvalidValue { param, reason },
        Category::Io | Category::Syntax | Category::Eof => ApiError::InvalidJson { reason },
    }
}

/// Replaces the Rust type that a message says was expected by what a client knows it as.
fn in_words_of_json(message: &str) -> String {
    let Some((found, expected)) = message.rsplit_once(", expected ") else {
        return message.to_owned();
    };
    let words = [
        ("f32", "a number"),
        ("i64", "an integer"),
        ("a sequence", "an array"),
        ("a map", "an object"),
    ];
    let translated = words
        .iter()
        .find_map(|(rust, json)| Some(format!("{json}{}", expected.strip_prefix(rust)?)));
    format!("{found}, expected {}", translated.as_deref().unwrap_or(expected))
}

/// A `T` that is written as an object.
///
/// Derived structs also read themselves from arrays, field by field in order; a wire type must not.
#[derive(Debug)]
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FromMap<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for FromMap<T> {
            type Value = Object<T>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }

        deserializer.deserialize_map(FromMap(PhantomData))
    }
}
