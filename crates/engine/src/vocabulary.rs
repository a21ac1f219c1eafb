//! The tokenizer and the chat template that a file's metadata describe.

use toko_gguf::Gguf;
use toko_tokenizer::{ChatTemplate, Tokenizer, VocabularySource};

use crate::Error;

/// Builds the tokenizer of a file; needs no weights.
pub fn tokenizer(file: &Gguf) -> Result<Tokenizer, Error> {
    let metadata = file.metadata();
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let id = |name: &str| metadata.optional_u32(&key(name));
    let flag = |name: &str| metadata.optional_bool(&key(name));
    let texts = |texts: Vec<&str>| texts.into_iter().map(str::to_owned).collect();
    let further = ["eom_token_id"].into_iter().map(id);
    let source = VocabularySource {
        model_name: metadata.optional_str("general.name")?.map(str::to_owned),
        model: metadata.str(&key("model"))?.to_owned(),
        pre: metadata.optional_str(&key("pre"))?.map(str::to_owned),
        tokens: texts(metadata.string_array(&key("tokens"))?),
        token_types: metadata.optional_i32_array(&key("token_type"))?.unwrap_or_default(),
        scores: metadata.optional_f32_array(&key("scores"))?.unwrap_or_default(),
        merges: texts(metadata.optional_string_array(&key("merges"))?.unwrap_or_default()),
        bos: id("bos_token_id")?,
        eos: id("eos_token_id")?,
        eot: id("eot_token_id")?,
        pad: id("padding_token_id")?,
        unk: id("unknown_token_id")?,
        add_bos: flag("add_bos_token")?,
        add_eos: flag("add_eos_token")?,
        add_space_prefix: flag("add_space_prefix")?,
        end_of_generation: further.filter_map(Result::transpose).collect::<Result<_, _>>()?,
    };
    Ok(Tokenizer::new(source)?)
}

/// Returns the file's chat template, or the documented fallback when it has none.
pub fn chat_template(file: &Gguf, tokenizer: &Tokenizer) -> Result<ChatTemplate, Error> {
    let Some(source) = file.metadata().optional_str("tokenizer.chat_template")? else {
        return Ok(ChatTemplate::fallback(tokenizer));
    };
    let text =
        |id: Option<u32>| id.map(|id| tokenizer.token_text(id).to_owned()).unwrap_or_default();
    Ok(ChatTemplate::new(source, &text(tokenizer.bos()), &text(tokenizer.eos()))?)
}
