//! Tokens that are known by their text: those that end an answer, and those that files often label wrongly.
//!
//! Invariant: only whole texts are compared. Converters forget to label such tokens as control tokens so often that
//! every engine carries a list like this one.

use std::collections::BTreeSet;

use tokenizers::models::bpe::Vocab as TokenIds;

use crate::vocabulary::{TokenKind, VocabularySource};

/// End an answer in every vocabulary that has them.
const END: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Separate files and fill batches in code models: nothing that belongs to an answer follows them.
const FILE_END: &[&str] = &[
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

/// Mark the gap in code models.
const FILL_IN: &[&str] = &[
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<PRE>",
    "▁<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "▁<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "▁<MID>",
    "<|code_middle|>",
    "<|middle|>",
];

/// Lay out an answer in channels, and so must be seen by whoever reads the answer.
const CHANNELS: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// Makes the well-known tokens control tokens, whatever the file calls them, and shows the channel marks.
pub(crate) fn correct_kinds(ids: &TokenIds, kinds: &mut [TokenKind]) {
    let mut set = |texts: &[&str], kind| {
        for id in known(ids, texts) {
            kinds[id as usize] = kind;
        }
    };
    set(END, TokenKind::Control);
    set(FILE_END, TokenKind::Control);
    set(FILL_IN, TokenKind::Control);
    set(CHANNELS, TokenKind::UserDefined);
    if channels_continue_after_end(ids) {
        set(&["<|end|>"], TokenKind::UserDefined);
    }
    if end_of_sentence_is_text(ids) {
        set(&["</s>"], TokenKind::Normal);
    }
}

/// Lists the tokens that end an answer.
pub(crate) fn end_of_generation(ids: &TokenIds, source: &VocabularySource) -> BTreeSet<u32> {
    let mut ending: BTreeSet<u32> = known(ids, END).chain(known(ids, FILE_END)).collect();
    let mut remove = |text: &str| {
        if let Some(id) = ids.get(text) {
            ending.remove(id);
        }
    };
    if channels_continue_after_end(ids) {
        remove("<|end|>");
    }
    if end_of_sentence_is_text(ids) {
        remove("</s>");
    }
    ending.extend(
        source.eos.into_iter().chain(source.eot).chain(source.end_of_generation.iter().copied()),
    );
    ending
}

/// Says whether `<|end|>` closes one channel of an answer and not the answer.
fn channels_continue_after_end(ids: &TokenIds) -> bool {
    let has = |text: &str| ids.contains_key(text);
    let calls = has("<|call|>") || has("<|calls|>");
    calls && (has("<|return|>") || has("<|flush|>"))
}

/// Says whether `</s>` is the HTML tag: the vocabulary then ends its answers in another way.
fn end_of_sentence_is_text(ids: &TokenIds) -> bool {
    ids.contains_key("<|tool_response>") || ids.contains_key("<|plamo:eos|>")
}

fn known<'a>(ids: &'a TokenIds, texts: &'a [&str]) -> impl Iterator<Item = u32> + 'a {
    texts.iter().filter_map(|text| ids.get(*text).copied())
}
