//! The journal's file: lines of JSON. Invariant: it never grows beyond its limit, and a line that was torn spoils no
//! other. Everything that writes runs under the journal's lock.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use super::event::Event;
use super::past;
use crate::machine::lock::without_following;

/// The most bytes of the whole file.
pub(super) const LARGEST: u64 = 1 << 20;

/// What is kept, when the file is full, of events that still matter, and of the latest of all.
const NEEDED: usize = 512 << 10;
const RECENT: usize = 256 << 10;

/// What a file holds.
#[derive(Default)]
pub(super) struct Content {
    pub(super) events: Vec<Event>,
    /// Lines that could not be read.
    pub(super) spoiled: usize,
}

/// Reads the file; one that is missing holds nothing.
pub(super) fn read(path: &Path) -> io::Result<Content> {
    let mut file = match without_following(OpenOptions::new().read(true)).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Content::default()),
        opened => opened?,
    };
    let length = regular(&file)?;
    if length > LARGEST {
        // Somebody else wrote that; the end of it is what matters.
        file.seek(SeekFrom::Start(length - LARGEST))?;
    }
    let mut bytes = Vec::new();
    file.take(LARGEST).read_to_end(&mut bytes)?;
    let mut content = Content::default();
    for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        match serde_json::from_slice(line) {
            Ok(event) => content.events.push(event),
            Err(_) => content.spoiled += 1,
        }
    }
    Ok(content)
}

/// Adds a line, after making room for it where there is none.
pub(super) fn append(path: &Path, line: &str, is_locked: Locking) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true);
    let mut file = without_following(&mut options).open(path)?;
    let mut length = regular(&file)?;
    if is_locked == Locking::Locked && length + line.len() as u64 + 2 > LARGEST {
        compact(path)?;
        file = without_following(&mut options).open(path)?;
        length = regular(&file)?;
    }
    let is_torn = length > 0 && {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        last != *b"\n"
    };
    let text = format!("{}{line}\n", if is_torn { "\n" } else { "" });
    file.write_all(text.as_bytes())?;
    Ok(file)
}

/// Whether the journal's lock is held.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Locking {
    Locked,
    /// A line is added all the same, and might be lost if another process just makes room.
    GivenUp,
}

/// Replaces the file by one with the events that matter and the latest ones.
fn compact(path: &Path) -> io::Result<()> {
    let events = read(path)?.events;
    let needed = past::needed(&events);
    let (mut of_needed, mut of_recent) = (NEEDED, RECENT);
    let mut kept = Vec::new();
    for (index, event) in events.iter().enumerate().rev() {
        let line = serde_json::to_string(event)? + "\n";
        let budget = if needed.contains(&index) { &mut of_needed } else { &mut of_recent };
        match budget.checked_sub(line.len()) {
            Some(left) => {
                *budget = left;
                kept.push(line);
            }
            // Nothing older, or the latest would have gaps.
            None => *budget = 0,
        }
    }
    kept.reverse();
    let temporary = path.with_extension("tmp");
    let mut file = File::create(&temporary)?;
    file.write_all(kept.concat().as_bytes())?;
    file.sync_data()?;
    fs::rename(&temporary, path)
}

fn regular(file: &File) -> io::Result<u64> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    Ok(metadata.len())
}
