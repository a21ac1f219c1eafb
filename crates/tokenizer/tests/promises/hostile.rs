//! Vocabularies that are wrong in one way each: one error that names the key, never a panic.

use proptest::prelude::*;
use toko_tokenizer::{Special, Tokenizer, VocabularySource};

use crate::vocabularies::{bytes_and, scored};

fn refusal(source: VocabularySource) -> String {
    Tokenizer::new(source).expect_err("the vocabulary is wrong").to_string()
}

fn broken(source: VocabularySource, change: impl FnOnce(&mut VocabularySource)) -> String {
    let mut source = source;
    assert!(Tokenizer::new(source.clone()).is_ok(), "it is right before the change");
    change(&mut source);
    refusal(source)
}

#[test]
fn each_fault_of_a_bpe_vocabulary_is_named() {
    let case = |change: fn(&mut VocabularySource)| broken(bytes_and(&[("<|im_end|>", 3)]), change);
    assert_eq!(
        case(|source| source.tokens.clear()),
        "tokenizer.ggml.tokens: the vocabulary is empty"
    );
    assert_eq!(
        case(|source| source.token_types.truncate(3)),
        "tokenizer.ggml.token_type: 3 entries for 258 tokens"
    );
    assert_eq!(
        case(|source| source.token_types[5] = 77),
        "tokenizer.ggml.token_type[5]: 77 is no token type, types are 1 to 6"
    );
    assert_eq!(
        case(|source| source.tokens[9] = "a".to_owned()),
        "tokenizer.ggml.tokens[64]: the token \"a\" is already number 9"
    );
    assert_eq!(
        case(|source| source.merges.clear()),
        "tokenizer.ggml.merges: missing, but a \"gpt2\" vocabulary needs it"
    );
    assert_eq!(
        case(|source| source.merges.push("th".to_owned())),
        "tokenizer.ggml.merges[1]: two pieces with a space between them are expected, not \"th\""
    );
    assert_eq!(
        case(|source| source.merges[0] = "t zz".to_owned()),
        "tokenizer.ggml.merges[0]: \"zz\" is no token of the vocabulary"
    );
    assert_eq!(
        case(|source| source.merges[0] = "a b".to_owned()),
        "tokenizer.ggml.merges[0]: \"ab\" is no token of the vocabulary"
    );
    assert_eq!(
        case(|source| source.eos = Some(258)),
        "tokenizer.ggml.eos_token_id: token id 258 is out of range, the vocabulary has 258 tokens"
    );
    assert!(case(|source| source.end_of_generation.push(u32::MAX)).contains("eom_token_id"));
    assert!(
        case(|source| source.pre = Some("nobody".to_owned())).starts_with("tokenizer.ggml.pre: ")
    );
}

#[test]
fn each_fault_of_an_spm_vocabulary_is_named() {
    let case = |change: fn(&mut VocabularySource)| broken(scored(&["a"]), change);
    assert_eq!(
        case(|source| source.tokens[3] = "<0x-1>".to_owned()),
        "tokenizer.ggml.tokens[3]: a byte token reads <0x00> to <0xFF>, not \"<0x-1>\""
    );
    assert_eq!(
        case(|source| source.scores.truncate(2)),
        "tokenizer.ggml.scores: 2 entries for 260 tokens"
    );
    assert_eq!(
        case(|source| source.scores.clear()),
        "tokenizer.ggml.scores: missing, but a \"llama\" vocabulary needs it"
    );
    assert_eq!(
        case(|source| source.scores[7] = f32::NAN),
        "tokenizer.ggml.scores[7]: the score is not a number"
    );
}

#[test]
fn other_kinds_of_tokenizer_are_named() {
    for (kind, name) in
        [("bert", "WordPiece"), ("t5", "Unigram"), ("rwkv", "RWKV"), ("", "missing")]
    {
        let message = broken(bytes_and(&[]), |source| kind.clone_into(&mut source.model));
        assert!(message.contains(&format!("{kind:?}")) && message.contains(name), "{message}");
    }
}

#[test]
fn a_file_without_token_types_has_normal_tokens_only() {
    let source = VocabularySource { token_types: Vec::new(), ..bytes_and(&[("<x>", 3)]) };
    let tokenizer = Tokenizer::new(source).unwrap();
    assert_eq!(tokenizer.encode("<x>", Special::Parse), tokenizer.encode("<x>", Special::AsText));
    assert!(!tokenizer.is_control(257));
}

#[test]
fn ids_out_of_range_have_no_bytes_and_no_text() {
    let tokenizer = Tokenizer::new(bytes_and(&[])).unwrap();
    assert_eq!(tokenizer.token_bytes(u32::MAX), b"");
    assert_eq!(tokenizer.token_text(257), "");
    assert_eq!(tokenizer.decode(&[257, u32::MAX], true), "");
    assert!(!tokenizer.is_control(257) && !tokenizer.is_end_of_generation(257));
}

fn any_source() -> impl Strategy<Value = VocabularySource> {
    let text = || {
        prop_oneof![
            "[a-c▁<>0x]{0,4}",
            "\\PC{0,3}",
            Just("<0x41>".to_owned()),
            Just("a b".to_owned())
        ]
    };
    let id = || prop::option::of(0u32..12);
    (
        prop_oneof![Just("gpt2"), Just("llama"), Just("gemma4")],
        prop::collection::hash_set(text(), 0..10),
        prop::collection::vec(0i32..7, 0..10),
        prop::collection::vec(any::<f32>(), 0..10),
        prop::collection::vec(
            prop_oneof![text(), Just("a b".to_owned()), Just("b a".to_owned())],
            0..3,
        ),
        (id(), id(), id()),
        any::<bool>(),
    )
        .prop_map(
            |(model, tokens, mut token_types, mut scores, merges, (bos, eos, unk), fitting)| {
                let tokens: Vec<String> = tokens.into_iter().collect();
                if fitting {
                    token_types.resize(tokens.len(), 1);
                    scores.resize(tokens.len(), 0.0);
                }
                let model = model.to_owned();
                VocabularySource {
                    model,
                    tokens,
                    token_types,
                    scores,
                    merges,
                    bos,
                    eos,
                    unk,
                    ..VocabularySource::default()
                }
            },
        )
}

proptest! {
    #[test]
    fn any_vocabulary_is_refused_or_works(source in any_source(), text in "[a-c <>0x\\n]{0,20}|\\PC{0,8}") {
        if let Ok(tokenizer) = Tokenizer::new(source) {
            for id in tokenizer.encode_with_bos(&text, Special::Parse) {
                prop_assert!((id as usize) < tokenizer.len());
            }
            for id in tokenizer.encode(&text, Special::AsText) {
                prop_assert!(!tokenizer.is_control(id) || tokenizer.unk() == Some(id), "{}", tokenizer.token_text(id));
            }
        }
    }
}
