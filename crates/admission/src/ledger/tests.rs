//! What has to come out where the reference is wrong, and transitions that no handle allows.

use super::{
    AllocationId, Ask, Charge, ChargeId, Env, Holding, Home, Ledger, MaintenanceError, ModelId,
    Outside, Phase, Pool, ScopeId, Verdict,
};
use crate::units::Bytes;

fn mib(mib: u64) -> Bytes {
    Bytes::from_mib(mib)
}

fn weights(of: u64) -> Holding {
    Holding { weights: mib(of), standing: Bytes::ZERO }
}

/// A machine with room for everything.
fn roomy() -> Env {
    Env {
        ceiling: mib(100_000),
        available: Some(mib(100_000)),
        others: Some(Outside::default()),
        ..Env::default()
    }
}

fn model(name: &str) -> ModelId {
    ModelId::new(name)
}

fn ask(name: &str, of: u64, overhead: u64) -> Ask {
    Ask {
        scope: ScopeId(1),
        model: model(name),
        on: None,
        holding: Some(weights(of)),
        mapped: Bytes::ZERO,
        pool: Pool::Host,
        home: Home::Child,
        overhead: mib(overhead),
    }
}

fn warm(name: &str, on: AllocationId, overhead: u64) -> Ask {
    Ask { on: Some(on), ..ask(name, 0, overhead) }
}

fn reserve(ledger: &mut Ledger, ask: &Ask) -> ChargeId {
    ledger.reserve(ask, &roomy()).expect("there is room for everything").0
}

fn load(ledger: &mut Ledger, name: &str, of: u64, overhead: u64) -> (ChargeId, AllocationId) {
    let charge = reserve(ledger, &ask(name, of, overhead));
    let allocation = ledger.launch(charge);
    ledger.publish(allocation, mib(of));
    (charge, allocation)
}

fn host(ledger: &Ledger, charge: ChargeId) -> Bytes {
    ledger.charge_of(charge).map_or(Bytes::ZERO, Charge::host)
}

#[test]
fn a_request_whose_weights_have_gone_keeps_its_overhead() {
    let mut ledger = Ledger::default();
    let (first, allocation) = load(&mut ledger, "m", 2400, 0);
    ledger.release(first);
    let second = reserve(&mut ledger, &warm("m", allocation, 2336));
    assert_eq!(host(&ledger, second), mib(2336));
    ledger.exit(allocation);
    ledger.measure(second, None, weights(3072), &roomy()).unwrap();
    assert_eq!(host(&ledger, second), mib(5408));
}

#[test]
fn a_peer_is_left_alone_by_a_replacement() {
    let mut ledger = Ledger::default();
    let (peer, _) = load(&mut ledger, "peer", 0, 1000);
    load(&mut ledger, "l", 512, 0);
    let replacement = reserve(&mut ledger, &ask("l", 512, 128));
    assert_eq!(host(&ledger, replacement), mib(640), "a replacement pays for itself");
    ledger.measure(replacement, None, weights(512), &roomy()).unwrap();
    assert_eq!(host(&ledger, replacement), mib(640));
    let allocation = ledger.launch(replacement);
    ledger.publish(allocation, mib(512));
    ledger.release(replacement);
    assert_eq!(host(&ledger, peer), mib(1000));
}

#[test]
fn a_refused_measurement_changes_nothing() {
    let mut ledger = Ledger::default();
    let (peer, _) = load(&mut ledger, "peer", 0, 1000);
    let (_, allocation) = load(&mut ledger, "m", 100, 0);
    let charge = reserve(&mut ledger, &warm("m", allocation, 64));
    ledger.exit(allocation);
    let before = ledger.clone();
    let tight = Env { ceiling: mib(1100), ..roomy() };
    let refusal = ledger.measure(charge, None, weights(100), &tight).unwrap_err();
    assert_eq!(refusal.verdict, Verdict::ExceedsConfiguredCeiling);
    assert_eq!(ledger, before);
    ledger.release(charge);
    assert_eq!(host(&ledger, peer), mib(1000));
}

#[test]
fn a_load_that_is_given_up_takes_from_nobody_else() {
    let mut ledger = Ledger::default();
    let (peer, _) = load(&mut ledger, "peer", 0, 3000);
    let charge = reserve(&mut ledger, &ask("m", 1000, 10));
    let allocation = ledger.launch(charge);
    ledger.abandon(allocation);
    assert_eq!(ledger.allocation(allocation).unwrap().phase, Phase::Draining);
    ledger.release(charge);
    ledger.exit(allocation);
    assert_eq!(host(&ledger, peer), mib(3000));
    assert_eq!(ledger.host(), mib(3000));
}

#[test]
fn weights_never_shrink_while_they_are_there() {
    let mut ledger = Ledger::default();
    let (_, allocation) = load(&mut ledger, "m", 3000, 0);
    ledger.publish(allocation, mib(1000));
    assert_eq!(ledger.resident_host(), mib(3000));

    let (_, other) = load(&mut ledger, "other", 1500, 0);
    ledger.publish(other, mib(1000));
    assert_eq!(ledger.resident_host(), mib(4500));
}

#[test]
fn memory_that_is_promised_is_no_less_than_what_is_measured() {
    let mut ledger = Ledger::default();
    let charge = reserve(&mut ledger, &ask("m", 100, 0));
    let allocation = ledger.launch(charge);
    ledger.publish(allocation, mib(500));
    ledger.drain(allocation);
    assert_eq!(ledger.resident_host(), mib(500));
}

#[test]
fn maintenance_ends_although_the_model_was_given_another_name_meanwhile() {
    let mut ledger = Ledger::default();
    let (scope, old) = (ScopeId(1), model("old"));
    ledger.begin_maintenance(scope, &old).unwrap();
    ledger.alias(&model("new"), std::slice::from_ref(&old));
    assert!(ledger.is_maintained(scope, &model("new")));
    ledger.end_maintenance(scope, &old);
    assert!(!ledger.is_maintained(scope, &model("new")));
    assert!(!ledger.is_maintained(scope, &old));
}

#[test]
fn what_is_given_back_is_told_before_maintenance() {
    let mut ledger = Ledger::default();
    let (charge, allocation) = load(&mut ledger, "m", 100, 0);
    ledger.release(charge);
    ledger.begin_maintenance(ScopeId(1), &model("m")).unwrap();
    let request = ask("m", 100, 0);
    assert_eq!(ledger.preflight(&request, &roomy()).verdict, Verdict::ModelMaintenance);
    ledger.drain(allocation);
    assert_eq!(ledger.preflight(&request, &roomy()).verdict, Verdict::PendingTeardown);
    assert_eq!(ledger.reserve(&request, &roomy()).unwrap_err().verdict, Verdict::PendingTeardown);
}

#[test]
fn a_model_in_use_is_not_maintained_under_any_of_its_names() {
    let mut ledger = Ledger::default();
    let (charge, _) = load(&mut ledger, "one", 100, 10);
    ledger.alias(&model("one"), &[model("two")]);
    let begin = |ledger: &mut Ledger, name| ledger.begin_maintenance(ScopeId(1), &model(name));
    assert_eq!(begin(&mut ledger, "two"), Err(MaintenanceError::InUse(model("two"))));
    ledger.release(charge);
    begin(&mut ledger, "two").unwrap();
    assert_eq!(begin(&mut ledger, "one"), Err(MaintenanceError::AlreadyBegun(model("one"))));
    assert_eq!(ledger.begin_maintenance(ScopeId(2), &model("one")), Ok(()), "another state root");
}

#[test]
fn a_request_on_weights_that_are_on_their_way_does_not_charge_them_again() {
    let mut ledger = Ledger::default();
    let first = reserve(&mut ledger, &ask("m", 1000, 10));
    let allocation = ledger.launch(first);
    let second = reserve(&mut ledger, &Ask { on: Some(allocation), ..ask("m", 1000, 10) });
    assert_eq!(host(&ledger, second), mib(10));
    assert_eq!(ledger.host(), mib(1020));
}

#[test]
fn weights_of_unknown_size_are_refused_and_never_nothing() {
    let ledger = Ledger::default();
    let request = Ask { holding: None, ..ask("m", 0, 10) };
    assert_eq!(ledger.preflight(&request, &roomy()).verdict, Verdict::WeightsUnknown);
}

#[test]
fn sums_that_are_too_large_fit_nowhere() {
    let endless = Env { ceiling: Bytes::MAX, available: Some(Bytes::MAX), ..roomy() };
    let mut ledger = Ledger::default();
    let half = u64::MAX >> 21;
    reserve(&mut ledger, &ask("small", 1, 0));
    let huge = Ask {
        holding: Some(Holding { weights: Bytes::new(u64::MAX / 2), standing: mib(half) }),
        ..ask("huge", 0, half)
    };
    let verdict = ledger.preflight(&huge, &endless).verdict;
    assert_eq!(verdict, Verdict::ExceedsConfiguredCeiling);
    ledger.reserve_forced(&huge, &endless);
    assert_eq!(ledger.host(), Bytes::MAX);
    let verdict = ledger.preflight(&ask("one", 1, 0), &endless).verdict;
    assert_eq!(verdict, Verdict::ExceedsConfiguredCeiling);
}

#[test]
fn of_several_groups_of_names_the_oldest_gives_the_name() {
    let mut ledger = Ledger::default();
    ledger.alias(&model("z"), &[model("a")]);
    ledger.alias(&model("b"), &[model("y")]);
    ledger.alias(&model("n"), &[model("y"), model("a")]);
    for name in ["z", "a", "b", "y", "n"] {
        assert_eq!(ledger.resolve(&model(name)), &model("z"), "{name}");
    }
    assert_eq!(ledger.resolve(&model("other")), &model("other"));
}

#[test]
fn requests_count_under_all_names_and_in_their_scope() {
    let mut ledger = Ledger::default();
    let charge = reserve(&mut ledger, &ask("one", 1, 1));
    ledger.alias(&model("group"), &[model("one"), model("two")]);
    assert_eq!(ledger.active_requests(ScopeId(1), &model("two")), 1);
    assert_eq!(ledger.active_requests(ScopeId(2), &model("two")), 0);
    ledger.release(charge);
    assert_eq!(ledger.active_requests(ScopeId(1), &model("two")), 0);
}

#[test]
fn a_closed_scope_leaves_nothing_and_takes_nothing_of_others() {
    let mut ledger = Ledger::default();
    load(&mut ledger, "m", 100, 10);
    let other = reserve(&mut ledger, &Ask { scope: ScopeId(2), ..ask("m", 50, 5) });
    ledger.close(ScopeId(1));
    assert_eq!(ledger.host(), mib(55));
    assert_eq!(host(&ledger, other), mib(55));
}

#[test]
fn a_request_that_adds_nothing_waits_too_while_more_is_promised_than_there_is() {
    let mut ledger = Ledger::default();
    let (_, on) = load(&mut ledger, "model", 1000, 0);
    ledger.reserve_forced(&ask("other", 5000, 0), &roomy());
    let with = |available| Env { available: Some(mib(available)), ..roomy() };
    let verdict = |available| ledger.preflight(&warm("model", on, 0), &with(available)).verdict;
    assert_eq!(verdict(5999), Verdict::InsufficientLiveMemory);
    assert_eq!(verdict(6000), Verdict::Allowed);
}

#[test]
fn an_overdue_end_stays_charged_until_it_is_given_up() {
    let mut ledger = Ledger::default();
    let (charge, allocation) = load(&mut ledger, "m", 100, 0);
    ledger.release(charge);
    assert_eq!(ledger.give_up(ScopeId(1), &model("m")), 0, "it is not overdue");
    ledger.drain(allocation);
    ledger.lose(allocation);
    assert_eq!((ledger.host(), ledger.give_up(ScopeId(1), &model("m"))), (mib(100), 1));
    assert_eq!(ledger.host(), Bytes::ZERO);
}

#[test]
fn what_other_processes_hold_counts_for_the_ceiling_and_what_is_unseen_for_free_memory() {
    let ledger = Ledger::default();
    let others = Some(Outside { charged: mib(600), unseen: mib(200), ..Outside::default() });
    let request = ask("m", 400, 0);
    let judge = |ceiling, available| {
        let env = Env {
            ceiling: mib(ceiling),
            available: Some(mib(available)),
            others: others.clone(),
            ..Env::default()
        };
        ledger.preflight(&request, &env).verdict
    };
    assert_eq!(judge(1000, 600), Verdict::Allowed);
    assert_eq!(judge(999, 600), Verdict::ExceedsConfiguredCeiling);
    assert_eq!(judge(1000, 599), Verdict::InsufficientLiveMemory);
}

#[test]
fn mapped_weights_that_no_reading_shows_are_taken_off_what_is_free() {
    let mut ledger = Ledger::default();
    let (charge, allocation) = load(&mut ledger, "mapped", 1000, 0);
    ledger.release(charge);
    let env = Env { available: Some(mib(1500)), ..roomy() };
    let second = ask("second", 1000, 0);
    assert_eq!(ledger.preflight(&second, &env).verdict, Verdict::InsufficientLiveMemory);
    ledger.observe(allocation, mib(500));
    assert_eq!(ledger.preflight(&second, &env).verdict, Verdict::Allowed);
}

#[test]
fn a_pressed_system_takes_no_new_model_and_goes_on_with_those_that_are_there() {
    let mut ledger = Ledger::default();
    let (_, allocation) = load(&mut ledger, "m", 100, 0);
    let pressed = Env { is_pressed: true, ..roomy() };
    assert_eq!(ledger.preflight(&ask("new", 1, 0), &pressed).verdict, Verdict::MemoryPressure);
    assert_eq!(ledger.preflight(&warm("m", allocation, 1), &pressed).verdict, Verdict::Allowed);
}

#[test]
fn nothing_new_comes_while_nobody_knows_what_other_processes_hold() {
    let mut ledger = Ledger::default();
    let (_, allocation) = load(&mut ledger, "m", 100, 0);
    let blind = Env { others: None, ..roomy() };
    assert_eq!(ledger.preflight(&ask("new", 1, 0), &blind).verdict, Verdict::OthersUnknown);
    assert_eq!(ledger.preflight(&warm("m", allocation, 1), &blind).verdict, Verdict::Allowed);
}

#[test]
fn the_room_is_exactly_what_is_admitted() {
    let mut ledger = Ledger::default();
    load(&mut ledger, "m", 100, 30);
    let others = Some(Outside { charged: mib(50), unseen: mib(7), ..Outside::default() });
    for (ceiling, available) in [(1000, 900), (1000, 5000), (100, 100), (181, 5000)] {
        let env = Env {
            ceiling: mib(ceiling),
            available: Some(mib(available)),
            emergency_reserve: mib(20),
            others: others.clone(),
            ..Env::default()
        };
        let room = ledger.preflight(&ask("new", 0, 0), &env).room().ceil_mib();
        let admits = |size| ledger.preflight(&ask("new", size, 0), &env).verdict.admits();
        assert_eq!((admits(room), admits(room + 1)), (room > 0, false), "{ceiling} {available}");
    }
}

#[test]
fn mapped_weights_without_room_run_from_disk_only_where_that_is_allowed() {
    let ledger = Ledger::default();
    let request = Ask { mapped: mib(900), ..ask("m", 900, 100) };
    let judge = |may_run_from_disk, available| {
        let env = Env { may_run_from_disk, available: Some(mib(available)), ..roomy() };
        ledger.preflight(&request, &env).verdict
    };
    assert_eq!(judge(true, 1000), Verdict::Allowed);
    assert_eq!(judge(true, 999), Verdict::RunsFromDisk);
    assert_eq!(judge(true, 100), Verdict::RunsFromDisk);
    assert_eq!(judge(true, 99), Verdict::InsufficientLiveMemory);
    assert_eq!(judge(false, 999), Verdict::InsufficientLiveMemory);
}
