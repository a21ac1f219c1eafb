//! Finding special tokens in text.
//!
//! Invariant: matches are leftmost, of those the longest, and never overlap.

use aho_corasick::{AhoCorasick, MatchKind};

use crate::error::Error;
use crate::vocabulary::{TokenKind, Vocabulary};

/// Finds the texts of some of a vocabulary's tokens.
pub(crate) struct SpecialTokens {
    /// `None` when there are no such tokens.
    automaton: Option<AhoCorasick>,
    ids: Vec<u32>,
}

/// One occurrence of a special token, in bytes of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) id: u32,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl SpecialTokens {
    /// Collects the tokens of the kinds that `wanted` accepts.
    pub(crate) fn new(
        vocabulary: &Vocabulary,
        wanted: impl Fn(TokenKind) -> bool,
    ) -> Result<Self, Error> {
        let chosen = vocabulary.iter().filter(|(_, _, kind)| wanted(*kind));
        let (ids, texts): (Vec<u32>, Vec<&str>) = chosen.map(|(id, text, _)| (id, text)).unzip();
        let automaton = if ids.is_empty() {
            None
        } else {
            let built = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&texts);
            Some(built.map_err(|error| Error::Vocabulary(error.to_string()))?)
        };
        Ok(Self { automaton, ids })
    }

    /// Lists the occurrences in the text, from left to right.
    pub(crate) fn find_all<'a>(&'a self, text: &'a str) -> impl Iterator<Item = Found> + 'a {
        let matches = self.automaton.iter().flat_map(move |automaton| automaton.find_iter(text));
        matches.map(|found| Found {
            id: self.ids[found.pattern()],
            start: found.start(),
            end: found.end(),
        })
    }

    /// Returns the first occurrence that begins at `from` or later; `from` is a character's start.
    pub(crate) fn find_from(&self, text: &str, from: usize) -> Option<Found> {
        let found = self.automaton.as_ref()?.find(&text[from..])?;
        Some(Found {
            id: self.ids[found.pattern()],
            start: from + found.start(),
            end: from + found.end(),
        })
    }

    /// Lists the ids of the tokens that are looked for.
    pub(crate) fn ids(&self) -> &[u32] {
        &self.ids
    }
}
