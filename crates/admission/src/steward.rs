//! The memory of this machine as one process sees it: its policy, its readings, its table and its journal in one place.
//!
//! Invariant: whoever shows, explains or decides asks here, so that all of them say the same.

mod notes;

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::concierge;
use crate::decision::{self, Decision, Holder, Load};
use crate::eviction::Candidate;
use crate::handles::{Admission, Snapshot, Surroundings};
use crate::history::Key;
use crate::journal;
use crate::journal::event::{Event, What};
use crate::journal::past::{Crash, Past};
use crate::ledger::{Env, Ledger, ModelId, Outside, ScopeId};
use crate::machine;
use crate::policy::{EffectiveBudget, Evaluation, Policy};
use crate::policy_file::{self, Loaded, WatchedPolicy};
use crate::probe::devices::{self, Device, Devices, NoDevices};
use crate::probe::{self, Bound, Reading};
use crate::surroundings::{self, Live, Settings};
use crate::units::Bytes;

pub(crate) use notes::Notes;

/// Longest wait of an onlooker for processes that decide.
const SURVEY_LIMIT: Duration = Duration::from_secs(2);

/// The one for a process.
pub struct Steward {
    settings: Settings,
    admission: Admission,
    policy: WatchedPolicy,
    notes: Arc<Notes>,
    devices: Arc<dyn Devices>,
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
    /// The accelerators, where there are any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub accelerators: Vec<AcceleratorMemory>,
    /// What could not be read, in words.
    pub warnings: Vec<String>,
}

/// How the memory of an accelerator is used, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AcceleratorMemory {
    /// What it is called.
    pub name: String,
    /// All of it; `null` where nobody knows.
    pub total_bytes: Option<Bytes>,
    /// What nobody uses of it; `null` where nobody knows.
    pub free_bytes: Option<Bytes>,
    /// What is charged to models of this process.
    pub charged_bytes: Bytes,
}

impl Steward {
    /// Begins to look after the memory for this process. What cannot be read or joined is told in the log, and the
    /// stricter of what is left holds.
    pub fn open(settings: Settings) -> Self {
        Self::open_with_devices(settings, Arc::from(devices::system()))
    }

    /// Begins to look after the memory on a machine with given accelerators.
    pub fn open_with_devices(settings: Settings, devices: Arc<dyn Devices>) -> Self {
        let notes = Arc::new(Notes::open(&settings));
        let live = Live::open(settings.clone(), Arc::clone(&notes), Arc::clone(&devices));
        Self::with(settings, Admission::new(Box::new(live), ScopeId(0)), notes, devices)
    }

    /// Looks after memory that a given table decides about.
    pub fn new(settings: Settings, admission: Admission) -> Self {
        let notes = Arc::new(Notes::read(&settings));
        Self::with(settings, admission, notes, Arc::new(NoDevices))
    }

    fn with(
        settings: Settings,
        admission: Admission,
        notes: Arc<Notes>,
        devices: Arc<dyn Devices>,
    ) -> Self {
        let policy = WatchedPolicy::new(settings.state_root.clone());
        Self { settings, admission, policy, notes, devices }
    }

    /// Looks at the memory without joining the processes that share it: for whoever loads nothing. What is asked through
    /// it is told to nobody.
    pub fn look_on(settings: Settings) -> Self {
        let notes = Arc::new(Notes::read(&settings));
        let devices: Arc<dyn Devices> = Arc::from(devices::system());
        let onlooker = Onlooker {
            settings: settings.clone(),
            policy: WatchedPolicy::new(settings.state_root.clone()),
            notes: Arc::clone(&notes),
            devices: Arc::clone(&devices),
        };
        Self::with(settings, Admission::new(Box::new(onlooker), ScopeId(0)), notes, devices)
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
        let before = self.policy().policy;
        concierge::save_user_choice(&self.settings.state_root, policy)?;
        self.notes.record(What::PolicyChanged { detail: format!("{before} to {policy}") });
        Ok(())
    }

    /// Writes down an answer that stands: that a load was refused, or forced. One that is admitted is written down by
    /// itself when it begins, and when it ends.
    pub fn note_decision(&self, decision: &Decision) {
        self.notes.decided(decision);
    }

    /// Writes down that a model was unloaded because somebody wanted that.
    pub fn note_unloaded(&self, model: &ModelId, bytes: Bytes) {
        self.notes.record(What::Unloaded { model: model.as_str().to_owned(), bytes });
    }

    /// Writes down that a model was unloaded to make room, or because it was idle for long.
    pub fn note_evicted(&self, model: &ModelId, bytes: Bytes, reason: &str) {
        let (model, reason) = (model.as_str().to_owned(), reason.to_owned());
        self.notes.record(What::Evicted { model, bytes, reason });
    }

    /// Returns all that is still written down about loads, the oldest first.
    pub fn events(&self) -> Result<Vec<Event>, journal::Error> {
        journal::events(&self.settings.state_root).map(|(events, _)| events)
    }

    /// Returns what became of loads before this process began, and which models are held for it.
    pub fn past(&self) -> &Past {
        self.notes.past()
    }

    /// Returns the last load that ended with its process.
    pub fn last_crash(&self) -> Option<&Crash> {
        self.past().crashes.last()
    }

    /// Lets a model be loaded again that is held.
    pub fn clear(&self, model: &ModelId) -> Result<(), journal::Error> {
        self.notes.clear(model)
    }

    /// Ends in good order: what is being loaded is given up on purpose, and no crash. For whoever ends the process without
    /// dropping everything.
    pub fn end(&self) {
        self.notes.end();
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

    /// Returns what a policy means on this machine and its first accelerator.
    pub fn evaluate(&self, policy: &Policy) -> Evaluation {
        let env = surroundings::env(policy, &self.reading(), None);
        let first = self.devices.read().first().and_then(|device| device.total);
        policy.evaluate(env.total.map_or(0, Bytes::floor_mib), first.map(Bytes::floor_mib))
    }

    /// Judges a load without promising anything, and explains the answer; `idle` are the models of this process that
    /// could go.
    pub fn explain(&self, load: &Load, idle: &[Candidate]) -> Decision {
        self.admission.inspect(|ledger, env| Decision::of(load, ledger, env, idle))
    }

    /// Returns how the memory is used; `known` says more about the models of this process.
    pub fn memory(&self, known: &[Candidate]) -> Memory {
        let Reading { bounds, warnings, .. } = self.reading();
        let devices = self.devices.read();
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
                accelerators: accelerators(&devices, ledger),
                warnings: warnings.clone(),
            }
        })
    }
}

fn accelerators(devices: &[Device], ledger: &Ledger) -> Vec<AcceleratorMemory> {
    let numbered = (0..=u8::MAX).zip(devices);
    let memory = numbered.map(|(index, device)| AcceleratorMemory {
        name: device.name.clone(),
        total_bytes: device.total,
        free_bytes: device.free,
        charged_bytes: ledger.resident_on(index) + ledger.active_on(index),
    });
    memory.collect()
}

/// Reads all that decisions depend on, and is seen by nobody.
struct Onlooker {
    settings: Settings,
    policy: WatchedPolicy,
    notes: Arc<Notes>,
    devices: Arc<dyn Devices>,
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
        let env = Env { others, is_pressed, held: self.notes.held(), ..env };
        decide(&surroundings::on(&self.devices.read(), env));
        true
    }

    fn tell(&self, _snapshot: &dyn Fn() -> Snapshot) {}

    fn used(&self, _model: &ModelId, _is_pinned: bool) {}

    fn correct(&self, load: &mut Load, key: &Key) -> Bytes {
        self.notes.correct(load, key)
    }
}
