//! Real geometries on machines of ten budgets: whatever is refused, everything that is proposed instead is admitted.

mod follow;

use std::collections::BTreeMap;

use follow::{follow, machine};
use serde_json::Value;
use toko_admission::decision::{Change, Decision, Load, Ruling, Variant};
use toko_admission::estimate::{Backend, ForeignModel, Scoring};
use toko_admission::eviction::Candidate;
use toko_admission::geometry::gguf::{self, Field};
use toko_admission::geometry::reference::ReferenceGeometry;
use toko_admission::geometry::{KvElement, Shape, hf};
use toko_admission::ledger::{Env, Home, Ledger, ModelId, Pool, ScopeId};
use toko_admission::policy::Policy;
use toko_admission::sizing::{Evidence, Kind, Sizing, Term};
use toko_admission::units::Bytes;

const WIDEST_FIRST: [KvElement; 5] =
    [KvElement::F32, KvElement::F16, KvElement::Q8_0, KvElement::Q5_1, KvElement::Q4_0];

/// A geometry and, where there is a `config.json`, what engines that are not ours make of it.
struct Model {
    id: String,
    shape: Shape,
    reference: Option<ReferenceGeometry>,
}

fn field(value: &Value) -> Field {
    match value {
        Value::String(text) => Field::Text(text.clone()),
        Value::Bool(flag) => Field::Flag(*flag),
        Value::Number(number) => {
            number.as_u64().map_or(Field::Real(number.as_f64().unwrap_or(f64::NAN)), Field::Count)
        }
        Value::Array(list) if list.iter().all(Value::is_u64) => {
            Field::Counts(list.iter().filter_map(Value::as_u64).collect())
        }
        Value::Array(list) => Field::Flags(list.iter().filter_map(Value::as_bool).collect()),
        _ => Field::Other,
    }
}

fn models() -> Vec<Model> {
    let golden = toko_fixtures::golden_json("geometry.json");
    let id = |entry: &Value| {
        entry["id"].as_str().expect("golden and made-up values are usable").to_owned()
    };
    let of_config = |entry: &Value| {
        let config = entry["config"].to_string();
        let reference = ReferenceGeometry::from_config(&config);
        Model {
            id: id(entry),
            shape: hf::read(&config).expect("golden and made-up values are usable"),
            reference,
        }
    };
    let of_file = |entry: &Value| {
        let metadata = &entry["metadata"];
        let shape = gguf::read(&|key| metadata.get(key).map(field))
            .expect("golden and made-up values are usable");
        Model { id: id(entry), shape, reference: None }
    };
    let configs = golden["models"]
        .as_array()
        .expect("golden and made-up values are usable")
        .iter()
        .map(of_config);
    let files = golden["gguf"]
        .as_array()
        .expect("golden and made-up values are usable")
        .iter()
        .map(of_file);
    let models: Vec<Model> = configs.chain(files).collect();
    assert_eq!(models.len(), 66 + 6);
    models
}

/// Half a byte for each of as many weights as a dense decoder of this width has.
fn weights(shape: &Shape) -> Bytes {
    let (hidden, vocab) = (shape.hidden.unwrap_or(4096), shape.vocab.unwrap_or(128_000));
    let layer = Bytes::new(12 * hidden * hidden / 2);
    layer * shape.layers.len() as u64 + Bytes::new(hidden * vocab)
}

/// A sizing as our own engine makes it.
fn native(shape: &Shape, element: KvElement) -> Sizing {
    let term = |kind, bytes| Term { kind, bytes, source: "geometry".to_owned() };
    let (hidden, vocab) = (shape.hidden.unwrap_or(4096), shape.vocab.unwrap_or(128_000));
    Sizing {
        mapped_weights: weights(shape),
        private_weights: Bytes::ZERO,
        weights_source: "four bits a weight".to_owned(),
        fixed: vec![term(Kind::Tokenizer, Bytes::new(vocab * 100))],
        per_replica: vec![
            term(Kind::RecurrentState, shape.recurrent_bytes(KvElement::F32)),
            term(Kind::Logits, Bytes::new(vocab * 4)),
            term(Kind::Scratch, Bytes::new(hidden * 512 * 20)),
        ],
        growth: shape.growth(element, 256),
        evidence: Evidence::Header,
    }
}

fn foreign(model: &Model) -> Sizing {
    let foreign = ForeignModel {
        parameter_text: "",
        ram_mb: None,
        size_mb: Some(weights(&model.shape).ceil_mib()),
        measured_weights_mb: None,
        geometry: model.reference,
        backend: Backend::Cpu,
        scoring: Scoring::LastPosition,
    };
    foreign.sizing().expect("golden and made-up values are usable")
}

fn load(model: &str, sizing: Sizing, variants: Vec<Variant>) -> Load {
    Load {
        scope: ScopeId(0),
        model: ModelId::new(model),
        sizing: Some(sizing),
        context_tokens: 131_072,
        replicas: 4,
        pool: Pool::Host,
        home: Home::Process,
        variants,
    }
}

/// The model in both kinds of engine; ours knows smaller keys and values.
fn loads(model: &Model) -> [Load; 2] {
    let smaller = [KvElement::Q8_0, KvElement::Q4_0].map(|element| Variant {
        change: Change::KvType { kv_type: element.name().to_owned() },
        sizing: native(&model.shape, element),
    });
    let ours = load(&model.id, native(&model.shape, KvElement::F16), smaller.to_vec());
    [ours, load(&model.id, foreign(model), Vec::new())]
}

/// The memory of ten machines, with what is free of it, the policy, and a limit beside the policy.
fn budgets() -> Vec<(u64, Env)> {
    let half_of_everything = Policy::custom_gb(12.5).expect("golden and made-up values are usable");
    let everyday = Policy::everyday;
    let raised = Policy::local_focused;
    let budgets = [
        (4096, 3000, everyday(), None),
        (8192, 7000, everyday(), None),
        (8192, 7000, raised(), None),
        (16_384, 12_000, everyday(), Some(3000)),
        (16_384, 16_000, raised(), None),
        (24_576, 9000, half_of_everything, None),
        (32_768, 30_000, everyday(), None),
        (65_536, 20_000, raised(), None),
        (65_536, 60_000, everyday(), Some(40_000)),
        (262_144, 250_000, raised(), None),
    ];
    let budget = |(total_mb, free_mb, policy, limit_mb): (u64, u64, Policy, Option<u64>)| {
        let mut env = machine(&policy, total_mb, free_mb);
        if let Some(limit) = limit_mb.map(Bytes::from_mib) {
            (env.limit, env.policy_ceiling) = (Some(limit), Some(env.ceiling));
            env.ceiling = env.ceiling.min(limit);
        }
        (total_mb, env)
    };
    budgets.into_iter().map(budget).collect()
}

/// A table with two models of 700 MiB, one of them idle.
fn table() -> (Ledger, Vec<Candidate>) {
    let (mut ledger, mut known) = (Ledger::default(), Vec::new());
    let roomy = Env { ceiling: Bytes::MAX, ..machine(&Policy::everyday(), 1 << 20, 1 << 20) };
    for (name, idle_seconds) in [("idle", Some(60)), ("busy", None)] {
        let sizing = Sizing {
            mapped_weights: Bytes::from_mib(700),
            private_weights: Bytes::ZERO,
            weights_source: String::new(),
            fixed: Vec::new(),
            per_replica: Vec::new(),
            growth: Vec::new(),
            evidence: Evidence::Header,
        };
        let (charge, _) = ledger
            .reserve(&load(name, sizing, Vec::new()).ask(), &roomy)
            .expect("golden and made-up values are usable");
        let allocation = ledger.launch(charge);
        ledger.publish(allocation, Bytes::ZERO);
        ledger.release(charge);
        let model = ModelId::new(name);
        let (frees, reload_ms) = (Bytes::from_mib(700), 900);
        known.push(Candidate { model, frees, reload_ms, idle_seconds, is_pinned: false });
    }
    (ledger, known)
}

/// Tells, by trying, whether one sequence or fewer at once of the same length or a shorter one would be let in.
fn would_anything_smaller_fit(load: &Load, ledger: &Ledger, env: &Env) -> bool {
    let contexts = [131_072, 65_536, 32_768, 16_384, 8192, 4096, 2048, 1024, 512, 256];
    let all = contexts.iter().flat_map(|context| (1..=4).map(move |replicas| (*context, replicas)));
    all.into_iter().any(|(context_tokens, replicas)| {
        let smaller = Load { context_tokens, replicas, ..load.clone() };
        ledger.preflight(&smaller.ask(), env).verdict.admits()
    })
}

fn kind(change: &Change) -> &'static str {
    match change {
        Change::Context { .. } => "context",
        Change::Replicas { .. } => "replicas",
        Change::ContextAndReplicas { .. } => "context and replicas",
        Change::KvType { .. } => "type",
        Change::Weights { .. } => "weights",
        Change::Unload { .. } => "unload",
        Change::Limit { .. } => "limit",
        Change::Policy { .. } => "policy",
    }
}

#[test]
fn over_all_geometries_and_ten_budgets_every_proposal_is_admitted() {
    let (ledger, known) = table();
    let (mut refused, mut kinds) = (0, BTreeMap::new());
    for model in models() {
        for (total_mb, env) in budgets() {
            for load in loads(&model) {
                let id = &model.id;
                let decision = Decision::of(&load, &ledger, &env, &known);
                if decision.verdict == Ruling::Admit {
                    continue;
                }
                refused += 1;
                for fix in &decision.fixes {
                    let verdict = follow(&load, &fix.change, &ledger, &env, total_mb);
                    assert!(verdict.admits(), "{id} on {total_mb}: {fix:?} leads to {verdict:?}");
                    *kinds.entry(kind(&fix.change)).or_insert(0) += 1;
                }
                let fits = would_anything_smaller_fit(&load, &ledger, &env);
                assert!(
                    !fits || !decision.fixes.is_empty(),
                    "{id} on {total_mb}: nothing proposed"
                );
            }
        }
    }
    assert!(refused > 1000, "{refused} refused");
    let enough = kinds.len() == 7 && kinds.values().all(|count| *count >= 3);
    assert!(enough, "not all kinds of proposals were tried: {kinds:?}");
}

#[test]
fn over_all_geometries_more_context_more_replicas_and_wider_numbers_never_cost_less() {
    const CONTEXTS: [u64; 9] = [0, 1, 255, 256, 4095, 4096, 32_768, 131_072, 1 << 63];
    for model in models() {
        let native = WIDEST_FIRST.map(|element| native(&model.shape, element));
        for sizing in native.iter().chain([&foreign(&model)]) {
            let total = |context, replicas| sizing.footprint(context, replicas).total();
            for pair in CONTEXTS.windows(2) {
                for replicas in 1..5 {
                    let id = &model.id;
                    assert!(total(pair[0], replicas) <= total(pair[1], replicas), "{id}: {pair:?}");
                    let more = total(pair[1], replicas + 1);
                    assert!(total(pair[1], replicas) <= more, "{id}: {replicas}");
                }
            }
        }
        for pair in native.windows(2) {
            for context in CONTEXTS {
                let [wide, narrow] =
                    [&pair[0], &pair[1]].map(|of| of.footprint(context, 2).total());
                assert!(wide >= narrow, "{} at {context}", model.id);
            }
        }
    }
}
