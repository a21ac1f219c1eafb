//! `SentencePiece`-style encoding: neighbours merge into the token with the best score until none fits.
//!
//! Invariant: of two merges with the same score the left one happens first. That rule rules out a list of ranked
//! merges, which orders equal scores by pair and not by place; hence this file and not the BPE library.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use tokenizers::models::bpe::Vocab as TokenIds;

use crate::error::Error;
use crate::vocabulary::{TokenKind, UNDERLINE, Vocabulary, VocabularySource, byte_token};

/// Encodes text with the scores of one model.
pub(crate) struct ScoredPieces {
    ids: TokenIds,
    scores: Vec<f32>,
    bytes: [Option<u32>; 256],
    unknown: Option<u32>,
    longest: usize,
    add_space_prefix: bool,
}

impl ScoredPieces {
    /// Checks the scores. Takes `scores` away.
    pub(crate) fn new(
        source: &mut VocabularySource,
        vocabulary: &Vocabulary,
        mut ids: TokenIds,
    ) -> Result<Self, Error> {
        const KEY: &str = "tokenizer.ggml.scores";
        let scores = std::mem::take(&mut source.scores);
        if scores.is_empty() {
            return Err(Error::Missing { key: KEY, kind: source.model.clone() });
        }
        if scores.len() != vocabulary.len() {
            return Err(Error::LengthMismatch {
                key: KEY,
                found: scores.len(),
                expected: vocabulary.len(),
            });
        }
        if let Some(index) = scores.iter().position(|score| score.is_nan()) {
            return Err(Error::BadEntry {
                key: KEY,
                index,
                reason: "the score is not a number".to_owned(),
            });
        }
        // No text spells a control token, whatever merges the file allows.
        ids.retain(|_, id| vocabulary.kind(*id).is_some_and(TokenKind::is_merged));
        let mut bytes = [None; 256];
        for (id, text, _) in vocabulary.iter() {
            if let Some(byte) = byte_token(text) {
                bytes[usize::from(byte)] = Some(id);
            }
        }
        let longest = vocabulary.iter().map(|(_, text, _)| text.len()).max().unwrap_or(0);
        let add_space_prefix = source.add_space_prefix.unwrap_or(true);
        Ok(Self { ids, scores, bytes, unknown: source.unk, longest, add_space_prefix })
    }

    /// Says whether text begins with a space that was not written.
    pub(crate) fn add_space_prefix(&self) -> bool {
        self.add_space_prefix
    }

    /// Appends the tokens of a text that holds no special tokens and follows either none or a special token.
    pub(crate) fn encode(&self, text: &str, out: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        let mut written = String::with_capacity(text.len() + 3);
        if self.add_space_prefix {
            written.push(UNDERLINE);
        }
        written.extend(
            text.chars().map(|character| if character == ' ' { UNDERLINE } else { character }),
        );
        for piece in self.merged(&written) {
            self.push_piece(piece, out);
        }
    }

    /// Cuts the text into characters and merges them for as long as neighbours form a token.
    fn merged<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let mut chain = Chain::new(text);
        let mut queue: BinaryHeap<Merge> = (1..chain.pieces.len())
            .filter_map(|right| self.merge(&chain, right - 1, right))
            .collect();
        while let Some(Merge { left, length, .. }) = queue.pop() {
            let Some(right) = chain.next(left) else { continue };
            // A piece that has grown or gone since the merge was found makes the merge void.
            if chain.pieces[left].length == 0
                || chain.pieces[left].length + chain.pieces[right].length != length
            {
                continue;
            }
            chain.join(left, right);
            let before =
                chain.previous(left).and_then(|previous| self.merge(&chain, previous, left));
            let after = chain.next(left).and_then(|next| self.merge(&chain, left, next));
            queue.extend(before.into_iter().chain(after));
        }
        chain.texts()
    }

    /// Returns the merge of two neighbours, if together they are a token.
    fn merge(&self, chain: &Chain<'_>, left: usize, right: usize) -> Option<Merge> {
        let start = chain.pieces[left].start;
        let length = chain.pieces[left].length + chain.pieces[right].length;
        if length > self.longest {
            return None;
        }
        let id = self.ids.get(&chain.text[start..start + length])?;
        Some(Merge { score: self.scores[*id as usize], left, length })
    }

    /// Appends a piece's token, or its bytes, or the unknown token.
    fn push_piece(&self, piece: &str, out: &mut Vec<u32>) {
        if let Some(id) = self.ids.get(piece) {
            out.push(*id);
            return;
        }
        let bytes: Option<Vec<u32>> =
            piece.bytes().map(|byte| self.bytes[usize::from(byte)]).collect();
        match bytes {
            Some(bytes) => out.extend(bytes),
            None => out.extend(self.unknown),
        }
    }
}

/// One possible merge: the best score first, then the leftmost.
struct Merge {
    score: f32,
    left: usize,
    /// The bytes of both pieces when the merge was found.
    length: usize,
}

impl Ord for Merge {
    fn cmp(&self, other: &Self) -> Ordering {
        // Scores were checked not to be NaN; unlike `total_cmp` this holds -0 and 0 for equal.
        let by_score = self.score.partial_cmp(&other.score).unwrap_or(Ordering::Equal);
        by_score
            .then_with(|| other.left.cmp(&self.left))
            .then_with(|| other.length.cmp(&self.length))
    }
}

impl PartialOrd for Merge {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Merge {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Merge {}

/// One piece of the text; a length of 0 means that it was joined to the one before it.
struct Piece {
    start: usize,
    length: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

/// The pieces of a text in order.
struct Chain<'t> {
    text: &'t str,
    pieces: Vec<Piece>,
}

impl<'t> Chain<'t> {
    fn new(text: &'t str) -> Self {
        let mut pieces: Vec<Piece> = Vec::with_capacity(text.len());
        for (index, (start, character)) in text.char_indices().enumerate() {
            pieces.push(Piece {
                start,
                length: character.len_utf8(),
                previous: index.checked_sub(1),
                next: Some(index + 1),
            });
        }
        if let Some(last) = pieces.last_mut() {
            last.next = None;
        }
        Self { text, pieces }
    }

    fn next(&self, index: usize) -> Option<usize> {
        self.pieces[index].next
    }

    fn previous(&self, index: usize) -> Option<usize> {
        self.pieces[index].previous
    }

    fn join(&mut self, left: usize, right: usize) {
        self.pieces[left].length += self.pieces[right].length;
        self.pieces[right].length = 0;
        let next = self.pieces[right].next;
        self.pieces[left].next = next;
        if let Some(next) = next {
            self.pieces[next].previous = Some(left);
        }
    }

    fn texts(&self) -> Vec<&'t str> {
        let whole = self.pieces.iter().filter(|piece| piece.length > 0);
        whole.map(|piece| &self.text[piece.start..piece.start + piece.length]).collect()
    }
}
