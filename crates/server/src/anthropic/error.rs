//! Errors in Anthropic's words.

use axum::http::{HeaderValue, StatusCode};
use serde_json::{Value, json};

use crate::error::ApiError;

/// Returns the error object as it stands in a body or in a frame of a stream.
pub(crate) fn object(error: &ApiError, request_id: Option<&HeaderValue>) -> Value {
    json!({
        "type": "error",
        "error": {"type": kind(error.status()), "message": error.to_string()},
        "request_id": request_id.map(|id| String::from_utf8_lossy(id.as_bytes())),
    })
}

/// Returns the public word for a status; the clients themselves go by the status.
fn kind(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        other if other.is_client_error() => "invalid_request_error",
        _ => "api_error",
    }
}
