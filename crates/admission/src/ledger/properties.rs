//! Invariants over random histories of all events: a million events, each under numbers of its own.
//!
//! Beside the table runs a plain account: what every live record should weigh, by what the events said.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::{
    AllocationId, Ask, ChargeId, Env, Holding, Home, Ledger, ModelId, Outside, Phase, Pool,
    Preflight, ScopeId, Verdict,
};
use crate::units::Bytes;

const HISTORIES: u32 = 5_000;
const EVENTS: usize = 200;

/// What may happen; numbers are taken modulo what there is.
#[derive(Debug, Clone)]
enum Event {
    Reserve { ask: Wanted, env: Env, is_forced: bool },
    Measure { charge: usize, on: Option<usize>, measured: Holding, env: Env },
    Launch { charge: usize },
    Publish { allocation: usize, actual: Bytes },
    Observe { allocation: usize, visible: Bytes },
    Drain { allocation: usize },
    Lose { allocation: usize },
    Exit { allocation: usize },
    Abandon { allocation: usize },
    Release { charge: usize },
    Alias { names: Vec<usize> },
    Maintain { scope: u32, model: usize },
    EndMaintenance { index: usize },
    GiveUp { scope: u32, model: usize },
}

#[derive(Debug, Clone)]
struct Wanted {
    scope: u32,
    model: usize,
    on: Option<usize>,
    holding: Option<Holding>,
    pool: Pool,
    home: Home,
    overhead: Bytes,
    mapped: Bytes,
}

fn size() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        20 => (0u64..2000).prop_map(Bytes::from_mib),
        4 => (0u64..1 << 30).prop_map(Bytes::new),
        1 => Just(Bytes::MAX),
    ]
}

fn holding() -> impl Strategy<Value = Holding> {
    (size(), size()).prop_map(|(weights, standing)| Holding { weights, standing })
}

fn env() -> impl Strategy<Value = Env> {
    let limit =
        || prop_oneof![1 => Just(Bytes::ZERO), 6 => (0u64..30_000).prop_map(Bytes::from_mib)];
    let others = (limit(), limit()).prop_map(|(charged, unseen)| Outside {
        charged,
        unseen,
        holders: Vec::new(),
    });
    let others = proptest::option::weighted(0.95, others);
    let devices = proptest::collection::vec(proptest::option::of(limit()), 0..3);
    let available = proptest::option::weighted(0.9, limit());
    let flags = (proptest::bool::weighted(0.1), any::<bool>());
    (limit(), limit(), devices, available, others, flags).prop_map(
        |(ceiling, emergency_reserve, devices, available, others, flags)| Env {
            ceiling,
            emergency_reserve,
            devices,
            available,
            others,
            is_pressed: flags.0,
            may_run_from_disk: flags.1,
            ..Env::default()
        },
    )
}

fn wanted() -> impl Strategy<Value = Wanted> {
    let pool = prop_oneof![3 => Just(Pool::Host), 1 => (0u8..2).prop_map(Pool::Device)];
    let home = prop_oneof![Just(Home::Process), Just(Home::Child)];
    let on = proptest::option::of(0usize..20);
    let holding = proptest::option::weighted(0.95, holding());
    (0u32..2, 0usize..5, on, holding, pool, home, size(), size()).prop_map(
        |(scope, model, on, holding, pool, home, overhead, mapped)| Wanted {
            scope,
            model,
            on,
            holding,
            pool,
            home,
            overhead,
            mapped,
        },
    )
}

fn event() -> impl Strategy<Value = Event> {
    let any = || 0usize..20;
    prop_oneof![
        8 => (wanted(), env(), proptest::bool::weighted(0.1))
            .prop_map(|(ask, env, is_forced)| Event::Reserve { ask, env, is_forced }),
        3 => (any(), proptest::option::of(any()), holding(), env())
            .prop_map(|(charge, on, measured, env)| Event::Measure { charge, on, measured, env }),
        5 => any().prop_map(|charge| Event::Launch { charge }),
        4 => (any(), size()).prop_map(|(allocation, actual)| Event::Publish { allocation, actual }),
        2 => (any(), size()).prop_map(|(allocation, visible)| Event::Observe { allocation, visible }),
        3 => any().prop_map(|allocation| Event::Drain { allocation }),
        1 => any().prop_map(|allocation| Event::Lose { allocation }),
        3 => any().prop_map(|allocation| Event::Exit { allocation }),
        2 => any().prop_map(|allocation| Event::Abandon { allocation }),
        6 => any().prop_map(|charge| Event::Release { charge }),
        1 => proptest::collection::vec(0usize..5, 1..4).prop_map(|names| Event::Alias { names }),
        2 => (0u32..2, 0usize..5).prop_map(|(scope, model)| Event::Maintain { scope, model }),
        2 => any().prop_map(|index| Event::EndMaintenance { index }),
        1 => (0u32..2, 0usize..5).prop_map(|(scope, model)| Event::GiveUp { scope, model }),
    ]
}

fn model(index: usize) -> ModelId {
    ModelId::new(["a", "b", "c", "d", "e"][index])
}

/// The table under test, and beside it the account.
#[derive(Default)]
struct World {
    ledger: Ledger,
    charges: BTreeMap<ChargeId, (Pool, Bytes, Option<Holding>)>,
    allocations: BTreeMap<AllocationId, (Pool, Holding)>,
    maintained: Vec<(ScopeId, ModelId)>,
}

fn weigh(pool: Pool, holding: Holding) -> Bytes {
    if pool == Pool::Host { holding.weights + holding.standing } else { holding.standing }
}

impl World {
    fn charge(&self, index: usize) -> Option<ChargeId> {
        let count = self.charges.len();
        (count > 0).then(|| *self.charges.keys().nth(index % count).expect("it is in range"))
    }

    fn allocation(&self, index: usize) -> Option<AllocationId> {
        let count = self.allocations.len();
        (count > 0).then(|| *self.allocations.keys().nth(index % count).expect("it is in range"))
    }

    fn account(&self) -> Bytes {
        let resident = self.allocations.values().map(|(pool, held)| weigh(*pool, *held));
        let active = self.charges.values().map(|(pool, overhead, cold)| {
            *overhead + cold.map_or(Bytes::ZERO, |cold| weigh(*pool, cold))
        });
        resident.chain(active).sum()
    }

    fn ask(&self, wanted: &Wanted) -> Ask {
        Ask {
            scope: ScopeId(wanted.scope),
            model: model(wanted.model),
            on: wanted.on.and_then(|index| self.allocation(index)),
            holding: wanted.holding,
            mapped: wanted.mapped,
            pool: wanted.pool,
            home: wanted.home,
            overhead: wanted.overhead,
        }
    }

    fn reserve(
        &mut self,
        wanted: &Wanted,
        env: &Env,
        is_forced: bool,
    ) -> Result<(), TestCaseError> {
        let ask = self.ask(wanted);
        let before = self.ledger.clone();
        let expected = self.ledger.preflight(&ask, env);
        more_room_never_refuses(&self.ledger, &ask, env, &expected)?;
        let charge = if is_forced {
            self.ledger.reserve_forced(&ask, env).0
        } else {
            match self.ledger.reserve(&ask, env) {
                Ok((charge, preflight)) => {
                    prop_assert_eq!(&preflight, &expected);
                    self.within_limits(&ask, env, &preflight)?;
                    charge
                }
                Err(refusal) => {
                    prop_assert_eq!(&refusal, &expected);
                    prop_assert_eq!(&self.ledger, &before);
                    return Ok(());
                }
            }
        };
        let cold = ask.holding.filter(|_| !expected.is_warm);
        self.charges.insert(charge, (ask.pool, ask.overhead, cold));
        Ok(())
    }

    /// Holds an admission against every limit that it was judged by.
    fn within_limits(
        &self,
        ask: &Ask,
        env: &Env,
        preflight: &Preflight,
    ) -> Result<(), TestCaseError> {
        if env.ceiling > Bytes::ZERO {
            prop_assert!(
                self.ledger.host() + env.others.clone().unwrap_or_default().charged <= env.ceiling
            );
        } else {
            prop_assert!(preflight.is_warm);
        }
        if let (Pool::Device(device), Some(total)) =
            (ask.pool, preflight.accelerator.and_then(|device| device.total))
        {
            prop_assert!(self.ledger.resident_on(device) + self.ledger.active_on(device) <= total);
        }
        if let Some(available) = env.available {
            let promised =
                self.ledger.unseen_host() + env.others.clone().unwrap_or_default().unseen;
            let from_disk = if preflight.verdict == Verdict::RunsFromDisk {
                prop_assert!(env.may_run_from_disk);
                preflight.mapped
            } else {
                Bytes::ZERO
            };
            let promised = promised + env.emergency_reserve;
            prop_assert!(promised.left_after(from_disk) <= available);
        }
        let (scope, model) = (ask.scope, &ask.model);
        prop_assert!(!self.ledger.is_in_transit(scope, model));
        prop_assert!(!self.ledger.is_maintained(scope, model));
        Ok(())
    }

    fn apply(&mut self, event: Event) -> Result<(), TestCaseError> {
        match event {
            Event::Reserve { ask, env, is_forced } => self.reserve(&ask, &env, is_forced)?,
            Event::Measure { charge, on, measured, env } => {
                let Some(charge) = self.charge(charge) else { return Ok(()) };
                let on = on.and_then(|index| self.allocation(index));
                let before = self.ledger.clone();
                let is_there = on
                    .and_then(|on| self.ledger.allocation(on))
                    .is_some_and(|held| matches!(held.phase, Phase::Loading | Phase::Resident));
                if self.ledger.measure(charge, on, measured, &env).is_ok() {
                    let held = self.charges.get_mut(&charge).expect("it is accounted for");
                    held.2 = (!is_there).then_some(measured);
                } else {
                    prop_assert_eq!(&self.ledger, &before);
                }
            }
            Event::Launch { charge } => {
                let Some(charge) = self.charge(charge) else { return Ok(()) };
                let held = self.charges.get_mut(&charge).expect("it is accounted for");
                let Some(cold) = held.2.take() else { return Ok(()) };
                let before = self.ledger.host();
                let allocation = self.ledger.launch(charge);
                prop_assert_eq!(self.ledger.host(), before);
                prop_assert!(self.allocations.insert(allocation, (held.0, cold)).is_none());
            }
            Event::Publish { allocation, actual } => {
                let Some(allocation) = self.allocation(allocation) else { return Ok(()) };
                self.ledger.publish(allocation, actual);
                let held = &mut self.allocations.get_mut(&allocation).expect("accounted").1;
                held.weights = held.weights.max(actual);
            }
            Event::Release { charge } => {
                let Some(charge) = self.charge(charge) else { return Ok(()) };
                self.ledger.release(charge);
                self.charges.remove(&charge);
            }
            event => self.apply_to_lifecycle(event)?,
        }
        Ok(())
    }

    fn apply_to_lifecycle(&mut self, event: Event) -> Result<(), TestCaseError> {
        let before = self.ledger.host();
        let phase = |world: &Self, id| world.ledger.allocation(id).map(|held| held.phase);
        match event {
            Event::Observe { allocation, visible } => {
                if let Some(id) = self.allocation(allocation) {
                    self.ledger.observe(id, visible);
                    prop_assert!(self.ledger.unseen_host() <= self.ledger.host());
                }
            }
            Event::Drain { allocation } => {
                if let Some(id) = self.allocation(allocation) {
                    self.ledger.drain(id);
                    prop_assert_eq!(self.ledger.host(), before);
                }
            }
            Event::Lose { allocation } => {
                if let Some(id) = self.allocation(allocation) {
                    self.ledger.lose(id);
                    prop_assert_eq!(self.ledger.host(), before);
                }
            }
            Event::Exit { allocation } => {
                if let Some(id) = self.allocation(allocation) {
                    self.ledger.exit(id);
                    self.allocations.remove(&id);
                }
            }
            Event::Abandon { allocation } => {
                if let Some(id) = self.allocation(allocation) {
                    let (was, home) = (phase(self, id), self.ledger.allocation(id).map(|a| a.home));
                    self.ledger.abandon(id);
                    let is_gone = was == Some(Phase::Resident)
                        || (was, home) == (Some(Phase::Loading), Some(Home::Process));
                    prop_assert_eq!(phase(self, id).is_none(), is_gone);
                    if is_gone {
                        self.allocations.remove(&id);
                    }
                }
            }
            Event::Alias { names } => {
                let names: Vec<ModelId> = names.into_iter().map(model).collect();
                self.ledger.alias(&names[0], &names);
                let group = self.ledger.resolve(&names[0]).clone();
                prop_assert!(names.iter().all(|name| *self.ledger.resolve(name) == group));
                prop_assert_eq!(self.ledger.resolve(&group), &group);
                prop_assert_eq!(self.ledger.host(), before);
            }
            Event::Maintain { scope, model: index } => {
                let (scope, model) = (ScopeId(scope), model(index));
                let is_free = self.ledger.active_requests(scope, &model) == 0
                    && !self.ledger.is_maintained(scope, &model);
                prop_assert_eq!(self.ledger.begin_maintenance(scope, &model).is_ok(), is_free);
                if is_free {
                    self.maintained.push((scope, model));
                }
            }
            Event::EndMaintenance { index } if !self.maintained.is_empty() => {
                let (scope, model) = self.maintained.remove(index % self.maintained.len());
                self.ledger.end_maintenance(scope, &model);
            }
            Event::GiveUp { scope, model: index } => {
                self.ledger.give_up(ScopeId(scope), &model(index));
                self.allocations.retain(|id, _| self.ledger.allocation(*id).is_some());
            }
            _ => {}
        }
        Ok(())
    }

    /// Ends everything, in an order that `seed` decides.
    fn end(&mut self, mut seed: usize) -> Result<(), TestCaseError> {
        while !self.charges.is_empty() || !self.allocations.is_empty() {
            seed = seed.wrapping_mul(31).wrapping_add(7);
            let event = if seed.is_multiple_of(2) {
                Event::Release { charge: seed / 2 }
            } else {
                Event::Exit { allocation: seed / 2 }
            };
            self.apply(event)?;
        }
        for (scope, model) in self.maintained.drain(..) {
            prop_assert!(self.ledger.is_maintained(scope, &model));
            self.ledger.end_maintenance(scope, &model);
        }
        let of_scope = |scope| (0..5).any(|index| self.ledger.is_maintained(scope, &model(index)));
        prop_assert!(![ScopeId(0), ScopeId(1)].into_iter().any(of_scope));
        prop_assert_eq!(self.ledger.host(), Bytes::ZERO);
        prop_assert_eq!(self.ledger.allocations().count() + self.ledger.charges().count(), 0);
        Ok(())
    }
}

fn more_room_never_refuses(
    ledger: &Ledger,
    ask: &Ask,
    env: &Env,
    judged: &Preflight,
) -> Result<(), TestCaseError> {
    let more = Env {
        // A ceiling of zero is a policy of its own, which a resident model is not held to.
        ceiling: if env.ceiling == Bytes::ZERO { Bytes::ZERO } else { env.ceiling * 2 },
        available: env.available.map(|available| available * 2),
        ..env.clone()
    };
    let with_more = ledger.preflight(ask, &more).verdict.admits();
    prop_assert!(with_more || !judged.verdict.admits());
    let fewer = Ask { overhead: Bytes::ZERO, ..ask.clone() };
    prop_assert!(ledger.preflight(&fewer, env).verdict.admits() || !judged.verdict.admits());
    Ok(())
}

#[test]
fn a_million_events_keep_every_invariant() {
    let mut runner =
        TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(HISTORIES) });
    let histories = (proptest::collection::vec(event(), EVENTS), any::<usize>());
    let outcome = runner.run(&histories, |(events, seed)| {
        let mut world = World::default();
        for event in events {
            world.apply(event)?;
            prop_assert_eq!(world.ledger.host(), world.account());
            let parts = world.ledger.resident_host() + world.ledger.active_host();
            prop_assert_eq!(world.ledger.host(), parts);
        }
        world.end(seed)
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}
