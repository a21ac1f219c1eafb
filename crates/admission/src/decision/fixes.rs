//! What would make a refused load fit. Each proposal is put to the ledger as it would be asked, and dropped if refused.

use serde::Serialize;

use super::Load;
use crate::eviction::{self, Candidate};
use crate::ledger::{Env, Ledger, ModelId, Pool, Preflight, Verdict};
use crate::policy::Policy;
use crate::sizing::Sizing;
use crate::units::Bytes;

/// The least context that is worth proposing.
const LEAST_CONTEXT_TOKENS: u64 = 256;
/// Custom ceilings are whole multiples of this.
const CEILING_STEP: Bytes = Bytes::from_mib(512);

/// What is to be done differently.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Change {
    /// A shorter context.
    Context {
        /// Tokens of each replica.
        context_tokens: u64,
    },
    /// Fewer requests at once.
    Replicas {
        /// How many.
        replicas: u64,
    },
    /// Fewer requests at once, and a shorter context.
    ContextAndReplicas {
        /// Tokens of each replica.
        context_tokens: u64,
        /// How many.
        replicas: u64,
    },
    /// Smaller keys and values.
    KvType {
        /// Their element type.
        kv_type: String,
    },
    /// Smaller weights of the same model.
    Weights {
        /// Where they are.
        path: String,
    },
    /// Idle models go.
    Unload {
        /// Which.
        models: Vec<ModelId>,
    },
    /// More for models than is allowed now beside the policy.
    Limit {
        /// The limit under which the load fits.
        limit_bytes: Bytes,
    },
    /// Another policy.
    Policy {
        /// As it is written on the command line.
        policy: String,
    },
}

/// Something that would help.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fix {
    /// What is to be done.
    #[serde(flatten)]
    pub change: Change,
    /// What the model would need then, weights included.
    pub total_bytes: Bytes,
}

/// Finds everything that would help by itself, best first: what costs the user least comes first.
pub(super) fn find(load: &Load, ledger: &Ledger, env: &Env, idle: &[Candidate]) -> Vec<Fix> {
    let preflight = ledger.preflight(&load.ask(), env);
    let search = Search { load, ledger, env, preflight };
    let mut fixes: Vec<Fix> = search.unload(idle).into_iter().collect();
    if let Some(sizing) = &load.sizing {
        fixes.extend(search.replicas(sizing));
        fixes.extend(search.variants());
        fixes.extend(search.context(sizing, load.replicas));
        if fixes.is_empty() && load.replicas > 1 {
            fixes.extend(search.context(sizing, 1));
        }
        fixes.extend(search.limit().or_else(|| search.policy()));
    }
    fixes
}

struct Search<'a> {
    load: &'a Load,
    ledger: &'a Ledger,
    env: &'a Env,
    /// What the request is answered as it is.
    preflight: Preflight,
}

impl Search<'_> {
    fn proven(&self, load: &Load, change: Change) -> Option<Fix> {
        proven(load, self.ledger, self.env, change)
    }

    /// Returns the most host memory that the load may take now.
    fn room(&self) -> Bytes {
        self.preflight.room()
    }

    fn on_host(&self, sizing: &Sizing) -> Bytes {
        match self.load.pool {
            Pool::Host => sizing.mapped_weights + sizing.private_weights,
            Pool::Device(_) => Bytes::ZERO,
        }
    }

    fn replicas(&self, sizing: &Sizing) -> Option<Fix> {
        let room = self.room().left_after(self.on_host(sizing));
        let (context_tokens, limit) = (self.load.context_tokens, self.load.replicas);
        let replicas = sizing.most_replicas(room, context_tokens, limit.saturating_sub(1))?;
        let fewer = Load { replicas, ..self.load.clone() };
        self.proven(&fewer, Change::Replicas { replicas })
    }

    fn context(&self, sizing: &Sizing, replicas: u64) -> Option<Fix> {
        let room = self.room().left_after(self.on_host(sizing));
        let limit = self.load.context_tokens.saturating_sub(1);
        let longest = sizing.largest_context(room, replicas, limit)?;
        let context_tokens = rounded(longest).max(longest.min(LEAST_CONTEXT_TOKENS));
        if context_tokens < LEAST_CONTEXT_TOKENS {
            return None;
        }
        let shorter = Load { context_tokens, replicas, ..self.load.clone() };
        let change = if replicas == self.load.replicas {
            Change::Context { context_tokens }
        } else {
            Change::ContextAndReplicas { context_tokens, replicas }
        };
        self.proven(&shorter, change)
    }

    fn variants(&self) -> Vec<Fix> {
        let proven = |variant: &super::Variant| {
            let other = Load { sizing: Some(variant.sizing.clone()), ..self.load.clone() };
            self.proven(&other, variant.change.clone())
        };
        self.load.variants.iter().filter_map(proven).collect()
    }

    /// Lets idle models go, as few as are needed.
    fn unload(&self, idle: &[Candidate]) -> Option<Fix> {
        let preflight = &self.preflight;
        let shortfall = preflight.incremental.left_after(preflight.room());
        let models = eviction::choose(idle, shortfall).filter(|models| !models.is_empty())?;
        let mut without = self.ledger.clone();
        let going: Vec<_> = without
            .allocations()
            .filter(|(_, held)| models.contains(&held.model))
            .map(|(id, held)| (id, held.visible))
            .collect();
        let freed: Bytes = going.iter().map(|(_, visible)| *visible).sum();
        for (id, _) in going {
            without.exit(id);
        }
        // What readings had left out for them is there again.
        let env = Env {
            available: self.env.available.map(|available| available + freed),
            ..self.env.clone()
        };
        proven(self.load, &without, &env, Change::Unload { models })
    }

    /// Proposes a higher limit, where that alone would do.
    fn limit(&self) -> Option<Fix> {
        let limit_bytes = self.needed()?.up_to_mib();
        if self.env.limit? >= limit_bytes || self.env.limit? != self.env.ceiling {
            return None;
        }
        // The policy holds beside the limit, and the ceiling does not say where it is.
        let policy = self.env.policy_ceiling?;
        let env = Env { ceiling: limit_bytes.min(policy), ..self.env.clone() };
        proven(self.load, self.ledger, &env, Change::Limit { limit_bytes })
    }

    /// Proposes the profile, or the smallest ceiling, under which the load fits.
    fn policy(&self) -> Option<Fix> {
        let total_mb = self.env.total?.floor_mib();
        let steps = self.needed()?.get().div_ceil(CEILING_STEP.get());
        #[expect(clippy::cast_precision_loss, reason = "half gigabytes of a machine's memory")]
        let custom = Policy::custom_gb(steps as f64 / 2.0).ok()?;
        let policies = [Policy::local_focused(), custom];
        policies.into_iter().find_map(|policy| {
            let ceiling = policy.effective_budget(total_mb).effective_new_load_ceiling_mb;
            let ceiling = Bytes::from_mib(ceiling).min(self.env.limit.unwrap_or(Bytes::MAX));
            if ceiling <= self.env.ceiling {
                return None;
            }
            let env = Env { ceiling, ..self.env.clone() };
            let change = Change::Policy { policy: policy.to_string() };
            proven(self.load, self.ledger, &env, change)
        })
    }

    /// Returns what all models take with this one, where that is more than is allowed.
    fn needed(&self) -> Option<Bytes> {
        let preflight = &self.preflight;
        let is_too_much = matches!(
            preflight.verdict,
            Verdict::ExceedsConfiguredCeiling | Verdict::DisabledByPolicy
        );
        is_too_much.then_some(preflight.resident + preflight.active + preflight.incremental)
    }
}

/// Makes a proposal of a change that leads to `load`, if the ledger admits that.
fn proven(load: &Load, ledger: &Ledger, env: &Env, change: Change) -> Option<Fix> {
    let is_admitted = ledger.preflight(&load.ask(), env).verdict.admits();
    let total_bytes = load.footprint()?.total();
    is_admitted.then_some(Fix { change, total_bytes })
}

/// Rounds a context length down to one that reads well.
fn rounded(tokens: u64) -> u64 {
    let step = if tokens >= 4096 { 1024 } else { 256 };
    tokens / step * step
}
