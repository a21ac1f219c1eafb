//! What was being loaded when a process ended: a bounded file of events that all programs of one state root share.
//!
//! Invariant: a load is written down before it begins, and a run that is alive keeps a file of its own locked; so a
//! load without an end, of a run without a lock, is one that ended with its process. Knows no clock and reads no
//! process table.

pub mod event;
mod file;
pub mod past;

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use self::event::{Event, What};
use self::file::Locking;
use self::past::Past;
use crate::machine::lock::{self, Locked, NotTaken};
use crate::machine::make_closed_directory;

const FILE: &str = "journal.jsonl";
const LOCK: &str = "journal.lock";
const RUNS: &str = "journal.runs";
const LONGEST_NAME: usize = 512;

/// Why something could not be written down or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The run's name is no plain word, or was used before.
    #[error("{0:?} can't name a run: it must be new, and of letters, digits and dashes")]
    Run(String),
    /// A model's name is too long to be written down.
    #[error("a name of {bytes} bytes is longer than {LONGEST_NAME}")]
    NameTooLong {
        /// Its length.
        bytes: usize,
    },
    /// Other processes held the journal for all of the time that was allowed.
    #[error("{} was held by other processes for {} ms", path.display(), limit.as_millis())]
    Busy {
        /// The file whose lock it is.
        path: PathBuf,
        /// How long was waited.
        limit: Duration,
    },
    /// An event could not be put into words.
    #[error("an event could not be written")]
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

/// This run's hand on the journal. A process that ends without [`Journal::end`] has crashed.
#[derive(Debug)]
pub struct Journal {
    root: PathBuf,
    run: String,
    limit: Duration,
    _alive: Locked,
}

impl Journal {
    /// Opens the journal in a state root, which is made if it is missing, and begins a run.
    ///
    /// `run` must be a name that no other run ever has, such as the time and the process id. Returns also what became
    /// of earlier loads; the crashes in it that were not reported are taken for reported from now on. No operation
    /// waits longer than `limit`.
    pub fn open(
        root: &Path,
        run: &str,
        program: &str,
        at_ms: u64,
        limit: Duration,
    ) -> Result<(Self, Past), Error> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if run.is_empty() || run.len() > 64 || !run.bytes().all(is_plain) {
            return Err(Error::Run(run.to_owned()));
        }
        let runs = root.join(RUNS);
        make_closed_directory(&runs).map_err(|source| io_error(&runs, source))?;
        let locked = lock_journal(root, limit)?;
        let past = read_past(root)?;
        forget_dead_runs(&runs);
        let alive = run_alive(&runs, run)?;
        drop(locked);
        let journal = Self { root: root.to_owned(), run: run.to_owned(), limit, _alive: alive };
        let pid = std::process::id();
        journal.record(at_ms, What::RunStarted { program: program.to_owned(), pid })?;
        let unreported = past.crashes.iter().filter(|crash| !crash.is_reported);
        let ended: BTreeSet<&str> = unreported.map(|crash| &*crash.run).collect();
        for ended in ended {
            journal.record(at_ms, What::CrashReported { ended: ended.to_owned() })?;
        }
        Ok((journal, past))
    }

    /// Writes an event down; that a load begins is on the disk when this returns.
    pub fn record(&self, at_ms: u64, mut what: What) -> Result<(), Error> {
        let name = what.model().unwrap_or_default();
        if name.len() > LONGEST_NAME {
            return Err(Error::NameTooLong { bytes: name.len() });
        }
        what.shorten();
        let must_last = matches!(what, What::LoadStarted { .. });
        append(&self.root, &Event { at_ms, run: self.run.clone(), what }, must_last, self.limit)
    }

    /// Ends the run in good order. Loads that were not done count as given up.
    pub fn end(self, at_ms: u64) -> Result<(), Error> {
        self.record(at_ms, What::RunEnded)?;
        // Without its file the run counts as dead, which it is, and nothing of it is left to be reported.
        let path = run_path(&self.root.join(RUNS), &self.run);
        fs::remove_file(&path).map_err(|source| io_error(&path, source))
    }
}

/// Returns all events that are still written down, the oldest first, and how many lines could not be read.
pub fn events(root: &Path) -> Result<(Vec<Event>, usize), Error> {
    let content = read(root)?;
    Ok((content.events, content.spoiled))
}

/// Returns what became of earlier loads, without beginning a run.
pub fn past(root: &Path, limit: Duration) -> Result<Past, Error> {
    if !root.join(FILE).exists() {
        return Ok(Past::default());
    }
    let _locked = lock_journal(root, limit)?;
    read_past(root)
}

/// Lets a model be loaded again that is held. Needs no run of its own.
pub fn clear(root: &Path, model: &str, at_ms: u64, limit: Duration) -> Result<(), Error> {
    let what = What::Cleared { model: model.to_owned() };
    append(root, &Event { at_ms, run: String::new(), what }, true, limit)
}

fn append(root: &Path, event: &Event, must_last: bool, limit: Duration) -> Result<(), Error> {
    let path = root.join(FILE);
    let line = serde_json::to_string(event)?;
    let (_locked, locking) = match lock_journal(root, limit) {
        Ok(locked) => (Some(locked), Locking::Locked),
        Err(Error::Busy { .. }) => (None, Locking::GivenUp),
        Err(error) => return Err(error),
    };
    let written = file::append(&path, &line, locking);
    let lasting = written.and_then(|file| if must_last { file.sync_data() } else { Ok(()) });
    lasting.map_err(|source| io_error(&path, source))
}

/// Must run under the journal's lock, so that no run is seen between the making of its file and its locking.
fn read_past(root: &Path) -> Result<Past, Error> {
    let content = read(root)?;
    let warnings = match content.spoiled {
        0 => Vec::new(),
        lines => vec![format!("{lines} lines of {} can't be read", root.join(FILE).display())],
    };
    let runs = root.join(RUNS);
    Ok(Past::of(&content.events, |run| is_alive(&runs, run), warnings))
}

fn read(root: &Path) -> Result<file::Content, Error> {
    let path = root.join(FILE);
    file::read(&path).map_err(|source| io_error(&path, source))
}

fn run_path(runs: &Path, run: &str) -> PathBuf {
    runs.join(format!("{run}.lock"))
}

fn run_alive(runs: &Path, run: &str) -> Result<Locked, Error> {
    let path = run_path(runs, run);
    let created = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
    match created.and_then(Locked::alone) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(Error::Run(run.to_owned()))
        }
        locked => locked.map_err(|source| io_error(&path, source)),
    }
}

/// A run whose file can't be looked at is taken for alive: a crash is reported for sure or not at all.
fn is_alive(runs: &Path, run: &str) -> bool {
    match lock::is_held(&run_path(runs, run)) {
        Ok(is_held) => is_held,
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

fn forget_dead_runs(runs: &Path) {
    let entries = fs::read_dir(runs).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        if path.extension().is_some_and(|extension| extension == "lock")
            && matches!(lock::is_held(&path), Ok(false))
            && let Err(error) = fs::remove_file(&path)
        {
            log::debug!("{} was not removed: {error}", path.display());
        }
    }
}

fn lock_journal(root: &Path, limit: Duration) -> Result<Locked, Error> {
    let path = root.join(LOCK);
    lock::exclusive(&path, limit).map_err(|error| match error {
        NotTaken::Busy => Error::Busy { path, limit },
        NotTaken::Failed(source) => Error::Io { path, source },
    })
}

fn io_error(path: &Path, source: io::Error) -> Error {
    Error::Io { path: path.to_owned(), source }
}
