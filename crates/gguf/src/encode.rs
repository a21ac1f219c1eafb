//! How Rust values become metadata values of a file.
//!
//! Invariant: the type is known without looking at the value, so that an empty array has one too. It
//! doesn't know any key.

use crate::value::ValueType;

/// Encodes a value as metadata: numbers, bools, strings, and slices of what can be encoded.
pub trait Encode {
    /// The type that the value gets in the file.
    const TYPE: ValueType;

    /// Appends the value, without its type.
    fn encode(&self, out: &mut Vec<u8>);
}

macro_rules! encode_numbers {
    ($($number:ty => $kind:ident,)*) => {
        $(impl Encode for $number {
            const TYPE: ValueType = ValueType::$kind;

            fn encode(&self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }
        })*
    };
}

encode_numbers! {
    u8 => U8,
    i8 => I8,
    u16 => U16,
    i16 => I16,
    u32 => U32,
    i32 => I32,
    f32 => F32,
    u64 => U64,
    i64 => I64,
    f64 => F64,
}

impl Encode for bool {
    const TYPE: ValueType = ValueType::Bool;

    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl Encode for str {
    const TYPE: ValueType = ValueType::String;

    fn encode(&self, out: &mut Vec<u8>) {
        encode_string(self.as_bytes(), out);
    }
}

impl Encode for String {
    const TYPE: ValueType = ValueType::String;

    fn encode(&self, out: &mut Vec<u8>) {
        self.as_str().encode(out);
    }
}

impl<T: Encode> Encode for [T] {
    const TYPE: ValueType = ValueType::Array;

    fn encode(&self, out: &mut Vec<u8>) {
        T::TYPE.id().encode(out);
        (self.len() as u64).encode(out);
        for element in self {
            element.encode(out);
        }
    }
}

impl<T: Encode, const N: usize> Encode for [T; N] {
    const TYPE: ValueType = ValueType::Array;

    fn encode(&self, out: &mut Vec<u8>) {
        self.as_slice().encode(out);
    }
}

impl<T: Encode> Encode for Vec<T> {
    const TYPE: ValueType = ValueType::Array;

    fn encode(&self, out: &mut Vec<u8>) {
        self.as_slice().encode(out);
    }
}

impl<T: Encode + ?Sized> Encode for &T {
    const TYPE: ValueType = T::TYPE;

    fn encode(&self, out: &mut Vec<u8>) {
        (**self).encode(out);
    }
}

pub(crate) fn encode_string(bytes: &[u8], out: &mut Vec<u8>) {
    (bytes.len() as u64).encode(out);
    out.extend(bytes);
}
