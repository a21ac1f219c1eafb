//! Commands written so that a shell reads them back: the words that were typed, with flags changed.

use std::ffi::{OsStr, OsString};

/// What stands in for a key: whoever reads the command must not learn it.
const KEY: &str = "\"$TOKO_API_KEY\"";

/// Returns the words as a shell reads them, with `flags` set to these values, each in place of what was typed.
///
/// The first name of a flag is written; its other names are only looked for.
pub(crate) fn command(words: &[OsString], flags: &[(&[&str], String)]) -> String {
    let names = |word: &OsStr| -> Option<bool> {
        let word = word.to_str()?;
        let (name, has_value) =
            word.split_once('=').map_or((word, false), |(name, _)| (name, true));
        flags.iter().any(|(names, _)| names.contains(&name)).then_some(has_value)
    };
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let (options, rest) = words.split_at(end);
    let mut written = Vec::new();
    let mut options = options.iter();
    while let Some(word) = options.next() {
        match names(word) {
            Some(true) => {}
            Some(false) => drop(options.next()),
            None if word == "--api-key" => {
                options.next();
                written.push(format!("--api-key {KEY}"));
            }
            None if word.to_string_lossy().starts_with("--api-key=") => {
                written.push(format!("--api-key={KEY}"));
            }
            None => written.push(quoted(word)),
        }
    }
    written.extend(flags.iter().map(|(names, value)| format!("{} {value}", names[0])));
    written.extend(rest.iter().map(|word| quoted(word)));
    written.join(" ")
}

/// Writes a word so that a POSIX shell reads it as one.
fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.into_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::command;

    fn check(words: &[&str], flags: &[(&[&str], &str)], expected: &str) {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let flags: Vec<_> =
            flags.iter().map(|(names, value)| (*names, (*value).to_owned())).collect();
        assert_eq!(command(&words, &flags), expected);
    }

    #[test]
    fn a_flag_is_added_or_takes_the_place_of_what_was_typed() {
        let ctx: &[(&[&str], &str)] = &[(&["--ctx"], "512")];
        check(&["toko", "run", "hi"], ctx, "toko run hi --ctx 512");
        check(&["toko", "run", "--ctx", "9", "hi"], ctx, "toko run hi --ctx 512");
        check(&["toko", "run", "--ctx=9", "hi"], ctx, "toko run hi --ctx 512");
        check(&["toko", "run", "--", "--ctx"], ctx, "toko run --ctx 512 -- --ctx");
        let replicas: &[(&[&str], &str)] = &[(&["--replicas", "--parallel"], "2")];
        check(&["toko", "serve", "--parallel", "9"], replicas, "toko serve --replicas 2");
    }

    #[test]
    fn words_with_a_meaning_to_the_shell_are_quoted() {
        check(&["/a b/toko", "run", "it's $5", ""], &[], r"'/a b/toko' run 'it'\''s $5' ''");
    }

    #[test]
    fn a_key_is_not_repeated() {
        let expected = "toko serve --api-key \"$TOKO_API_KEY\" --api-key=\"$TOKO_API_KEY\"";
        check(&["toko", "serve", "--api-key", "secret", "--api-key=secret"], &[], expected);
    }
}
