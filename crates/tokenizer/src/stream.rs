//! Tokens to text, one at a time.
//!
//! Invariant: the pieces, joined, are what the whole would have given, and no piece ends inside a character.

use std::sync::Arc;

use crate::tokenizer::Tokenizer;

/// Turns an answer into text while it is generated.
///
/// Control tokens give no text.
#[derive(Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    stream: Utf8Stream,
    at_start: bool,
}

impl Detokenizer {
    /// Begins a text of its own: the space that SPM vocabularies put before a text is taken away.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self { tokenizer, stream: Utf8Stream::default(), at_start: true }
    }

    /// Continues a text that is already there: a leading space belongs to the answer.
    pub fn continuing(tokenizer: Arc<Tokenizer>) -> Self {
        Self { at_start: false, ..Self::new(tokenizer) }
    }

    /// Returns the text that the token completes: possibly none, never half a character.
    #[must_use]
    pub fn push(&mut self, id: u32) -> String {
        let mut out = String::new();
        if !self.tokenizer.is_control(id) {
            let bytes = self.tokenizer.bytes_at(id, &mut self.at_start);
            self.stream.push(bytes, &mut out);
        }
        out
    }

    /// Says whether the tokens so far end inside a character.
    pub fn is_inside_character(&self) -> bool {
        !self.stream.pending.is_empty()
    }

    /// Ends the text: an unfinished character becomes one U+FFFD.
    #[must_use]
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        self.stream.finish(&mut out);
        out
    }
}

/// Collects bytes and hands out whole characters.
#[derive(Debug, Default)]
pub(crate) struct Utf8Stream {
    /// The beginning of a character, at most three bytes.
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// Appends what the bytes complete; bytes that cannot begin or continue a character become U+FFFD.
    pub(crate) fn push(&mut self, bytes: &[u8], out: &mut String) {
        self.pending.extend_from_slice(bytes);
        let mut kept = 0;
        for chunk in self.pending.utf8_chunks() {
            out.push_str(chunk.valid());
            kept += chunk.valid().len();
            let invalid = chunk.invalid();
            let is_tail = kept + invalid.len() == self.pending.len();
            if is_tail && is_unfinished(invalid) {
                break;
            }
            if !invalid.is_empty() {
                out.push(char::REPLACEMENT_CHARACTER);
            }
            kept += invalid.len();
        }
        self.pending.drain(..kept);
    }

    /// Appends one U+FFFD if a character was left unfinished.
    pub(crate) fn finish(&mut self, out: &mut String) {
        if !self.pending.is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
            self.pending.clear();
        }
    }
}

/// Says whether more bytes could make these a character.
fn is_unfinished(bytes: &[u8]) -> bool {
    matches!(std::str::from_utf8(bytes), Err(error) if error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn streamed(bytes: &[u8], cuts: &[usize]) -> Vec<String> {
        let mut stream = Utf8Stream::default();
        let mut pieces = Vec::new();
        let mut rest = bytes;
        for cut in cuts {
            let (head, tail) = rest.split_at((*cut).min(rest.len()));
            pieces.push(String::new());
            stream.push(head, pieces.last_mut().unwrap());
            rest = tail;
        }
        pieces.push(String::new());
        stream.push(rest, pieces.last_mut().unwrap());
        pieces.push(String::new());
        stream.finish(pieces.last_mut().unwrap());
        pieces
    }

    #[test]
    fn a_character_appears_with_its_last_byte() {
        assert_eq!(streamed("hi😀".as_bytes(), &[2, 1, 1, 1]), ["hi", "", "", "", "😀", ""]);
    }

    #[test]
    fn an_unfinished_tail_becomes_one_replacement() {
        assert_eq!(streamed(&[b'a', 0xF0, 0x9F, 0x98], &[2, 1]), ["a", "", "", "\u{FFFD}"]);
    }

    #[test]
    fn a_byte_that_cannot_continue_is_replaced_at_once() {
        assert_eq!(streamed(&[0xE2, 0x82, b'x'], &[1, 1]), ["", "", "\u{FFFD}x", ""]);
        assert_eq!(streamed(&[0xFF, b'x'], &[1]), ["\u{FFFD}", "x", ""]);
    }

    proptest! {
        #[test]
        fn pieces_joined_equal_the_whole(bytes in prop::collection::vec(any::<u8>(), 0..40), cuts in prop::collection::vec(0usize..4, 0..40)) {
            prop_assert_eq!(streamed(&bytes, &cuts).concat(), String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn valid_text_is_never_replaced(text in "\\PC*", cuts in prop::collection::vec(0usize..4, 0..40)) {
            prop_assume!(!text.contains('\u{FFFD}'));
            for piece in streamed(text.as_bytes(), &cuts) {
                prop_assert!(!piece.contains('\u{FFFD}'), "{piece:?}");
            }
        }
    }
}
