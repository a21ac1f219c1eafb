//! The files of a machine's directory: a lease that its process keeps locked, and beside it what the process holds.
//!
//! `<pid>-<n>.lock` is created and locked once and never renamed; `<pid>-<n>.record` is replaced by renaming
//! `<pid>-<n>.tmp`. Invariant: a lease is alive exactly while its lock can't be taken. Everything here except
//! [`Lease::write`] runs under the directory's lock, so that nobody sees a lease between creation and locking.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::lock::{self, Locked};
use super::record::LARGEST_RECORD;

/// This process's place in the directory.
#[derive(Debug)]
pub(super) struct Lease {
    id: String,
    lock: Locked,
}

impl Lease {
    /// Creates a lease under a name that nobody has, and locks it.
    pub(super) fn create(directory: &Path, pid: u32) -> io::Result<Self> {
        for n in 0_u64.. {
            let id = format!("{pid}-{n}");
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true);
            match options.open(lease_path(directory, &id)) {
                Ok(file) => return Ok(Self { id, lock: Locked::alone(file)? }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Returns its name in the directory.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Says whether others still find it.
    pub(super) fn is_in_place(&self, directory: &Path) -> bool {
        self.lock.is_in_place(&lease_path(directory, &self.id))
    }

    /// Replaces what the process tells the others.
    pub(super) fn write(&self, directory: &Path, record: &str) -> io::Result<()> {
        let temporary = directory.join(format!("{}.tmp", self.id));
        let written = File::create(&temporary)
            .and_then(|mut file| file.write_all(record.as_bytes()))
            .and_then(|()| fs::rename(&temporary, record_path(directory, &self.id)));
        if written.is_err() {
            remove(&temporary);
        }
        written
    }
}

/// What a directory holds besides this process's own lease.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Leases whose lock is held.
    pub(super) live: BTreeSet<String>,
    /// What was odd, in words.
    pub(super) warnings: Vec<String>,
}

/// Lists the live leases other than `own`, and removes what the dead have left.
pub(super) fn scan(directory: &Path, own: Option<&str>) -> io::Result<Found> {
    let mut found = Found::default();
    let mut rest = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let Some((id, kind)) = parts(&path) else { continue };
        if own == Some(&id) {
            continue;
        }
        if kind != "lock" {
            rest.push((id, path));
            continue;
        }
        match lock::is_held(&path) {
            Ok(true) => {
                found.live.insert(id);
            }
            Ok(false) => rest.push((id, path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let path = path.display();
                found.warnings.push(format!("{path} is taken for alive: {error}"));
                found.live.insert(id);
            }
        }
    }
    for (id, path) in rest {
        if !found.live.contains(&id) {
            remove(&path);
        }
    }
    Ok(found)
}

/// Removes all files of a lease.
pub(super) fn remove_all(directory: &Path, id: &str) {
    for kind in ["tmp", "record", "lock"] {
        remove(&directory.join(format!("{id}.{kind}")));
    }
}

/// Returns the bytes of a lease's record, at most one more than a record may have.
pub(super) fn read_record(directory: &Path, id: &str) -> io::Result<Vec<u8>> {
    let path = record_path(directory, id);
    let file = lock::without_following(OpenOptions::new().read(true)).open(path)?;
    let mut bytes = Vec::new();
    file.take(LARGEST_RECORD as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the process id in a lease's name.
pub(super) fn pid(id: &str) -> u32 {
    id.split_once('-').and_then(|(pid, _)| pid.parse().ok()).unwrap_or(0)
}

fn lease_path(directory: &Path, id: &str) -> PathBuf {
    directory.join(format!("{id}.lock"))
}

fn record_path(directory: &Path, id: &str) -> PathBuf {
    directory.join(format!("{id}.record"))
}

/// Splits a name into a lease's id and what the file is; `None` for files that belong to no lease.
fn parts(path: &Path) -> Option<(String, &str)> {
    let kind = path.extension()?.to_str()?;
    let id = path.file_stem()?.to_str()?;
    let (pid, n) = id.split_once('-')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_ours = is_number(pid) && is_number(n) && ["lock", "record", "tmp"].contains(&kind);
    is_ours.then(|| (id.to_owned(), kind))
}

/// Removes a file that nobody needs; one that stays is tried again by whoever looks next.
fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            log::debug!("{} was not removed: {error}", path.display());
        }
        Ok(()) | Err(_) => {}
    }
}
