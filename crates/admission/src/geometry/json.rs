//! JSON as checkpoints carry it: with `NaN` and infinities, which the standard forbids and Python writes.
//!
//! Invariant: what stands inside of strings is left alone. Knows no field.

use serde_json::Value;

use super::Error;

/// Reads a JSON text; `NaN`, `Infinity` and `-Infinity` become null.
pub fn parse(text: &str) -> Result<Value, Error> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let read = |text: &str| serde_json::from_str(text).map_err(|e| Error::NotJson(e.to_string()));
    // Most texts are strict, and a copy is only made of those that are not.
    read(text).or_else(|error| match with_nulls(text) {
        Some(strict) => read(&strict),
        None => Err(error),
    })
}

/// Writes `null` for every number that JSON has no word for; `None` where there is none.
fn with_nulls(text: &str) -> Option<String> {
    let mut strict = String::with_capacity(text.len());
    let mut rest = text;
    let mut changed = false;
    while let Some(first) = rest.chars().next() {
        let words = ["-Infinity", "Infinity", "-NaN", "NaN"];
        let word = words.into_iter().find(|word| rest.starts_with(word));
        let length = match (first, word) {
            ('"', _) => string_length(rest),
            (_, Some(word)) => {
                strict.push_str("null");
                changed = true;
                rest = &rest[word.len()..];
                continue;
            }
            (first, None) => first.len_utf8(),
        };
        strict.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    changed.then_some(strict)
}

/// Returns the length of the string that `text` begins with, both quotes included; all of it where it does not end.
fn string_length(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn numbers_that_json_has_no_word_for_are_null() {
        let read = parse(r#"{"a": NaN, "b": [0.0, -Infinity, Infinity], "c\"NaN": "Infinity"}"#);
        let strict = r#"{"a": null, "b": [0.0, null, null], "c\"NaN": "Infinity"}"#;
        assert_eq!(read, parse(strict));
    }

    #[test]
    fn a_text_that_is_no_json_says_where() {
        for text in ["", "{", "\"NaN", "{\"a\": NaN", "NaNN", "{'a': 1}"] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains("line 1 column"), "{text}: {error}");
        }
    }
}
