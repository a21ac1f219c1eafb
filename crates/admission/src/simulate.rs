//! What would have happened: replays arrivals on a machine that does not exist, with a clock that nobody waits for.
//!
//! Invariant: the same arrivals on the same machine have the same outcome; every decision is the ledger's own.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::decision::Load;
use crate::eviction::{self, Candidate};
use crate::ledger::{
    Allocation, AllocationId, Env, Home, Ledger, ModelId, Outside, Pool, ScopeId, Verdict,
};
use crate::policy::Policy;
use crate::sizing::Sizing;
use crate::units::Bytes;

/// The machine that is tried.
#[derive(Debug, Clone)]
pub struct Trial {
    /// All of its memory.
    pub total: Bytes,
    /// What everything that is no model takes of it.
    pub used_elsewhere: Bytes,
    /// How much of it models may take.
    pub policy: Policy,
}

/// Somebody who wants a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// When, in milliseconds from the beginning.
    pub at_ms: u64,
    /// Which model.
    pub model: String,
    /// What the model needs.
    pub sizing: Sizing,
    /// Tokens of context of each replica.
    pub context_tokens: u64,
    /// Requests that can run at once.
    pub replicas: u64,
    /// How long the request runs.
    pub runs_ms: u64,
    /// How long the model takes to load.
    pub reload_ms: u64,
    /// For how long the model stays when nobody uses it.
    pub keep_alive_ms: u64,
}

/// What came of one arrival.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// The model was there.
    Warm,
    /// The model was loaded.
    Loaded {
        /// Who had to go for it.
        evicted: Vec<ModelId>,
    },
    /// It was not let in.
    Refused {
        /// Why.
        reason: Verdict,
    },
}

/// What came of all arrivals.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// One outcome for each arrival, in their order.
    pub outcomes: Vec<Outcome>,
    /// The most that was charged at any moment.
    pub peak_bytes: Bytes,
    /// The most that the policy allowed.
    pub ceiling_bytes: Bytes,
}

struct Resident {
    allocation: AllocationId,
    runs_until_ms: u64,
    keep_alive_ms: u64,
    reload_ms: u64,
}

/// A run of the trial.
struct Run {
    ledger: Ledger,
    env: Env,
    free: Bytes,
    residents: BTreeMap<ModelId, Resident>,
    peak: Bytes,
}

/// Replays arrivals in the order of their times.
pub fn replay(arrivals: &[Arrival], trial: &Trial) -> Report {
    let budget = trial.policy.effective_budget(trial.total.floor_mib());
    let ceiling = Bytes::from_mib(budget.effective_new_load_ceiling_mb);
    let env = Env {
        ceiling,
        emergency_reserve: Bytes::from_mib(budget.emergency_reserve_mb),
        others: Some(Outside::default()),
        total: Some(trial.total),
        ..Env::default()
    };
    let free = trial.total.left_after(trial.used_elsewhere);
    let (residents, peak) = (BTreeMap::new(), Bytes::ZERO);
    let mut run = Run { ledger: Ledger::default(), env, free, residents, peak };
    let mut order: Vec<usize> = (0..arrivals.len()).collect();
    order.sort_by_key(|index| arrivals[*index].at_ms);
    let mut outcomes = vec![Outcome::Warm; arrivals.len()];
    for index in order {
        outcomes[index] = run.arrive(&arrivals[index]);
        run.peak = run.peak.max(run.ledger.host());
    }
    Report { outcomes, peak_bytes: run.peak, ceiling_bytes: ceiling }
}

impl Run {
    fn arrive(&mut self, arrival: &Arrival) -> Outcome {
        self.expire(arrival.at_ms);
        let model = ModelId::new(&*arrival.model);
        let until = arrival.at_ms.saturating_add(arrival.runs_ms);
        if let Some(resident) = self.residents.get_mut(&model) {
            resident.runs_until_ms = resident.runs_until_ms.max(until);
            return Outcome::Warm;
        }
        let load = Load {
            scope: ScopeId(0),
            model: model.clone(),
            sizing: Some(arrival.sizing.clone()),
            context_tokens: arrival.context_tokens,
            replicas: arrival.replicas,
            pool: Pool::Host,
            home: Home::Process,
            variants: Vec::new(),
        };
        let evicted = self.make_room(&load, arrival.at_ms);
        let env = self.env();
        match self.ledger.reserve(&load.ask(), &env) {
            Err(refusal) => Outcome::Refused { reason: refusal.verdict },
            Ok((charge, _)) => {
                let allocation = self.ledger.launch(charge);
                self.ledger.publish(allocation, Bytes::ZERO);
                self.ledger.release(charge);
                let resident = Resident {
                    allocation,
                    runs_until_ms: until,
                    keep_alive_ms: arrival.keep_alive_ms,
                    reload_ms: arrival.reload_ms,
                };
                self.residents.insert(model, resident);
                Outcome::Loaded { evicted }
            }
        }
    }

    /// Returns the numbers of the moment; nothing that is charged shows in what is free.
    fn env(&self) -> Env {
        Env { available: Some(self.free), ..self.env.clone() }
    }

    /// Lets go who was idle for longer than it is kept.
    fn expire(&mut self, now_ms: u64) {
        let expired: BTreeSet<ModelId> = self
            .residents
            .iter()
            .filter(|(_, held)| held.runs_until_ms.saturating_add(held.keep_alive_ms) <= now_ms)
            .map(|(model, _)| model.clone())
            .collect();
        for model in expired {
            self.evict(&model);
        }
    }

    fn make_room(&mut self, load: &Load, now_ms: u64) -> Vec<ModelId> {
        let preflight = self.ledger.preflight(&load.ask(), &self.env());
        if preflight.verdict.admits() {
            return Vec::new();
        }
        let candidates: Vec<Candidate> = self
            .residents
            .iter()
            .map(|(model, held)| Candidate {
                model: model.clone(),
                frees: self
                    .ledger
                    .allocation(held.allocation)
                    .map_or(Bytes::ZERO, Allocation::host),
                reload_ms: held.reload_ms,
                idle_seconds: now_ms.checked_sub(held.runs_until_ms).map(|idle| idle / 1000),
                is_pinned: false,
            })
            .collect();
        let shortfall = preflight.incremental.left_after(preflight.room());
        let chosen = eviction::choose(&candidates, shortfall).unwrap_or_default();
        for model in &chosen {
            self.evict(model);
        }
        chosen
    }

    fn evict(&mut self, model: &ModelId) {
        if let Some(resident) = self.residents.remove(model) {
            self.ledger.exit(resident.allocation);
        }
    }
}
