//! One model that comes and goes: single flight, unload, failures.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use toko_engine::{Error, Host, Residence};

/// Counts how many of it there are.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(alive: &Arc<AtomicUsize>) -> Self {
        assert_eq!(alive.fetch_add(1, Ordering::SeqCst), 0, "there are two");
        Self(Arc::clone(alive))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn however_many_ask_it_is_loaded_once() {
    let (host, alive) = (Host::default(), Arc::default());
    let start = Barrier::new(8);
    let loads = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                start.wait();
                let load = || {
                    loads.fetch_add(1, Ordering::SeqCst);
                    Ok::<_, Error>(Counted::new(&alive))
                };
                assert!(host.get(load).is_ok());
            });
        }
    });
    assert_eq!(loads.into_inner(), 1);
    assert_eq!(host.residence(), Residence::Loaded);
}

#[test]
fn unload_returns_when_the_last_user_is_gone_and_the_next_one_loads_anew() {
    let (host, alive) = (Arc::new(Host::default()), Arc::default());
    let load = || Ok::<_, Error>(Counted::new(&alive));
    assert!(!host.unload(|_| {}), "nothing is loaded");
    let user = host.get(load).expect("loaded");
    let unloading = {
        let (host, alive) = (Arc::clone(&host), Arc::clone(&alive));
        thread::spawn(move || {
            assert!(host.unload(|_| {}));
            alive.load(Ordering::SeqCst)
        })
    };
    while host.residence() != Residence::Unloading {
        thread::yield_now();
    }
    assert!(host.loaded().is_none());
    assert_eq!(alive.load(Ordering::SeqCst), 1, "its user still has it");
    drop(user);
    assert_eq!(unloading.join().expect("no panic"), 0);
    assert_eq!(host.residence(), Residence::Unloaded);
    assert!(host.get(load).is_ok());
    assert_eq!(alive.load(Ordering::SeqCst), 1);
}

#[test]
fn a_load_that_fails_is_told_and_the_next_one_is_tried() {
    let host = Host::<u32>::default();
    let error = host.get(|| Err(Error::EmptyPrompt)).err().expect("it failed");
    assert!(matches!(error.downcast_ref(), Some(Error::EmptyPrompt)));
    assert_eq!(host.residence(), Residence::Unloaded);
    assert_eq!(*host.get(|| Ok::<_, Error>(7)).expect("loaded"), 7);
}

#[test]
fn whoever_joined_a_load_that_fails_or_panics_is_told_why() {
    for panics in [false, true] {
        let host = Arc::new(Host::<u32>::default());
        let (begun, go) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
        let loader = {
            let (host, begun, go) = (Arc::clone(&host), Arc::clone(&begun), Arc::clone(&go));
            thread::spawn(move || {
                host.get(|| {
                    begun.wait();
                    go.wait();
                    assert!(!panics, "a panic that this test wants");
                    Err(Error::EmptyPrompt)
                })
                .map(|_| ())
            })
        };
        begun.wait();
        let joined = {
            let host = Arc::clone(&host);
            thread::spawn(move || host.get(|| Ok::<_, Error>(1)).map(|model| *model))
        };
        // Whether the other has begun to wait cannot be seen; late, it loads by itself.
        go.wait();
        match joined.join().expect("no panic") {
            Ok(number) => assert_eq!(number, 1),
            Err(error) => match error.downcast_ref() {
                Some(Error::LoadFailed { reason }) => assert!(panics && reason == "it panicked"),
                Some(Error::EmptyPrompt) => assert!(!panics),
                _ => panic!("{error}"),
            },
        }
        assert_eq!(loader.join().is_err(), panics);
    }
}

#[test]
fn only_a_model_that_nobody_uses_is_evicted() {
    let (host, alive) = (Host::default(), Arc::default());
    assert!(!host.evict(|_| true), "there is none");
    let load = || Ok::<_, Error>(Counted::new(&alive));
    let user = host.get(load).expect("loaded");
    assert_eq!(
        (host.users(), host.evict(|_| true), host.residence()),
        (1, false, Residence::Loaded)
    );
    let other = host.loaded().expect("it is loaded");
    drop(user);
    assert_eq!((host.users(), host.evict(|_| true)), (1, false));
    drop(other);
    assert!(!host.evict(|_| false), "it says that it is not idle");
    assert_eq!(
        (host.users(), host.evict(|_| true), host.residence()),
        (0, true, Residence::Unloaded)
    );
    assert_eq!(alive.load(Ordering::SeqCst), 0);
    assert!(host.get(load).is_ok());
}
