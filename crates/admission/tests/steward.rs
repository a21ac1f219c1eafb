//! What a process knows of its own loads and of those before: crashes, corrections, the automatic choice. Some of the
//! processes are real ones: the test binary started again.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use tempfile::TempDir;
use toko_admission::concierge;
use toko_admission::decision::{Decision, Load};
use toko_admission::handles::{Admission, Admitted, Loading, Reservation};
use toko_admission::history::Key;
use toko_admission::journal::event::What;
use toko_admission::ledger::{Home, Ledger, ModelId, Pool, ScopeId, Verdict};
use toko_admission::machine::record::Process;
use toko_admission::policy::Policy;
use toko_admission::probe::Roots;
use toko_admission::sizing::{Evidence, Kind, Sizing, Term};
use toko_admission::steward::Steward;
use toko_admission::surroundings::Settings;
use toko_admission::units::Bytes;

const ROLE: &str = "TOKO_TEST_ROLE";
const DIRECTORY: &str = "TOKO_TEST_DIRECTORY";
const DAY_MS: u64 = 24 * 60 * 60 * 1000;
const STAGES: [&str; 6] = ["judged", "reserved", "launched", "published", "observed", "draining"];

/// A system of 32 GiB of which 30 are available.
struct Place {
    directory: TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { directory: tempfile::tempdir().expect("a directory") };
        let (proc, cgroup) = (place.path().join("proc"), place.path().join("cgroup"));
        fs::create_dir_all(proc.join("self")).expect("a directory");
        fs::create_dir_all(cgroup).expect("a directory");
        let meminfo = "MemTotal: 33554432 kB\nMemFree: 1 kB\nMemAvailable: 31457280 kB\n";
        fs::write(proc.join("meminfo"), meminfo).expect("a file");
        fs::write(proc.join("self/cgroup"), "0::/\n").expect("a file");
        place
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn settings(&self, now_ms: fn() -> u64) -> Settings {
        settings(self.path(), now_ms)
    }

    fn steward(&self) -> Steward {
        Steward::open(self.settings(|| 10 * DAY_MS))
    }
}

fn settings(directory: &Path, now_ms: fn() -> u64) -> Settings {
    Settings {
        state_root: directory.join("state"),
        leases: directory.join("leases"),
        roots: Roots { proc: directory.join("proc"), cgroup: directory.join("cgroup") },
        limit: None,
        process: Process {
            program: "toko serve".to_owned(),
            pid: std::process::id(),
            started_ms: 7,
            scope: "state".to_owned(),
        },
        now_ms,
    }
}

/// A model of some MiB, 100 of them beside the weights.
fn load(model: &str, mib: u64) -> Load {
    let tokenizer =
        Term { kind: Kind::Tokenizer, bytes: Bytes::from_mib(100), source: "header".to_owned() };
    let sizing = Sizing {
        mapped_weights: Bytes::from_mib(mib - 100),
        private_weights: Bytes::ZERO,
        weights_source: "header".to_owned(),
        fixed: vec![tokenizer],
        per_replica: Vec::new(),
        growth: Vec::new(),
        evidence: Evidence::Header,
    };
    Load {
        scope: ScopeId(0),
        model: ModelId::new(model),
        sizing: Some(sizing),
        context_tokens: 1,
        replicas: 1,
        pool: Pool::Host,
        home: Home::Process,
        variants: Vec::new(),
    }
}

fn reserve(admission: &Admission, load: &Load) -> Result<Reservation, Verdict> {
    match admission.reserve(&load.ask()) {
        Ok((Admitted::Cold(reservation), _)) => Ok(reservation),
        Ok((Admitted::Warm(_), _)) => panic!("nothing is there yet"),
        Err(refusal) => Err(refusal.verdict),
    }
}

fn launch(steward: &Steward, load: &Load) -> Loading {
    reserve(steward.admission(), load).expect("there is room").launch().1
}

/// A process of its own that goes as far as it is told and stays there.
struct Worker {
    child: Child,
    _orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts this test binary again, in the middle of the calling test.
    fn start(test: &str, stage: &str, directory: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("a program"))
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, stage)
            .env(DIRECTORY, directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut worker = Self { child, _orders: orders, answers };
        worker.wait_for(stage);
        worker
    }

    /// Waits for the line that says how far it is; the test runner writes lines of its own.
    fn wait_for(&mut self, stage: &str) {
        let mut line = String::new();
        while !line.contains(&format!("stage: {stage}")) {
            line.clear();
            let read = self.answers.read_line(&mut line).expect("a pipe");
            assert!(read > 0, "the process ended before it was {stage}");
        }
    }

    fn kill(mut self) {
        self.child.kill().expect("a process");
        self.child.wait().expect("a process");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Goes as far with a model of 8 GiB as the environment says, then waits for its end.
fn play_role() -> bool {
    let Some(wanted) = std::env::var_os(ROLE) else { return false };
    let directory = std::env::var_os(DIRECTORY).expect("a directory");
    let steward = Steward::open(settings(Path::new(&directory), || 10 * DAY_MS));
    let model = load("large", 8192);
    let at = |stage: &str| {
        if wanted == stage {
            let mut out = std::io::stdout();
            writeln!(out, "stage: {stage}").and_then(|()| out.flush()).expect("a listener");
            let told = std::io::stdin().lines().next();
            assert!(told.is_none(), "it is killed here");
        }
    };
    assert!(steward.explain(&model, &[]).reason.admits());
    at("judged");
    let reservation = reserve(steward.admission(), &model).expect("there is room");
    at("reserved");
    let (_charged, loading) = reservation.launch();
    at("launched");
    let resident = loading.publish(Bytes::ZERO);
    at("published");
    resident.observe(Bytes::from_mib(100));
    at("observed");
    let _draining = resident.drain();
    at("draining");
    true
}

#[test]
fn a_process_that_is_killed_at_any_stage_leaves_its_room_and_only_a_load_it_was_in_is_told() {
    if play_role() {
        return;
    }
    let test =
        "a_process_that_is_killed_at_any_stage_leaves_its_room_and_only_a_load_it_was_in_is_told";
    for stage in STAGES {
        let place = Place::new();
        let other = place.steward();
        let worker = Worker::start(test, stage, place.path());
        let wanted = load("other", 8192);
        if stage != "judged" {
            let refusal = reserve(other.admission(), &wanted).unwrap_err();
            assert_eq!(refusal, Verdict::ExceedsConfiguredCeiling, "{stage}");
            let decision = other.explain(&wanted, &[]);
            assert_eq!(decision.holders[0].model, "large", "{stage}");
        }
        worker.kill();
        let admitted = reserve(other.admission(), &wanted);
        assert!(admitted.is_ok(), "{stage}: {admitted:?}");

        let next = place.steward();
        let crashes: Vec<_> =
            next.past().crashes.iter().map(|crash| (&*crash.model, crash.bytes)).collect();
        let expected: &[(&str, Bytes)] =
            if stage == "launched" { &[("large", Bytes::from_mib(8192))] } else { &[] };
        assert_eq!(crashes, expected, "{stage}");
        assert_eq!(next.last_crash().is_some(), stage == "launched");
        assert!(next.past().held.is_empty(), "once is not often");
    }
}

#[test]
fn a_model_that_took_two_processes_down_waits_until_somebody_says_go() {
    if play_role() {
        return;
    }
    let test = "a_model_that_took_two_processes_down_waits_until_somebody_says_go";
    let place = Place::new();
    for _ in 0..2 {
        Worker::start(test, "launched", place.path()).kill();
    }
    let steward = place.steward();
    let model = load("large", 8192);
    let decision = steward.explain(&model, &[]);
    assert_eq!(decision.reason, Verdict::HeldAfterCrashes);
    assert!(!decision.never_fits && decision.fixes.is_empty(), "{decision:?}");
    assert!(decision.sentence().contains("more than once"), "{}", decision.sentence());
    assert_eq!(reserve(steward.admission(), &model).unwrap_err(), Verdict::HeldAfterCrashes);
    assert!(reserve(steward.admission(), &load("other", 8192)).is_ok());
    let (forced, _) = steward.admission().reserve_forced(&model.ask());
    assert!(matches!(forced, Admitted::Cold(_)), "somebody may take the responsibility");
    drop(forced);

    // Somebody says so in another process, which joins nothing.
    let onlooker = Steward::look_on(place.settings(|| 10 * DAY_MS));
    assert_eq!(onlooker.explain(&model, &[]).reason, Verdict::HeldAfterCrashes);
    onlooker.clear(&model.model).unwrap();
    assert_eq!(steward.explain(&model, &[]).reason, Verdict::Allowed);
    assert!(place.steward().past().held.is_empty());
}

#[test]
fn a_load_that_fails_or_panics_leaves_the_table_as_it_was_and_is_no_crash() {
    let place = Place::new();
    let steward = place.steward();
    let before = steward.admission().look(Ledger::clone);
    let charged = |ledger: &Ledger| (ledger.allocations().count(), ledger.charges().count());
    let fail = |what: &str| {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let loading = launch(&steward, &load("model", 1000));
            match what {
                "fails" => loading.fail("a tensor is torn").exited(),
                "is dropped" => drop(loading),
                _ => std::panic::panic_any(what.to_owned()),
            }
        }));
        assert_eq!(outcome.is_err(), what == "panics");
        assert_eq!(steward.admission().look(charged), charged(&before), "{what}");
    };
    ["fails", "is dropped", "panics"].into_iter().for_each(fail);
    let events = steward.events().unwrap();
    let reasons: Vec<&str> = events
        .iter()
        .filter_map(|event| match &event.what {
            What::LoadFailed { reason, .. } => Some(&**reason),
            _ => None,
        })
        .collect();
    let early = "it ended before it was done";
    assert_eq!(reasons, ["a tensor is torn", early, early]);
    drop(steward);
    assert_eq!(place.steward().last_crash(), None);
}

#[test]
fn what_happens_to_models_is_written_down_in_its_order() {
    let place = Place::new();
    let steward = place.steward();
    let model = load("model", 1000);
    let resident = launch(&steward, &model).publish(Bytes::from_mib(1200));
    drop(resident);
    steward.note_unloaded(&model.model, Bytes::from_mib(1300));
    steward.note_evicted(&model.model, Bytes::from_mib(7), "it was idle for 5 minutes");
    let large = load("large", 20_000);
    let refused = steward.explain(&large, &[]);
    steward.note_decision(&refused);
    steward.note_decision(&Decision { is_forced: true, ..refused });
    steward.note_decision(&steward.explain(&model, &[]));
    steward.set_policy(&Policy::local_focused()).unwrap();
    steward.end();
    let kinds: Vec<String> = steward
        .events()
        .unwrap()
        .iter()
        .map(|event| {
            let text = serde_json::to_value(event).unwrap();
            let bytes =
                text["bytes"].as_u64().map_or(String::new(), |bytes| format!(" {}", bytes >> 20));
            format!("{}{bytes}", text["kind"].as_str().unwrap())
        })
        .collect();
    let expected = [
        "run_started",
        "load_started 1000",
        "loaded 1300",
        "unloaded 1300",
        "evicted 7",
        "refused 20000",
        "forced 20000",
        "policy_changed",
        "run_ended",
    ];
    assert_eq!(kinds, expected);
}

#[test]
fn a_journal_that_cannot_be_written_stops_no_load() {
    let place = Place::new();
    fs::create_dir_all(place.path().join("state/journal.jsonl")).unwrap();
    let steward = place.steward();
    let resident = launch(&steward, &load("model", 1000)).publish(Bytes::ZERO);
    drop(resident);
    assert!(steward.events().is_err());
}

fn key() -> Key {
    Key { model: "hash".to_owned(), engine: "toko 1".to_owned(), settings: "ctx 1".to_owned() }
}

#[test]
fn what_a_load_took_beyond_its_estimate_is_reckoned_with_from_then_on_and_said() {
    let place = Place::new();
    let mut model = load("model", 1000);
    {
        let steward = place.steward();
        let predicted = steward.admission().correct(&mut model, &key());
        assert_eq!(predicted, Bytes::from_mib(1000));
        assert_eq!(steward.explain(&model, &[]).need.total_bytes, predicted, "nothing is known");
        steward.admission().measured(&key(), predicted, Bytes::from_mib(1100));
    }
    let steward = place.steward();
    assert_eq!(steward.admission().correct(&mut model, &key()), Bytes::from_mib(1000));
    let decision = steward.explain(&model, &[]);
    assert_eq!(decision.need.total_bytes, Bytes::from_mib(1100));
    assert_eq!(decision.need.evidence, Some(Evidence::Observed));
    let margin = decision.need.terms.iter().find(|term| term.kind == Kind::Margin).unwrap();
    assert_eq!(margin.bytes, Bytes::from_mib(100));
    assert_eq!(margin.source, "estimate 1000 MiB, last measured 1.07 GiB");
}

#[test]
fn what_a_load_took_less_than_its_header_says_is_said_and_changes_nothing() {
    let place = Place::new();
    let steward = place.steward();
    for _ in 0..5 {
        steward.admission().measured(&key(), Bytes::from_mib(1000), Bytes::from_mib(900));
    }
    let mut model = load("model", 1000);
    steward.admission().correct(&mut model, &key());
    let need = steward.explain(&model, &[]).need;
    assert_eq!((need.total_bytes, need.evidence), (Bytes::from_mib(1000), Some(Evidence::Header)));
    assert_eq!(need.terms[0].source, "header; estimate 1000 MiB, last measured 900 MiB");
}

#[test]
fn an_upper_bound_gives_way_to_what_was_seen_often_as_far_as_its_margin_goes() {
    let place = Place::new();
    let steward = place.steward();
    let foreign = || {
        let mut model = load("model", 1000);
        let sizing = model.sizing.as_mut().unwrap();
        sizing.evidence = Evidence::Heuristic;
        sizing.fixed[0].kind = Kind::Margin;
        model
    };
    let corrected = || {
        let mut model = foreign();
        steward.admission().correct(&mut model, &key());
        steward.explain(&model, &[]).need.total_bytes
    };
    for measured in [940, 940, 940] {
        assert_eq!(corrected(), Bytes::from_mib(1000), "not seen often enough");
        steward.admission().measured(&key(), Bytes::from_mib(1000), Bytes::from_mib(measured));
    }
    assert_eq!(corrected(), Bytes::from_mib(987), "5 per cent more than was seen");
    steward.admission().measured(&key(), Bytes::from_mib(1000), Bytes::from_mib(1010));
    assert_eq!(corrected(), Bytes::from_mib(1010));
}

/// Has a model refused that only the raised policy would let in.
fn refuse(place: &Place, now_ms: fn() -> u64, times: usize) {
    let steward = Steward::open(place.settings(now_ms));
    for _ in 0..times {
        let decision = steward.explain(&load("large", 20_000), &[]);
        assert_eq!(decision.reason, Verdict::ExceedsConfiguredCeiling);
        steward.note_decision(&decision);
    }
}

#[test]
fn refusals_on_two_days_raise_the_policy_at_the_next_start_which_says_how_to_undo_it() {
    let place = Place::new();
    refuse(&place, || 10 * DAY_MS, 2);
    refuse(&place, || 11 * DAY_MS, 1);
    assert_eq!(place.steward().policy().policy, Policy::local_focused());
    let steward = place.steward();
    let steps: Vec<String> = steward
        .events()
        .unwrap()
        .into_iter()
        .filter_map(|event| match event.what {
            What::Concierge { detail } => Some(detail),
            _ => None,
        })
        .collect();
    assert_eq!(steps.len(), 1, "it is raised once");
    assert!(
        steps[0].contains("local-focused") && steps[0].contains("toko policy set everyday"),
        "{steps:?}"
    );
    // Three loads that only the raise admits, and none of them succeeds.
    for _ in 0..3 {
        drop(launch(&steward, &load("large", 20_000)));
    }
    drop(steward);
    assert_eq!(place.steward().policy().policy, Policy::everyday());
}

#[test]
fn an_automatic_choice_that_is_switched_off_changes_nothing() {
    let place = Place::new();
    concierge::switch_off(&place.path().join("state")).unwrap();
    refuse(&place, || 10 * DAY_MS, 2);
    refuse(&place, || 11 * DAY_MS, 2);
    assert_eq!(place.steward().policy().policy, Policy::everyday());
}
