//! Numbers in the text files of the kernel. Invariant: what is not a whole number of the expected form is no number,
//! and what is garbled is never mistaken for what is missing.

use std::fs;
use std::io;
use std::path::Path;

use crate::units::Bytes;

/// Something was there and could not be understood.
pub(super) struct Garbled;

/// Returns a file's text; `None` where there is no such file. Adds a warning where it can't be read.
pub(super) fn read(path: &Path, warnings: &mut Vec<String>) -> Option<String> {
    match fs::read_to_string(path) {
        Ok(text) => Some(text),
        Err(error) if is_absence(&error) => None,
        Err(error) => {
            warnings.push(format!("{} can't be read: {error}", path.display()));
            None
        }
    }
}

/// Returns the value of a line `name:  123 kB`.
pub(super) fn kibibytes(text: &str, name: &str) -> Option<Bytes> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    number(value.trim().strip_suffix("kB")?.trim()).map(|number| Bytes::new(1024) * number)
}

/// Returns the value of a line `name 123`, in bytes; `None` where there is no such line.
pub(super) fn bytes(text: &str, name: &str) -> Result<Option<Bytes>, Garbled> {
    let Some(value) = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
    else {
        return Ok(None);
    };
    number(value.trim()).map(|number| Some(Bytes::new(number))).ok_or(Garbled)
}

/// Returns a number that consists of digits alone: a sign is as wrong as a letter.
pub(super) fn number(text: &str) -> Option<u64> {
    let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    is_digits.then(|| text.parse().ok())?
}

/// A file that is not there, or that the kernel shows and does not support.
fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::Unsupported)
}
