//! Every proposal works: applied to the request, the ledger admits it.

mod follow;

use follow::{follow, machine};
use proptest::prelude::*;
use toko_admission::decision::{Change, Decision, Load, Ruling, Variant};
use toko_admission::eviction::Candidate;
use toko_admission::ledger::{Env, Home, Ledger, ModelId, Pool, ScopeId, Verdict};
use toko_admission::policy::Policy;
use toko_admission::sizing::{Evidence, Growth, Kind, Sizing, Term};
use toko_admission::units::Bytes;

fn term(kind: Kind, bytes: u64) -> Term {
    Term { kind, bytes: Bytes::new(bytes), source: "made up".to_owned() }
}

fn growth(step_tokens: u64, step_bytes: u64, window_tokens: Option<u64>) -> Growth {
    Growth {
        kind: Kind::KvCache,
        step_tokens,
        step_bytes: Bytes::new(step_bytes),
        window_tokens,
        source: "made up".to_owned(),
    }
}

fn sizing() -> impl Strategy<Value = Sizing> {
    let growths = proptest::collection::vec(
        (1u64..200, 0u64..1 << 22, proptest::option::of(1u64..5000)),
        0..4,
    );
    (0u64..8 << 30, 0u64..1 << 30, 0u64..1 << 28, 0u64..1 << 26, growths).prop_map(
        |(mapped, private, once, each, growths)| Sizing {
            mapped_weights: Bytes::new(mapped),
            private_weights: Bytes::new(private),
            weights_source: "made up".to_owned(),
            fixed: vec![term(Kind::Tokenizer, once)],
            per_replica: vec![term(Kind::Scratch, each)],
            growth: growths
                .into_iter()
                .map(|(step, bytes, window)| growth(step, bytes, window))
                .collect(),
            evidence: Evidence::Header,
        },
    )
}

fn load(sizing: Sizing, context_tokens: u64, replicas: u64) -> Load {
    Load {
        scope: ScopeId(0),
        model: ModelId::new("new"),
        sizing: Some(sizing),
        context_tokens,
        replicas,
        pool: Pool::Host,
        home: Home::Process,
        variants: Vec::new(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1500) })]

    #[test]
    fn following_any_proposal_works(
        wanted in sizing(),
        smaller in sizing(),
        residents in proptest::collection::vec((1u64..4000, any::<bool>(), 0u64..2), 0..5),
        context_tokens in 1u64..200_000,
        replicas in 1u64..9,
        total_mb in 2048u64..65_536,
        available_share in 0u64..100,
        limit_mb in proptest::option::of(0u64..8000),
        policy in prop_oneof![
            Just(Policy::everyday()),
            Just(Policy::local_focused()),
            Just(Policy::custom_gb(0.0).unwrap()),
            Just(Policy::custom_gb(2.5).unwrap()),
        ],
    ) {
        let mut env = machine(&policy, total_mb, total_mb * available_share / 100);
        if let Some(limit) = limit_mb.map(Bytes::from_mib) {
            (env.limit, env.policy_ceiling) = (Some(limit), Some(env.ceiling));
            env.ceiling = env.ceiling.min(limit);
        }
        let roomy = Env { ceiling: Bytes::MAX, available: None, ..env.clone() };
        let mut ledger = Ledger::default();
        let mut idle = Vec::new();
        for (index, (mib, is_idle, visible)) in residents.into_iter().enumerate() {
            let held = Sizing { mapped_weights: Bytes::from_mib(mib), private_weights: Bytes::ZERO,
                fixed: vec![], per_replica: vec![], growth: vec![], ..wanted.clone() };
            let model = ModelId::new(format!("m{index}"));
            let held = Load { model: model.clone(), ..load(held, 1, 1) };
            let (charge, _) = ledger.reserve(&held.ask(), &roomy).unwrap();
            let allocation = ledger.launch(charge);
            ledger.publish(allocation, Bytes::ZERO);
            ledger.observe(allocation, Bytes::from_mib(mib * visible));
            ledger.release(charge);
            idle.push(Candidate { model, frees: Bytes::from_mib(mib), reload_ms: 100,
                idle_seconds: is_idle.then_some(5), is_pinned: false });
        }
        let variants = vec![Variant { change: Change::KvType { kv_type: "q8_0".to_owned() }, sizing: smaller }];
        let load = Load { variants, ..load(wanted, context_tokens, replicas) };
        let decision = Decision::of(&load, &ledger, &env, &idle);
        prop_assert_eq!(decision.verdict == Ruling::Admit, decision.fixes.is_empty() && decision.reason.admits());
        for fix in &decision.fixes {
            let verdict = follow(&load, &fix.change, &ledger, &env, total_mb);
            prop_assert!(verdict.admits(), "{:?}: {:?}", fix, verdict);
        }
        let terms: Bytes = decision.need.terms.iter().map(|term| term.bytes).sum();
        prop_assert_eq!(terms, decision.need.total_bytes);
        prop_assert!(!serde_json::to_string(&decision).unwrap().contains(":-"), "no number is negative");
    }

    #[test]
    fn more_context_or_replicas_never_costs_less(
        sizing in sizing(), context in 0u64..1 << 40, more in 0u64..1 << 20, replicas in 0u64..100,
    ) {
        let total = |context, replicas| sizing.footprint(context, replicas).total();
        prop_assert!(total(context, replicas) <= total(context + more, replicas));
        prop_assert!(total(context, replicas) <= total(context, replicas + 1));
    }

    #[test]
    fn the_largest_context_is_the_largest(sizing in sizing(), room in 0u64..1 << 34, replicas in 1u64..9, limit in 0u64..300_000) {
        let room = Bytes::new(room);
        let fits = |context| sizing.footprint(context, replicas).overhead <= room;
        match sizing.largest_context(room, replicas, limit) {
            None => prop_assert!(limit == 0 || !fits(1)),
            Some(context) => {
                prop_assert!((1..=limit).contains(&context) && fits(context));
                prop_assert!(context == limit || !fits(context + 1));
            }
        }
    }
}

proptest! {
    #[test]
    fn the_most_replicas_are_the_most(sizing in sizing(), room in 0u64..1 << 36, context in 0u64..100_000, limit in 0u64..2000) {
        let room = Bytes::new(room);
        let fits = |replicas| sizing.footprint(context, replicas).overhead <= room;
        match sizing.most_replicas(room, context, limit) {
            None => prop_assert!(limit == 0 || !fits(1)),
            Some(replicas) => {
                prop_assert!((1..=limit).contains(&replicas) && fits(replicas));
                prop_assert!(replicas == limit || !fits(replicas + 1));
            }
        }
    }
}

#[test]
fn a_context_without_end_fits_nowhere() {
    let sizing = Sizing {
        mapped_weights: Bytes::ZERO,
        private_weights: Bytes::ZERO,
        weights_source: String::new(),
        fixed: vec![],
        per_replica: vec![],
        growth: vec![growth(1, 147_456, None)],
        evidence: Evidence::Header,
    };
    let endless = load(sizing, 1 << 63, 1);
    let env = machine(&Policy::local_focused(), u64::MAX, u64::MAX);
    let decision = Decision::of(&endless, &Ledger::default(), &env, &[]);
    assert_eq!(decision.need.total_bytes, Bytes::MAX);
    assert_eq!(decision.verdict, Ruling::Refuse);
}

#[test]
fn a_model_of_unknown_size_is_refused_with_that_reason_and_no_numbers() {
    let unknown = Load { sizing: None, model: ModelId::new("new"), ..Load::of_nothing() };
    let env = machine(&Policy::everyday(), 32_768, 30_000);
    let decision = Decision::of(&unknown, &Ledger::default(), &env, &[]);
    assert_eq!((decision.verdict, decision.reason), (Ruling::Refuse, Verdict::WeightsUnknown));
    assert!(decision.sentence().contains("how large new is"), "{}", decision.sentence());
}
