//! Loads that have no room: what is told, and that what is proposed works, with real processes on the embedded model.

use std::process::Command;

use serde_json::Value;

use crate::{
    command::{Finished, finish, run, toko, toko_in},
    serve::Server,
};

/// Returns what the embedded model needs for one request at a time, in bytes.
fn need() -> u64 {
    let answer = run(&["policy", "explain", "embedded", "--json"]).answer();
    let decision: Value = serde_json::from_str(&answer).unwrap();
    decision["need"]["total_bytes"].as_u64().unwrap()
}

/// Returns the commands below "It fits with", as they are printed.
fn fixes(stderr: &str) -> Vec<String> {
    let below = stderr.split_once("\nIt fits with").map_or("", |(_, below)| below);
    let lines = below.lines().skip(1).take_while(|line| line.starts_with("  "));
    lines.map(|line| line.trim().to_owned()).collect()
}

/// Runs a command line as a shell does that it was pasted into.
fn pasted(command: &str) -> Command {
    let mut shell = Command::new("sh");
    let prepared = toko(&[]);
    shell.args(["-c", &format!("exec {command}")]).env_clear();
    let kept = std::env::vars_os().filter(|(name, _)| name == "PATH");
    shell.envs(kept);
    shell.envs(prepared.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell
}

#[test]
fn a_refusal_tells_needs_room_and_fixes_and_the_first_fix_works() {
    let limit = format!("{}B", need() - 1);
    let arguments =
        ["run", "--memory-limit", &limit, "--max-tokens", "2", "It's 5 o'clock; $HOME?"];
    let Finished { stdout, stderr, code } = run(&arguments);
    assert_eq!((code, stdout.as_str()), (Some(4), ""), "{stderr}");
    assert!(stderr.starts_with("toko: embedded needs "), "{stderr}");
    let names: Vec<&str> = stderr.lines().map(|line| line.split("  ").next().unwrap()).collect();
    for name in ["needed", "ceiling", "in use by models", "available", "stays free"] {
        assert!(names.contains(&name), "{name} in {stderr}");
    }
    assert!(stderr.contains("\n  weights ") && stderr.contains("\n  kv cache "), "{stderr}");
    assert!(stderr.ends_with("--force loads it all the same.\n"), "{stderr}");

    let fixes = fixes(&stderr);
    assert!(!fixes.is_empty(), "{stderr}");
    for fix in fixes {
        let done = finish(pasted(&fix).output().unwrap());
        assert_eq!(done.code, Some(0), "{fix}: {}", done.stderr);
        assert_ne!(done.stdout, "", "{fix}");
    }
}

#[test]
fn a_limit_of_the_environment_counts_and_force_goes_over_it() {
    let limit = format!("{}B", need() / 2);
    let run = |arguments: &[&str]| {
        finish(toko(arguments).env("TOKO_MEMORY_LIMIT", &limit).output().unwrap())
    };
    assert_eq!(run(&["run", "Hi", "--max-tokens", "1"]).code, Some(4));
    let forced = run(&["run", "Hi", "--max-tokens", "1", "--force"]);
    assert_eq!(forced.code, Some(0), "{}", forced.stderr);
    let wrong = toko(&["run", "Hi"]).env("TOKO_MEMORY_LIMIT", "much").output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
}

#[test]
fn a_server_with_too_many_replicas_is_told_how_many_fit() {
    let limit = format!("{}B", need() + need() / 4);
    let refused = run(&["serve", "--port", "0", "--replicas", "8", "--memory-limit", &limit]);
    assert_eq!(refused.code, Some(4), "{}", refused.stderr);
    let fixes = fixes(&refused.stderr);
    assert!(fixes[0].contains("serve") && fixes[0].contains("--replicas"), "{fixes:?}");
    let server = Server::spawn(&mut pasted(&fixes[0]));
    assert!(server.ask("GET /health", "").starts_with("HTTP/1.1 200"));
}

#[test]
fn of_three_processes_two_have_room_and_the_third_when_one_is_killed() {
    let root = tempfile::tempdir().unwrap();
    let limit = format!("{}B", need() * 5 / 2);
    let with_limit = |arguments: &[&str]| {
        let mut command = toko_in(root.path(), arguments);
        command.env("TOKO_MEMORY_LIMIT", &limit);
        command
    };
    let serve = || Server::spawn(&mut with_limit(&["serve", "--port", "0", "--replicas", "1"]));
    let (mut first, second) = (serve(), serve());
    let third = || {
        let ask = &["run", "--max-tokens", "1", "Hi"];
        finish(with_limit(ask).stdin(std::process::Stdio::null()).output().unwrap())
    };
    let refused = third();
    assert_eq!(refused.code, Some(4), "{}", refused.stderr);
    for server in [&first, &second] {
        let holder = format!("toko serve, process {}, resident", server.id());
        assert!(refused.stderr.contains(&holder), "{holder} in {}", refused.stderr);
    }
    let listed = finish(with_limit(&["ps", "--json", "--url", first.address()]).output().unwrap());
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(listed["holders"].as_array().unwrap().len(), 2, "{listed}");
    assert_eq!(listed["models"][0]["id"], "embedded");
    assert!(listed["models"][0]["bytes"].as_u64().unwrap() > 0, "{listed}");

    // SIGKILL: nothing of it can tidy up.
    first.kill();
    let admitted = third();
    assert_eq!(admitted.code, Some(0), "{}", admitted.stderr);
    drop(second);
}

#[test]
fn what_a_load_took_is_told_with_the_next_estimate() {
    let home = tempfile::tempdir().unwrap();
    let explain = || {
        let arguments = ["policy", "explain", "embedded", "--replicas", "1", "--json"];
        let done = finish(toko_in(home.path(), &arguments).output().unwrap());
        let decision: Value = serde_json::from_str(&done.stdout).unwrap();
        let total = decision["need"]["total_bytes"].as_u64().unwrap();
        (total, decision["need"]["terms"][0]["source"].as_str().unwrap().to_owned())
    };
    let (predicted, source) = explain();
    assert!(!source.contains("last measured"), "{source}");
    let done = finish(toko_in(home.path(), &["run", "--max-tokens", "2", "Hi"]).output().unwrap());
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let (corrected, source) = explain();
    assert!(source.contains("last measured"), "{source}");
    assert!(corrected >= predicted, "what our own layout says is never lowered");
}
