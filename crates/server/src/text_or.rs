//! A value that clients write as a string or, longer, as an array.
//!
//! Invariant: the path of a wrong item is kept, which an untagged enum would lose.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserializer, SeqAccess, Visitor};

/// A text, or several items that may be more than text.
#[derive(Debug)]
pub(crate) enum TextOr<T> {
    Text(String),
    Several(Vec<T>),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for TextOr<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EitherOf<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for EitherOf<T> {
            type Value = TextOr<T>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a string or an array")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(TextOr::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Self::Value, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(items)).map(TextOr::Several)
            }
        }

        deserializer.deserialize_any(EitherOf(PhantomData))
    }
}
