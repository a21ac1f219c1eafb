//! The tokens of a model: their texts, kinds and bytes.
//!
//! Invariant: a `Vocabulary` has been checked. Every id that it hands out is in range, no two tokens share a text,
//! and each token's bytes are known. It knows nothing about how text is split.

use std::collections::BTreeSet;

use tokenizers::models::bpe::Vocab as TokenIds;

use crate::byte_level;
use crate::error::Error;
use crate::marks;

pub(crate) const TOKENS: &str = "tokenizer.ggml.tokens";

/// The character that stands for a space in SPM vocabularies.
pub(crate) const UNDERLINE: char = '\u{2581}';

/// Holds what a model file says about its tokenizer, unchecked.
///
/// Fields are named after their keys below `tokenizer.ggml.`; a missing key is `None` or empty.
#[derive(Debug, Clone, Default)]
pub struct VocabularySource {
    /// `general.name`: some models' control tokens swallow the white space after them, which only the name tells.
    pub model_name: Option<String>,
    /// `model`: the tokenizer's kind, `gpt2` for BPE or `llama` for SPM.
    pub model: String,
    /// `pre`: the name of the pre-tokenizer of a BPE vocabulary.
    pub pre: Option<String>,
    /// `tokens`: the text of each token.
    pub tokens: Vec<String>,
    /// `token_type`: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte; empty means all normal.
    pub token_types: Vec<i32>,
    /// `scores`: the rank of each token of an SPM vocabulary.
    pub scores: Vec<f32>,
    /// `merges`: the pairs of a BPE vocabulary, best first, each `left right`.
    pub merges: Vec<String>,
    /// `bos_token_id`.
    pub bos: Option<u32>,
    /// `eos_token_id`.
    pub eos: Option<u32>,
    /// `eot_token_id`.
    pub eot: Option<u32>,
    /// `padding_token_id`.
    pub pad: Option<u32>,
    /// `unknown_token_id`.
    pub unk: Option<u32>,
    /// `add_bos_token`.
    pub add_bos: Option<bool>,
    /// `add_eos_token`.
    pub add_eos: Option<bool>,
    /// `add_space_prefix`: whether SPM text begins with a space.
    pub add_space_prefix: Option<bool>,
    /// Further ids that end an answer (`eom_token_id`, …), beside those that the vocabulary itself shows.
    pub end_of_generation: Vec<u32>,
}

/// Says what a token is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl TokenKind {
    /// Says whether the token steers the model and is no text of its own.
    pub(crate) fn is_control(self) -> bool {
        matches!(self, Self::Control | Self::Unknown)
    }

    /// Says whether merging may make the token; the others are found whole or not at all.
    pub(crate) fn is_merged(self) -> bool {
        matches!(self, Self::Normal | Self::Unused)
    }
}

/// Says how the texts of normal tokens are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// In the byte alphabet of GPT-2.
    ByteLevel,
    /// As text in which U+2581 stands for a space.
    Underlined,
}

/// Holds the checked tokens of a model.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    /// All texts on end: as strings of their own they would take several times as much.
    texts: String,
    /// Where each token's text begins in `texts`; one entry more than there are tokens.
    text_starts: Vec<usize>,
    kinds: Vec<TokenKind>,
    bytes: Vec<u8>,
    /// Where each token's bytes begin in `bytes`; one entry more than there are tokens.
    starts: Vec<usize>,
    end_of_generation: BTreeSet<u32>,
}

impl Vocabulary {
    /// Checks the tokens and returns them with the map from text to id.
    ///
    /// Takes `tokens` and `token_types` away.
    pub(crate) fn new(
        source: &mut VocabularySource,
        spelling: Spelling,
    ) -> Result<(Self, TokenIds), Error> {
        let texts = std::mem::take(&mut source.tokens);
        if texts.is_empty() {
            return Err(Error::EmptyVocabulary);
        }
        if u32::try_from(texts.len()).is_err() {
            return Err(Error::Vocabulary(format!(
                "{} tokens are more than ids can number",
                texts.len()
            )));
        }
        let texts = name_the_empty(texts);
        let mut kinds = token_kinds(&std::mem::take(&mut source.token_types), texts.len())?;
        check_ids(source, texts.len())?;
        let (text_starts, on_end) = joined(&texts);
        let ids = token_ids(texts)?;
        marks::correct_kinds(&ids, &mut kinds);
        let end_of_generation = marks::end_of_generation(&ids, source);
        let (texts, bytes, starts) = (on_end, Vec::new(), Vec::with_capacity(text_starts.len()));
        let mut vocabulary = Self { texts, text_starts, kinds, bytes, starts, end_of_generation };
        vocabulary.find_bytes(spelling)?;
        Ok((vocabulary, ids))
    }

    /// Fills `bytes` and `starts`.
    fn find_bytes(&mut self, spelling: Spelling) -> Result<(), Error> {
        // No token stands for more bytes than its text has.
        let mut bytes = Vec::with_capacity(self.texts.len());
        self.starts.push(0);
        for ((index, text), kind) in self.text_starts.windows(2).enumerate().zip(&self.kinds) {
            push_token_bytes(&self.texts[text[0]..text[1]], *kind, spelling, &mut bytes)
                .map_err(|reason| Error::BadEntry { key: TOKENS, index, reason })?;
            self.starts.push(bytes.len());
        }
        bytes.shrink_to_fit();
        self.bytes = bytes;
        Ok(())
    }

    /// Returns the number of tokens.
    pub(crate) fn len(&self) -> usize {
        self.kinds.len()
    }

    /// Returns the token's text as the model file writes it, `None` out of range.
    pub(crate) fn text(&self, id: u32) -> Option<&str> {
        let index = id as usize;
        match (self.text_starts.get(index), self.text_starts.get(index + 1)) {
            (Some(&start), Some(&end)) => Some(&self.texts[start..end]),
            _ => None,
        }
    }

    /// Returns the token's kind, `None` out of range.
    pub(crate) fn kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    /// Returns the bytes that the token stands for; none out of range.
    pub(crate) fn bytes(&self, id: u32) -> &[u8] {
        let index = id as usize;
        match (self.starts.get(index), self.starts.get(index + 1)) {
            (Some(&start), Some(&end)) => &self.bytes[start..end],
            _ => &[],
        }
    }

    /// Says whether the token ends an answer.
    pub(crate) fn is_end_of_generation(&self, id: u32) -> bool {
        self.end_of_generation.contains(&id)
    }

    /// Lists the tokens that end an answer, in ascending order.
    pub(crate) fn end_of_generation(&self) -> impl Iterator<Item = u32> + '_ {
        self.end_of_generation.iter().copied()
    }

    /// Lists each token's id, text and kind.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &str, TokenKind)> + '_ {
        (0u32..)
            .zip(self.text_starts.windows(2))
            .zip(&self.kinds)
            .map(|((id, text), kind)| (id, &self.texts[text[0]..text[1]], *kind))
    }
}

/// Gives tokens without a text a name of their own: an empty text would match everywhere.
fn name_the_empty(mut texts: Vec<String>) -> Vec<String> {
    for (index, text) in texts.iter_mut().enumerate() {
        if text.is_empty() {
            *text = format!("[EMPTY_{index}]");
        }
    }
    texts
}

fn token_kinds(types: &[i32], tokens: usize) -> Result<Vec<TokenKind>, Error> {
    const KEY: &str = "tokenizer.ggml.token_type";
    if types.is_empty() {
        return Ok(vec![TokenKind::Normal; tokens]);
    }
    if types.len() != tokens {
        return Err(Error::LengthMismatch { key: KEY, found: types.len(), expected: tokens });
    }
    let kind = |(index, value): (usize, &i32)| match value {
        0 | 1 => Ok(TokenKind::Normal),
        2 => Ok(TokenKind::Unknown),
        3 => Ok(TokenKind::Control),
        4 => Ok(TokenKind::UserDefined),
        5 => Ok(TokenKind::Unused),
        6 => Ok(TokenKind::Byte),
        _ => Err(Error::BadEntry {
            key: KEY,
            index,
            reason: format!("{value} is no token type, types are 1 to 6"),
        }),
    };
    types.iter().enumerate().map(kind).collect()
}

/// Returns where each text begins when they stand on end, and all of them so.
fn joined(texts: &[String]) -> (Vec<usize>, String) {
    let mut on_end = String::with_capacity(texts.iter().map(String::len).sum());
    let mut starts = Vec::with_capacity(texts.len() + 1);
    starts.push(0);
    for text in texts {
        on_end.push_str(text);
        starts.push(on_end.len());
    }
    (starts, on_end)
}

fn token_ids(texts: Vec<String>) -> Result<TokenIds, Error> {
    let mut ids = TokenIds::with_capacity(texts.len());
    for (id, text) in (0u32..).zip(texts) {
        if let Some(first) = ids.get(&text) {
            let reason = format!("the token {text:?} is already number {first}");
            return Err(Error::BadEntry { key: TOKENS, index: id as usize, reason });
        }
        ids.insert(text, id);
    }
    Ok(ids)
}

fn check_ids(source: &VocabularySource, len: usize) -> Result<(), Error> {
    let named = [
        ("tokenizer.ggml.bos_token_id", source.bos),
        ("tokenizer.ggml.eos_token_id", source.eos),
        ("tokenizer.ggml.eot_token_id", source.eot),
        ("tokenizer.ggml.padding_token_id", source.pad),
        ("tokenizer.ggml.unknown_token_id", source.unk),
    ];
    let further =
        source.end_of_generation.iter().map(|id| ("tokenizer.ggml.eom_token_id", Some(*id)));
    for (key, id) in named.into_iter().chain(further) {
        if let Some(id) = id.filter(|id| *id as usize >= len) {
            return Err(Error::IdOutOfRange { key, id, len });
        }
    }
    Ok(())
}

/// Appends the bytes that a token stands for, or says why it stands for none.
fn push_token_bytes(
    text: &str,
    kind: TokenKind,
    spelling: Spelling,
    out: &mut Vec<u8>,
) -> Result<(), String> {
    match (kind, spelling) {
        (TokenKind::Byte, _) => {
            let byte = byte_token(text)
                .ok_or_else(|| format!("a byte token reads <0x00> to <0xFF>, not {text:?}"))?;
            out.push(byte);
        }
        (TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined, _) => {
            out.extend_from_slice(text.as_bytes());
        }
        (_, Spelling::ByteLevel) => byte_level::push_bytes(text, out),
        (_, Spelling::Underlined) => {
            for character in text.chars() {
                let character = if character == UNDERLINE { ' ' } else { character };
                out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
    }
    Ok(())
}

/// Returns the byte that `<0xNN>` names.
pub(crate) fn byte_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_hex = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_hex.then(|| u8::from_str_radix(digits, 16).ok())?
}
