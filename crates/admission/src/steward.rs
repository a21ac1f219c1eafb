//! The memory of this machine as one process sees it: its policy, its readings, its table and its journal in one place.
//!
//! Invariant: whoever shows, explains or decides asks here, so that all of them say the same.

use std::time::Duration;

use serde::Serialize;

use crate::concierge;
use crate::decision::{self, Decision, Holder, Load};
use crate::eviction::Candidate;
use crate::handles::{Admission, Snapshot, Surroundings};
use crate::ledger::{Env, ModelId, Outside, ScopeId};
use crate::machine;
use crate::policy::{EffectiveBudget, Policy};
use crate::policy_file::{self, Loaded, WatchedPolicy};
use crate::probe::{self, Bound, Reading};
use crate::surroundings::{self, Live, Settings};
use crate::units::Bytes;

/// Longest wait of an onlooker for processes that decide.
const SURVEY_LIMIT: Duration = Duration::from_secs(2);

/// The one for a process.
pub struct Steward {
    settings: Settings,
    admission: Admission,
    policy: WatchedPolicy,
}

/// How the machine's memory is used, for people.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Memory {
    /// All of it, or of what this process may take of it; `null` where nobody knows.
    pub total_bytes: Option<Bytes>,
    /// What could be taken without taking it from anybody; `null` where nobody knows.
    pub available_bytes: Option<Bytes>,
    /// Which limit leaves the least, in words.
    pub bound_by: String,
    /// The most that models may take together.
    pub ceiling_bytes: Bytes,
    /// Who set it, in words.
    pub ceiling_by: String,
    /// What has to stay free.
    pub emergency_reserve_bytes: Bytes,
    /// What is charged to models, all processes together.
    pub charged_bytes: Bytes,
    /// The part of it that still counts as available.
    pub unseen_bytes: Bytes,
    /// What could be admitted at this moment.
    pub room_bytes: Bytes,
    /// Whether the system is so short of memory that nothing new is loaded.
    pub is_pressed: bool,
    /// Every limit that is set and could be read.
    pub bounds: Vec<Bound>,
    /// Who holds memory, most first.
    pub holders: Vec<Holder>,
    /// What could not be read, in words.
    pub warnings: Vec<String>,
}

impl Steward {
    /// Begins to look after the memory for this process. What cannot be read or joined is told in the log, and the
    /// stricter of what is left holds.
    pub fn open(settings: Settings) -> Self {
        let admission = Admission::new(Box::new(Live::open(settings.clone())), ScopeId(0));
        Self::new(settings, admission)
    }

    /// Looks after memory that a given table decides about.
    pub fn new(settings: Settings, admission: Admission) -> Self {
        let policy = WatchedPolicy::new(settings.state_root.clone());
        Self { settings, admission, policy }
    }

    /// Looks at the memory without joining the processes that share it: for whoever loads nothing. What is asked through
    /// it is told to nobody.
    pub fn look_on(settings: Settings) -> Self {
        let policy = WatchedPolicy::new(settings.state_root.clone());
        let onlooker = Onlooker {
            settings: settings.clone(),
            policy: WatchedPolicy::new(settings.state_root.clone()),
        };
        Self { settings, admission: Admission::new(Box::new(onlooker), ScopeId(0)), policy }
    }

    /// Returns the table.
    pub fn admission(&self) -> &Admission {
        &self.admission
    }

    /// Returns what it was opened with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the policy in force.
    pub fn policy(&self) -> Loaded {
        self.policy.current()
    }

    /// Makes a policy the one that holds from the next decision on.
    pub fn set_policy(&self, policy: &Policy) -> Result<(), policy_file::Error> {
        concierge::save_user_choice(&self.settings.state_root, policy)
    }

    /// Reads what is left now.
    pub fn reading(&self) -> Reading {
        probe::read(&self.settings.roots)
    }

    /// Returns what a policy would allow, on this machine where no other size is given.
    pub fn preview(&self, policy: &Policy, total_memory_mb: Option<u64>) -> EffectiveBudget {
        let own = || {
            let env = surroundings::env(policy, &self.reading(), None);
            env.total.map_or(0, Bytes::floor_mib)
        };
        policy.effective_budget(total_memory_mb.unwrap_or_else(own))
    }

    /// Judges a load without promising anything, and explains the answer; `idle` are the models of this process that
    /// could go.
    pub fn explain(&self, load: &Load, idle: &[Candidate]) -> Decision {
        self.admission.inspect(|ledger, env| Decision::of(load, ledger, env, idle))
    }

    /// Returns how the memory is used; `known` says more about the models of this process.
    pub fn memory(&self, known: &[Candidate]) -> Memory {
        let Reading { bounds, warnings, .. } = self.reading();
        self.admission.inspect(|ledger, env| {
            let nothing = Load::of_nothing();
            let decision = Decision::of(&nothing, ledger, env, known);
            let have = decision.have;
            Memory {
                total_bytes: env.total,
                available_bytes: env.available,
                bound_by: env.bound_by.clone(),
                ceiling_bytes: have.ceiling_bytes,
                ceiling_by: have.ceiling_by,
                emergency_reserve_bytes: have.emergency_reserve_bytes,
                charged_bytes: have.resident_bytes + have.reserved_bytes,
                unseen_bytes: have.unseen_bytes,
                room_bytes: have.room_bytes,
                is_pressed: env.is_pressed,
                bounds: bounds.clone(),
                holders: decision::holders(ledger, env, known, usize::MAX),
                warnings: warnings.clone(),
            }
        })
    }
}

/// Reads all that decisions depend on, and is seen by nobody.
struct Onlooker {
    settings: Settings,
    policy: WatchedPolicy,
}

impl Surroundings for Onlooker {
    fn decide(&self, decide: &mut dyn FnMut(&Env) -> Snapshot) -> bool {
        let Settings { leases, roots, limit, now_ms, .. } = &self.settings;
        let policy = self.policy.current().policy;
        let others = match machine::survey(leases, roots, SURVEY_LIMIT) {
            Ok(others) => Some(surroundings::outside(&others, now_ms())),
            Err(machine::Error::Busy { .. }) => None,
            // As for a process that loads: what cannot be joined is done without, and said.
            Err(error) => {
                log::warn!("what other processes hold is not counted: {error}");
                Some(Outside::default())
            }
        };
        let reading = probe::read(roots);
        let is_pressed = surroundings::gate(policy.profile).observe(reading.pressure.counted());
        let env = surroundings::env(&policy, &reading, *limit);
        decide(&Env { others, is_pressed, ..env });
        true
    }

    fn tell(&self, _snapshot: &dyn Fn() -> Snapshot) {}

    fn used(&self, _model: &ModelId, _is_pinned: bool) {}
}
