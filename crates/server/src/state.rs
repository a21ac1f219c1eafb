//! What the server was given when it was started, and how far it is from its end.
//!
//! Plain data without defaults: the command line has the one table of those.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use toko_admission::decision::Decision;
use toko_admission::eviction::Candidate;
use toko_admission::steward::Steward;
use toko_engine::Sampling;

use crate::catalog::{Catalog, Model};
use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::{ApiKey, Backend};

/// Everything that [`crate::serve`] needs besides a socket.
pub struct State {
    /// The models that answer, at least one; the first is the default.
    pub models: Vec<ServedModel>,
    /// Sizes and times.
    pub limits: Limits,
    /// Who may call from where.
    pub access: Access,
    /// Who knows the machine's memory.
    pub steward: Arc<Steward>,
}

/// A model that can be loaded, and the names that it answers to.
pub struct ServedModel {
    /// The name that answers carry.
    pub id: String,
    /// Further names that requests may use; `default` always means the first model, and `*` stands for all names
    /// that no model has.
    pub aliases: Vec<String>,
    /// When it was first there.
    pub created: SystemTime,
    /// What holds for a request that says nothing else.
    pub defaults: Defaults,
    /// For how long it stays when nobody uses it; `None` is until its memory is needed.
    pub keep_alive: Option<Duration>,
    /// Whether it stays although its memory is needed.
    pub is_pinned: bool,
    /// Loads it; called whenever a request wants it and it is not there.
    pub load: Load,
    /// Judges what a load would take, and loads nothing.
    pub explain: Explain,
}

/// Loads a model, for as long as that takes; is told which idle models could go for it.
pub type Load = Box<dyn Fn(&[Candidate]) -> Result<Arc<dyn Backend>, LoadError> + Send + Sync>;

/// Judges a load with other numbers than its own, where there are any.
pub type Explain = Box<
    dyn Fn(&Proposal, &[Candidate]) -> Result<Decision, Box<dyn Error + Send + Sync>> + Send + Sync,
>;

/// How somebody would like to load a model.
#[derive(Debug, Clone, Copy, Default)]
pub struct Proposal {
    /// Tokens of context of each replica.
    pub context_tokens: Option<usize>,
    /// Requests that can run at once.
    pub replicas: Option<usize>,
}

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// There is no room for it.
    #[error("{}", .0.sentence())]
    Refused(Box<Decision>),
    /// It is not in a state to be loaded.
    #[error(transparent)]
    Failed(Box<dyn Error + Send + Sync>),
}

/// What holds for a request that says nothing else.
pub struct Defaults {
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Most tokens of an answer; `None` runs to the end of the context.
    pub max_tokens: Option<usize>,
}

/// Sizes and times.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Largest request body.
    pub body_bytes: usize,
    /// Longest silence on an event stream before a comment is sent; proxies cut after a minute.
    pub ping_every: Duration,
    /// Longest time for the head of a request, and longest silence in the middle of its body.
    pub client_silence: Duration,
    /// How long running answers may go on after the shutdown began.
    pub drain: Duration,
    /// How long clients have to take the last bytes after their answers were cut.
    pub cut_grace: Duration,
}

/// Who may call besides programs and pages of this machine.
#[derive(Debug, Clone)]
pub struct Access {
    /// Origins of web pages that may read answers, such as `https://chat.example.org`; `*` allows all.
    pub origins: Vec<String>,
    /// Host names, without port, that are accepted beside loopback ones while bound to a loopback address.
    pub hosts: Vec<String>,
    /// Keys of which every request has to show one, except those about health; without any, all may ask.
    pub keys: Vec<ApiKey>,
}

/// How far the server is from its end; phases are passed in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Requests are accepted.
    Open,
    /// Only answers that run already go on.
    Draining,
    /// They end now.
    Cut,
}

/// What the routes share.
pub(crate) struct Shared {
    pub(crate) catalog: Catalog,
    pub(crate) limits: Limits,
    pub(crate) metrics: Metrics,
    pub(crate) steward: Arc<Steward>,
    pub(crate) phase: watch::Receiver<Phase>,
}

impl Shared {
    /// Returns the model that a request names, loaded.
    ///
    /// Takes as long as a load does, so it is not called on a thread that serves connections.
    pub(crate) fn model(&self, asked: &str) -> Result<Arc<Model>, ApiError> {
        Model::of(self.catalog.find(asked)?, self)
    }

    /// Returns the model that a request means, which need not name one.
    pub(crate) fn model_or_default(&self, asked: Option<&str>) -> Result<Arc<Model>, ApiError> {
        let entry =
            asked.map_or_else(|| Ok(self.catalog.first()), |asked| self.catalog.find(asked))?;
        Model::of(entry, self)
    }

    /// Says whether new work is accepted.
    pub(crate) fn is_open(&self) -> bool {
        *self.phase.borrow() == Phase::Open
    }

    /// Completes when running answers must end.
    pub(crate) fn cut(&self) -> impl Future<Output = ()> + Send + 'static {
        reached(self.phase.clone(), Phase::Cut)
    }
}

/// Completes when the phase, or a later one, is reached; a server that is gone has passed all of them.
pub(crate) async fn reached(mut watched: watch::Receiver<Phase>, phase: Phase) {
    drop(watched.wait_for(|now| *now >= phase).await);
}
