//! Lines of JSON: an answer's frames on the wire, each a line of its own.
//!
//! There is nothing to send while nothing happens: the clients read every line as a part of the answer.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};

use crate::answer::Reader;
use crate::backend::Events;
use crate::error::ApiError;
use crate::relay::{self, Dialect};

/// Answers with the lines, written in `dialect`, until the events end or `cut` completes.
///
/// Returns the error of an answer that failed before it began, which it does at the latest after `patience`.
pub(crate) async fn respond(
    events: Events,
    reader: Reader,
    dialect: impl Dialect<Frame = String>,
    cut: impl Future<Output = ()> + Send + 'static,
    patience: Duration,
) -> Result<Response, ApiError> {
    let relay = relay::begin(events, vec![reader], dialect, cut, patience).await?;
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        // Asks nginx not to hold lines back.
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    Ok((headers, Body::from_stream(relay)).into_response())
}
