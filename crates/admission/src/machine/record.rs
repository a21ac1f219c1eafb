//! What one process tells the others about what it holds. Invariant: a record is read whole or not at all.

use serde::{Deserialize, Serialize};

use super::seal;
use crate::units::Bytes;

/// The largest record that is written or read.
pub(super) const LARGEST_RECORD: usize = 1 << 20;

const FORMAT: u32 = 1;

/// Which process holds something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// The program's name, for people.
    pub program: String,
    /// The process id, for people: ids mean nothing in another namespace.
    pub pid: u32,
    /// When the process began, in Unix milliseconds.
    pub started_ms: u64,
    /// The key of its state root.
    pub scope: String,
}

/// How far a held model has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Admitted, and not begun.
    Reserved,
    /// Being read into memory.
    Loading,
    /// In memory.
    Resident,
    /// On its way out, and still in memory.
    Draining,
    /// Should have been gone by now.
    Lost,
}

/// A model that a process holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The model's id.
    pub model: String,
    /// All that is charged for it.
    pub bytes: Bytes,
    /// How far it has come.
    pub state: State,
    /// When it came there, in Unix milliseconds.
    pub since_ms: u64,
    /// When it was last used, in Unix milliseconds.
    pub used_ms: u64,
    /// Whether it must not be unloaded to make room.
    pub is_pinned: bool,
}

/// What a process holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holdings {
    /// The models.
    pub held: Vec<Held>,
    /// All that is charged, whether or not it belongs to a model.
    pub charged: Bytes,
    /// The part of it that the system's readings already show as used. Weights that are mapped from a file never are.
    pub visible: Bytes,
}

impl Holdings {
    /// Returns what the system's readings do not show yet, and will.
    pub fn unseen(&self) -> Bytes {
        self.charged.left_after(self.visible)
    }
}

#[derive(Serialize, Deserialize)]
struct Record<'a> {
    format: u32,
    process: std::borrow::Cow<'a, Process>,
    holdings: std::borrow::Cow<'a, Holdings>,
}

/// Returns a record as it is written.
pub(super) fn encode(process: &Process, holdings: &Holdings) -> Result<String, serde_json::Error> {
    use std::borrow::Cow::Borrowed;

    let record =
        Record { format: FORMAT, process: Borrowed(process), holdings: Borrowed(holdings) };
    Ok(seal::seal(&serde_json::to_string(&record)?))
}

/// Reads a record; the error says what is wrong with it.
pub(super) fn decode(text: &[u8]) -> Result<(Process, Holdings), String> {
    let line = seal::open(text).ok_or("it is torn or was changed")?;
    let record: Record<'_> = serde_json::from_str(line).map_err(|error| error.to_string())?;
    if record.format != FORMAT {
        return Err(format!("it has format {}, and this program knows {FORMAT}", record.format));
    }
    Ok((record.process.into_owned(), record.holdings.into_owned()))
}
