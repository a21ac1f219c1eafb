//! `toko bench` on the embedded model: what is told, and what becomes of it beside another program. Nothing here
//! looks at how large a figure is.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use toko_fixtures::embedded_model_path;

use crate::command::{Finished, finish, run, text, toko};

/// Little work, and a limit that keeps the buffer small with which memory is measured.
const SMALL: [&str; 10] =
    ["--prompt", "6", "--gen", "3", "--threads", "1", "--repeat", "2", "--memory-limit", "64MB"];

/// What the other program prints: without flash attention it is slow with prompts, with it slow with generating.
const TESTS: &str = r#"[
  {"n_prompt": 6, "n_gen": 0, "flash_attn": 0, "avg_ts": 10.5, "n_threads": 1},
  {"n_prompt": 0, "n_gen": 3, "flash_attn": 0, "avg_ts": 4.25, "n_threads": 1},
  {"n_prompt": 6, "n_gen": 0, "flash_attn": 1, "avg_ts": 20.5, "n_threads": 1},
  {"n_prompt": 0, "n_gen": 3, "flash_attn": 1, "avg_ts": 2.25, "n_threads": 1}
]"#;

fn measured(arguments: &[&str]) -> Value {
    let arguments = [&["bench", "--json"], arguments, &SMALL].concat();
    serde_json::from_str(&run(&arguments).answer()).unwrap()
}

/// Returns the smallest, the middle and the largest of some figures.
#[track_caller]
fn spread(value: &Value) -> [f64; 3] {
    let found = ["min", "median", "max"].map(|name| value[name].as_f64().unwrap());
    assert!(0.0 < found[0] && found[0] <= found[1] && found[1] <= found[2], "{value}");
    found
}

#[test]
fn the_document_tells_machine_model_speeds_and_memory() {
    let report = measured(&[]);
    assert_ne!(report["machine"]["cpu"], "");
    assert!(report["machine"]["cores"].as_u64().unwrap() > 0);
    assert_eq!(report["model"]["file"], "embedded");
    assert_eq!(report["model"]["type"], "Q1_0");
    assert_eq!(report["tier"], toko_kernels::isa::Tier::detect().name());
    let asked = ["threads", "prompt_tokens", "gen_tokens", "depth_tokens", "batch", "repeats"];
    assert_eq!(asked.map(|name| report[name].as_u64().unwrap()), [1, 6, 3, 0, 1, 2]);
    assert_eq!(report["kv_type"], "f16");
    spread(&report["prefill_tok_s"]);
    spread(&report["decode_tok_s"]);
    assert!(report["load_ms"].as_f64().unwrap() > 0.0);
    let weights = report["model"]["weight_bytes"].as_u64().unwrap();
    assert!(report["peak_rss_bytes"].as_u64().unwrap() > weights, "{report}");
    assert!(report["streaming"]["bytes_per_second"].as_f64().unwrap() > 0.0);
    assert_eq!(report["streaming"]["buffer_bytes"], 64 << 20);
    assert!(report["percent_of_streaming"].as_f64().unwrap() > 0.0);
    assert_eq!(report["compare"], Value::Null);
}

#[test]
fn a_pass_reads_the_weights_once_and_the_keys_and_values_of_every_sequence() {
    let bytes = |arguments: &[&str]| measured(arguments)["decode_bytes_per_pass"].as_u64().unwrap();
    let alone = bytes(&[]);
    let (deep, together) = (bytes(&["--depth", "100"]), bytes(&["--depth", "100", "--batch", "3"]));
    let shown: Value =
        serde_json::from_str(&run(&["show", "embedded", "--json"]).answer()).unwrap();
    let position = shown["kv_bytes_per_token"]["f16"].as_u64().unwrap();
    assert_eq!(deep - alone, 100 * position);
    assert_eq!(together - deep, 2 * 102 * position);
    let weights = measured(&[])["model"]["weight_bytes"].as_u64().unwrap();
    assert_eq!(alone, weights + 2 * position, "its embedding is its output matrix, too");
}

#[test]
fn a_phase_of_no_tokens_is_left_out_but_not_both() {
    let prompts = ["bench", "--json", "--prompt", "5", "--gen", "0", "--memory-limit", "64MB"];
    let report: Value = serde_json::from_str(&run(&prompts).answer()).unwrap();
    spread(&report["prefill_tok_s"]);
    for name in ["decode_tok_s", "decode_bytes_per_pass", "percent_of_streaming"] {
        assert_eq!(report[name], Value::Null, "{name}");
    }
    let error = run(&["bench", "--prompt", "0", "--gen", "0"]).error(2);
    assert!(error.contains("nothing to measure"), "{error}");
}

#[test]
fn people_are_told_the_same() {
    let text = run(&[&["bench"], &SMALL[..]].concat()).answer();
    for part in
        ["embedded, Q1_0", "prefill 6 ", "decode 3 ", "median", "peak memory", "GB/s", "64.0 MiB"]
    {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn a_model_that_has_no_room_is_refused_as_it_is_elsewhere_and_force_goes_over_it() {
    let small = ["bench", "--prompt", "6", "--gen", "3", "--repeat", "1", "--memory-limit", "2MB"];
    let refused = run(&small);
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(4), ""), "{refused:?}");
    assert!(refused.stderr.starts_with("toko: embedded needs "), "{}", refused.stderr);
    // This command has no flag for the context, so none is proposed.
    assert!(!refused.stderr.contains("--ctx"), "{}", refused.stderr);
    assert_eq!(run(&[&small[..], &["--force"]].concat()).code, Some(0));
}

#[test]
fn more_tokens_than_the_model_was_trained_for_are_refused() {
    let error = run(&["bench", "--depth", "1000"]).error(1);
    assert!(error.contains("1512") && error.contains("1024"), "{error}");
}

#[test]
fn a_missing_model_and_one_that_is_given_twice_are_refused() {
    assert!(run(&["bench", "missing.gguf"]).error(3).contains("missing.gguf"));
    assert!(run(&["bench", "a.gguf", "--model", "b.gguf"]).error(2).contains("given twice"));
}

/// A stand-in for llama-bench: a script that keeps its arguments and does what it is told.
struct Script {
    folder: tempfile::TempDir,
}

impl Script {
    fn new(body: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let script = Self { folder };
        fs::write(
            script.program(),
            format!("#!/bin/sh\necho \"$@\" >> {}\n{body}\n", script.log()),
        )
        .unwrap();
        fs::set_permissions(script.program(), fs::Permissions::from_mode(0o700)).unwrap();
        script
    }

    fn program(&self) -> PathBuf {
        self.folder.path().join("llama-bench")
    }

    fn log(&self) -> String {
        text(&self.folder.path().join("log")).to_owned()
    }

    /// Returns the arguments of each time that it ran.
    fn runs(&self) -> Vec<String> {
        fs::read_to_string(self.log()).unwrap_or_default().lines().map(str::to_owned).collect()
    }
}

/// Compares the embedded model's file with the program at a path.
fn compare(path: &Path, flags: &[&str]) -> Finished {
    let model = embedded_model_path();
    run(&[&["bench", text(&model), "--json", "--compare", text(path)], flags, &SMALL].concat())
}

fn prints(tests: &str) -> String {
    format!("cat <<'END'\n{tests}\nEND")
}

#[test]
fn another_program_runs_once_a_repeat_on_the_same_work_and_its_better_speeds_count() {
    let script = Script::new(&prints(TESTS));
    for path in [script.program(), script.folder.path().to_owned()] {
        let report: Value = serde_json::from_str(&compare(&path, &[]).answer()).unwrap();
        for (phase, theirs) in [("prefill", 20.5), ("decode", 4.25)] {
            let compared = &report["compare"][phase];
            let constant = json!({ "min": theirs, "median": theirs, "max": theirs });
            assert_eq!(compared["theirs_tok_s"], constant);
            let ours = spread(&report[format!("{phase}_tok_s")]);
            let ratios = spread(&compared["ratio"]);
            for (ours, ratio) in ours.into_iter().zip(ratios) {
                assert!((ours / theirs / ratio - 1.0).abs() < 1e-9, "{compared} of {ours}");
            }
        }
    }
    let model = embedded_model_path();
    let expected = format!(
        "-o json -r 1 -ngl 0 -t 1 -p 6 -n 3 -ctk f16 -ctv f16 -fa 0,1 -m {}",
        model.display()
    );
    assert_eq!(script.runs(), vec![expected; 4]);
}

#[test]
fn depth_and_the_type_of_the_cache_are_the_other_program_s_too() {
    let script = Script::new(&prints(TESTS));
    compare(&script.program(), &["--depth", "7", "--kv-type", "q8_0"]).answer();
    assert!(script.runs()[0].contains("-ctk q8_0 -ctv q8_0 -fa 1 -d 7"), "{:?}", script.runs());
}

#[test]
fn a_program_that_does_not_do_its_part_is_one_error_that_says_why() {
    for (body, part) in [
        (
            "echo 'loading' >&2; echo 'error: failed to load model' >&2; exit 1".to_owned(),
            "failed to load model",
        ),
        ("kill -SEGV $$".to_owned(), "signal"),
        ("echo '| model | t/s |'".to_owned(), "-o json"),
        (prints("[]"), "6 prompt tokens"),
        (prints(&TESTS.replace("4.25", "null")), "-o json"),
        (prints(&TESTS.replace("\"n_gen\": 3", "\"n_gen\": 4")), "3 generated"),
        (prints(&TESTS.replace("4.25", "0.0").replace("2.25", "0.0")), "3 generated"),
    ] {
        let script = Script::new(&body);
        let error = compare(&script.program(), &[]).error(1);
        assert!(error.contains(part) && error.contains("llama-bench"), "{error}");
        assert_eq!(script.runs().len(), 1);
    }
}

#[test]
fn a_program_that_is_not_there_or_no_program_is_refused() {
    let script = Script::new("");
    let missing = compare(&script.folder.path().join("none"), &[]).error(3);
    assert!(missing.contains("no program") && missing.contains("none"), "{missing}");
    fs::set_permissions(script.program(), fs::Permissions::from_mode(0o600)).unwrap();
    let refused = compare(&script.program(), &[]).error(1);
    assert!(refused.contains("cannot start"), "{refused}");
    fs::remove_file(script.program()).unwrap();
    let empty = compare(script.folder.path(), &[]).error(3);
    assert!(empty.contains("llama-bench"), "{empty}");
}

#[test]
fn comparing_is_for_one_sequence_of_a_model_in_a_file() {
    let script = Script::new(&prints(TESTS));
    let together = compare(&script.program(), &["--batch", "2"]).error(2);
    assert!(together.contains("one sequence"), "{together}");
    let program = script.program();
    let embedded = finish(toko(&["bench", "--compare", text(&program)]).output().unwrap()).error(2);
    assert!(embedded.contains("built-in"), "{embedded}");
    assert_eq!(script.runs(), [""; 0]);
}
