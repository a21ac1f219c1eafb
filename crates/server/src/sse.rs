//! Server-sent events: an answer's frames on the wire, with pings in between.
//!
//! The head goes out when the first part of the prompt is computed, or with the first ping if that takes longer. Until
//! then a failure is an answer with a status of its own; after that a client waits for a long prefill with an open
//! stream.

use std::time::Duration;

use axum::http::{HeaderValue, header};
use axum::response::sse::{Event as Frame, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};

use crate::answer::Reader;
use crate::backend::Events;
use crate::error::ApiError;
use crate::relay::{self, Dialect};

/// Answers with the stream of events, written in `dialect`, until they end or `cut` completes.
///
/// Returns the error of an answer that failed before it began.
pub(crate) async fn respond(
    events: Events,
    readers: Vec<Reader>,
    dialect: impl Dialect<Frame = Frame>,
    cut: impl Future<Output = ()> + Send + 'static,
    ping_every: Duration,
) -> Result<Response, ApiError> {
    let comments = KeepAlive::new().interval(ping_every);
    let relay = relay::begin(events, readers, dialect, cut, ping_every).await?;
    Ok(stream(Sse::new(relay).keep_alive(comments)))
}

/// Does the same with a ping that is a frame, where clients do not look at comments.
pub(crate) async fn respond_with(
    ping: Frame,
    events: Events,
    readers: Vec<Reader>,
    dialect: impl Dialect<Frame = Frame>,
    cut: impl Future<Output = ()> + Send + 'static,
    ping_every: Duration,
) -> Result<Response, ApiError> {
    let pings = KeepAlive::new().interval(ping_every).event(ping);
    let relay = relay::begin(events, readers, dialect, cut, ping_every).await?;
    Ok(stream(Sse::new(relay).keep_alive(pings)))
}

/// Answers with frames, which proxies must not hold back.
pub(crate) fn stream(frames: impl IntoResponse) -> Response {
    let mut response = frames.into_response();
    let headers = response.headers_mut();
    headers
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Asks nginx not to hold frames back.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
