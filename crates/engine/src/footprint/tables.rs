//! What the tables of a vocabulary take on the heap, counted as they are built.
//!
//! Knows how long tokens and merges are, never what they mean. The figures follow the allocator of the C library and
//! the hash tables of the standard one.

use toko_admission::units::Bytes;
use toko_gguf::Gguf;
use toko_gguf::value::Value;

use crate::Error;

/// Splitting rules, automata of special tokens, and a chat template's machine.
const RULES: u64 = 1 << 20;

/// Of so many bytes in small pieces the allocator loses one between them.
const LOSS: u64 = 64;

/// Bytes that a compiled chat template takes for each of its own.
const TEMPLATE_FACTOR: u64 = 16;

/// A token's text as a key, its id, and the table's mark.
const ID_ENTRY: u64 = 32 + 1;

/// Two tokens, their rank, what they become, and the table's mark.
const MERGE_ENTRY: u64 = 16 + 1;

/// What one search tree of a vocabulary takes for each token: where its bytes lie, and its place in the order.
const TREE_TOKEN: u64 = 12;

/// A node of a search tree.
const TREE_NODE: u64 = 8;

/// A node while a tree is built.
const BUILT_NODE: u64 = 20;

/// Trees that are built of one vocabulary: the whole and its slices.
const TREES: u64 = 15;

/// How many of them have about as many nodes as the whole, with what their growing leaves behind.
const LARGE_TREES: u64 = 10;

/// Compiled grammars that are kept, and the machinery around them.
const GRAMMARS: u64 = 384 << 10;

/// The lengths that a vocabulary's tables follow from.
pub(super) struct Vocabulary {
    tokens: u64,
    /// Bytes of all tokens' texts.
    text_bytes: u64,
    /// The same with each text in a piece of heap of its own.
    heap_bytes: u64,
    /// Bytes that all tokens stand for.
    token_bytes: u64,
    /// Different beginnings of what the tokens stand for.
    beginnings: u64,
    merges: u64,
    template_bytes: u64,
}

/// Returns the bytes before the tensors of all files, which reading the header maps.
pub(super) fn header(file: &Gguf) -> Bytes {
    let mut starts: Vec<u64> = Vec::new();
    for tensor in file.tensors() {
        if starts.len() <= tensor.shard {
            starts.resize(tensor.shard + 1, u64::MAX);
        }
        starts[tensor.shard] = starts[tensor.shard].min(tensor.offset);
    }
    starts.into_iter().filter(|&start| start < u64::MAX).map(Bytes::new).sum()
}

impl Vocabulary {
    /// Reads the lengths in a file's header.
    pub(super) fn read(file: &Gguf) -> Result<Self, Error> {
        let metadata = file.metadata();
        let mut texts = metadata.string_array("tokenizer.ggml.tokens")?;
        let template = metadata.optional_str("tokenizer.chat_template")?.unwrap_or_default();
        let merges = match metadata.get("tokenizer.ggml.merges") {
            Some(Value::Array(merges)) => merges.len(),
            _ => 0,
        };
        // Each letter of a byte-level text stands for a byte.
        let is_byte_level = metadata.str("tokenizer.ggml.model")? == "gpt2";
        let text_bytes: u64 = texts.iter().map(|text| text.len() as u64).sum();
        let heap_bytes = texts.iter().map(|text| piece(text.len() as u64)).sum();
        // Equal beginnings lie side by side then.
        texts.sort_unstable();
        let (token_bytes, beginnings) = if is_byte_level {
            lengths(&texts, |text| text.chars())
        } else {
            lengths(&texts, |text| text.bytes())
        };
        let (tokens, template_bytes) = (texts.len() as u64, template.len() as u64);
        Ok(Self { tokens, text_bytes, heap_bytes, token_bytes, beginnings, merges, template_bytes })
    }

    /// Returns the most that the tokenizer and the chat template take, which is while they are built.
    pub(super) fn tokenizer(&self) -> Bytes {
        let parts = [
            // Texts and bytes on end with where they begin, and what kind each is.
            self.text_bytes.saturating_mul(2),
            self.tokens.saturating_mul(8 + 8 + 1),
            // From text to id and back.
            table(self.tokens, ID_ENTRY).saturating_mul(2),
            self.heap_bytes.saturating_mul(2),
            table(self.merges, MERGE_ENTRY),
            // Both sides of each merge while the table is filled.
            self.merges.saturating_mul(2 * (24 + 32)),
            RULES,
            self.template_bytes.saturating_mul(TEMPLATE_FACTOR),
        ];
        let all: Bytes = parts.into_iter().map(Bytes::new).sum();
        all + Bytes::new(all.get().div_ceil(LOSS))
    }

    /// Returns what the vocabulary takes as grammars search it, the building included.
    pub(super) fn grammars(&self) -> Bytes {
        let parts = [
            self.tokens.saturating_mul(TREE_TOKEN * TREES),
            self.beginnings.saturating_mul(TREE_NODE * LARGE_TREES + BUILT_NODE),
            self.token_bytes.saturating_mul(LARGE_TREES),
            GRAMMARS,
        ];
        parts.into_iter().map(Bytes::new).sum()
    }
}

/// Returns how many letters sorted texts have, and how many different beginnings.
fn lengths<'a, L: Iterator<Item: PartialEq>>(
    texts: &[&'a str],
    letters: impl Fn(&'a str) -> L,
) -> (u64, u64) {
    let (mut all, mut new, mut last) = (0, 0, "");
    for &text in texts {
        let shared = letters(text).zip(letters(last)).take_while(|(a, b)| a == b).count() as u64;
        let length = letters(text).count() as u64;
        all += length;
        new += length - shared;
        last = text;
    }
    (all, new)
}

/// Returns what an allocation takes of the heap.
fn piece(bytes: u64) -> u64 {
    (bytes.saturating_add(8).saturating_add(15) & !15).max(32)
}

/// Returns the bytes of a hash table with room for so many entries: seven of eight places, a power of two in all.
fn table(entries: u64, entry_bytes: u64) -> u64 {
    let places = entries.saturating_mul(8).div_ceil(7).checked_next_power_of_two();
    places.map_or(u64::MAX, |places| places.saturating_mul(entry_bytes))
}
