//! Who may use a server, as people write it down: keys in flags and files, origins of web pages.
//!
//! No error repeats a key.

use std::fs;

use anyhow::Context as _;
use toko_server::ApiKey;

use crate::{args::AccessArgs, failure::Failure};

/// Returns the keys of the flags and of the file; a file without any is an error, since it was meant to guard.
pub(crate) fn keys(args: &AccessArgs) -> anyhow::Result<Vec<ApiKey>> {
    let mut keys = Vec::new();
    for text in &args.api_key {
        keys.push(key(text, "--api-key or TOKO_API_KEY")?);
    }
    let Some(path) = &args.api_key_file else { return Ok(keys) };
    let text = fs::read_to_string(path)
        .with_context(|| format!("cannot read the API keys in {}", path.display()))?;
    let before = keys.len();
    for (index, line) in text.lines().map(str::trim).enumerate() {
        if !line.is_empty() && !line.starts_with('#') {
            keys.push(key(line, &format!("{} line {}", path.display(), index + 1))?);
        }
    }
    if keys.len() == before {
        let problem = format!("{} has no key; write one a line", path.display());
        return Err(Failure::Usage(problem).into());
    }
    Ok(keys)
}

fn key(text: &str, place: &str) -> Result<ApiKey, Failure> {
    ApiKey::new(text).map_err(|error| Failure::Usage(format!("{place}: {error}")))
}

/// Reads the origin of a web page into the form in which browsers send it.
pub(crate) fn origin(text: &str) -> Result<String, String> {
    let origin = text.trim().strip_suffix('/').unwrap_or(text.trim()).to_ascii_lowercase();
    let is_origin = origin.split_once("://").is_some_and(|(scheme, host)| {
        !scheme.is_empty() && !host.is_empty() && !host.contains(['/', '@', '?', '#', ' ', '*'])
    });
    if is_origin || origin == "*" {
        Ok(origin)
    } else {
        Err("must be an origin such as https://chat.example.org, without a path, or *".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::origin;

    #[test]
    fn an_origin_is_kept_as_browsers_send_it() {
        for (text, expected) in [
            ("https://chat.example.org", "https://chat.example.org"),
            (" HTTPS://Chat.Example.org:8443/ ", "https://chat.example.org:8443"),
            ("http://[fd00::1]:80", "http://[fd00::1]:80"),
            ("chrome-extension://abcdef", "chrome-extension://abcdef"),
            ("*", "*"),
        ] {
            assert_eq!(origin(text).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn what_no_browser_sends_is_refused() {
        for text in [
            "",
            "null",
            "example.org",
            "https://",
            "https://a/b",
            "https://a?b",
            "https://u@a",
            "https://*.a",
        ] {
            assert!(origin(text).is_err(), "{text}");
        }
    }
}
