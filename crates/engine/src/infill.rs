//! Prompts with a gap, for models that were trained to fill one.
//!
//! Such a model knows three marks: before the text in front of the gap, before the text behind it, and where the
//! answer begins. The file's metadata name them, or they go by one of the customary spellings.

use std::ops::Range;

use toko_gguf::Gguf;
use toko_tokenizer::{Special, Tokenizer};

use crate::{Error, Opening, Prompt};

/// The keys of the marks, the current and the older ones.
const KEYS: [[&str; 3]; 2] = [
    ["fim_pre_token_id", "fim_suf_token_id", "fim_mid_token_id"],
    ["prefix_token_id", "suffix_token_id", "middle_token_id"],
];

/// How families spell the marks.
const SPELLINGS: [[&str; 3]; 5] = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    ["▁<PRE>", "▁<SUF>", "▁<MID>"],
];

/// A prompt whose answer goes between two texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Infill {
    /// What the model reads.
    pub prompt: Prompt,
    /// Where the tokens in front of the gap stand in it; never at its very beginning.
    pub before: Range<usize>,
}

/// A model's marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Marks([u32; 3]);

impl Marks {
    /// Returns the marks of a model, if it has all of them.
    pub(crate) fn of(file: &Gguf, tokenizer: &Tokenizer) -> Result<Option<Self>, Error> {
        for keys in KEYS {
            let ids =
                keys.map(|key| file.metadata().optional_u32(&format!("tokenizer.ggml.{key}")));
            if let [Some(before), Some(after), Some(gap)] = each(ids)? {
                let marks = [before, after, gap];
                let vocabulary_tokens = tokenizer.len();
                let unknown = marks.into_iter().find(|&id| id as usize >= vocabulary_tokens);
                return match unknown {
                    Some(token) => Err(Error::UnknownToken { token, vocabulary_tokens }),
                    None => Ok(Some(Self(marks))),
                };
            }
        }
        let spelled = SPELLINGS.iter().find_map(|marks| {
            let [before, after, gap] = marks.map(|mark| tokenizer.special_token(mark));
            Some(Self([before?, after?, gap?]))
        });
        Ok(spelled)
    }

    /// Returns the prompt for a gap between two texts.
    pub(crate) fn prompt(self, before: &[u32], after: &[u32], tokenizer: &Tokenizer) -> Infill {
        let Self([before_mark, after_mark, gap_mark]) = self;
        let begun = tokenizer.encode_with_bos("", Special::AsText);
        let bos = begun.into_iter().next().filter(|&token| Some(token) == tokenizer.bos());
        let mut tokens: Vec<u32> = bos.into_iter().chain([before_mark]).collect();
        let start = tokens.len();
        tokens.extend_from_slice(before);
        let before = start..tokens.len();
        tokens.push(after_mark);
        tokens.extend_from_slice(after);
        tokens.push(gap_mark);
        Infill { prompt: Prompt { tokens, opening: Opening::Continuation }, before }
    }
}

fn each<E>(ids: [Result<Option<u32>, E>; 3]) -> Result<[Option<u32>; 3], E> {
    let [before, after, gap] = ids;
    Ok([before?, after?, gap?])
}

#[cfg(test)]
mod tests {
    use toko_fixtures::embedded_model_path;
    use toko_gguf::write::Writer;

    use super::*;
    use crate::vocabulary;

    fn embedded(keys: &[(&str, u32)]) -> Gguf {
        let file = Gguf::open(embedded_model_path()).expect("the embedded model opens");
        let mut writer = Writer::new();
        for (key, value) in file.metadata().iter() {
            writer.copy(key, value);
        }
        for (key, id) in keys {
            writer.set(&format!("tokenizer.ggml.{key}"), *id);
        }
        Gguf::from_bytes(writer.into_bytes().expect("what was read can be written"))
            .expect("what was written can be read")
    }

    fn marks(keys: &[(&str, u32)]) -> Result<Option<Marks>, Error> {
        let file = embedded(keys);
        Marks::of(&file, &vocabulary::tokenizer(&file).expect("a tokenizer"))
    }

    #[test]
    fn marks_are_those_that_the_file_names_and_all_of_them() {
        assert_eq!(marks(&[]).expect("no marks"), None);
        let some = [("fim_pre_token_id", 7), ("fim_suf_token_id", 8)];
        assert_eq!(marks(&some).expect("no marks"), None);
        let all = [some[0], some[1], ("fim_mid_token_id", 9)];
        assert_eq!(marks(&all).expect("marks"), Some(Marks([7, 8, 9])));
        let older = [("prefix_token_id", 4), ("suffix_token_id", 5), ("middle_token_id", 6)];
        assert_eq!(marks(&older).expect("marks"), Some(Marks([4, 5, 6])));
        let unknown = [some[0], some[1], ("fim_mid_token_id", 2048)];
        assert!(matches!(marks(&unknown), Err(Error::UnknownToken { token: 2048, .. })));
    }

    #[test]
    fn the_texts_stand_around_the_gap_and_the_answer_is_last() {
        let file = embedded(&[]);
        let tokenizer = vocabulary::tokenizer(&file).expect("a tokenizer");
        let infill = Marks([7, 8, 9]).prompt(&[100, 101], &[102], &tokenizer);
        let tokens = &infill.prompt.tokens;
        assert!(tokens.ends_with(&[7, 100, 101, 8, 102, 9]), "{tokens:?}");
        assert_eq!(tokens[infill.before], [100, 101]);
    }
}
