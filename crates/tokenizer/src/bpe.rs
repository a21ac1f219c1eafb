//! Byte-pair encoding: words become tokens by ranked merges.
//!
//! Invariant: the merges were checked before they reached the library that runs them; a text always encodes.

use tokenizers::Model;
use tokenizers::models::bpe::{BPE, Merges, Vocab as TokenIds};

use crate::byte_level;
use crate::error::Error;
use crate::pretokenize::{PreTokenizer, Splitter};
use crate::vocabulary::{Spelling, TokenKind, UNDERLINE, Vocabulary, VocabularySource};

const MERGES: &str = "tokenizer.ggml.merges";

/// Encodes text with the merges of one model.
pub(crate) struct BytePairs {
    model: BPE,
    splitter: Splitter,
    rules: &'static PreTokenizer,
}

impl BytePairs {
    /// Checks the merges and prepares them. Takes `merges` away.
    pub(crate) fn new(
        source: &mut VocabularySource,
        rules: &'static PreTokenizer,
        vocabulary: &Vocabulary,
        mut ids: TokenIds,
    ) -> Result<Self, Error> {
        let lines = std::mem::take(&mut source.merges);
        if lines.is_empty() {
            return Err(Error::Missing { key: MERGES, kind: source.model.clone() });
        }
        let merges = checked_merges(lines, vocabulary, &ids)?;
        // No text spells a control token, whatever merges the file allows.
        ids.retain(|_, id| {
            vocabulary.kind(*id).is_some_and(|kind| kind.is_merged() || kind == TokenKind::Byte)
        });
        let model = BPE::builder()
            .vocab_and_merges(ids, merges)
            .ignore_merges(rules.ignore_merges)
            .byte_fallback(rules.spelling == Spelling::Underlined)
            // The library's cache lives as long as the thread, not as the model.
            .cache_capacity(0)
            .build()
            .map_err(|error| Error::Vocabulary(error.to_string()))?;
        Ok(Self { model, splitter: Splitter::new(rules), rules })
    }

    /// Appends the tokens of a text that holds no special tokens.
    pub(crate) fn encode(&self, text: &str, out: &mut Vec<u32>) {
        match self.rules.spelling {
            Spelling::ByteLevel => {
                let mut word = String::new();
                self.splitter.split(text, &mut |piece| {
                    word.clear();
                    byte_level::push_text(piece.as_bytes(), &mut word);
                    self.encode_word(&word, out);
                });
            }
            Spelling::Underlined => {
                let text = text.replace(' ', UNDERLINE.encode_utf8(&mut [0; 4]));
                self.splitter.split(&text, &mut |word| match self.model.token_to_id(word) {
                    // Runs of line feeds are tokens that no merges build.
                    Some(id) if word.starts_with('\n') => out.push(id),
                    _ => self.encode_word(word, out),
                });
            }
        }
    }

    fn encode_word(&self, word: &str, out: &mut Vec<u32>) {
        let tokens =
            self.model.tokenize(word).expect("only a missing unknown token fails, and none is set");
        out.extend(tokens.iter().map(|token| token.id));
    }
}

/// Cuts each line into its two pieces and makes sure that they and their union are tokens.
///
/// Leaves out the merges that make or take a token which is found whole.
fn checked_merges(
    lines: Vec<String>,
    vocabulary: &Vocabulary,
    ids: &TokenIds,
) -> Result<Merges, Error> {
    let bad = |index, reason| Error::BadEntry { key: MERGES, index, reason };
    let mut union = String::new();
    let mut merges = Merges::with_capacity(lines.len());
    for (index, line) in lines.into_iter().enumerate() {
        // A piece may itself begin with a space, but is never empty.
        let cut = line.char_indices().skip(1).find(|(_, character)| *character == ' ');
        let Some((at, _)) = cut.filter(|(at, _)| at + 1 < line.len()) else {
            return Err(bad(
                index,
                format!("two pieces with a space between them are expected, not {line:?}"),
            ));
        };
        let (left, right) = (&line[..at], &line[at + 1..]);
        union.clear();
        union.push_str(left);
        union.push_str(right);
        let mut is_merged = true;
        for piece in [left, right, union.as_str()] {
            let Some(id) = ids.get(piece) else {
                return Err(bad(index, format!("{piece:?} is no token of the vocabulary")));
            };
            is_merged &= vocabulary.kind(*id).is_some_and(TokenKind::is_merged);
        }
        if is_merged {
            merges.push((left.to_owned(), right.to_owned()));
        }
    }
    Ok(merges)
}
