//! What can be wrong with a GGUF file, with the field and the byte where it was seen.
//!
//! Invariant: building an error costs no more than its own text, whatever the file claims.
//! It doesn't know how the error is shown or which exit code it becomes.

use std::io;
use std::path::PathBuf;

/// Says why a file was refused, or why a value or tensor can't be had from it.
///
/// Offsets are bytes from the start of the file. Limits that a valid file may in theory exceed,
/// all far above any published model: [`MAX_PAIRS`](Self::MAX_PAIRS),
/// [`MAX_TENSORS`](Self::MAX_TENSORS), [`MAX_KEY_BYTES`](Self::MAX_KEY_BYTES),
/// [`MAX_NAME_BYTES`](Self::MAX_NAME_BYTES), [`MAX_DIMS`](Self::MAX_DIMS) and
/// [`MAX_ARRAY_DEPTH`](Self::MAX_ARRAY_DEPTH). Every other count is bounded by the bytes that remain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Carries an error of one file, with its path.
    #[error("{}: {error}", path.display())]
    InFile {
        /// The file that was read or written.
        path: PathBuf,
        /// What was wrong with it; its text is part of this error's text.
        error: Box<Self>,
    },
    /// The operating system refused an operation.
    #[error("cannot {action}: {error}")]
    Io {
        /// What was tried, such as `open the file`.
        action: &'static str,
        /// The system's answer; its text is part of this error's text.
        error: io::Error,
    },
    /// The path names something that can't be mapped, such as a directory or a FIFO.
    #[error("is {found}, not a regular file; give the path of a .gguf file")]
    NotRegular {
        /// What it is, with its article.
        found: &'static str,
    },
    /// The file has no bytes at all.
    #[error("is empty: a GGUF file starts with a header of 24 bytes")]
    Empty,
    /// The first four bytes are not GGUF's.
    #[error("is not a GGUF file: it starts with \"{}\" at byte 0 instead of \"GGUF\"", found.escape_ascii())]
    NotGguf {
        /// The first bytes of the file.
        found: Vec<u8>,
    },
    /// The file was written for a big-endian machine.
    #[error(
        "version at byte 4 is {version:#010x}: a big-endian GGUF file; only little-endian files can be read"
    )]
    BigEndian {
        /// The version field as a little-endian number.
        version: u32,
    },
    /// The version is neither 2 nor 3.
    #[error(
        "version at byte 4 is {version}: only GGUF versions 2 and 3 can be read; convert the model again with a current converter"
    )]
    Version {
        /// The version that the file states.
        version: u32,
    },
    /// The file ends before a field does.
    #[error(
        "{field} at byte {offset} needs {needed} bytes, but only {remaining} remain in the file; it is cut short or damaged"
    )]
    Truncated {
        /// The field in words.
        field: String,
        /// Where the field starts.
        offset: u64,
        /// How many bytes it claims.
        needed: u64,
        /// How many there are.
        remaining: u64,
    },
    /// A count or length is higher than this reader accepts.
    #[error("{field} at byte {offset} is {found}, above the limit of {limit}")]
    Limit {
        /// The field in words.
        field: String,
        /// Where the field starts.
        offset: u64,
        /// What it claims.
        found: u64,
        /// The highest value accepted.
        limit: u64,
    },
    /// A field holds a value that the format doesn't allow.
    #[error("{field} at byte {offset} is {found}, expected {expected}")]
    Invalid {
        /// The field in words.
        field: String,
        /// Where the field starts.
        offset: u64,
        /// What it holds.
        found: String,
        /// What the format asks for.
        expected: String,
    },
    /// A metadata key or a tensor name occurs twice.
    #[error("{kind} `{name}` at byte {offset} was already used at byte {first}")]
    Duplicate {
        /// `metadata key` or `tensor name`.
        kind: &'static str,
        /// The name that repeats.
        name: String,
        /// Where the later one is.
        offset: u64,
        /// Where the earlier one is.
        first: u64,
    },
    /// A tensor name occurs in two files of a split model.
    #[error("tensor name `{name}` occurs in shard {first} and in shard {second}")]
    DuplicateInShards {
        /// The name that repeats.
        name: String,
        /// The lower shard, counted from 1.
        first: usize,
        /// The higher shard, counted from 1.
        second: usize,
    },
    /// Two tensors claim the same bytes.
    #[error(
        "data of tensor `{second}` at byte {offset} overlaps that of tensor `{first}`, which ends at byte {end}"
    )]
    Overlap {
        /// The tensor that starts first.
        first: String,
        /// Where its data ends.
        end: u64,
        /// The tensor that starts inside it.
        second: String,
        /// Where that one starts.
        offset: u64,
    },
    /// A metadata key is not in the file.
    #[error("metadata key `{key}` is missing")]
    MissingKey {
        /// The key asked for.
        key: String,
    },
    /// A metadata value is of another type than the caller needs.
    #[error("metadata key `{key}` at byte {offset} is {found}, expected {wanted}")]
    WrongType {
        /// The key asked for.
        key: String,
        /// Where its value starts.
        offset: u64,
        /// The type found, and the value where it doesn't fit.
        found: String,
        /// The type asked for.
        wanted: &'static str,
    },
    /// A metadata string is not UTF-8 text.
    #[error("metadata key `{key}` at byte {offset} is not valid UTF-8")]
    NotUtf8 {
        /// The key, with the element in brackets for an array.
        key: String,
        /// Where its value starts.
        offset: u64,
    },
    /// A file in the middle of a split model was opened.
    #[error("is part {number} of {count} of a split model; open the first part, {}", first.display())]
    NotFirstShard {
        /// Which part it is, counted from 1.
        number: u64,
        /// How many parts there are.
        count: u64,
        /// The file to open instead.
        first: PathBuf,
    },
    /// A file of a split model is not beside the first.
    #[error("part {number} of {count} of the model is missing: {} is not there; put all parts into one folder", path.display())]
    MissingShard {
        /// Which part it is, counted from 1.
        number: u64,
        /// How many parts there are.
        count: u64,
        /// Where it was looked for.
        path: PathBuf,
    },
    /// A file of a split model contradicts the first or its own name.
    #[error("{field} is {found}, expected {expected}: the file doesn't belong to this split model")]
    ShardMismatch {
        /// The metadata key, or what else contradicts.
        field: &'static str,
        /// What it says.
        found: String,
        /// What the other parts say.
        expected: String,
    },
    /// A split model was given as bytes, so that its other parts can't be found.
    #[error(
        "is part of a split model of {count} files; such a model can only be opened by its path"
    )]
    SplitInMemory {
        /// How many parts there are.
        count: u64,
    },
    /// Nothing decides which of the layouts of type id 42 the file uses.
    #[error("tensor `{tensor}` has type Q2_0 (id 42), whose layout can't be told: {why}")]
    Q2Layout {
        /// The tensor that shows it.
        tensor: String,
        /// What speaks against a decision.
        why: String,
    },
    /// A file that is being written would not be valid.
    #[error("cannot write {what}: {why}")]
    Unwritable {
        /// The metadata key or tensor.
        what: String,
        /// What is wrong with it.
        why: String,
    },
}

impl Error {
    /// The most metadata pairs in one file.
    pub const MAX_PAIRS: u64 = 1 << 16;
    /// The most tensors in a model, all shards together.
    pub const MAX_TENSORS: u64 = 1 << 16;
    /// The longest metadata key in bytes.
    pub const MAX_KEY_BYTES: u64 = (1 << 16) - 1;
    /// The longest tensor name in bytes.
    pub const MAX_NAME_BYTES: u64 = 255;
    /// The most dimensions of a tensor.
    pub const MAX_DIMS: u32 = 4;
    /// How deep arrays may be nested in arrays.
    pub const MAX_ARRAY_DEPTH: u32 = 8;

    pub(crate) fn io(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io { action, error }
    }

    pub(crate) fn in_file(self, path: impl Into<PathBuf>) -> Self {
        Self::InFile { path: path.into(), error: Box::new(self) }
    }
}
