//! The automatic choice: when it is made, when it is taken back, and that it never overrules anybody.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use proptest::prelude::*;
use serde_json::json;
use tempfile::TempDir;
use toko_admission::concierge::{
    self, Change, Choice, Event, HISTORY_NAME, History, LOCK_NAME, MARKER_NAME, Situation, Step,
    decide, user_chose,
};
use toko_admission::policy::{Policy, Profile};
use toko_admission::policy_file::{self, FILE_NAME, Loaded, Source};

const TOTAL_MB: u64 = 32_768;
const EVERYDAY_MB: u64 = 13_107;
const RAISED_MB: u64 = 26_214;
const DAY: u64 = 20_000;
const SECONDS_A_DAY: u64 = 86_400;

fn custom(mb: u64) -> Policy {
    Policy { profile: Profile::Custom, custom_max_model_mb: Some(mb) }
}

fn loaded(policy: Policy) -> Loaded {
    Loaded { policy, source: Source::Loaded, warning: None }
}

fn missing() -> Loaded {
    Loaded { source: Source::MissingDefault, ..loaded(Policy::everyday()) }
}

fn marked(policy: Policy) -> Choice {
    Choice { policy, reason: "a test".to_owned(), at: DAY * SECONDS_A_DAY, reverted: false }
}

/// Events by day, on a machine of [`TOTAL_MB`].
fn seen(start: History, events: &[(Event, u64)]) -> History {
    let mut history = start;
    for (event, day) in events {
        history.note(*event, *day, TOTAL_MB);
    }
    history
}

fn refused(peak_mb: u64) -> Event {
    Event::RefusedByCeiling { peak_mb }
}

fn refused_live(peak_mb: u64) -> Event {
    Event::RefusedByLiveMemory { peak_mb }
}

fn failed(peak_mb: u64) -> Event {
    Event::LoadFailed { peak_mb }
}

/// Three refusals on two days.
fn enough() -> History {
    let event = refused(20_000);
    seen(History::default(), &[(event, DAY), (event, DAY), (event, DAY + 1)])
}

fn raised() -> History {
    History { raised_on: Some(DAY), ..History::default() }
}

fn step(loaded: &Loaded, choice: Option<&Choice>, history: &History) -> Step {
    decide(&Situation { loaded, choice, total_memory_mb: TOTAL_MB, history })
}

fn raises(history: &History) -> bool {
    matches!(step(&missing(), None, history), Step::Raise(_))
}

fn reverts(history: &History) -> bool {
    let raised = Policy::local_focused();
    matches!(step(&loaded(raised), Some(&marked(raised)), history), Step::Revert(_))
}

#[track_caller]
fn check_kept(step: &Step, because: &str) {
    let Step::Keep { reason } = step else { panic!("{step:?}") };
    assert!(reason.contains(because), "{reason}");
}

#[test]
fn three_refusals_on_two_days_raise_the_policy_and_say_how_to_undo_it() {
    let Step::Raise(change) = step(&missing(), None, &enough()) else { panic!() };
    let expected = Change {
        policy: Policy::local_focused(),
        reason: "3 loads on 2 days were refused by everyday and fit local-focused".to_owned(),
        undo: "toko policy set everyday".to_owned(),
    };
    assert_eq!(change, expected);
}

#[test]
fn fewer_refusals_or_a_single_day_change_nothing() {
    let event = refused(20_000);
    let cases: [&[(Event, u64)]; 4] =
        [&[], &[(event, DAY), (event, DAY + 1)], &[(event, DAY); 3], &[(event, DAY); 100]];
    for events in cases {
        let history = seen(History::default(), events);
        check_kept(&step(&missing(), None, &history), "3 on 2 days are needed");
    }
    assert!(raises(&seen(History::default(), &[(event, DAY), (event, DAY + 9), (event, DAY + 9)])));
}

#[test]
fn only_refusals_of_models_that_the_raise_admits_count() {
    let of = |peak_mb| {
        let event = refused(peak_mb);
        seen(History::default(), &[(event, DAY), (event, DAY), (event, DAY + 1)])
    };
    assert!(raises(&of(RAISED_MB)));
    assert!(!raises(&of(RAISED_MB + 1)));
    assert!(!raises(&of(u64::MAX)));
    let others = [refused_live(20_000), failed(20_000), Event::Loaded { peak_mb: 20_000 }];
    for event in others {
        let history = seen(History::default(), &[(event, DAY), (event, DAY), (event, DAY + 1)]);
        assert_eq!(history, History::default());
    }
}

#[test]
fn a_small_machine_is_never_raised() {
    let history = enough();
    let (loaded, choice) = (missing(), None);
    let of = |total_memory_mb| {
        decide(&Situation { loaded: &loaded, choice, total_memory_mb, history: &history })
    };
    assert!(matches!(of(32_768), Step::Raise(_)));
    check_kept(&of(32_767), "less than 32768 MB");
}

#[test]
fn a_choice_of_the_user_is_never_changed() {
    let history = enough();
    for policy in [Policy::everyday(), custom(512), Policy::local_focused()] {
        check_kept(&step(&loaded(policy), None, &history), "the user has chosen");
        // A mark of something else is none of this.
        check_kept(&step(&loaded(policy), Some(&marked(custom(1024))), &history), "the user has");
    }
    for source in [Source::CorruptDefault, Source::LastGood] {
        let loaded = Loaded { source, ..loaded(Policy::everyday()) };
        check_kept(&step(&loaded, Some(&marked(Policy::everyday())), &history), "the user has");
    }
    let history = seen(raised(), &[(refused_live(100), DAY); 9]);
    check_kept(&step(&loaded(Policy::local_focused()), None, &history), "the user has chosen");
}

#[test]
fn an_automatic_policy_that_is_not_everyday_is_not_raised() {
    let policy = custom(512);
    check_kept(&step(&loaded(policy), Some(&marked(policy)), &enough()), "not one that is raised");
}

#[test]
fn three_live_refusals_of_models_that_fit_everyday_take_the_raise_back() {
    let of = |peak_mb, count| seen(raised(), &vec![(refused_live(peak_mb), DAY); count]);
    assert!(!reverts(&of(EVERYDAY_MB, 2)));
    assert!(reverts(&of(EVERYDAY_MB, 3)));
    assert!(!reverts(&of(EVERYDAY_MB + 1, 100)));
    let policy = Policy::local_focused();
    let step = step(&loaded(policy), Some(&marked(policy)), &of(EVERYDAY_MB, 3));
    let Step::Revert(change) = step else { panic!("{step:?}") };
    assert_eq!(change.policy, Policy::everyday());
    assert_eq!(change.undo, "toko policy set local-focused");
    assert!(change.reason.starts_with("3 loads that fit everyday"), "{}", change.reason);
}

#[test]
fn three_failures_without_a_success_take_the_raise_back() {
    let failures = |peak_mb, count| seen(raised(), &vec![(failed(peak_mb), DAY); count]);
    assert!(!reverts(&failures(EVERYDAY_MB + 1, 2)));
    assert!(reverts(&failures(EVERYDAY_MB + 1, 3)));
    assert!(reverts(&failures(RAISED_MB, 3)));
    // Everyday admits the first as well, and the raise does not admit the second.
    assert!(!reverts(&failures(EVERYDAY_MB, 3)));
    assert!(!reverts(&failures(RAISED_MB + 1, 3)));
    let success = |peak_mb| (Event::Loaded { peak_mb }, DAY);
    assert!(!reverts(&seen(failures(20_000, 9), &[success(20_000)])));
    assert!(reverts(&seen(failures(20_000, 9), &[success(EVERYDAY_MB)])));
    assert!(!reverts(&seen(raised(), &[success(20_000)])));
}

#[test]
fn what_happened_before_the_raise_does_not_speak_against_it() {
    let before = [(refused_live(100), DAY), (failed(20_000), DAY)].repeat(9);
    assert_eq!(seen(History::default(), &before), History::default());
    assert!(!reverts(&raised()));
}

#[test]
fn a_raise_that_was_taken_back_is_never_made_again() {
    let because = "taken back";
    // The mark tells it.
    let mark = Choice { reverted: true, ..marked(Policy::everyday()) };
    check_kept(&step(&loaded(Policy::everyday()), Some(&mark), &enough()), because);
    // So does a raise in the past of a machine that is not raised, even after the file was removed.
    let undone = History { raised_on: Some(DAY), ..enough() };
    check_kept(&step(&missing(), None, &undone), because);
}

#[test]
fn switched_off_it_changes_nothing() {
    let off = |history| History { is_off: true, ..history };
    check_kept(&step(&missing(), None, &off(enough())), "switched off");
    let policy = Policy::local_focused();
    let history = off(seen(raised(), &[(refused_live(100), DAY); 3]));
    check_kept(&step(&loaded(policy), Some(&marked(policy)), &history), "switched off");
}

#[test]
fn who_chose_follows_from_the_file_and_the_mark() {
    let (everyday, raised) = (Policy::everyday(), Policy::local_focused());
    let with = |source| Loaded { source, ..loaded(everyday) };
    assert!(!user_chose(&with(Source::MissingDefault), None));
    assert!(!user_chose(&with(Source::MissingDefault), Some(&raised)));
    assert!(user_chose(&with(Source::CorruptDefault), Some(&everyday)));
    assert!(user_chose(&with(Source::LastGood), Some(&everyday)));
    assert!(user_chose(&with(Source::Loaded), None));
    assert!(user_chose(&with(Source::Loaded), Some(&raised)));
    assert!(!user_chose(&with(Source::Loaded), Some(&everyday)));
}

#[test]
fn a_mark_has_the_form_of_the_rule_book_and_is_read_again() {
    let root = TempDir::new().unwrap();
    assert_eq!(concierge::choice(root.path()), None);
    let choice = marked(Policy::local_focused());
    concierge::save_choice(root.path(), &choice).unwrap();
    assert_eq!(concierge::choice(root.path()), Some(choice));
    assert_eq!(policy_file::load(root.path()).unwrap(), loaded(Policy::local_focused()));
    let document = fs::read(root.path().join(MARKER_NAME)).unwrap();
    let expected = json!({
        "policy": {"profile": "local_focused", "custom_max_model_mb": null},
        "reason": "a test",
        "at": DAY * SECONDS_A_DAY,
        "reverted": false,
    });
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&document).unwrap(), expected);
    let mode = fs::metadata(root.path().join(MARKER_NAME)).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    concierge::clear(root.path()).unwrap();
    concierge::clear(root.path()).unwrap();
    assert_eq!(concierge::choice(root.path()), None);
}

#[test]
fn a_mark_may_say_more_or_leave_out_that_nothing_was_reverted() {
    let root = TempDir::new().unwrap();
    let document = r#"{"policy":{"profile":"everyday"},"reason":"r","at":7,"more":[1]}"#;
    fs::write(root.path().join(MARKER_NAME), document).unwrap();
    let expected =
        Choice { policy: Policy::everyday(), reason: "r".to_owned(), at: 7, reverted: false };
    assert_eq!(concierge::choice(root.path()), Some(expected));
}

#[test]
fn a_mark_that_cannot_be_understood_is_none_at_every_length() {
    let root = TempDir::new().unwrap();
    concierge::save_choice(root.path(), &marked(Policy::local_focused())).unwrap();
    let path = root.path().join(MARKER_NAME);
    let whole = fs::read(&path).unwrap();
    for bytes in 0..whole.len() {
        fs::write(&path, &whole[..bytes]).unwrap();
        assert_eq!(concierge::choice(root.path()), None);
        let loaded = policy_file::load(root.path()).unwrap();
        assert!(user_chose(&loaded, None));
    }
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(concierge::choice(root.path()), None);
}

#[test]
fn an_impossible_choice_leaves_no_mark() {
    let root = TempDir::new().unwrap();
    concierge::save_choice(root.path(), &marked(custom(513))).unwrap_err();
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn a_users_choice_removes_the_mark_even_of_the_same_policy() {
    let root = TempDir::new().unwrap();
    let policy = Policy::local_focused();
    concierge::save_choice(root.path(), &marked(policy)).unwrap();
    concierge::save_user_choice(root.path(), &policy).unwrap();
    let loaded = policy_file::load(root.path()).unwrap();
    let choice = concierge::choice(root.path());
    assert_eq!(choice, None);
    assert!(user_chose(&loaded, None));
}

#[test]
fn a_users_choice_that_cannot_be_saved_is_no_automatic_one_either() {
    let root = TempDir::new().unwrap();
    concierge::save_choice(root.path(), &marked(Policy::local_focused())).unwrap();
    // Impossible: nothing happens at all.
    concierge::save_user_choice(root.path(), &custom(513)).unwrap_err();
    assert!(concierge::choice(root.path()).is_some());
    // Where the file cannot be replaced, the mark is gone nevertheless.
    fs::remove_file(root.path().join(FILE_NAME)).unwrap();
    fs::create_dir(root.path().join(FILE_NAME)).unwrap();
    concierge::save_user_choice(root.path(), &Policy::everyday()).unwrap_err();
    assert_eq!(concierge::choice(root.path()), None);
}

fn note(root: &Path, event: Event, day: u64) -> History {
    concierge::note(root, event, day, TOTAL_MB).expect("a history that can be kept")
}

fn take_step(root: &Path, day: u64) -> Step {
    concierge::step(root, TOTAL_MB, day * SECONDS_A_DAY).expect("a choice that can be kept")
}

/// Leads a state root to a raise.
fn raise(root: &Path) {
    for day in [DAY, DAY, DAY + 1] {
        check_kept(&take_step(root, day), "are needed");
        note(root, refused(20_000), day);
    }
    assert!(matches!(take_step(root, DAY + 1), Step::Raise(_)));
}

#[test]
fn a_raise_and_its_reversal_are_kept_on_disk() {
    let folder = TempDir::new().unwrap();
    let root = folder.path();
    raise(root);
    assert_eq!(policy_file::load(root).unwrap(), loaded(Policy::local_focused()));
    let choice = concierge::choice(root).unwrap();
    assert_eq!((choice.at, choice.reverted), ((DAY + 1) * SECONDS_A_DAY, false));
    assert!(choice.reason.contains("3 loads on 2 days"));
    assert_eq!(concierge::history(root), History { raised_on: Some(DAY + 1), ..raised() });
    for _ in 0..3 {
        check_kept(&take_step(root, DAY + 2), "nothing speaks against");
        note(root, refused_live(100), DAY + 2);
    }
    assert!(matches!(take_step(root, DAY + 2), Step::Revert(_)));
    assert_eq!(policy_file::load(root).unwrap(), loaded(Policy::everyday()));
    assert!(concierge::choice(root).unwrap().reverted);
    // Whatever comes.
    for day in DAY..DAY + 9 {
        note(root, refused(20_000), day);
        check_kept(&take_step(root, day), "taken back");
    }
    // Not even for somebody who starts from the beginning.
    concierge::clear(root).unwrap();
    fs::remove_file(root.join(FILE_NAME)).unwrap();
    check_kept(&take_step(root, DAY + 9), "taken back");
}

#[test]
fn a_raise_that_was_not_noted_is_noted_later() {
    let folder = TempDir::new().unwrap();
    let root = folder.path();
    concierge::save_choice(root, &marked(Policy::local_focused())).unwrap();
    check_kept(&take_step(root, DAY + 3), "nothing speaks against");
    assert_eq!(concierge::history(root), raised());
    for _ in 0..3 {
        note(root, refused_live(100), DAY + 3);
    }
    assert!(matches!(take_step(root, DAY + 3), Step::Revert(_)));
}

#[test]
fn undoing_a_raise_is_final() {
    let folder = TempDir::new().unwrap();
    raise(folder.path());
    concierge::save_user_choice(folder.path(), &Policy::everyday()).unwrap();
    for day in DAY..DAY + 5 {
        note(folder.path(), refused(20_000), day);
        check_kept(&take_step(folder.path(), day), "the user has chosen");
    }
}

#[test]
fn a_switch_outlasts_the_process() {
    let folder = TempDir::new().unwrap();
    let root = folder.path();
    for day in [DAY, DAY, DAY + 1] {
        note(root, refused(20_000), day);
    }
    assert!(concierge::switch_off(root).unwrap().is_off);
    check_kept(&take_step(root, DAY + 1), "switched off");
    assert!(!concierge::switch_on(root).unwrap().is_off);
    assert!(matches!(take_step(root, DAY + 1), Step::Raise(_)));
}

#[test]
fn a_history_that_cannot_be_understood_bars_a_raise_for_good() {
    let folder = TempDir::new().unwrap();
    let root = folder.path();
    for day in [DAY, DAY, DAY + 1] {
        note(root, refused(20_000), day);
    }
    let path = root.join(HISTORY_NAME);
    let whole = fs::read(&path).unwrap();
    for bytes in 0..whole.len() {
        fs::write(&path, &whole[..bytes]).unwrap();
        check_kept(&take_step(root, DAY + 1), "could not be read");
    }
    for day in [DAY, DAY, DAY + 1] {
        note(root, refused(20_000), day);
    }
    let history = concierge::history(root);
    assert!(history.is_incomplete);
    check_kept(&take_step(root, DAY + 1), "could not be read");
}

#[test]
fn nothing_is_changed_while_another_process_changes_the_policy() {
    let folder = TempDir::new().unwrap();
    let root = folder.path();
    for day in [DAY, DAY, DAY + 1] {
        note(root, refused(20_000), day);
    }
    let before = concierge::history(root);
    let other = fs::File::open(root.join(LOCK_NAME)).unwrap();
    other.lock().unwrap();
    check_kept(&take_step(root, DAY + 1), "being changed");
    assert_eq!(note(root, refused(20_000), DAY + 2), before);
    assert_eq!(policy_file::load(root).unwrap(), missing());
    drop(other);
    assert!(matches!(take_step(root, DAY + 1), Step::Raise(_)));
}

#[test]
fn notes_of_many_threads_are_all_kept() {
    let folder = TempDir::new().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let root = folder.path();
            scope.spawn(move || {
                for _ in 0..4 {
                    note(root, refused(20_000), DAY + thread % 2);
                }
            });
        }
    });
    let counts = concierge::history(folder.path()).would_have_fitted;
    assert_eq!(counts.iter().map(|of| of.count).collect::<Vec<_>>(), [16, 16]);
}

#[test]
fn what_no_decision_rests_on_is_not_written() {
    let folder = TempDir::new().unwrap();
    note(folder.path(), refused(u64::MAX), DAY);
    note(folder.path(), Event::Loaded { peak_mb: 1 }, DAY);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

fn events() -> impl Strategy<Value = Event> {
    let peaks = prop::sample::select(vec![
        0,
        EVERYDAY_MB,
        EVERYDAY_MB + 1,
        RAISED_MB,
        RAISED_MB + 1,
        u64::MAX,
    ]);
    (0..4_u8, peaks).prop_map(|(kind, peak_mb)| match kind {
        0 => refused(peak_mb),
        1 => refused_live(peak_mb),
        2 => failed(peak_mb),
        _ => Event::Loaded { peak_mb },
    })
}

proptest! {
    #[test]
    fn a_raise_happens_at_most_once_and_by_the_rule(
        events in prop::collection::vec((events(), 0..3_u64), 0..40),
        total_memory_mb in prop::sample::select(vec![16_384, 32_767, TOTAL_MB, 131_072]),
    ) {
        let folder = TempDir::new().unwrap();
        let root = folder.path();
        let (mut day, mut fitting) = (DAY, Vec::new());
        let (mut raises, mut reverts) = (0, 0);
        let raised_mb = Policy::local_focused().effective_budget(total_memory_mb);
        for (event, later) in events {
            day += later;
            if let Event::RefusedByCeiling { peak_mb } = event
                && peak_mb <= raised_mb.effective_new_load_ceiling_mb
            {
                fitting.push(day);
            }
            concierge::note(root, event, day, total_memory_mb).unwrap();
            match concierge::step(root, total_memory_mb, day * SECONDS_A_DAY).unwrap() {
                Step::Raise(_) => {
                    raises += 1;
                    prop_assert!(total_memory_mb >= 32_768);
                    prop_assert!(fitting.len() >= 3 && fitting.first() != fitting.last());
                }
                Step::Revert(_) => reverts += 1,
                Step::Keep { .. } => {
                    let is_due = fitting.len() >= 3 && fitting.first() != fitting.last();
                    prop_assert!(raises == 1 || total_memory_mb < 32_768 || !is_due);
                }
            }
            prop_assert!(reverts <= raises && raises <= 1);
            let raised = policy_file::load(root).unwrap().policy == Policy::local_focused();
            prop_assert_eq!(raised, raises > reverts);
        }
    }

    #[test]
    fn a_history_stays_small(days in prop::collection::vec(any::<u64>(), 0..200)) {
        let mut history = History { is_off: true, ..History::default() };
        for day in days {
            history.note(refused(20_000), day, TOTAL_MB);
            history.note(refused_live(1), day, TOTAL_MB);
        }
        prop_assert!(serde_json::to_vec_pretty(&history).unwrap().len() < 8192);
    }
}
