//! Advisory locks on files, with a bounded wait. Invariant: a lock that was taken is on the file that has the name now,
//! not on one that was replaced while this process waited. Knows nothing of what a lock protects.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

const SHORTEST_PAUSE: Duration = Duration::from_micros(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// Why a lock was not taken.
#[derive(Debug)]
pub(crate) enum NotTaken {
    /// Others held it for the whole time.
    Busy,
    /// The file could not be opened or locked at all.
    Failed(io::Error),
}

impl From<io::Error> for NotTaken {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// A lock that is held. It is given back by name, since a child that was just started may have the file open for a
/// moment longer.
#[derive(Debug)]
pub(crate) struct Locked(File);

impl Locked {
    /// Locks a file that nobody else can have locked.
    pub(crate) fn alone(file: File) -> io::Result<Self> {
        file.try_lock()?;
        Ok(Self(file))
    }

    /// Says whether the locked file is still the one of that name.
    pub(crate) fn is_in_place(&self, path: &Path) -> bool {
        is_in_place(&self.0, path)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if let Err(error) = self.0.unlock() {
            log::debug!("a lock ends only with its file: {error}");
        }
    }
}

/// Takes the file's exclusive lock.
pub(crate) fn exclusive(path: &Path, limit: Duration) -> Result<Locked, NotTaken> {
    take(path, limit, File::try_lock)
}

/// Says whether some process holds the file's exclusive lock. The file must not be one that is locked only later in
/// its life.
pub(crate) fn is_held(path: &Path) -> io::Result<bool> {
    let file = without_following(OpenOptions::new().read(true)).open(path)?;
    match file.try_lock_shared() {
        Ok(()) => {
            drop(Locked(file));
            Ok(false)
        }
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Makes an open refuse symbolic links and never wait for the other end of a pipe.
pub(crate) fn without_following(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;

        use rustix::fs::OFlags;

        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        options.custom_flags(flags.bits().cast_signed());
    }
    options
}

fn take(
    path: &Path,
    limit: Duration,
    try_lock: fn(&File) -> Result<(), TryLockError>,
) -> Result<Locked, NotTaken> {
    let begun = Instant::now();
    let mut next_pause = SHORTEST_PAUSE;
    loop {
        // Opened anew each time: two threads that share one open file would both be given its lock.
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = without_following(&mut options).open(path)?;
        match try_lock(&file) {
            Ok(()) => {
                let locked = Locked(file);
                if locked.is_in_place(path) {
                    return Ok(locked);
                }
            }
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(NotTaken::Failed(error)),
        }
        let left = limit.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return Err(NotTaken::Busy);
        }
        pause(next_pause.min(left));
        next_pause = (next_pause * 2).min(LONGEST_PAUSE);
    }
}

/// Gives the processor away for a while: no system that we run on tells a waiter with a deadline when a file lock is
/// given back. Parking the thread instead could swallow a wake-up that was meant for somebody else's wait.
fn pause(length: Duration) {
    let (nothing, never) = (Mutex::new(()), Condvar::new());
    let guard = nothing.lock().unwrap_or_else(PoisonError::into_inner);
    drop(never.wait_timeout(guard, length));
}

/// Says whether the open file is still the one of that name.
fn is_in_place(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(open), Ok(named)) => is_same(&open, &named),
        _ => false,
    }
}

#[cfg(unix)]
fn is_same(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;

    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Where names of open files can't be removed, a file that has the name is the one that was opened.
#[cfg(not(unix))]
fn is_same(_: &fs::Metadata, _: &fs::Metadata) -> bool {
    true
}
