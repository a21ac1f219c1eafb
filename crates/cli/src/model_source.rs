//! Which model is meant, and how its file is opened: the built-in one or a path.

use std::{
    ffi::{OsStr, OsString},
    fmt, io,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use toko_gguf::Gguf;

use crate::{args::ModelArgs, failure::Failure};

/// The model that is part of this binary.
static EMBEDDED_MODEL: &[u8] = include_bytes!("../../../models/sprout-10m-q1_0.gguf");
/// The word by which it is asked for.
const EMBEDDED_NAME: &str = "embedded";

/// Where a model comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ModelSource {
    /// The built-in model.
    Embedded,
    /// A GGUF file.
    File(PathBuf),
}

impl ModelSource {
    /// Takes a word that is known to name a model.
    pub(crate) fn named(word: &OsStr) -> Self {
        if word == EMBEDDED_NAME { Self::Embedded } else { Self::File(word.into()) }
    }

    /// Opens the file and reads its header; no tensor data is touched.
    pub(crate) fn open(&self) -> anyhow::Result<Gguf> {
        match self {
            Self::Embedded => Gguf::from_static(EMBEDDED_MODEL).context("the built-in model"),
            Self::File(path) => match std::fs::metadata(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    Err(Failure::ModelNotFound { path: path.clone() }.into())
                }
                // The reader's errors name the path.
                _ => Ok(Gguf::open(path)?),
            },
        }
    }

    /// Returns the name by which clients may ask for the model: the file's name without `.gguf`.
    pub(crate) fn short_name(&self) -> String {
        match self {
            Self::Embedded => EMBEDDED_NAME.to_owned(),
            Self::File(path) => {
                path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
            }
        }
    }
}

impl fmt::Display for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedded => f.write_str(EMBEDDED_NAME),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// Tells a model from a text among up to two arguments.
///
/// Two arguments are model and text. A single one is the model when it looks like one. A typed
/// `--model` leaves room for the text only; one from the environment stands in for a missing
/// argument.
pub(crate) fn model_and_text(
    first: Option<&OsString>,
    second: Option<&OsString>,
    flag: &ModelArgs,
) -> Result<(ModelSource, Option<String>), Failure> {
    let from_flag = || flag.path.as_deref().map_or(ModelSource::Embedded, ModelSource::named);
    match (first, second) {
        (Some(_), Some(_)) if flag.is_typed => Err(Failure::Usage(
            "the model is given twice: leave out --model or the first argument".to_owned(),
        )),
        (Some(model), Some(text)) => Ok((ModelSource::named(model), Some(utf8(text)?))),
        (Some(only), None) if !flag.is_typed && looks_like_a_model(only) => {
            Ok((ModelSource::named(only), None))
        }
        (Some(only), None) => Ok((from_flag(), Some(utf8(only)?))),
        (None, _) => Ok((from_flag(), None)),
    }
}

fn looks_like_a_model(word: &OsStr) -> bool {
    let path = Path::new(word);
    let has_suffix = path.extension().is_some_and(|suffix| suffix.eq_ignore_ascii_case("gguf"));
    has_suffix || word == EMBEDDED_NAME || is_written_as_a_path(path)
}

/// A directory counts only when it is written with a slash: `toko run models` asks about a word.
fn is_written_as_a_path(path: &Path) -> bool {
    match std::fs::metadata(path) {
        Ok(metadata) => !metadata.is_dir() || path.as_os_str().to_string_lossy().contains('/'),
        Err(_) => false,
    }
}

fn utf8(text: &OsStr) -> Result<String, Failure> {
    match text.to_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err(Failure::Usage(format!("{} is not valid UTF-8", text.display()))),
    }
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsString, path::Path};

    use super::{ModelSource, model_and_text};
    use crate::{args::ModelArgs, failure::Failure};

    #[derive(Clone, Copy)]
    enum Flag {
        Absent,
        Typed(&'static str),
        Variable(&'static str),
    }

    /// The one door: words as typed, to what they mean.
    fn check(words: &[&str], flag: Flag, expected: Result<(&str, Option<&str>), &str>) {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let flag = match flag {
            Flag::Absent => ModelArgs { path: None, is_typed: false },
            Flag::Typed(path) => ModelArgs { path: Some(path.into()), is_typed: true },
            Flag::Variable(path) => ModelArgs { path: Some(path.into()), is_typed: false },
        };
        let found = model_and_text(words.first(), words.get(1), &flag);
        match expected {
            Ok((model, text)) => {
                let (source, found_text) = found.unwrap();
                assert_eq!(source, ModelSource::named(model.as_ref()), "{words:?}");
                assert_eq!(found_text.as_deref(), text, "{words:?}");
            }
            Err(part) => {
                let error = found.unwrap_err();
                assert!(matches!(error, Failure::Usage(_)), "{error:?}");
                assert!(error.to_string().contains(part), "{error}");
            }
        }
    }

    #[test]
    fn no_argument_means_the_embedded_model_and_no_text() {
        check(&[], Flag::Absent, Ok(("embedded", None)));
    }

    #[test]
    fn a_single_argument_that_names_no_file_is_the_text() {
        check(&["Tell me a story"], Flag::Absent, Ok(("embedded", Some("Tell me a story"))));
        check(&["missing/model"], Flag::Absent, Ok(("embedded", Some("missing/model"))));
    }

    #[test]
    fn a_single_argument_with_the_suffix_is_the_model_even_when_it_is_missing() {
        check(&["missing.gguf"], Flag::Absent, Ok(("missing.gguf", None)));
        check(&["MISSING.GGUF"], Flag::Absent, Ok(("MISSING.GGUF", None)));
    }

    #[test]
    fn a_single_argument_that_names_a_file_is_the_model() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        check(&[path], Flag::Absent, Ok((path, None)));
    }

    #[test]
    fn a_directory_is_a_model_only_when_written_with_a_slash() {
        assert!(Path::new("src").is_dir(), "tests run in the crate's directory");
        check(&["src"], Flag::Absent, Ok(("embedded", Some("src"))));
        check(&["./src"], Flag::Absent, Ok(("./src", None)));
    }

    #[test]
    fn the_word_embedded_is_the_model() {
        check(&["embedded"], Flag::Absent, Ok(("embedded", None)));
        check(&["embedded", "embedded"], Flag::Absent, Ok(("embedded", Some("embedded"))));
    }

    #[test]
    fn of_two_arguments_the_first_is_the_model_whatever_it_looks_like() {
        check(&["qwen3", "hello"], Flag::Absent, Ok(("qwen3", Some("hello"))));
    }

    #[test]
    fn after_a_typed_flag_the_argument_is_the_text_even_if_it_looks_like_a_model() {
        check(&["a.gguf"], Flag::Typed("b.gguf"), Ok(("b.gguf", Some("a.gguf"))));
        check(&[], Flag::Typed("b.gguf"), Ok(("b.gguf", None)));
    }

    #[test]
    fn a_typed_flag_and_two_arguments_name_the_model_twice() {
        check(&["a.gguf", "hi"], Flag::Typed("b.gguf"), Err("the model is given twice"));
    }

    #[test]
    fn an_argument_beats_the_environment() {
        check(&["a.gguf", "hi"], Flag::Variable("b.gguf"), Ok(("a.gguf", Some("hi"))));
        check(&["a.gguf"], Flag::Variable("b.gguf"), Ok(("a.gguf", None)));
        check(&["hi"], Flag::Variable("b.gguf"), Ok(("b.gguf", Some("hi"))));
    }

    #[cfg(unix)]
    #[test]
    fn a_text_that_is_not_utf8_is_refused() {
        use std::os::unix::ffi::OsStringExt as _;
        let flag = ModelArgs { path: None, is_typed: false };
        let word = OsString::from_vec(vec![b'a', 0xff]);
        let error = model_and_text(Some(&word), None, &flag).unwrap_err();
        assert!(error.to_string().contains("UTF-8"), "{error}");
    }
}
