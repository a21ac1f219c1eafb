//! Texts or tokens, one or several, in the four shapes that the public API allows.

use std::fmt;

use serde::Deserialize;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserializer, SeqAccess, Unexpected, Visitor};

use crate::error::ApiError;
use crate::validate::invalid;

/// What a request has to work on.
#[derive(Debug)]
pub(super) enum Prompts {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<i64>),
    TokenLists(Vec<Vec<i64>>),
}

/// One of them.
pub(super) enum Input {
    Text(String),
    /// Numbers that are not known to be tokens yet.
    Tokens(Vec<i64>),
}

impl Prompts {
    /// Returns each with its place in the request, from 1 to `most`.
    pub(super) fn split(self, param: &str, most: usize) -> Result<Vec<(String, Input)>, ApiError> {
        let inputs: Vec<Input> = match self {
            Self::Text(text) => return Ok(vec![(param.to_owned(), Input::Text(text))]),
            Self::Tokens(ids) => return Ok(vec![(param.to_owned(), Input::Tokens(ids))]),
            Self::Texts(texts) => texts.into_iter().map(Input::Text).collect(),
            Self::TokenLists(lists) => lists.into_iter().map(Input::Tokens).collect(),
        };
        if inputs.is_empty() {
            return Err(invalid(param, "must have at least one text or token"));
        }
        if inputs.len() > most {
            let reason = format!("must have at most {most} texts, got {}", inputs.len());
            return Err(invalid(param, reason));
        }
        let inputs = inputs.into_iter().enumerate();
        Ok(inputs.map(|(index, input)| (format!("{param}[{index}]"), input)).collect())
    }
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyShape;

        impl<'de> Visitor<'de> for AnyShape {
            type Value = Prompts;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter
                    .write_str("a string or an array of strings, of tokens or of arrays of tokens")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Prompts, E> {
                Ok(Prompts::Text(text.to_owned()))
            }

            /// The first item says what all the others must be.
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Prompts, A::Error> {
                match items.next_element()? {
                    None => Ok(Prompts::Texts(Vec::new())),
                    Some(Item::Text(first)) => all(first, items).map(Prompts::Texts),
                    Some(Item::Token(first)) => all(first, items).map(Prompts::Tokens),
                    Some(Item::Tokens(first)) => all(first, items).map(Prompts::TokenLists),
                }
            }
        }

        deserializer.deserialize_any(AnyShape)
    }
}

/// Reads what is left of an array behind its first item.
fn all<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(
    first: T,
    mut items: A,
) -> Result<Vec<T>, A::Error> {
    let mut read = vec![first];
    while let Some(item) = items.next_element()? {
        read.push(item);
    }
    Ok(read)
}

/// The first item of an array of prompts or of tokens.
enum Item {
    Text(String),
    Token(i64),
    Tokens(Vec<i64>),
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyItem;

        impl<'de> Visitor<'de> for AnyItem {
            type Value = Item;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a string, a token or an array of tokens")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Item, E> {
                Ok(Item::Text(text.to_owned()))
            }

            fn visit_i64<E: serde::de::Error>(self, token: i64) -> Result<Item, E> {
                Ok(Item::Token(token))
            }

            fn visit_u64<E: serde::de::Error>(self, token: u64) -> Result<Item, E> {
                let small = i64::try_from(token);
                small
                    .map(Item::Token)
                    .map_err(|_| E::invalid_value(Unexpected::Unsigned(token), &self))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, tokens: A) -> Result<Item, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(tokens)).map(Item::Tokens)
            }
        }

        deserializer.deserialize_any(AnyItem)
    }
}
