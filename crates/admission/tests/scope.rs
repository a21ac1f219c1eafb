//! One folder has one name.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tempfile::TempDir;
use toko_admission::scope::{key, state_root};

/// A folder, and its true path.
fn folder() -> (TempDir, PathBuf) {
    let folder = TempDir::new().expect("a folder for the test");
    let path = folder.path().canonicalize().expect("the folder has just been made");
    (folder, path)
}

fn check(input: impl AsRef<Path>, expected: impl AsRef<Path>) {
    let input = input.as_ref();
    // An absolute path has the same name wherever the process is.
    for current_dir in [None, Some(Path::new("/"))] {
        assert_eq!(key(input, current_dir), expected.as_ref(), "{}", input.display());
    }
}

#[test]
fn every_key_of_the_table_comes_out() {
    let (_folder, path) = folder();
    check("/", "/");
    check(path.join("."), &path);
    check("/nonexistent-zz/a/../b", "/nonexistent-zz/b");
    check(path.join("nope/./x/../y"), path.join("nope/y"));
    let up = "../".repeat(path.components().count() + 2);
    check(path.join("a").join(up).join("zz"), "/zz");
}

#[test]
fn a_relative_path_is_meant_from_the_current_folder() {
    let (_folder, path) = folder();
    assert_eq!(key(Path::new("rel/x"), Some(&path)), path.join("rel/x"));
    assert_eq!(key(Path::new(""), Some(&path)), path);
    assert_eq!(key(Path::new("."), Some(&path)), path);
    assert_eq!(key(Path::new("../x"), Some(&path.join("missing"))), path.join("x"));
}

#[test]
fn a_relative_path_without_a_current_folder_stays_as_it_is() {
    for spelling in ["rel/x", "", "../x"] {
        assert_eq!(key(Path::new(spelling), None), Path::new(spelling));
    }
}

#[test]
fn links_are_followed_before_what_is_missing() {
    let (_folder, path) = folder();
    fs::create_dir_all(path.join("real")).unwrap();
    symlink("real", path.join("alias")).unwrap();
    check(path.join("alias/missing/state"), path.join("real/missing/state"));
    check(path.join("alias"), path.join("real"));
}

#[test]
fn going_up_behind_a_link_leaves_the_folder_that_it_leads_to() {
    let (_folder, path) = folder();
    fs::create_dir_all(path.join("physical/child")).unwrap();
    fs::create_dir_all(path.join("aliases")).unwrap();
    symlink("../physical/child", path.join("aliases/runtime")).unwrap();
    check(path.join("aliases/runtime/../missing"), path.join("physical/missing"));
}

#[test]
fn a_link_that_is_reached_over_a_missing_folder_is_followed_too() {
    let (_folder, path) = folder();
    fs::create_dir_all(path.join("real")).unwrap();
    symlink("real", path.join("alias")).unwrap();
    check(path.join("nope/../alias/x"), path.join("real/x"));
}

#[test]
fn links_that_lead_nowhere_are_taken_by_their_spelling() {
    let (_folder, path) = folder();
    symlink("circle", path.join("circle")).unwrap();
    symlink("gone", path.join("dangling")).unwrap();
    check(path.join("circle/x"), path.join("circle/x"));
    check(path.join("dangling/x/../y"), path.join("dangling/y"));
}

#[test]
fn a_file_on_the_way_is_no_reason_to_fail() {
    let (_folder, path) = folder();
    fs::write(path.join("file"), "").unwrap();
    check(path.join("file"), path.join("file"));
    check(path.join("file/below"), path.join("file/below"));
}

proptest! {
    #[test]
    fn a_key_is_its_own_key(parts in prop::collection::vec(
        prop::sample::select(vec!["real", "alias", "deep", "nope", "..", ".", "é"]), 0..8,
    )) {
        let (_folder, path) = folder();
        fs::create_dir_all(path.join("real/deep")).unwrap();
        symlink("real", path.join("alias")).unwrap();
        let spelled = parts.iter().fold(path.clone(), |path, part| path.join(part));
        let name = key(&spelled, None);
        prop_assert_eq!(&key(&name, None), &name);
        prop_assert!(name.is_absolute());
        let is_plain = name.components().all(|part| part.as_os_str() != ".." && part.as_os_str() != ".");
        prop_assert!(is_plain);
        if let Ok(canonical) = spelled.canonicalize() {
            prop_assert_eq!(name, canonical);
        }
    }
}

#[test]
fn the_state_root_is_the_first_place_that_is_named() {
    let place = |toko: &str, xdg: &str, home: &str| {
        let unless_unset = |value: &str| (value != "unset").then(|| PathBuf::from(value));
        let root = state_root(unless_unset(toko), unless_unset(xdg), unless_unset(home));
        root.map(|root| root.to_str().unwrap().to_owned())
    };
    let cases = [
        ("/toko", "/xdg", "/users/a", Some("/toko")),
        ("unset", "/xdg", "/users/a", Some("/xdg/tokonoma")),
        ("unset", "unset", "/users/a", Some("/users/a/.local/state/tokonoma")),
        ("unset", "/xdg", "unset", Some("/xdg/tokonoma")),
        ("unset", "unset", "unset", None),
        // As its specification demands.
        ("unset", "relative", "/users/a", Some("/users/a/.local/state/tokonoma")),
        ("unset", "relative", "unset", None),
        ("", "", "/users/a", Some("/users/a/.local/state/tokonoma")),
        ("", "", "", None),
        ("relative", "/xdg", "/users/a", Some("relative")),
    ];
    for (toko, xdg, home, expected) in cases {
        assert_eq!(place(toko, xdg, home).as_deref(), expected, "{toko} {xdg} {home}");
    }
}
