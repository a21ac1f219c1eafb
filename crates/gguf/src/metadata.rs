//! The metadata of a file: keys in file order, found by name, read by type.
//!
//! Invariant: keys are unique, and every value lies inside the file. It doesn't know which keys a
//! model needs or what their values mean.

use std::ops::Range;
use std::sync::Arc;

use crate::cursor::Cursor;
use crate::error::Error;
use crate::mmap::Source;
use crate::value::{Array, Value, ValueType, read_number};

/// Answers questions about a file's metadata.
///
/// The getters name the key in their errors; the `optional_` ones return `None` only when the key is
/// absent. Strings are views into the file, arrays of numbers are copied.
#[derive(Clone, Debug)]
pub struct Metadata {
    source: Arc<Source>,
    entries: Vec<Entry>,
    /// Indices of `entries`, sorted by key.
    by_key: Vec<u32>,
}

#[derive(Clone, Debug)]
struct Entry {
    key: Range<usize>,
    kind: ValueType,
    payload: Range<usize>,
    /// Type and number of the elements, meaningful for an array only.
    elements: (ValueType, u64),
}

impl Metadata {
    /// Reads `pairs` pairs and leaves the offset of the first byte behind them in `at`.
    pub(crate) fn read(source: &Arc<Source>, at: &mut usize, pairs: u64) -> Result<Self, Error> {
        let mut cursor = Cursor::new(source, *at);
        let mut entries = Vec::new();
        for pair in 0..pairs {
            entries.push(Entry::read(&mut cursor, pair)?);
        }
        *at = cursor.position();
        let count = u32::try_from(entries.len()).expect("the limit on pairs is far below 2^32");
        let mut by_key: Vec<u32> = (0..count).collect();
        let key = |index: u32| &source[entries[index as usize].key.clone()];
        // Stable, so that of two equal keys the earlier one stays first.
        by_key.sort_by_key(|&index| key(index));
        let repeated = by_key.windows(2).find(|pair| key(pair[0]) == key(pair[1]));
        if let Some(pair) = repeated {
            return Err(Error::Duplicate {
                kind: "metadata key",
                name: String::from_utf8_lossy(key(pair[1])).into_owned(),
                offset: entries[pair[1] as usize].key.start as u64,
                first: entries[pair[0] as usize].key.start as u64,
            });
        }
        Ok(Self { source: Arc::clone(source), entries, by_key })
    }

    /// Returns the number of pairs.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Says whether there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Yields keys and values in file order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        self.entries.iter().map(|entry| {
            // Checked when the file was opened; it fails only if the file is changed meanwhile.
            let key = str::from_utf8(&self.source[entry.key.clone()]).unwrap_or_default();
            (key, self.value(entry))
        })
    }

    /// Returns the value of a key, whatever its type.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        self.find(key).map(|entry| self.value(entry))
    }

    /// Returns any integer that fits `u32`.
    pub fn u32(&self, key: &str) -> Result<u32, Error> {
        self.required(key)
    }

    /// Returns any integer that fits `u32`, if the key is there.
    pub fn optional_u32(&self, key: &str) -> Result<Option<u32>, Error> {
        self.optional(key)
    }

    /// Returns any integer that fits `u64`.
    pub fn u64(&self, key: &str) -> Result<u64, Error> {
        self.required(key)
    }

    /// Returns any integer that fits `u64`, if the key is there.
    pub fn optional_u64(&self, key: &str) -> Result<Option<u64>, Error> {
        self.optional(key)
    }

    /// Returns a float of either width, rounded to 32 bits; it may be NaN or infinite.
    pub fn f32(&self, key: &str) -> Result<f32, Error> {
        self.required(key)
    }

    /// Returns a float of either width, rounded to 32 bits, if the key is there; it may be NaN or infinite.
    pub fn optional_f32(&self, key: &str) -> Result<Option<f32>, Error> {
        self.optional(key)
    }

    /// Returns a bool.
    pub fn bool(&self, key: &str) -> Result<bool, Error> {
        self.required(key)
    }

    /// Returns a bool, if the key is there.
    pub fn optional_bool(&self, key: &str) -> Result<Option<bool>, Error> {
        self.optional(key)
    }

    /// Returns a string that is UTF-8; the bytes of one that isn't are in [`get`](Self::get).
    pub fn str(&self, key: &str) -> Result<&str, Error> {
        self.optional_str(key)?.ok_or_else(|| missing(key))
    }

    /// Returns a string that is UTF-8, if the key is there.
    pub fn optional_str(&self, key: &str) -> Result<Option<&str>, Error> {
        let Some(bytes) = self.optional::<&[u8]>(key)? else { return Ok(None) };
        str::from_utf8(bytes).map(Some).map_err(|_| self.not_utf8(key, key.to_owned()))
    }

    /// Returns an array of strings, each UTF-8; the bytes of those that aren't are in [`get`](Self::get).
    pub fn string_array(&self, key: &str) -> Result<Vec<&str>, Error> {
        self.optional_string_array(key)?.ok_or_else(|| missing(key))
    }

    /// Returns an array of strings, each UTF-8, if the key is there.
    pub fn optional_string_array(&self, key: &str) -> Result<Option<Vec<&str>>, Error> {
        let Some(strings) = self.optional::<Vec<&[u8]>>(key)? else { return Ok(None) };
        let strings = strings.into_iter().enumerate().map(|(index, bytes)| {
            str::from_utf8(bytes).map_err(|_| self.not_utf8(key, format!("{key}[{index}]")))
        });
        strings.collect::<Result<Vec<_>, _>>().map(Some)
    }

    /// Returns an array of any integers that fit `i32`.
    pub fn i32_array(&self, key: &str) -> Result<Vec<i32>, Error> {
        self.required(key)
    }

    /// Returns an array of any integers that fit `i32`, if the key is there.
    pub fn optional_i32_array(&self, key: &str) -> Result<Option<Vec<i32>>, Error> {
        self.optional(key)
    }

    /// Returns an array of floats of either width, rounded to 32 bits.
    pub fn f32_array(&self, key: &str) -> Result<Vec<f32>, Error> {
        self.required(key)
    }

    /// Returns an array of floats of either width, rounded to 32 bits, if the key is there.
    pub fn optional_f32_array(&self, key: &str) -> Result<Option<Vec<f32>>, Error> {
        self.optional(key)
    }

    /// Returns the offset of a key's value in the file, for errors that complain about the value.
    pub fn value_offset(&self, key: &str) -> Option<u64> {
        self.find(key).map(|entry| entry.payload.start as u64)
    }

    fn required<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, Error> {
        self.optional(key)?.ok_or_else(|| missing(key))
    }

    fn optional<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>, Error> {
        let Some(entry) = self.find(key) else { return Ok(None) };
        let value = self.value(entry);
        T::from_value(value).map(Some).ok_or_else(|| Error::WrongType {
            key: key.to_owned(),
            offset: entry.payload.start as u64,
            found: value.to_string(),
            wanted: T::WANTED,
        })
    }

    fn find(&self, key: &str) -> Option<&Entry> {
        let entry = |index: u32| &self.entries[index as usize];
        let found = self
            .by_key
            .binary_search_by(|&index| self.source[entry(index).key.clone()].cmp(key.as_bytes()));
        found.ok().map(|position| entry(self.by_key[position]))
    }

    fn value(&self, entry: &Entry) -> Value<'_> {
        let payload = &self.source[entry.payload.clone()];
        match entry.kind {
            ValueType::String => Value::String(payload),
            ValueType::Array => {
                Value::Array(Array::new(entry.elements.0, entry.elements.1, payload))
            }
            kind => read_number(&mut Cursor::new(payload, 0), kind, format_args!("value"))
                .expect("the payload of a number has the number's length"),
        }
    }

    fn not_utf8(&self, key: &str, what: String) -> Error {
        Error::NotUtf8 { key: what, offset: self.value_offset(key).unwrap_or_default() }
    }
}

impl Entry {
    fn read(cursor: &mut Cursor<'_>, pair: u64) -> Result<Self, Error> {
        let limit = Error::MAX_KEY_BYTES;
        let len = cursor.count(1, limit, format_args!("length of metadata key {pair}"))?;
        let key_start = cursor.position();
        let bytes = cursor.take(len, format_args!("metadata key {pair}"))?;
        let key = str::from_utf8(bytes).ok().filter(|key| !key.is_empty());
        let key = key.ok_or_else(|| Error::Invalid {
            field: format!("metadata key {pair}"),
            offset: key_start as u64,
            found: format!("\"{}\"", bytes[..bytes.len().min(40)].escape_ascii()),
            expected: "UTF-8 text of at least one byte".to_owned(),
        })?;
        let key_range = key_start..cursor.position();
        let kind = ValueType::read(cursor, format_args!("type of metadata key `{key}`"))?;
        let field = format_args!("value of metadata key `{key}`");
        let start = cursor.position();
        let value = Value::read(cursor, kind, Error::MAX_ARRAY_DEPTH, field)?;
        let end = cursor.position();
        let (payload, elements) = match value {
            Value::String(bytes) => (bytes.len(), (kind, 0)),
            Value::Array(array) => (array.bytes().len(), (array.element_type(), array.len())),
            _ => (end - start, (kind, 0)),
        };
        Ok(Self { key: key_range, kind, payload: end - payload..end, elements })
    }
}

fn missing(key: &str) -> Error {
    Error::MissingKey { key: key.to_owned() }
}

trait FromValue<'a>: Sized {
    /// What the type is called in an error.
    const WANTED: &'static str;

    fn from_value(value: Value<'a>) -> Option<Self>;
}

impl FromValue<'_> for u32 {
    const WANTED: &'static str = "an integer that fits u32";

    fn from_value(value: Value<'_>) -> Option<Self> {
        value.as_integer()?.try_into().ok()
    }
}

impl FromValue<'_> for u64 {
    const WANTED: &'static str = "an integer that fits u64";

    fn from_value(value: Value<'_>) -> Option<Self> {
        value.as_integer()?.try_into().ok()
    }
}

impl FromValue<'_> for f32 {
    const WANTED: &'static str = "a float";

    fn from_value(value: Value<'_>) -> Option<Self> {
        value.as_f32()
    }
}

impl FromValue<'_> for bool {
    const WANTED: &'static str = "a bool";

    fn from_value(value: Value<'_>) -> Option<Self> {
        match value {
            Value::Bool(value) => Some(value),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for &'a [u8] {
    const WANTED: &'static str = "a string";

    fn from_value(value: Value<'a>) -> Option<Self> {
        match value {
            Value::String(bytes) => Some(bytes),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for Vec<&'a [u8]> {
    const WANTED: &'static str = "an array of strings";

    fn from_value(value: Value<'a>) -> Option<Self> {
        elements(value, |kind| kind == ValueType::String, <&[u8]>::from_value)
    }
}

impl FromValue<'_> for Vec<i32> {
    const WANTED: &'static str = "an array of integers that fit i32";

    fn from_value(value: Value<'_>) -> Option<Self> {
        elements(value, ValueType::is_integer, |element| element.as_integer()?.try_into().ok())
    }
}

impl FromValue<'_> for Vec<f32> {
    const WANTED: &'static str = "an array of floats";

    fn from_value(value: Value<'_>) -> Option<Self> {
        elements(value, ValueType::is_float, |element| element.as_f32())
    }
}

/// Converts all elements of an array whose type is accepted, or none if one doesn't convert.
///
/// The type is asked first, so that what is allocated is in proportion to the bytes in the file.
fn elements<'a, T>(
    value: Value<'a>,
    is_accepted: impl FnOnce(ValueType) -> bool,
    convert: impl FnMut(Value<'a>) -> Option<T>,
) -> Option<Vec<T>> {
    let Value::Array(array) = value else { return None };
    if !is_accepted(array.element_type()) {
        return None;
    }
    let mut converted = Vec::with_capacity(usize::try_from(array.len()).ok()?);
    for element in array.iter().map(convert) {
        converted.push(element?);
    }
    (converted.len() as u64 == array.len()).then_some(converted)
}
