//! A decision that explains itself: what is needed, what there is, who holds it, and what would help.
//!
//! Invariant: every fix was judged by the same function as the request that it is for, and admitted.

mod fixes;

use std::collections::BTreeSet;

use serde::Serialize;

use crate::eviction::{self, Candidate};
use crate::ledger::{
    Accelerator, Ask, Env, Holding, Home, Ledger, ModelId, Outside, Pool, Preflight, ScopeId,
    Verdict,
};
use crate::sizing::{Evidence, Footprint, Sizing, Term};
use crate::units::Bytes;

pub use fixes::{Change, Fix};

/// So many of those who hold memory are told: a body that somebody reads is not longer with a thousand requests.
const MOST_HOLDERS: usize = 32;

/// Size, model and state of what is held.
type Record<'a> = (Bytes, &'a ModelId, &'static str);

/// What a disk gives, where nobody has measured it: less than a fast one, more than a slow one.
const DISK_BYTES_PER_SECOND: f64 = 500e6;

/// A model that somebody wants to load.
#[derive(Debug, Clone)]
pub struct Load {
    /// Whose policy holds.
    pub scope: ScopeId,
    /// The model.
    pub model: ModelId,
    /// What it needs; `None` where nobody knows.
    pub sizing: Option<Sizing>,
    /// Tokens of context of each replica.
    pub context_tokens: u64,
    /// Requests that can run at once.
    pub replicas: u64,
    /// Where the weights will lie.
    pub pool: Pool,
    /// Who frees them.
    pub home: Home,
    /// What the same model would need in another form, best first.
    pub variants: Vec<Variant>,
}

/// The same model in another form.
#[derive(Debug, Clone)]
pub struct Variant {
    /// How it differs.
    pub change: Change,
    /// What it needs.
    pub sizing: Sizing,
}

/// What the machine answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ruling {
    /// Go on.
    Admit,
    /// Go on; it will be read from disk again and again.
    AdmitSlowly,
    /// Not now.
    Wait,
    /// Not like this.
    Refuse,
}

/// How a model lies in memory, where its weights are mapped from a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fit {
    /// All of it has room.
    Fits,
    /// Its weights take room that other files are cached in.
    FitsWithPageCache,
    /// Its weights have less room than they take: parts are read from disk for every token.
    RunsFromDisk,
    /// It has no room.
    TooLarge,
}

/// What is needed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Need {
    /// All of it.
    pub total_bytes: Bytes,
    /// Tensors; `null` where nobody knows.
    pub weights_bytes: Option<Bytes>,
    /// The rest.
    pub overhead_bytes: Bytes,
    /// What the request adds to what is charged already.
    pub incremental_bytes: Bytes,
    /// All of it by purpose.
    pub terms: Vec<Term>,
    /// How well this is founded.
    pub evidence: Option<Evidence>,
}

/// What there is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Have {
    /// The most that models may take together, by the policy.
    pub ceiling_bytes: Bytes,
    /// What models take, all processes together.
    pub resident_bytes: Bytes,
    /// What is promised to loads and requests of this process.
    pub reserved_bytes: Bytes,
    /// What could be taken without taking it from anybody; `null` where nobody knows.
    pub available_bytes: Option<Bytes>,
    /// What is charged and still counts as free.
    pub unseen_bytes: Bytes,
    /// What has to stay free.
    pub emergency_reserve_bytes: Bytes,
    /// What idle models of this process would free.
    pub reclaimable_bytes: Bytes,
    /// What could be admitted at this moment.
    pub room_bytes: Bytes,
    /// Who set the ceiling, in words.
    pub ceiling_by: String,
    /// Which limit leaves the least, in words.
    pub bound_by: String,
    /// What there is on the accelerator that the weights go to, where they go to one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<Accelerator>,
}

/// Somebody who holds memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// The process, in words.
    pub process: String,
    /// The model.
    pub model: String,
    /// How much.
    pub bytes: Bytes,
    /// How far it is.
    pub state: String,
    /// For how long nobody has used it; `null` where somebody does, or nobody knows.
    pub idle_seconds: Option<u64>,
    /// Whether it stays whatever comes.
    pub is_pinned: bool,
}

/// The answer to a request for memory, for the command line, the API, error bodies and the dashboard alike.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Decision {
    /// The model.
    pub model: String,
    /// What the machine answers.
    pub verdict: Ruling,
    /// Why.
    pub reason: Verdict,
    /// How the model would lie in memory.
    pub fit: Fit,
    /// What one sequence would get where weights are read from disk again and again, if a disk gives 500 MB a second.
    pub tokens_per_second: Option<f64>,
    /// Tokens of context of each replica.
    pub context_tokens: u64,
    /// Requests that could run at once.
    pub replicas: u64,
    /// What is needed.
    pub need: Need,
    /// What there is.
    pub have: Have,
    /// Who holds memory, most first; the largest of them.
    pub holders: Vec<Holder>,
    /// What would help, best first; each was judged and admitted.
    pub fixes: Vec<Fix>,
    /// Whether it would be refused although nothing else were loaded.
    pub never_fits: bool,
    /// Whether somebody took the responsibility.
    pub is_forced: bool,
}

impl Load {
    /// Returns a load that needs nothing, for asking what there is.
    pub fn of_nothing() -> Self {
        let sizing = Sizing {
            mapped_weights: Bytes::ZERO,
            private_weights: Bytes::ZERO,
            weights_source: String::new(),
            fixed: Vec::new(),
            per_replica: Vec::new(),
            growth: Vec::new(),
            evidence: Evidence::Header,
        };
        Self {
            scope: ScopeId(0),
            model: ModelId::new(""),
            sizing: Some(sizing),
            context_tokens: 0,
            replicas: 0,
            pool: Pool::Host,
            home: Home::Process,
            variants: Vec::new(),
        }
    }

    /// Returns what is needed.
    pub fn footprint(&self) -> Option<Footprint> {
        self.sizing.as_ref().map(|sizing| sizing.footprint(self.context_tokens, self.replicas))
    }

    /// Returns the question for the ledger.
    pub fn ask(&self) -> Ask {
        let footprint = self.footprint();
        let needs = |footprint: &Footprint| match self.home {
            Home::Process => (footprint.overhead, Bytes::ZERO),
            Home::Child => (Bytes::ZERO, footprint.overhead),
        };
        let (standing, overhead) = footprint.as_ref().map(needs).unwrap_or_default();
        Ask {
            scope: self.scope,
            model: self.model.clone(),
            on: None,
            holding: footprint.as_ref().map(|of| Holding { weights: of.weights, standing }),
            mapped: footprint.as_ref().map_or(Bytes::ZERO, |of| of.mapped),
            pool: self.pool,
            home: self.home,
            overhead,
        }
    }
}

impl Decision {
    /// Judges a load and explains the answer; `idle` are the models of this process that could go.
    pub fn of(load: &Load, ledger: &Ledger, env: &Env, idle: &[Candidate]) -> Self {
        let preflight = ledger.preflight(&load.ask(), env);
        Self::explain(load, &preflight, ledger, env, idle)
    }

    /// Explains an answer that the ledger gave.
    pub fn explain(
        load: &Load,
        preflight: &Preflight,
        ledger: &Ledger,
        env: &Env,
        idle: &[Candidate],
    ) -> Self {
        let footprint = load.footprint();
        let fit = fit(preflight, footprint.as_ref(), env);
        let fixes = if preflight.verdict.admits() {
            Vec::new()
        } else {
            fixes::find(load, ledger, env, idle)
        };
        Self {
            model: preflight.model.as_str().to_owned(),
            verdict: ruling(preflight.verdict),
            reason: preflight.verdict,
            fit,
            tokens_per_second: (fit == Fit::RunsFromDisk)
                .then(|| tokens_per_second(footprint.as_ref())),
            context_tokens: load.context_tokens,
            replicas: load.replicas,
            need: need(preflight, footprint.as_ref()),
            have: have(preflight, env, idle),
            holders: holders(ledger, env, idle, MOST_HOLDERS),
            fixes,
            never_fits: !preflight.verdict.admits() && never_fits(load, env),
            is_forced: false,
        }
    }

    /// Returns the models whose going would make room.
    pub fn unloads(&self) -> &[ModelId] {
        let unload = self.fixes.iter().find_map(|fix| match &fix.change {
            Change::Unload { models } => Some(models.as_slice()),
            _ => None,
        });
        unload.unwrap_or_default()
    }

    /// Returns the answer in one sentence.
    pub fn sentence(&self) -> String {
        let Self { model, need, have, .. } = self;
        let needs = format!("{model} needs {}", need.incremental_bytes);
        if let Some(sentence) = self.on_accelerator() {
            return sentence;
        }
        match self.reason {
            Verdict::Allowed => format!("{needs}, and there is room for {}", have.room_bytes),
            Verdict::RunsFromDisk => {
                let speed = self.tokens_per_second.unwrap_or_default();
                format!("{needs} and runs from disk, at about {speed:.1} tokens per second")
            }
            Verdict::LiveMemoryUnknown => {
                format!("{needs}; how much memory is free could not be read")
            }
            Verdict::DisabledByPolicy => {
                format!("{needs}, and {} leaves nothing for models", have.ceiling_by)
            }
            Verdict::ExceedsConfiguredCeiling => format!(
                "{needs}, and the {} that {} allows leave {}",
                have.ceiling_bytes, have.ceiling_by, have.room_bytes
            ),
            Verdict::InsufficientLiveMemory => {
                let left = have.available_bytes.unwrap_or_default().left_after(have.unseen_bytes);
                let leaves = format!("{needs}, and {} leaves {left}", have.bound_by);
                match have.emergency_reserve_bytes {
                    Bytes::ZERO => leaves,
                    reserve => format!("{leaves}, of which {reserve} have to stay free"),
                }
            }
            Verdict::MemoryPressure => {
                format!("{needs}, and the system is short of memory at this moment")
            }
            Verdict::WeightsUnknown => format!("nobody can tell how large {model} is"),
            Verdict::OthersUnknown => {
                format!("{needs}, and what other processes hold could not be read")
            }
            Verdict::HeldAfterCrashes => format!(
                "loading {model} has taken its process down more than once, so it waits for your word"
            ),
            Verdict::ModelMaintenance => format!("{model} is being changed"),
            Verdict::PendingTeardown => {
                format!("an earlier copy of {model} is still being given back")
            }
        }
    }
}

impl Decision {
    /// Returns the answer in one sentence where an accelerator is the reason for it.
    fn on_accelerator(&self) -> Option<String> {
        let device = self.have.accelerator?;
        let Accelerator { index, incremental, resident, active, unseen, .. } = device;
        let needs = format!("{} needs {incremental} on accelerator {index}", self.model);
        let taken = resident + active;
        match self.reason {
            Verdict::ExceedsConfiguredCeiling if device.is_over() => {
                let total = device.total?;
                Some(format!("{needs}, which has {total}, of which models take {taken}"))
            }
            Verdict::InsufficientLiveMemory if device.is_short() => {
                let free = device.free?.left_after(unseen + active);
                Some(format!("{needs}, where {free} are free"))
            }
            _ => None,
        }
    }
}

/// Tells whether a load would be refused on a machine where nothing else is loaded, too.
fn never_fits(load: &Load, env: &Env) -> bool {
    let alone = Env {
        available: env.total.or(env.available),
        others: Some(Outside::default()),
        is_pressed: false,
        held: BTreeSet::new(),
        devices_free: Vec::new(),
        ..env.clone()
    };
    !Ledger::default().preflight(&load.ask(), &alone).verdict.admits()
}

fn ruling(verdict: Verdict) -> Ruling {
    if verdict == Verdict::RunsFromDisk {
        Ruling::AdmitSlowly
    } else if verdict.admits() {
        Ruling::Admit
    } else if verdict.may_pass() && verdict != Verdict::InsufficientLiveMemory {
        Ruling::Wait
    } else {
        Ruling::Refuse
    }
}

/// Tells where the parts would lie, by what is free beside the emergency reserve.
fn fit(preflight: &Preflight, footprint: Option<&Footprint>, env: &Env) -> Fit {
    let Some(footprint) = footprint else { return Fit::TooLarge };
    let Some(available) = env.available else { return Fit::Fits };
    let free = available.left_after(preflight.unseen).left_after(preflight.emergency_reserve);
    let private = footprint.total().left_after(footprint.mapped);
    if private > free {
        Fit::TooLarge
    } else if footprint.total() > free {
        Fit::RunsFromDisk
    } else if env.uncached.is_some_and(|uncached| footprint.total() > uncached) {
        Fit::FitsWithPageCache
    } else {
        Fit::Fits
    }
}

/// Estimates the speed of a model whose mapped weights have too little room: a system that drops what was used longest ago
/// has dropped each part of them when it is wanted again.
fn tokens_per_second(footprint: Option<&Footprint>) -> f64 {
    let read = footprint.map_or(Bytes::ZERO, |of| of.mapped);
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    let read_bytes = read.get().max(1) as f64;
    DISK_BYTES_PER_SECOND / read_bytes
}

fn need(preflight: &Preflight, footprint: Option<&Footprint>) -> Need {
    let of = |part: fn(&Footprint) -> Bytes| footprint.map_or(Bytes::ZERO, part);
    Need {
        total_bytes: of(Footprint::total),
        weights_bytes: footprint.map(|footprint| footprint.weights),
        overhead_bytes: of(|footprint| footprint.overhead),
        incremental_bytes: preflight.incremental,
        terms: footprint.map(|footprint| footprint.terms.clone()).unwrap_or_default(),
        evidence: footprint.map(|footprint| footprint.evidence),
    }
}

fn have(preflight: &Preflight, env: &Env, idle: &[Candidate]) -> Have {
    Have {
        ceiling_bytes: preflight.ceiling,
        resident_bytes: preflight.resident,
        reserved_bytes: preflight.active,
        available_bytes: preflight.available,
        unseen_bytes: preflight.unseen,
        emergency_reserve_bytes: preflight.emergency_reserve,
        reclaimable_bytes: eviction::reclaimable(idle),
        room_bytes: preflight.room(),
        ceiling_by: env.ceiling_by.clone(),
        bound_by: env.bound_by.clone(),
        accelerator: preflight.accelerator,
    }
}

/// Returns who holds memory in this process and outside of it, the `most` largest first.
pub(crate) fn holders(ledger: &Ledger, env: &Env, known: &[Candidate], most: usize) -> Vec<Holder> {
    let there = ledger.allocations().map(|(_, held)| (held.host(), &held.model, held.phase.name()));
    let promised = ledger.charges().map(|(_, held)| (held.host(), &held.model, "reserved"));
    let promised = promised.filter(|(bytes, ..)| *bytes > Bytes::ZERO);
    let own = largest(there.chain(promised), most).into_iter().map(|(bytes, model, state)| {
        let known = known.iter().find(|candidate| candidate.model == *model);
        let known = known.filter(|_| state != "reserved");
        Holder {
            process: "this process".to_owned(),
            model: ledger.resolve(model).as_str().to_owned(),
            bytes,
            state: state.to_owned(),
            idle_seconds: known.and_then(|candidate| candidate.idle_seconds),
            is_pinned: known.is_some_and(|candidate| candidate.is_pinned),
        }
    });
    let elsewhere = env.others.iter().flat_map(|others| others.holders.iter().cloned());
    let mut holders: Vec<Holder> = own.chain(elsewhere).collect();
    holders.sort_by(|one, other| other.bytes.cmp(&one.bytes).then(one.model.cmp(&other.model)));
    holders.truncate(most);
    holders
}

/// Returns the largest of some records, in order; of equals the first.
fn largest<'a>(records: impl Iterator<Item = Record<'a>>, most: usize) -> Vec<Record<'a>> {
    let mut kept: Vec<Record<'a>> = Vec::new();
    for record in records {
        // With many requests nearly all are turned away here, which is why nothing is sorted.
        if kept.len() == most && kept.last().is_none_or(|least| least.0 >= record.0) {
            continue;
        }
        kept.insert(kept.partition_point(|held| held.0 >= record.0), record);
        kept.truncate(most);
    }
    kept
}
