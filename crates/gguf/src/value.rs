//! Metadata values as they lie in the file: numbers by value, strings and arrays as views.
//!
//! Invariant: reading a value allocates nothing, so a claimed length costs nothing before its bytes are
//! seen to exist. It doesn't know any key.

use std::fmt;

use crate::cursor::Cursor;
use crate::error::Error;

/// Names the type of a metadata value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// An unsigned 8-bit integer.
    U8,
    /// A signed 8-bit integer.
    I8,
    /// An unsigned 16-bit integer.
    U16,
    /// A signed 16-bit integer.
    I16,
    /// An unsigned 32-bit integer.
    U32,
    /// A signed 32-bit integer.
    I32,
    /// A 32-bit float.
    F32,
    /// A byte that is 0 or 1.
    Bool,
    /// A length and as many bytes, meant to be UTF-8.
    String,
    /// An element type, a length and as many values.
    Array,
    /// An unsigned 64-bit integer.
    U64,
    /// A signed 64-bit integer.
    I64,
    /// A 64-bit float.
    F64,
}

impl ValueType {
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    pub(crate) fn id(self) -> u32 {
        self as u32
    }

    pub(crate) fn is_integer(self) -> bool {
        !self.is_float() && !matches!(self, Self::Bool | Self::String | Self::Array)
    }

    pub(crate) fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }

    pub(crate) fn read(cursor: &mut Cursor<'_>, field: fmt::Arguments<'_>) -> Result<Self, Error> {
        let offset = cursor.offset();
        let id = cursor.u32(field)?;
        let known = usize::try_from(id).ok().and_then(|id| Self::ALL.get(id));
        known.copied().ok_or_else(|| Error::Invalid {
            field: field.to_string(),
            offset,
            found: id.to_string(),
            expected: "a value type from 0 to 12".to_owned(),
        })
    }

    /// Bytes of a number, or `None` for what carries its own length.
    fn fixed_bytes(self) -> Option<u64> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::String | Self::Array => None,
        }
    }

    /// The fewest bytes that a value of this type takes.
    fn least_bytes(self) -> u64 {
        match self {
            Self::String => 8,
            Self::Array => 12,
            number => number.fixed_bytes().unwrap_or(1),
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        })
    }
}

/// Holds one metadata value; strings and arrays are views into the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// An unsigned 8-bit integer.
    U8(u8),
    /// A signed 8-bit integer.
    I8(i8),
    /// An unsigned 16-bit integer.
    U16(u16),
    /// A signed 16-bit integer.
    I16(i16),
    /// An unsigned 32-bit integer.
    U32(u32),
    /// A signed 32-bit integer.
    I32(i32),
    /// A 32-bit float.
    F32(f32),
    /// A truth value.
    Bool(bool),
    /// The bytes of a string, which need not be UTF-8.
    String(&'a [u8]),
    /// Values of one type.
    Array(Array<'a>),
    /// An unsigned 64-bit integer.
    U64(u64),
    /// A signed 64-bit integer.
    I64(i64),
    /// A 64-bit float.
    F64(f64),
}

impl<'a> Value<'a> {
    /// Returns the type that the file gives the value.
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// Returns the value of any integer type, or `None` for anything else.
    pub fn as_integer(&self) -> Option<i128> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::I8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::I16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::I32(v) => Some(v.into()),
            Self::U64(v) => Some(v.into()),
            Self::I64(v) => Some(v.into()),
            _ => None,
        }
    }

    /// Returns the value of either float type, rounded to 32 bits, or `None` for anything else.
    pub fn as_f32(&self) -> Option<f32> {
        match *self {
            Self::F32(v) => Some(v),
            #[expect(clippy::cast_possible_truncation, reason = "rounding is what is promised")]
            Self::F64(v) => Some(v as f32),
            _ => None,
        }
    }

    /// Reads a value of a known type and checks everything inside it.
    ///
    /// `depth`: how many more arrays may be nested.
    pub(crate) fn read(
        cursor: &mut Cursor<'a>,
        kind: ValueType,
        depth: u32,
        field: fmt::Arguments<'_>,
    ) -> Result<Self, Error> {
        match kind {
            ValueType::String => Ok(Self::String(read_string(cursor, field)?)),
            ValueType::Array => Ok(Self::Array(Array::read(cursor, depth, field)?)),
            ValueType::Bool => {
                let offset = cursor.offset();
                let [byte] = cursor.array(field)?;
                check_bools(&[byte], offset, field)?;
                Ok(Self::Bool(byte != 0))
            }
            _ => read_number(cursor, kind, field),
        }
    }
}

/// Shows type and value in a few words, however long the value is.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.value_type();
        match self {
            Self::F32(v) => write!(f, "{kind} {v}"),
            Self::F64(v) => write!(f, "{kind} {v}"),
            Self::Bool(v) => write!(f, "{kind} {v}"),
            Self::String(bytes) => {
                let shown = &bytes[..bytes.len().min(40)];
                let more = if shown.len() < bytes.len() { "…" } else { "" };
                write!(f, "{kind} \"{}{more}\"", shown.escape_ascii())
            }
            Self::Array(array) => write!(f, "array of {} {}", array.len, array.element),
            _ => write!(f, "{kind} {}", self.as_integer().unwrap_or_default()),
        }
    }
}

/// Views the values of an array, checked when the file was opened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Array<'a> {
    element: ValueType,
    len: u64,
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    pub(crate) fn new(element: ValueType, len: u64, bytes: &'a [u8]) -> Self {
        Self { element, len, bytes }
    }

    fn read(cursor: &mut Cursor<'a>, depth: u32, field: fmt::Arguments<'_>) -> Result<Self, Error> {
        if depth == 0 {
            return Err(Error::Limit {
                field: format!("nesting of arrays in {field}"),
                offset: cursor.offset(),
                found: u64::from(Error::MAX_ARRAY_DEPTH) + 1,
                limit: Error::MAX_ARRAY_DEPTH.into(),
            });
        }
        let element = ValueType::read(cursor, format_args!("element type of {field}"))?;
        let least = element.least_bytes();
        let len = cursor.count(least, u64::MAX, format_args!("length of {field}"))?;
        let mut walk = cursor.clone();
        if element.fixed_bytes().is_some() {
            // `count` has seen that `len` times `least` bytes are there.
            let offset = walk.offset();
            let bytes = walk.take(len * least, field)?;
            if element == ValueType::Bool {
                check_bools(bytes, offset, field)?;
            }
        } else {
            for index in 0..len {
                Value::read(&mut walk, element, depth - 1, format_args!("{field}[{index}]"))?;
            }
        }
        let bytes = cursor.take(walk.offset() - cursor.offset(), field)?;
        Ok(Self { element, len, bytes })
    }

    /// Returns the type of the elements.
    pub fn element_type(&self) -> ValueType {
        self.element
    }

    /// Returns the number of elements.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Says whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Yields the elements in order, and fewer than [`len`](Self::len) only if the file is changed meanwhile.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let mut cursor = Cursor::new(self.bytes, 0);
        let element = self.element;
        (0..self.len).map_while(move |_| {
            Value::read(&mut cursor, element, Error::MAX_ARRAY_DEPTH, format_args!("element")).ok()
        })
    }

    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

fn read_string<'a>(cursor: &mut Cursor<'a>, field: fmt::Arguments<'_>) -> Result<&'a [u8], Error> {
    let len = cursor.count(1, u64::MAX, format_args!("length of {field}"))?;
    cursor.take(len, field)
}

/// Decodes a number; a bool counts as one and any non-zero byte as true.
pub(crate) fn read_number<'a>(
    cursor: &mut Cursor<'a>,
    kind: ValueType,
    field: fmt::Arguments<'_>,
) -> Result<Value<'a>, Error> {
    Ok(match kind {
        ValueType::U8 => Value::U8(u8::from_le_bytes(cursor.array(field)?)),
        ValueType::I8 => Value::I8(i8::from_le_bytes(cursor.array(field)?)),
        ValueType::U16 => Value::U16(u16::from_le_bytes(cursor.array(field)?)),
        ValueType::I16 => Value::I16(i16::from_le_bytes(cursor.array(field)?)),
        ValueType::U32 => Value::U32(cursor.u32(field)?),
        ValueType::I32 => Value::I32(i32::from_le_bytes(cursor.array(field)?)),
        ValueType::F32 => Value::F32(f32::from_le_bytes(cursor.array(field)?)),
        ValueType::U64 => Value::U64(cursor.u64(field)?),
        ValueType::I64 => Value::I64(i64::from_le_bytes(cursor.array(field)?)),
        ValueType::F64 => Value::F64(f64::from_le_bytes(cursor.array(field)?)),
        ValueType::Bool => Value::Bool(cursor.array(field)? != [0]),
        ValueType::String | ValueType::Array => unreachable!("strings and arrays are no numbers"),
    })
}

fn check_bools(bytes: &[u8], offset: u64, field: fmt::Arguments<'_>) -> Result<(), Error> {
    let Some(index) = bytes.iter().position(|&byte| byte > 1) else { return Ok(()) };
    Err(Error::Invalid {
        field: field.to_string(),
        offset: offset + index as u64,
        found: bytes[index].to_string(),
        expected: "a bool, 0 or 1".to_owned(),
    })
}
