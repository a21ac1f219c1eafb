//! Reads little-endian fields one after the other out of a byte slice.
//!
//! Invariant: never reads past the end and never allocates; a field that doesn't fit is an error that
//! names it. It doesn't know which fields a file has.

use std::fmt;

use crate::error::Error;

#[derive(Clone, Debug)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8], at: usize) -> Self {
        assert!(at <= bytes.len(), "a cursor starts inside its bytes");
        Self { bytes, at }
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// Where the cursor is, as errors state it.
    pub(crate) fn offset(&self) -> u64 {
        self.at as u64
    }

    pub(crate) fn remaining(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    pub(crate) fn take(
        &mut self,
        count: u64,
        field: fmt::Arguments<'_>,
    ) -> Result<&'a [u8], Error> {
        let rest = &self.bytes[self.at..];
        let taken = usize::try_from(count).ok().and_then(|count| rest.get(..count));
        let taken = taken.ok_or_else(|| self.truncated(count, field))?;
        self.at += taken.len();
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(
        &mut self,
        field: fmt::Arguments<'_>,
    ) -> Result<[u8; N], Error> {
        let rest = &self.bytes[self.at..];
        let taken = rest.first_chunk::<N>().ok_or_else(|| self.truncated(N as u64, field))?;
        self.at += N;
        Ok(*taken)
    }

    pub(crate) fn u32(&mut self, field: fmt::Arguments<'_>) -> Result<u32, Error> {
        self.array(field).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, field: fmt::Arguments<'_>) -> Result<u64, Error> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// Reads a count of things that take at least `least` bytes each, of which at most `limit` are accepted.
    pub(crate) fn count(
        &mut self,
        least: u64,
        limit: u64,
        field: fmt::Arguments<'_>,
    ) -> Result<u64, Error> {
        let offset = self.offset();
        let found = self.u64(field)?;
        let fitting = self.remaining() / least;
        if found > fitting {
            return Err(Error::Invalid {
                field: field.to_string(),
                offset,
                found: found.to_string(),
                expected: format!(
                    "at most {fitting} with {} bytes left; the file is cut short or damaged",
                    self.remaining()
                ),
            });
        }
        if found > limit {
            return Err(Error::Limit { field: field.to_string(), offset, found, limit });
        }
        Ok(found)
    }

    #[cold]
    fn truncated(&self, needed: u64, field: fmt::Arguments<'_>) -> Error {
        Error::Truncated {
            field: field.to_string(),
            offset: self.offset(),
            needed,
            remaining: self.remaining(),
        }
    }
}
