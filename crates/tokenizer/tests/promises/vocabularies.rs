//! Vocabularies to test with: read from model files, or written by hand.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use toko_gguf::Gguf;
use toko_tokenizer::{Tokenizer, VocabularySource};

/// Loads the tokenizer of a model file.
pub(crate) fn from_file(path: &Path) -> Tokenizer {
    Tokenizer::new(source(path)).unwrap()
}

/// Reads what a model file says about its tokenizer.
pub(crate) fn source(path: &Path) -> VocabularySource {
    let file = Gguf::open(path).unwrap();
    let metadata = file.metadata();
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let text = |key: &str| metadata.optional_str(key).unwrap().map(str::to_owned);
    let texts = |name: &str| {
        let found = metadata.optional_string_array(&key(name)).unwrap().unwrap_or_default();
        found.into_iter().map(str::to_owned).collect()
    };
    let id = |name: &str| metadata.optional_u32(&key(name)).unwrap();
    let flag = |name: &str| metadata.optional_bool(&key(name)).unwrap();
    VocabularySource {
        model_name: text("general.name"),
        model: text("tokenizer.ggml.model").unwrap(),
        pre: text("tokenizer.ggml.pre"),
        tokens: texts("tokens"),
        token_types: metadata.optional_i32_array(&key("token_type")).unwrap().unwrap_or_default(),
        scores: metadata.optional_f32_array(&key("scores")).unwrap().unwrap_or_default(),
        merges: texts("merges"),
        bos: id("bos_token_id"),
        eos: id("eos_token_id"),
        eot: id("eot_token_id"),
        pad: id("padding_token_id"),
        unk: id("unknown_token_id"),
        add_bos: flag("add_bos_token"),
        add_eos: flag("add_eos_token"),
        add_space_prefix: flag("add_space_prefix"),
        end_of_generation: Vec::new(),
    }
}

/// Returns one of the vocabularies that come with test vectors.
pub(crate) fn named(name: &str) -> Tokenizer {
    from_file(&toko_fixtures::golden_path(&format!("vocab/ggml-vocab-{name}.gguf")))
}

/// The vocabulary of Qwen2: 151,936 tokens, with the control tokens of ChatML.
pub(crate) static QWEN2: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| Arc::new(named("qwen2")));

/// The vocabulary of Llama 2, of the SPM kind.
pub(crate) static LLAMA_SPM: LazyLock<Arc<Tokenizer>> =
    LazyLock::new(|| Arc::new(named("llama-spm")));

/// A BPE vocabulary of every byte and a few special tokens; ids 256 on are `specials` in order.
pub(crate) fn bytes_and(specials: &[(&str, i32)]) -> VocabularySource {
    let printable = |byte: &u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut letters: Vec<u32> = (0..256).filter(printable).collect();
    letters.extend(0x100..0x144);
    let mut tokens: Vec<String> =
        letters.into_iter().filter_map(char::from_u32).map(String::from).collect();
    assert_eq!(tokens.len(), 256);
    tokens.push("th".to_owned());
    let mut token_types = vec![1; tokens.len()];
    for (text, kind) in specials {
        tokens.push((*text).to_owned());
        token_types.push(*kind);
    }
    VocabularySource {
        model: "gpt2".to_owned(),
        pre: Some("qwen2".to_owned()),
        tokens,
        token_types,
        merges: vec!["t h".to_owned()],
        ..VocabularySource::default()
    }
}

/// An SPM vocabulary: unknown, BOS, EOS, every byte, then `pieces` with falling scores.
pub(crate) fn scored(pieces: &[&str]) -> VocabularySource {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    let mut token_types = vec![2, 3, 3];
    for byte in 0..=u8::MAX {
        tokens.push(format!("<0x{byte:02X}>"));
        token_types.push(6);
    }
    let mut scores = vec![0.0; tokens.len()];
    let mut score = 0.0;
    for piece in pieces {
        tokens.push((*piece).to_owned());
        token_types.push(1);
        score -= 1.0;
        scores.push(score);
    }
    VocabularySource {
        model: "llama".to_owned(),
        tokens,
        token_types,
        scores,
        ..VocabularySource::default()
    }
}
