//! `toko run` without a terminal: answers, sampling, standard input, errors.

use std::{io::Read as _, process::Stdio};

use toko_fixtures::embedded_model_path;

use crate::command::{golden, golden_answer, run, run_with_stdin, text, toko};

/// Their answers have no near-tie: every right implementation gives these tokens.
const FRANCE: &str = "What is the capital of France?";
const VOLCANO: &str = "What is a volcano?";
const JSON: &str = "Give me a JSON object with name and city. Tom lives in Paris.";
const STORY: &str = "Tell me a story about a fox named Pip.";

fn greedy(prompt: &str) -> String {
    run(&["run", prompt, "--temperature", "0"]).answer()
}

#[test]
fn the_embedded_model_answers_as_the_reference_does() {
    for question in [FRANCE, VOLCANO, JSON] {
        assert_eq!(greedy(question), format!("{}\n", golden_answer(question)));
    }
}

#[test]
fn a_model_from_a_path_answers_as_the_embedded_one() {
    let model = embedded_model_path();
    let answer = run(&["run", text(&model), FRANCE, "--temperature", "0"]).answer();
    assert_eq!(answer, format!("{}\n", golden_answer(FRANCE)));
    let flagged = run(&["run", "--model", text(&model), FRANCE, "--temperature", "0"]).answer();
    assert_eq!(flagged, answer);
}

#[test]
fn every_element_type_of_the_kv_cache_and_number_of_threads_gives_the_answer() {
    for flags in [
        ["--kv-type", "f32"],
        ["--kv-type", "f16"],
        ["--kv-type", "q8_0"],
        ["--threads", "1"],
        ["--threads", "3"],
    ] {
        let mut arguments = vec!["run", VOLCANO, "--temperature", "0"];
        arguments.extend(flags);
        assert_eq!(run(&arguments).answer(), format!("{}\n", golden_answer(VOLCANO)), "{flags:?}");
    }
}

#[test]
fn raw_text_with_special_tokens_is_the_prompt_as_it_stands() {
    let golden = golden(FRANCE);
    let prompt = golden["prompt"].as_str().unwrap();
    let answer = run(&["run", "--raw", prompt, "--temperature", "0"]).answer();
    assert_eq!(answer, format!("{}\n", golden_answer(FRANCE)));
}

#[test]
fn special_tokens_in_a_question_are_plain_text() {
    let golden = golden(FRANCE);
    let prompt = golden["prompt"].as_str().unwrap();
    let count = |arguments: &[&str]| prefill_tokens(&run(arguments).stderr);
    let raw = count(&["run", "-v", "--raw", prompt, "--max-tokens", "1"]);
    let question = count(&["run", "-v", prompt, "--max-tokens", "1"]);
    assert_eq!(raw, golden["prompt_ids"].as_array().unwrap().len());
    // The marks cost several tokens each when they are spelled out.
    assert!(question > raw + 12, "{question} tokens in the template, {raw} raw");
}

#[test]
fn a_system_text_stands_before_the_question() {
    let prompt = "<|im_start|>system\nYou are Luna, a pirate.<|im_end|>\n\
                  <|im_start|>user\nWhat is your name?<|im_end|>\n<|im_start|>assistant\n";
    let all = toko_fixtures::embedded_model_golden();
    let golden = all.as_array().unwrap().iter().find(|entry| entry["prompt"] == *prompt).unwrap();
    let finished = run(&[
        "run",
        "-v",
        "What is your name?",
        "--system",
        "You are Luna, a pirate.",
        "--max-tokens",
        "1",
    ]);
    let expected = golden["prompt_ids"].as_array().unwrap().len();
    assert_eq!(prefill_tokens(&finished.stderr), expected);
}

#[test]
fn a_seed_repeats_its_answer_and_another_seed_gives_another() {
    let story = |seed: &str| {
        run(&["run", STORY, "--temperature", "1", "--seed", seed, "--max-tokens", "60"]).answer()
    };
    let first = story("7");
    assert_eq!(first, story("7"));
    assert_ne!(first, story("8"));
    assert!(first.contains("Pip"), "a story about Pip: {first}");
}

#[test]
fn what_is_piped_in_is_the_question_when_there_is_no_other() {
    let flags = ["run", "--temperature", "0"];
    let answer = run_with_stdin(&flags, format!("{FRANCE}\n").as_bytes()).answer();
    assert_eq!(answer, format!("{}\n", golden_answer(FRANCE)));
}

#[test]
fn what_is_piped_in_is_added_below_the_question() {
    let whole = greedy("Who lives in Paris?\n\nTom lives in Paris. Anna lives in Rome.");
    let piped = run_with_stdin(
        &["run", "Who lives in Paris?", "--temperature", "0"],
        b"Tom lives in Paris. Anna lives in Rome.\n",
    );
    assert_eq!(piped.answer(), whole);
    assert_ne!(whole, greedy("Who lives in Paris?"));
}

#[test]
fn only_the_answer_goes_to_standard_output_and_timings_to_standard_error() {
    let quiet = greedy(FRANCE);
    let finished = run(&["run", FRANCE, "--temperature", "0", "--verbose"]);
    assert_eq!((finished.code, finished.stdout), (Some(0), quiet));
    for part in ["load ", "prefill ", "decode ", " tok/s", "seed "] {
        assert!(finished.stderr.contains(part), "{part}: {}", finished.stderr);
    }
    let golden = golden(FRANCE);
    assert_eq!(prefill_tokens(&finished.stderr), golden["prompt_ids"].as_array().unwrap().len());
    let answer = format!("answer   {} tokens", golden["greedy_ids"].as_array().unwrap().len());
    assert!(finished.stderr.contains(&answer), "{}", finished.stderr);
}

#[test]
fn an_answer_ends_before_a_stop_text() {
    let whole = golden_answer(VOLCANO);
    let (before, _) = whole.split_once(" throw").unwrap();
    let answer =
        run(&["run", VOLCANO, "--temperature", "0", "--stop", "zebra", "--stop", " throw"])
            .answer();
    assert_eq!(answer, format!("{before}\n"));
}

#[test]
fn an_answer_ends_after_the_last_token_that_is_allowed() {
    // The reference begins P, ar, is.
    let answer = run(&["run", FRANCE, "--temperature", "0", "--max-tokens", "3"]).answer();
    assert_eq!(answer, "Paris\n");
}

#[test]
fn a_variable_of_the_environment_stands_in_for_a_flag_and_the_flag_wins() {
    let limited = |arguments: &[&str]| {
        let mut command = toko(arguments);
        command.env("TOKO_TEMPERATURE", "0").env("TOKO_MAX_TOKENS", "3").stdin(Stdio::null());
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert_eq!(limited(&["run", FRANCE]), "Paris\n");
    let whole = format!("{}\n", golden_answer(FRANCE));
    assert_eq!(limited(&["run", FRANCE, "--max-tokens", "99"]), whole);
}

#[test]
fn a_prompt_longer_than_the_context_is_refused_with_both_numbers() {
    let long = "fox ".repeat(60);
    let error = run(&["run", &long, "--ctx", "32"]).error(1);
    assert!(error.contains("the context holds 32"), "{error}");
}

#[test]
fn a_context_longer_than_the_model_was_trained_for_is_refused() {
    let error = run(&["run", FRANCE, "--ctx", "100000"]).error(1);
    assert!(error.contains("100000") && error.contains("1024"), "{error}");
}

#[test]
fn numbers_out_of_range_are_wrong_usage() {
    let finished = run(&["run", FRANCE, "--temperature", "3"]);
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(2), ""));
    let expected = "toko: invalid value '3' for '--temperature <T>': must be a number from 0 to 2";
    assert_eq!(finished.stderr.lines().next(), Some(expected));
}

#[test]
fn no_prompt_and_no_terminal_is_wrong_usage() {
    for stdin in ["", " \n\t\n"] {
        let error = run_with_stdin(&["run"], stdin.as_bytes()).error(2);
        assert!(error.contains("there is no prompt"), "{error}");
    }
}

#[test]
fn text_piped_in_that_is_not_utf8_is_refused_with_its_place() {
    let error = run_with_stdin(&["run"], b"abc\xff").error(1);
    assert!(error.contains("not UTF-8 at byte 3"), "{error}");
}

#[test]
fn a_missing_model_is_not_found() {
    for arguments in [&["run", "missing.gguf", "hi"][..], &["run", "no-such-model", "hi"]] {
        let error = run(arguments).error(3);
        assert!(error.contains("no model file") && error.contains(arguments[1]), "{error}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = toko(&["run", STORY, "--temperature", "0"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The reader is gone before the model is loaded.
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!((child.wait().unwrap().code(), stderr.as_str()), (Some(0), ""));
}

/// Reads the number of prompt tokens from the timings.
#[track_caller]
fn prefill_tokens(stderr: &str) -> usize {
    let line = stderr.lines().find_map(|line| line.strip_prefix("prefill")).expect(stderr);
    line.split_whitespace().next().unwrap().parse().unwrap()
}
