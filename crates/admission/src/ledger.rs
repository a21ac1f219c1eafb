//! The table of facts: which weights exist, which requests were admitted. A total is a sum over it.
//!
//! Invariant: every transition decides first and then writes, so a refusal leaves the table as it was; a record never
//! shrinks while it lives, and is gone when its owner says so. Knows no clock, no thread, no file and no reading:
//! [`Env`] brings the numbers that were measured before.

mod judge;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::estimate::Backend;
use crate::units::Bytes;

pub use judge::{Accelerator, Env, Outside, Preflight, Verdict};

/// The name of a model.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ModelId(String);

impl ModelId {
    /// Takes a name as it is.
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Who shares one policy and one set of resident models: one state root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopeId(pub u32);

/// One set of weights; minted for each load, so that two loads never share one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AllocationId(u64);

/// One admitted request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChargeId(u64);

/// Where weights lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pool {
    /// The machine's memory.
    Host,
    /// The memory of one accelerator, by its index.
    Device(u8),
}

impl Pool {
    /// Returns where an engine puts its weights: onto an accelerator only where that has memory of its own and says how
    /// much.
    pub fn of(backend: Backend, device: u8, memory: Option<Bytes>) -> Self {
        match (backend, memory) {
            (Backend::Cuda, Some(_)) => Self::Device(device),
            (Backend::Cuda | Backend::Metal | Backend::Cpu, _) => Self::Host,
        }
    }
}

/// How far an allocation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It is being filled.
    Loading,
    /// Requests can run on it.
    Resident,
    /// It is being given back, and may still be there.
    Draining,
    /// Its end is overdue; it stays charged until somebody gives it up.
    Lost,
}

impl Phase {
    /// Returns its public name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loading => "loading",
            Self::Resident => "resident",
            Self::Draining => "draining",
            Self::Lost => "lost",
        }
    }
}

/// Who frees memory when its handle is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Home {
    /// This process: what its handle's owner drops is free.
    Process,
    /// Another process, which may outlive its handle.
    Child,
}

/// Weights, and what stays beside them for as long as they are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    /// Tensors, in the pool of the allocation.
    pub weights: Bytes,
    /// Host memory that is held whether or not a request runs: room for KV caches, scratch, tokenizer.
    pub standing: Bytes,
}

/// Weights that exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocation {
    /// Whose they are.
    pub scope: ScopeId,
    /// What they are.
    pub model: ModelId,
    /// Where they lie.
    pub pool: Pool,
    /// Who frees them.
    pub home: Home,
    /// How much they take.
    pub holding: Holding,
    /// The part of its host memory that readings of free memory already leave out.
    pub visible: Bytes,
    /// How far they are.
    pub phase: Phase,
}

/// A request that was admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    /// Whose it is.
    pub scope: ScopeId,
    /// Which model it runs on.
    pub model: ModelId,
    /// Where the model's weights lie or will lie.
    pub pool: Pool,
    /// Who frees what it loads.
    pub home: Home,
    /// Host memory of the request itself.
    pub overhead: Bytes,
    /// What it will load, until the load begins.
    pub cold: Option<Holding>,
}

/// What somebody wants to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// Whose policy holds.
    pub scope: ScopeId,
    /// The model.
    pub model: ModelId,
    /// The weights that the request will run on, where there are any.
    pub on: Option<AllocationId>,
    /// What a load would take; `None` where the size of the weights is unknown.
    pub holding: Option<Holding>,
    /// The part of the weights that is mapped from a file.
    pub mapped: Bytes,
    /// Where the weights lie or will lie.
    pub pool: Pool,
    /// Who frees what is loaded.
    pub home: Home,
    /// Host memory of the request itself.
    pub overhead: Bytes,
}

/// Names that mean one model.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Group {
    born: u64,
    name: ModelId,
}

/// The table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    allocations: BTreeMap<AllocationId, Allocation>,
    charges: BTreeMap<ChargeId, Charge>,
    /// From every name that a model has besides others to what they share.
    groups: BTreeMap<ModelId, Group>,
    /// Names as they were given; they are compared through the groups.
    maintenance: BTreeSet<(ScopeId, ModelId)>,
    next_id: u64,
    /// Loads that were ever begun.
    launches: u64,
}

/// Why maintenance of a model cannot begin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MaintenanceError {
    /// Requests run on it.
    #[error("the model {0} is in use")]
    InUse(ModelId),
    /// Somebody else maintains it.
    #[error("the model {0} is already being maintained")]
    AlreadyBegun(ModelId),
}

impl Holding {
    /// Returns all of it, wherever it lies.
    pub fn total(self) -> Bytes {
        self.weights + self.standing
    }
}

impl Charge {
    /// Returns the host memory that is promised to this request.
    pub fn host(&self) -> Bytes {
        let cold = self.cold.map_or(Bytes::ZERO, |cold| {
            cold.standing + if self.pool == Pool::Host { cold.weights } else { Bytes::ZERO }
        });
        self.overhead + cold
    }

    fn on_device(&self, device: u8) -> Bytes {
        let is_there = self.pool == Pool::Device(device);
        self.cold.filter(|_| is_there).map_or(Bytes::ZERO, |cold| cold.weights)
    }
}

impl Allocation {
    /// Returns the host memory that it takes.
    pub fn host(&self) -> Bytes {
        let weights = if self.pool == Pool::Host { self.holding.weights } else { Bytes::ZERO };
        weights + self.holding.standing
    }

    fn on_device(&self, device: u8) -> Bytes {
        if self.pool == Pool::Device(device) { self.holding.weights } else { Bytes::ZERO }
    }
}

impl Ledger {
    /// Judges what somebody wants to do, and changes nothing.
    pub fn preflight(&self, ask: &Ask, env: &Env) -> Preflight {
        judge::judge(self, ask, env, None)
    }

    /// Admits a request, or says why not.
    ///
    /// # Errors
    /// The refusal, with every number that led to it.
    #[expect(clippy::result_large_err, reason = "a refusal is a value with its numbers")]
    pub fn reserve(&mut self, ask: &Ask, env: &Env) -> Result<(ChargeId, Preflight), Preflight> {
        let preflight = self.preflight(ask, env);
        if !preflight.verdict.admits() {
            return Err(preflight);
        }
        Ok((self.charge(ask), preflight))
    }

    /// Charges a request whatever the judgement is; somebody has taken the responsibility.
    pub fn reserve_forced(&mut self, ask: &Ask, env: &Env) -> (ChargeId, Preflight) {
        let preflight = self.preflight(ask, env);
        (self.charge(ask), preflight)
    }

    fn charge(&mut self, ask: &Ask) -> ChargeId {
        let cold = ask.holding.filter(|_| !self.carries(ask.on));
        let id = ChargeId(self.mint());
        let charge = Charge {
            scope: ask.scope,
            model: ask.model.clone(),
            pool: ask.pool,
            home: ask.home,
            overhead: ask.overhead,
            cold,
        };
        self.charges.insert(id, charge);
        id
    }

    /// Replaces the estimate of a load by what was measured, if that still fits. A request on weights that are there
    /// stays as it is, and one whose weights have gone is to load them.
    ///
    /// # Errors
    /// The refusal; the charge is unchanged then.
    ///
    /// # Panics
    /// When there is no such charge.
    #[expect(clippy::result_large_err, reason = "a refusal is a value with its numbers")]
    pub fn measure(
        &mut self,
        charge: ChargeId,
        on: Option<AllocationId>,
        measured: Holding,
        env: &Env,
    ) -> Result<Preflight, Preflight> {
        let held = self.charges.get(&charge).expect("a live handle has a charge");
        let ask = Ask {
            scope: held.scope,
            model: held.model.clone(),
            on,
            holding: Some(measured),
            mapped: Bytes::ZERO,
            pool: held.pool,
            home: held.home,
            overhead: held.overhead,
        };
        let preflight = judge::judge(self, &ask, env, Some(charge));
        let is_warm = self.carries(on);
        let stays_warm = is_warm && held.cold.is_none();
        if !stays_warm && !preflight.verdict.admits() {
            return Err(preflight);
        }
        let cold = (!is_warm).then_some(measured);
        self.charges.get_mut(&charge).expect("it was read above").cold = cold;
        Ok(preflight)
    }

    /// Begins the load that a charge promised; the memory is the allocation's from here on.
    ///
    /// # Panics
    /// When there is no such charge, or nothing that it would load.
    pub fn launch(&mut self, charge: ChargeId) -> AllocationId {
        self.launches += 1;
        let id = AllocationId(self.mint());
        let charge = self.charges.get_mut(&charge).expect("a live handle has a charge");
        let holding = charge.cold.take().expect("a load has something to load");
        let allocation = Allocation {
            scope: charge.scope,
            model: charge.model.clone(),
            pool: charge.pool,
            home: charge.home,
            holding,
            visible: Bytes::ZERO,
            phase: Phase::Loading,
        };
        self.allocations.insert(id, allocation);
        id
    }

    /// Notes that weights can be used, and what they really take; never refuses, for the memory exists.
    pub fn publish(&mut self, allocation: AllocationId, actual: Bytes) {
        if let Some(held) = self.allocations.get_mut(&allocation) {
            held.holding.weights = held.holding.weights.max(actual);
            if held.phase == Phase::Loading {
                held.phase = Phase::Resident;
            }
        }
    }

    /// Notes how much of an allocation the system's readings already leave out.
    pub fn observe(&mut self, allocation: AllocationId, visible: Bytes) {
        if let Some(held) = self.allocations.get_mut(&allocation) {
            held.visible = visible.min(held.host());
        }
    }

    /// Notes that weights are being given back.
    pub fn drain(&mut self, allocation: AllocationId) {
        if let Some(held) = self.allocations.get_mut(&allocation) {
            held.phase = Phase::Draining;
        }
    }

    /// Notes that giving back takes longer than it may.
    pub fn lose(&mut self, allocation: AllocationId) {
        let held = self.allocations.get_mut(&allocation);
        if let Some(held) = held.filter(|held| held.phase == Phase::Draining) {
            held.phase = Phase::Lost;
        }
    }

    /// Notes that weights are gone: their owner has seen it, or has given them up.
    pub fn exit(&mut self, allocation: AllocationId) {
        self.allocations.remove(&allocation);
    }

    /// Notes that a handle was dropped: what this process owned is gone with it; what another process was loading may
    /// still be there, and what was being given back still is.
    pub fn abandon(&mut self, allocation: AllocationId) {
        match self.allocations.get(&allocation).map(|held| (held.phase, held.home)) {
            Some((Phase::Loading, Home::Child)) => self.drain(allocation),
            Some((Phase::Loading, Home::Process) | (Phase::Resident, _)) => self.exit(allocation),
            Some((Phase::Draining | Phase::Lost, _)) | None => {}
        }
    }

    /// Gives up the overdue records of a model; returns how many there were.
    pub fn give_up(&mut self, scope: ScopeId, model: &ModelId) -> usize {
        let overdue = |held: &Allocation| held.scope == scope && held.phase == Phase::Lost;
        let ids: Vec<AllocationId> = self
            .allocations
            .iter()
            .filter(|(_, held)| overdue(held) && self.is_same(&held.model, model))
            .map(|(id, _)| *id)
            .collect();
        for id in &ids {
            self.exit(*id);
        }
        ids.len()
    }

    /// Ends a request.
    pub fn release(&mut self, charge: ChargeId) {
        self.charges.remove(&charge);
    }

    /// Makes several names mean one model. Where some of them belong to groups already, the oldest group gives its name
    /// to all.
    pub fn alias(&mut self, canonical: &ModelId, aliases: &[ModelId]) {
        let born = self.mint();
        let names = || aliases.iter().chain([canonical]);
        let groups: Vec<Group> =
            names().filter_map(|name| self.groups.get(name)).cloned().collect();
        let new = Group { born, name: canonical.clone() };
        let oldest = groups.iter().min_by_key(|group| group.born).unwrap_or(&new).clone();
        for group in self.groups.values_mut() {
            if groups.iter().any(|merged| merged.born == group.born) {
                *group = oldest.clone();
            }
        }
        self.groups.extend(names().map(|name| (name.clone(), oldest.clone())));
    }

    /// Returns the name that all names of a model share.
    pub fn resolve<'a>(&'a self, model: &'a ModelId) -> &'a ModelId {
        self.groups.get(model).map_or(model, |group| &group.name)
    }

    /// Keeps new requests off a model until [`Self::end_maintenance`].
    ///
    /// # Errors
    /// When requests run on it, or it is maintained already; under any of its names.
    pub fn begin_maintenance(
        &mut self,
        scope: ScopeId,
        model: &ModelId,
    ) -> Result<(), MaintenanceError> {
        if self.active_requests(scope, model) > 0 {
            return Err(MaintenanceError::InUse(model.clone()));
        }
        if self.is_maintained(scope, model) {
            return Err(MaintenanceError::AlreadyBegun(model.clone()));
        }
        self.maintenance.insert((scope, model.clone()));
        Ok(())
    }

    /// Ends the maintenance that was begun under this name.
    pub fn end_maintenance(&mut self, scope: ScopeId, model: &ModelId) {
        self.maintenance.remove(&(scope, model.clone()));
    }

    /// Forgets everything of a scope whose owner is gone.
    pub fn close(&mut self, scope: ScopeId) {
        self.allocations.retain(|_, held| held.scope != scope);
        self.charges.retain(|_, held| held.scope != scope);
        self.maintenance.retain(|(held, _)| *held != scope);
    }

    /// Tells whether a model is kept off new requests.
    pub fn is_maintained(&self, scope: ScopeId, model: &ModelId) -> bool {
        self.maintenance.iter().any(|(of, name)| *of == scope && self.is_same(name, model))
    }

    /// Tells whether weights of a model are being given back.
    pub fn is_in_transit(&self, scope: ScopeId, model: &ModelId) -> bool {
        // Names last: they are compared only where something is being given back at all.
        self.allocations.values().any(|held| {
            matches!(held.phase, Phase::Draining | Phase::Lost)
                && held.scope == scope
                && self.is_same(&held.model, model)
        })
    }

    /// Returns the requests that were admitted for a model and have not ended.
    pub fn active_requests(&self, scope: ScopeId, model: &ModelId) -> usize {
        let of = |held: &&Charge| held.scope == scope && self.is_same(&held.model, model);
        self.charges.values().filter(of).count()
    }

    /// Returns the allocations, in the order in which their loads began.
    pub fn allocations(&self) -> impl Iterator<Item = (AllocationId, &Allocation)> {
        self.allocations.iter().map(|(id, held)| (*id, held))
    }

    /// Returns the charges, in the order in which they were admitted.
    pub fn charges(&self) -> impl Iterator<Item = (ChargeId, &Charge)> {
        self.charges.iter().map(|(id, held)| (*id, held))
    }

    /// Returns an allocation while it is there.
    pub fn allocation(&self, id: AllocationId) -> Option<&Allocation> {
        self.allocations.get(&id)
    }

    /// Returns a charge while it is there.
    pub fn charge_of(&self, id: ChargeId) -> Option<&Charge> {
        self.charges.get(&id)
    }

    /// Returns how many loads were ever begun.
    pub fn launches(&self) -> u64 {
        self.launches
    }

    /// Returns the host memory of all allocations.
    pub fn resident_host(&self) -> Bytes {
        self.allocations.values().map(Allocation::host).sum()
    }

    /// Returns the host memory that is promised to requests, loads that have not begun included.
    pub fn active_host(&self) -> Bytes {
        self.others(None).map(Charge::host).sum()
    }

    /// Returns all that is charged to the host.
    pub fn host(&self) -> Bytes {
        self.resident_host() + self.active_host()
    }

    /// Returns the charged host memory that readings of free memory still count as free.
    pub fn unseen_host(&self) -> Bytes {
        self.unseen_resident() + self.active_host()
    }

    fn unseen_resident(&self) -> Bytes {
        let unseen = |held: &Allocation| held.host().left_after(held.visible);
        self.allocations.values().map(unseen).sum()
    }

    /// Returns the weights that lie on a device.
    pub fn resident_on(&self, device: u8) -> Bytes {
        self.allocations.values().map(|held| held.on_device(device)).sum()
    }

    /// Returns the weights that are on their way to a device, and do not show there yet.
    pub fn loading_on(&self, device: u8) -> Bytes {
        let loading = self.allocations.values().filter(|held| held.phase == Phase::Loading);
        loading.map(|held| held.on_device(device)).sum()
    }

    /// Returns the weights that requests are going to load onto a device.
    pub fn active_on(&self, device: u8) -> Bytes {
        self.others(None).map(|held| held.on_device(device)).sum()
    }

    /// Returns the charges but one.
    fn others(&self, own: Option<ChargeId>) -> impl Iterator<Item = &Charge> {
        self.charges.iter().filter(move |(id, _)| Some(**id) != own).map(|(_, held)| held)
    }

    /// Tells whether weights are there, or on their way, so that nobody has to charge them again.
    fn carries(&self, on: Option<AllocationId>) -> bool {
        let held = on.and_then(|on| self.allocations.get(&on));
        held.is_some_and(|held| matches!(held.phase, Phase::Loading | Phase::Resident))
    }

    fn is_same(&self, one: &ModelId, other: &ModelId) -> bool {
        self.resolve(one) == self.resolve(other)
    }

    fn mint(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}
