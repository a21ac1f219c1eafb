//! Rules about crates, read from the table "What each crate leaves out" of ARCHITECTURE.md and held against `cargo metadata`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use serde_json::Value;

use super::Text;
use super::sources::contains_word;

const DOCUMENT: &str = "ARCHITECTURE.md";
const HEADING: &str = "## What each crate leaves out";
const PREFIX: &str = "toko-";

/// One row of the table.
struct Rule {
    /// Name of the crate's folder; for a rule about a module alone, with the module's name after a slash.
    name: String,
    /// Our own crates that it may depend on.
    may_use: Vec<String>,
    /// Outside crates that it never depends on.
    never_uses: Vec<String>,
    /// Paths that its sources never spell.
    never_says: Vec<String>,
}

/// A crate as `cargo metadata` tells it.
struct Crate {
    name: String,
    dependencies: Vec<Dependency>,
}

struct Dependency {
    name: String,
    is_dev: bool,
}

pub(super) fn check(root: &Path, texts: &[Text]) -> anyhow::Result<Vec<String>> {
    let Some(document) = texts.iter().find(|text| text.path == DOCUMENT) else {
        return Ok(Vec::new());
    };
    let rules = parse_rules(&document.content)?;
    let mut findings = Vec::new();
    for found in metadata(root)? {
        let Some(name) = found.name.strip_prefix(PREFIX) else { continue };
        let Some(rule) = rules.iter().find(|rule| rule.name == name) else {
            findings.push(format!("{DOCUMENT}: has no row for crates/{name}"));
            continue;
        };
        findings.extend(dependencies(&found, rule));
        findings.extend(words(rule, texts));
        findings.extend(unused_modules(name, texts));
    }
    for rule in rules.iter().filter(|rule| rule.name.contains('/')) {
        findings.extend(words(rule, texts));
    }
    Ok(findings)
}

fn parse_rules(document: &str) -> anyhow::Result<Vec<Rule>> {
    let section =
        document.split(HEADING).nth(1).with_context(|| format!("{DOCUMENT} has no {HEADING:?}"))?;
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut rules = Vec::new();
    for line in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(quoted).collect();
        let [name, may_use, never_uses, never_says] = cells.as_slice() else {
            bail!("{DOCUMENT}: a row without four cells: {line}");
        };
        rules.push(Rule {
            name: name.join(""),
            may_use: may_use.clone(),
            never_uses: never_uses.clone(),
            never_says: never_says.clone(),
        });
    }
    Ok(rules)
}

/// Returns what stands between backticks.
fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn metadata(root: &Path) -> anyhow::Result<Vec<Crate>> {
    let output = Command::new("cargo")
        .args(["metadata", "--format-version", "1", "--no-deps", "--manifest-path"])
        .arg(root.join("Cargo.toml"))
        .output()
        .context("cannot start cargo")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let value: Value = serde_json::from_slice(&output.stdout)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages = value["packages"].as_array().context("cargo metadata lists no packages")?;
    let dependency =
        |value: &Value| Dependency { name: text(&value["name"]), is_dev: value["kind"] == "dev" };
    let found = packages.iter().map(|package| Crate {
        name: text(&package["name"]),
        dependencies: package["dependencies"]
            .as_array()
            .into_iter()
            .flatten()
            .map(dependency)
            .collect(),
    });
    Ok(found.collect())
}

fn dependencies(found: &Crate, rule: &Rule) -> Vec<String> {
    let mut findings = Vec::new();
    for dependency in &found.dependencies {
        let place = format!("crates/{}/Cargo.toml", rule.name);
        match dependency.name.strip_prefix(PREFIX) {
            Some("cli") => findings.push(format!("{place}: nothing depends on cli")),
            Some("fixtures") if !dependency.is_dev => {
                findings.push(format!("{place}: fixtures is for tests only"));
            }
            Some(ours) if !dependency.is_dev && !rule.may_use.iter().any(|may| may == ours) => {
                findings.push(format!("{place}: {} does not use {ours}", rule.name));
            }
            None if !dependency.is_dev && rule.never_uses.contains(&dependency.name) => {
                findings.push(format!("{place}: {} does not use {}", rule.name, dependency.name));
            }
            _ => {}
        }
    }
    findings
}

fn words(rule: &Rule, texts: &[Text]) -> Vec<String> {
    let places = match rule.name.split_once('/') {
        None => vec![format!("crates/{}/src/", rule.name)],
        Some((name, module)) => {
            ["/", ".rs"].map(|end| format!("crates/{name}/src/{module}{end}")).to_vec()
        }
    };
    let mut findings = Vec::new();
    let is_meant = |text: &&Text| places.iter().any(|place| text.path.starts_with(place));
    for text in texts.iter().filter(is_meant) {
        let code = text.content.split("#[cfg(test)]").next().unwrap_or_default();
        for (number, line) in code.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            for word in rule.never_says.iter().filter(|word| code.contains(word.as_str())) {
                let name = &rule.name;
                findings.push(format!("{}:{}: {name} never says {word}", text.path, number + 1));
            }
        }
    }
    findings
}

/// Reports public modules that nothing outside the crate's own sources names.
fn unused_modules(name: &str, texts: &[Text]) -> Vec<String> {
    let root = format!("crates/{name}/src/lib.rs");
    let own = format!("crates/{name}/src/");
    let extern_name = format!("toko_{name}");
    let Some(lib) = texts.iter().find(|text| text.path == root) else { return Vec::new() };
    let modules =
        lib.content.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    let is_named = |module: &str| {
        let others =
            texts.iter().filter(|text| text.has_extension("rs") && !text.path.starts_with(&own));
        others
            .filter(|text| text.content.contains(&extern_name))
            .any(|text| contains_word(&text.content, module))
    };
    modules
        .filter(|module| !is_named(module))
        .map(|module| format!("{root}: nothing outside names the public module {module}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
## What each crate leaves out

| crate | may use | never uses | never says |
|---|---|---|---|
| `engine` | `model` | `axum` | `std::env` |

## Next
";

    fn rule() -> Rule {
        parse_rules(TABLE).unwrap().remove(0)
    }

    fn check_dependency(name: &str, is_dev: bool) -> usize {
        let dependency = Dependency { name: name.to_owned(), is_dev };
        let found = Crate { name: "toko-engine".to_owned(), dependencies: vec![dependency] };
        dependencies(&found, &rule()).len()
    }

    #[test]
    fn a_row_says_what_a_crate_may_and_may_not_use() {
        assert_eq!(check_dependency("toko-model", false), 0);
        assert_eq!(check_dependency("toko-server", false), 1);
        assert_eq!(check_dependency("axum", false), 1);
        assert_eq!(check_dependency("axum", true), 0);
        assert_eq!(check_dependency("thiserror", false), 0);
        assert_eq!(check_dependency("toko-fixtures", false), 1);
        assert_eq!(check_dependency("toko-fixtures", true), 0);
        assert_eq!(check_dependency("toko-cli", true), 1);
    }

    #[test]
    fn a_forbidden_path_is_reported_in_code_but_not_in_comments_or_tests() {
        let content =
            "// std::env\nlet x = std::env::args();\n#[cfg(test)]\nmod tests { use std::env; }\n";
        let text = Text { path: "crates/engine/src/a.rs".to_owned(), content: content.to_owned() };
        assert_eq!(
            words(&rule(), &[text]),
            ["crates/engine/src/a.rs:2: engine never says std::env"]
        );
    }

    #[test]
    fn a_rule_about_a_module_concerns_its_files_and_no_others() {
        let rule = Rule { name: "engine/pool".to_owned(), ..rule() };
        let found = |path: &str| {
            let content = "let x = std::env::args();\n".to_owned();
            words(&rule, &[Text { path: path.to_owned(), content }]).len()
        };
        assert_eq!(found("crates/engine/src/pool.rs"), 1);
        assert_eq!(found("crates/engine/src/pool/lease.rs"), 1);
        assert_eq!(found("crates/engine/src/poolside.rs"), 0);
        assert_eq!(found("crates/model/src/pool.rs"), 0);
    }

    #[test]
    fn a_public_module_that_nobody_names_is_reported() {
        let text =
            |path: &str, content: &str| Text { path: path.to_owned(), content: content.to_owned() };
        let lib = text("crates/engine/src/lib.rs", "pub mod stop;\npub mod sampler;\n");
        let user = text("crates/server/src/a.rs", "use toko_engine::{sampler::Sampler};\n");
        let found = unused_modules("engine", &[lib, user]);
        assert_eq!(
            found,
            ["crates/engine/src/lib.rs: nothing outside names the public module stop"]
        );
    }
}
