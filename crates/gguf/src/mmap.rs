//! The bytes of a file: mapped, owned or embedded.
//!
//! Invariant: the bytes stay at one address until the last clone of their [`Arc`] is dropped, which
//! unmaps them. It doesn't know what the bytes mean.

use std::fmt;
use std::fs::{self, File};
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

use crate::error::Error;

pub(crate) enum Source {
    Mapped(Mmap),
    Owned(Vec<u8>),
    Static(&'static [u8]),
}

impl Source {
    /// Maps a regular file; anything else is refused before it is opened, because opening a FIFO blocks.
    pub(crate) fn map(path: &Path) -> Result<Arc<Self>, Error> {
        regular(&fs::metadata(path).map_err(Error::io("open the file"))?)?;
        let file = File::open(path).map_err(Error::io("open the file"))?;
        // Asked again of the open file: the path may name something else by now.
        let metadata = file.metadata().map_err(Error::io("read the file's size"))?;
        regular(&metadata)?;
        if metadata.len() == 0 {
            return Err(Error::Empty);
        }
        let map = map_file(&file).map_err(Error::io("map the file"))?;
        advise(&map);
        Ok(Arc::new(Self::Mapped(map)))
    }
}

impl Deref for Source {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
            Self::Static(bytes) => bytes,
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

/// Gives back to the system what the allocator keeps for later of memory that was freed: what a model's tables took would
/// else stay with the process when the model is gone. Where the allocator can't be asked, it keeps what it keeps.
///
/// Takes a few milliseconds, and other threads that allocate may wait for it.
pub fn give_back_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    trim();
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "it is a function of the system's library")]
fn trim() {
    // SAFETY: the function may be called at any time from any thread, takes the allocator's own locks, and touches
    // nothing but memory that is free. That it found nothing to give back is no error.
    unsafe { libc::malloc_trim(0) };
}

#[expect(unsafe_code, reason = "mapping a file can't be checked by the compiler")]
fn map_file(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the mapping is read-only and its length is fixed here. That nobody shortens or rewrites
    // the file while it is mapped is up to the file's owner: model files are replaced by renaming, as
    // the writer of this crate does. Nothing read from the bytes is relied on for memory safety:
    // every offset taken from them is checked against the length before use.
    unsafe { Mmap::map(file) }
}

/// Asks for huge pages: weights are read from end to end for each token, and looking up where each 4 KiB
/// of them lie costs time. Linux grants them where the file system's cache can hold such pieces and the
/// file is not in it yet.
#[cfg(target_os = "linux")]
fn advise(map: &Mmap) {
    // A system without them refuses, and small pages do as well.
    let (Ok(()) | Err(_)) = map.advise(memmap2::Advice::HugePage);
}

#[cfg(not(target_os = "linux"))]
fn advise(_: &Mmap) {}

fn regular(metadata: &fs::Metadata) -> Result<(), Error> {
    let kind = metadata.file_type();
    if kind.is_file() {
        return Ok(());
    }
    let found = if kind.is_dir() { "a directory" } else { special(kind) };
    Err(Error::NotRegular { found })
}

#[cfg(unix)]
fn special(kind: fs::FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt as _;
    if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

#[cfg(not(unix))]
fn special(_: fs::FileType) -> &'static str {
    "a special file"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_several_huge_pages_reads_as_it_was_written() {
        let bytes: Vec<u8> = (0u32..1_500_000).flat_map(u32::to_le_bytes).collect();
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        fs::write(file.path(), &bytes).expect("room for six megabytes");
        let source = Source::map(file.path()).expect("a regular file");
        assert!(source[..] == bytes[..]);
    }
}
