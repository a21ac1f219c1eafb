//! Small files that are read whole and replaced whole.
//!
//! Invariant: reading never waits for anybody, and whoever reads sees the old document or the new one, never a part.
//! Knows nothing of what the documents say.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};

/// The largest document in bytes.
pub(crate) const MAX_BYTES: u64 = 65_536;

/// What is at a path.
pub(crate) enum Content {
    /// Nothing.
    Missing,
    /// Something that cannot be a document, and why.
    Unfit(String),
    /// The bytes of a regular file.
    Bytes(Vec<u8>),
}

/// Reads a regular file of at most [`MAX_BYTES`]; does not follow a link, and does not wait at a pipe or a device.
pub(crate) fn read(path: &Path) -> io::Result<Content> {
    // Looking first keeps devices from being opened at all; looking again at what was opened settles it.
    let found = fs::symlink_metadata(path)
        .and_then(|found| if found.is_file() { open(path).map(Some) } else { Ok(None) });
    let file = match found {
        Ok(Some(file)) => file,
        Ok(None) => return Ok(not_regular()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Content::Missing),
        Err(error) => match fs::symlink_metadata(path) {
            Ok(now) if !now.is_file() => return Ok(not_regular()),
            _ => return Err(error),
        },
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Ok(not_regular());
    }
    let mut bytes = Vec::new();
    // One byte more than allowed shows a file that grows meanwhile.
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if metadata.len() > MAX_BYTES || bytes.len() as u64 > MAX_BYTES {
        return Ok(Content::Unfit(format!("it exceeds the size limit of {MAX_BYTES} bytes")));
    }
    Ok(Content::Bytes(bytes))
}

/// Makes the folder `root` where it is missing, and makes it the user's alone.
pub(crate) fn prepare(root: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(root)?;
    fs::set_permissions(root, Permissions::from_mode(0o700))
}

/// Replaces the document `name` in the folder `root` and makes that last.
///
/// The file is the user's alone. A link at that name is replaced, not followed.
/// After an error nothing of the attempt is left; where only making it last has failed, the new document is in place.
pub(crate) fn replace(root: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let (file, temporary) = create_temporary(root, name)?;
    let written = write_durably(file, bytes).and_then(|()| fs::rename(&temporary, root.join(name)));
    if let Err(error) = written {
        // The first error is the one to tell.
        drop(fs::remove_file(&temporary));
        return Err(error);
    }
    File::open(root)?.sync_all()
}

/// Removes the document `name` from `root`; there being none is success.
pub(crate) fn remove(root: &Path, name: &str) -> io::Result<()> {
    match fs::remove_file(root.join(name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Opens the file `name` in the folder `root` to lock it, and creates it where it is missing.
pub(crate) fn lock_file(root: &Path, name: &str) -> io::Result<File> {
    let flags =
        OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(root.join(name), flags, Mode::RUSR | Mode::WUSR)?))
}

fn open(path: &Path) -> io::Result<File> {
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

fn not_regular() -> Content {
    Content::Unfit("it is not a regular file".to_owned())
}

/// Creates a file that nobody had, under a name that no reader looks for.
fn create_temporary(root: &Path, name: &str) -> io::Result<(File, PathBuf)> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let path = root.join(format!(".{name}.{}.{number}.tmp", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            // Left by a process that died, and had this process's number.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => return created.map(|file| (file, path)),
        }
    }
}

fn write_durably(mut file: File, bytes: &[u8]) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::{Content, read};
    use std::path::Path;

    #[test]
    fn a_device_is_not_read() {
        for device in ["/dev/zero", "/dev/null", "/dev/tty"] {
            let Ok(Content::Unfit(reason)) = read(Path::new(device)) else { panic!("{device}") };
            assert_eq!(reason, "it is not a regular file");
        }
    }
}
