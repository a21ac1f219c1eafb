//! What one lease gives: the right to run one request at a time on the shared weights, and a random state of its own.
//!
//! A replica's KV cache is the page table of the sequence that it runs; the worker owns the pages.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{SendError, Sender};

use toko_model::Model;

use crate::constraint::Grammars;
use crate::metrics::Metrics;
use crate::pool::Lease;
use crate::request::check;
use crate::worker::{Job, Message, Sink, Work};
use crate::{Error, Event, Params, Prompt, embedding};

/// One of the places at which a model generates.
pub struct Replica {
    pub(crate) model: Arc<Model>,
    pub(crate) context_tokens: usize,
    /// Where draws without a seed go on from.
    pub(crate) random: fastrand::Rng,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) grammars: Arc<Grammars>,
    pub(crate) messages: Sender<Message>,
}

impl Replica {
    /// Returns the weights, which all replicas share.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }
}

impl Lease<Replica> {
    /// Runs a request. `sink` is called on the worker thread; when it answers `Break` the sequence ends there, nothing
    /// more is computed for it, and the replica is idle again. It is idle before the sink learns of the end, too.
    ///
    /// # Errors
    /// A prompt that is empty or fills the context, an unknown token in it or in the bias, and a constraint that cannot
    /// be enforced; the sink is not called then. That the engine has ended is told to the sink.
    pub fn generate(
        self,
        prompt: Prompt,
        params: Params,
        sink: impl FnMut(Event) -> ControlFlow<()> + Send + 'static,
    ) -> Result<(), Error> {
        check(&prompt, &params, self.context_tokens, self.model.config().vocabulary)?;
        let guide = self.grammars.guide(params.constraint.as_ref())?;
        self.start(Work::Answer { prompt, params, guide }, Box::new(sink));
        Ok(())
    }

    /// Makes vectors of texts. `sink` is called on the worker thread; when it answers `Break` nothing more is computed
    /// for it, and the replica is idle again. It is idle before the sink learns of the end, too.
    ///
    /// A vector does not depend on what else is computed.
    ///
    /// # Errors
    /// A text that is empty or longer than the context, by its index; an unknown token, and a model with a pooling
    /// that is not built in; the sink is not called then. That the engine has ended is told to the sink.
    pub fn embed(
        self,
        texts: Vec<Vec<u32>>,
        sink: impl FnMut(Event) -> ControlFlow<()> + Send + 'static,
    ) -> Result<(), Error> {
        let config = self.model.config();
        embedding::check(&texts, config.pooling, self.context_tokens, config.vocabulary)?;
        self.start(Work::Embed(texts), Box::new(sink));
        Ok(())
    }

    fn start(self, work: Work, sink: Sink) {
        let messages = self.messages.clone();
        let job = Job { work, sink, lease: self };
        if let Err(SendError(Message::Start(job))) = messages.send(Message::Start(Box::new(job))) {
            job.refuse(Error::Closed);
        }
    }
}
