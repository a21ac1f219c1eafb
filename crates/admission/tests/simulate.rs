//! Days of arrivals on machines of other sizes.

use proptest::prelude::*;
use toko_admission::policy::Policy;
use toko_admission::simulate::{Arrival, Outcome, Trial, replay};
use toko_admission::sizing::{Evidence, Sizing};
use toko_admission::units::Bytes;

fn arrival(at_s: u64, model: &str, mib: u64, runs_s: u64) -> Arrival {
    Arrival {
        at_ms: at_s * 1000,
        model: model.to_owned(),
        sizing: Sizing {
            mapped_weights: Bytes::from_mib(mib),
            private_weights: Bytes::ZERO,
            weights_source: String::new(),
            fixed: vec![],
            per_replica: vec![],
            growth: vec![],
            evidence: Evidence::Header,
        },
        context_tokens: 1,
        replicas: 1,
        runs_ms: runs_s * 1000,
        reload_ms: mib,
        keep_alive_ms: 300_000,
    }
}

fn trial(total_mb: u64, policy: Policy) -> Trial {
    Trial { total: Bytes::from_mib(total_mb), used_elsewhere: Bytes::from_mib(1024), policy }
}

fn words(outcomes: &[Outcome]) -> Vec<String> {
    let word = |outcome: &Outcome| match outcome {
        Outcome::Warm => "warm".to_owned(),
        Outcome::Loaded { evicted } if evicted.is_empty() => "loaded".to_owned(),
        Outcome::Loaded { evicted } => {
            let names: Vec<&str> =
                evicted.iter().map(toko_admission::ledger::ModelId::as_str).collect();
            format!("loaded for {}", names.join(", "))
        }
        Outcome::Refused { reason } => format!("{reason:?}"),
    };
    outcomes.iter().map(word).collect()
}

#[test]
fn the_same_day_on_a_larger_machine_needs_nobody_to_go() {
    let day = [
        arrival(0, "a", 4000, 60),
        arrival(10, "b", 4000, 10),
        arrival(15, "a", 4000, 60),
        arrival(30, "c", 4000, 10),
        arrival(40, "d", 4000, 1000),
        arrival(50, "e", 9000, 10),
    ];
    let small = replay(&day, &trial(24_576, Policy::everyday()));
    assert_eq!(
        words(&small.outcomes),
        ["loaded", "loaded", "warm", "loaded for b", "loaded for c", "ExceedsConfiguredCeiling"]
    );
    assert_eq!(small.peak_bytes, Bytes::from_mib(8000));
    let large = replay(&day, &trial(65_536, Policy::everyday()));
    assert_eq!(words(&large.outcomes), ["loaded", "loaded", "warm", "loaded", "loaded", "loaded"]);
}

#[test]
fn a_model_goes_when_it_was_idle_for_as_long_as_it_is_kept() {
    let day = [arrival(0, "a", 100, 10), arrival(309, "a", 100, 0), arrival(609, "a", 100, 0)];
    let report = replay(&day, &trial(24_576, Policy::everyday()));
    assert_eq!(words(&report.outcomes), ["loaded", "warm", "loaded"]);
}

proptest! {
    #[test]
    fn no_trial_ever_holds_more_than_its_ceiling(
        arrivals in proptest::collection::vec((0u64..2000, 0usize..6, 0u64..300), 0..60),
        total_mb in 4096u64..40_000,
    ) {
        let models = [("a", 500), ("b", 1500), ("c", 2500), ("d", 4000), ("e", 6000), ("f", 20_000)];
        let day: Vec<Arrival> = arrivals.into_iter().map(|(at, index, runs)| {
            arrival(at, models[index].0, models[index].1, runs)
        }).collect();
        let trial = trial(total_mb, Policy::local_focused());
        let report = replay(&day, &trial);
        prop_assert!(report.peak_bytes <= report.ceiling_bytes);
        prop_assert_eq!(report.outcomes.len(), day.len());
        prop_assert_eq!(&replay(&day, &trial), &report);
    }
}
