//! A machine in numbers, and what happens on it when somebody does what a proposal says.

use toko_admission::decision::{Change, Load};
use toko_admission::ledger::{Env, Ledger, Outside, Verdict};
use toko_admission::policy::Policy;
use toko_admission::units::Bytes;

/// A machine on which nothing else limits than the policy.
pub(crate) fn machine(policy: &Policy, total_mb: u64, available_mb: u64) -> Env {
    let budget = policy.effective_budget(total_mb);
    Env {
        ceiling: Bytes::from_mib(budget.effective_new_load_ceiling_mb),
        emergency_reserve: Bytes::from_mib(budget.emergency_reserve_mb),
        available: Some(Bytes::from_mib(available_mb)),
        others: Some(Outside::default()),
        total: Some(Bytes::from_mib(total_mb)),
        ..Env::default()
    }
}

/// Does what a proposal says, and asks again.
pub(crate) fn follow(
    load: &Load,
    change: &Change,
    ledger: &Ledger,
    env: &Env,
    total_mb: u64,
) -> Verdict {
    let (mut load, mut ledger, mut env) = (load.clone(), ledger.clone(), env.clone());
    match change {
        Change::Context { context_tokens } => load.context_tokens = *context_tokens,
        Change::Replicas { replicas } => load.replicas = *replicas,
        Change::ContextAndReplicas { context_tokens, replicas } => {
            (load.context_tokens, load.replicas) = (*context_tokens, *replicas);
        }
        Change::KvType { .. } | Change::Weights { .. } => {
            let variant = load.variants.iter().find(|variant| variant.change == *change);
            load.sizing = Some(variant.expect("only known forms are proposed").sizing.clone());
        }
        Change::Unload { models } => {
            let gone: Vec<_> = ledger
                .allocations()
                .filter(|(_, held)| models.contains(&held.model))
                .map(|(id, held)| (id, held.visible))
                .collect();
            for (id, visible) in gone {
                env.available = env.available.map(|available| available + visible);
                ledger.exit(id);
            }
        }
        Change::Policy { policy } => {
            let policy: Policy = policy.parse().expect("a proposed policy can be set");
            let budget = policy.effective_budget(total_mb);
            env.ceiling = Bytes::from_mib(budget.effective_new_load_ceiling_mb)
                .min(env.limit.unwrap_or(Bytes::MAX));
        }
        Change::Limit { limit_bytes } => {
            env.ceiling = (*limit_bytes).min(env.policy_ceiling.expect("there is a limit"));
        }
    }
    ledger.preflight(&load.ask(), &env).verdict
}
