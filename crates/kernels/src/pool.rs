//! A persistent pool of compute threads that runs one job at a time on all of them.
//!
//! Invariant: [`Pool::run`] returns, or unwinds, only after every worker has left the job and none can
//! enter it any more, so a job may borrow from its caller. How the work is cut depends on nothing but the
//! sizes and the number of workers; who does a piece is not fixed, so that nobody waits for a worker that
//! the system has not let run. The pool knows nothing about matrices beyond "rows of columns".

#![expect(
    unsafe_code,
    reason = "a job that borrows from its caller runs on threads that outlive it"
)]

use std::any::Any;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// How long an idle worker watches for the next job before it sleeps: longer than the gaps
/// between the jobs of one decode step, short enough that an idle server uses no processor.
const WATCH: Duration = Duration::from_micros(40);

/// Values that one thread passes over in about the time that it takes to hand out a job.
const ALONE: usize = 16 * 1024;

/// Pieces into which the share of each worker is cut.
const PIECES: usize = 8;

/// Set in the gate while helpers may enter the current job.
const OPEN: u64 = 1 << 16;

/// The part of the gate that counts the helpers inside the current job.
const INSIDE: u64 = OPEN - 1;

/// What the gate grows by with each job.
const EPOCH: u64 = OPEN << 1;

/// Spins between two looks at the clock.
const SPINS: u32 = 32;

/// Returns how many threads this process may use at once: what its affinity mask and its
/// container's processor quota allow, and 1 where the system does not say.
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A fixed set of workers, of which the calling thread is worker 0.
pub struct Pool {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
    /// Held for the length of a job: two callers take turns.
    turn: Mutex<()>,
}

impl Pool {
    /// Starts `threads - 1` threads; the caller of a job is the remaining worker.
    ///
    /// # Panics
    /// If `threads` is 0 or beyond 65,535, or the system refuses a thread.
    pub fn new(threads: usize) -> Self {
        assert!(threads > 0, "a pool has at least one worker");
        assert!(threads as u64 <= INSIDE, "{threads} workers can't be counted");
        let shared = Arc::new(Shared::new(threads));
        let helpers = (1..threads)
            .map(|worker| {
                let shared = Arc::clone(&shared);
                Builder::new()
                    .name(format!("compute-{worker}"))
                    .spawn(move || shared.serve(worker))
                    .expect("the system grants a compute thread")
            })
            .collect();
        Self { shared, helpers, turn: Mutex::new(()) }
    }

    /// Returns the number of workers, the caller included.
    pub fn threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Calls `job(worker)` on worker 0, the caller, and on each of the others that comes before the
    /// caller is done, at most once; waits for those that have come.
    ///
    /// Callers on several threads take turns. A job must not run another job on the same pool: it
    /// would wait for itself.
    ///
    /// # Panics
    /// With the panic of one of the workers, after all of them have finished.
    pub fn run(&self, job: impl Fn(usize) + Sync) {
        if self.helpers.is_empty() {
            return job(0);
        }
        let turn = lock(&self.turn);
        self.run_in_turn(&job);
        drop(turn);
    }

    fn run_in_turn(&self, job: &(impl Fn(usize) + Sync)) {
        self.shared.publish(job);
        let own = catch_unwind(AssertUnwindSafe(|| job(0)));
        self.shared.close();
        let theirs = lock(&self.shared.panic).take();
        if let Some(panic) = own.err().or(theirs) {
            resume_unwind(panic);
        }
    }

    /// Cuts `items` into contiguous pieces and calls `f(worker, piece)` once for each.
    ///
    /// Each worker has a contiguous share of the pieces, and takes from those of others when its own
    /// are done.
    fn deal(&self, items: usize, f: impl Fn(usize, Range<usize>) + Sync) {
        let workers = self.threads();
        if workers == 1 || items <= 1 {
            return f(0, 0..items);
        }
        let pieces = items.min(workers * PIECES);
        let turn = lock(&self.turn);
        for (worker, next) in self.shared.next.iter().enumerate() {
            // `publish` makes it known to the helpers, none of whom is inside a job.
            next.0.store(share(pieces, worker, workers).start, Ordering::Relaxed);
        }
        self.run_in_turn(&|worker| {
            for whose in (worker..workers).chain(0..worker) {
                let (next, end) = (&self.shared.next[whose].0, share(pieces, whose, workers).end);
                // Looking first, since a count beyond the end would take the line from its owner.
                while next.load(Ordering::Relaxed) < end {
                    let piece = next.fetch_add(1, Ordering::Relaxed);
                    if piece < end {
                        f(worker, share(items, piece, pieces));
                    }
                }
            }
        });
        drop(turn);
    }

    /// Calls `f(i, chunk i, scratch)` for every chunk of `chunk` elements of `data`, the last one
    /// possibly shorter; each worker has a scratch of its own.
    ///
    /// # Panics
    /// If `chunk` is 0 or `scratch` holds fewer elements than there are workers.
    pub fn for_each_chunk<T: Send, S: Send>(
        &self,
        data: &mut [T],
        chunk: usize,
        scratch: &mut [S],
        f: impl Fn(usize, &mut [T], &mut S) + Sync,
    ) {
        assert!(chunk > 0, "a chunk has at least one element");
        assert!(scratch.len() >= self.threads(), "every worker needs a scratch of its own");
        let len = data.len();
        let chunks = len.div_ceil(chunk);
        let data = Lent::new(data);
        let scratch = Lent::new(scratch);
        self.deal(chunks, |worker, mine| {
            // SAFETY: a worker number is one thread in a job, which does one piece after another.
            let scratch = &mut unsafe { scratch.part(worker..worker + 1) }[0];
            for i in mine {
                let range = i * chunk..((i + 1) * chunk).min(len);
                // SAFETY: `deal` gives each chunk out once, as a part of one piece.
                f(i, unsafe { data.part(range) }, scratch);
            }
        });
    }

    /// Calls `f(rows, parts)` so that every row belongs to exactly one call, which gets that part of
    /// each matrix in `data`; a few thousand values are one call on the caller.
    ///
    /// Each of `data` is `[rows, width]`, given with its width.
    ///
    /// # Panics
    /// If the matrices are not made of whole rows, equally many each.
    pub fn for_each_rows<const N: usize>(
        &self,
        data: [(&mut [f32], usize); N],
        f: impl Fn(Range<usize>, [&mut [f32]; N]) + Sync,
    ) {
        let rows = data.first().map_or(0, |(matrix, width)| matrix.len() / width);
        let whole = data.iter().all(|(matrix, width)| matrix.len() == rows * width);
        assert!(whole, "all matrices have {rows} rows");
        if data.iter().map(|(matrix, _)| matrix.len()).sum::<usize>() < ALONE {
            return f(0..rows, data.map(|(matrix, _)| matrix));
        }
        let data = data.map(|(matrix, width)| (Lent::new(matrix), width));
        self.deal(rows, |_, mine| {
            let parts = data.each_ref().map(|(matrix, width)| {
                // SAFETY: `deal` gives each row out once, as a part of one piece.
                unsafe { matrix.part(mine.start * width..mine.end * width) }
            });
            f(mine, parts);
        });
    }

    /// Calls `f(which, columns, out)` so that every column of every matrix in `outs` belongs to
    /// exactly one call.
    ///
    /// Each of `outs` is `[tokens, width]`, given with its width. The ranges start at multiples of
    /// `granule`, and all matrices together are cut into pieces of nearly equal size.
    ///
    /// # Panics
    /// If `granule` is 0 or a matrix is not made of whole rows.
    pub fn for_each_columns<const N: usize>(
        &self,
        outs: [(&mut [f32], usize); N],
        granule: usize,
        f: impl Fn(usize, Range<usize>, &mut Columns<'_>) + Sync,
    ) {
        assert!(granule > 0, "a granule has at least one column");
        let matrices = outs.map(|(out, width)| {
            assert!(
                if width == 0 { out.is_empty() } else { out.len().is_multiple_of(width) },
                "a matrix of {} values has no whole rows of {width}",
                out.len()
            );
            (Lent::new(out), width)
        });
        let granules = matrices.each_ref().map(|(_, width)| width.div_ceil(granule));
        let total = granules.iter().sum();
        self.deal(total, |_, mine| {
            let mut before = 0;
            for (which, (out, width)) in matrices.iter().enumerate() {
                let from = mine.start.clamp(before, before + granules[which]) - before;
                let to = mine.end.clamp(before, before + granules[which]) - before;
                before += granules[which];
                if from < to {
                    let range = from * granule..(to * granule).min(*width);
                    f(which, range.clone(), &mut Columns { out, width: *width, range });
                }
            }
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.announce(0);
        for helper in self.helpers.drain(..) {
            helper.join().expect("a worker catches the panics of its jobs");
        }
    }
}

/// The columns of one matrix that one worker may write.
pub struct Columns<'a> {
    out: &'a Lent<'a, f32>,
    width: usize,
    range: Range<usize>,
}

impl Columns<'_> {
    /// Sets one value.
    ///
    /// # Panics
    /// If `column` is not among the columns lent to this call or there is no such token.
    pub fn set(&mut self, token: usize, column: usize, value: f32) {
        assert!(self.range.contains(&column), "column {column} is outside {:?}", self.range);
        let start = self.range.start;
        self.row(token)[column - start] = value;
    }

    /// Returns the lent columns of one token.
    ///
    /// # Panics
    /// If there is no such token.
    #[inline]
    pub fn row(&mut self, token: usize) -> &mut [f32] {
        assert!(token < self.out.len / self.width, "there is no token {token}");
        let row = token * self.width;
        // SAFETY: `for_each_columns` gives each column out once, so no other `Columns` covers this
        // part of the row, and `&mut self` keeps a second borrow from this one away.
        unsafe { self.out.part(row + self.range.start..row + self.range.end) }
    }
}

/// Returns the part with number `which` of `items` in so many `parts`, as even as whole items allow.
fn share(items: usize, which: usize, parts: usize) -> Range<usize> {
    let (each, extra) = (items / parts, items % parts);
    let start = which * each + which.min(extra);
    start..start + each + usize::from(which < extra)
}

/// A mutable slice whose parts are lent to different workers.
struct Lent<'a, T> {
    start: *mut T,
    len: usize,
    owner: PhantomData<&'a mut [T]>,
}

// SAFETY: sharing it only lets other threads take parts, which are `&mut [T]` and need `T: Send`;
// that parts do not overlap is the promise of `part`'s callers.
unsafe impl<T: Send> Sync for Lent<'_, T> {}

impl<'a, T> Lent<'a, T> {
    fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), owner: PhantomData }
    }

    /// Returns the elements of `range`.
    ///
    /// # Safety
    /// While the result lives, no other result may cover one of its elements.
    #[expect(clippy::mut_from_ref, reason = "handing disjoint parts to several workers is its use")]
    unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: `range` was checked against the slice that `start` came from.
        let first = unsafe { self.start.add(range.start) };
        // SAFETY: the elements are inside the slice, which stays mutably borrowed for `'a`, and
        // the caller promises that nobody else has them.
        unsafe { std::slice::from_raw_parts_mut(first, range.len()) }
    }
}

/// A job with its type and lifetime erased.
#[derive(Clone, Copy)]
struct Job {
    data: *const (),
    call: unsafe fn(*const (), usize),
}

/// Calls the job at `data`.
///
/// # Safety
/// `data` must point to a live `F`.
unsafe fn call<F: Fn(usize) + Sync>(data: *const (), worker: usize) {
    // SAFETY: the caller promises a live `F`, and `F: Sync` may be used from any thread.
    let job = unsafe { &*data.cast::<F>() };
    job(worker);
}

/// A value on cache lines of its own, two of them since processors fetch lines in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Line<T>(T);

/// What the caller and its helpers share.
struct Shared {
    /// The number of jobs so far, whether the current one is open, and how many helpers are inside.
    gate: Line<AtomicU64>,
    /// The next piece of each worker's share.
    next: Box<[Line<AtomicUsize>]>,
    job: UnsafeCell<Option<Job>>,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// How many helpers sleep or are about to.
    asleep: AtomicUsize,
    bed: Mutex<()>,
    bell: Condvar,
}

// SAFETY: `job` is the only part that is not shareable by itself. It is written by `publish` while
// the gate is closed and nobody inside, and read by helpers only between entering through the open
// gate and leaving; opening and entering, leaving and closing are release/acquire pairs.
unsafe impl Sync for Shared {}

// SAFETY: the pointers in `job` are used only while `run` keeps what they point to alive.
unsafe impl Send for Shared {}

impl Shared {
    fn new(workers: usize) -> Self {
        Self {
            gate: Line::default(),
            next: (0..workers).map(|_| Line::default()).collect(),
            job: UnsafeCell::default(),
            stop: AtomicBool::default(),
            panic: Mutex::default(),
            asleep: AtomicUsize::default(),
            bed: Mutex::default(),
            bell: Condvar::default(),
        }
    }

    /// Makes `job` the current job, opens the gate and wakes the helpers.
    fn publish<F: Fn(usize) + Sync>(&self, job: &F) {
        let job = Job { data: std::ptr::from_ref(job).cast(), call: call::<F> };
        // SAFETY: the caller has its turn, so there is no second writer, and the last job was
        // closed, so no helper looks at this cell before the gate opens.
        unsafe { *self.job.get() = Some(job) };
        self.announce(OPEN);
    }

    /// Begins the next epoch with the gate open or closed. Nobody else changes a closed, empty gate.
    fn announce(&self, open: u64) {
        let epoch = self.gate.0.load(Ordering::Relaxed) & !(OPEN | INSIDE);
        // Sequentially consistent, as are the two operations in `next_epoch`: either this thread
        // sees the sleeper or the sleeper sees the new epoch.
        self.gate.0.store(epoch.wrapping_add(EPOCH) | open, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.bed));
            self.bell.notify_all();
        }
    }

    /// Lets no helper in any more and waits until those inside have left, giving way to other
    /// threads after a while.
    fn close(&self) {
        let mut gate = self.gate.0.fetch_and(!OPEN, Ordering::Acquire);
        let mut rounds = 0_u32;
        while gate & INSIDE != 0 {
            give_way(&mut rounds);
            gate = self.gate.0.load(Ordering::Acquire);
        }
    }

    /// Goes into the current job if its gate is open, and returns the epoch.
    fn enter(&self) -> Option<u64> {
        let mut gate = self.gate.0.load(Ordering::Relaxed);
        while gate & OPEN != 0 {
            match self.gate.0.compare_exchange_weak(
                gate,
                gate + 1,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(gate / EPOCH),
                Err(now) => gate = now,
            }
        }
        None
    }

    /// Runs jobs until the pool is dropped.
    fn serve(&self, worker: usize) {
        let mut seen = 0;
        loop {
            seen = self.next_epoch(seen);
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            // The job that was announced may be done by now, and even the next one be open.
            let Some(entered) = self.enter() else { continue };
            seen = entered;
            // SAFETY: this helper is inside, so `publish` has written the cell and will not touch it
            // before this helper has left.
            let job = unsafe { *self.job.get() }.expect("an open gate has a job");
            // SAFETY: `run` keeps the job alive until this helper has left.
            let work = || unsafe { (job.call)(job.data, worker) };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
                *lock(&self.panic) = Some(panic);
            }
            self.gate.0.fetch_sub(1, Ordering::Release);
        }
    }

    /// Returns the first epoch that differs from `seen`: watches for a while, then sleeps.
    fn next_epoch(&self, seen: u64) -> u64 {
        let start = Instant::now();
        let mut rounds = 0;
        while start.elapsed() < WATCH {
            for _ in 0..SPINS {
                let epoch = self.gate.0.load(Ordering::Acquire) / EPOCH;
                if epoch != seen {
                    return epoch;
                }
                give_way(&mut rounds);
            }
        }
        let mut bed = lock(&self.bed);
        self.asleep.fetch_add(1, Ordering::SeqCst);
        let epoch = loop {
            let epoch = self.gate.0.load(Ordering::SeqCst) / EPOCH;
            if epoch != seen {
                break epoch;
            }
            bed = self.bell.wait(bed).unwrap_or_else(PoisonError::into_inner);
        };
        self.asleep.fetch_sub(1, Ordering::SeqCst);
        epoch
    }
}

/// Pauses for a moment; after many rounds lets another thread have the core, since the one that
/// is waited for may need it.
fn give_way(rounds: &mut u32) {
    *rounds = rounds.wrapping_add(1);
    if *rounds < 1024 || !rounds.is_multiple_of(16) {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

/// Locks a mutex whose data no panic can leave half-written.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
