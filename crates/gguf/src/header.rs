//! Reads the front of one file: magic, version, counts, metadata, and the tensor directory behind them.
//!
//! Invariant: what it returns was checked against the file's length, and no tensor data was touched.
//! It doesn't know that models may be split.

use std::sync::Arc;

use crate::cursor::Cursor;
use crate::directory::Directory;
use crate::error::Error;
use crate::metadata::Metadata;
use crate::mmap::Source;

/// Bytes of an empty key, its type and a one-byte value, rounded down.
const LEAST_PAIR_BYTES: u64 = 13;
/// Bytes of a directory entry with an empty name and one dimension, rounded down.
const LEAST_TENSOR_BYTES: u64 = 32;

pub(crate) const MAGIC: [u8; 4] = *b"GGUF";
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";
pub(crate) const DEFAULT_ALIGNMENT: u32 = 32;

#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) version: u32,
    pub(crate) alignment: u32,
    pub(crate) metadata: Metadata,
    pub(crate) directory: Directory,
}

impl Header {
    pub(crate) fn read(source: &Arc<Source>, shard: usize) -> Result<Self, Error> {
        let version = read_version(source)?;
        let mut cursor = Cursor::new(source, 8);
        let limit = Error::MAX_TENSORS;
        let tensors = cursor.count(LEAST_TENSOR_BYTES, limit, format_args!("tensor count"))?;
        let limit = Error::MAX_PAIRS;
        let pairs = cursor.count(LEAST_PAIR_BYTES, limit, format_args!("metadata pair count"))?;
        let mut at = cursor.position();
        let metadata = Metadata::read(source, &mut at, pairs)?;
        let alignment = read_alignment(&metadata)?;
        let directory = Directory::read(Cursor::new(source, at), tensors, alignment, shard)?;
        Ok(Self { version, alignment, metadata, directory })
    }
}

fn read_version(source: &[u8]) -> Result<u32, Error> {
    if source.is_empty() {
        return Err(Error::Empty);
    }
    let start = &source[..source.len().min(MAGIC.len())];
    let mut cursor = Cursor::new(source, start.len());
    let reversed = start.iter().eq(MAGIC.iter().rev());
    if !reversed && *start != MAGIC[..start.len()] {
        return Err(Error::NotGguf { found: start.to_vec() });
    }
    if start.len() < MAGIC.len() {
        cursor = Cursor::new(source, 0);
        cursor.take(MAGIC.len() as u64, format_args!("magic"))?;
    }
    let version = cursor.u32(format_args!("version"))?;
    if reversed || (1..=3).contains(&version.swap_bytes()) {
        return Err(Error::BigEndian { version });
    }
    if !(2..=3).contains(&version) {
        return Err(Error::Version { version });
    }
    Ok(version)
}

fn read_alignment(metadata: &Metadata) -> Result<u32, Error> {
    let alignment = metadata.optional_u32(ALIGNMENT_KEY)?.unwrap_or(DEFAULT_ALIGNMENT);
    if !alignment.is_power_of_two() {
        return Err(Error::Invalid {
            field: format!("value of metadata key `{ALIGNMENT_KEY}`"),
            offset: metadata.value_offset(ALIGNMENT_KEY).unwrap_or_default(),
            found: alignment.to_string(),
            expected: "a power of two".to_owned(),
        });
    }
    Ok(alignment)
}
