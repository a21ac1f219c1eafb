//! How long the decision itself takes, beside 100 resident models and 1,000 reservations.
//!
//! `cargo bench -p toko-admission`. Readings and files are no part of it. The last column sets each figure against one
//! plain walk over as many records in the same run, so that figures of different machines can be compared.
#![expect(clippy::print_stdout, reason = "a benchmark reports to the person who started it")]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use toko_admission::decision::{Decision, Load};
use toko_admission::ledger::{
    AllocationId, Ask, Env, Home, Ledger, ModelId, Outside, Pool, ScopeId,
};
use toko_admission::sizing::{Evidence, Growth, Kind, Sizing, Term};
use toko_admission::units::Bytes;

const RESIDENTS: usize = 100;
const RESERVATIONS: usize = 1000;
/// Short, so that whoever else uses the processor spoils few of the times of which the median is told.
const ROUNDS: u32 = 20;
const TIMES: usize = 501;

fn main() {
    let env = env();
    let (mut ledger, first) = crowded(&env);
    println!("{:34} {:>9} {:>8}", "", "µs", "walks");
    let walk = walk();
    let tell = |what: &str, us: f64| println!("{what:34} {us:9.2} {:8.2}", us / walk);
    tell("a walk over 1,100 sizes", walk);

    let (cold, warm) = (load().ask(), Ask { on: Some(first), ..load().ask() });
    tell("preflight of a load", median(|| ledger.preflight(black_box(&cold), &env)));
    tell("preflight of a request", median(|| ledger.preflight(black_box(&warm), &env)));
    let reserve = median(|| {
        let (charge, _) = ledger.reserve(black_box(&cold), &env).expect("there is room");
        ledger.release(charge);
    });
    tell("reserve and release", reserve);
    let load = load();
    tell("decision with its explanation", median(|| Decision::of(&load, &ledger, &env, &[])));
    let tight = Env { ceiling: ledger.host() + Bytes::from_mib(4500), ..env.clone() };
    let refused = || Decision::of(&load, &ledger, &tight, &[]);
    assert!(!refused().fixes.is_empty(), "it is refused, and something would help");
    tell("refusal with its proposals", median(refused));

    let names: Vec<ModelId> = (0..RESIDENTS).map(|index| model(index, "other")).collect();
    for (index, other) in names.iter().enumerate() {
        ledger.alias(&model(index, "model"), std::slice::from_ref(other));
    }
    tell("preflight, every model two names", median(|| ledger.preflight(black_box(&cold), &env)));
}

/// Returns the median time of a step, in microseconds.
fn median<R>(mut step: impl FnMut() -> R) -> f64 {
    let mut times: Vec<f64> = (0..TIMES)
        .map(|_| {
            let begin = Instant::now();
            for _ in 0..ROUNDS {
                black_box(step());
            }
            begin.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[TIMES / 2]
}

fn walk() -> f64 {
    let records = RESIDENTS + RESERVATIONS;
    let sizes: BTreeMap<usize, Bytes> = (0..records).map(|id| (id, Bytes::from_mib(1))).collect();
    median(|| black_box(&sizes).values().copied().sum::<Bytes>())
}

fn model(index: usize, kind: &str) -> ModelId {
    ModelId::new(format!("hf.co/some-organisation/{kind}-{index:04}:q4_k_m"))
}

/// Fills a table; returns the first of its residents.
fn crowded(env: &Env) -> (Ledger, AllocationId) {
    let mut ledger = Ledger::default();
    let mut residents = Vec::new();
    for index in 0..RESIDENTS {
        let ask = Ask { model: model(index, "model"), ..load().ask() };
        let (charge, _) = ledger.reserve(&ask, env).expect("there is room");
        let allocation = ledger.launch(charge);
        ledger.publish(allocation, Bytes::ZERO);
        ledger.release(charge);
        residents.push((allocation, ask));
    }
    for index in 0..RESERVATIONS {
        let (allocation, ask) = &residents[index % RESIDENTS];
        let ask = Ask { on: Some(*allocation), overhead: Bytes::from_mib(64), ..ask.clone() };
        ledger.reserve(&ask, env).expect("there is room");
    }
    let first = residents[0].0;
    (ledger, first)
}

fn env() -> Env {
    Env {
        ceiling: Bytes::from_mib(1 << 40),
        emergency_reserve: Bytes::from_mib(4096),
        available: Some(Bytes::from_mib(1 << 41)),
        others: Some(Outside::default()),
        total: Some(Bytes::from_mib(1 << 42)),
        ceiling_by: "the policy everyday".to_owned(),
        bound_by: "the machine's memory".to_owned(),
        ..Env::default()
    }
}

/// A model of 4 GiB with four replicas.
fn load() -> Load {
    let term = |kind, mib| Term { kind, bytes: Bytes::from_mib(mib), source: "header".to_owned() };
    let sizing = Sizing {
        mapped_weights: Bytes::from_mib(4000),
        private_weights: Bytes::from_mib(96),
        weights_source: "header".to_owned(),
        fixed: vec![term(Kind::Tokenizer, 30), term(Kind::Runtime, 20)],
        per_replica: vec![term(Kind::Scratch, 60), term(Kind::Logits, 2)],
        growth: vec![Growth {
            kind: Kind::KvCache,
            step_tokens: 256,
            step_bytes: Bytes::from_mib(36),
            window_tokens: None,
            source: "header".to_owned(),
        }],
        evidence: Evidence::Header,
    };
    Load {
        scope: ScopeId(0),
        model: model(RESIDENTS, "model"),
        sizing: Some(sizing),
        context_tokens: 8192,
        replicas: 4,
        pool: Pool::Host,
        home: Home::Process,
        variants: Vec::new(),
    }
}
