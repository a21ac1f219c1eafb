//! The GGUF file format: versions 2 and 3, little-endian, in one file or several.
//!
//! Invariant: a [`Gguf`] that was opened has a directory that was checked against the files' lengths;
//! no count, length or offset from a file is believed before. It never computes on weights and doesn't
//! know what a model is: which keys and tensors there must be is for others to say.

mod cursor;
mod directory;
pub mod encode;
pub mod error;
mod header;
pub mod metadata;
mod mmap;
pub mod q2;
mod shards;
pub mod tensor;
pub mod value;
pub mod write;

use std::path::Path;
use std::sync::{Arc, OnceLock};

pub use error::Error;
pub use mmap::give_back_free_memory;

use header::Header;
use metadata::Metadata;
use mmap::Source;
use q2::{Group, Q2Choice, Q2Layout};
use shards::Split;
use tensor::{TensorData, TensorInfo, TensorType};

/// Holds an opened model: metadata, tensor directory and access to the tensors' bytes.
///
/// Clones share everything. The files stay mapped until the last clone and the last [`TensorData`] is
/// dropped.
#[derive(Clone, Debug)]
pub struct Gguf {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    version: u32,
    alignment: u32,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    /// Indices of `tensors`, sorted by name.
    by_name: Vec<u32>,
    /// One per file.
    sources: Vec<Arc<Source>>,
    q2_group: Option<Result<Group, q2::Refusal>>,
    q2_choice: OnceLock<Result<Q2Choice, q2::Refusal>>,
}

impl Gguf {
    /// Maps a file, and the others of a split model, and checks headers and directories.
    ///
    /// Tensor data is not read. The errors carry the path.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let in_file = |error: Error| error.in_file(path);
        let source = Source::map(path).map_err(in_file)?;
        let first = Header::read(&source, 0).map_err(in_file)?;
        let mut parts = vec![(source, first)];
        let split = Split::read(&parts[0].1.metadata).map_err(in_file)?;
        let Some(split) = split else { return Self::assemble(parts).map_err(in_file) };
        for (shard, path) in split.paths(path).map_err(in_file)?.enumerate().skip(1) {
            parts.push(open_part(split, shard, &path)?);
        }
        let tensors = parts.iter().map(|(_, header)| header.directory.tensors.len()).sum();
        shards::check_tensor_count(&parts[0].1.metadata, tensors).map_err(in_file)?;
        Self::assemble(parts).map_err(in_file)
    }

    /// Reads a model that is part of the program; nothing is copied.
    pub fn from_static(bytes: &'static [u8]) -> Result<Self, Error> {
        Self::from_source(Source::Static(bytes))
    }

    /// Reads a model that lies in memory and owns its bytes.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, Error> {
        Self::from_source(Source::Owned(bytes))
    }

    fn from_source(source: Source) -> Result<Self, Error> {
        let source = Arc::new(source);
        let header = Header::read(&source, 0)?;
        if let Some(split) = Split::read(&header.metadata)? {
            return Err(Error::SplitInMemory { count: split.count });
        }
        Self::assemble(vec![(source, header)])
    }

    /// Puts the files of a model together; the first one's metadata is the model's.
    fn assemble(parts: Vec<(Arc<Source>, Header)>) -> Result<Self, Error> {
        let (mut sources, mut headers) = (Vec::new(), Vec::new());
        let (mut tensors, mut fits) = (Vec::new(), Vec::new());
        for (source, header) in parts {
            let base = tensors.len();
            let Header { version, alignment, metadata, directory } = header;
            fits.extend(directory.q2.into_iter().map(|fit| fit.shifted(base)));
            tensors.extend(directory.tensors);
            sources.push(source);
            headers.push((version, alignment, metadata));
        }
        let by_name = sort_by_name(&tensors)?;
        let q2_group = q2::group(&fits);
        if let Some(Ok(group)) = q2_group {
            for fit in &fits {
                let bytes: Option<u64> = fit.bytes(group);
                tensors[fit.tensor].bytes = bytes.expect("a group that was decided fits all");
            }
        }
        let (version, alignment, metadata) = headers.swap_remove(0);
        let q2_choice = OnceLock::new();
        let inner =
            Inner { version, alignment, metadata, tensors, by_name, sources, q2_group, q2_choice };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Returns the version of the format, 2 or 3.
    pub fn version(&self) -> u32 {
        self.inner.version
    }

    /// Returns the alignment of tensor data in bytes, a power of two.
    pub fn alignment(&self) -> u32 {
        self.inner.alignment
    }

    /// Returns the metadata, of a split model that of its first file.
    pub fn metadata(&self) -> &Metadata {
        &self.inner.metadata
    }

    /// Returns all tensors, in the order of the directory and of the files.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.inner.tensors
    }

    /// Returns the tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let Inner { tensors, by_name, .. } = &*self.inner;
        let tensor = |index: u32| &tensors[index as usize];
        let found = by_name.binary_search_by(|&index| tensor(index).name.as_str().cmp(name));
        found.ok().map(|position| tensor(by_name[position]))
    }

    /// Returns the bytes of a tensor, without touching them.
    ///
    /// # Panics
    /// When `tensor` is not one of this model's [`tensors`](Self::tensors).
    pub fn data(&self, tensor: &TensorInfo) -> TensorData {
        let source = self.inner.sources.get(tensor.shard).expect("the tensor is of this model");
        let start = usize::try_from(tensor.offset).expect("the tensor is of this model");
        let bytes = usize::try_from(tensor.bytes).expect("the tensor is of this model");
        TensorData::new(Arc::clone(source), start, bytes)
    }

    /// Returns the layout of the tensors of type `Q2_0` (id 42), or `None` if the model has none.
    ///
    /// The first call reads some blocks of some tensors where the directory alone can't decide. An
    /// error names a tensor and what speaks against each layout; such a model can be shown but not run.
    pub fn q2_layout(&self) -> Option<Result<Q2Choice, Error>> {
        let group = self.inner.q2_group.as_ref()?;
        let choice = self.inner.q2_choice.get_or_init(|| match group {
            Ok(Group::Of64) => Ok(Q2Choice {
                layout: Q2Layout::Group64,
                why: "the tensors take 18 bytes per 64 weights".to_owned(),
            }),
            Ok(Group::Of128) => self.q2_layout_of_128(),
            Err(refusal) => Err(refusal.clone()),
        });
        Some(choice.clone().map_err(|refusal| Error::Q2Layout {
            tensor: self.inner.tensors[refusal.tensor].name.clone(),
            why: refusal.why,
        }))
    }

    fn q2_layout_of_128(&self) -> Result<Q2Choice, q2::Refusal> {
        let tensors = self.inner.tensors.iter().enumerate();
        let tensors = tensors.filter(|(_, tensor)| tensor.kind == TensorType::Q2_0);
        let data: Vec<(usize, TensorData)> =
            tensors.map(|(index, tensor)| (index, self.data(tensor))).collect();
        let views: Vec<(usize, &[u8])> =
            data.iter().map(|(index, data)| (*index, &**data)).collect();
        q2::layout_of_128(&views)
    }
}

/// Opens a part of a split model other than the first; `shard` is counted from 0.
fn open_part(split: Split, shard: usize, path: &Path) -> Result<(Arc<Source>, Header), Error> {
    let number = shard as u64;
    let source = Source::map(path).map_err(|error| match error {
        Error::Io { error, .. } if error.kind() == std::io::ErrorKind::NotFound => {
            Error::MissingShard { number: number + 1, count: split.count, path: path.to_owned() }
        }
        error => error.in_file(path),
    })?;
    let in_file = |error: Error| error.in_file(path);
    let header = Header::read(&source, shard).map_err(in_file)?;
    split.check_part(&header.metadata, number).map_err(in_file)?;
    Ok((source, header))
}

/// Sorts the tensors of all files; names are unique within each file already.
fn sort_by_name(tensors: &[TensorInfo]) -> Result<Vec<u32>, Error> {
    if tensors.len() as u64 > Error::MAX_TENSORS {
        return Err(Error::Limit {
            field: "tensor count of all files together".to_owned(),
            offset: 8,
            found: tensors.len() as u64,
            limit: Error::MAX_TENSORS,
        });
    }
    let count = u32::try_from(tensors.len()).expect("the limit on tensors is far below 2^32");
    let mut by_name: Vec<u32> = (0..count).collect();
    let tensor = |index: u32| &tensors[index as usize];
    by_name.sort_by(|&a, &b| tensor(a).name.cmp(&tensor(b).name));
    let repeated = by_name.windows(2).find(|pair| tensor(pair[0]).name == tensor(pair[1]).name);
    if let Some(pair) = repeated {
        return Err(Error::DuplicateInShards {
            name: tensor(pair[1]).name.clone(),
            first: tensor(pair[0]).shard + 1,
            second: tensor(pair[1]).shard + 1,
        });
    }
    Ok(by_name)
}
