//! The flows of the reference, step by step, and what has to come out where the reference is wrong.
//!
//! Sizes are in MiB; the figures are those of the rules that were handed to us, not of this code.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use toko_admission::handles::{
    Admission, Admitted, Charged, Reservation, Resident, Snapshot, Surroundings,
};
use toko_admission::ledger::{
    AllocationId, Ask, Env, Holding, Home, ModelId, Outside, Pool, Preflight, ScopeId, Verdict,
};
use toko_admission::units::Bytes;

/// What one request needs beside the weights of a 4B model at 2,048 tokens.
const OVERHEAD_METAL: u64 = 1824;
const WEIGHTS: u64 = 2400;
const RESERVE: u64 = 3276;

const LARGE: u64 = 20_000;

/// Numbers that a test changes between steps, and whether others can't be told.
#[derive(Clone, Default)]
struct Numbers(Arc<Mutex<Env>>, Arc<AtomicBool>);

impl Surroundings for Numbers {
    fn decide(&self, decide: &mut dyn FnMut(&Env) -> Snapshot) -> bool {
        decide(&self.0.lock().expect("no step panics"));
        !self.1.load(Ordering::SeqCst)
    }

    fn tell(&self, _snapshot: &dyn Fn() -> Snapshot) {}

    fn used(&self, _model: &ModelId, _is_pinned: bool) {}
}

impl Numbers {
    fn set(&self, change: impl FnOnce(&mut Env)) {
        change(&mut self.0.lock().expect("no step panics"));
    }
}

/// A machine of 32 GiB under a ceiling, with so much left.
fn machine(ceiling: u64, available: u64) -> (Admission, Numbers) {
    let numbers = Numbers::default();
    numbers.set(|env| {
        env.ceiling = Bytes::from_mib(ceiling);
        env.emergency_reserve = Bytes::from_mib(RESERVE);
        env.available = Some(Bytes::from_mib(available));
        env.others = Some(Outside::default());
    });
    (Admission::new(Box::new(numbers.clone()), ScopeId(1)), numbers)
}

fn weights(mib: u64) -> Holding {
    Holding { weights: Bytes::from_mib(mib), standing: Bytes::ZERO }
}

fn ask(model: &str, weights_mib: u64, overhead_mib: u64) -> Ask {
    Ask {
        scope: ScopeId(1),
        model: ModelId::new(model),
        on: None,
        holding: Some(weights(weights_mib)),
        mapped: Bytes::ZERO,
        pool: Pool::Host,
        home: Home::Child,
        overhead: Bytes::from_mib(overhead_mib),
    }
}

fn cold(admission: &Admission, ask: &Ask) -> Reservation {
    match admission.reserve(ask) {
        Ok((Admitted::Cold(reservation), _)) => reservation,
        other => panic!("a cold reservation was expected, not {other:?}"),
    }
}

fn warm(admission: &Admission, ask: &Ask) -> Arc<Charged> {
    match admission.reserve(ask) {
        Ok((Admitted::Warm(charged), _)) => charged,
        other => panic!("a warm reservation was expected, not {other:?}"),
    }
}

/// Loads a model as other processes do, so that readings see all of it at once.
fn load(reservation: Reservation, mib: u64) -> (Arc<Charged>, Resident) {
    let (charged, loading) = reservation.launch();
    let resident = loading.publish(Bytes::from_mib(mib));
    resident.observe(Bytes::MAX);
    (charged, resident)
}

fn on(ask: &Ask, allocation: AllocationId) -> Ask {
    Ask { on: Some(allocation), ..ask.clone() }
}

fn totals(admission: &Admission) -> (u64, u64) {
    admission.look(|ledger| (ledger.active_host().ceil_mib(), ledger.resident_host().ceil_mib()))
}

fn verdict(admission: &Admission, ask: &Ask) -> Verdict {
    admission.preflight(ask).verdict
}

fn incremental(preflight: &Preflight) -> u64 {
    preflight.incremental.ceil_mib()
}

#[test]
fn a_load_is_reserved_measured_published_and_its_request_released() {
    let (admission, _) = machine(8192, 16_000);
    let request = ask("qwen3-4b", WEIGHTS, OVERHEAD_METAL);
    let preflight = admission.preflight(&request);
    assert_eq!(
        (incremental(&preflight), preflight.ceiling.ceil_mib(), preflight.verdict),
        (4224, 8192, Verdict::Allowed)
    );
    let reservation = cold(&admission, &request);
    assert_eq!(totals(&admission), (4224, 0));
    let Ok(Admitted::Cold(reservation)) = reservation.measure(None, weights(3072)) else {
        panic!("3 GiB fit")
    };
    assert_eq!(totals(&admission), (4896, 0));
    let (charged, resident) = load(reservation, 3072);
    assert_eq!(totals(&admission), (1824, 3072));
    let preflight = admission.preflight(&on(&request, resident.id()));
    assert_eq!((incremental(&preflight), preflight.resident.ceil_mib()), (1824, 3072));
    drop(charged);
    assert_eq!(totals(&admission), (0, 3072));
    drop(resident);
    assert_eq!(totals(&admission), (0, 0));
}

#[test]
fn free_memory_admits_at_equality() {
    let (admission, numbers) = machine(8192, 0);
    let request = ask("qwen3-4b", WEIGHTS, OVERHEAD_METAL);
    for (available, expected) in [
        (7499, Verdict::InsufficientLiveMemory),
        (7500, Verdict::Allowed),
        (7501, Verdict::Allowed),
    ] {
        numbers.set(|env| env.available = Some(Bytes::from_mib(available)));
        assert_eq!(verdict(&admission, &request), expected, "{available}");
    }
}

#[test]
fn the_ceiling_admits_at_equality() {
    for (ceiling, weights, expected) in [
        (4096, WEIGHTS, Verdict::ExceedsConfiguredCeiling),
        (4608, WEIGHTS, Verdict::Allowed),
        (4096, 2272, Verdict::Allowed),
        (4096, 2273, Verdict::ExceedsConfiguredCeiling),
    ] {
        let (admission, _) = machine(ceiling, LARGE);
        let request = ask("qwen3-4b", weights, OVERHEAD_METAL);
        assert_eq!(verdict(&admission, &request), expected, "{ceiling} {weights}");
    }
}

#[test]
fn weights_on_an_accelerator_count_there_and_the_rest_on_the_host() {
    let (admission, numbers) = machine(8192, LARGE);
    let request = Ask { pool: Pool::Device(0), ..ask("qwen3-4b", WEIGHTS, OVERHEAD_METAL) };
    for (total, expected) in [(2400, Verdict::Allowed), (2399, Verdict::ExceedsConfiguredCeiling)] {
        numbers.set(|env| env.devices = vec![Some(Bytes::from_mib(total))]);
        assert_eq!(verdict(&admission, &request), expected, "{total}");
    }
    // A device whose memory nobody knows is no place: the weights are asked for on the host.
    numbers.set(|env| env.devices = vec![None]);
    let preflight = admission.preflight(&ask("qwen3-4b", WEIGHTS, OVERHEAD_METAL));
    assert_eq!(incremental(&preflight), 4224);
    assert!(preflight.accelerator.is_none());
}

#[test]
fn a_ceiling_of_nothing_stops_loads_and_no_request_on_what_is_there() {
    let (admission, numbers) = machine(8192, LARGE);
    let request = ask("qwen3-4b", WEIGHTS, OVERHEAD_METAL);
    let (charged, resident) = load(cold(&admission, &request), WEIGHTS);
    drop(charged);
    let request = on(&request, resident.id());
    for (available, expected) in [
        (Some(5099), Verdict::InsufficientLiveMemory),
        (Some(5100), Verdict::Allowed),
        (None, Verdict::LiveMemoryUnknown),
    ] {
        numbers.set(|env| {
            env.ceiling = Bytes::ZERO;
            env.available = available.map(Bytes::from_mib);
        });
        assert_eq!(verdict(&admission, &request), expected, "{available:?}");
    }
    assert_eq!(
        verdict(&admission, &ask("other", 1, 0)),
        Verdict::DisabledByPolicy,
        "a ceiling of nothing lets nothing new in"
    );
}

#[test]
fn a_ceiling_of_nothing_still_respects_the_accelerator() {
    let (admission, numbers) = machine(8192, LARGE);
    numbers.set(|env| env.devices = vec![Some(Bytes::from_mib(8000))]);
    let request = Ask { pool: Pool::Device(0), ..ask("qwen3-4b", WEIGHTS, OVERHEAD_METAL) };
    let (_charged, resident) = load(cold(&admission, &request), WEIGHTS);
    numbers.set(|env| {
        env.ceiling = Bytes::ZERO;
        env.devices = vec![Some(Bytes::from_mib(100))];
    });
    let request = on(&request, resident.id());
    assert_eq!(verdict(&admission, &request), Verdict::ExceedsConfiguredCeiling);
}

#[test]
fn the_second_request_waits_for_the_room_of_the_first() {
    let (admission, _) = machine(5120, LARGE);
    let request = ask("qwen3-4b", WEIGHTS, OVERHEAD_METAL);
    let (charged, resident) = load(cold(&admission, &request), WEIGHTS);
    let request = on(&request, resident.id());
    assert_eq!(verdict(&admission, &request), Verdict::ExceedsConfiguredCeiling);
    drop(charged);
    let charged = warm(&admission, &request);
    let refusal = admission.reserve(&request).unwrap_err();
    assert_eq!(refusal.verdict, Verdict::ExceedsConfiguredCeiling);
    assert_eq!(
        (refusal.resident + refusal.active + refusal.incremental).ceil_mib(),
        2400 + 1824 + 1824
    );
    drop(charged);
    drop(warm(&admission, &request));
}

#[test]
fn two_state_roots_share_one_machine() {
    let (first, _) = machine(6144, LARGE);
    let second = first.for_scope(ScopeId(2));
    let request = ask("m", 2048, 1536);
    let reservation = cold(&first, &request);
    let other = Ask { scope: ScopeId(2), ..request };
    assert_eq!(second.reserve(&other).unwrap_err().verdict, Verdict::ExceedsConfiguredCeiling);
    drop(reservation);
    drop(cold(&second, &other));
}

#[test]
fn weights_on_an_accelerator_go_through_a_load() {
    let (admission, numbers) = machine(8192, LARGE);
    numbers.set(|env| env.devices = vec![Some(Bytes::from_mib(8000))]);
    let request = Ask { pool: Pool::Device(0), ..ask("qwen3-4b", WEIGHTS, OVERHEAD_METAL) };
    let on_device = |admission: &Admission| {
        admission.look(|ledger| (ledger.active_on(0).ceil_mib(), ledger.resident_on(0).ceil_mib()))
    };
    let reservation = cold(&admission, &request);
    assert_eq!((totals(&admission), on_device(&admission)), ((1824, 0), (2400, 0)));
    let Ok(Admitted::Cold(reservation)) = reservation.measure(None, weights(3000)) else {
        panic!("3000 MiB fit")
    };
    assert_eq!(on_device(&admission), (3000, 0));
    let (_charged, resident) = load(reservation, 3000);
    assert_eq!((totals(&admission), on_device(&admission)), ((1824, 0), (0, 3000)));
    let preflight = admission.preflight(&on(&request, resident.id()));
    let accelerator = preflight.accelerator.unwrap();
    assert_eq!(preflight.resident, Bytes::ZERO);
    assert_eq!(accelerator.resident, Bytes::from_mib(3000));
    assert_eq!(accelerator.incremental, Bytes::ZERO);
}

#[test]
fn measured_bytes_round_up_and_stay_charged_until_the_end_is_seen() {
    let (admission, _) = machine(8192, LARGE);
    let measured = Bytes::new((1 << 30) + 1).up_to_mib();
    let request = Ask {
        holding: Some(Holding { weights: measured, standing: Bytes::ZERO }),
        ..ask("worker", 0, 128)
    };
    let reservation = cold(&admission, &request);
    assert_eq!(totals(&admission), (1153, 0));
    let (charged, loading) = reservation.launch();
    assert_eq!(totals(&admission), (128, 1025));
    let resident = loading.publish(Bytes::from_mib(2000));
    assert_eq!(totals(&admission), (128, 2000));
    let draining = resident.drain();
    drop(charged);
    assert_eq!(totals(&admission), (0, 2000));
    draining.exited();
    assert_eq!(totals(&admission), (0, 0));
}

#[test]
fn a_request_keeps_its_charge_until_its_last_holder_is_gone() {
    let (admission, _) = machine(8192, LARGE);
    let (charged, loading) = cold(&admission, &ask("m", 100, 50)).launch();
    let detached = Arc::clone(&charged);
    drop(charged);
    let watched = admission.clone();
    drop(admission);
    assert_eq!(totals(&watched), (50, 100));
    drop(detached);
    assert_eq!(totals(&watched), (0, 100));
    drop(loading);
    assert_eq!(totals(&watched), (0, 100), "what a child was loading may still be there");
}

#[test]
fn another_scopes_copy_of_a_model_is_no_discount() {
    let (admission, _) = machine(20_000, LARGE);
    let request = ask("m", WEIGHTS, 2048);
    let (_charged, resident) = load(cold(&admission, &request), WEIGHTS);
    let own = admission.preflight(&on(&request, resident.id()));
    let other = admission.preflight(&Ask { scope: ScopeId(2), ..request });
    assert_eq!((incremental(&own), incremental(&other)), (2048, 4448));
}

#[test]
fn what_others_could_not_be_told_of_is_not_admitted() {
    let (admission, numbers) = machine(8192, LARGE);
    numbers.1.store(true, Ordering::SeqCst);
    let refusal = admission.reserve(&ask("m", 100, 10)).unwrap_err();
    assert_eq!((refusal.verdict, totals(&admission)), (Verdict::OthersUnknown, (0, 0)));
}
