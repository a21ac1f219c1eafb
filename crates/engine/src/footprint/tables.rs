//! What the tables of a vocabulary take on the heap, counted as they are built.
//!
//! Knows how long tokens and merges are, never what they mean. The figures follow the allocator of the C library and
//! the hash tables of the standard one.

use toko_admission::units::Bytes;
use toko_gguf::Gguf;

use crate::Error;

/// Splitting rules, automata of special tokens, and a chat template's machine.
const RULES: u64 = 512 << 10;

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

/// How many of them have about as many nodes as the whole.
const LARGE_TREES: u64 = 6;

/// Compiled grammars that are kept, and the machinery around them.
const GRAMMARS: u64 = 1 << 20;

/// What the texts of an array come to.
#[derive(Clone, Copy, Default)]
struct Texts {
    count: u64,
    bytes: u64,
    /// With each text in a piece of heap of its own.
    heap_bytes: u64,
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

/// Returns the most that the tokenizer and the chat template take, which is while they are built.
pub(super) fn tokenizer(file: &Gguf) -> Result<Bytes, Error> {
    let tokens = texts(file, "tokenizer.ggml.tokens")?;
    let merges = texts(file, "tokenizer.ggml.merges")?;
    let template = file.metadata().optional_str("tokenizer.chat_template")?.unwrap_or_default();
    let parts = [
        // Texts and bytes on end with where they begin, and what kind each is.
        tokens.bytes.saturating_mul(2),
        tokens.count.saturating_mul(8 + 8 + 1),
        // From text to id and back.
        table(tokens.count, ID_ENTRY).saturating_mul(2),
        tokens.heap_bytes.saturating_mul(2),
        table(merges.count, MERGE_ENTRY),
        // Both sides of each merge while the table is filled.
        merges.count.saturating_mul(2 * (24 + 32)),
        RULES,
        (template.len() as u64).saturating_mul(TEMPLATE_FACTOR),
    ];
    Ok(parts.into_iter().map(Bytes::new).sum())
}

/// Returns what the vocabulary takes as grammars search it, the building included.
pub(super) fn grammars(file: &Gguf) -> Result<Bytes, Error> {
    let tokens = texts(file, "tokenizer.ggml.tokens")?;
    let nodes = beginnings(file)?;
    let parts = [
        tokens.count.saturating_mul(TREE_TOKEN * TREES),
        nodes.saturating_mul(TREE_NODE * LARGE_TREES + BUILT_NODE),
        tokens.bytes.saturating_mul(LARGE_TREES),
        GRAMMARS,
    ];
    Ok(parts.into_iter().map(Bytes::new).sum())
}

fn texts(file: &Gguf, key: &str) -> Result<Texts, Error> {
    let texts = file.metadata().optional_string_array(key)?.unwrap_or_default();
    Ok(texts.iter().fold(Texts::default(), |sum, text| Texts {
        count: sum.count + 1,
        bytes: sum.bytes.saturating_add(text.len() as u64),
        heap_bytes: sum.heap_bytes.saturating_add(piece(text.len() as u64)),
    }))
}

/// Counts the different beginnings of tokens, which are the nodes of their tree.
fn beginnings(file: &Gguf) -> Result<u64, Error> {
    let mut tokens =
        file.metadata().optional_string_array("tokenizer.ggml.tokens")?.unwrap_or_default();
    tokens.sort_unstable();
    let mut last = "";
    let new = tokens.iter().map(|token| {
        let known = token.chars().zip(last.chars()).take_while(|(new, old)| new == old).count();
        last = token;
        (token.chars().count() - known) as u64
    });
    Ok(new.sum())
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
