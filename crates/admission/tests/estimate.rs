//! Estimates for foreign engines against the golden values and measured peaks of the specification.

use proptest::prelude::*;
use serde_json::Value;
use toko_admission::estimate::{Backend, Estimate, ForeignModel, Scoring};
use toko_admission::geometry::reference::ReferenceGeometry;
use toko_admission::sizing::{Evidence, Kind};
use toko_admission::units::{Bytes, MIB};

const UNDECLARED: ForeignModel<'static> = ForeignModel {
    parameter_text: "",
    ram_mb: None,
    size_mb: None,
    measured_weights_mb: None,
    geometry: None,
    backend: Backend::Metal,
    scoring: Scoring::LastPosition,
};

fn golden() -> Value {
    toko_fixtures::golden_json("admission.json")
}

fn geometry_named(golden: &Value, name: &str) -> Option<ReferenceGeometry> {
    let rows = golden["geometries"].as_array().expect("the golden file lists geometries");
    let row = rows.iter().find(|row| row["name"] == name).expect("the golden file has the name");
    ReferenceGeometry::from_config(&row["config"].to_string())
}

fn number(row: &Value, name: &str) -> u64 {
    row[name].as_u64().unwrap_or_else(|| panic!("{name} of {row}"))
}

#[test]
fn every_golden_context_gives_its_terms() {
    let golden = golden();
    for (name, rows) in golden["context_mb"].as_object().unwrap() {
        let model = ForeignModel { geometry: geometry_named(&golden, name), ..UNDECLARED };
        for row in rows.as_array().unwrap() {
            let tokens = number(row, "tokens");
            assert_eq!(model.kv_mb(tokens), number(row, "kv_mb"), "{name} at {tokens}");
            assert_eq!(model.prefill_mb(tokens), number(row, "prefill_mb"), "{name} at {tokens}");
        }
    }
}

#[test]
fn measured_peaks_lie_below_the_estimate_and_within_six_gib() {
    let golden = golden();
    let rows = golden["measured_peaks"].as_array().unwrap();
    assert!(!rows.is_empty());
    for row in rows {
        let scoring =
            if row["draft_model"] == true { Scoring::WholeChunk } else { Scoring::LastPosition };
        let model = ForeignModel {
            ram_mb: Some(number(row, "weights_mb")),
            size_mb: Some(number(row, "weights_mb") - 347),
            geometry: geometry_named(&golden, row["geometry"].as_str().unwrap()),
            scoring,
            ..UNDECLARED
        };
        let estimate = model.estimate(number(row, "tokens")).unwrap();
        let expected = Estimate {
            weights_mb: number(row, "weights_mb"),
            runtime_overhead_mb: number(row, "runtime_overhead_mb"),
            context_overhead_mb: number(row, "context_overhead_mb"),
            transient_margin_mb: number(row, "transient_margin_mb"),
            estimated_peak_mb: number(row, "estimated_peak_mb"),
            evidence: Evidence::CatalogExact,
        };
        assert_eq!(estimate, expected, "{row}");
        assert_eq!(model.chunk_logits_mb(), number(row, "chunk_logits_mb"), "{row}");
        let peak_gib = f64::from(u32::try_from(estimate.estimated_peak_mb).unwrap()) / 1024.0;
        let slack_gib = peak_gib - row["measured_peak_gib"].as_f64().unwrap();
        assert!((0.0..=6.0).contains(&slack_gib), "{row}: {slack_gib}");
    }
}

#[test]
fn without_a_geometry_the_cache_is_that_of_an_eight_billion_model_or_more() {
    for row in golden()["fallback_kv"].as_array().unwrap() {
        let text = row["param_count"].as_str().unwrap();
        let model = ForeignModel { parameter_text: text, ..UNDECLARED };
        assert_eq!(model.kv_mb(number(row, "tokens")), number(row, "kv_mb"), "{row}");
        assert_eq!(model.prefill_mb(9000), 0);
    }
    let rows =
        [("26B-A4B", 1152), ("30B (3B Active)", 1152), ("30B (128 experts, 3B active)", 1152)];
    let undeclared = [("8x7B", 8064), ("1T", 144_000), ("30B (active 3B)", 4320), ("~8B", 1152)];
    for (text, kv_mb) in rows.into_iter().chain(undeclared) {
        let model = ForeignModel { parameter_text: text, ..UNDECLARED };
        assert_eq!(model.kv_mb(8192), kv_mb, "{text}");
    }
    let sized = ForeignModel { size_mb: Some(19_200), ..UNDECLARED };
    assert_eq!(sized.kv_mb(9000), 5063, "32 billion by its size");
}

#[test]
fn logits_of_a_whole_chunk_are_charged_only_where_the_engine_scores_it() {
    let golden = golden();
    for (vocab, mb) in golden["chunk_logits_mb"].as_object().unwrap() {
        let config = format!(
            r#"{{"num_hidden_layers": 1, "num_key_value_heads": 1, "head_dim": 1, "vocab_size": {vocab}}}"#
        );
        let geometry = ReferenceGeometry::from_config(&config);
        let model = ForeignModel { geometry, scoring: Scoring::WholeChunk, ..UNDECLARED };
        assert_eq!(Value::from(model.chunk_logits_mb()), *mb, "{vocab}");
        let plain = ForeignModel { scoring: Scoring::LastPosition, ..model };
        assert_eq!(plain.chunk_logits_mb(), 0);
    }
}

#[test]
fn weights_are_measured_declared_guessed_or_unknown() {
    let check = |model: ForeignModel<'_>, expected| {
        assert_eq!(model.weights_mb().ok(), expected, "{model:?}");
    };
    let declared = |ram_mb, size_mb| ForeignModel { ram_mb, size_mb, ..UNDECLARED };
    check(declared(Some(100), Some(300)), Some((300, Evidence::CatalogExact)));
    check(declared(None, Some(300)), Some((300, Evidence::CatalogExact)));
    check(declared(Some(2400), None), Some((2400, Evidence::CatalogExact)));
    check(declared(Some(0), Some(0)), None);
    let measured = ForeignModel { measured_weights_mb: Some(0), ..declared(Some(100), None) };
    check(measured, Some((0, Evidence::FileSystemMeasured)));
    let named = |parameter_text| ForeignModel { parameter_text, ..UNDECLARED };
    check(named("4B"), Some((2400, Evidence::Heuristic)));
    check(named("8x7B"), Some((33_600, Evidence::Heuristic)));
    check(named("?"), None);
    let reason = named("?").estimate(2048).unwrap_err().to_string();
    assert!(reason.contains("\"?\"") && reason.contains("unknown"), "{reason}");
}

#[test]
fn the_overhead_before_loading_depends_on_the_backend() {
    let peak = |backend| {
        let model = ForeignModel { backend, parameter_text: "4B", ..UNDECLARED };
        model.estimate(2048).unwrap().estimated_peak_mb
    };
    assert_eq!(peak(Backend::Metal), 2400 + 288 + 512 + 1024);
    assert_eq!(peak(Backend::Cuda), peak(Backend::Metal));
    assert_eq!(peak(Backend::Cpu), peak(Backend::Metal) + 512);
}

#[test]
fn a_context_that_is_too_long_for_any_memory_gives_the_largest_size() {
    let golden = golden();
    let geometry = geometry_named(&golden, "saturating");
    let model = ForeignModel { geometry, parameter_text: "8B", ..UNDECLARED };
    assert_eq!(model.estimate(u64::MAX).unwrap().estimated_peak_mb, u64::MAX);
    let sizing = model.sizing().unwrap();
    assert_eq!(sizing.footprint(1 << 63, 1).total(), Bytes::MAX);
    let unknown = ForeignModel { geometry: None, ..model }.sizing().unwrap();
    assert_eq!(unknown.footprint(1 << 63, 1).total(), Bytes::MAX);
}

fn models() -> impl Strategy<Value = ForeignModel<'static>> {
    let sizes =
        (0..1_u64 << 34, 0..1_u64 << 40, 0..1_u64 << 34, proptest::option::of(1..1_u64 << 20));
    let geometry = sizes.prop_map(|(kv, fixed, prefill, vocab_size)| ReferenceGeometry {
        kv_bytes_per_token: kv,
        fixed_state_bytes: fixed,
        prefill_bytes_per_token: prefill,
        vocab_size,
    });
    let backend = prop_oneof![Just(Backend::Metal), Just(Backend::Cuda), Just(Backend::Cpu)];
    let scoring = prop_oneof![Just(Scoring::LastPosition), Just(Scoring::WholeChunk)];
    let text = prop_oneof![Just("8B"), Just("235B (22B active, 94 layers)"), Just("0.6B")];
    (text, proptest::option::of(geometry), backend, scoring).prop_map(
        |(parameter_text, geometry, backend, scoring)| ForeignModel {
            parameter_text,
            geometry,
            backend,
            scoring,
            ..UNDECLARED
        },
    )
}

proptest! {
    #[test]
    fn the_sizing_covers_the_peak_and_little_more(model in models(), tokens in 0_u64..1 << 21) {
        let peak = Bytes::from_mib(model.estimate(tokens).unwrap().estimated_peak_mb);
        let sizing = model.sizing().unwrap();
        let footprint = sizing.footprint(tokens, 1);
        prop_assert!(footprint.total() >= peak, "{footprint:?} {peak}");
        prop_assert!(footprint.total() <= peak + Bytes::from_mib(3), "{footprint:?} {peak}");
        prop_assert!(footprint.terms.iter().all(|term| !term.source.is_empty()));
    }

    #[test]
    fn each_sequence_needs_its_own_context(model in models(), tokens in 0_u64..1 << 21, replicas in 1_u64..64) {
        let sizing = model.sizing().unwrap();
        let of = |replicas, kind| {
            let terms = sizing.footprint(tokens, replicas).terms;
            terms.iter().filter(|term| term.kind == kind).map(|term| term.bytes).sum::<Bytes>()
        };
        prop_assert_eq!(of(replicas, Kind::KvCache), of(1, Kind::KvCache) * replicas);
        prop_assert_eq!(of(replicas, Kind::Runtime), of(1, Kind::Runtime));
        prop_assert!(of(1, Kind::KvCache) >= Bytes::new(MIB));
    }
}
