//! The policy on disk: what is understood, what holds otherwise, and that nobody sees half of it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::sync::Barrier;
use std::thread;

use proptest::prelude::*;
use tempfile::TempDir;
use toko_admission::policy::{Policy, Profile};
use toko_admission::policy_file::{
    Error, FILE_NAME, LAST_GOOD_NAME, Loaded, Source, WatchedPolicy, load, save,
};

fn folder() -> TempDir {
    TempDir::new().expect("a folder for the test")
}

fn custom(mb: u64) -> Policy {
    Policy { profile: Profile::Custom, custom_max_model_mb: Some(mb) }
}

fn some_policies() -> [Policy; 5] {
    [Policy::everyday(), Policy::local_focused(), custom(0), custom(12_800), custom(u64::MAX - 511)]
}

fn write(root: &Path, document: impl AsRef<[u8]>) {
    fs::write(root.join(FILE_NAME), document).expect("the folder can be written to");
}

fn names(root: &Path) -> Vec<String> {
    let entries = fs::read_dir(root).expect("the folder exists");
    let name = |entry: std::io::Result<fs::DirEntry>| {
        entry.expect("an entry").file_name().into_string().expect("a name in UTF-8")
    };
    let mut names: Vec<String> = entries.map(name).collect();
    names.sort();
    names
}

#[track_caller]
fn check_loaded(root: &Path, policy: Policy) {
    assert_eq!(
        load(root).expect("no refusal of the system"),
        Loaded { policy, source: Source::Loaded, warning: None }
    );
}

/// Checks that the file counts as corrupt, what holds instead, and that the file is left as it is.
#[track_caller]
fn check_corrupt(root: &Path, policy: Policy, source: Source, reason: &str) {
    let before = names(root);
    let loaded = load(root).expect("no refusal of the system");
    assert_eq!((loaded.policy, loaded.source), (policy, source));
    let warning = loaded.warning.expect("a warning");
    assert!(warning.contains("could not be loaded: "), "{warning}");
    assert!(warning.contains(FILE_NAME), "{warning}");
    assert!(warning.contains(reason), "{warning}");
    assert_eq!(names(root), before);
}

#[track_caller]
fn check_corrupt_default(root: &Path, reason: &str) {
    check_corrupt(root, Policy::everyday(), Source::CorruptDefault, reason);
}

#[test]
fn a_document_has_the_form_of_the_rule_book() {
    let root = folder();
    save(root.path(), &Policy::local_focused()).unwrap();
    let document = fs::read_to_string(root.path().join(FILE_NAME)).unwrap();
    assert_eq!(
        document,
        "{\n  \"profile\": \"local_focused\",\n  \"custom_max_model_mb\": null\n}"
    );
    save(root.path(), &custom(12_800)).unwrap();
    let document = fs::read_to_string(root.path().join(FILE_NAME)).unwrap();
    assert_eq!(document, "{\n  \"profile\": \"custom\",\n  \"custom_max_model_mb\": 12800\n}");
}

#[test]
fn what_was_saved_is_loaded() {
    let root = folder();
    for policy in some_policies() {
        save(root.path(), &policy).unwrap();
        check_loaded(root.path(), policy);
    }
}

#[test]
fn other_spellings_of_a_document_are_understood() {
    let root = folder();
    let documents = [
        (r#"{"profile":"everyday"}"#, Policy::everyday()),
        ("\n\t {\"profile\":\"local_focused\"} \r\n", Policy::local_focused()),
        (r#"{"custom_max_model_mb":512,"profile":"custom"}"#, custom(512)),
        (r#"{"profile":"\u0065veryday","custom_max_model_mb":null}"#, Policy::everyday()),
    ];
    for (document, policy) in documents {
        write(root.path(), document);
        check_loaded(root.path(), policy);
    }
}

#[test]
fn everything_else_is_corrupt_and_everyday_holds() {
    let root = folder();
    let documents = [
        "",
        "  \n",
        "null",
        "[]",
        r#"["everyday"]"#,
        r#"["everyday",null]"#,
        r#"["everyday",null,null]"#,
        "{}",
        r#"{"custom_max_model_mb":512}"#,
        r#"{"profile":{"everyday":null}}"#,
        r#"{"profile":"everyday","more":1}"#,
        r#"{"profile":"everyday","profile":"everyday"}"#,
        r#"{"profile":"custom","custom_max_model_mb":512,"custom_max_model_mb":512}"#,
        r#"{"profile":"custom","custom_max_model_mb":512.0}"#,
        r#"{"profile":"custom","custom_max_model_mb":5.12e2}"#,
        r#"{"profile":"custom","custom_max_model_mb":"512"}"#,
        r#"{"profile":"custom","custom_max_model_mb":-512}"#,
        r#"{"profile":"custom","custom_max_model_mb":18446744073709551616}"#,
        r#"{"profile":"custom","custom_max_model_mb":513}"#,
        r#"{"profile":"custom","custom_max_model_mb":null}"#,
        r#"{"profile":"custom"}"#,
        r#"{"profile":"everyday","custom_max_model_mb":0}"#,
        r#"{"profile":"local_focused","custom_max_model_mb":512}"#,
        r#"{"profile":"Everyday"}"#,
        r#"{"profile":"localfocused"}"#,
        r#"{"profile":"local-focused"}"#,
        r#"{"profile":null}"#,
        "\u{feff}{\"profile\":\"everyday\"}",
        r#"{"profile":"everyday"}x"#,
        r#"{"profile":"everyday"}{}"#,
        r#"{"profile":"everyday",}"#,
        "{\"profile\":\"everyday\"}\0",
    ];
    for document in documents {
        write(root.path(), document);
        check_corrupt_default(root.path(), "");
        assert_eq!(fs::read_to_string(root.path().join(FILE_NAME)).unwrap(), document);
    }
    write(root.path(), b"{\"profile\":\"everyday\xff\"}");
    check_corrupt_default(root.path(), "");
}

#[test]
fn a_warning_says_what_is_wrong_and_what_holds() {
    let root = folder();
    write(root.path(), r#"{"profile":"everyday","more":1}"#);
    check_corrupt_default(root.path(), "unknown field `more`");
    write(root.path(), r#"{"profile":"custom","custom_max_model_mb":513}"#);
    check_corrupt_default(root.path(), "513 MB is impossible");
    write(root.path(), r#"{"profile":"cusTom"}"#);
    check_corrupt_default(root.path(), "no profile \"cusTom\"");
    write(root.path(), "{");
    check_corrupt_default(root.path(), "everyday holds instead");
}

#[test]
fn without_a_file_everyday_holds_and_nobody_is_warned() {
    let root = folder();
    let expected =
        Loaded { policy: Policy::everyday(), source: Source::MissingDefault, warning: None };
    assert_eq!(load(root.path()).unwrap(), expected);
    assert_eq!(load(&root.path().join("no/such/root")).unwrap(), expected);
    assert!(names(root.path()).is_empty());
}

#[test]
fn a_root_that_is_a_file_is_an_error_that_names_the_path() {
    let root = folder();
    let file = root.path().join("file");
    fs::write(&file, "").unwrap();
    let error = load(&file).unwrap_err();
    let Error::Io { action: "read", path, source } = &error else { panic!("{error}") };
    assert_eq!(path, &file.join(FILE_NAME));
    assert_eq!(source.kind(), std::io::ErrorKind::NotADirectory);
    assert!(matches!(save(&file, &Policy::everyday()), Err(Error::Io { .. })));
    assert_eq!(fs::read(&file).unwrap(), b"");
}

#[test]
fn the_size_limit_is_the_last_size_that_is_read() {
    let root = folder();
    let mut document = br#"{"profile":"local_focused"}"#.to_vec();
    document.resize(65_536, b' ');
    write(root.path(), &document);
    check_loaded(root.path(), Policy::local_focused());
    document.push(b' ');
    write(root.path(), &document);
    check_corrupt_default(root.path(), "exceeds the size limit");
    let sparse = fs::File::create(root.path().join(FILE_NAME)).unwrap();
    sparse.set_len(1 << 40).unwrap();
    check_corrupt_default(root.path(), "exceeds the size limit");
}

#[test]
fn a_pipe_is_corrupt_at_once() {
    let root = folder();
    let pipe = root.path().join(FILE_NAME);
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    check_corrupt_default(root.path(), "not a regular file");
}

#[test]
fn a_socket_is_corrupt() {
    let root = folder();
    let _listener = UnixListener::bind(root.path().join(FILE_NAME)).unwrap();
    check_corrupt_default(root.path(), "not a regular file");
}

#[test]
fn a_folder_is_corrupt() {
    let root = folder();
    fs::create_dir(root.path().join(FILE_NAME)).unwrap();
    check_corrupt_default(root.path(), "not a regular file");
}

#[test]
fn a_link_is_corrupt_wherever_it_leads() {
    let root = folder();
    let elsewhere = folder();
    save(elsewhere.path(), &Policy::local_focused()).unwrap();
    let targets = [
        elsewhere.path().join(FILE_NAME),
        root.path().join("missing"),
        root.path().join(FILE_NAME),
        "/dev/zero".into(),
    ];
    for target in targets {
        symlink(&target, root.path().join(FILE_NAME)).unwrap();
        check_corrupt_default(root.path(), "not a regular file");
        fs::remove_file(root.path().join(FILE_NAME)).unwrap();
    }
}

#[test]
fn links_above_the_file_are_followed() {
    let real = folder();
    save(real.path(), &Policy::local_focused()).unwrap();
    let root = folder();
    let link = root.path().join("link");
    symlink(real.path(), &link).unwrap();
    check_loaded(&link, Policy::local_focused());
}

#[test]
fn saving_replaces_a_link_and_not_what_it_leads_to() {
    let root = folder();
    let target = root.path().join("target");
    fs::write(&target, "precious").unwrap();
    for name in [FILE_NAME, LAST_GOOD_NAME] {
        symlink(&target, root.path().join(name)).unwrap();
    }
    save(root.path(), &custom(512)).unwrap();
    check_loaded(root.path(), custom(512));
    assert_eq!(fs::read(&target).unwrap(), b"precious");
    for name in [FILE_NAME, LAST_GOOD_NAME] {
        assert!(fs::symlink_metadata(root.path().join(name)).unwrap().is_file());
    }
}

#[test]
fn what_is_saved_is_for_its_user_alone() {
    let above = folder();
    let root = above.path().join("some/root");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    save(&root, &Policy::everyday()).unwrap();
    fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(root.join(FILE_NAME), fs::Permissions::from_mode(0o666)).unwrap();
    save(&root, &Policy::local_focused()).unwrap();
    assert_eq!(mode(&root), 0o700);
    assert_eq!(mode(&root.join(FILE_NAME)), 0o600);
    assert_eq!(mode(&root.join(LAST_GOOD_NAME)), 0o600);
}

#[test]
fn an_impossible_policy_touches_nothing() {
    let above = folder();
    let root = above.path().join("root");
    for policy in [custom(513), Policy { custom_max_model_mb: None, ..custom(0) }] {
        assert!(matches!(save(&root, &policy), Err(Error::Policy(_))));
        assert!(!root.exists());
    }
    save(&root, &custom(512)).unwrap();
    assert!(save(&root, &custom(513)).is_err());
    check_loaded(&root, custom(512));
}

#[test]
fn a_failed_save_leaves_nothing_behind() {
    let root = folder();
    // A file cannot take the place of a folder, so the last step fails.
    fs::create_dir(root.path().join(FILE_NAME)).unwrap();
    let error = save(root.path(), &Policy::everyday()).unwrap_err();
    assert!(matches!(&error, Error::Io { action: "save", path, .. } if path.ends_with(FILE_NAME)));
    assert_eq!(names(root.path()), [FILE_NAME]);
}

#[test]
fn sixteen_that_save_at_once_leave_one_whole_document_and_no_other_file() {
    const SAVERS: u64 = 16;
    let root = folder();
    let policy_of = |saver: u64, round: u64| custom((saver * 1000 + round) * 512);
    save(root.path(), &policy_of(0, 0)).unwrap();
    let start = Barrier::new(usize::try_from(SAVERS).unwrap() + 1);
    thread::scope(|scope| {
        let savers: Vec<_> = (0..SAVERS)
            .map(|saver| {
                let (start, root) = (&start, root.path());
                scope.spawn(move || {
                    start.wait();
                    for round in 0..8 {
                        save(root, &policy_of(saver, round)).unwrap();
                    }
                })
            })
            .collect();
        start.wait();
        // Whoever reads meanwhile sees whole documents only.
        while savers.iter().any(|saver| !saver.is_finished()) {
            let loaded = load(root.path()).unwrap();
            assert_eq!(loaded.source, Source::Loaded, "{:?}", loaded.warning);
            assert_eq!(loaded.policy.profile, Profile::Custom);
        }
    });
    assert_eq!(names(root.path()), [FILE_NAME, LAST_GOOD_NAME]);
    let document = fs::read(root.path().join(FILE_NAME)).unwrap();
    assert_eq!(fs::read(root.path().join(LAST_GOOD_NAME)).unwrap(), document);
    let last = load(root.path()).unwrap().policy;
    assert!((0..SAVERS).any(|saver| last == policy_of(saver, 7)), "{last}");
}

/// Calls `then` with the file cut at every length at which it is no longer whole.
fn for_every_cut(root: &Path, mut then: impl FnMut()) {
    let path = root.join(FILE_NAME);
    let whole = fs::read(&path).expect("a file that was saved");
    for bytes in 0..whole.len() {
        write(root, &whole[..bytes]);
        then();
    }
    write(root, whole);
}

#[test]
fn a_file_torn_at_any_length_leaves_the_last_policy_in_force() {
    for before in some_policies() {
        for policy in some_policies() {
            let root = folder();
            save(root.path(), &before).unwrap();
            save(root.path(), &policy).unwrap();
            for_every_cut(root.path(), || {
                let holds = format!("{policy} holds instead");
                check_corrupt(root.path(), policy, Source::LastGood, &holds);
            });
            check_loaded(root.path(), policy);
        }
    }
}

#[test]
fn a_file_torn_at_any_length_without_a_copy_gives_everyday() {
    for policy in some_policies() {
        let root = folder();
        save(root.path(), &policy).unwrap();
        fs::remove_file(root.path().join(LAST_GOOD_NAME)).unwrap();
        for_every_cut(root.path(), || check_corrupt_default(root.path(), ""));
    }
}

#[test]
fn a_copy_torn_at_any_length_counts_as_none() {
    let root = folder();
    save(root.path(), &Policy::local_focused()).unwrap();
    let copy = root.path().join(LAST_GOOD_NAME);
    let whole = fs::read(&copy).unwrap();
    for bytes in 0..whole.len() {
        fs::write(&copy, &whole[..bytes]).unwrap();
        check_loaded(root.path(), Policy::local_focused());
    }
    write(root.path(), "{");
    for bytes in 0..whole.len() {
        fs::write(&copy, &whole[..bytes]).unwrap();
        check_corrupt_default(root.path(), "");
    }
}

#[test]
fn a_copy_is_not_looked_at_while_the_file_is_sound_or_missing() {
    let root = folder();
    save(root.path(), &custom(512)).unwrap();
    fs::copy(root.path().join(FILE_NAME), root.path().join(LAST_GOOD_NAME)).unwrap();
    write(root.path(), r#"{"profile":"local_focused"}"#);
    check_loaded(root.path(), Policy::local_focused());
    fs::remove_file(root.path().join(FILE_NAME)).unwrap();
    assert_eq!(load(root.path()).unwrap().source, Source::MissingDefault);
}

#[test]
fn a_smaller_limit_is_copied_before_it_is_in_force() {
    let root = folder();
    save(root.path(), &Policy::local_focused()).unwrap();
    // The save dies between its two files.
    fs::remove_file(root.path().join(FILE_NAME)).unwrap();
    fs::create_dir(root.path().join(FILE_NAME)).unwrap();
    save(root.path(), &Policy::everyday()).unwrap_err();
    check_corrupt(root.path(), Policy::everyday(), Source::LastGood, "");
}

#[test]
fn a_larger_limit_is_in_force_before_it_is_copied() {
    let root = folder();
    save(root.path(), &Policy::everyday()).unwrap();
    fs::remove_file(root.path().join(FILE_NAME)).unwrap();
    fs::create_dir(root.path().join(FILE_NAME)).unwrap();
    save(root.path(), &Policy::local_focused()).unwrap_err();
    check_corrupt(root.path(), Policy::everyday(), Source::LastGood, "");
}

proptest! {
    #[test]
    fn no_bytes_are_an_error_or_a_policy_that_nobody_wrote(
        bytes in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..64).boxed(),
            r#"[{\["profileustmvryday:,0-9 ]{0,40}"#.prop_map(String::into_bytes).boxed(),
        ],
    ) {
        let root = folder();
        save(root.path(), &custom(512)).unwrap();
        write(root.path(), &bytes);
        let loaded = load(root.path()).unwrap();
        match loaded.source {
            Source::LastGood => prop_assert_eq!(loaded.policy, custom(512)),
            Source::Loaded => {
                let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
                let profile = serde_json::to_value(loaded.policy.profile).unwrap();
                prop_assert_eq!(value.get("profile"), Some(&profile));
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }
}

mod watched {
    //! One process that asks again and again.

    use super::*;

    fn watch(root: &TempDir) -> WatchedPolicy {
        WatchedPolicy::new(root.path().to_owned())
    }

    #[track_caller]
    fn check(watched: &WatchedPolicy, policy: Policy, source: Source) {
        let loaded = watched.current();
        assert_eq!((loaded.policy, loaded.source), (policy, source), "{:?}", loaded.warning);
        let is_fallback = matches!(source, Source::CorruptDefault | Source::LastGood);
        assert_eq!(loaded.warning.is_some(), is_fallback);
        // Nothing has changed, so neither does the answer.
        assert_eq!(watched.current(), loaded);
    }

    #[test]
    fn a_change_is_seen_at_the_next_question() {
        let root = folder();
        let watched = watch(&root);
        check(&watched, Policy::everyday(), Source::MissingDefault);
        for policy in some_policies() {
            save(root.path(), &policy).unwrap();
            check(&watched, policy, Source::Loaded);
        }
        write(root.path(), r#"{"profile":"local_focused"}"#);
        check(&watched, Policy::local_focused(), Source::Loaded);
        fs::remove_file(root.path().join(FILE_NAME)).unwrap();
        check(&watched, Policy::everyday(), Source::MissingDefault);
    }

    #[test]
    fn an_unchanged_file_is_not_read_again() {
        let root = folder();
        save(root.path(), &custom(512)).unwrap();
        let watched = watch(&root);
        check(&watched, custom(512), Source::Loaded);
        // Reading would bring the copy back.
        fs::remove_file(root.path().join(LAST_GOOD_NAME)).unwrap();
        check(&watched, custom(512), Source::Loaded);
        assert_eq!(names(root.path()), [FILE_NAME]);
    }

    #[test]
    fn a_broken_file_leaves_in_force_what_was() {
        for policy in some_policies() {
            let root = folder();
            save(root.path(), &policy).unwrap();
            let watched = watch(&root);
            check(&watched, policy, Source::Loaded);
            for_every_cut(root.path(), || check(&watched, policy, Source::LastGood));
            check(&watched, policy, Source::Loaded);
            // Even where the copy is lost.
            fs::remove_file(root.path().join(LAST_GOOD_NAME)).unwrap();
            for_every_cut(root.path(), || check(&watched, policy, Source::LastGood));
        }
    }

    #[test]
    fn an_edit_by_hand_is_what_holds_when_the_file_breaks() {
        let root = folder();
        save(root.path(), &Policy::local_focused()).unwrap();
        write(root.path(), r#"{"profile":"everyday"}"#);
        let watched = watch(&root);
        check(&watched, Policy::everyday(), Source::Loaded);
        write(root.path(), r#"{"profile":"#);
        check(&watched, Policy::everyday(), Source::LastGood);
        // For another process too.
        check(&watch(&root), Policy::everyday(), Source::LastGood);
    }

    #[test]
    fn a_removed_file_leaves_no_older_policy_behind() {
        let root = folder();
        save(root.path(), &Policy::local_focused()).unwrap();
        fs::remove_file(root.path().join(FILE_NAME)).unwrap();
        let watched = watch(&root);
        check(&watched, Policy::everyday(), Source::MissingDefault);
        write(root.path(), "{");
        check(&watched, Policy::everyday(), Source::LastGood);
        check(&watch(&root), Policy::everyday(), Source::CorruptDefault);
    }

    #[test]
    fn what_another_process_saved_holds_although_it_broke_before_it_was_seen() {
        let root = folder();
        save(root.path(), &Policy::local_focused()).unwrap();
        let watched = watch(&root);
        check(&watched, Policy::local_focused(), Source::Loaded);
        save(root.path(), &custom(512)).unwrap();
        write(root.path(), "");
        check(&watched, custom(512), Source::LastGood);
    }

    #[test]
    fn a_root_that_cannot_be_looked_into_changes_nothing() {
        let above = folder();
        let root = above.path().join("root");
        save(&root, &custom(512)).unwrap();
        let watched = WatchedPolicy::new(root.clone());
        check(&watched, custom(512), Source::Loaded);
        fs::rename(&root, above.path().join("aside")).unwrap();
        fs::write(&root, "").unwrap();
        check(&watched, custom(512), Source::LastGood);
        check(&WatchedPolicy::new(root.clone()), Policy::everyday(), Source::CorruptDefault);
        fs::remove_file(&root).unwrap();
        fs::rename(above.path().join("aside"), &root).unwrap();
        check(&watched, custom(512), Source::Loaded);
    }

    #[test]
    fn many_may_ask_while_others_save() {
        let root = folder();
        save(root.path(), &custom(0)).unwrap();
        let watched = watch(&root);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        assert_eq!(watched.current().source, Source::Loaded);
                    }
                });
            }
            for step in 1..=64 {
                save(root.path(), &custom(step * 512)).unwrap();
            }
        });
        check(&watched, custom(64 * 512), Source::Loaded);
        let copy = fs::read(root.path().join(LAST_GOOD_NAME)).unwrap();
        assert_eq!(copy, fs::read(root.path().join(FILE_NAME)).unwrap());
    }
}
