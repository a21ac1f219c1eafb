//! The promises P1 to P20 of the engine pool, each under its number; those about a running batch are in the worker's tests.

use std::cell::Cell;
use std::future::{pending, ready};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use toko_admission::handles::Admission;
use toko_engine::{
    Applicant, Decoding, Engine, Error, Event, Lease, Metrics, Occupancy, Options, Pool, Replica,
    Sampling, default_pool_size, resolve_pool_size,
};

use crate::harness::{
    Answer, GREEDY, OPTIONS, answer_to, ask, block_on, collect, embedded, params, run, submit,
};

/// "Once upon a time": the model goes on for hundreds of tokens.
const STORY: [u32; 4] = [603, 874, 257, 465];

/// A pool of the numbers from 0, and of 100 and up after those.
fn numbers(size: usize, queue_limit: usize) -> Pool<u32> {
    let next = Mutex::new(0);
    Pool::new(size, queue_limit, move || {
        let mut next = next.lock().expect("nobody panics here");
        *next += 1;
        *next - 1
    })
}

fn lease(pool: &Pool<u32>) -> Lease<u32> {
    block_on(pool.acquire(pending())).expect("a replica is idle")
}

fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn whole(size: usize) -> Occupancy {
    Occupancy { size, idle: size, leased: 0, lost: 0, waiting: 0 }
}

#[test]
fn p01_acquire_waits_for_an_idle_replica_and_lends_it_to_one_alone() {
    let pool = numbers(2, 9);
    let (first, second) = (lease(&pool), lease(&pool));
    assert_ne!(*first, *second);
    let mut third = pin!(pool.acquire(pending()));
    assert!(poll(third.as_mut()).is_pending());
    let number = *first;
    drop(first);
    assert_eq!(*block_on(third).expect("it is idle again"), number);
}

#[test]
fn p02_a_lease_gives_its_replica_back_however_it_ends() {
    let pool = numbers(1, 9);
    let fail = |lease: Lease<u32>| -> Result<(), u32> { Err(*lease) };
    assert_eq!(fail(lease(&pool)), Err(0));
    assert_eq!(pool.occupancy(), whole(1));

    let held = lease(&pool);
    let unwound = catch_unwind(AssertUnwindSafe(move || {
        assert_eq!(*held, 99, "a panic that this test wants");
    }));
    assert!(unwound.is_err());
    assert_eq!(pool.occupancy(), whole(1));

    let mut task = Box::pin(async {
        let _held = pool.acquire(pending()).await;
        pending::<()>().await;
    });
    assert!(poll(task.as_mut()).is_pending());
    assert_eq!(pool.occupancy().leased, 1);
    drop(task);
    assert_eq!(pool.occupancy(), whole(1));
    assert_eq!(*lease(&pool), 0, "whoever gets a permit finds the replica");
}

#[test]
fn p03_nobody_holds_the_lock_while_waiting() {
    let pool = numbers(1, 9);
    let held = lease(&pool);
    let mut waiting = [(); 3].map(|()| Box::pin(pool.acquire(pending())));
    for acquire in &mut waiting {
        assert!(poll(acquire.as_mut()).is_pending());
    }
    // This takes the lock: if a waiting task held it, nobody would ever answer.
    assert_eq!(pool.occupancy(), Occupancy { size: 1, idle: 0, leased: 1, lost: 0, waiting: 3 });
    drop(held);
}

/// What may happen to a pool; numbers are taken modulo what there is.
#[derive(Debug, Clone)]
enum Step {
    Enter,
    Leave(usize),
    Take(usize),
    GiveBack(usize),
}

proptest! {
    #[test]
    fn p04_idle_and_leased_are_always_the_size(
        size in 1usize..5,
        limit in 0usize..4,
        steps in proptest::collection::vec(prop_oneof![
            3 => Just(Step::Enter),
            1 => (0usize..9).prop_map(Step::Leave),
            3 => (0usize..9).prop_map(Step::Take),
            2 => (0usize..9).prop_map(Step::GiveBack),
        ], 1..80),
    ) {
        let pool = numbers(size, limit);
        let (mut turns, mut leases) = (Vec::new(), Vec::new());
        for step in steps {
            match step {
                Step::Enter => turns.extend(pool.enter().ok().map(|turn| Box::pin(turn.lease(pending())))),
                Step::Leave(index) if !turns.is_empty() => drop(turns.remove(index % turns.len())),
                Step::Take(index) if !turns.is_empty() => {
                    let index = index % turns.len();
                    if let Poll::Ready(lease) = poll(turns[index].as_mut()) {
                        drop(turns.remove(index));
                        leases.push(lease.expect("nobody closes or poisons this pool"));
                    }
                }
                Step::GiveBack(index) if !leases.is_empty() => drop(leases.remove(index % leases.len())),
                Step::Leave(_) | Step::Take(_) | Step::GiveBack(_) => {}
            }
            let occupancy = pool.occupancy();
            prop_assert_eq!(occupancy.idle + leases.len(), size);
            prop_assert_eq!(occupancy.leased, leases.len());
            prop_assert!(occupancy.waiting <= limit);
            let mut lent: Vec<u32> = leases.iter().map(|lease| **lease).collect();
            lent.sort_unstable();
            lent.dedup();
            prop_assert_eq!(lent.len(), leases.len(), "two leases share a replica");
        }
        turns.clear();
        leases.clear();
        prop_assert_eq!(pool.occupancy(), whole(size));
    }
}

/// Panics while it holds the lock on the idle replicas, of which there must be one.
fn poison(pool: &Pool<u32>) {
    let panics = || pool.for_each_idle(|_| panic!("a panic that this test wants"));
    assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
}

#[test]
fn p05_a_closed_and_a_poisoned_pool_say_so() {
    let pool = numbers(1, 9);
    poison(&pool);
    assert!(matches!(block_on(pool.acquire(pending())), Err(Error::PoolPoisoned)));
    pool.close();
    assert!(matches!(block_on(pool.acquire(pending())), Err(Error::Closed)));
    assert!(matches!(pool.enter(), Err(Error::Closed)));
}

#[test]
fn p06_a_lease_that_returns_to_a_poisoned_pool_drops_its_replica_without_a_panic() {
    let dropped = Arc::new(());
    let made = Arc::clone(&dropped);
    let pool = Pool::new(2, 0, move || Arc::clone(&made));
    let held = block_on(pool.acquire(pending())).expect("idle");
    let before = Arc::strong_count(&dropped);
    assert!(catch_unwind(AssertUnwindSafe(|| pool.for_each_idle(|_| panic!("wanted")))).is_err());
    drop(held);
    assert_eq!(Arc::strong_count(&dropped), before - 1);
    assert_eq!(pool.occupancy(), Occupancy { size: 2, idle: 1, leased: 0, lost: 1, waiting: 0 });
}

#[test]
fn p07_a_pool_that_lost_replicas_is_degraded_until_it_has_made_new_ones() {
    let pool = numbers(3, 0);
    let held = (lease(&pool), lease(&pool));
    poison(&pool);
    drop(held);
    assert_eq!(pool.occupancy().lost, 2);
    assert!(matches!(block_on(pool.acquire(pending())), Err(Error::PoolPoisoned)));
    assert_eq!(pool.occupancy(), whole(3));
    let leases = [(); 3].map(|()| lease(&pool));
    assert!(pool.enter().is_err(), "there are as many permits as replicas");
    let mut numbers = leases.map(|lease| *lease);
    numbers.sort_unstable();
    assert_eq!(numbers[1..], [3, 4], "two were made anew");
}

#[test]
fn p08_the_size_is_what_was_asked_for_unless_the_tier_can_run_only_one() {
    for requested in [None, Some(0), Some(1), Some(64)] {
        assert_eq!(resolve_pool_size(requested, Decoding::Singleton), 1);
    }
    let size = |requested| resolve_pool_size(requested, Decoding::Replicated);
    assert_eq!([size(Some(0)), size(Some(1)), size(Some(64))], [1, 1, 64]);
    assert_eq!(size(None), default_pool_size());
}

#[test]
fn p09_the_default_size_is_the_parallelism_from_1_to_4() {
    let parallelism = thread::available_parallelism().expect("known").get();
    assert_eq!(default_pool_size(), parallelism.clamp(1, 4));
}

#[test]
fn p10_replicas_share_one_mapping_and_one_copy_of_the_weights() {
    let directory = tempfile::tempdir().expect("a place for a file");
    let path = directory.path().join("shared.gguf");
    std::fs::copy(toko_fixtures::embedded_model_path(), &path).expect("copied");
    let file = toko_gguf::Gguf::open(&path).expect("the embedded model opens");
    let engine = Engine::load(
        &file,
        &Options { replicas: Some(3), ..OPTIONS },
        &Applicant::new(&Admission::unlimited(), "test"),
    )
    .expect("it loads");
    drop(file);
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the system tells");
    assert_eq!(maps.lines().filter(|line| line.ends_with("shared.gguf")).count(), 1);
    assert_eq!((engine.info().replicas, engine.pool().occupancy()), (3, whole(3)));
    assert!(!engine.info().tier.is_empty());
}

/// Draws without a seed of its own.
const UNSEEDED: Sampling = Sampling { temperature: 1.0, ..GREEDY };

fn generate(lease: Lease<Replica>, sampling: Sampling, tokens: usize) -> Receiver<Event> {
    let (sender, events) = channel();
    lease
        .generate(answer_to(&STORY), params(sampling, tokens), move |event| {
            sender.send(event).map_or(ControlFlow::Break(()), ControlFlow::Continue)
        })
        .expect("the request is good");
    events
}

fn all_leases(engine: &Engine) -> Vec<Lease<Replica>> {
    let count = engine.pool().occupancy().size;
    let lease = |_| block_on(engine.pool().acquire(pending())).expect("idle");
    (0..count).map(lease).collect()
}

#[test]
fn p11_every_replica_starts_from_the_same_seed() {
    let engine = embedded(&Options { replicas: Some(3), seed: 5, ..OPTIONS });
    let running: Vec<_> =
        all_leases(&engine).into_iter().map(|lease| generate(lease, UNSEEDED, 40)).collect();
    let texts: Vec<String> = running.iter().map(|events| collect(events).text).collect();
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    let other = embedded(&Options { replicas: Some(1), seed: 6, ..OPTIONS });
    assert_ne!(ask(&other, &STORY, params(UNSEEDED, 40)).text, texts[0]);
}

#[test]
fn p12_one_metrics_object_counts_for_all_replicas_once_all_are_idle() {
    let engine = embedded(&Options { replicas: Some(2), ..OPTIONS });
    let metrics = Arc::new(Metrics::default());
    let held = block_on(engine.pool().acquire(pending())).expect("idle");
    assert!(!engine.pool().set_metrics(&metrics));
    drop(held);
    assert!(engine.pool().set_metrics(&metrics));
    let running: Vec<_> =
        all_leases(&engine).into_iter().map(|lease| generate(lease, GREEDY, 3)).collect();
    for events in &running {
        collect(events);
    }
    let counted = (metrics.prompt_tokens(), metrics.cached_tokens(), metrics.generated_tokens());
    assert_eq!(counted, (8, 0, 6));
}

#[test]
fn p14_concurrent_leases_answer_as_each_alone_on_a_fresh_engine() {
    let prompts: [&[u32]; 4] = [&STORY, &[603, 874, 257], &[257, 465, 603], &[465; 30]];
    let sampling = [GREEDY, Sampling { seed: Some(3), ..UNSEEDED }, GREEDY, UNSEEDED];
    let fresh = || embedded(&Options { replicas: Some(4), seed: 1, ..OPTIONS });
    let requests = || prompts.iter().zip(&sampling);
    let alone: Vec<Answer> = requests()
        .map(|(prompt, sampling)| ask(&fresh(), prompt, params(sampling.clone(), 50)))
        .collect();
    let engine = fresh();
    let together: Vec<_> = requests()
        .map(|(prompt, sampling)| {
            submit(&engine, prompt, params(sampling.clone(), 50)).expect("accepted")
        })
        .collect();
    for (events, alone) in together.iter().zip(&alone) {
        assert_eq!(collect(events).text, alone.text);
    }
    let texts: std::collections::BTreeSet<&str> =
        alone.iter().map(|answer| &*answer.text).collect();
    assert_eq!(texts.len(), 4, "distinct prompts give distinct answers: {texts:?}");
}

#[test]
fn p15_the_weights_are_one_allocation_that_every_replica_holds() {
    let engine = embedded(&Options { replicas: Some(3), ..OPTIONS });
    let leases = all_leases(&engine);
    let weights = leases[0].model();
    assert!(leases.iter().all(|lease| Arc::ptr_eq(lease.model(), weights)));
    // Three replicas, the worker, and the pool, which may have to make more.
    assert_eq!(Arc::strong_count(weights), 5);
}

#[test]
fn p16_a_seed_repeats_whatever_ran_before_and_without_one_the_draws_go_on() {
    let engine = embedded(&Options { replicas: Some(1), seed: 9, ..OPTIONS });
    let seeded = || ask(&engine, &STORY, params(Sampling { seed: Some(4), ..UNSEEDED }, 40)).text;
    let unseeded = |engine: &Engine| ask(engine, &STORY, params(UNSEEDED, 40)).text;
    let before = seeded();
    let (first, second) = (unseeded(&engine), unseeded(&engine));
    assert_ne!(first, second, "the random state goes on");
    assert_eq!(seeded(), before);
    // A seeded request between two others leaves their state alone.
    let again = embedded(&Options { replicas: Some(1), seed: 9, ..OPTIONS });
    assert_eq!(unseeded(&again), first);
    ask(&again, &STORY, params(Sampling { seed: Some(4), ..UNSEEDED }, 7));
    assert_eq!(unseeded(&again), second);
}

#[test]
fn p17_no_more_wait_than_may_and_they_are_served_in_order() {
    let pool = numbers(1, 3);
    let held = lease(&pool);
    let mut line: Vec<_> =
        (0..3).map(|_| Box::pin(pool.enter().expect("room").lease(pending()))).collect();
    let refused = pool.enter().err().expect("the line is full");
    assert!(
        matches!(refused, Error::QueueFull { waiting: 3, retry_after_seconds: 1..=60 }),
        "{refused}"
    );
    let mut served = held;
    for place in 0..3 {
        for later in &mut line[place..] {
            assert!(poll(later.as_mut()).is_pending());
        }
        drop(served);
        // Those behind ask first and get nothing.
        for later in line[place + 1..].iter_mut().rev() {
            assert!(poll(later.as_mut()).is_pending());
        }
        served = block_on(line[place].as_mut()).expect("its turn has come");
        assert_eq!(pool.occupancy().waiting, 2 - place);
    }
}

#[test]
fn p17_who_has_waited_too_long_is_sent_away_and_nothing_was_computed_for_it() {
    let engine = embedded(&Options { replicas: Some(1), ..OPTIONS });
    let metrics = Arc::new(Metrics::default());
    assert!(engine.pool().set_metrics(&metrics));
    let held = block_on(engine.pool().acquire(pending())).expect("idle");
    let late = block_on(engine.pool().acquire(ready(()))).err().expect("nobody is idle");
    assert!(matches!(late, Error::QueueTimeout { retry_after_seconds: 1..=60, .. }), "{late}");
    assert_eq!(engine.pool().occupancy().waiting, 0);
    assert_eq!(metrics.prompt_tokens(), 0);
    drop(held);
    // An idle pool has a replica at once, however short the wait may be.
    assert!(block_on(engine.pool().acquire(ready(()))).is_ok());
}

/// Runs a request and stops it at its `stop_at`-th event.
fn run_until(engine: &Engine, stop_at: usize, ended: &Sender<()>) {
    let (events, ended) = (Cell::new(0), ended.clone());
    let sink = move |_| {
        events.set(events.get() + 1);
        if events.get() < stop_at {
            return ControlFlow::Continue(());
        }
        assert_eq!(events.get(), stop_at, "nothing is computed for a client that has gone");
        ended.send(()).expect("the test listens");
        ControlFlow::Break(())
    };
    run(engine, answer_to(&[465; 80]), params(GREEDY, 700), sink).expect("there is room");
}

#[test]
fn p18_a_thousand_disconnects_leave_a_whole_pool() {
    let engine = embedded(&Options { replicas: Some(4), ..OPTIONS });
    let (ended, ends) = channel();
    let mut random = fastrand::Rng::with_seed(18);
    for _ in 0..125 {
        for _ in 0..8 {
            run_until(&engine, random.usize(1..6), &ended);
        }
        for _ in 0..8 {
            ends.recv().expect("every client hangs up");
        }
    }
    assert!(engine.pool().wait_idle(Duration::from_mins(1)));
    assert_eq!(engine.pool().occupancy(), whole(4));
}

#[test]
fn p19_close_sends_the_waiting_away_and_lets_the_running_finish() {
    let engine = embedded(&Options { replicas: Some(1), ..OPTIONS });
    let running = submit(&engine, &STORY, params(GREEDY, 60)).expect("accepted");
    let waiting = submit(&engine, &STORY, params(GREEDY, 1)).expect("accepted");
    engine.pool().close();
    assert!(matches!(collect(&waiting).end, Err(Error::Closed)));
    assert!(matches!(submit(&engine, &STORY, params(GREEDY, 1)), Err(Error::Closed)));
    assert_eq!(collect(&running).summary().completion_tokens, 60);
    assert!(engine.pool().wait_idle(Duration::from_mins(1)));
}

#[test]
fn p19_past_the_grace_period_the_running_are_cancelled() {
    let engine = embedded(&Options { replicas: Some(1), ..OPTIONS });
    let running = submit(&engine, &STORY, params(GREEDY, 900)).expect("accepted");
    engine.pool().close();
    assert!(!engine.pool().wait_idle(Duration::ZERO), "it runs for seconds");
    drop(engine);
    assert!(matches!(collect(&running).end, Err(Error::Closed)));
}
