//! The completion request: texts or tokens to continue, in the four shapes that the public API allows.
//!
//! Fields are obeyed, refused or ignored as in a chat request.

use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserializer, SeqAccess, Unexpected, Visitor};
use serde_json::Value;
use toko_engine::{Constraint, Opening, Params, Prompt};

use super::controls::{Controls, Delivery};
use super::structure::WireStructure;
use crate::Backend;
use crate::catalog::Model;
use crate::error::ApiError;
use crate::state::Shared;
use crate::validate::{at_least, invalid, missing, off, token_ids, unsupported, within};

/// Most prompts of a request.
const PROMPTS: usize = 128;

/// Most tokens of an answer when the request does not say; the public API's own figure.
const MAX_TOKENS: usize = 16;

/// A request to continue texts; `null` is the same as absent everywhere.
#[derive(Debug, Deserialize)]
pub(super) struct CompletionRequest {
    model: Option<String>,
    prompt: Option<Prompts>,
    max_tokens: Option<i64>,
    echo: Option<bool>,

    // What follows is checked, and refused unless it asks for what happens anyway.
    n: Option<i64>,
    best_of: Option<i64>,
    logprobs: Option<i64>,
    logit_bias: Option<Value>,
    suffix: Option<Value>,
}

/// What is to be continued.
#[derive(Debug)]
enum Prompts {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<i64>),
    TokenLists(Vec<Vec<i64>>),
}

/// A request that can be answered.
pub(super) struct Accepted {
    /// At least one, in the order of the choices.
    pub(super) prompts: Vec<Start>,
    pub(super) params: Params,
    /// The field that holds the answers to something, if any does.
    pub(super) demanded_by: String,
    pub(super) delivery: Delivery,
}

/// One prompt.
pub(super) struct Start {
    pub(super) prompt: Prompt,
    /// What the answer repeats before its own text; empty unless asked for.
    pub(super) echo: String,
    /// Where the prompt stands in the request.
    pub(super) param: String,
}

/// Checks a request against the rules of the public API and of this server.
pub(super) fn accept(
    request: CompletionRequest,
    controls: &Controls,
    structure: WireStructure,
    model: &Model,
) -> Result<Accepted, ApiError> {
    request.refuse_extensions()?;
    controls.refuse_extensions()?;
    let format = structure.accept()?;
    let demanded_by = format.as_ref().map(|format| format.param.clone()).unwrap_or_default();
    let params = Params {
        sampling: controls.sampling(&model.defaults)?,
        max_tokens: Some(at_least("max_tokens", request.max_tokens, 0)?.unwrap_or(MAX_TOKENS)),
        stop: controls.stop_texts()?,
        constraint: format.map(|format| Constraint::from(format.form)),
        logit_bias: Vec::new(),
        logprobs: None,
    };
    let prompts = request.prompt.ok_or_else(|| missing("prompt"))?;
    let prompts = prompts.accept(&*model.backend, request.echo.unwrap_or(false))?;
    Ok(Accepted { prompts, params, demanded_by, delivery: controls.delivery() })
}

impl CompletionRequest {
    /// Returns the model that is to answer.
    pub(super) fn model(&self, shared: &Shared) -> Result<Arc<Model>, ApiError> {
        shared.model(self.model.as_deref().ok_or_else(|| missing("model"))?)
    }

    fn refuse_extensions(&self) -> Result<(), ApiError> {
        if within("n", self.n, &(1..=128), "between 1 and 128")?.is_some_and(|n| n > 1) {
            return Err(unsupported("n", "this server gives one answer for each prompt"));
        }
        if within("best_of", self.best_of, &(0..=20), "between 0 and 20")?
            .is_some_and(|best_of| best_of > 1)
        {
            return Err(unsupported("best_of", "this server gives one answer for each prompt"));
        }
        if within("logprobs", self.logprobs, &(0..=5), "between 0 and 5")?.is_some() {
            return Err(unsupported("logprobs", "is not supported by this server"));
        }
        off("logit_bias", self.logit_bias.as_ref())?;
        off("suffix", self.suffix.as_ref())
    }
}

impl Prompts {
    /// Turns each prompt into tokens, and into the text that the answer repeats if `echo`.
    fn accept(self, backend: &dyn Backend, echo: bool) -> Result<Vec<Start>, ApiError> {
        let text = |text: String, param: String| Start {
            prompt: backend.text_prompt(&text),
            echo: if echo { text } else { String::new() },
            param,
        };
        let tokens = |ids: &[i64], param: String| {
            let tokenizer = backend.tokenizer();
            let tokens = token_ids(&param, ids, tokenizer.len())?;
            let echo = if echo { tokenizer.decode(&tokens, true) } else { String::new() };
            Ok(Start { prompt: Prompt { tokens, opening: Opening::Continuation }, echo, param })
        };
        let one = || "prompt".to_owned();
        let each = |index: usize| format!("prompt[{index}]");
        match self {
            Self::Text(prompt) => Ok(vec![text(prompt, one())]),
            Self::Tokens(ids) => Ok(vec![tokens(&ids, one())?]),
            Self::Texts(texts) => {
                check_count(texts.len())?;
                let texts = texts.into_iter().enumerate();
                Ok(texts.map(|(index, prompt)| text(prompt, each(index))).collect())
            }
            Self::TokenLists(lists) => {
                check_count(lists.len())?;
                lists.iter().enumerate().map(|(index, ids)| tokens(ids, each(index))).collect()
            }
        }
    }
}

fn check_count(prompts: usize) -> Result<(), ApiError> {
    match prompts {
        0 => Err(invalid("prompt", "must have at least one text or token")),
        1..=PROMPTS => Ok(()),
        _ => Err(invalid("prompt", format!("must have at most {PROMPTS} prompts, got {prompts}"))),
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
