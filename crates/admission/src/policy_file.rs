//! The policy on disk: what it says, how it is replaced, and what holds when it says nothing.
//!
//! Invariant: a file that cannot be understood never gives more than what was in force before it broke.
//! Knows nothing of who chose the policy.

pub(crate) mod document;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::policy::{self, Policy};
use document::Content;

/// Name of the policy's file in the state root.
pub const FILE_NAME: &str = "model-resource-policy.json";

/// Name of the copy that is kept of the last policy that was understood.
pub const LAST_GOOD_NAME: &str = "model-resource-policy.last-good.json";

/// Says why a policy could not be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What should be kept is no policy.
    #[error(transparent)]
    Policy(#[from] policy::Error),
    /// The system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was being done, as a verb.
        action: &'static str,
        /// To which file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Why a policy holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The file says so.
    Loaded,
    /// There is no file.
    MissingDefault,
    /// The file cannot be understood, and nothing better is known.
    CorruptDefault,
    /// The file cannot be understood; the last policy that was understood stays in force.
    LastGood,
}

/// A policy and why it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loaded {
    /// The policy in force.
    pub policy: Policy,
    /// Why it holds.
    pub source: Source,
    /// What the user has to be told.
    pub warning: Option<String>,
}

/// Reads the policy of a state root, and changes nothing.
///
/// # Errors
/// Where the system refuses to say what is there. A file that cannot be understood is no error.
pub fn load(root: &Path) -> Result<Loaded, Error> {
    let path = root.join(FILE_NAME);
    match read(&path) {
        Ok(Reading::Understood(loaded)) => Ok(loaded),
        Ok(Reading::Corrupt(reason)) => Ok(fall_back(&path, &reason, last_good(root))),
        Err(source) => Err(Error::Io { action: "read", path, source }),
    }
}

/// Replaces the policy of a state root, and keeps a copy of it.
///
/// Nothing is touched where the policy is none. An error after the file was replaced (the copy could not be kept, or
/// the folder not be made to last) leaves the new policy in place.
pub fn save(root: &Path, policy: &Policy) -> Result<(), Error> {
    policy.validate()?;
    let _saving = saving();
    document::prepare(root).map_err(|source| Error::Io {
        action: "prepare",
        path: root.to_owned(),
        source,
    })?;
    // A smaller limit is copied first and a larger one last: whenever the process dies, the copy gives no more than
    // the file.
    let names = match last_good(root) {
        Some(kept) if policy.is_within(&kept) => [LAST_GOOD_NAME, FILE_NAME],
        _ => [FILE_NAME, LAST_GOOD_NAME],
    };
    names.into_iter().try_for_each(|name| {
        document::replace(root, name, &to_document(policy)).map_err(|source| Error::Io {
            action: "save",
            path: root.join(name),
            source,
        })
    })
}

/// A policy that is read again whenever its file has changed.
///
/// Asking costs one look at the file's metadata, so ask before a lock is taken, not under it.
#[derive(Debug)]
pub struct WatchedPolicy {
    root: PathBuf,
    seen: Mutex<Option<Seen>>,
}

#[derive(Debug, Clone)]
struct Seen {
    stamp: Stamp,
    loaded: Loaded,
    /// Whether the policy in force is also the copy on disk, or was until somebody replaced it.
    is_copied: bool,
}

impl WatchedPolicy {
    /// Watches the policy of a state root; reads nothing yet.
    pub fn new(root: PathBuf) -> Self {
        Self { root, seen: Mutex::new(None) }
    }

    /// Returns the policy in force now.
    ///
    /// While the file cannot be read or understood, the policy that was in force stays so. What was understood is
    /// copied for the next process, which can only be told by that copy.
    pub fn current(&self) -> Loaded {
        let stamp = Stamp::of(&self.root.join(FILE_NAME));
        let before = self.seen().clone();
        if let Some(seen) = &before
            && seen.stamp == stamp
            && stamp != Stamp::Unknown
        {
            return seen.loaded.clone();
        }
        let seen = self.look(stamp, before);
        let loaded = seen.loaded.clone();
        *self.seen() = Some(seen);
        loaded
    }

    fn look(&self, stamp: Stamp, before: Option<Seen>) -> Seen {
        let path = self.root.join(FILE_NAME);
        let reason = match read(&path) {
            Ok(Reading::Understood(loaded)) => {
                let is_copied = self.remember(&stamp, &loaded);
                return Seen { stamp, loaded, is_copied };
            }
            Ok(Reading::Corrupt(reason)) => reason,
            Err(error) => error.to_string(),
        };
        let known = before.filter(|seen| seen.loaded.source != Source::CorruptDefault);
        // A copy that differs from what this process knows was made later, by another one.
        let is_copied = known.as_ref().is_none_or(|seen| seen.is_copied);
        let copy = if is_copied { last_good(&self.root) } else { None };
        let policy = copy.or_else(|| known.map(|seen| seen.loaded.policy));
        let loaded = fall_back(&path, &reason, policy);
        log::warn!("{}", loaded.warning.as_deref().unwrap_or_default());
        Seen { stamp, loaded, is_copied }
    }

    /// Keeps a copy of what was understood, so that an edit by hand is what holds when the file breaks later.
    fn remember(&self, stamp: &Stamp, loaded: &Loaded) -> bool {
        let _saving = saving();
        if Stamp::of(&self.root.join(FILE_NAME)) != *stamp {
            // It was replaced meanwhile, and is looked at again the next time.
            return false;
        }
        let kept = match loaded.source {
            Source::MissingDefault => document::remove(&self.root, LAST_GOOD_NAME),
            _ if last_good(&self.root) == Some(loaded.policy) => Ok(()),
            _ => document::replace(&self.root, LAST_GOOD_NAME, &to_document(&loaded.policy)),
        };
        if let Err(error) = &kept {
            log::debug!("cannot keep a copy of the policy in {}: {error}", self.root.display());
        }
        kept.is_ok()
    }

    fn seen(&self) -> MutexGuard<'_, Option<Seen>> {
        // It is only ever replaced whole.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What tells one state of a file from another without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Stamp {
    Missing,
    Present { device: u64, inode: u64, bytes: u64, modified: (i64, i64), changed: (i64, i64) },
    Unknown,
}

impl Stamp {
    fn of(path: &Path) -> Self {
        match fs::symlink_metadata(path) {
            Ok(found) => Self::Present {
                device: found.dev(),
                inode: found.ino(),
                bytes: found.len(),
                modified: (found.mtime(), found.mtime_nsec()),
                changed: (found.ctime(), found.ctime_nsec()),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::Missing,
            Err(_) => Self::Unknown,
        }
    }
}

/// What a file says, where the system lets it be read.
enum Reading {
    Understood(Loaded),
    Corrupt(String),
}

fn read(path: &Path) -> io::Result<Reading> {
    let understood = |policy, source| Reading::Understood(Loaded { policy, source, warning: None });
    Ok(match document::read(path)? {
        Content::Missing => understood(Policy::everyday(), Source::MissingDefault),
        Content::Unfit(reason) => Reading::Corrupt(reason),
        Content::Bytes(bytes) => match parse(&bytes) {
            Ok(policy) => understood(policy, Source::Loaded),
            Err(reason) => Reading::Corrupt(reason),
        },
    })
}

fn fall_back(path: &Path, reason: &str, last_good: Option<Policy>) -> Loaded {
    let source = if last_good.is_some() { Source::LastGood } else { Source::CorruptDefault };
    let policy = last_good.unwrap_or_else(Policy::everyday);
    let warning =
        format!("{} could not be loaded: {reason}; {policy} holds instead", path.display());
    Loaded { policy, source, warning: Some(warning) }
}

/// Returns the policy that was last understood, where a sound copy of it is kept.
fn last_good(root: &Path) -> Option<Policy> {
    match document::read(&root.join(LAST_GOOD_NAME)) {
        Ok(Content::Bytes(bytes)) => parse(&bytes).ok(),
        _ => None,
    }
}

fn parse(bytes: &[u8]) -> Result<Policy, String> {
    // A record may also be written as an array by position, which nobody who means a policy does.
    if !bytes.trim_ascii_start().starts_with(b"{") {
        return Err("it is no JSON object".to_owned());
    }
    let policy: Policy = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    policy.validate().map_err(|error| error.to_string())?;
    Ok(policy)
}

fn to_document(policy: &Policy) -> Vec<u8> {
    serde_json::to_vec_pretty(policy).expect("a policy has no part that JSON lacks")
}

/// Keeps the others of this process from saving.
fn saving() -> MutexGuard<'static, ()> {
    static SAVING: Mutex<()> = Mutex::new(());
    // It guards no value that a panic could have spoilt.
    SAVING.lock().unwrap_or_else(PoisonError::into_inner)
}
