//! A load that is refused has touched no memory but what its file's header takes.

use std::{path::PathBuf, process::Child};

use serde_json::Value;

use crate::{
    memory::peak,
    place::{Finished, Place, text, until},
};

/// A few pages of the header and of the allocator; the models here are far larger.
const SLACK_BYTES: u64 = 6 << 20;

/// A model of about 94 MiB.
fn large() -> PathBuf {
    toko_fixtures::smollm2_path()
}

/// Lets a process run to its end, and returns the most that it had in memory, as often as that can be looked at.
fn watch(mut child: Child) -> (u64, Finished) {
    let pid = child.id();
    let mut highest = 0;
    until(|| {
        highest = highest.max(peak(pid).unwrap_or(0));
        child.try_wait().unwrap()
    });
    (highest, Finished::of(child.wait_with_output().unwrap()))
}

#[test]
fn a_refused_command_stays_as_small_as_one_that_only_asks() {
    let (place, large) = (Place::new(), large());
    let total = place.total(text(&large), &[]);
    let run = ["run", text(&large), "--max-tokens", "1", "--temperature", "0", "Hi."];

    place.limit(total);
    let (loaded, answered) = watch(place.toko(&run).spawn().unwrap());
    assert_eq!(answered.code, Some(0), "{answered:?}");
    let (asked, _) = watch(place.toko(&["policy", "explain", text(&large)]).spawn().unwrap());
    assert!(loaded > asked + 10 * SLACK_BYTES, "loading shows: {loaded}, {asked}");

    place.limit(total - 1);
    let (refused, finished) = watch(place.toko(&run).spawn().unwrap());
    finished.assert_refused();
    assert!(refused < asked + SLACK_BYTES, "{refused} bytes, and {asked} for asking");
}

#[test]
fn a_server_that_refuses_a_model_does_not_grow() {
    let (place, large) = (Place::new(), large());
    place.limit(place.total(text(&large), &["--replicas", "1"]));
    let server = place.serve(&["--replicas", "1", "--pin", "embedded", text(&large)]);
    server.ask("embedded");
    let name = large.file_stem().unwrap().to_str().unwrap();
    let before = peak(server.pid()).unwrap();
    for _ in 0..10 {
        let (status, answer) = server.post("/models/load", &serde_json::json!({"model": name}));
        assert_eq!(status, 503, "{answer}");
        assert_eq!(answer["error"]["code"], Value::from("insufficient_memory"));
        assert_eq!(answer["error"]["decision"]["holders"][0]["model"], Value::from("embedded"));
    }
    let after = peak(server.pid()).unwrap();
    assert!(after < before + SLACK_BYTES, "{before}, then {after}");
    server.ask("embedded");
}

#[test]
fn a_limit_of_addresses_is_named_and_not_run_into() {
    let (place, large) = (Place::new(), large());
    let toko = env!("CARGO_BIN_EXE_toko");
    let run = |kib: u64| {
        let line = format!("ulimit -v {kib}; exec {toko} run {} --max-tokens 1 Hi.", text(&large));
        place.shell(&line)
    };
    // The file's addresses and the program's fit, and what the model needs beside them does not.
    let finished = run(256 << 10);
    finished.assert_refused();
    assert!(finished.stderr.contains("the limit of addresses (ulimit -v)"), "{finished:?}");
    let finished = run(4 << 20);
    assert_eq!(finished.code, Some(0), "{finished:?}");
}
