//! Files that lie: one line that names the field, no panic, whatever is asked of them.

use std::path::PathBuf;

use tempfile::TempDir;
use toko_fixtures::hostile;

use crate::command::{run, text};

/// Sound files that ask for more than this program can; they are shown with the reason.
const UNSUPPORTED: [&str; 3] =
    ["an unknown architecture", "an unknown tokenizer", "a query matrix of an unknown type"];

fn write(directory: &TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = directory.path().join(format!("{}.gguf", name.replace('/', " ")));
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn running_a_hostile_file_is_one_error_that_names_the_field() {
    let directory = tempfile::tempdir().unwrap();
    for (name, bytes, part) in hostile::all() {
        let path = write(&directory, name, &bytes);
        let error = run(&["run", text(&path), "hello"]).error(1);
        assert!(error.contains(part), "{name}: {part:?} in {error}");
        assert!(error.contains(text(&path)), "{name}: the path in {error}");
    }
}

#[test]
fn showing_a_file_that_is_no_gguf_is_one_error_that_names_the_field() {
    let directory = tempfile::tempdir().unwrap();
    for (name, bytes, part) in hostile::files() {
        let path = write(&directory, name, &bytes);
        let finished = run(&["show", text(&path)]);
        assert_eq!(finished.stdout, "", "{name}");
        let error = finished.error(1);
        assert!(error.contains(part), "{name}: {part:?} in {error}");
    }
}

#[test]
fn showing_a_file_that_makes_no_model_tells_what_it_is_and_why_it_does_not_run() {
    let directory = tempfile::tempdir().unwrap();
    for (name, bytes, part) in hostile::models() {
        let path = write(&directory, name, &bytes);
        let finished = run(&["show", text(&path)]);
        let reason = finished.stdout.lines().find(|line| line.starts_with("  runs here"));
        assert!(reason.is_some_and(|reason| reason.contains(part)), "{name}: {finished:?}");
        let document = run(&["show", text(&path), "--json"]);
        assert_eq!(document.code, finished.code, "{name}");
        let document: serde_json::Value = serde_json::from_str(&document.stdout).unwrap();
        assert!(document["problem"].as_str().unwrap().contains(part), "{name}: {document}");
        if UNSUPPORTED.contains(&name) {
            finished.answer();
        } else {
            let error = finished.error(1);
            assert!(error.contains(part), "{name}: {part:?} in {error}");
        }
    }
}

#[test]
fn tokenizing_with_a_hostile_file_is_one_error() {
    let directory = tempfile::tempdir().unwrap();
    for (name, bytes, part) in hostile::files() {
        let path = write(&directory, name, &bytes);
        let error = run(&["tokenize", text(&path), "hello"]).error(1);
        assert!(error.contains(part), "{name}: {part:?} in {error}");
    }
}

#[test]
fn explaining_a_hostile_file_is_an_answer_or_one_error() {
    let directory = tempfile::tempdir().unwrap();
    for (name, bytes, _) in hostile::all() {
        let path = write(&directory, name, &bytes);
        let finished = run(&["policy", "explain", text(&path), "--ctx", "4096", "--json"]);
        match finished.code {
            Some(0 | 4) => assert!(finished.stdout.contains("\"verdict\""), "{name}: {finished:?}"),
            _ => drop(finished.error(1)),
        }
    }
}

#[test]
fn a_configuration_is_sized_by_what_it_says_unless_it_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.json");
    std::fs::write(&config, "{\"num_hidden_layers\":").unwrap();
    let error = run(&["policy", "explain", text(folder.path())]).error(1);
    assert!(error.contains("config.json") && error.contains("not JSON"), "{error}");
    // What is JSON and says too little is sized by what is usual, with the reason.
    std::fs::write(&config, "{}").unwrap();
    let finished = run(&["policy", "explain", text(folder.path())]);
    assert_eq!(finished.code, Some(4));
    assert!(finished.stdout.contains("num_hidden_layers"), "{}", finished.stdout);
}

#[test]
fn a_directory_is_no_model() {
    let directory = tempfile::tempdir().unwrap();
    for command in [&["run", text(directory.path()), "hi"][..], &["show", text(directory.path())]] {
        let error = run(command).error(1);
        assert!(error.contains("directory"), "{error}");
    }
}

#[cfg(unix)]
#[test]
fn a_fifo_is_refused_without_waiting_for_a_writer() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fifo.gguf");
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    for command in [&["run", text(&path), "hi"][..], &["show", text(&path)]] {
        let error = run(command).error(1);
        assert!(error.to_lowercase().contains("fifo"), "{error}");
    }
}

#[test]
fn control_characters_from_a_file_do_not_reach_the_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a\x1b[31mb.gguf");
    let error = run(&["show", text(&path)]).error(3);
    assert!(error.contains("a␛[31mb.gguf"), "{error:?}");
}
