//! The file with measurements. Invariant: it is replaced whole, so it is read whole or not at all, and two processes
//! that change it at once both have their say.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use super::{Entry, Error};
use crate::machine::lock::{self, NotTaken, without_following};
use crate::machine::{make_closed_directory, seal};

/// The most entries that are kept.
pub(super) const MOST_ENTRIES: usize = 512;

const FILE: &str = "model-memory.history";
const LOCK: &str = "model-memory.lock";
const LARGEST: usize = 1 << 20;

/// Returns the entries, none where there is no file; the error says what is wrong with it.
pub(super) fn read(root: &Path) -> Result<Vec<Entry>, String> {
    let path = root.join(FILE);
    let said = |reason: &str| format!("{} is not used: {reason}", path.display());
    let bytes = match bytes(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(said(&error.to_string())),
    };
    let line = seal::open(&bytes).ok_or_else(|| said("it is torn or was changed"))?;
    serde_json::from_str(line).map_err(|error| said(&error.to_string()))
}

/// Changes the entries as they are in the file now, and returns them. What can't be read is replaced.
pub(super) fn change(
    root: &Path,
    limit: Duration,
    change: impl FnOnce(&mut Vec<Entry>),
) -> Result<Vec<Entry>, Error> {
    make_closed_directory(root).map_err(|source| io_error(root, source))?;
    let path = root.join(LOCK);
    let locked = lock::exclusive(&path, limit);
    let _locked = locked.map_err(|error| match error {
        NotTaken::Busy => Error::Busy { path, limit },
        NotTaken::Failed(source) => Error::Io { path, source },
    })?;
    let mut entries = read(root).unwrap_or_else(|reason| {
        log::warn!("{reason}");
        Vec::new()
    });
    change(&mut entries);
    let mut text = seal::seal(&serde_json::to_string(&entries)?);
    while text.len() > LARGEST {
        // Keys are short words; whoever gives long ones must do with fewer of them.
        entries.drain(..entries.len().div_ceil(2));
        text = seal::seal(&serde_json::to_string(&entries)?);
    }
    write(root, &text)?;
    Ok(entries)
}

fn write(root: &Path, text: &str) -> Result<(), Error> {
    let path = root.join(FILE);
    let temporary = path.with_extension("tmp");
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_data()
    });
    let replaced = written.and_then(|()| fs::rename(&temporary, &path));
    replaced.map_err(|source| io_error(&path, source))
}

fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    let file = without_following(OpenOptions::new().read(true)).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(LARGEST as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > LARGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is too large"));
    }
    Ok(bytes)
}

fn io_error(path: &Path, source: io::Error) -> Error {
    Error::Io { path: path.to_owned(), source }
}
