//! Rules about the text of single files: heads, words, `unsafe`, lint exceptions, files that no module names.

use super::Text;

/// Words that promise instead of saying, or that leave work behind.
const WORDS: [&str; 10] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("HA", "CK"),
    concat!("production", "-ready"),
    concat!("blazing", "ly"),
    concat!("world", "-class"),
    concat!("cutting", "-edge"),
    concat!("enterprise", "-grade"),
    concat!("battle", "-tested"),
];

/// Beginnings of paths that exist on one machine only.
const PLACES: [&str; 3] = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

pub(super) fn check(texts: &[Text]) -> Vec<String> {
    let mut findings = Vec::new();
    for text in texts {
        findings.extend(words(text));
        if text.has_extension("rs") {
            findings.extend(head(text));
            findings.extend(lints(text));
            findings.extend(unreached(text, texts));
        }
    }
    findings
}

fn words(text: &Text) -> Vec<String> {
    let mut findings = Vec::new();
    for (number, line) in text.content.lines().enumerate() {
        let number = number + 1;
        for word in WORDS {
            if contains_word(line, word) {
                findings.push(format!("{}:{number}: says {word:?}", text.path));
            }
        }
        for place in PLACES {
            if line.contains(place) {
                findings.push(format!("{}:{number}: names a path below {place}", text.path));
            }
        }
    }
    findings
}

fn head(text: &Text) -> Option<String> {
    let missing = !text.content.starts_with("//! ");
    missing.then(|| format!("{}: does not open with a //! line that says what it is", text.path))
}

fn lints(text: &Text) -> Vec<String> {
    let mut findings = Vec::new();
    for (number, line) in text.content.lines().enumerate() {
        let number = number + 1;
        let code = line.split("//").next().unwrap_or_default();
        if code.contains(concat!("[al", "low(")) {
            findings.push(format!("{}:{number}: expects are used here, not allows", text.path));
        }
        if has_unsafe(code) && !may_be_unsafe(&text.path) {
            findings.push(format!("{}:{number}: unsafe has no place in this file", text.path));
        }
    }
    if is_crate_root(&text.path)
        && !text.path.starts_with("crates/gguf/")
        && !text.path.starts_with("crates/kernels/")
        && !text.content.contains("#![forbid(unsafe_code)]")
    {
        findings.push(format!("{}: does not forbid unsafe_code", text.path));
    }
    findings
}

fn has_unsafe(code: &str) -> bool {
    let opens =
        |rest: &str| ["{", "fn", "impl", "trait", "extern"].iter().any(|w| rest.starts_with(w));
    code.split("unsafe ").skip(1).any(opens)
}

fn may_be_unsafe(path: &str) -> bool {
    let Some(kernels) = path.strip_prefix("crates/kernels/src/") else {
        return path == "crates/gguf/src/mmap.rs";
    };
    matches!(kernels, "isa.rs" | "pool.rs")
        || kernels.starts_with("isa/")
        || kernels
            .split('/')
            .any(|part| matches!(part.trim_end_matches(".rs"), "avx2" | "avx512" | "amx" | "neon"))
}

fn is_crate_root(path: &str) -> bool {
    (path.starts_with("crates/") || path.starts_with("xtask/"))
        && (path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs"))
}

/// Reports a source file that no module declares: the compiler never sees it.
fn unreached(text: &Text, texts: &[Text]) -> Option<String> {
    let (folder, below) = text.path.split_once("/src/")?;
    let below = below.strip_suffix(".rs")?;
    let (parent, name) = match below.strip_suffix("/mod").unwrap_or(below).rsplit_once('/') {
        _ if matches!(below, "lib" | "main") => return None,
        Some(("bin", _)) => return None,
        Some((parent, name)) => (parent, name),
        None => ("", below.strip_suffix("/mod").unwrap_or(below)),
    };
    let parents = if parent.is_empty() {
        vec![format!("{folder}/src/lib.rs"), format!("{folder}/src/main.rs")]
    } else {
        vec![format!("{folder}/src/{parent}.rs"), format!("{folder}/src/{parent}/mod.rs")]
    };
    let declaration = format!("mod {name};");
    let declared = texts
        .iter()
        .filter(|other| parents.contains(&other.path))
        .any(|other| other.content.lines().any(|line| line.trim_end().ends_with(&declaration)));
    (!declared).then(|| format!("{}: no module declares this file", text.path))
}

/// Tells whether `word` stands in `line` with no letter, digit or underscore next to it.
pub(super) fn contains_word(line: &str, word: &str) -> bool {
    let is_inner = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(is_inner) && !line[at + word.len()..].starts_with(is_inner)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_one(path: &str, content: &str) -> Vec<String> {
        check(&[Text { path: path.to_owned(), content: content.to_owned() }])
    }

    #[test]
    fn a_file_without_a_head_is_reported() {
        assert_eq!(check_one("crates/a/tests/b.rs", "//! Says what it is.\n"), [""; 0]);
        assert_eq!(check_one("crates/a/tests/b.rs", "fn main() {}\n").len(), 1);
    }

    #[test]
    fn work_left_behind_is_reported_with_its_line() {
        let found = check_one("docs/a.md", &format!("fine\n{}: later\n", WORDS[0]));
        assert_eq!(found, [format!("docs/a.md:2: says {:?}", WORDS[0])]);
        assert_eq!(check_one("docs/a.md", &format!("a {}S list\n", WORDS[0])), [""; 0]);
    }

    #[test]
    fn unsafe_stands_only_where_it_may() {
        let content = format!("//! A file.\n{} {{ f() }}\n", "unsafe");
        assert_eq!(check_one("crates/kernels/tests/x.rs", &content).len(), 1);
        assert_eq!(check_one("crates/model/tests/x.rs", &content).len(), 1);
        assert!(may_be_unsafe("crates/kernels/src/formats/q1_0/avx2.rs"));
        assert!(may_be_unsafe("crates/kernels/src/formats/avx512/panel.rs"));
        assert!(may_be_unsafe("crates/gguf/src/mmap.rs"));
        assert!(!may_be_unsafe("crates/gguf/src/lib.rs"));
        assert!(!may_be_unsafe("crates/kernels/src/formats/q1_0/mod.rs"));
    }

    #[test]
    fn a_file_that_no_module_declares_is_reported() {
        let text = |path: &str, content: &str| Text {
            path: path.to_owned(),
            content: format!("//! A file.\n#![forbid(unsafe_code)]\n{content}\n"),
        };
        let root = text("crates/a/src/lib.rs", "mod b;");
        let tree = [root, text("crates/a/src/b.rs", "mod c;"), text("crates/a/src/b/c.rs", "")];
        assert_eq!(check(&tree), [""; 0]);
        let found = check(&tree[..1].iter().chain(&tree[2..]).map(copy).collect::<Vec<_>>());
        assert_eq!(found, ["crates/a/src/b/c.rs: no module declares this file"]);
    }

    fn copy(text: &Text) -> Text {
        Text { path: text.path.clone(), content: text.content.clone() }
    }
}
