//! A process that is killed at any moment of a load leaves nothing charged.

use std::{
    path::{Path, PathBuf},
    process::Child,
    time::Instant,
};

use serde_json::Value;

use crate::place::{Place, text, until};

/// How many moments of a load are tried.
const KILLS: u32 = 20;

/// How far a process is, as the files tell that it shares with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It is among the processes that share the machine.
    Joined,
    /// It was let in, and loads.
    Loading,
    /// Its model is there.
    Resident,
}

/// A model whose load takes a while.
fn large(place: &Place) -> PathBuf {
    let path = place.path("large.gguf");
    std::fs::write(&path, toko_fixtures::smollm2_model("F16")).unwrap();
    path
}

/// Tells whether a process has come to a stage; the dead may have left records, too.
fn has_come_to(stage: Stage, process: &Child, leases: &Path) -> bool {
    let path = leases.join(format!("{}-0.record", process.id()));
    let Ok(record) = std::fs::read_to_string(path) else { return false };
    match stage {
        Stage::Joined => true,
        Stage::Loading => record.contains("\"loading\""),
        Stage::Resident => record.contains("\"resident\""),
    }
}

/// Starts to load a model, kills the process when it has come to a stage, and checks what it leaves.
fn kill_at(stage: Stage, arguments: &[&str]) {
    let place = Place::new();
    let mut child = place.toko(arguments).spawn().unwrap();
    until(|| {
        let has_ended = child.try_wait().unwrap().is_some();
        assert!(!has_ended, "it ended before it was {stage:?}");
        has_come_to(stage, &child, &place.leases()).then_some(())
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert_usable(&place);
}

/// Checks that whoever looks first finds all the room, and can use it.
#[track_caller]
fn assert_usable(place: &Place) {
    place.assert_free();
    let finished = place.run(&["run", "embedded", "--max-tokens", "1", "Hello."]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
}

#[test]
fn a_command_that_is_killed_at_any_stage_leaves_nothing_charged() {
    let files = Place::new();
    let large = large(&files);
    for stage in [Stage::Joined, Stage::Loading, Stage::Resident] {
        kill_at(stage, &["run", text(&large), "--max-tokens", "64", "Tell me a story."]);
    }
}

#[test]
fn a_server_that_is_killed_at_any_moment_of_a_load_leaves_nothing_charged() {
    let files = Place::new();
    let large = large(&files);
    let arguments = ["--replicas", "1", text(&large)];
    let began = Instant::now();
    Place::new().serve(&arguments).kill();
    let whole = began.elapsed();
    for part in 0..KILLS {
        let place = Place::new();
        let mut starting = place.start(&arguments);
        starting.goes_on_for(whole * part / KILLS);
        starting.kill();
        assert_usable(&place);
    }
}

/// Tells whether the last load of the large model that was written down was not done.
fn was_loading(place: &Place) -> bool {
    let journal = std::fs::read_to_string(place.state_root().join("journal.jsonl")).unwrap();
    let last = journal.lines().rfind(|line| line.contains("\"large\"")).unwrap_or("null");
    let last: Value = serde_json::from_str(last).unwrap();
    last["kind"] == "load_started"
}

/// Lets processes crash while they load the large model, until so many have done so in a row.
fn crash(place: &Place, arguments: &[&str], times: usize) {
    let mut in_a_row = 0;
    // A load may be faster than whoever watches it.
    until(|| {
        let mut child = place.toko(arguments).spawn().unwrap();
        until(|| {
            let is_over = child.try_wait().unwrap().is_some();
            (is_over || has_come_to(Stage::Loading, &child, &place.leases())).then_some(())
        });
        child.kill().unwrap();
        child.wait().unwrap();
        in_a_row = if was_loading(place) { in_a_row + 1 } else { 0 };
        (in_a_row == times).then_some(())
    });
}

#[test]
fn the_next_start_says_once_what_was_being_loaded_when_the_last_one_died() {
    let place = Place::new();
    let large = large(&place);
    crash(&place, &["run", text(&large), "--max-tokens", "1", "Hello."], 1);
    let small = ["run", "embedded", "--max-tokens", "1", "Hello."];
    let told = place.run(&small);
    assert_eq!(told.code, Some(0), "{told:?}");
    assert!(told.stderr.contains("toko run ended while it loaded large ("), "{told:?}");
    let silent = place.run(&small);
    assert_eq!((silent.code, &*silent.stderr), (Some(0), ""), "{silent:?}");
}

#[test]
fn a_model_that_took_two_processes_down_is_held_until_somebody_forces_it() {
    let place = Place::new();
    let large = large(&place);
    let run = ["run", text(&large), "--max-tokens", "1", "Hello."];
    crash(&place, &run, 2);
    let held = place.run(&run);
    assert_eq!(held.code, Some(4), "{held:?}");
    assert!(held.stderr.contains("large") && held.stderr.contains("--force"), "{held:?}");
    let forced = place.run(&["run", text(&large), "--force", "--max-tokens", "1", "Hello."]);
    assert_eq!(forced.code, Some(0), "{forced:?}");
    let released = place.run(&run);
    assert_eq!((released.code, &*released.stderr), (Some(0), ""), "{released:?}");
}
