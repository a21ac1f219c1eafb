//! The help texts, word for word: a change in them is a change for users.

use insta::assert_snapshot;

use crate::command::run;

#[test]
fn the_help_of_the_whole_command_lists_the_commands() {
    assert_snapshot!("toko", run(&["--help"]).answer());
}

#[test]
fn the_help_of_run_tells_model_and_prompt_apart() {
    assert_snapshot!("run", run(&["run", "--help"]).answer());
}

#[test]
fn the_help_of_serve_lists_its_flags() {
    assert_snapshot!("serve", run(&["serve", "--help"]).answer());
}

#[test]
fn the_help_of_bench_lists_its_flags() {
    assert_snapshot!("bench", run(&["bench", "--help"]).answer());
}

#[test]
fn the_help_of_show_lists_its_flags() {
    assert_snapshot!("show", run(&["show", "--help"]).answer());
}

#[test]
fn the_help_of_tokenize_lists_its_flags() {
    assert_snapshot!("tokenize", run(&["tokenize", "--help"]).answer());
}

#[test]
fn the_version_is_that_of_the_package() {
    let expected = format!("toko {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(run(&["--version"]).answer(), expected);
}

#[test]
fn no_command_at_all_is_wrong_usage() {
    let finished = run(&[]);
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(2), ""));
    assert!(finished.stderr.contains("Usage: toko"), "{}", finished.stderr);
}

#[test]
fn a_mistyped_flag_is_wrong_usage_and_the_right_one_is_offered() {
    let finished = run(&["run", "hello", "--temperatur", "0"]);
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(2), ""));
    assert!(finished.stderr.starts_with("toko: "), "{}", finished.stderr);
    assert!(finished.stderr.contains("--temperature"), "{}", finished.stderr);
}
