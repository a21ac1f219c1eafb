//! Where decisions get their numbers from: the running machine, or numbers that are given.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::decision::{Holder, Load};
use crate::handles::{Held, LoadEvent, Snapshot, Surroundings};
use crate::history::Key;
use crate::ledger::{Env, ModelId, Outside};
use crate::machine::record::{Held as TellHeld, Holdings, Process, State};
use crate::machine::{Basis, Error, Holding, Machine, Others};
use crate::policy::{Policy, Profile};
use crate::policy_file::WatchedPolicy;
use crate::probe::devices::{Device, Devices};
use crate::probe::pressure::Gate;
use crate::probe::{self, Bound, Limiter, Reading, Roots};
use crate::steward::Notes;
use crate::units::Bytes;

/// Longest wait for other processes that decide; they hold nobody up for longer than a few milliseconds.
const TURN_LIMIT: Duration = Duration::from_secs(2);

/// Numbers that stay what they are: for trials, and for whoever has measured elsewhere.
pub struct Fixed(pub Env);

impl Fixed {
    /// Takes numbers under which everything fits.
    pub fn unlimited() -> Self {
        Self(Env { ceiling: Bytes::MAX, others: Some(Outside::default()), ..Env::default() })
    }
}

impl Surroundings for Fixed {
    fn decide(&self, decide: &mut dyn FnMut(&Env) -> Snapshot) -> bool {
        decide(&self.0);
        true
    }

    fn tell(&self, _snapshot: &dyn Fn() -> Snapshot) {}

    fn used(&self, _model: &ModelId, _is_pinned: bool) {}
}

/// What the running machine's numbers depend on.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where the policy is kept.
    pub state_root: PathBuf,
    /// Where the processes of this machine tell each other what they hold.
    pub leases: PathBuf,
    /// Where the system's own files are.
    pub roots: Roots,
    /// A limit on what models may take, besides the policy's.
    pub limit: Option<Bytes>,
    /// Who asks.
    pub process: Process,
    /// The clock, in Unix milliseconds.
    pub now_ms: fn() -> u64,
}

/// The running machine.
pub struct Live {
    settings: Settings,
    policy: WatchedPolicy,
    machine: Option<Machine>,
    gate: Mutex<(Profile, Gate)>,
    /// Since when each held model is in its state; locked while something is told, so that what is told is never older
    /// than what was told before.
    told: Mutex<BTreeMap<ModelId, Told>>,
    /// When each model was last used; apart, since whoever uses one must not wait for what is told.
    usage: Mutex<BTreeMap<ModelId, Usage>>,
    notes: Arc<Notes>,
    devices: Arc<dyn Devices>,
}

#[derive(Debug, Clone, Copy)]
struct Told {
    state: &'static str,
    since_ms: u64,
}

#[derive(Debug, Clone, Copy)]
struct Usage {
    used_ms: u64,
    is_pinned: bool,
}

impl Live {
    /// Joins the processes of this machine. Where that is not possible this process decides alone, and says so.
    pub(crate) fn open(settings: Settings, notes: Arc<Notes>, devices: Arc<dyn Devices>) -> Self {
        let joined = Machine::join(
            &settings.leases,
            settings.roots.clone(),
            settings.process.clone(),
            TURN_LIMIT,
        );
        let machine = joined.inspect_err(|error| {
            log::warn!("what other processes hold is not counted: {}", with_source(error));
        });
        let policy = WatchedPolicy::new(settings.state_root.clone());
        let gate = Mutex::new((Profile::Everyday, gate(Profile::Everyday)));
        Self {
            settings,
            policy,
            machine: machine.ok(),
            gate,
            told: Mutex::default(),
            usage: Mutex::default(),
            notes,
            devices,
        }
    }

    fn told(&self) -> MutexGuard<'_, BTreeMap<ModelId, Told>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Held for no longer than it takes to look something up.
    fn usage(&self) -> MutexGuard<'_, BTreeMap<ModelId, Usage>> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn env(
        &self,
        policy: &Policy,
        reading: &Reading,
        others: Option<&Others>,
        held: &BTreeSet<ModelId>,
    ) -> Env {
        let is_pressed = {
            let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
            if gate.0 != policy.profile {
                *gate = (policy.profile, self::gate(policy.profile));
            }
            gate.1.observe(reading.pressure.counted())
        };
        let others = others.map(|others| outside(others, (self.settings.now_ms)()));
        let env = env(policy, reading, self.settings.limit);
        on(&self.devices.read(), Env { others, is_pressed, held: held.clone(), ..env })
    }

    /// Puts a snapshot into the words of the machine's directory.
    fn holdings(&self, snapshot: &Snapshot, told: &mut BTreeMap<ModelId, Told>) -> Holdings {
        let now_ms = (self.settings.now_ms)();
        let is_held = |model: &ModelId| snapshot.held.iter().any(|held| held.model == *model);
        let mut usage = self.usage();
        told.retain(|model, _| is_held(model));
        usage.retain(|model, _| is_held(model));
        let held = snapshot.held.iter().map(|held| {
            let state = held.state;
            let new = Told { state, since_ms: now_ms };
            let told = told.entry(held.model.clone()).or_insert(new);
            if told.state != state {
                (told.state, told.since_ms) = (state, now_ms);
            }
            let new = Usage { used_ms: now_ms, is_pinned: false };
            tell_held(held, told, usage.entry(held.model.clone()).or_insert(new))
        });
        let held = held.collect();
        let visible = snapshot.charged.left_after(snapshot.unseen);
        Holdings { held, charged: snapshot.charged, visible }
    }
}

impl Surroundings for Live {
    fn decide(&self, decide: &mut dyn FnMut(&Env) -> Snapshot) -> bool {
        let (policy, held) = (self.policy.current().policy, self.notes.held());
        let Some(machine) = &self.machine else {
            let reading = probe::read(&self.settings.roots);
            decide(&self.env(&policy, &reading, Some(&Others::default()), &held));
            return true;
        };
        let outcome = machine.locked(TURN_LIMIT, |others| {
            // Read in turn: no reading is older than what another process was promised.
            let reading = probe::read(&self.settings.roots);
            let mut told = self.told();
            let snapshot = decide(&self.env(&policy, &reading, Some(others), &held));
            (machine.tell(self.holdings(&snapshot, &mut told)), None)
        });
        match outcome {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                log::warn!("other processes were not told: {}", with_source(&error));
                false
            }
            Err(error) => {
                log::warn!("what other processes hold is not known: {}", with_source(&error));
                let reading = probe::read(&self.settings.roots);
                decide(&self.env(&policy, &reading, None, &held));
                false
            }
        }
    }

    fn tell(&self, snapshot: &dyn Fn() -> Snapshot) {
        let Some(machine) = &self.machine else { return };
        let mut told = self.told();
        let holdings = self.holdings(&snapshot(), &mut told);
        if let Err(error) = machine.tell(holdings) {
            log::warn!("other processes were not told: {}", with_source(&error));
        }
    }

    fn loads(&self, model: &ModelId, bytes: Bytes, event: LoadEvent<'_>) {
        self.notes.load(model, bytes, event);
    }

    fn correct(&self, load: &mut Load, key: &Key) -> Bytes {
        self.notes.correct(load, key)
    }

    fn measured(&self, key: &Key, predicted: Bytes, measured: Bytes) {
        self.notes.measured(key, predicted, measured);
    }

    fn used(&self, model: &ModelId, is_pinned: bool) {
        if let Some(usage) = self.usage().get_mut(model) {
            *usage = Usage { used_ms: (self.settings.now_ms)(), is_pinned };
        }
    }
}

/// Returns the numbers of a moment under a policy, as if nobody else held anything.
pub fn env(policy: &Policy, reading: &Reading, limit: Option<Bytes>) -> Env {
    let is_hard = |bound: &&Bound| {
        matches!(
            bound.limiter,
            Limiter::Host | Limiter::CgroupMax { .. } | Limiter::CgroupV1 { .. }
        )
    };
    let whole = reading.bounds.iter().filter(is_hard).min_by_key(|bound| bound.limit);
    let budget = policy.effective_budget(whole.map_or(0, |whole| whole.limit.floor_mib()));
    let emergency_reserve = Bytes::from_mib(budget.emergency_reserve_mb);
    let ceiling = Bytes::from_mib(budget.effective_new_load_ceiling_mb);
    let by_policy = || match whole {
        Some(whole) => {
            format!("the policy {policy} on {} ({})", whole.limit, whole.limiter)
        }
        None => format!("the policy {policy} on a machine of unknown size"),
    };
    let policy_ceiling = limit.map(|_| ceiling);
    let (ceiling, ceiling_by) = match limit {
        Some(limit) if limit < ceiling => (limit, "the memory limit that was set".to_owned()),
        _ => (ceiling, by_policy()),
    };
    // The reserve is kept for other programs, whom this process's addresses do not concern.
    let reserve = |bound: &Bound| match bound.limiter {
        Limiter::AddressSpace => Bytes::ZERO,
        _ => emergency_reserve,
    };
    let spared = |bound: &Bound| bound.room() + emergency_reserve.left_after(reserve(bound));
    let binding = reading.bounds.iter().min_by_key(|bound| spared(bound));
    Env {
        ceiling,
        limit,
        policy_ceiling,
        emergency_reserve: binding.map_or(emergency_reserve, reserve),
        available: binding.map(Bound::room),
        others: Some(Outside::default()),
        ceiling_by,
        bound_by: binding.map(|bound| bound.limiter.to_string()).unwrap_or_default(),
        uncached: reading.host_free,
        may_run_from_disk: policy.profile == Profile::LocalFocused,
        total: whole.map(|whole| whole.limit),
        ..Env::default()
    }
}

/// Adds the numbers of the accelerators to those of a moment.
pub(crate) fn on(devices: &[Device], env: Env) -> Env {
    Env {
        devices: devices.iter().map(|device| device.total).collect(),
        devices_free: devices.iter().map(|device| device.free).collect(),
        ..env
    }
}

/// Returns what other processes hold, as decisions count and tell it.
pub fn outside(others: &Others, now_ms: u64) -> Outside {
    Outside {
        charged: others.charged(),
        unseen: others.unseen(),
        holders: others.holdings.iter().flat_map(|holding| holders(holding, now_ms)).collect(),
    }
}

fn holders(holding: &Holding, now_ms: u64) -> Vec<Holder> {
    let Holding { process, holdings, basis } = holding;
    let process = format!("{}, process {}", process.program, process.pid);
    if *basis != Basis::Record {
        return vec![Holder {
            process,
            model: "unknown".to_owned(),
            bytes: holdings.charged,
            state: "unreadable".to_owned(),
            idle_seconds: None,
            is_pinned: false,
        }];
    }
    let holder = |held: &TellHeld| Holder {
        process: process.clone(),
        model: held.model.clone(),
        bytes: held.bytes,
        state: name(held.state).to_owned(),
        idle_seconds: Some(now_ms.saturating_sub(held.used_ms) / 1000),
        is_pinned: held.is_pinned,
    };
    holdings.held.iter().map(holder).collect()
}

fn tell_held(held: &Held, told: &Told, usage: &Usage) -> TellHeld {
    let states = [State::Reserved, State::Loading, State::Resident, State::Draining, State::Lost];
    TellHeld {
        model: held.model.as_str().to_owned(),
        bytes: held.bytes,
        state: states.into_iter().find(|state| name(*state) == held.state).unwrap_or(State::Lost),
        since_ms: told.since_ms,
        used_ms: usage.used_ms,
        is_pinned: usage.is_pinned,
    }
}

fn name(state: State) -> &'static str {
    match state {
        State::Reserved => "reserved",
        State::Loading => "loading",
        State::Resident => "resident",
        State::Draining => "draining",
        State::Lost => "lost",
    }
}

/// Returns the pressure at which nothing new is loaded: who lets models take more of the machine bears more of it.
pub(crate) fn gate(profile: Profile) -> Gate {
    match profile {
        Profile::Everyday => Gate::new(10.0, 5.0),
        Profile::Custom => Gate::new(20.0, 10.0),
        Profile::LocalFocused => Gate::new(40.0, 20.0),
    }
}

fn with_source(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// Returns the directory in which processes tell each other what they hold: where the system keeps such things, else
/// below the state root.
pub fn lease_directory(runtime: Option<&Path>, state_root: &Path) -> PathBuf {
    match runtime.filter(|path| path.is_absolute()) {
        Some(runtime) => runtime.join("tokonoma"),
        None => state_root.join("leases"),
    }
}
