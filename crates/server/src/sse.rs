//! Server-sent events: turns a request's events into frames of some dialect, with pings in between.
//!
//! The head goes out when the first part of the prompt is computed, or with the first ping if that takes longer. Until
//! then a failure is an answer with a status of its own; after that a client waits for a long prefill with an open
//! stream. Dropping the stream drops the events and so ends the sequence.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::{HeaderValue, header};
use axum::response::sse::{Event as Frame, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use tokio_stream::Stream;
use toko_engine::{Event, Summary, TokenDetails};

use crate::backend::Events;
use crate::error::ApiError;

/// Frames that wait to be sent.
pub(crate) type Frames = VecDeque<Frame>;

/// How one API writes an answer as frames.
pub(crate) trait Dialect: Send + Unpin + 'static {
    /// Appends what comes before the first text.
    fn opening(&self, frames: &mut Frames);
    /// Appends a piece of one choice with the tokens that end in it.
    fn text(&self, choice: usize, text: &str, tokens: &[TokenDetails], frames: &mut Frames);
    /// Appends the end of one choice, and after the last the end of the answer.
    fn finished(&mut self, choice: usize, summary: &Summary, frames: &mut Frames) -> Step;
    /// Appends the end of an answer that cannot go on.
    fn failed(&self, error: &ApiError, frames: &mut Frames);
}

/// Whether further events can follow.
pub(crate) enum Step {
    More,
    Last,
}

/// Answers with the stream of events, written in `dialect`, until they end or `cut` completes.
///
/// Returns the error of an answer that failed before it began.
pub(crate) async fn respond(
    mut events: Events,
    dialect: impl Dialect,
    cut: impl Future<Output = ()> + Send + 'static,
    ping_every: Duration,
) -> Result<Response, ApiError> {
    let mut cut: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(cut);
    let first = tokio::select! {
        first = first(&mut events, ping_every) => first?,
        () = &mut cut => return Err(ApiError::ShuttingDown),
    };
    let mut relay = Relay { events: None, dialect, cut, waiting: Frames::new() };
    relay.dialect.opening(&mut relay.waiting);
    match first.map(|event| relay.take(Some(event))) {
        None | Some(Step::More) => relay.events = Some(events),
        Some(Step::Last) => {}
    }
    let mut response =
        Sse::new(relay).keep_alive(KeepAlive::new().interval(ping_every)).into_response();
    let headers = response.headers_mut();
    headers
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Asks nginx not to hold frames back.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// Waits until something is computed; `None` when that takes longer than a client may go without a sign.
async fn first(
    events: &mut Events,
    patience: Duration,
) -> Result<Option<(usize, Event)>, ApiError> {
    let computed = async {
        loop {
            match events.recv().await {
                Some((_, Event::Prefilled { tokens: 0 })) => {}
                Some((_, Event::Failed(error))) => return Err(error.into()),
                Some(event) => return Ok(Some(event)),
                None => return Err(ApiError::Vanished),
            }
        }
    };
    tokio::time::timeout(patience, computed).await.unwrap_or(Ok(None))
}

/// A stream of frames over a channel of events.
struct Relay<D> {
    /// `None` once the last event was seen.
    events: Option<Events>,
    dialect: D,
    cut: Pin<Box<dyn Future<Output = ()> + Send>>,
    waiting: Frames,
}

impl<D: Dialect> Relay<D> {
    /// Waits for the next event and appends its frames.
    fn poll_event(&mut self, events: &mut Events, context: &mut Context<'_>) -> Poll<Step> {
        let event = match events.poll_recv(context) {
            Poll::Ready(event) => event,
            Poll::Pending => {
                std::task::ready!(self.cut.as_mut().poll(context));
                self.dialect.failed(&ApiError::ShuttingDown, &mut self.waiting);
                return Poll::Ready(Step::Last);
            }
        };
        Poll::Ready(self.take(event))
    }

    /// Appends an event's frames.
    fn take(&mut self, event: Option<(usize, Event)>) -> Step {
        match event {
            Some((_, Event::Prefilled { .. })) => Step::More,
            Some((choice, Event::Text { text, tokens })) => {
                if !text.is_empty() || !tokens.is_empty() {
                    self.dialect.text(choice, &text, &tokens, &mut self.waiting);
                }
                Step::More
            }
            Some((choice, Event::Finished(summary))) => {
                self.dialect.finished(choice, &summary, &mut self.waiting)
            }
            Some((_, Event::Failed(error))) => {
                self.dialect.failed(&ApiError::Engine(error), &mut self.waiting);
                Step::Last
            }
            None => {
                self.dialect.failed(&ApiError::Vanished, &mut self.waiting);
                Step::Last
            }
        }
    }
}

impl<D: Dialect> Stream for Relay<D> {
    type Item = Result<Frame, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(frame) = self.waiting.pop_front() {
                return Poll::Ready(Some(Ok(frame)));
            }
            let Some(mut events) = self.events.take() else { return Poll::Ready(None) };
            let polled = self.poll_event(&mut events, context);
            if !matches!(polled, Poll::Ready(Step::Last)) {
                self.events = Some(events);
            }
            std::task::ready!(polled);
        }
    }
}
