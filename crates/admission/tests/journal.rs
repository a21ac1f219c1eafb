//! What the next start knows of how the last one ended.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use toko_admission::journal::event::What;
use toko_admission::journal::past::Past;
use toko_admission::journal::{Error, Journal, clear, events, past};
use toko_admission::units::Bytes;

const PATIENCE: Duration = Duration::from_mins(1);
const BYTES: Bytes = Bytes::from_mib(700);

fn place() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

fn open(root: &Path, run: &str) -> (Journal, Past) {
    Journal::open(root, run, "toko serve", 1, PATIENCE).expect("a journal")
}

fn begin(journal: &Journal, model: &str) {
    let what = What::LoadStarted { model: model.to_owned(), bytes: BYTES };
    journal.record(2, what).expect("an event");
}

fn finish(journal: &Journal, model: &str) {
    let what = What::Loaded { model: model.to_owned(), bytes: BYTES };
    journal.record(3, what).expect("an event");
}

/// Starts, begins to load and ends without a word.
fn crash(root: &Path, run: &str, model: &str) {
    let (journal, _) = open(root, run);
    begin(&journal, model);
    drop(journal);
}

fn crashed(past: &Past) -> Vec<(&str, &str, bool)> {
    let crashes = past.crashes.iter();
    crashes.map(|crash| (&*crash.run, &*crash.model, crash.is_reported)).collect()
}

fn held(root: &Path) -> Vec<String> {
    past(root, PATIENCE).expect("a past").held.into_iter().collect()
}

fn file(root: &Path) -> PathBuf {
    root.join("journal.jsonl")
}

#[test]
fn a_start_is_told_once_what_was_being_loaded_when_the_last_run_died() {
    let root = place();
    let (first, nothing) = open(root.path(), "run-1");
    assert_eq!(nothing, Past::default());
    begin(&first, "small");
    finish(&first, "small");
    begin(&first, "large");
    drop(first);

    let (second, told) = open(root.path(), "run-2");
    assert_eq!(crashed(&told), [("run-1", "large", false)]);
    let crash = &told.crashes[0];
    assert_eq!((crash.bytes, crash.at_ms), (BYTES, 2));
    assert_eq!(crash.program.as_deref(), Some("toko serve"));
    drop(second);
    let (_, told) = open(root.path(), "run-3");
    assert_eq!(crashed(&told), [("run-1", "large", true)]);
}

#[test]
fn what_a_live_run_loads_is_no_crash() {
    let root = place();
    let (one, _) = open(root.path(), "run-1");
    begin(&one, "large");
    let (_other, told) = open(root.path(), "run-2");
    assert_eq!(told, Past::default());
    drop(one);
    assert_eq!(crashed(&past(root.path(), PATIENCE).unwrap()), [("run-1", "large", false)]);
}

#[test]
fn a_load_that_failed_or_was_given_up_is_no_crash() {
    let root = place();
    let (one, _) = open(root.path(), "run-1");
    begin(&one, "torn");
    let what = What::LoadFailed { model: "torn".to_owned(), reason: "it is torn".to_owned() };
    one.record(3, what).unwrap();
    begin(&one, "large");
    one.end(4).unwrap();
    let (_, told) = open(root.path(), "run-2");
    assert_eq!(told, Past::default());
}

#[test]
fn a_model_that_took_its_process_down_twice_in_a_row_is_held_until_the_user_clears_it() {
    let root = place();
    crash(root.path(), "run-1", "large");
    assert_eq!(held(root.path()), Vec::<String>::new(), "once may be chance");
    crash(root.path(), "run-2", "other");
    assert_eq!(held(root.path()), Vec::<String>::new());
    crash(root.path(), "run-3", "large");
    assert_eq!(held(root.path()), ["large"]);
    let (next, told) = open(root.path(), "run-4");
    assert_eq!(told.held, BTreeSet::from(["large".to_owned()]));
    next.end(5).unwrap();
    assert_eq!(held(root.path()), ["large"]);

    clear(root.path(), "large", 6, PATIENCE).unwrap();
    assert_eq!(held(root.path()), Vec::<String>::new());
    crash(root.path(), "run-5", "large");
    assert_eq!(held(root.path()), Vec::<String>::new(), "it counts anew");
    crash(root.path(), "run-6", "large");
    assert_eq!(held(root.path()), ["large"]);
}

#[test]
fn a_load_that_went_well_in_between_breaks_the_row() {
    let root = place();
    crash(root.path(), "run-1", "large");
    let (good, _) = open(root.path(), "run-2");
    begin(&good, "large");
    finish(&good, "large");
    good.end(4).unwrap();
    crash(root.path(), "run-3", "large");
    assert_eq!(held(root.path()), Vec::<String>::new());
    let runs: Vec<_> =
        past(root.path(), PATIENCE).unwrap().crashes.into_iter().map(|it| it.run).collect();
    assert_eq!(runs, ["run-1", "run-3"]);
}

#[test]
fn two_runs_that_load_the_same_model_do_not_hide_each_others_crash() {
    let root = place();
    let (one, _) = open(root.path(), "run-1");
    begin(&one, "large");
    let (other, _) = open(root.path(), "run-2");
    begin(&other, "large");
    finish(&other, "large");
    drop(one);
    assert_eq!(crashed(&past(root.path(), PATIENCE).unwrap()), [("run-1", "large", false)]);
    drop(other);
    assert_eq!(past(root.path(), PATIENCE).unwrap().crashes.len(), 1);
}

#[test]
fn a_file_that_was_cut_at_any_length_is_read_and_written_on() {
    let root = place();
    crash(root.path(), "run-1", "large");
    crash(root.path(), "run-2", "large");
    let whole = fs::read(file(root.path())).unwrap();
    let all = events(root.path()).unwrap().0;
    assert_eq!(all.len(), 5);
    for length in 0..=whole.len() {
        fs::write(file(root.path()), &whole[..length]).unwrap();
        let (left, spoiled) = events(root.path()).unwrap();
        assert_eq!(left, all[..left.len()], "cut to {length}");
        assert!(spoiled <= 1, "cut to {length}");
        clear(root.path(), "other", 9, PATIENCE).unwrap();
        let (continued, _) = events(root.path()).unwrap();
        assert_eq!(continued[..left.len()], left);
        assert_eq!(continued.len(), left.len() + 1, "cut to {length}");
        let told = past(root.path(), PATIENCE).unwrap();
        assert_eq!(told.warnings.len(), spoiled);
        assert!(told.warnings.iter().all(|warning| warning.contains("journal.jsonl")));
    }
}

#[test]
fn garbage_and_kinds_of_a_newer_version_spoil_nothing_else() {
    let root = place();
    let lines: [&[u8]; 4] = [
        b"{\"at_ms\":1,\"run\":\"x\",\"kind\":\"load_started\",\"model\":\"m\",\"bytes\":5}\n",
        b"{\"at_ms\":1,\"run\":\"x\",\"kind\":\"teleported\",\"where\":[1]}\n",
        b"\xff\xfe\x00\n[]\n{\"at_ms\":-1}\n",
        b"{\"at_ms\":2,\"run\":\"y\",\"kind\":\"load_started\",\"model\":\"m\",\"bytes\":5}\n",
    ];
    fs::write(file(root.path()), lines.concat()).unwrap();
    let (read, spoiled) = events(root.path()).unwrap();
    assert_eq!((read.len(), spoiled), (3, 3));
    assert_eq!(read[1].what, What::Unknown);
    assert_eq!(held(root.path()), ["m"]);
}

#[test]
fn the_file_stays_within_its_limit_and_forgets_no_crash_and_no_hold() {
    let root = place();
    crash(root.path(), "run-1", "large");
    crash(root.path(), "run-2", "large");
    crash(root.path(), "run-3", "once");
    let (journal, _) = open(root.path(), "run-4");
    let (other, _) = open(root.path(), "run-5");
    begin(&other, "slow");
    let mut lengths = Vec::new();
    for round in 0..2_500 {
        let reason = format!("{round} ").repeat(400);
        let what = What::Refused { model: "huge".to_owned(), bytes: Bytes::MAX, reason };
        journal.record(round, what).unwrap();
        lengths.push(fs::metadata(file(root.path())).unwrap().len());
    }
    let most = lengths.iter().max().unwrap();
    assert!((900 << 10..=1 << 20).contains(most), "{most}");
    assert!(lengths.windows(2).filter(|pair| pair[1] < pair[0]).count() > 2, "it was cut often");
    let (kept, spoiled) = events(root.path()).unwrap();
    assert_eq!((kept.last().unwrap().at_ms, spoiled), (2_499, 0));
    drop(other);
    let told = past(root.path(), PATIENCE).unwrap();
    assert_eq!(told.held, BTreeSet::from(["large".to_owned()]));
    let expected = [
        ("run-1", "large", true),
        ("run-2", "large", true),
        ("run-3", "once", true),
        ("run-5", "slow", false),
    ];
    assert_eq!(crashed(&told), expected);
    assert_eq!(told.crashes[0].program.as_deref(), Some("toko serve"));
}

#[test]
fn a_run_needs_a_name_that_is_new_and_plain() {
    let root = place();
    let (_one, _) = open(root.path(), "run-1");
    for name in ["run-1", "", "../run", "a b", &"r".repeat(65)] {
        let opened = Journal::open(root.path(), name, "toko", 1, PATIENCE);
        assert!(matches!(opened, Err(Error::Run(_))), "{name:?}");
    }
}

#[test]
fn names_have_a_limit_and_reasons_are_cut() {
    let root = place();
    let (journal, _) = open(root.path(), "run-1");
    let long = What::Cleared { model: "m".repeat(513) };
    assert!(matches!(journal.record(1, long), Err(Error::NameTooLong { bytes: 513 })));
    journal.record(1, What::Concierge { detail: "ä".repeat(5_000) }).unwrap();
    let (read, _) = events(root.path()).unwrap();
    let cut = What::Concierge { detail: "ä".repeat(1_024) + "…" };
    assert_eq!(read.last().unwrap().what, cut);
}

#[test]
#[cfg(unix)]
fn what_is_no_regular_file_is_refused_at_once() {
    let root = place();
    std::os::unix::fs::symlink("elsewhere", file(root.path())).unwrap();
    assert!(matches!(events(root.path()), Err(Error::Io { .. })));
    assert!(matches!(clear(root.path(), "m", 1, PATIENCE), Err(Error::Io { .. })));
    assert!(!root.path().join("elsewhere").exists());
    fs::remove_file(file(root.path())).unwrap();
    let made = Command::new("mkfifo").arg(file(root.path())).status().unwrap();
    assert!(made.success());
    assert!(matches!(events(root.path()), Err(Error::Io { .. })));
    assert!(matches!(
        Journal::open(root.path(), "run-1", "toko", 1, PATIENCE),
        Err(Error::Io { .. })
    ));
}

const ROOT: &str = "TOKO_TEST_ROOT";

/// Starts this test binary again, in the middle of the calling test.
fn again(test: &str, root: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a program"));
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(ROOT, root);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

#[test]
fn a_process_that_is_killed_while_it_loads_leaves_its_load_behind() {
    let test = "a_process_that_is_killed_while_it_loads_leaves_its_load_behind";
    if let Some(root) = std::env::var_os(ROOT) {
        let (journal, _) = open(Path::new(&root), &format!("run-{}", std::process::id()));
        begin(&journal, "large");
        let mut out = std::io::stdout();
        out.write_all(b"\nloading\n").and_then(|()| out.flush()).unwrap();
        // Until it is killed.
        assert_eq!(std::io::stdin().lines().count(), 0);
        return;
    }
    let root = place();
    let mut child = again(test, root.path()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map(Result::unwrap).any(|line| line == "loading"));
    assert_eq!(past(root.path(), PATIENCE).unwrap(), Past::default());
    child.kill().unwrap();
    child.wait().unwrap();
    let run = format!("run-{}", child.id());
    assert_eq!(crashed(&past(root.path(), PATIENCE).unwrap()), [(&*run, "large", false)]);
}

#[test]
fn many_processes_write_without_losing_or_mixing_a_line() {
    let test = "many_processes_write_without_losing_or_mixing_a_line";
    if let Some(root) = std::env::var_os(ROOT) {
        let (journal, _) = open(Path::new(&root), &format!("run-{}", std::process::id()));
        for at_ms in 0..200 {
            let detail = "x".repeat(usize::try_from(at_ms).unwrap() % 50);
            journal.record(at_ms, What::Concierge { detail }).unwrap();
        }
        return journal.end(200).unwrap();
    }
    let root = place();
    let mut children: Vec<_> = (0..5).map(|_| again(test, root.path()).spawn().unwrap()).collect();
    for child in &mut children {
        let outcome = child.wait().unwrap();
        assert!(outcome.success());
    }
    let (read, spoiled) = events(root.path()).unwrap();
    assert_eq!((read.len(), spoiled), (5 * 202, 0));
    for child in &children {
        let run = format!("run-{}", child.id());
        let of_run = read.iter().filter(|event| event.run == run);
        let at: Vec<u64> = of_run.map(|event| event.at_ms).skip(1).collect();
        assert_eq!(at, (0..=200).collect::<Vec<_>>());
    }
    assert_eq!(past(root.path(), PATIENCE).unwrap(), Past::default());
}
