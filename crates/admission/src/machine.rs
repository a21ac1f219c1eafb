//! What the processes of one machine hold together: a directory with a lease for each, and one short lock.
//!
//! Invariant: a decision that was made under [`Machine::locked`] saw everything that any live process had been
//! promised before, and its outcome is told before the next one is made. What a process held is free the moment the
//! process is gone, however it went. Knows nothing of policies, models or free memory.

mod lease;
pub(crate) mod lock;
pub mod record;
pub(crate) mod seal;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use self::lease::Lease;
use self::lock::{Locked, NotTaken};
use self::record::{Holdings, LARGEST_RECORD, Process};
use crate::probe::Roots;
use crate::probe::process::process_memory_of;
use crate::units::Bytes;

const LOCK: &str = "machine.lock";
const LEAVING_LIMIT: Duration = Duration::from_millis(100);

/// Why the machine's other processes can't be reckoned with.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The path is not a directory.
    #[error("{} is not a directory; remove it, or choose another with XDG_RUNTIME_DIR", .0.display())]
    NotADirectory(PathBuf),
    /// The directory belongs to somebody else, who could write anything into it.
    #[error("{} belongs to user {owner}", path.display())]
    NotOurs {
        /// The directory.
        path: PathBuf,
        /// Its owner's user id.
        owner: u32,
    },
    /// Other processes held the lock for all of the time that was allowed.
    #[error("{} was held by other processes for {} ms", path.display(), limit.as_millis())]
    Busy {
        /// The file whose lock it is.
        path: PathBuf,
        /// How long was waited.
        limit: Duration,
    },
    /// The record would be too large.
    #[error("a record of {bytes} bytes is larger than {LARGEST_RECORD}")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// The record could not be put into words.
    #[error("a record could not be written")]
    Encode(#[from] serde_json::Error),
    /// A file or the directory could not be used.
    #[error("{} could not be used", path.display())]
    Io {
        /// Which one.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// How another process's charge is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// From what it said itself.
    Record,
    /// From the larger of its resident size and what it said last, because its record can't be read now.
    Estimate,
    /// Not at all: nothing fits until its record can be read again.
    Unknown,
}

/// What another live process holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// Which process; only its id is known where the record can't be read.
    pub process: Process,
    /// What it holds.
    pub holdings: Holdings,
    /// How that is known.
    pub basis: Basis,
}

/// What all other live processes hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Others {
    /// One for each lease, ordered by name.
    pub holdings: Vec<Holding>,
    /// What was odd, in words.
    pub warnings: Vec<String>,
}

impl Others {
    /// Returns all that is charged.
    pub fn charged(&self) -> Bytes {
        self.holdings.iter().map(|holding| holding.holdings.charged).sum()
    }

    /// Returns the part of it that the system's readings do not show yet, and will.
    pub fn unseen(&self) -> Bytes {
        self.holdings.iter().map(|holding| holding.holdings.unseen()).sum()
    }
}

/// This process's membership among those that share the machine. It ends when this is dropped, or with the process.
#[derive(Debug)]
pub struct Machine {
    directory: PathBuf,
    roots: Roots,
    process: Process,
    own: Mutex<Own>,
}

#[derive(Debug)]
struct Own {
    lease: Lease,
    /// What is told about this process.
    holdings: Holdings,
    /// What the others said last.
    seen: BTreeMap<String, Bytes>,
}

impl Machine {
    /// Joins the processes that share `directory`, which is made if it is missing, and holds nothing at first.
    ///
    /// `roots` is where the sizes of other processes are looked up. Waits at most `limit`. After any error the process
    /// is alone: it must do without the others' sums, and say so.
    pub fn join(
        directory: &Path,
        roots: Roots,
        process: Process,
        limit: Duration,
    ) -> Result<Self, Error> {
        prepare(directory)?;
        let _lock = lock_directory(directory, limit)?;
        let own = Own::join(directory, &process, Holdings::default())?;
        Ok(Self { directory: directory.to_owned(), roots, process, own: Mutex::new(own) })
    }

    /// Lets `decide` see what all other live processes hold, and tells them what it returns before any of them decides.
    ///
    /// Waits at most `limit` for its turn. `decide` runs while every other process waits: it must not load, read files
    /// or lock anything that is held during a load. `None` leaves what this process told before. After an error nothing
    /// new was told, so whatever `decide` admitted must not be used.
    pub fn locked<T>(
        &self,
        limit: Duration,
        decide: impl FnOnce(&Others) -> (T, Option<Holdings>),
    ) -> Result<T, Error> {
        // Somebody may have cleaned up: the directory is made again rather than each process left alone.
        prepare(&self.directory)?;
        let _lock = lock_directory(&self.directory, limit)?;
        let others = self.read_others()?;
        let (decision, holdings) = decide(&others);
        if let Some(holdings) = holdings {
            self.tell(holdings)?;
        }
        Ok(decision)
    }

    /// Tells the others what this process holds without waiting for a turn: only for what is not more than was told
    /// before, such as after an unload.
    pub fn tell(&self, holdings: Holdings) -> Result<(), Error> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.tell(&self.directory, &self.process, holdings)
    }

    /// Must run under the directory's lock.
    fn read_others(&self) -> Result<Others, Error> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        if !own.lease.is_in_place(&self.directory) {
            log::warn!("the lease in {} was removed and is made again", self.directory.display());
            *own = Own::join(&self.directory, &self.process, own.holdings.clone())?;
        }
        let found = lease::scan(&self.directory, Some(own.lease.id()));
        let found = found.map_err(|source| io_error(&self.directory, source))?;
        Ok(read_all(&self.directory, &self.roots, found, &mut own.seen))
    }
}

impl Drop for Machine {
    /// Leaves at once. Files that can't be removed under the lock in a moment are left to the next process that looks.
    fn drop(&mut self) {
        if let Ok(_lock) = lock_directory(&self.directory, LEAVING_LIMIT) {
            let own = self.own.get_mut().unwrap_or_else(PoisonError::into_inner);
            if own.lease.is_in_place(&self.directory) {
                lease::remove_all(&self.directory, own.lease.id());
            }
        }
    }
}

impl Own {
    /// Must run under the directory's lock.
    fn join(directory: &Path, process: &Process, holdings: Holdings) -> Result<Self, Error> {
        let lease = Lease::create(directory, process.pid);
        let lease = lease.map_err(|source| io_error(directory, source))?;
        let mut own = Self { lease, holdings: Holdings::default(), seen: BTreeMap::new() };
        own.tell(directory, process, holdings)?;
        Ok(own)
    }

    fn tell(
        &mut self,
        directory: &Path,
        process: &Process,
        holdings: Holdings,
    ) -> Result<(), Error> {
        let text = record::encode(process, &holdings)?;
        if text.len() > LARGEST_RECORD {
            return Err(Error::TooLarge { bytes: text.len() });
        }
        let written = self.lease.write(directory, &text);
        written.map_err(|source| io_error(directory, source))?;
        self.holdings = holdings;
        Ok(())
    }
}

/// Returns what the live processes that share `directory` hold, without joining them. A directory that is missing has
/// none.
pub fn survey(directory: &Path, roots: &Roots, limit: Duration) -> Result<Others, Error> {
    match fs::symlink_metadata(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Others::default()),
        Ok(_) | Err(_) => prepare(directory)?,
    }
    let _lock = lock_directory(directory, limit)?;
    let found = lease::scan(directory, None).map_err(|source| io_error(directory, source))?;
    Ok(read_all(directory, roots, found, &mut BTreeMap::new()))
}

fn read_all(
    directory: &Path,
    roots: &Roots,
    found: lease::Found,
    seen: &mut BTreeMap<String, Bytes>,
) -> Others {
    let mut others = Others { holdings: Vec::new(), warnings: found.warnings };
    seen.retain(|id, _| found.live.contains(id));
    for id in found.live {
        let read = lease::read_record(directory, &id).map_err(|error| error.to_string());
        let holding = match read.and_then(|bytes| record::decode(&bytes)) {
            Ok((process, holdings)) => Holding { process, holdings, basis: Basis::Record },
            Err(reason) => {
                let holding = estimate(roots, lease::pid(&id), seen.get(&id).copied());
                others.warnings.push(warning(directory, &id, &reason, &holding));
                holding
            }
        };
        if holding.basis == Basis::Record {
            seen.insert(id, holding.holdings.charged);
        }
        others.holdings.push(holding);
    }
    others
}

/// Returns what is charged for a live process whose record can't be read.
fn estimate(roots: &Roots, pid: u32, last_said: Option<Bytes>) -> Holding {
    let memory = process_memory_of(roots, pid);
    let resident = memory.as_ref().ok().map(|memory| memory.resident);
    let visible = memory.map_or(Bytes::ZERO, |memory| memory.unreclaimable());
    let (charged, basis) = match resident.max(last_said) {
        Some(charged) => (charged, Basis::Estimate),
        None => (Bytes::MAX, Basis::Unknown),
    };
    let process =
        Process { program: "unknown".to_owned(), pid, started_ms: 0, scope: String::new() };
    let holdings = Holdings { held: Vec::new(), charged, visible: visible.min(charged) };
    Holding { process, holdings, basis }
}

fn warning(directory: &Path, id: &str, reason: &str, holding: &Holding) -> String {
    let path = directory.join(format!("{id}.record"));
    let pid = holding.process.pid;
    let told = format!("what process {pid} holds can't be read from {}: {reason}", path.display());
    match holding.basis {
        Basis::Record | Basis::Estimate => {
            format!("{told}; it is charged with {}", holding.holdings.charged)
        }
        Basis::Unknown => format!(
            "{told}; its size is not known either, so nothing fits until it ends or loads again"
        ),
    }
}

fn lock_directory(directory: &Path, limit: Duration) -> Result<Locked, Error> {
    let path = directory.join(LOCK);
    lock::exclusive(&path, limit).map_err(|error| match error {
        NotTaken::Busy => Error::Busy { path, limit },
        NotTaken::Failed(source) => Error::Io { path, source },
    })
}

/// Makes the directory if it is missing, and makes sure that only this user can write into it.
fn prepare(directory: &Path) -> Result<(), Error> {
    let failed = |source| io_error(directory, source);
    let metadata = match fs::symlink_metadata(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make_closed_directory(directory).map_err(failed)?;
            fs::symlink_metadata(directory).map_err(failed)?
        }
        read => read.map_err(failed)?,
    };
    if !metadata.is_dir() {
        return Err(Error::NotADirectory(directory.to_owned()));
    }
    close_to_others(directory, &metadata)
}

/// Makes a directory, and whatever is missing above it, into which only this user can write.
#[cfg(unix)]
pub(crate) fn make_closed_directory(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;

    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

#[cfg(unix)]
fn close_to_others(directory: &Path, metadata: &fs::Metadata) -> Result<(), Error> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    let owner = metadata.uid();
    if owner != rustix::process::geteuid().as_raw() {
        return Err(Error::NotOurs { path: directory.to_owned(), owner });
    }
    if metadata.mode() & 0o077 != 0 {
        let closed = fs::set_permissions(directory, fs::Permissions::from_mode(0o700));
        closed.map_err(|source| io_error(directory, source))?;
    }
    Ok(())
}

/// Makes a directory, and whatever is missing above it.
#[cfg(not(unix))]
pub(crate) fn make_closed_directory(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)
}

#[cfg(not(unix))]
fn close_to_others(_: &Path, _: &fs::Metadata) -> Result<(), Error> {
    Ok(())
}

fn io_error(path: &Path, source: io::Error) -> Error {
    Error::Io { path: path.to_owned(), source }
}
