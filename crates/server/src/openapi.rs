//! `GET /openapi.json`: what the routes take and answer, in the words of `OpenAPI`.
//!
//! The document is kept by hand, which is less text than it would take to derive it; tests hold it against the routes
//! and the statuses.

use axum::http::{HeaderValue, header};
use axum::response::IntoResponse;

const DOCUMENT: &str = include_str!("openapi.json");

/// Returns the document.
pub(crate) async fn document() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], DOCUMENT)
}
