//! One name for a state root, however it is spelled, and where the state root is.
//!
//! Invariant: two spellings of one existing folder have one key. Reads no environment: the caller passes it in.

use std::ffi::{OsStr, OsString};
use std::path::{Component, Path, PathBuf};

/// Returns the name that a state root has in this process.
///
/// A relative `root` is meant from `current_dir`, and stays as it is where there is none. What exists of the path
/// loses its symbolic links; what does not exist yet is taken by its spelling.
pub fn key(root: &Path, current_dir: Option<&Path>) -> PathBuf {
    let absolute = current_dir.map_or_else(|| root.to_owned(), |folder| folder.join(root));
    if !absolute.is_absolute() {
        return absolute;
    }
    let key = resolve(&absolute);
    // A `..` behind a missing folder may have led back to what exists, and to links in it.
    resolve(&key)
}

/// Returns the state root: `$TOKO_HOME`, else `tokonoma` in `$XDG_STATE_HOME`, else in `~/.local/state`.
///
/// Empty values count as none, and so does a relative `$XDG_STATE_HOME`, as its specification demands.
pub fn state_root(
    toko_home: Option<PathBuf>,
    xdg_state_home: Option<PathBuf>,
    home: Option<PathBuf>,
) -> Option<PathBuf> {
    let is_set = |path: &PathBuf| !path.as_os_str().is_empty();
    let user_state = || home.filter(is_set).map(|home| home.join(".local/state"));
    toko_home.filter(is_set).or_else(|| {
        let state = xdg_state_home.filter(|path| path.is_absolute()).or_else(user_state)?;
        Some(state.join("tokonoma"))
    })
}

/// Returns the true path of the longest part that exists, and behind it the rest, read as it is spelled.
fn resolve(absolute: &Path) -> PathBuf {
    let mut existing = absolute.components();
    let mut missing: Vec<OsString> = Vec::new();
    loop {
        if let Ok(canonical) = existing.as_path().canonicalize() {
            return missing.iter().rev().fold(canonical, |path, name| follow(path, name));
        }
        match existing.next_back() {
            Some(name @ (Component::Normal(_) | Component::ParentDir)) => {
                missing.push(name.as_os_str().to_owned());
            }
            _ => return absolute.to_owned(),
        }
    }
}

/// Goes to the folder of that name, or up where the name says so; above the root is the root.
fn follow(mut from: PathBuf, name: &OsStr) -> PathBuf {
    if name == ".." {
        from.pop();
    } else {
        from.push(name);
    }
    from
}
