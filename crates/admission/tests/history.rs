//! Estimates learn from what loads really took.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use proptest::prelude::*;
use tempfile::TempDir;
use toko_admission::history::{Correction, Entry, Error, History, Key, Measurement};
use toko_admission::sizing::Evidence;
use toko_admission::units::Bytes;

const PATIENCE: Duration = Duration::from_mins(1);
const ALL: [Evidence; 5] = [
    Evidence::Header,
    Evidence::FileSystemMeasured,
    Evidence::CatalogExact,
    Evidence::Heuristic,
    Evidence::Observed,
];

fn key(model: &str) -> Key {
    let (engine, settings) = ("toko 0.1.0".to_owned(), "ctx=2048 kv=f16 replicas=1".to_owned());
    Key { model: model.to_owned(), engine, settings }
}

fn measurement(model: &str, predicted_mib: u64, measured_mib: u64, at_ms: u64) -> Measurement {
    let predicted = Bytes::from_mib(predicted_mib);
    Measurement { key: key(model), predicted, measured: Bytes::from_mib(measured_mib), at_ms }
}

struct Place {
    directory: TempDir,
    history: History,
}

impl Place {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().expect("a directory"), history: History::default() }
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("model-memory.history")
    }

    fn observe(&mut self, predicted_mib: u64, measured_mib: u64) {
        let measurement = measurement("m", predicted_mib, measured_mib, 1);
        self.history.observe(self.directory.path(), &measurement, PATIENCE).expect("a file");
    }

    fn correct(&self, predicted_mib: u64, evidence: Evidence) -> u64 {
        let predicted = Bytes::from_mib(predicted_mib);
        self.history.correct(predicted, evidence, &key("m")).bytes.floor_mib()
    }

    fn load(&self) -> (History, Option<String>) {
        History::load(self.directory.path())
    }
}

#[test]
fn what_was_never_measured_is_left_as_it_is() {
    let mut place = Place::new();
    place.observe(100, 200);
    for other in [
        Key { model: "other".to_owned(), ..key("m") },
        Key { engine: "toko 0.2.0".to_owned(), ..key("m") },
        Key { settings: "ctx=4096 kv=f16 replicas=1".to_owned(), ..key("m") },
    ] {
        let bytes = Bytes::from_mib(100);
        let corrected = place.history.correct(bytes, Evidence::Heuristic, &other);
        assert_eq!(corrected, Correction { bytes, note: None }, "{other:?}");
    }
}

#[test]
fn an_estimate_that_was_too_low_is_raised_at_once_and_says_so() {
    let mut place = Place::new();
    place.observe(3_000, 4_000);
    place.observe(3_000, 3_500);
    for evidence in ALL {
        assert_eq!(place.correct(3_000, evidence), 4_000, "{evidence:?}");
    }
    let corrected = place.history.correct(Bytes::from_mib(3_000), Evidence::Header, &key("m"));
    let note = "estimate 2.92 GiB, last measured 3.41 GiB, at most 3.90 GiB";
    assert_eq!(corrected.note.as_deref(), Some(note));
}

#[test]
fn an_estimate_that_was_right_only_says_what_was_measured() {
    let mut place = Place::new();
    place.observe(4_004, 3_973);
    let predicted = Bytes::from_mib(4_004);
    let corrected = place.history.correct(predicted, Evidence::Header, &key("m"));
    let note = Some("estimate 3.91 GiB, last measured 3.87 GiB".to_owned());
    assert_eq!(corrected, Correction { bytes: predicted, note });
}

#[test]
fn only_upper_bounds_are_lowered_and_only_after_three_measurements_with_a_margin() {
    let mut place = Place::new();
    for times in 1..=4 {
        place.observe(5_000, 2_000);
        let lowered = if times < 3 { 5_000 } else { 2_100 };
        for evidence in ALL {
            let is_ours = matches!(evidence, Evidence::Header | Evidence::Observed);
            let expected = if is_ours { 5_000 } else { lowered };
            assert_eq!(place.correct(5_000, evidence), expected, "{evidence:?}, {times} times");
        }
    }
    assert_eq!(place.correct(2_050, Evidence::Heuristic), 2_050, "a margin raises nothing");
    place.observe(5_000, 3_000);
    assert_eq!(place.correct(5_000, Evidence::Heuristic), 3_150, "the largest counts");
    place.observe(5_000, 1_000);
    assert_eq!(place.correct(5_000, Evidence::Heuristic), 3_150);
}

#[test]
fn what_is_known_survives_the_process() {
    let mut place = Place::new();
    place.observe(100, 250);
    place.observe(120, 200);
    let (loaded, warning) = place.load();
    assert_eq!((&loaded, warning), (&place.history, None));
    let entry = Entry {
        key: key("m"),
        predicted: Bytes::from_mib(120),
        last: Bytes::from_mib(200),
        most: Bytes::from_mib(250),
        times: 2,
        at_ms: 1,
    };
    assert_eq!(loaded.entries().collect::<Vec<_>>(), [&entry]);
}

#[test]
fn processes_that_measure_at_once_both_have_their_say() {
    let place = Place::new();
    let (mut one, mut other) = (place.load().0, place.load().0);
    let root = place.directory.path();
    one.observe(root, &measurement("a", 100, 100, 1), PATIENCE).unwrap();
    other.observe(root, &measurement("b", 100, 100, 2), PATIENCE).unwrap();
    one.observe(root, &measurement("b", 100, 300, 3), PATIENCE).unwrap();
    other.observe(root, &measurement("a", 100, 200, 4), PATIENCE).unwrap();
    let (loaded, _) = place.load();
    assert_eq!(loaded, other);
    let told: Vec<_> = loaded.entries().map(|it| (&*it.key.model, it.most, it.times)).collect();
    assert_eq!(told, [("a", Bytes::from_mib(200), 2), ("b", Bytes::from_mib(300), 2)]);
}

#[test]
fn a_file_that_was_cut_at_any_length_is_not_used_and_is_replaced() {
    let mut place = Place::new();
    place.observe(100, 250);
    let whole = fs::read(place.file()).unwrap();
    for length in 0..whole.len() {
        fs::write(place.file(), &whole[..length]).unwrap();
        let (history, warning) = place.load();
        assert_eq!(history, History::default(), "cut to {length}");
        assert!(warning.unwrap().contains("model-memory.history"));
    }
    let digit = whole.iter().position(|byte| *byte == b'2').unwrap();
    let mut changed = whole;
    changed[digit] = b'1';
    fs::write(place.file(), changed).unwrap();
    assert!(place.load().1.is_some());
    place.observe(100, 90);
    assert_eq!(place.load(), (place.history.clone(), None));
}

#[test]
fn the_oldest_is_forgotten_when_there_are_too_many() {
    let mut place = Place::new();
    let root = place.directory.path().to_owned();
    for n in 0..515 {
        let measurement = measurement(&format!("m{n}"), 100, 100, n);
        place.history.observe(&root, &measurement, PATIENCE).unwrap();
        if n == 510 {
            let again = self::measurement("m0", 100, 100, n);
            place.history.observe(&root, &again, PATIENCE).unwrap();
        }
    }
    let (loaded, _) = place.load();
    let names: Vec<_> = loaded.entries().map(|entry| &*entry.key.model).collect();
    assert_eq!(names.len(), 512);
    assert!(names.contains(&"m0"), "it was measured lately");
    assert!(!names.contains(&"m1") && !names.contains(&"m3") && names.contains(&"m4"));
}

#[test]
fn names_without_measure_do_not_make_the_file_unreadable() {
    let mut place = Place::new();
    let root = place.directory.path().to_owned();
    for n in 0..4 {
        let model = format!("{n}").repeat(400 << 10);
        place.history.observe(&root, &measurement(&model, 1, 1, n), PATIENCE).unwrap();
    }
    let (loaded, warning) = place.load();
    assert_eq!(warning, None);
    let latest = loaded.entries().next().unwrap();
    assert_eq!((latest.at_ms, latest.key.model.len()), (3, 400 << 10));
}

#[test]
fn what_could_not_be_saved_is_known_all_the_same() {
    let mut place = Place::new();
    fs::create_dir(place.file()).unwrap();
    let root = place.directory.path().to_owned();
    let outcome = place.history.observe(&root, &measurement("m", 100, 250, 1), PATIENCE);
    assert!(matches!(outcome, Err(Error::Io { .. })), "{outcome:?}");
    assert_eq!(place.correct(100, Evidence::Header), 250);
    assert!(place.load().1.is_some());
}

fn evidences() -> impl Strategy<Value = Evidence> {
    (0..ALL.len()).prop_map(|place| ALL[place])
}

proptest! {
    #[test]
    fn no_corrected_estimate_is_below_what_was_seen_or_above_both(
        measured in prop::collection::vec(0_u64..1 << 40, 1..6),
        predicted in 0_u64..1 << 40,
        evidence in evidences(),
    ) {
        let mut place = Place::new();
        // There is no such directory, and none can be made: only memory counts.
        let nowhere = place.file().join("x\0");
        for measured in &measured {
            let of = Measurement {
                measured: Bytes::new(*measured),
                ..measurement("m", 1, 1, 1)
            };
            prop_assert!(place.history.observe(&nowhere, &of, PATIENCE).is_err());
        }
        let most = measured.into_iter().max().map(Bytes::new).unwrap();
        let predicted = Bytes::new(predicted);
        let corrected = place.history.correct(predicted, evidence, &key("m")).bytes;
        prop_assert!(corrected >= most);
        prop_assert!(corrected <= most.max(predicted));
    }
}
