//! Numbers of parameters as people write them, against the golden values and the tables of the specification.

use proptest::prelude::*;
use toko_admission::parameters::Parameters;

fn check(text: &str, total: f64, active: f64, heuristic_mb: u64) {
    let parsed = Parameters::parse(text).unwrap_or_else(|| panic!("{text:?} is a number"));
    assert!((parsed.total_billions - total).abs() < 1e-9, "{text:?}: {parsed:?}");
    assert!((parsed.active_billions - active).abs() < 1e-9, "{text:?}: {parsed:?}");
    assert_eq!(parsed.heuristic_weights_mb(), heuristic_mb, "{text:?}");
}

#[test]
fn every_golden_text_gives_its_numbers() {
    let golden = toko_fixtures::golden_json("admission.json");
    let rows = golden["parameter_text"].as_array().unwrap();
    assert!(!rows.is_empty());
    for row in rows {
        check(
            row["text"].as_str().unwrap(),
            row["total_billions"].as_f64().unwrap(),
            row["active_billions"].as_f64().unwrap(),
            row["heuristic_weights_mb"].as_u64().unwrap(),
        );
    }
}

#[test]
fn mixtures_and_trillions_are_not_taken_for_their_first_digit() {
    let rows = [
        ("8x7B", 56.0, 56.0, 33_600),
        ("8x22B (39B active)", 176.0, 39.0, 105_600),
        ("1T", 1000.0, 1000.0, 600_000),
        ("1T (32B active)", 1000.0, 32.0, 600_000),
        ("26B-A4B", 26.0, 4.0, 15_600),
        ("30B (A3B)", 30.0, 3.0, 18_000),
        ("30B (3B Active)", 30.0, 3.0, 18_000),
        ("30B (128 experts, 3B active)", 30.0, 3.0, 18_000),
    ];
    for (text, total, active, heuristic_mb) in rows {
        check(text, total, active, heuristic_mb);
    }
}

#[test]
fn an_active_number_that_is_not_understood_counts_as_all() {
    let rows = [
        ("30B (active 3B)", 30.0, 18_000),
        ("30B (MoE) (3B active)", 30.0, 18_000),
        ("30B (128 experts active)", 30.0, 18_000),
        ("30B (64B active)", 30.0, 18_000),
        ("1,000M", 1.0, 600),
        ("1e3B", 1.0, 600),
    ];
    for (text, total, heuristic_mb) in rows {
        check(text, total, total, heuristic_mb);
    }
}

#[test]
fn a_text_without_a_positive_number_is_unknown() {
    for text in ["", " ", "B", ".", "1.5.2B", "~8B", "0B", "0.0", "-3B", "NaN", "inf", "xB", "∞"]
    {
        assert_eq!(Parameters::parse(text), None, "{text:?}");
    }
}

#[test]
fn a_size_stands_in_for_a_number_of_parameters() {
    for (size_mb, billions) in
        [(1, 0.1), (60, 0.1), (61, 0.101_666), (600, 1.0), (4800, 8.0), (17_000, 28.333_333)]
    {
        let guessed = Parameters::from_size_mb(size_mb).unwrap();
        assert!((guessed.total_billions - billions).abs() < 1e-5, "{size_mb}: {guessed:?}");
        assert!((guessed.active_billions - billions).abs() < 1e-5);
    }
    assert_eq!(Parameters::from_size_mb(0), None);
}

proptest! {
    #[test]
    fn any_text_gives_positive_finite_numbers_or_none(text in "[ -~×]{0,40}|[0-9.,]{0,400}[bmtBMT]?( \\([0-9a-zA-Z ,]{0,20}\\))?") {
        if let Some(parsed) = Parameters::parse(&text) {
            prop_assert!(parsed.total_billions.is_finite() && parsed.active_billions > 0.0);
            prop_assert!(parsed.active_billions <= parsed.total_billions);
            prop_assert!(parsed.heuristic_weights_mb() > 0);
        }
    }
}
