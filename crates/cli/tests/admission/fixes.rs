//! Every fix that a refusal prints is a command that works as it stands.

use std::path::PathBuf;

use crate::place::{Finished, Place, text};

fn model() -> PathBuf {
    toko_fixtures::smollm2_path()
}

/// Returns the commands that a refusal proposes.
#[track_caller]
fn proposals(refused: &Finished) -> Vec<String> {
    refused.assert_refused();
    let lines = refused.stderr.lines().skip_while(|line| !line.starts_with("It fits with"));
    let commands: Vec<String> =
        lines.skip(1).map_while(|line| line.strip_prefix("  ")).map(str::to_owned).collect();
    assert!(!commands.is_empty(), "{}", refused.stderr);
    commands
}

/// Runs every proposal as a shell does, and expects an answer of each; the first must hold `expected`.
#[track_caller]
fn check(place: &Place, arguments: &[&str], expected: &str) {
    let commands = proposals(&place.run(arguments));
    assert!(commands[0].contains(expected), "{commands:?}");
    for command in commands {
        let finished = place.shell(&command);
        assert_eq!(finished.code, Some(0), "{command}: {finished:?}");
        assert!(!finished.stdout.trim().is_empty(), "{command}: {finished:?}");
    }
}

#[test]
fn a_context_that_is_too_long_fits_when_it_is_as_short_as_proposed() {
    let (place, model) = (Place::new(), model());
    place.limit(place.total(text(&model), &["--ctx", "2048"]));
    let run =
        ["run", text(&model), "--ctx", "8192", "--max-tokens", "2", "It's a \"$HOME\", isn't it?"];
    check(&place, &run, "--ctx 2048");
}

#[test]
fn smaller_keys_and_values_fit_where_they_are_proposed() {
    let (place, model) = (Place::new(), model());
    place.limit(place.total(text(&model), &["--ctx", "8192", "--kv-type", "q8_0"]));
    let run = ["run", text(&model), "--ctx", "8192", "--max-tokens", "2", "Hello."];
    check(&place, &run, "--kv-type q8_0");
}

#[test]
fn a_policy_that_allows_nothing_is_followed_by_one_that_does() {
    let place = Place::new();
    assert_eq!(place.run(&["policy", "set", "custom:0GB"]).code, Some(0));
    check(&place, &["run", "embedded", "--max-tokens", "2", "Hello."], "policy set local-focused");
}

#[test]
fn a_server_with_too_many_replicas_starts_with_as_many_as_proposed() {
    let place = Place::new();
    place.limit(place.total("embedded", &["--replicas", "3"]));
    let commands = proposals(&place.run(&["serve", "--port", "0", "--parallel", "8"]));
    assert!(commands[0].ends_with("--replicas 3"), "{commands:?}");
    for command in commands {
        let mut shell = place.command("sh");
        let line = format!("exec {command}");
        let server = crate::server::Starting::new(shell.args(["-c", &line])).ready();
        server.unwrap_or_else(|finished| panic!("{command}: {finished:?}")).ask("embedded");
    }
}
