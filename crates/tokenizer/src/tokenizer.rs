//! Text to tokens and back.
//!
//! Invariant: a control token comes out of text only where the caller asked for special tokens to be parsed.
//! It knows nothing about conversations.

use std::borrow::Cow;

use crate::bpe::BytePairs;
use crate::error::Error;
use crate::pretokenize;
use crate::special::SpecialTokens;
use crate::spm::ScoredPieces;
use crate::stream::Utf8Stream;
use crate::vocabulary::{Spelling, TokenKind, Vocabulary, VocabularySource};

/// Says what happens to the texts of control tokens that occur in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// They are text like any other.
    AsText,
    /// They become the control tokens.
    Parse,
}

/// Turns text into the tokens of one model and back.
///
/// It is immutable; share it by `Arc`.
pub struct Tokenizer {
    vocabulary: Vocabulary,
    encoder: Encoder,
    /// The tokens that `Special::Parse` finds.
    parsed: SpecialTokens,
    /// The tokens that are found in any text.
    visible: SpecialTokens,
    bos: Option<u32>,
    eos: Option<u32>,
    unk: Option<u32>,
    add_bos: bool,
    add_eos: bool,
    swallow_space: bool,
}

enum Encoder {
    Pairs(Box<BytePairs>),
    Scores(Box<ScoredPieces>),
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Tokenizer").field("tokens", &self.len()).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Checks a vocabulary and makes the tokenizer for it, or names the key that is wrong.
    pub fn new(mut source: VocabularySource) -> Result<Self, Error> {
        let (vocabulary, encoder, add_bos) = match source.model.as_str() {
            "llama" => {
                set_scored_defaults(&mut source);
                let (vocabulary, ids) = Vocabulary::new(&mut source, Spelling::Underlined)?;
                let scores = ScoredPieces::new(&mut source, &vocabulary, ids)?;
                (vocabulary, Encoder::Scores(Box::new(scores)), true)
            }
            "gpt2" | "gemma4" => {
                let name =
                    if source.model == "gemma4" { Some("gemma4") } else { source.pre.as_deref() };
                let rules = pretokenize::find(name)?;
                let (vocabulary, ids) = Vocabulary::new(&mut source, rules.spelling)?;
                let pairs = BytePairs::new(&mut source, rules, &vocabulary, ids)?;
                (vocabulary, Encoder::Pairs(Box::new(pairs)), rules.add_bos)
            }
            _ => return Err(unsupported(source.model)),
        };
        Ok(Self {
            parsed: SpecialTokens::new(&vocabulary, |kind| {
                kind.is_control() || kind == TokenKind::UserDefined
            })?,
            visible: SpecialTokens::new(&vocabulary, |kind| kind == TokenKind::UserDefined)?,
            swallow_space: swallows_space(source.model_name.as_deref()),
            add_bos: source.add_bos.unwrap_or(add_bos),
            add_eos: source.add_eos.unwrap_or(false),
            bos: source.bos,
            eos: source.eos,
            unk: source.unk,
            vocabulary,
            encoder,
        })
    }

    /// Returns the tokens of the text, without BOS and EOS.
    pub fn encode(&self, text: &str, special: Special) -> Vec<u32> {
        let mut out = Vec::new();
        match special {
            Special::AsText => self.encode_parts(text, &self.visible, None, &mut out),
            Special::Parse => self.encode_parts(text, &self.parsed, None, &mut out),
        }
        out
    }

    /// Returns the tokens of a prompt: with BOS and EOS where the model wants them, each at most once.
    pub fn encode_with_bos(&self, text: &str, special: Special) -> Vec<u32> {
        let mut out = self.encode(text, special);
        self.complete_prompt(&mut out);
        if let Some(eos) = self.eos.filter(|eos| self.add_eos && out.last() != Some(eos)) {
            out.push(eos);
        }
        out
    }

    /// Returns the tokens of a text in which special tokens are parsed and the character `guard` stands for nothing.
    ///
    /// The guard goes after the special tokens were found, so what it took apart stays apart.
    pub(crate) fn encode_guarded(&self, text: &str, guard: char) -> Vec<u32> {
        let mut out = Vec::new();
        self.encode_parts(text, &self.parsed, Some(guard), &mut out);
        self.complete_prompt(&mut out);
        out
    }

    /// Makes the prompt begin with exactly one BOS, where the model wants one or the text brought some.
    fn complete_prompt(&self, out: &mut Vec<u32>) {
        let Some(bos) = self.bos else { return };
        let present = out.iter().take_while(|id| **id == bos).count();
        if self.add_bos && present == 0 {
            out.insert(0, bos);
        } else if self.add_bos && present > 1 {
            out.drain(1..present);
        }
    }

    fn encode_parts(
        &self,
        text: &str,
        specials: &SpecialTokens,
        guard: Option<char>,
        out: &mut Vec<u32>,
    ) {
        let mut done = 0;
        for found in specials.find_all(text) {
            // The token before may have swallowed white space with which this one begins.
            if found.start < done {
                continue;
            }
            // A token of one character cannot be taken apart, so the guard stands behind it.
            let is_single = text[found.start..found.end].chars().nth(1).is_none();
            if is_single && guard.is_some_and(|guard| text[found.end..].starts_with(guard)) {
                continue;
            }
            self.encode_text(&without(guard, &text[done..found.start]), out);
            out.push(found.id);
            done = found.end;
            if self.swallow_space && self.swallows_space_after(found.id) {
                let rest =
                    text[done..].trim_start_matches([' ', '\t', '\n', '\u{b}', '\u{c}', '\r']);
                done = text.len() - rest.len();
            }
        }
        self.encode_text(&without(guard, &text[done..]), out);
    }

    fn encode_text(&self, text: &str, out: &mut Vec<u32>) {
        match &self.encoder {
            Encoder::Pairs(pairs) => pairs.encode(text, out),
            Encoder::Scores(scores) => scores.encode(text, out),
        }
    }

    fn swallows_space_after(&self, id: u32) -> bool {
        !matches!(self.token_text(id), "<unk>" | "<s>" | "<|endoftext|>")
    }

    /// Returns the text of the tokens; bytes that are no UTF-8 become U+FFFD.
    ///
    /// Control tokens are left out unless `show_control`. The space that encoding put before the text is taken away.
    pub fn decode(&self, ids: &[u32], show_control: bool) -> String {
        let mut out = String::new();
        let mut stream = Utf8Stream::default();
        let mut at_start = true;
        for &id in ids {
            if show_control || !self.is_control(id) {
                stream.push(self.bytes_at(id, &mut at_start), &mut out);
            }
        }
        stream.finish(&mut out);
        out
    }

    /// Returns the token's bytes; at the start of a text without the space that encoding put there.
    pub(crate) fn bytes_at(&self, id: u32, at_start: &mut bool) -> &[u8] {
        let bytes = self.token_bytes(id);
        let strip = std::mem::take(at_start)
            && self.vocabulary.kind(id) == Some(TokenKind::Normal)
            && matches!(&self.encoder, Encoder::Scores(scores) if scores.add_space_prefix());
        if strip { bytes.strip_prefix(b" ").unwrap_or(bytes) } else { bytes }
    }

    /// Returns the bytes that the token stands for, which may be part of a character; none out of range.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.vocabulary.bytes(id)
    }

    /// Returns the token's text as the model file spells it; empty out of range.
    pub fn token_text(&self, id: u32) -> &str {
        self.vocabulary.text(id).unwrap_or("")
    }

    /// Says whether the token steers the model and is never shown.
    pub fn is_control(&self, id: u32) -> bool {
        self.vocabulary.kind(id).is_some_and(TokenKind::is_control)
    }

    /// Says whether the token ends an answer.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.vocabulary.is_end_of_generation(id)
    }

    /// Lists the tokens that end an answer, in ascending order.
    pub fn end_of_generation(&self) -> impl Iterator<Item = u32> + '_ {
        self.vocabulary.end_of_generation()
    }

    /// Returns the control or user-defined token whose text is exactly this.
    pub fn special_token(&self, text: &str) -> Option<u32> {
        self.parsed
            .find_all(text)
            .next()
            .filter(|found| found.end == text.len() && found.start == 0)
            .map(|found| found.id)
    }

    /// Returns the token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// Returns the token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Returns the token for what the vocabulary cannot say.
    pub fn unk(&self) -> Option<u32> {
        self.unk
    }

    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        self.vocabulary.len()
    }

    /// Says whether there are no tokens; there are always some.
    pub fn is_empty(&self) -> bool {
        self.vocabulary.len() == 0
    }

    pub(crate) fn kind(&self, id: u32) -> Option<TokenKind> {
        self.vocabulary.kind(id)
    }

    pub(crate) fn parsed(&self) -> &SpecialTokens {
        &self.parsed
    }
}

fn without(guard: Option<char>, text: &str) -> Cow<'_, str> {
    match guard {
        Some(guard) if text.contains(guard) => Cow::Owned(text.replace(guard, "")),
        _ => Cow::Borrowed(text),
    }
}

/// Fills in the ids that every SPM file means when it doesn't say.
fn set_scored_defaults(source: &mut VocabularySource) {
    let exists = |id: u32| Some(id).filter(|id| (*id as usize) < source.tokens.len());
    source.unk = source.unk.or(exists(0));
    source.bos = source.bos.or(exists(1));
    source.eos = source.eos.or(exists(2));
}

/// Says whether special tokens take the white space after them: a property of Phi-3 that its files don't carry.
fn swallows_space(model_name: Option<&str>) -> bool {
    let name = model_name.unwrap_or("").to_lowercase();
    name.contains("phi-3") || name.contains("phi3")
}

fn unsupported(kind: String) -> Error {
    let description = match kind.as_str() {
        "bert" => " (WordPiece)",
        "t5" => " (Unigram)",
        "rwkv" => " (RWKV World)",
        "plamo2" => " (PLaMo 2)",
        "none" | "no_vocab" => " (no vocabulary)",
        "" => " (the key is missing)",
        _ => "",
    };
    Error::UnsupportedKind { kind, description }
}
