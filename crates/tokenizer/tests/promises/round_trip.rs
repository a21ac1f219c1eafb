//! Text to tokens to text, whole and streamed.

use std::sync::Arc;

use proptest::prelude::*;
use toko_tokenizer::{Detokenizer, Special, Tokenizer};

use crate::vocabularies::{LLAMA_SPM, QWEN2, bytes_and, scored};

fn streamed(tokenizer: &Arc<Tokenizer>, ids: &[u32]) -> Vec<String> {
    let mut detokenizer = Detokenizer::new(Arc::clone(tokenizer));
    let mut pieces: Vec<String> = ids.iter().map(|id| detokenizer.push(*id)).collect();
    pieces.push(detokenizer.finish());
    pieces
}

fn bytes_of(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let find = |byte: u8| (0u32..256).find(|id| tokenizer.token_bytes(*id) == [byte]).unwrap();
    text.bytes().map(find).collect()
}

#[test]
fn an_emoji_of_four_byte_tokens_appears_with_the_last_one() {
    let tokenizer = Arc::new(Tokenizer::new(bytes_and(&[("<|im_end|>", 3)])).unwrap());
    let ids = bytes_of(&tokenizer, "hi😀");
    assert_eq!(streamed(&tokenizer, &ids), ["h", "i", "", "", "", "😀", ""]);
    assert_eq!(streamed(&tokenizer, &ids[..5]), ["h", "i", "", "", "", "\u{FFFD}"]);
    assert_eq!(tokenizer.decode(&ids[..5], false), "hi\u{FFFD}");
}

#[test]
fn control_tokens_give_no_text_and_tear_no_character() {
    let tokenizer = Arc::new(Tokenizer::new(bytes_and(&[("<|im_end|>", 3)])).unwrap());
    let mut ids = bytes_of(&tokenizer, "é");
    ids.insert(1, 257);
    assert_eq!(streamed(&tokenizer, &ids), ["", "", "é", ""]);
    assert_eq!(tokenizer.decode(&[257, 257], true), "<|im_end|><|im_end|>");
}

#[test]
fn an_spm_text_loses_the_space_before_it_and_no_other() {
    let ids = LLAMA_SPM.encode("Hello  world", Special::AsText);
    assert_eq!(streamed(&LLAMA_SPM, &ids).concat(), "Hello  world");
    let mut continuing = Detokenizer::continuing(Arc::clone(&LLAMA_SPM));
    assert_eq!(continuing.push(ids[0]), " Hello");
}

#[test]
fn of_equal_scores_the_left_merge_comes_first() {
    let mut source = scored(&["a", "aa", "▁"]);
    source.add_space_prefix = Some(false);
    let tokenizer = Tokenizer::new(source).unwrap();
    assert_eq!(tokenizer.encode("aaa", Special::AsText), [260, 259]);
}

#[test]
fn what_a_scored_vocabulary_lacks_is_said_in_bytes() {
    let mut source = scored(&["a"]);
    source.add_space_prefix = Some(false);
    let tokenizer = Tokenizer::new(source).unwrap();
    assert_eq!(tokenizer.encode("aé", Special::AsText), [259, 3 + 0xC3, 3 + 0xA9]);
}

#[test]
fn user_defined_tokens_are_found_in_any_text_and_control_tokens_on_demand() {
    let tokenizer =
        Tokenizer::new(bytes_and(&[("<tag>", 4), ("<tag><end>", 3), ("<end>", 3)])).unwrap();
    let as_text = tokenizer.encode("<tag><end>", Special::AsText);
    assert_eq!(as_text.first(), Some(&257));
    assert!(!as_text.contains(&258) && !as_text.contains(&259));
    assert_eq!(tokenizer.encode("<tag><end>", Special::Parse), [258]);
    assert_eq!(tokenizer.encode("<end><tag>", Special::Parse), [259, 257]);
}

#[test]
fn special_tokens_of_phi_3_swallow_the_space_after_them() {
    let mut source = scored(&["▁", "h", "i"]);
    source.tokens.push("<|user|>".to_owned());
    source.token_types.push(3);
    source.scores.push(0.0);
    source.add_space_prefix = Some(false);
    let plain = Tokenizer::new(source.clone()).unwrap();
    source.model_name = Some("Phi-3 mini".to_owned());
    let swallowing = Tokenizer::new(source).unwrap();
    assert_eq!(swallowing.encode("<|user|>\n hi", Special::Parse), [262, 260, 261]);
    assert_eq!(swallowing.encode("<s> hi", Special::Parse), [1, 259, 260, 261]);
    assert_eq!(plain.encode("<|user|> hi", Special::Parse), [262, 259, 260, 261]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn byte_level_vocabularies_give_every_text_back(text in "(\\PC|[ \\n\\t\\r'0-9a-zA-Z])*") {
        let ids = QWEN2.encode(&text, Special::AsText);
        prop_assert_eq!(QWEN2.decode(&ids, false), text);
    }

    #[test]
    fn scored_vocabularies_give_every_text_back(text in "(\\PC|[ \\n\\t\\r'0-9a-zA-Z])*") {
        prop_assume!(!text.contains('▁'));
        let ids = LLAMA_SPM.encode(&text, Special::AsText);
        prop_assert_eq!(LLAMA_SPM.decode(&ids, false), text);
    }

    #[test]
    fn streamed_pieces_joined_are_the_decoded_text(ids in prop::collection::vec(prop_oneof![0u32..300, 151_640u32..151_650, 0u32..152_000], 0..40)) {
        let pieces = streamed(&QWEN2, &ids);
        prop_assert_eq!(pieces.concat(), QWEN2.decode(&ids, false));
        let bytes: Vec<u8> = ids.iter().filter(|id| !QWEN2.is_control(**id)).flat_map(|id| QWEN2.token_bytes(*id).to_vec()).collect();
        prop_assert_eq!(pieces.concat(), String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn pieces_of_valid_text_have_no_replacement(text in "\\PC*") {
        prop_assume!(!text.contains('\u{FFFD}'));
        for piece in streamed(&QWEN2, &QWEN2.encode(&text, Special::AsText)) {
            prop_assert!(!piece.contains('\u{FFFD}'), "{piece:?}");
        }
    }
}
