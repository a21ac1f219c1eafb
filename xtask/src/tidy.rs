//! Checks what neither the compiler nor clippy checks: who may depend on whom, where `unsafe` may stand, what every file opens with.
//!
//! A finding is one line that starts with a path. The rules about crates are read from ARCHITECTURE.md, so that
//! the document and the check cannot say different things.

mod crates;
mod documents;
mod sources;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// One text file of the tree.
struct Text {
    /// Path below the root, with `/` on every system.
    path: String,
    content: String,
}

impl Text {
    fn has_extension(&self, extension: &str) -> bool {
        Path::new(&self.path).extension().is_some_and(|found| found == extension)
    }
}

/// Returns the folder that holds the workspace's Cargo.toml.
pub(crate) fn repository_root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().expect("xtask lies in the workspace").to_path_buf()
}

/// Returns one line for every broken rule, in the order of the paths.
pub(crate) fn check(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut texts = Vec::new();
    collect(root, "", &mut texts)?;
    let mut findings = sources::check(&texts);
    findings.extend(documents::check(root, &texts));
    findings.extend(crates::check(root, &texts)?);
    findings.sort();
    Ok(findings)
}

fn collect(root: &Path, below: &str, texts: &mut Vec<Text>) -> anyhow::Result<()> {
    let folder = root.join(below);
    let entries = fs::read_dir(&folder).with_context(|| format!("cannot list {below:?}"))?;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if below.is_empty() { name.clone() } else { format!("{below}/{name}") };
        if entry.file_type()?.is_dir() {
            if !is_foreign(&name) {
                collect(root, &path, texts)?;
            }
        } else if is_ours(&name) {
            let content = fs::read_to_string(root.join(&path)).with_context(|| path.clone())?;
            texts.push(Text { path, content });
        }
    }
    Ok(())
}

/// Folders with build results, other people's data, or Python.
fn is_foreign(name: &str) -> bool {
    matches!(name, ".git" | "target" | "golden" | "recipe" | "corpus" | "artifacts" | "snapshots")
}

fn is_ours(name: &str) -> bool {
    let extension = Path::new(name).extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("rs" | "md" | "toml")) || matches!(name, "justfile" | "run")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_tidy() {
        let findings = check(&repository_root()).unwrap();
        assert!(findings.is_empty(), "\n{}", findings.join("\n"));
    }
}
