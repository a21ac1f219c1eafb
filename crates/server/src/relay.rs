//! A running answer as a stream of frames in some dialect: from the engine's events to what a transport sends.
//!
//! Dropping the stream drops the events and so ends the sequences. Knows no transport: a frame is whatever the dialect says.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;
use tokio_stream::Stream;
use toko_engine::{Event, TokenDetails};

use crate::answer::{Account, End, Piece, Reader};
use crate::backend::Events;
use crate::error::ApiError;

/// Frames that wait to be sent.
pub(crate) type Frames<F> = VecDeque<F>;

/// How one API writes an answer as frames.
pub(crate) trait Dialect: Send + Unpin + 'static {
    /// What is sent at once.
    type Frame: Send + Unpin + 'static;

    /// Appends what comes before the first text.
    fn opening(&mut self, frames: &mut Frames<Self::Frame>);
    /// Takes in further tokens of one choice's prompt, if the request asked about them.
    fn told_prompt(&mut self, _choice: usize, _tokens: Vec<TokenDetails>) {}
    /// Appends pieces of one choice with the tokens that end in them; there may be tokens and no piece.
    fn told(
        &mut self,
        choice: usize,
        pieces: &[Piece],
        tokens: &[TokenDetails],
        frames: &mut Frames<Self::Frame>,
    );
    /// Appends the end of one choice, and after the last the end of the answer.
    fn finished(
        &mut self,
        choice: usize,
        end: End,
        account: &Account,
        frames: &mut Frames<Self::Frame>,
    ) -> Step;
    /// Appends the end of an answer that cannot go on.
    fn failed(&mut self, error: &ApiError, frames: &mut Frames<Self::Frame>);
}

/// Whether further events can follow.
pub(crate) enum Step {
    More,
    Last,
}

/// A stream of frames over a channel of events.
pub(crate) struct Relay<D: Dialect> {
    /// `None` once the last event was seen.
    events: Option<Events>,
    /// One for each choice.
    readers: Vec<Reader>,
    dialect: D,
    cut: Pin<Box<dyn Future<Output = ()> + Send>>,
    waiting: Frames<D::Frame>,
}

/// Begins an answer: waits until something is computed, or for `patience` once its turn has come, and returns its frames until the events end or
/// `cut` completes.
///
/// Returns the error of an answer that failed before it began.
pub(crate) async fn begin<D: Dialect>(
    mut events: Events,
    readers: Vec<Reader>,
    dialect: D,
    cut: impl Future<Output = ()> + Send + 'static,
    patience: Duration,
) -> Result<Relay<D>, ApiError> {
    let mut cut: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(cut);
    let first = tokio::select! {
        first = first(&mut events, patience) => first?,
        () = &mut cut => return Err(ApiError::ShuttingDown),
    };
    let mut relay = Relay { events: None, readers, dialect, cut, waiting: Frames::new() };
    relay.dialect.opening(&mut relay.waiting);
    match first.map(|event| relay.take(Some(event))) {
        None | Some(Step::More) => relay.events = Some(events),
        Some(Step::Last) => {}
    }
    Ok(relay)
}

/// Waits until something is computed; `None` when that takes longer than a client may go without a sign.
///
/// The time spent in line does not count: who waits in vain has to get a status that says so.
async fn first(
    events: &mut Events,
    patience: Duration,
) -> Result<Option<(usize, Event)>, ApiError> {
    let mut limit = Some(Instant::now() + patience);
    loop {
        let event = match limit {
            Some(limit) => match tokio::time::timeout_at(limit, events.recv()).await {
                Ok(event) => event,
                Err(_) => return Ok(None),
            },
            None => events.recv().await,
        };
        match event {
            Some((_, Event::Waiting)) => limit = None,
            Some((_, Event::Prefilled { tokens: 0 })) => limit = Some(Instant::now() + patience),
            Some((_, Event::Failed(error))) => return Err(error.into()),
            Some(event) => return Ok(Some(event)),
            None => return Err(ApiError::Vanished),
        }
    }
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
            Some((_, Event::Waiting | Event::Prefilled { .. } | Event::Embedded { .. })) => {
                Step::More
            }
            Some((choice, Event::Prompt { tokens })) => {
                self.dialect.told_prompt(choice, tokens);
                Step::More
            }
            Some((choice, Event::Text { text, tokens })) => {
                let pieces = self.readers[choice].push(text);
                self.tell(choice, &pieces, &tokens);
                Step::More
            }
            Some((choice, Event::Finished(summary))) => {
                let (pieces, end) = self.readers[choice].finish(summary.reason);
                self.tell(choice, &pieces, &[]);
                let account = Account::new(&self.readers[choice], summary);
                self.dialect.finished(choice, end, &account, &mut self.waiting)
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

    fn tell(&mut self, choice: usize, pieces: &[Piece], tokens: &[TokenDetails]) {
        if !pieces.is_empty() || !tokens.is_empty() {
            self.dialect.told(choice, pieces, tokens, &mut self.waiting);
        }
    }
}

impl<D: Dialect> Stream for Relay<D> {
    type Item = Result<D::Frame, Infallible>;

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
