//! Numbers in the text files of the kernel. Invariant: what is not a whole number of the expected form is no number.

use crate::units::Bytes;

/// Returns the value of a line `name:  123 kB`.
pub(super) fn kibibytes(text: &str, name: &str) -> Option<Bytes> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    number(value.trim().strip_suffix("kB")?.trim()).map(|number| Bytes::new(1024) * number)
}

/// Returns the value of a line `name 123`, in bytes.
pub(super) fn bytes(text: &str, name: &str) -> Option<Bytes> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    number(value.trim()).map(Bytes::new)
}

/// Returns a number that consists of digits alone: a sign is as wrong as a letter.
pub(super) fn number(text: &str) -> Option<u64> {
    let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    is_digits.then(|| text.parse().ok())?
}
