//! Reads the tensor directory of one file and finds each tensor's bytes.
//!
//! Invariant: every tensor that is returned has a unique name, lies inside the file, is aligned, and
//! shares no byte with another. It doesn't touch tensor data.

use crate::cursor::Cursor;
use crate::error::Error;
use crate::q2;
use crate::tensor::{TensorInfo, TensorType};

#[derive(Debug)]
pub(crate) struct Directory {
    /// In file order.
    pub(crate) tensors: Vec<TensorInfo>,
    /// What the offsets say about each tensor of type id 42.
    pub(crate) q2: Vec<q2::Fit>,
}

/// Where the fields of one entry are, for errors.
struct Place {
    name: u64,
    shape: u64,
    data: u64,
}

impl Directory {
    /// Reads `count` entries; the data section starts behind them, at the next multiple of `alignment`.
    pub(crate) fn read(
        mut cursor: Cursor<'_>,
        count: u64,
        alignment: u32,
        shard: usize,
    ) -> Result<Self, Error> {
        let mut tensors = Vec::new();
        let mut places = Vec::new();
        for index in 0..count {
            let (tensor, place) = read_entry(&mut cursor, index, alignment, shard)?;
            tensors.push(tensor);
            places.push(place);
        }
        refuse_repeated_names(&tensors, &places)?;
        let file_bytes = cursor.offset() + cursor.remaining();
        let data = cursor.offset().next_multiple_of(alignment.into());
        let q2 = locate(&mut tensors, &places, alignment, data, file_bytes)?;
        Ok(Self { tensors, q2 })
    }
}

/// Reads one entry; its offset is still relative to the data section, and its bytes are not known yet.
fn read_entry(
    cursor: &mut Cursor<'_>,
    index: u64,
    alignment: u32,
    shard: usize,
) -> Result<(TensorInfo, Place), Error> {
    let limit = Error::MAX_NAME_BYTES;
    let len = cursor.count(1, limit, format_args!("length of the name of tensor {index}"))?;
    let name_at = cursor.offset();
    let bytes = cursor.take(len, format_args!("name of tensor {index}"))?;
    let name = str::from_utf8(bytes).ok().filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| Error::Invalid {
        field: format!("name of tensor {index}"),
        offset: name_at,
        found: format!("\"{}\"", bytes.escape_ascii()),
        expected: "UTF-8 text of at least one byte".to_owned(),
    })?;
    let (shape, shape_at) = read_shape(cursor, name)?;
    let kind = TensorType(cursor.u32(format_args!("type of tensor `{name}`"))?);
    let data_at = cursor.offset();
    let offset = cursor.u64(format_args!("offset of tensor `{name}`"))?;
    if !offset.is_multiple_of(alignment.into()) {
        return Err(Error::Invalid {
            field: format!("offset of tensor `{name}`"),
            offset: data_at,
            found: offset.to_string(),
            expected: format!("a multiple of the alignment, {alignment}"),
        });
    }
    let tensor = TensorInfo { name: name.to_owned(), shape, kind, bytes: 0, offset, shard };
    Ok((tensor, Place { name: name_at, shape: shape_at, data: data_at }))
}

/// Reads the extents, whose product fits `i64`; returns also where they are.
fn read_shape(cursor: &mut Cursor<'_>, name: &str) -> Result<(Vec<u64>, u64), Error> {
    let at = cursor.offset();
    let dims = cursor.u32(format_args!("number of dimensions of tensor `{name}`"))?;
    if !(1..=Error::MAX_DIMS).contains(&dims) {
        return Err(Error::Invalid {
            field: format!("number of dimensions of tensor `{name}`"),
            offset: at,
            found: dims.to_string(),
            expected: format!("1 to {}", Error::MAX_DIMS),
        });
    }
    let shape_at = cursor.offset();
    let mut shape = Vec::with_capacity(dims as usize);
    let mut elements = 1_u64;
    for dim in 0..dims {
        let at = cursor.offset();
        let extent = cursor.u64(format_args!("dimension {dim} of tensor `{name}`"))?;
        let product = elements.checked_mul(extent).filter(|&n| n > 0 && i64::try_from(n).is_ok());
        elements = product.ok_or_else(|| Error::Invalid {
            field: format!("dimension {dim} of tensor `{name}`"),
            offset: at,
            found: extent.to_string(),
            expected: "at least 1, and fewer than 2^63 elements in all".to_owned(),
        })?;
        shape.push(extent);
    }
    Ok((shape, shape_at))
}

fn refuse_repeated_names(tensors: &[TensorInfo], places: &[Place]) -> Result<(), Error> {
    let mut by_name: Vec<usize> = (0..tensors.len()).collect();
    // Stable, so that of two equal names the earlier one stays first.
    by_name.sort_by(|&a, &b| tensors[a].name.cmp(&tensors[b].name));
    let repeated = by_name.windows(2).find(|pair| tensors[pair[0]].name == tensors[pair[1]].name);
    let Some(pair) = repeated else { return Ok(()) };
    Err(Error::Duplicate {
        kind: "tensor name",
        name: tensors[pair[1]].name.clone(),
        offset: places[pair[1]].name,
        first: places[pair[0]].name,
    })
}

/// Makes the offsets absolute, fills in the bytes and refuses what lies outside or overlaps.
fn locate(
    tensors: &mut [TensorInfo],
    places: &[Place],
    alignment: u32,
    data: u64,
    file_bytes: u64,
) -> Result<Vec<q2::Fit>, Error> {
    for (tensor, place) in tensors.iter_mut().zip(places) {
        let absolute = data.checked_add(tensor.offset).filter(|&at| at < file_bytes);
        tensor.offset = absolute.ok_or_else(|| Error::Invalid {
            field: format!("offset of tensor `{}`", tensor.name),
            offset: place.data,
            found: tensor.offset.to_string(),
            expected: format!(
                "less than {}, the length of the data section; the file may be cut short",
                file_bytes.saturating_sub(data)
            ),
        })?;
    }
    let mut by_offset: Vec<usize> = (0..tensors.len()).collect();
    by_offset.sort_by_key(|&index| tensors[index].offset);
    let mut q2 = Vec::new();
    for (position, &index) in by_offset.iter().enumerate() {
        let next = by_offset.get(position + 1).copied();
        let end = next.map_or(file_bytes, |next| tensors[next].offset);
        let tensor = &tensors[index];
        let span = end - tensor.offset;
        if tensor.kind == TensorType::Q2_0 {
            q2.push(q2::Fit::new(tensor, index, span, alignment));
        }
        let bytes = needed(tensor, &places[index])?.unwrap_or(span.max(1));
        if bytes > span {
            return Err(too_long(tensor, bytes, span, next.map(|next| &tensors[next])));
        }
        tensors[index].bytes = bytes;
    }
    Ok(q2)
}

/// The bytes of a tensor whose type has one known block, `None` otherwise.
fn needed(tensor: &TensorInfo, place: &Place) -> Result<Option<u64>, Error> {
    let Some(block) = tensor.kind.block() else { return Ok(None) };
    let (name, row) = (&tensor.name, tensor.shape[0]);
    if !row.is_multiple_of(block.elements) {
        return Err(Error::Invalid {
            field: format!("dimension 0 of tensor `{name}`"),
            offset: place.shape,
            found: row.to_string(),
            expected: format!("a multiple of {}, the block of {}", block.elements, tensor.kind),
        });
    }
    let bytes = (tensor.elements() / block.elements).checked_mul(block.bytes);
    bytes.map(Some).ok_or_else(|| Error::Invalid {
        field: format!("shape of tensor `{name}`"),
        offset: place.shape,
        found: format!("{:?}", tensor.shape),
        expected: "fewer than 2^64 bytes in all".to_owned(),
    })
}

fn too_long(tensor: &TensorInfo, bytes: u64, span: u64, next: Option<&TensorInfo>) -> Error {
    match next {
        Some(next) => Error::Overlap {
            first: tensor.name.clone(),
            end: tensor.offset.saturating_add(bytes),
            second: next.name.clone(),
            offset: next.offset,
        },
        None => Error::Truncated {
            field: format!("data of tensor `{}`", tensor.name),
            offset: tensor.offset,
            needed: bytes,
            remaining: span,
        },
    }
}
