//! In which API's words an error is told: a path decides it, wherever the error arose.
//!
//! Knows no error: the table of `error.rs` says what each one is.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;

use crate::error::Told;
use crate::{anthropic, ollama};

/// Where the Anthropic clients look for a request's id.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// An API whose errors do not look like OpenAI's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Voice {
    Anthropic,
    Ollama,
}

impl Voice {
    fn of(path: &str) -> Option<Self> {
        let is_below = |root: &str| {
            path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if is_below("/v1/messages") {
            Some(Self::Anthropic)
        } else {
            // What is below `models` there is llama-swap's.
            (is_below("/api") && !is_below("/api/models")).then_some(Self::Ollama)
        }
    }
}

/// Writes the errors of some paths in the words of the API that the paths belong to.
pub(crate) async fn speak(request: Request, next: Next) -> Response {
    let Some(voice) = Voice::of(request.uri().path()) else { return next.run(request).await };
    let id = request.headers().get("x-request-id").cloned();
    let mut response = next.run(request).await;
    if let Some(Told(error)) = response.extensions_mut().remove() {
        let body = match voice {
            Voice::Anthropic => anthropic::error::object(&error, id.as_ref()),
            Voice::Ollama => ollama::error_object(&error),
        };
        *response.body_mut() = Body::from(body.to_string());
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(header::CONTENT_TYPE, json);
    }
    if let (Some(id), Voice::Anthropic) = (id, voice) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_apis_own_paths_have_its_voice() {
        for path in ["/v1/messages", "/v1/messages/", "/v1/messages/count_tokens"] {
            assert_eq!(Voice::of(path), Some(Voice::Anthropic), "{path}");
        }
        for path in ["/api", "/api/chat", "/api/nope/x"] {
            assert_eq!(Voice::of(path), Some(Voice::Ollama), "{path}");
        }
        for path in [
            "/",
            "/apis",
            "/api/models/unload",
            "/v1",
            "/v1/messages2",
            "/v1/models/v1/messages",
            "/v1/chat/completions",
        ] {
            assert_eq!(Voice::of(path), None, "{path}");
        }
    }
}
