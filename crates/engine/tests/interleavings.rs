//! The pool and the host under a scheduler that tries thousands of interleavings of their tasks, each reproducible.
//!
//! Both files are compiled here once more, with locks whose every use is a point at which another task may run.

mod sync {
    pub(crate) use shuttle::sync::atomic::{AtomicUsize, Ordering};
    pub(crate) use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
}

#[path = "../src/host.rs"]
#[expect(dead_code, unreachable_pub, reason = "the schedules need a part of the interface")]
mod host;
#[path = "../src/pool.rs"]
#[expect(dead_code, unreachable_pub, reason = "the schedules need a part of the interface")]
mod pool;

use std::future::pending;

use shuttle::future::{JoinHandle, block_on, spawn};
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;
use toko_engine::Error;

use host::Host;
use pool::{Lease, Pool};

const SCHEDULES: usize = 2_000;

/// A replica's mutable state, which a second user would disturb.
struct Cell {
    number: usize,
    cache: Mutex<Vec<usize>>,
}

fn cells(size: usize, queue_limit: usize) -> Pool<Cell> {
    let made = AtomicUsize::new(0);
    Pool::new(size, queue_limit, move || Cell {
        number: made.fetch_add(1, Ordering::SeqCst),
        cache: Mutex::new(Vec::new()),
    })
}

/// Fills the cache like a generation and returns what it then holds.
fn generate(lease: &Lease<Cell>, task: usize) -> Vec<usize> {
    lease.cache.lock().expect("nobody panics here").clear();
    for step in 0..3 {
        thread::yield_now();
        lease.cache.lock().expect("nobody panics here").push(task * 10 + step);
    }
    lease.cache.lock().expect("nobody panics here").clone()
}

fn finish(tasks: Vec<JoinHandle<()>>) {
    for task in tasks {
        block_on(task).expect("no task panics");
    }
}

/// Holds no more leases than replicas, at any moment.
struct Count(Arc<AtomicUsize>);

impl Count {
    fn up(leased: &Arc<AtomicUsize>, size: usize) -> Self {
        assert!(leased.fetch_add(1, Ordering::SeqCst) < size);
        Self(Arc::clone(leased))
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn p04_idle_and_leased_are_the_size_and_nobody_waits_for_ever() {
    shuttle::check_random(
        || {
            let (pool, leased) = (cells(2, 8), Arc::new(AtomicUsize::new(0)));
            let task = |_| {
                let (pool, leased) = (pool.clone(), Arc::clone(&leased));
                spawn(async move {
                    let lease =
                        pool.acquire(pending()).await.unwrap_or_else(|error| panic!("{error}"));
                    let count = Count::up(&leased, 2);
                    thread::yield_now();
                    let occupancy = pool.occupancy();
                    assert!(occupancy.idle + occupancy.leased == 2 && occupancy.lost == 0);
                    drop(count);
                    drop(lease);
                })
            };
            let tasks: Vec<_> = (0..5).map(task).collect();
            finish(tasks);
            let occupancy = pool.occupancy();
            assert_eq!((occupancy.idle, occupancy.leased, occupancy.waiting), (2, 0, 0));
        },
        SCHEDULES,
    );
}

#[test]
fn p14_no_lease_sees_what_another_does() {
    shuttle::check_random(
        || {
            let pool = cells(2, 8);
            let task = |number: usize| {
                let pool = pool.clone();
                spawn(async move {
                    let lease =
                        pool.acquire(pending()).await.unwrap_or_else(|error| panic!("{error}"));
                    let expected: Vec<usize> = (0..3).map(|step| number * 10 + step).collect();
                    assert_eq!(generate(&lease, number), expected, "on replica {}", lease.number);
                })
            };
            let tasks: Vec<_> = (0..4).map(task).collect();
            finish(tasks);
        },
        SCHEDULES,
    );
}

#[test]
fn p18_cancelled_tasks_leave_a_whole_pool() {
    shuttle::check_random(
        || {
            let pool = cells(1, 8);
            let task = |_| {
                let pool = pool.clone();
                spawn(async move {
                    let Ok(lease) = pool.acquire(pending()).await else { return };
                    thread::yield_now();
                    drop(lease);
                })
            };
            let tasks: Vec<_> = (0..4).map(task).collect();
            // Two are cancelled wherever they happen to be: not begun, in line, with a permit, with a lease, done.
            tasks[1].abort();
            thread::yield_now();
            tasks[2].abort();
            for task in tasks {
                drop(block_on(task));
            }
            let occupancy = pool.occupancy();
            assert_eq!((occupancy.idle, occupancy.leased, occupancy.waiting), (1, 0, 0));
            assert!(pool.enter().is_ok_and(|turn| turn.has_come()));
        },
        SCHEDULES,
    );
}

#[test]
fn p19_close_wakes_everybody_who_waits() {
    shuttle::check_random(
        || {
            let pool = cells(1, 8);
            let task = |_| {
                let pool = pool.clone();
                spawn(async move {
                    match pool.acquire(pending()).await {
                        Ok(lease) => drop(lease),
                        Err(Error::Closed) => {}
                        Err(other) => panic!("{other}"),
                    }
                })
            };
            let tasks: Vec<_> = (0..3).map(task).collect();
            pool.close();
            finish(tasks);
            assert!(matches!(pool.enter(), Err(Error::Closed)));
            assert_eq!(pool.occupancy().idle, 1);
        },
        SCHEDULES,
    );
}

/// A model of which there must never be two.
struct Model(Arc<AtomicUsize>);

impl Model {
    fn load(alive: &Arc<AtomicUsize>) -> Self {
        thread::yield_now();
        assert_eq!(alive.fetch_add(1, Ordering::SeqCst), 0, "there are two");
        Self(Arc::clone(alive))
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Lets three users ask for a model while two others `take` it away; each user finds one, and only one.
fn use_and_take(take: fn(&Host<Model>, &AtomicUsize)) -> (Arc<Host<Model>>, Arc<AtomicUsize>) {
    let host = Arc::new(Host::<Model>::default());
    let alive = Arc::new(AtomicUsize::new(0));
    let user = |_| {
        let (host, alive) = (Arc::clone(&host), Arc::clone(&alive));
        thread::spawn(move || {
            let load = || Ok::<_, Error>(Model::load(&alive));
            let model = host.get(load).unwrap_or_else(|error| panic!("{error}"));
            thread::yield_now();
            assert_eq!(model.0.load(Ordering::SeqCst), 1, "it is there, and once");
        })
    };
    let taker = |_| {
        let (host, alive) = (Arc::clone(&host), Arc::clone(&alive));
        thread::spawn(move || take(&host, &alive))
    };
    let users: Vec<_> = (0..3).map(user).collect();
    let takers: Vec<_> = (0..2).map(taker).collect();
    for task in users.into_iter().chain(takers) {
        task.join().expect("no task panics");
    }
    (host, alive)
}

#[test]
fn p20_a_model_in_use_is_not_evicted_and_an_evicted_one_is_not_used() {
    shuttle::check_random(
        || {
            let (host, alive) = use_and_take(|host, alive| {
                if host.unload(|model| assert_eq!(model.0.load(Ordering::SeqCst), 1)) {
                    // Somebody may have loaded it anew, but nobody has the old one.
                    assert!(alive.load(Ordering::SeqCst) <= 1);
                }
            });
            host.unload(|_| {});
            assert_eq!(alive.load(Ordering::SeqCst), 0);
        },
        SCHEDULES,
    );
}

#[test]
fn a_model_in_use_is_never_evicted_and_one_that_is_wanted_again_is_loaded_anew() {
    shuttle::check_random(
        || {
            let (host, alive) = use_and_take(|host, alive| {
                host.evict(|_| true);
                assert!(alive.load(Ordering::SeqCst) <= 1);
            });
            assert_eq!(host.users(), 0);
            host.evict(|_| true);
            assert_eq!(alive.load(Ordering::SeqCst), 0, "nobody uses it, so it goes");
        },
        SCHEDULES,
    );
}

#[test]
fn p20_evicting_drains_the_pool_of_the_model_first() {
    shuttle::check_random(
        || {
            let host = Arc::new(Host::<Pool<Cell>>::default());
            let request = |_| {
                let host = Arc::clone(&host);
                spawn(async move {
                    let model = host
                        .get(|| Ok::<_, Error>(cells(1, 8)))
                        .unwrap_or_else(|error| panic!("{error}"));
                    match model.acquire(pending()).await {
                        Ok(lease) => assert_eq!(generate(&lease, 4), [40, 41, 42]),
                        Err(Error::Closed) => {}
                        Err(other) => panic!("{other}"),
                    }
                })
            };
            let requests: Vec<_> = (0..3).map(request).collect();
            let evicting = Arc::clone(&host);
            let eviction = thread::spawn(move || evicting.unload(Pool::close));
            finish(requests);
            eviction.join().expect("no task panics");
        },
        SCHEDULES,
    );
}
