//! Rules about the repository's documents and manifests: they exist, their links lead somewhere, their lists are sorted.

use std::path::Path;

use super::Text;

const REQUIRED: [&str; 9] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "LICENSE-MIT",
    "LICENSE-APACHE",
    "deny.toml",
    "justfile",
    ".ci/run",
];

pub(super) fn check(root: &Path, texts: &[Text]) -> Vec<String> {
    let missing = REQUIRED.iter().filter(|path| !root.join(path).is_file());
    let mut findings: Vec<_> = missing.map(|path| format!("{path}: is missing")).collect();
    for text in texts {
        if text.has_extension("md") {
            findings.extend(dead_links(root, text));
        }
        if text.path.ends_with("Cargo.toml") {
            findings.extend(unsorted(text));
        }
    }
    findings
}

fn dead_links(root: &Path, text: &Text) -> Vec<String> {
    let folder = Path::new(&text.path).parent().unwrap_or(Path::new(""));
    let targets = text.content.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets
        .map(|target| target.split('#').next().unwrap_or_default())
        .filter(|target| !target.is_empty() && !target.contains("://"))
        .filter(|target| !root.join(folder).join(target).exists())
        .map(|target| format!("{}: links to {target}, which is missing", text.path))
        .collect()
}

/// Reports dependency lists that are not in alphabetical order; an empty line starts a new list.
fn unsorted(text: &Text) -> Vec<String> {
    let mut findings = Vec::new();
    let mut in_list = false;
    let mut previous = "";
    for (number, line) in text.content.lines().enumerate() {
        if line.starts_with('[') {
            in_list = line.ends_with("dependencies]");
            previous = "";
        } else if line.is_empty() {
            previous = "";
        } else if in_list && line.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
            if name < previous {
                findings.push(format!(
                    "{}:{}: {name} stands after {previous}",
                    text.path,
                    number + 1
                ));
            }
            previous = name;
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(content: &str) -> Text {
        Text { path: "crates/a/Cargo.toml".to_owned(), content: content.to_owned() }
    }

    #[test]
    fn an_unsorted_list_is_reported_with_its_line() {
        let found = unsorted(&manifest("[dependencies]\nb = \"1\"\na.workspace = true\n"));
        assert_eq!(found, ["crates/a/Cargo.toml:3: a stands after b"]);
    }

    #[test]
    fn an_empty_line_starts_a_new_list_and_other_tables_have_their_own_order() {
        let lists = "[package]\nz = 1\na = 2\n[dependencies]\nb = \"1\"\n\na.workspace = true\n";
        assert_eq!(unsorted(&manifest(lists)), [""; 0]);
    }

    #[test]
    fn a_link_to_a_missing_file_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("there.md"), "").unwrap();
        let content =
            "[a](there.md#part) [b](gone.md) [c](https://example.org/x) [d](#here)".to_owned();
        let found = dead_links(folder.path(), &Text { path: "a.md".to_owned(), content });
        assert_eq!(found, ["a.md: links to gone.md, which is missing"]);
    }
}
