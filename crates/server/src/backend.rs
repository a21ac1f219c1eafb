//! The door from HTTP to whatever generates the tokens, and the bridge from its thread to the request's task.
//!
//! The bridge is an unbounded channel: the engine's thread serves everybody and must never wait for one slow client.
//! What can pile up there is one answer's text, which the context bounds. Dropping the receiver cancels: the sink then
//! answers `Break`.

use std::ops::ControlFlow;

use tokio::sync::mpsc;
use toko_engine::{Chat, Engine, Error, Event, ModelInfo, Params};

/// Receives a request's events in order; after `Break` nothing more is computed for it.
pub type Sink = Box<dyn FnMut(Event) -> ControlFlow<()> + Send>;

/// What the server needs of an engine.
pub trait Backend: Send + Sync + 'static {
    /// Returns what is loaded.
    fn info(&self) -> &ModelInfo;

    /// Renders and tokenizes the conversation and queues it; returns before the first event.
    ///
    /// May take as long as tokenizing does, so it is not called on a thread that serves connections.
    ///
    /// # Errors
    /// Whatever makes this conversation unanswerable; the sink is not called then.
    fn generate(&self, chat: &Chat, params: Params, sink: Sink) -> Result<(), Error>;
}

impl Backend for Engine {
    fn info(&self) -> &ModelInfo {
        self.info()
    }

    fn generate(&self, chat: &Chat, params: Params, sink: Sink) -> Result<(), Error> {
        self.submit(self.chat_prompt(chat)?, params, sink)
    }
}

/// The receiving end of one request's events.
pub(crate) type Events = mpsc::UnboundedReceiver<Event>;

/// Queues a conversation and returns its events.
pub(crate) fn start(backend: &dyn Backend, chat: &Chat, params: Params) -> Result<Events, Error> {
    let (sender, events) = mpsc::unbounded_channel();
    let sink = move |event| match sender.send(event) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    };
    backend.generate(chat, params, Box::new(sink))?;
    Ok(events)
}
