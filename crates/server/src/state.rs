//! What the server was given when it was started, and how far it is from its end.
//!
//! Plain data without defaults: the command line has the one table of those.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use toko_engine::Sampling;

use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::{ApiKey, Backend};

/// Everything that [`crate::serve`] needs besides a socket.
pub struct State {
    /// The model that answers.
    pub model: Model,
    /// What holds for a request that says nothing else.
    pub defaults: Defaults,
    /// Sizes and times.
    pub limits: Limits,
    /// Who may call from where.
    pub access: Access,
}

/// A loaded model and the names that it answers to.
pub struct Model {
    /// The name that answers carry.
    pub id: String,
    /// Further names that requests may use; `default` always works.
    pub aliases: Vec<String>,
    /// When it was loaded.
    pub created: SystemTime,
    /// What runs it.
    pub backend: Arc<dyn Backend>,
}

impl Model {
    /// Refuses a name that means another model than this one.
    pub(crate) fn check_named(&self, asked: &str) -> Result<(), ApiError> {
        let is_ours = asked == self.id
            || asked == "default"
            || self.aliases.iter().any(|alias| alias == asked);
        if is_ours {
            Ok(())
        } else {
            Err(ApiError::UnknownModel { asked: asked.to_owned(), loaded: self.id.clone() })
        }
    }
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
    pub(crate) state: State,
    pub(crate) metrics: Metrics,
    pub(crate) phase: watch::Receiver<Phase>,
}

impl Shared {
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
