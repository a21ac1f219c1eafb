//! Writes a GGUF file of version 3: metadata and directory first, then tensor data as it is produced.
//!
//! Invariant: the same calls give the same bytes, and a file appears under its name only when it is
//! whole. It doesn't know what any key or tensor means, except for the alignment.

use std::borrow::Cow;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::encode::{Encode, encode_string};
use crate::error::Error;
use crate::header::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC};
use crate::tensor::TensorType;
use crate::value::{Array, Value, ValueType};

const VERSION: u32 = 3;

/// Collects metadata and tensors, in the order in which they are to be in the file, and writes them.
///
/// Mistakes, such as a key set twice, are reported when the file is written.
#[derive(Debug, Default)]
pub struct Writer<'a> {
    pairs: Vec<Pair>,
    tensors: Vec<Tensor<'a>>,
}

#[derive(Debug)]
struct Pair {
    key: String,
    kind: ValueType,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct Tensor<'a> {
    name: String,
    shape: Vec<u64>,
    kind: TensorType,
    bytes: u64,
    data: Data<'a>,
}

type Producer<'a> = dyn FnOnce(&mut dyn Write) -> io::Result<()> + 'a;

enum Data<'a> {
    Whole(Cow<'a, [u8]>),
    Streamed(Box<Producer<'a>>),
}

impl fmt::Debug for Data<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Whole(_) => "whole",
            Self::Streamed(_) => "streamed",
        })
    }
}

impl<'a> Writer<'a> {
    /// Starts a file with no metadata and no tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a metadata pair.
    ///
    /// `general.alignment`, a `u32`, is also obeyed; without it, tensor data is aligned to 32 bytes.
    pub fn set<T: Encode>(&mut self, key: &str, value: T) -> &mut Self {
        let mut bytes = Vec::new();
        value.encode(&mut bytes);
        self.pairs.push(Pair { key: key.to_owned(), kind: T::TYPE, bytes });
        self
    }

    /// Adds a metadata pair with a value that was read from a file, of the same type.
    pub fn copy(&mut self, key: &str, value: Value<'_>) -> &mut Self {
        match value {
            Value::U8(v) => self.set(key, v),
            Value::I8(v) => self.set(key, v),
            Value::U16(v) => self.set(key, v),
            Value::I16(v) => self.set(key, v),
            Value::U32(v) => self.set(key, v),
            Value::I32(v) => self.set(key, v),
            Value::F32(v) => self.set(key, v),
            Value::Bool(v) => self.set(key, v),
            Value::U64(v) => self.set(key, v),
            Value::I64(v) => self.set(key, v),
            Value::F64(v) => self.set(key, v),
            Value::String(v) => self.set(key, RawString(v)),
            Value::Array(v) => self.set(key, v),
        }
    }

    /// Adds a tensor whose data is at hand; `shape` is innermost first.
    pub fn tensor(
        &mut self,
        name: &str,
        shape: &[u64],
        kind: TensorType,
        data: impl Into<Cow<'a, [u8]>>,
    ) -> &mut Self {
        let data = data.into();
        let bytes = data.len() as u64;
        self.push(name, shape, kind, bytes, Data::Whole(data))
    }

    /// Adds a tensor whose data `produce` writes when its turn comes: exactly `bytes` bytes.
    pub fn streamed_tensor(
        &mut self,
        name: &str,
        shape: &[u64],
        kind: TensorType,
        bytes: u64,
        produce: impl FnOnce(&mut dyn Write) -> io::Result<()> + 'a,
    ) -> &mut Self {
        self.push(name, shape, kind, bytes, Data::Streamed(Box::new(produce)))
    }

    /// Writes the file beside its name with `.part` added, then renames it.
    ///
    /// On an error the `.part` is removed and a file of that name is as it was. The errors carry the path.
    pub fn save(self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        self.save_in_place(path).map_err(|error| error.in_file(path))
    }

    /// Returns the file's bytes.
    pub fn into_bytes(self) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        self.write_to(&mut bytes)?;
        Ok(bytes)
    }

    /// Writes the file from start to end; `out` is not flushed.
    pub fn write_to(self, out: &mut dyn Write) -> Result<(), Error> {
        let alignment = self.check()?;
        let header = self.header(alignment)?;
        let mut out = Counted { out, written: 0 };
        out.write_all(&header).and_then(|()| out.pad(alignment)).map_err(Error::io("write"))?;
        for tensor in self.tensors {
            let start = out.written;
            match tensor.data {
                Data::Whole(bytes) => out.write_all(&bytes),
                Data::Streamed(produce) => produce(&mut out),
            }
            .map_err(Error::io("write"))?;
            let produced = out.written - start;
            if produced != tensor.bytes {
                let why = format!("{} bytes were announced, {produced} produced", tensor.bytes);
                return Err(unwritable_tensor(&tensor.name, why));
            }
            out.pad(alignment).map_err(Error::io("write"))?;
        }
        Ok(())
    }

    fn push(
        &mut self,
        name: &str,
        shape: &[u64],
        kind: TensorType,
        bytes: u64,
        data: Data<'a>,
    ) -> &mut Self {
        let (name, shape) = (name.to_owned(), shape.to_vec());
        self.tensors.push(Tensor { name, shape, kind, bytes, data });
        self
    }

    /// Refuses what the reader would refuse and returns the alignment.
    fn check(&self) -> Result<u32, Error> {
        if let Some(key) = repeated(self.pairs.iter().map(|pair| &*pair.key)) {
            return Err(unwritable_key(key, "it was set twice"));
        }
        let mut alignment = DEFAULT_ALIGNMENT;
        for Pair { key, kind, bytes } in &self.pairs {
            if key.is_empty() || key.len() as u64 > Error::MAX_KEY_BYTES {
                return Err(unwritable_key(key, "a key has 1 to 65535 bytes"));
            }
            if key == ALIGNMENT_KEY {
                let value = bytes.first_chunk().filter(|_| *kind == ValueType::U32);
                let value = value.map(|&bytes| u32::from_le_bytes(bytes));
                alignment = value
                    .filter(|value| value.is_power_of_two())
                    .ok_or_else(|| unwritable_key(key, "it must be a u32 and a power of two"))?;
            }
        }
        if let Some(name) = repeated(self.tensors.iter().map(|tensor| &*tensor.name)) {
            return Err(unwritable_tensor(name, "the name was used twice"));
        }
        self.tensors.iter().try_for_each(Tensor::check)?;
        Ok(alignment)
    }

    fn header(&self, alignment: u32) -> Result<Vec<u8>, Error> {
        let mut out = MAGIC.to_vec();
        VERSION.encode(&mut out);
        (self.tensors.len() as u64).encode(&mut out);
        (self.pairs.len() as u64).encode(&mut out);
        for Pair { key, kind, bytes } in &self.pairs {
            key.encode(&mut out);
            kind.id().encode(&mut out);
            out.extend(bytes);
        }
        let mut offset = 0_u64;
        for tensor in &self.tensors {
            tensor.name.encode(&mut out);
            tensor.dims().encode(&mut out);
            tensor.shape.iter().for_each(|extent| extent.encode(&mut out));
            tensor.kind.0.encode(&mut out);
            offset.encode(&mut out);
            let end = offset.checked_add(tensor.bytes);
            offset = end
                .and_then(|end| end.checked_next_multiple_of(alignment.into()))
                .ok_or_else(|| unwritable_tensor(&tensor.name, "the file would be too long"))?;
        }
        Ok(out)
    }

    fn save_in_place(self, path: &Path) -> Result<(), Error> {
        let (part, file) = Part::create(path).map_err(Error::io("create the .part file"))?;
        let mut out = BufWriter::with_capacity(1 << 20, file);
        self.write_to(&mut out)?;
        let file = out.into_inner().map_err(|error| Error::io("write")(error.into_error()))?;
        file.sync_all().map_err(Error::io("write"))?;
        fs::rename(&part.path, path).map_err(Error::io("rename the .part file"))
    }
}

impl Tensor<'_> {
    fn check(&self) -> Result<(), Error> {
        let refuse = |why: String| Err(unwritable_tensor(&self.name, why));
        if self.name.is_empty() || self.name.len() as u64 > Error::MAX_NAME_BYTES {
            return refuse("a name has 1 to 255 bytes".to_owned());
        }
        let elements =
            self.shape.iter().try_fold(1_u64, |product, &extent| product.checked_mul(extent));
        let is_empty = self.shape.is_empty() || self.bytes == 0;
        let Some(elements) =
            elements.filter(|&n| n > 0 && !is_empty && self.dims() <= Error::MAX_DIMS)
        else {
            return refuse(format!("shape {:?} needs 1 to 4 extents above 0", self.shape));
        };
        let Some(block) = self.kind.block() else { return Ok(()) };
        let bytes = (elements / block.elements).checked_mul(block.bytes);
        if !self.shape[0].is_multiple_of(block.elements) || bytes != Some(self.bytes) {
            return refuse(format!(
                "{} bytes are not those of shape {:?} in {}",
                self.bytes, self.shape, self.kind
            ));
        }
        Ok(())
    }

    fn dims(&self) -> u32 {
        u32::try_from(self.shape.len()).unwrap_or(u32::MAX)
    }
}

/// A string of any bytes, as a file may hold one.
struct RawString<'a>(&'a [u8]);

impl Encode for RawString<'_> {
    const TYPE: ValueType = ValueType::String;

    fn encode(&self, out: &mut Vec<u8>) {
        encode_string(self.0, out);
    }
}

impl Encode for Array<'_> {
    const TYPE: ValueType = ValueType::Array;

    fn encode(&self, out: &mut Vec<u8>) {
        self.element_type().id().encode(out);
        self.len().encode(out);
        out.extend(self.bytes());
    }
}

/// The file while it is being written; dropping it removes what was not renamed.
struct Part {
    path: PathBuf,
}

impl Part {
    fn create(target: &Path) -> io::Result<(Self, File)> {
        let mut name = target.file_name().unwrap_or_default().to_owned();
        name.push(".part");
        let path = target.with_file_name(name);
        let file = File::create(&path)?;
        Ok((Self { path }, file))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // After the rename there is nothing to remove; if removing fails, the error that led here says more.
        drop(fs::remove_file(&self.path));
    }
}

/// Knows how many bytes went through it.
struct Counted<'w> {
    out: &'w mut dyn Write,
    written: u64,
}

impl Counted<'_> {
    fn pad(&mut self, alignment: u32) -> io::Result<()> {
        const ZEROS: [u8; 64] = [0; 64];
        let mut missing = self.written.next_multiple_of(alignment.into()) - self.written;
        while missing > 0 {
            let some = usize::try_from(missing).unwrap_or(usize::MAX).min(ZEROS.len());
            self.write_all(&ZEROS[..some])?;
            missing -= some as u64;
        }
        Ok(())
    }
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.written += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn repeated<'n>(names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let mut sorted: Vec<&str> = names.collect();
    sorted.sort_unstable();
    sorted.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}

fn unwritable_key(key: &str, why: &str) -> Error {
    Error::Unwritable { what: format!("metadata key `{key}`"), why: why.to_owned() }
}

fn unwritable_tensor(name: &str, why: impl Into<String>) -> Error {
    Error::Unwritable { what: format!("tensor `{name}`"), why: why.into() }
}
