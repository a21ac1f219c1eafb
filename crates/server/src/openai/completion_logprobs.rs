//! `logprobs` of a completion, in the older public shape: four arrays with one entry for each token.
//!
//! Invariant: the tokens of all parts of a choice, in order, stand where [`Places`] finds them in its text.

use serde_json::{Map, Value, json};
use toko_engine::{TokenDetails, TokenLogprob};

use super::logprobs::number;

/// One token of a choice.
pub(super) struct Entry {
    token: String,
    offset: usize,
    /// `None` for the first token of a prompt, which nothing foretells.
    details: Option<Likelihood>,
}

struct Likelihood {
    logprob: f32,
    /// By text, the most likely first; the token itself is always there.
    top: Vec<(String, f32)>,
}

/// Follows the text of a choice, in characters, and says where each token begins.
#[derive(Default)]
pub(super) struct Places {
    /// Characters of which at least the first byte belongs to a token so far.
    begun: usize,
    /// The text that belongs to no token yet.
    rest: Vec<u8>,
}

impl Places {
    /// Returns the entries of an echoed prompt; `first` is what a token before the others stands for, of which nothing
    /// is known.
    pub(super) fn echoed(
        &mut self,
        echo: &str,
        first: Option<&[u8]>,
        others: &[TokenDetails],
    ) -> Vec<Entry> {
        self.rest.extend_from_slice(echo.as_bytes());
        let head = first.map(|bytes| Entry {
            token: text(bytes),
            offset: self.place(bytes),
            details: None,
        });
        let mut entries = Vec::from_iter(head);
        entries.extend(others.iter().map(|details| self.entry(details)));
        entries
    }

    /// Returns the entries of the tokens that end in more of the answer's text.
    pub(super) fn told(&mut self, answer: &str, tokens: &[TokenDetails]) -> Vec<Entry> {
        self.rest.extend_from_slice(answer.as_bytes());
        tokens.iter().map(|details| self.entry(details)).collect()
    }

    fn entry(&mut self, TokenDetails { token, top }: &TokenDetails) -> Entry {
        let with_text = |token: &TokenLogprob| (text(&token.bytes), token.logprob);
        let mut likely: Vec<(String, f32)> = top.iter().map(with_text).collect();
        if !top.iter().any(|other| other.id == token.id) {
            likely.push(with_text(token));
        }
        Entry {
            token: text(&token.bytes),
            offset: self.place(&token.bytes),
            details: Some(Likelihood { logprob: token.logprob, top: likely }),
        }
    }

    /// Returns in which character the bytes begin, and goes on behind them.
    fn place(&mut self, bytes: &[u8]) -> usize {
        let is_inside = self.rest.first().is_some_and(|&byte| !begins_character(byte));
        let offset = self.begun - usize::from(is_inside && self.begun > 0);
        let bare = bytes.strip_prefix(b" ").unwrap_or(bytes);
        let replacement = char::REPLACEMENT_CHARACTER.to_string();
        let length = if self.rest.starts_with(bytes) {
            bytes.len()
        } else if self.begun == 0 && self.rest.starts_with(bare) {
            // Some vocabularies put a space before a text that it does not have.
            bare.len()
        } else if str::from_utf8(bytes).is_err() && self.rest.starts_with(replacement.as_bytes()) {
            replacement.len()
        } else {
            // A token that is not in the text, such as the one that ends an answer.
            0
        };
        let taken = self.rest.drain(..length);
        self.begun += taken.filter(|&byte| begins_character(byte)).count();
        offset
    }
}

/// Returns the public object.
pub(super) fn object(entries: &[Entry]) -> Value {
    let told = |tell: &dyn Fn(&Likelihood) -> Value| -> Vec<Value> {
        let tell = |entry: &Entry| entry.details.as_ref().map_or(Value::Null, tell);
        entries.iter().map(tell).collect()
    };
    json!({
        "tokens": entries.iter().map(|entry| &entry.token).collect::<Vec<_>>(),
        "token_logprobs": told(&|likely| number(likely.logprob)),
        "top_logprobs": told(&|likely| top(&likely.top)),
        "text_offset": entries.iter().map(|entry| entry.offset).collect::<Vec<_>>(),
    })
}

/// Where two tokens have the same text, the likelier one is told.
fn top(likely: &[(String, f32)]) -> Value {
    let mut object = Map::new();
    for (text, logprob) in likely {
        object.entry(text).or_insert_with(|| number(*logprob));
    }
    Value::Object(object)
}

/// Returns the token's text, or its bytes in the public API's notation where they are none.
fn text(bytes: &[u8]) -> String {
    str::from_utf8(bytes).map_or_else(|_| format!("bytes:{}", bytes.escape_ascii()), str::to_owned)
}

fn begins_character(byte: u8) -> bool {
    byte & 0xC0 != 0x80
}

#[cfg(test)]
mod tests {
    use super::*;

    fn details(bytes: &[u8]) -> TokenDetails {
        let token = TokenLogprob { id: 7, bytes: bytes.to_vec(), logprob: -1.5 };
        TokenDetails { token, top: Vec::new() }
    }

    fn offsets(entries: &[Entry]) -> Vec<usize> {
        entries.iter().map(|entry| entry.offset).collect()
    }

    #[test]
    fn offsets_count_characters_and_a_part_of_one_stands_at_its_beginning() {
        let tokens = ["é".as_bytes(), b"\xF0\x9F", b"\x98\x80", b" x", b"yz"].map(details);
        let mut places = Places::default();
        assert_eq!(offsets(&places.told("é😀 xyz", &tokens)), [0, 1, 1, 2, 4]);
    }

    #[test]
    fn tokens_without_a_place_in_the_text_stand_where_they_occur() {
        let mut places = Places::default();
        let echoed = places.echoed("ab", Some(b"<s>"), &[details(b" a"), details(b"b")]);
        assert_eq!(offsets(&echoed), [0, 0, 1]);
        let told = places.told("\u{FFFD}c", &[details(b"\xF0"), details(b"c"), details(b"<end>")]);
        assert_eq!(offsets(&told), [2, 3, 4]);
    }

    #[test]
    fn text_that_comes_before_its_token_waits_for_it() {
        let mut places = Places::default();
        assert_eq!(offsets(&places.told("hello w", &[details(b"hel")])), [0]);
        assert_eq!(offsets(&places.told("", &[details(b"lo")])), [3]);
        assert_eq!(offsets(&places.told("ay", &[details(b" way")])), [5]);
    }

    #[test]
    fn bytes_that_are_no_text_are_spelled_out_and_equal_texts_are_told_once() {
        let token = |id, logprob, bytes: &[u8]| TokenLogprob { id, bytes: bytes.to_vec(), logprob };
        let top = vec![token(1, -0.5, b"\xE2\x80"), token(2, -1.0, b"a"), token(3, -2.0, b"a")];
        let entry = TokenDetails { token: token(4, f32::NEG_INFINITY, b"b"), top };
        let told = object(&Places::default().told("b", &[entry]));
        assert_eq!(
            told,
            json!({
                "tokens": ["b"],
                "token_logprobs": [-9999.0],
                "top_logprobs": [{"bytes:\\xe2\\x80": -0.5, "a": -1.0, "b": -9999.0}],
                "text_offset": [0],
            })
        );
    }
}
