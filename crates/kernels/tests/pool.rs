//! The promises of the compute pool.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use proptest::prelude::*;
use toko_kernels::pool::{Pool, default_threads};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_chunk_is_visited_once(len in 0_usize..200, chunk in 1_usize..20, threads in 1_usize..6) {
        let mut data = vec![0_usize; len];
        let mut visits = vec![0_usize; threads];
        Pool::new(threads).for_each_chunk(&mut data, chunk, &mut visits, |i, part, visits| {
            *visits += 1;
            for (k, value) in part.iter_mut().enumerate() {
                *value += 1 + i * chunk + k;
            }
        });
        let expected: Vec<usize> = (1..=len).collect();
        prop_assert_eq!(data, expected);
        prop_assert_eq!(visits.iter().sum::<usize>(), len.div_ceil(chunk));
    }

    #[test]
    fn every_row_of_every_matrix_belongs_to_one_call(
        rows in prop_oneof![0_usize..40, 400_usize..600],
        widths in prop::array::uniform2(1_usize..70),
        threads in 1_usize..6,
    ) {
        let [mut a, mut b] = widths.map(|width| vec![0.0_f32; rows * width]);
        let data = [(&mut a[..], widths[0]), (&mut b[..], widths[1])];
        Pool::new(threads).for_each_rows(data, |rows, parts| {
            for (which, part) in parts.into_iter().enumerate() {
                assert_eq!(part.len(), rows.len() * widths[which]);
                for (i, old) in part.iter_mut().enumerate() {
                    *old += number(which, 0, rows.start + i / widths[which]);
                }
            }
        });
        for (which, out) in [a, b].into_iter().enumerate() {
            for (i, value) in out.into_iter().enumerate() {
                let expected = number(which, 0, i / widths[which]);
                prop_assert_eq!(value.to_bits(), expected.to_bits());
            }
        }
    }

    #[test]
    fn every_column_of_every_matrix_is_written_once(
        widths in prop::array::uniform3(0_usize..70),
        tokens in 1_usize..4,
        granule in 1_usize..20,
        threads in 1_usize..6,
    ) {
        let [mut a, mut b, mut c] = widths.map(|width| vec![0.0_f32; tokens * width]);
        let outs = [(&mut a[..], widths[0]), (&mut b[..], widths[1]), (&mut c[..], widths[2])];
        Pool::new(threads).for_each_columns(outs, granule, |which, columns, out| {
            assert!(columns.start.is_multiple_of(granule));
            for token in 0..tokens {
                let shown = out.row(token).to_vec();
                assert_eq!(shown.len(), columns.len());
                for (column, old) in columns.clone().zip(shown) {
                    out.set(token, column, old + number(which, token, column));
                }
            }
        });
        for (which, out) in [a, b, c].into_iter().enumerate() {
            for (i, value) in out.into_iter().enumerate() {
                let expected = number(which, i / widths[which], i % widths[which]);
                prop_assert_eq!(value.to_bits(), expected.to_bits());
            }
        }
    }
}

/// Runs a job that each worker begins only when all have come.
fn run_together(pool: &Pool, job: impl Fn(usize) + Sync) {
    let come = AtomicUsize::new(0);
    pool.run(|worker| {
        come.fetch_add(1, Ordering::SeqCst);
        while come.load(Ordering::SeqCst) < pool.threads() {
            thread::yield_now();
        }
        job(worker);
    });
}

fn number(which: usize, token: usize, column: usize) -> f32 {
    f32::from(u16::try_from(1 + which * 1000 + token * 100 + column).expect("small numbers"))
}

#[test]
fn columns_are_cut_evenly_over_all_matrices() {
    let (mut small, mut large) = (vec![0.0; 64], vec![0.0; 256]);
    let lent = Mutex::new(Vec::new());
    let outs = [(&mut small[..], 64), (&mut large[..], 256)];
    Pool::new(2).for_each_columns(outs, 4, |which, columns, _| {
        lent.lock().unwrap().push((which, columns));
    });
    let mut lent = lent.into_inner().unwrap();
    lent.sort_by_key(|(which, columns)| (*which, columns.start));
    // 80 granules in 16 pieces of five, of which the fourth lies in both matrices.
    let starts: Vec<(usize, usize)> =
        lent.iter().map(|(which, range)| (*which, range.start)).collect();
    let small = [0, 20, 40, 60].map(|start| (0, start));
    let large = std::iter::once(0).chain((16..256).step_by(20)).map(|start| (1, start));
    assert_eq!(starts, small.into_iter().chain(large).collect::<Vec<_>>());
    assert_eq!(lent[3..5], [(0, 60..64), (1, 0..16)]);
}

#[test]
fn the_share_of_a_held_worker_is_done_by_the_others() {
    let (is_held, others) = (AtomicBool::new(false), AtomicUsize::new(0));
    Pool::new(2).for_each_chunk(&mut [0_u8; 16], 1, &mut [(), ()], |_, _, ()| {
        if is_held.swap(true, Ordering::SeqCst) {
            others.fetch_add(1, Ordering::SeqCst);
        } else {
            // Would never end if half of the chunks waited for this worker.
            while others.load(Ordering::SeqCst) < 15 {
                thread::yield_now();
            }
        }
    });
    assert_eq!(others.into_inner(), 15);
}

#[test]
fn a_few_rows_stay_on_the_caller() {
    let caller = thread::current().id();
    Pool::new(4).for_each_rows([(&mut [0.0; 4096], 1024)], |rows, _| {
        assert_eq!((rows, thread::current().id()), (0..4, caller));
    });
}

#[test]
fn a_column_outside_the_lent_range_is_refused() {
    let mut out = vec![0.0; 8];
    let result = catch_unwind(AssertUnwindSafe(|| {
        Pool::new(1).for_each_columns([(&mut out[..], 4)], 4, |_, _, columns| {
            columns.set(0, 4, 1.0);
        });
    }));
    assert!(result.is_err());
    assert_eq!(out, vec![0.0; 8]);
}

#[test]
fn every_worker_runs_a_job_once_and_worker_zero_is_the_caller() {
    let pool = Pool::new(4);
    let seen = Mutex::new(Vec::new());
    run_together(&pool, |worker| seen.lock().unwrap().push((worker, thread::current().id())));
    let mut seen = seen.into_inner().unwrap();
    seen.sort_by_key(|(worker, _)| *worker);
    let workers: Vec<usize> = seen.iter().map(|(worker, _)| *worker).collect();
    assert_eq!(workers, [0, 1, 2, 3]);
    assert_eq!(seen[0].1, thread::current().id());
    assert_eq!(seen.iter().map(|(_, id)| id).collect::<HashSet<_>>().len(), 4);
}

#[test]
fn a_panic_reaches_the_caller_after_all_workers_and_the_pool_goes_on() {
    let pool = Pool::new(3);
    for culprit in 0..3 {
        let finished = AtomicUsize::new(0);
        let panic = catch_unwind(AssertUnwindSafe(|| {
            run_together(&pool, |worker| {
                assert_ne!(worker, culprit, "the culprit is {culprit}");
                finished.fetch_add(1, Ordering::Relaxed);
            });
        }))
        .expect_err("the panic is passed on");
        let message = panic.downcast_ref::<String>().expect("a formatted message");
        assert!(message.contains(&format!("the culprit is {culprit}")), "{message}");
        assert_eq!(finished.load(Ordering::Relaxed), 2);
    }
    let count = AtomicUsize::new(0);
    run_together(&pool, |_| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(count.into_inner(), 3);
}

#[test]
fn ten_thousand_jobs_run_one_after_another() {
    let pool = Pool::new(3);
    let mut data = [0_usize; 50];
    for job in 1..=10_000 {
        pool.for_each_chunk(&mut data, 1, &mut [(); 3], |_, value, ()| value[0] += 1);
        assert_eq!(data, [job; 50]);
    }
}

#[test]
fn callers_on_several_threads_take_turns() {
    let pool = Pool::new(2);
    let (inside, jobs) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    pool.run(|worker| {
                        if worker == 0 {
                            assert!(!inside.swap(true, Ordering::SeqCst), "two jobs at once");
                            jobs.fetch_add(1, Ordering::Relaxed);
                            inside.store(false, Ordering::SeqCst);
                        }
                    });
                }
            });
        }
    });
    assert_eq!(jobs.into_inner(), 800);
}

#[test]
fn each_worker_has_a_scratch_of_its_own() {
    let pool = Pool::new(4);
    let mut scratch: Vec<Option<thread::ThreadId>> = vec![None; 4];
    let come = AtomicUsize::new(0);
    pool.for_each_chunk(&mut [0_u8; 1000], 1, &mut scratch, |_, _, owner| {
        let me = thread::current().id();
        if owner.is_none() {
            // No chunk ends before all have come.
            come.fetch_add(1, Ordering::SeqCst);
            while come.load(Ordering::SeqCst) < 4 {
                thread::yield_now();
            }
        }
        assert_eq!(*owner.get_or_insert(me), me);
    });
    let owners: HashSet<_> = scratch.into_iter().collect();
    assert_eq!(owners.len(), 4);
    assert!(!owners.contains(&None));
}

#[test]
fn dropping_the_pool_ends_its_threads() {
    /// Counts the threads that have ended, by the destructors of their thread-local values.
    struct Farewell(Arc<AtomicUsize>);
    impl Drop for Farewell {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    thread_local! {
        static FAREWELL: std::cell::RefCell<Option<Farewell>> = const { std::cell::RefCell::new(None) };
    }
    let ended = Arc::new(AtomicUsize::new(0));
    let pool = Pool::new(3);
    run_together(&pool, |worker| {
        if worker > 0 {
            FAREWELL.set(Some(Farewell(Arc::clone(&ended))));
        }
    });
    assert_eq!(ended.load(Ordering::SeqCst), 0);
    drop(pool);
    assert_eq!(ended.load(Ordering::SeqCst), 2);
}

#[test]
fn a_pool_of_one_runs_everything_on_the_caller() {
    let pool = Pool::new(1);
    let id = Mutex::new(None);
    pool.run(|worker| *id.lock().unwrap() = Some((worker, thread::current().id())));
    assert_eq!(id.into_inner().unwrap(), Some((0, thread::current().id())));
}

#[test]
fn the_default_number_of_threads_is_within_the_affinity_mask() {
    let system = thread::available_parallelism().map_or(1, usize::from);
    assert!((1..=system).contains(&default_threads()));
}
