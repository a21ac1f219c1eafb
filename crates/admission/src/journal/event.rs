//! What is written down. One event is one line of JSON; a kind that a newer version wrote is read as unknown.

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// The most characters of a reason that are kept.
const LONGEST_REASON: usize = 1024;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When, in Unix milliseconds.
    pub at_ms: u64,
    /// In which run of a program.
    pub run: String,
    /// What it was.
    #[serde(flatten)]
    pub what: What,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum What {
    /// A program began.
    RunStarted {
        /// Its name.
        program: String,
        /// Its process id, for people.
        pid: u32,
    },
    /// A program ended of its own accord; what it was loading was given up on purpose.
    RunEnded,
    /// A load was admitted and began.
    LoadStarted {
        /// The model.
        model: String,
        /// All that was charged for it.
        bytes: Bytes,
    },
    /// A load was done.
    Loaded {
        /// The model.
        model: String,
        /// What it really took.
        bytes: Bytes,
    },
    /// A load failed, and the program went on.
    LoadFailed {
        /// The model.
        model: String,
        /// Why.
        reason: String,
    },
    /// A load was refused.
    Refused {
        /// The model.
        model: String,
        /// What it would have needed.
        bytes: Bytes,
        /// Why.
        reason: String,
    },
    /// A load was admitted against the decision.
    Forced {
        /// The model.
        model: String,
        /// All that was charged for it.
        bytes: Bytes,
        /// What the decision had been.
        reason: String,
    },
    /// A model was unloaded on demand.
    Unloaded {
        /// The model.
        model: String,
        /// What became free.
        bytes: Bytes,
    },
    /// A model was unloaded to make room, or because it was idle for long.
    Evicted {
        /// The model.
        model: String,
        /// What became free.
        bytes: Bytes,
        /// What for.
        reason: String,
    },
    /// The policy changed.
    PolicyChanged {
        /// From what to what.
        detail: String,
    },
    /// The policy was chosen automatically.
    Concierge {
        /// What was chosen, why, and how to undo it.
        detail: String,
    },
    /// The user let a model be loaded again.
    Cleared {
        /// The model.
        model: String,
    },
    /// The user was told how a run ended.
    CrashReported {
        /// The run that ended.
        ended: String,
    },
    /// Something that this version does not know.
    #[serde(other)]
    Unknown,
}

impl What {
    /// Returns the model that it is about.
    pub fn model(&self) -> Option<&str> {
        match self {
            Self::LoadStarted { model, .. }
            | Self::Loaded { model, .. }
            | Self::LoadFailed { model, .. }
            | Self::Refused { model, .. }
            | Self::Forced { model, .. }
            | Self::Unloaded { model, .. }
            | Self::Evicted { model, .. }
            | Self::Cleared { model } => Some(model),
            Self::RunStarted { .. }
            | Self::RunEnded
            | Self::PolicyChanged { .. }
            | Self::Concierge { .. }
            | Self::CrashReported { .. }
            | Self::Unknown => None,
        }
    }

    /// Cuts a long reason off.
    pub(super) fn shorten(&mut self) {
        let (Self::LoadFailed { reason, .. }
        | Self::Refused { reason, .. }
        | Self::Forced { reason, .. }
        | Self::Evicted { reason, .. }
        | Self::PolicyChanged { detail: reason }
        | Self::Concierge { detail: reason }) = self
        else {
            return;
        };
        if let Some((end, _)) = reason.char_indices().nth(LONGEST_REASON) {
            reason.truncate(end);
            reason.push('…');
        }
    }
}
