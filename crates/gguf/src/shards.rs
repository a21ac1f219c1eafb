//! Finds the other files of a split model, which lie beside the first as `NAME-00002-of-00003.gguf`.
//!
//! Invariant: a file is taken as a part only if its own metadata says the same part of the same count.
//! It doesn't know what the parts contain.

use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::metadata::Metadata;

const NUMBER_KEY: &str = "split.no";
const COUNT_KEY: &str = "split.count";
const TENSORS_KEY: &str = "split.tensors.count";

/// What a file says about being a part of a split model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// Which part this is, counted from 0.
    number: u64,
    /// How many parts there are, more than one.
    pub(crate) count: u64,
}

impl Split {
    /// Returns `None` for a model in one file.
    pub(crate) fn read(metadata: &Metadata) -> Result<Option<Self>, Error> {
        let count = metadata.optional_u64(COUNT_KEY)?.unwrap_or(1);
        if count <= 1 {
            return Ok(None);
        }
        let number = metadata.u64(NUMBER_KEY)?;
        if number >= count {
            return Err(Error::ShardMismatch {
                field: NUMBER_KEY,
                found: number.to_string(),
                expected: format!("less than {COUNT_KEY}, which is {count}"),
            });
        }
        Ok(Some(Self { number, count }))
    }

    /// Returns the paths of all parts, given that of the first; any other part is refused.
    pub(crate) fn paths(self, path: &Path) -> Result<impl Iterator<Item = PathBuf>, Error> {
        let (number, count) = (self.number + 1, self.count);
        let named = part_name(path).filter(|part| part.number == number && part.count == count);
        let stem = named.map(|part| part.stem.to_owned()).ok_or_else(|| Error::ShardMismatch {
            field: "the file's name",
            found: format!("\"{}\"", path.file_name().unwrap_or_default().display()),
            expected: format!("one that ends in -{number:05}-of-{count:05}.gguf"),
        })?;
        let folder = path.to_owned();
        let name = move |number: u64| {
            folder.with_file_name(format!("{stem}-{number:05}-of-{count:05}.gguf"))
        };
        if number != 1 {
            return Err(Error::NotFirstShard { number, count, first: name(1) });
        }
        Ok((1..=count).map(name))
    }

    /// Checks that a later part says that it is part `number`, counted from 0, of as many as this one.
    pub(crate) fn check_part(self, metadata: &Metadata, number: u64) -> Result<(), Error> {
        for (field, expected) in [(NUMBER_KEY, number), (COUNT_KEY, self.count)] {
            let found = metadata.u64(field)?;
            if found != expected {
                let (found, expected) = (found.to_string(), expected.to_string());
                return Err(Error::ShardMismatch { field, found, expected });
            }
        }
        Ok(())
    }
}

/// Checks that the parts together hold as many tensors as the first says.
pub(crate) fn check_tensor_count(metadata: &Metadata, tensors: usize) -> Result<(), Error> {
    let stated = metadata.u64(TENSORS_KEY)?;
    if stated == tensors as u64 {
        return Ok(());
    }
    Err(Error::ShardMismatch {
        field: TENSORS_KEY,
        found: stated.to_string(),
        expected: format!("{tensors}, which is what the parts hold together"),
    })
}

struct PartName<'a> {
    stem: &'a str,
    number: u64,
    count: u64,
}

fn part_name(path: &Path) -> Option<PartName<'_>> {
    let name = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
    let (name, count) = name.rsplit_once("-of-")?;
    let (stem, number) = name.rsplit_once('-')?;
    let digits = |text: &str| {
        let is_five_digits = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
        is_five_digits.then(|| text.parse().ok()).flatten()
    };
    Some(PartName { stem, number: digits(number)?, count: digits(count)? })
}
