//! What earlier loads really took: a bounded file of predictions and measurements, by model, engine and settings.
//!
//! Invariant: no estimate that went through [`History::correct`] is below what was seen under the same key. The other
//! way round is narrower: a measurement lowers an estimate only where the estimate was an upper bound of an engine whose
//! inside is not known, was seen often enough, and keeps a margin. What our own layout says stays, since a load that did
//! not touch all of its memory proves nothing.

mod store;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::sizing::Evidence;
use crate::units::Bytes;

/// How often a model must have been measured before an upper bound is lowered.
const SEEN_OFTEN: u64 = 3;

/// The part of what was seen that is added to it where it lowers an upper bound.
const MARGIN: u64 = 20;

/// Why measurements could not be kept.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Other processes held the file for all of the time that was allowed.
    #[error("{} was held by other processes for {} ms", path.display(), limit.as_millis())]
    Busy {
        /// The file whose lock it is.
        path: PathBuf,
        /// How long was waited.
        limit: Duration,
    },
    /// The measurements could not be put into words.
    #[error("measurements could not be written")]
    Encode(#[from] serde_json::Error),
    /// A file could not be used.
    #[error("{} could not be used", path.display())]
    Io {
        /// Which one.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// Loads that need the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Key {
    /// Hash of the model's file or of its header: a name may mean another file tomorrow.
    pub model: String,
    /// Name and version of the engine.
    pub engine: String,
    /// Everything else that the size depends on, such as context, type of the KV cache and replicas.
    pub settings: String,
}

/// What was seen under one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// What needed it.
    pub key: Key,
    /// What was predicted for the last load.
    pub predicted: Bytes,
    /// What the last load took.
    pub last: Bytes,
    /// The most that any load took.
    pub most: Bytes,
    /// How often it was measured.
    pub times: u64,
    /// When it was measured last, in Unix milliseconds.
    pub at_ms: u64,
}

/// One load, as it was predicted and as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measurement {
    /// What needed it.
    pub key: Key,
    /// What was predicted, before any correction.
    pub predicted: Bytes,
    /// What it took at its peak.
    pub measured: Bytes,
    /// When it was measured, in Unix milliseconds.
    pub at_ms: u64,
}

/// An estimate after what is known from earlier loads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Correction {
    /// What to reckon with.
    pub bytes: Bytes,
    /// What it was and what was seen, in words; `None` where nothing was seen.
    pub note: Option<String>,
}

/// What is known from earlier loads: a copy in memory of the file at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// The least recently measured first.
    entries: Vec<Entry>,
}

impl History {
    /// Reads what is known from a state root, and returns a warning where it can't be read: then nothing is known.
    pub fn load(root: &Path) -> (Self, Option<String>) {
        match store::read(root) {
            Ok(entries) => (Self { entries }, None),
            Err(reason) => (Self::default(), Some(reason)),
        }
    }

    /// Adds a measurement to the file, keeping what other processes have added, and takes the result over.
    ///
    /// Waits at most `limit` for the file. What could not be saved is still known to this process.
    pub fn observe(
        &mut self,
        root: &Path,
        measurement: &Measurement,
        limit: Duration,
    ) -> Result<(), Error> {
        let saved = store::change(root, limit, |entries| note(entries, measurement));
        match saved {
            Ok(entries) => {
                self.entries = entries;
                Ok(())
            }
            Err(error) => {
                note(&mut self.entries, measurement);
                Err(error)
            }
        }
    }

    /// Returns what was seen, the most recently measured first.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().rev()
    }

    /// Corrects an estimate by what was seen under its key.
    pub fn correct(&self, predicted: Bytes, evidence: Evidence, key: &Key) -> Correction {
        let Some(entry) = self.entries.iter().find(|entry| entry.key == *key) else {
            return Correction { bytes: predicted, note: None };
        };
        let with_margin = entry.most + Bytes::new(entry.most.get() / MARGIN);
        let may_lower = is_upper_bound(evidence) && entry.times >= SEEN_OFTEN;
        let bytes = if may_lower {
            with_margin.min(predicted).max(entry.most)
        } else {
            predicted.max(entry.most)
        };
        let Entry { last, most, .. } = entry;
        let note = if most > last {
            format!("estimate {predicted}, last measured {last}, at most {most}")
        } else {
            format!("estimate {predicted}, last measured {last}")
        };
        Correction { bytes, note: Some(note) }
    }
}

/// Our own layout is exact and what was observed is no guess; all else is meant to be too much.
fn is_upper_bound(evidence: Evidence) -> bool {
    match evidence {
        Evidence::FileSystemMeasured | Evidence::CatalogExact | Evidence::Heuristic => true,
        Evidence::Header | Evidence::Observed => false,
    }
}

fn note(entries: &mut Vec<Entry>, measurement: &Measurement) {
    let Measurement { key, predicted, measured, at_ms } = measurement;
    let known = entries.iter().position(|entry| entry.key == *key);
    let known = known.map(|place| entries.remove(place));
    entries.push(Entry {
        key: key.clone(),
        predicted: *predicted,
        last: *measured,
        most: known.as_ref().map_or(*measured, |known| known.most.max(*measured)),
        times: known.map_or(0, |known| known.times).saturating_add(1),
        at_ms: *at_ms,
    });
    let surplus = entries.len().saturating_sub(store::MOST_ENTRIES);
    entries.drain(..surplus);
}
