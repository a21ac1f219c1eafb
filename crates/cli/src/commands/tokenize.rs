//! `toko tokenize`: text to token ids, with the vocabulary alone; no weights are read.

use anyhow::Context as _;
use serde::Serialize;
use toko_tokenizer::Special;

use crate::{
    args::TokenizeArgs,
    commands::stdin,
    failure::Failure,
    model_source::model_and_text,
    output::{Output, print_json},
};

/// Prints the tokens of a text.
pub(crate) fn tokenize(args: &TokenizeArgs, output: Output) -> anyhow::Result<()> {
    let (source, text) = model_and_text(args.first.as_ref(), args.second.as_ref(), &args.model)?;
    let text = match text.as_deref() {
        Some("-") => stdin::read_text()?,
        Some(text) => text.to_owned(),
        None if stdin::is_terminal() => {
            return Err(
                Failure::Usage("there is no text; give one, or pipe it in".to_owned()).into()
            );
        }
        None => stdin::read_text()?,
    };
    let file = source.open()?;
    let tokenizer = toko_engine::tokenizer(&file).with_context(|| format!("{source}"))?;
    let special = if args.special { Special::Parse } else { Special::AsText };
    let tokens = if args.bos {
        tokenizer.encode_with_bos(&text, special)
    } else {
        tokenizer.encode(&text, special)
    };
    if args.json {
        return print_json(&Document { tokens: &tokens });
    }
    for &id in &tokens {
        let piece = String::from_utf8_lossy(tokenizer.token_bytes(id));
        output.line(&format!("{id:>7}  {piece:?}"))?;
    }
    Ok(())
}

#[derive(Serialize)]
struct Document<'a> {
    tokens: &'a [u32],
}
