//! `toko policy`, `ps` and `doctor`: what they print and which exit code they have, each in a state root of its own.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use serde_json::{Value, json};
use tempfile::TempDir;
use toko_fixtures::golden_json;
use toko_gguf::write::Writer;

use crate::command::{Finished, run, run_in, text};

const FILE: &str = "model-resource-policy.json";

fn parsed(answer: &str) -> Value {
    serde_json::from_str(answer).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

/// Explains a model; the exit code has to agree with the verdict.
#[track_caller]
fn explained(arguments: &[&str]) -> Value {
    let Finished { stdout, stderr, code } =
        run(&[&["policy", "explain", "--json"], arguments].concat());
    assert_eq!(stderr, "", "{stdout}");
    let decision = parsed(&stdout);
    let admitted = ["admit", "admit_slowly"].map(Value::from).contains(&decision["verdict"]);
    assert_eq!(code, Some(if admitted { 0 } else { 4 }), "{stdout}");
    decision
}

#[test]
fn every_golden_budget_comes_out() {
    for row in golden_json("admission.json")["budgets"].as_array().unwrap() {
        let profile = match (row["profile"].as_str().unwrap(), row["custom_max_model_mb"].as_u64())
        {
            ("everyday", None) => "everyday".to_owned(),
            ("local_focused", None) => "local-focused".to_owned(),
            // What is no multiple of half a GB cannot be written.
            ("custom", Some(mb)) if mb % 512 == 0 => format!("custom:{mb}MB"),
            ("custom", Some(_)) => continue,
            other => panic!("{other:?}"),
        };
        let total = row["total_memory_mb"].to_string();
        let answer =
            run(&["policy", "preview", &profile, "--total-memory-mb", &total, "--json"]).answer();
        let mut budget = parsed(&answer);
        let notice = budget["normalization_notice"].take();
        assert_eq!(notice.is_string(), row["notice"].as_bool().unwrap(), "{row}");
        let expected = json!({
            "total_memory_mb": row["total_memory_mb"],
            "emergency_reserve_mb": row["emergency_reserve_mb"],
            "configured_model_ceiling_mb": row["configured_model_ceiling_mb"],
            "effective_new_load_ceiling_mb": row["configured_model_ceiling_mb"],
            "normalization_notice": null,
        });
        assert_eq!(budget, expected, "{profile}");
    }
}

#[test]
fn golden_custom_ceilings_are_taken_or_refused() {
    for row in golden_json("admission.json")["custom_gb"].as_array().unwrap() {
        let Some(gigabytes) = row["gigabytes"].as_f64() else { continue };
        let policy = format!("custom:{gigabytes}GB");
        let total = u64::MAX.to_string();
        let finished = run(&["policy", "preview", &policy, "--total-memory-mb", &total, "--json"]);
        match row["mb"].as_u64() {
            Some(mb) => {
                let safe = 16_602_069_666_338_596_454;
                let budget = parsed(&finished.answer());
                assert_eq!(budget["configured_model_ceiling_mb"], mb.min(safe), "{policy}");
            }
            None => assert_eq!(finished.code, Some(2), "{policy}: {}", finished.stderr),
        }
    }
}

#[test]
fn a_policy_that_is_set_is_shown_and_kept_for_this_user_alone() {
    let root = tempfile::tempdir().unwrap();
    let shown = || parsed(&run_in(root.path(), &["policy", "show", "--json"]).answer());
    assert_eq!(
        (&shown()["policy"], &shown()["source"]),
        (&json!("everyday"), &json!("missing_default"))
    );
    for (policy, file) in [
        (
            "local-focused",
            "{\n  \"profile\": \"local_focused\",\n  \"custom_max_model_mb\": null\n}",
        ),
        ("custom:12.5GB", "{\n  \"profile\": \"custom\",\n  \"custom_max_model_mb\": 12800\n}"),
        ("everyday", "{\n  \"profile\": \"everyday\",\n  \"custom_max_model_mb\": null\n}"),
    ] {
        let before = shown();
        run_in(root.path(), &["policy", "set", policy, "--preview"]).answer();
        assert_eq!(shown(), before, "a preview changes nothing");
        run_in(root.path(), &["policy", "set", policy]).answer();
        assert_eq!((&shown()["policy"], &shown()["source"]), (&json!(policy), &json!("loaded")));
        assert_eq!(fs::read_to_string(root.path().join(FILE)).unwrap(), file);
    }
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(root.path()), 0o700);
    assert_eq!(mode(&root.path().join(FILE)), 0o600);
}

#[test]
fn what_is_no_policy_is_wrong_usage_and_changes_nothing() {
    let root = tempfile::tempdir().unwrap();
    for policy in ["Everyday", "custom", "custom:10.3GB", "custom:-1GB", "custom:NaNGB", "12GB", ""]
    {
        let finished = run_in(root.path(), &["policy", "set", policy]);
        assert_eq!(finished.code, Some(2), "{policy}: {}", finished.stderr);
        assert!(finished.stderr.starts_with("toko: invalid value"), "{}", finished.stderr);
    }
    assert!(!root.path().join(FILE).exists());
}

#[test]
fn a_pipe_in_place_of_the_policy_stops_nobody() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join(FILE);
    let (fifo, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
    rustix::fs::mknodat(rustix::fs::CWD, &path, fifo, mode, 0).unwrap();
    let shown = run_in(root.path(), &["policy", "show", "--json"]);
    assert_eq!(shown.code, Some(0));
    assert!(shown.stderr.contains("could not be loaded"), "it is told at once: {}", shown.stderr);
    let shown = parsed(&shown.stdout);
    assert_eq!(
        (&shown["policy"], &shown["source"]),
        (&json!("everyday"), &json!("corrupt_default"))
    );
    assert!(shown["warning"].as_str().unwrap().contains("regular file"), "{shown}");
    let answered = run_in(root.path(), &["run", "--max-tokens", "1", "Hi"]);
    assert_eq!(answered.code, Some(0), "{}", answered.stderr);
}

#[test]
fn a_choice_that_was_made_automatically_is_shown_with_how_to_undo_it() {
    let root = tempfile::tempdir().unwrap();
    run_in(root.path(), &["policy", "set", "local-focused"]).answer();
    let marker = json!({
        "policy": {"profile": "local_focused", "custom_max_model_mb": null},
        "reason": "three models were refused", "at": 1_800_000_000, "reverted": false,
    });
    let marker_file = root.path().join("model-resource-policy.concierge.json");
    fs::write(&marker_file, marker.to_string()).unwrap();
    let shown = parsed(&run_in(root.path(), &["policy", "show", "--json"]).answer());
    assert_eq!(shown["concierge"]["choice"]["reason"], "three models were refused");
    let undo = shown["concierge"]["choice"]["undo"].as_str().unwrap().to_owned();
    let words: Vec<&str> = undo.split(' ').skip(1).collect();
    run_in(root.path(), &words).answer();
    let shown = parsed(&run_in(root.path(), &["policy", "show", "--json"]).answer());
    assert_eq!(
        (&shown["policy"], &shown["concierge"]["choice"]),
        (&json!("everyday"), &Value::Null)
    );
    assert_eq!(shown["concierge"]["is_on"], true);
    run_in(root.path(), &["policy", "concierge", "off"]).answer();
    let shown = parsed(&run_in(root.path(), &["policy", "show", "--json"]).answer());
    assert_eq!(shown["concierge"]["is_on"], false);
}

#[test]
fn the_embedded_model_is_explained_from_its_header() {
    let decision = explained(&["embedded", "--ctx", "1000", "--replicas", "3"]);
    assert_eq!(decision["verdict"], "admit");
    assert_eq!(decision["need"]["evidence"], "header");
    assert_eq!((&decision["context_tokens"], &decision["replicas"]), (&json!(1000), &json!(3)));
    let terms = decision["terms"].as_array().unwrap();
    let sum: u64 = terms.iter().map(|term| term["bytes"].as_u64().unwrap()).sum();
    assert_eq!(decision["need"]["total_bytes"], sum);
    assert_eq!(decision["terms"], decision["need"]["terms"]);
    let shown = parsed(&run(&["show", "embedded", "--json"]).answer());
    let per_token = shown["kv_bytes_per_token"]["f16"].as_u64().unwrap();
    assert_eq!(decision["kv_bytes"], 1000 * per_token);
}

#[test]
fn a_context_beyond_all_bounds_never_fits() {
    for ctx in ["9223372036854775808", "18446744073709551615"] {
        let decision = explained(&["embedded", "--ctx", ctx]);
        assert_eq!(decision["verdict"], "refuse");
        assert_eq!(decision["kv_bytes"], u64::MAX);
        for fix in decision["fixes"].as_array().unwrap() {
            assert!(
                fix["context_tokens"].as_u64().unwrap() <= 1024,
                "the model takes no more: {fix}"
            );
        }
    }
    let beyond = run(&["policy", "explain", "embedded", "--ctx", "18446744073709551616"]);
    assert_eq!(beyond.code, Some(2));
}

#[test]
fn golden_configurations_are_sized_from_their_folder() {
    let golden = golden_json("geometry.json");
    let folder = tempfile::tempdir().unwrap();
    for (index, model) in golden["models"].as_array().unwrap().iter().enumerate() {
        fs::write(folder.path().join("config.json"), model["config"].to_string()).unwrap();
        let expected = model["expected"]["kv_bytes_1seq_2B"].as_object().unwrap();
        // One context length each: all four are tried where the geometry is tested.
        let Some((ctx, bytes)) = expected.iter().nth(index % expected.len().max(1)) else {
            continue;
        };
        let decision = explained(&[text(folder.path()), "--ctx", ctx]);
        assert_eq!(decision["kv_bytes"], *bytes, "{} at {ctx}", model["id"]);
        assert_eq!(
            (&decision["verdict"], &decision["reason"]),
            (&json!("refuse"), &json!("weights_unknown"))
        );
    }
}

#[test]
fn the_weights_of_a_folder_are_the_sizes_of_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({
        "model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "head_dim": 64, "hidden_size": 256, "max_position_embeddings": 512,
    });
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    fs::write(folder.path().join("model-1.safetensors"), vec![0; 3 << 20]).unwrap();
    fs::write(folder.path().join("model-2.safetensors"), vec![0; 1 << 20]).unwrap();
    let decision = explained(&[text(folder.path())]);
    assert_eq!(decision["need"]["weights_bytes"], 4 << 20);
    assert_eq!(
        (&decision["context_tokens"], &decision["kv_bytes"]),
        (&json!(512), &json!(512 * 1024))
    );
    assert_eq!(decision["is_upper_bound"], true);
    // Flat for an engine on the processor, and its margin: 1024 MiB each.
    assert!(decision["need"]["overhead_bytes"].as_u64().unwrap() >= 2048 << 20, "{decision}");
    let missing = run(&["policy", "explain", text(&folder.path().join("nothing.gguf"))]).error(3);
    assert!(missing.contains("nothing.gguf"), "{missing}");
    fs::remove_file(folder.path().join("config.json")).unwrap();
    run(&["policy", "explain", text(folder.path())]).error(3);
}

#[test]
fn a_file_that_is_only_a_header_of_an_unknown_architecture_is_sized_from_above() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("odd.gguf");
    let mut writer = Writer::new();
    writer.set("general.architecture", "oddity");
    for (key, value) in [
        ("block_count", 4_u32),
        ("context_length", 2048),
        ("embedding_length", 512),
        ("attention.head_count", 8),
        ("attention.head_count_kv", 2),
    ] {
        writer.set(&format!("oddity.{key}"), value);
    }
    writer.save(&path).unwrap();
    let decision = explained(&[text(&path), "--ctx", "100"]);
    // 4 layers, 2 heads of 512/8, keys and values, 2 bytes, 100 tokens.
    assert_eq!(decision["kv_bytes"], 4 * 2 * 64 * 2 * 2 * 100);
    assert_eq!(decision["reason"], "weights_unknown");
    assert_eq!(
        (&decision["is_upper_bound"], &decision["runs_here"]),
        (&json!(true), &json!(false))
    );
    let kinds: Vec<&Value> =
        decision["terms"].as_array().unwrap().iter().map(|it| &it["kind"]).collect();
    assert!(kinds.contains(&&json!("kv_cache")) && kinds.contains(&&json!("margin")), "{kinds:?}");
}

/// Writes a file that is only a header.
fn header(path: &Path, metadata: &Value) {
    let mut writer = Writer::new();
    for (key, value) in metadata.as_object().unwrap() {
        match value {
            Value::String(text) => writer.set(key, text),
            Value::Array(values) if values.iter().all(Value::is_boolean) => {
                writer.set(key, values.iter().filter_map(Value::as_bool).collect::<Vec<bool>>())
            }
            Value::Array(values) => {
                writer.set(key, values.iter().filter_map(Value::as_u64).collect::<Vec<u64>>())
            }
            number => writer.set(key, number.as_u64().unwrap()),
        };
    }
    writer.save(path).unwrap();
}

#[test]
fn golden_headers_of_models_that_cannot_run_here_are_sized() {
    let golden = golden_json("geometry.json");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("header.gguf");
    let mut seen = 0;
    for file in golden["gguf"].as_array().unwrap() {
        header(&path, &file["metadata"]);
        let (expected, per_token) = (&file["expected"], 131_072);
        // Files whose windows an engine widens have figures for such an engine only.
        let bytes = match expected {
            Value::Object(all) if all.contains_key("kv_bytes_at_131072") => {
                expected["kv_bytes_at_131072"].as_u64()
            }
            _ => ["kv_bytes_per_token_f16", "kv_bytes_per_token_f16_expanded"]
                .into_iter()
                .find_map(|name| Some(expected[name].as_u64()? * per_token)),
        };
        let Some(bytes) = bytes else { continue };
        let decision = explained(&[text(&path), "--ctx", "131072"]);
        assert_eq!(decision["kv_bytes"], bytes, "{}", file["id"]);
        if let Some(state) = expected["recurrent_total_one_copy"].as_u64() {
            assert_eq!(decision["recurrent_state_bytes"], state, "{}", file["id"]);
        }
        seen += 1;
    }
    assert!(seen >= 5, "{seen} files were compared");
}

#[test]
fn a_trace_is_replayed_on_the_machine_that_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.jsonl");
    let arrival = |at_ms: u64, model: &str| {
        let mib = 600_u64 << 20;
        json!({
            "at_ms": at_ms, "model": model, "context_tokens": 0, "replicas": 1, "runs_ms": 1000,
            "reload_ms": 10, "keep_alive_ms": 1_000_000,
            "sizing": {
                "mapped_weights": mib, "private_weights": 0, "weights_source": "trace", "fixed": [],
                "per_replica": [], "growth": [], "evidence": "header",
            },
        })
        .to_string()
    };
    // One has room at a time: while it runs nobody else gets in, and once it is idle it goes.
    let lines = [arrival(0, "a"), arrival(500, "b"), arrival(900, "a"), arrival(5000, "b")];
    fs::write(&trace, lines.join("\n")).unwrap();
    let simulate = |policy: &str| {
        let arguments = ["policy", "simulate", text(&trace), "--total-memory-mb", "8192", "--json"];
        parsed(&run(&[&arguments[..], &["--policy", policy]].concat()).answer())
    };
    let small = simulate("custom:1GB");
    let outcomes: Vec<&Value> =
        small["outcomes"].as_array().unwrap().iter().map(|it| &it["outcome"]).collect();
    assert_eq!(outcomes, ["loaded", "refused", "warm", "loaded"]);
    assert_eq!((&small["evicted"], &small["peak_bytes"]), (&json!(1), &json!(600_u64 << 20)));
    let large = simulate("custom:2GB");
    assert_eq!((&large["refused"], &large["peak_bytes"]), (&json!(0), &json!(1200_u64 << 20)));

    fs::write(&trace, "{\"at_ms\":1}\n").unwrap();
    let error = run(&["policy", "simulate", text(&trace)]).error(1);
    assert!(error.contains("line 1"), "{error}");
}

#[test]
fn the_journal_of_a_run_can_be_replayed() {
    let root = tempfile::tempdir().unwrap();
    run_in(root.path(), &["run", "--max-tokens", "1", "Hi"]).answer();
    let journal = root.path().join("journal.jsonl");
    let answer = run_in(root.path(), &["policy", "simulate", text(&journal), "--json"]).answer();
    let replayed = parsed(&answer);
    assert_eq!((&replayed["arrivals"], &replayed["loaded"]), (&json!(1), &json!(1)), "{answer}");
}

#[test]
fn a_refusal_is_written_down_once() {
    let root = tempfile::tempdir().unwrap();
    let refused = run_in(root.path(), &["run", "--memory-limit", "1MB", "Hi"]);
    assert_eq!(refused.code, Some(4), "{}", refused.stderr);
    let journal = fs::read_to_string(root.path().join("journal.jsonl")).unwrap();
    let events: Vec<Value> = journal.lines().map(parsed).collect();
    let kinds: Vec<&Value> = events.iter().map(|event| &event["kind"]).collect();
    assert_eq!(kinds, ["run_started", "refused", "run_ended"], "{journal}");
}

#[test]
fn ps_works_without_a_server() {
    let root = tempfile::tempdir().unwrap();
    // Nobody may listen on the usual port while this runs; if somebody does, its models are listed, too.
    let listed = parsed(&run_in(root.path(), &["ps", "--json"]).answer());
    assert!(listed["models"].is_array(), "{listed}");
    assert_eq!((&listed["holders"], &listed["memory"]["charged_bytes"]), (&json!([]), &json!(0)));
    let answer = run_in(root.path(), &["ps", "--memory-limit", "100MB"]).answer();
    assert!(answer.contains("0 B of 100 MiB for models are taken"), "{answer}");
}

fn doctor(root: &Path) -> (Option<i32>, Vec<String>, Value) {
    let Finished { stdout, code, .. } = run_in(root, &["doctor", "--json"]);
    let report = parsed(&stdout);
    let findings = report["findings"].as_array().unwrap().iter();
    let findings: Vec<String> = findings.map(|it| it.as_str().unwrap().to_owned()).collect();
    assert_eq!(code, Some(i32::from(!findings.is_empty())), "{findings:?}");
    (code, findings, report)
}

#[test]
fn doctor_names_what_is_wrong_and_nothing_else() {
    let root = tempfile::tempdir().unwrap();
    let (_, before, report) = doctor(root.path());
    assert!(report["memory"]["total_bytes"].as_u64().unwrap() > 0);
    assert!(!report["reading"]["bounds"].as_array().unwrap().is_empty());

    fs::write(root.path().join(FILE), "{\"profile\":\"every").unwrap();
    let (code, findings, report) = doctor(root.path());
    assert_eq!((code, findings.len()), (Some(1), before.len() + 1), "{findings:?}");
    assert!(findings[0].contains("could not be loaded"), "{findings:?}");
    assert_eq!(report["policy"]["source"], "corrupt_default");

    assert_eq!(run_in(root.path(), &["policy", "set", "everyday"]).code, Some(0));
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o770)).unwrap();
    let (_, findings, _) = doctor(root.path());
    assert_eq!(findings.len(), before.len() + 1, "{findings:?}");
    assert!(findings[0].contains("chmod 700"), "{findings:?}");
}

/// Writes down loads that ended with their processes.
fn crashes(root: &TempDir, runs: &[&str]) {
    let lines = runs.iter().map(|run| {
        let started = json!({"at_ms": 1, "run": run, "kind": "run_started", "program": "toko serve", "pid": 1});
        let loading = json!({"at_ms": 2, "run": run, "kind": "load_started", "model": "embedded", "bytes": 5});
        format!("{started}\n{loading}\n")
    });
    fs::write(root.path().join("journal.jsonl"), lines.collect::<String>()).unwrap();
}

#[test]
fn the_next_start_says_what_was_being_loaded_when_the_last_one_died() {
    let root = tempfile::tempdir().unwrap();
    crashes(&root, &["1-1"]);
    let (code, findings, report) = doctor(root.path());
    assert_eq!(
        (code, findings.len()),
        (Some(0), 0),
        "one crash is told, and no reason to worry: {findings:?}"
    );
    assert_eq!(report["last_crash"]["model"], "embedded");
    let answered = run_in(root.path(), &["run", "--max-tokens", "1", "Hi"]);
    assert_eq!(answered.code, Some(0), "{}", answered.stderr);
    assert!(
        answered.stderr.contains("toko serve ended while it loaded embedded"),
        "{}",
        answered.stderr
    );
    run_in(root.path(), &["run", "--max-tokens", "1", "Hi"]).answer();
}

#[test]
fn a_model_that_ended_its_process_twice_waits_for_the_users_word() {
    let root = tempfile::tempdir().unwrap();
    crashes(&root, &["1-1", "2-2"]);
    let (code, findings, _) = doctor(root.path());
    assert_eq!(code, Some(1));
    assert!(findings[0].contains("embedded") && findings[0].contains("--force"), "{findings:?}");
    let held = run_in(root.path(), &["run", "--max-tokens", "1", "Hi"]);
    assert_eq!(held.code, Some(4), "{}", held.stderr);
    let forced = run_in(root.path(), &["run", "--force", "--max-tokens", "1", "Hi"]);
    assert_eq!(forced.code, Some(0), "{}", forced.stderr);
    run_in(root.path(), &["run", "--max-tokens", "1", "Hi"]).answer();
}
