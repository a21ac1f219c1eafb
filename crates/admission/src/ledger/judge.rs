//! The only place that compares what is asked for with what there is.
//!
//! One order for everybody: what is being given back, maintenance, models that are held, unknown sizes, a policy of
//! nothing, the ceiling and the devices, pressure, free memory. Equality admits. A pure function.

use std::collections::BTreeSet;

use serde::Serialize;

use super::{Ask, Charge, ChargeId, Holding, Ledger, ModelId, Pool};
use crate::decision::Holder;
use crate::units::Bytes;

/// The numbers of the moment, measured before the table was asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Env {
    /// The most that models may take together, by the policy.
    pub ceiling: Bytes,
    /// What has to stay free.
    pub emergency_reserve: Bytes,
    /// The memory of each device, where it is known.
    pub devices: Vec<Option<Bytes>>,
    /// What nobody uses of it, where it is known.
    pub devices_free: Vec<Option<Bytes>>,
    /// What could be taken without taking it from anybody; `None` where nobody knows.
    pub available: Option<Bytes>,
    /// What the other processes of this machine hold; `None` where that could not be read.
    pub others: Option<Outside>,
    /// Whether a model may be let in whose mapped weights have less room than they take, so that parts of them are read
    /// from disk again and again.
    pub may_run_from_disk: bool,
    /// Whether the system is so short of memory that nothing new should come.
    pub is_pressed: bool,
    /// What somebody allows models to take beside the policy; it is part of `ceiling` already.
    pub limit: Option<Bytes>,
    /// What the policy alone allows, where there is a limit beside it.
    pub policy_ceiling: Option<Bytes>,
    /// Who set the ceiling, in words.
    pub ceiling_by: String,
    /// Which limit leaves the least, in words.
    pub bound_by: String,
    /// The part of `available` that no file is cached in, where it is known.
    pub uncached: Option<Bytes>,
    /// All memory of the machine, or of what this process may take of it, where it is known.
    pub total: Option<Bytes>,
    /// Models that must not be loaded until the user says so.
    pub held: BTreeSet<ModelId>,
}

/// What other processes of this machine hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outside {
    /// All that is charged to the host.
    pub charged: Bytes,
    /// The part of it that readings of free memory still count as free.
    pub unseen: Bytes,
    /// Who holds it.
    pub holders: Vec<Holder>,
}

/// What came of a judgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It fits.
    Allowed,
    /// All but its mapped weights fits: parts of those will be read from disk again and again.
    RunsFromDisk,
    /// It fits as far as anybody knows: free memory could not be read.
    LiveMemoryUnknown,
    /// The policy lets no model in.
    DisabledByPolicy,
    /// The policy lets no more in.
    ExceedsConfiguredCeiling,
    /// The machine has too little left.
    InsufficientLiveMemory,
    /// The system is short of memory at this moment.
    MemoryPressure,
    /// Nobody knows how large the weights are.
    WeightsUnknown,
    /// Nobody knows what other processes hold.
    OthersUnknown,
    /// Loading the model has taken its process down more than once, and the user has not said go.
    HeldAfterCrashes,
    /// The model is being changed.
    ModelMaintenance,
    /// An earlier copy of the model is still being given back.
    PendingTeardown,
}

impl Verdict {
    /// Returns its public name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::RunsFromDisk => "runs_from_disk",
            Self::LiveMemoryUnknown => "live_memory_unknown",
            Self::DisabledByPolicy => "disabled_by_policy",
            Self::ExceedsConfiguredCeiling => "exceeds_configured_ceiling",
            Self::InsufficientLiveMemory => "insufficient_live_memory",
            Self::MemoryPressure => "memory_pressure",
            Self::WeightsUnknown => "weights_unknown",
            Self::OthersUnknown => "others_unknown",
            Self::ModelMaintenance => "model_maintenance",
            Self::HeldAfterCrashes => "held_after_crashes",
            Self::PendingTeardown => "pending_teardown",
        }
    }

    /// Tells whether the request may go on.
    pub fn admits(self) -> bool {
        matches!(self, Self::Allowed | Self::RunsFromDisk | Self::LiveMemoryUnknown)
    }

    /// Tells whether it would be worth asking again although nobody does anything.
    pub fn may_pass(self) -> bool {
        matches!(
            self,
            Self::InsufficientLiveMemory
                | Self::MemoryPressure
                | Self::OthersUnknown
                | Self::ModelMaintenance
                | Self::PendingTeardown
        )
    }
}

/// A judgement with every number that led to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preflight {
    /// The model.
    pub model: ModelId,
    /// What came of it.
    pub verdict: Verdict,
    /// Whether the weights are there already, or on their way.
    pub is_warm: bool,
    /// The host memory that the request adds.
    pub incremental: Bytes,
    /// The part of it that is mapped from a file.
    pub mapped: Bytes,
    /// What the policy allows.
    pub ceiling: Bytes,
    /// Host memory of weights and what stays beside them, all processes together.
    pub resident: Bytes,
    /// Host memory promised to requests of this process.
    pub active: Bytes,
    /// The numbers of the accelerator, where the weights lie on one.
    pub accelerator: Option<Accelerator>,
    /// What could be taken without taking it from anybody, before anything that is charged and not yet seen.
    pub available: Option<Bytes>,
    /// What is charged and still counts as free.
    pub unseen: Bytes,
    /// What has to stay free.
    pub emergency_reserve: Bytes,
}

/// The numbers of an accelerator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Accelerator {
    /// Which one.
    pub index: u8,
    /// Its memory, where it is known.
    #[serde(rename = "total_bytes")]
    pub total: Option<Bytes>,
    /// What nobody uses of it, where it is known.
    #[serde(rename = "free_bytes")]
    pub free: Option<Bytes>,
    /// Weights that lie on it.
    #[serde(rename = "resident_bytes")]
    pub resident: Bytes,
    /// Weights that other requests are going to load onto it.
    #[serde(rename = "reserved_bytes")]
    pub active: Bytes,
    /// Of the weights that lie on it, those that are on their way and still count as free.
    #[serde(rename = "unseen_bytes")]
    pub unseen: Bytes,
    /// Weights that the request adds.
    #[serde(rename = "incremental_bytes")]
    pub incremental: Bytes,
}

impl Accelerator {
    /// Tells whether the weights are more than the device has, or has left for them.
    pub fn is_over(&self) -> bool {
        self.total.is_some_and(|total| !fits(self.resident + self.active + self.incremental, total))
    }

    /// Tells whether others use so much of the device that the weights have no room on it now.
    pub fn is_short(&self) -> bool {
        let promised = self.unseen + self.active;
        self.free.is_some_and(|free| !fits(promised + self.incremental, free))
    }
}

/// Judges a request; the charge `own` is what it asks to replace.
pub(super) fn judge(ledger: &Ledger, ask: &Ask, env: &Env, own: Option<ChargeId>) -> Preflight {
    let is_warm = ledger.carries(ask.on);
    let nothing = Holding { weights: Bytes::ZERO, standing: Bytes::ZERO };
    let cold = ask.holding.filter(|_| !is_warm).unwrap_or(nothing);
    let on_host = if ask.pool == Pool::Host { cold.weights } else { Bytes::ZERO };
    let (charged_elsewhere, unseen_elsewhere) =
        env.others.as_ref().map(|others| (others.charged, others.unseen)).unwrap_or_default();
    let active: Bytes = ledger.others(own).map(Charge::host).sum();
    let mut preflight = Preflight {
        model: ledger.resolve(&ask.model).clone(),
        verdict: Verdict::Allowed,
        is_warm,
        incremental: ask.overhead + cold.standing + on_host,
        mapped: ask.mapped.min(on_host),
        ceiling: env.ceiling,
        resident: ledger.resident_host() + charged_elsewhere,
        active,
        accelerator: accelerator(ledger, ask, env, own, cold.weights),
        available: env.available,
        unseen: ledger.unseen_resident() + active + unseen_elsewhere,
        emergency_reserve: env.emergency_reserve,
    };
    preflight.verdict = if ledger.is_in_transit(ask.scope, &ask.model) {
        Verdict::PendingTeardown
    } else if ledger.is_maintained(ask.scope, &ask.model) {
        Verdict::ModelMaintenance
    } else if !is_warm && env.held.iter().any(|held| ledger.is_same(held, &ask.model)) {
        Verdict::HeldAfterCrashes
    } else if ask.holding.is_none() && !is_warm {
        Verdict::WeightsUnknown
    } else if env.others.is_none() && !is_warm {
        Verdict::OthersUnknown
    } else {
        preflight.compare(env)
    };
    preflight
}

fn accelerator(
    ledger: &Ledger,
    ask: &Ask,
    env: &Env,
    own: Option<ChargeId>,
    incremental: Bytes,
) -> Option<Accelerator> {
    let Pool::Device(index) = ask.pool else { return None };
    let known = |of: &[Option<Bytes>]| of.get(usize::from(index)).copied().flatten();
    Some(Accelerator {
        index,
        total: known(&env.devices),
        free: known(&env.devices_free),
        resident: ledger.resident_on(index),
        active: ledger.others(own).map(|held| held.on_device(index)).sum(),
        unseen: ledger.loading_on(index),
        incremental,
    })
}

/// Tells whether a sum stays within a limit; one that is too large to be counted stays within none.
fn fits(sum: Bytes, limit: Bytes) -> bool {
    sum <= limit && sum < Bytes::MAX
}

impl Preflight {
    /// Returns how much a request for host memory may add to what is there without being refused for its size.
    pub fn room(&self) -> Bytes {
        let below_ceiling = match self.ceiling {
            Bytes::ZERO if self.is_warm => Bytes::MAX,
            ceiling => ceiling.left_after(self.resident + self.active),
        };
        let free = self.available.map_or(Bytes::MAX, |available| {
            available.left_after(self.unseen).left_after(self.emergency_reserve)
        });
        below_ceiling.min(free)
    }

    /// Compares the numbers; the order is part of the contract.
    fn compare(&self, env: &Env) -> Verdict {
        let projected = self.resident + self.active + self.incremental;
        let is_over_device = self.accelerator.is_some_and(|device| device.is_over());
        if self.ceiling == Bytes::ZERO && !self.is_warm {
            return Verdict::DisabledByPolicy;
        }
        if is_over_device || (self.ceiling > Bytes::ZERO && !fits(projected, self.ceiling)) {
            return Verdict::ExceedsConfiguredCeiling;
        }
        if env.is_pressed && !self.is_warm {
            return Verdict::MemoryPressure;
        }
        if self.accelerator.is_some_and(|device| device.is_short()) {
            return Verdict::InsufficientLiveMemory;
        }
        let needed = self.incremental + self.emergency_reserve;
        let Some(available) = self.available else { return Verdict::LiveMemoryUnknown };
        let promised = self.unseen + needed;
        if fits(promised, available) {
            Verdict::Allowed
        } else if env.may_run_from_disk
            && self.mapped > Bytes::ZERO
            && fits(promised.left_after(self.mapped), available)
        {
            Verdict::RunsFromDisk
        } else {
            Verdict::InsufficientLiveMemory
        }
    }
}
