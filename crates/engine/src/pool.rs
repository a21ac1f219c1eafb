//! Replicas on loan: each is idle or under one lease; who finds none idle waits in line.
//!
//! Waiting happens on a semaphore whose permits equal the replicas, so whoever has a permit finds a replica. The idle
//! ones are behind a plain lock, held for one push or one pop. Knows neither models nor threads nor a clock to wait by.

use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

use crate::Error;
use crate::sync::{Arc, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, PoisonError};

/// Clients retry after this time at the latest; the official ones do not retry at all when told more than twice this.
const LONGEST_RETRY: Duration = Duration::from_mins(1);

/// Replicas of a pool when nobody asks for a number: as many as the processor runs at once, but no more than these.
const DEFAULT_SIZE: usize = 4;

/// How many generations a kernel tier can run at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decoding {
    /// Any number, each with a KV cache of its own.
    Replicated,
    /// One in the whole process, such as a GPU graph that owns its KV cache.
    Singleton,
}

/// Returns how many replicas a pool has: what was asked for, at least 1, unless the tier can run only one.
pub fn resolve_pool_size(requested: Option<usize>, decoding: Decoding) -> usize {
    match decoding {
        Decoding::Singleton => 1,
        Decoding::Replicated => requested.unwrap_or_else(default_pool_size).max(1),
    }
}

/// Returns the parallelism that this process has, from 1 to 4.
pub fn default_pool_size() -> usize {
    std::thread::available_parallelism().map_or(1, |threads| threads.get().min(DEFAULT_SIZE))
}

/// How many replicas and requests a pool has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Occupancy {
    /// Replicas, those that were lost included.
    pub size: usize,
    /// Replicas that wait for a request.
    pub idle: usize,
    /// Replicas under lease.
    pub leased: usize,
    /// Replicas that were lost and are not replaced yet; the pool is degraded while there are any.
    pub lost: usize,
    /// Requests that wait for a replica.
    pub waiting: usize,
}

/// A fixed number of replicas; clones share them.
pub struct Pool<R> {
    shared: Arc<Shared<R>>,
}

struct Shared<R> {
    size: usize,
    queue_limit: usize,
    make: Box<dyn Fn() -> R + Send + Sync>,
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<R>>,
    /// Told whenever a lease has ended.
    returned: Condvar,
    waiting: AtomicUsize,
    lost: AtomicUsize,
    /// How long a lease lasts, smoothed; `None` before the first has ended.
    stay: Mutex<Option<Duration>>,
}

impl<R> Clone for Pool<R> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<R> Pool<R> {
    /// Makes `size` replicas, at least one. At most `queue_limit` requests wait for them.
    pub fn new(
        size: usize,
        queue_limit: usize,
        make: impl Fn() -> R + Send + Sync + 'static,
    ) -> Self {
        let size = size.max(1);
        let idle = Mutex::new((0..size).map(|_| make()).collect());
        let shared = Shared {
            size,
            queue_limit,
            make: Box::new(make),
            permits: Arc::new(Semaphore::new(size)),
            idle,
            returned: Condvar::new(),
            waiting: AtomicUsize::new(0),
            lost: AtomicUsize::new(0),
            stay: Mutex::new(None),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Returns how many replicas and requests there are at this moment.
    pub fn occupancy(&self) -> Occupancy {
        let idle = self.shared.idle.lock().unwrap_or_else(PoisonError::into_inner).len();
        let lost = self.shared.lost.load(Ordering::SeqCst);
        let size = self.shared.size;
        let waiting = self.shared.waiting.load(Ordering::SeqCst);
        Occupancy { size, idle, leased: size.saturating_sub(idle + lost), lost, waiting }
    }

    /// Returns how many requests can be here at once, those that wait included.
    pub fn capacity(&self) -> usize {
        self.shared.size.saturating_add(self.shared.queue_limit)
    }

    /// Waits for an idle replica and returns it, unless `patience` completes before.
    ///
    /// # Errors
    /// Those of [`Pool::enter`] and of [`Turn::lease`].
    pub async fn acquire(&self, patience: impl Future<Output = ()>) -> Result<Lease<R>, Error> {
        self.enter()?.lease(patience).await
    }

    /// Takes a place in line, behind everybody who took one before.
    ///
    /// # Errors
    /// [`Error::QueueFull`] if as many wait as may, [`Error::Closed`] after [`Pool::close`].
    pub fn enter(&self) -> Result<Turn<R>, Error> {
        // The first poll joins the semaphore's own line, which keeps the order.
        let mut permit: Permit = Box::pin(Arc::clone(&self.shared.permits).acquire_owned());
        let since = Instant::now();
        let pool = Arc::clone(&self.shared);
        match permit.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(permit)) => Ok(Turn { pool, since, state: State::Come(permit) }),
            Poll::Ready(Err(_)) => Err(Error::Closed),
            Poll::Pending => {
                let place = Place::take(&pool)?;
                Ok(Turn { pool, since, state: State::Waiting(permit, place) })
            }
        }
    }

    /// Hands out no lease any more: whoever waits and whoever comes gets [`Error::Closed`]. Leases go on.
    pub fn close(&self) {
        self.shared.permits.close();
    }

    /// Blocks until no replica is under lease, for at most `limit`; says whether that was reached.
    pub fn wait_idle(&self, limit: Duration) -> bool {
        let shared = &self.shared;
        let idle = shared.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let is_leased =
            |idle: &mut Vec<R>| idle.len() + shared.lost.load(Ordering::SeqCst) < shared.size;
        let waited = shared.returned.wait_timeout_while(idle, limit, is_leased);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Changes each idle replica and returns how many there were.
    pub fn for_each_idle(&self, change: impl FnMut(&mut R)) -> usize {
        let mut idle = self.shared.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.iter_mut().for_each(change);
        idle.len()
    }
}

impl<R> Shared<R> {
    /// Takes a replica for a permit.
    fn take(&self) -> Result<R, Error> {
        // A guard that came with an error would keep the lock.
        let taken = self.idle.lock().map(|mut idle| idle.pop()).map_err(drop);
        match taken {
            Ok(Some(replica)) => Ok(replica),
            Ok(None) => {
                log::error!("a permit of the engine pool came without a replica");
                Err(Error::PoolEmpty)
            }
            Err(()) => {
                self.mend();
                Err(Error::PoolPoisoned)
            }
        }
    }

    /// Makes the pool whole after a panic under its lock.
    fn mend(&self) {
        self.idle.clear_poison();
        let lost = self.lost.swap(0, Ordering::SeqCst);
        for _ in 0..lost {
            let replica = (self.make)();
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(replica);
        }
        self.permits.add_permits(lost);
        log::warn!("the engine pool was mended; {lost} replicas were made anew");
    }

    /// Gives a replica back; one that cannot be is lost together with its permit.
    fn give_back(&self, replica: R, permit: OwnedSemaphorePermit) {
        let is_back = self.idle.lock().map(|mut idle| idle.push(replica)).is_ok();
        if is_back {
            drop(permit);
        } else {
            log::error!("a lease came back to a poisoned engine pool; its replica is dropped");
            self.lost.fetch_add(1, Ordering::SeqCst);
            permit.forget();
        }
        self.returned.notify_all();
    }

    fn stay(&self) -> MutexGuard<'_, Option<Duration>> {
        self.stay.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn retry_after_seconds(&self) -> u32 {
        let waiting = self.waiting.load(Ordering::SeqCst);
        retry_after_seconds(waiting, *self.stay(), self.size)
    }
}

/// Estimates when those that wait now will have been served.
fn retry_after_seconds(waiting: usize, stay: Option<Duration>, size: usize) -> u32 {
    let stay = stay.unwrap_or_default().as_secs_f64();
    let rounds = waiting.saturating_add(1).div_ceil(size);
    let estimate =
        Duration::try_from_secs_f64(stay * f64::from(u32::try_from(rounds).unwrap_or(u32::MAX)));
    let seconds = estimate.map_or(LONGEST_RETRY, |estimate| estimate.min(LONGEST_RETRY));
    // Whole seconds, rounded up: at most 60.
    let whole = seconds.as_secs() + u64::from(seconds.subsec_nanos() > 0);
    u32::try_from(whole.max(1)).unwrap_or(1)
}

type Permit = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>;

/// A place in line; dropping it leaves the line.
pub struct Turn<R> {
    pool: Arc<Shared<R>>,
    since: Instant,
    state: State<R>,
}

enum State<R> {
    Come(OwnedSemaphorePermit),
    Waiting(Permit, Place<R>),
}

impl<R> Turn<R> {
    /// Says whether a replica was idle, so that the lease is had without waiting.
    pub fn has_come(&self) -> bool {
        matches!(self.state, State::Come(_))
    }

    /// Waits for the replica, unless `patience` completes before.
    ///
    /// # Errors
    /// [`Error::QueueTimeout`] then, [`Error::Closed`] if the pool is closed meanwhile, [`Error::PoolEmpty`] and
    /// [`Error::PoolPoisoned`] after defects of this program.
    pub async fn lease(self, patience: impl Future<Output = ()>) -> Result<Lease<R>, Error> {
        let Self { pool, since, state } = self;
        let permit = match state {
            State::Come(permit) => permit,
            State::Waiting(permit, place) => {
                let granted = sooner(permit, patience).await;
                drop(place);
                let Some(permit) = granted else {
                    let retry_after_seconds = pool.retry_after_seconds();
                    return Err(Error::QueueTimeout {
                        waited: since.elapsed(),
                        retry_after_seconds,
                    });
                };
                permit.map_err(|_| Error::Closed)?
            }
        };
        let replica = pool.take()?;
        Ok(Lease { held: Some((replica, permit)), pool, since: Instant::now() })
    }
}

/// Waits for `wanted`; `None` if `limit` completes before.
async fn sooner<T>(
    mut wanted: Pin<Box<dyn Future<Output = T> + Send>>,
    limit: impl Future<Output = ()>,
) -> Option<T> {
    let mut limit = pin!(limit);
    std::future::poll_fn(move |context| match wanted.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => limit.as_mut().poll(context).map(|()| None),
    })
    .await
}

/// One of those that may wait.
struct Place<R>(Arc<Shared<R>>);

impl<R> Place<R> {
    fn take(pool: &Arc<Shared<R>>) -> Result<Self, Error> {
        let more = |waiting| (waiting < pool.queue_limit).then_some(waiting + 1);
        match pool.waiting.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more) {
            Ok(_) => Ok(Self(Arc::clone(pool))),
            Err(waiting) => {
                let retry_after_seconds = pool.retry_after_seconds();
                Err(Error::QueueFull { waiting, retry_after_seconds })
            }
        }
    }
}

impl<R> Drop for Place<R> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A replica for as long as this lives; dropping gives it back first and its permit second.
pub struct Lease<R> {
    /// `None` only while it is dropped.
    held: Option<(R, OwnedSemaphorePermit)>,
    pool: Arc<Shared<R>>,
    since: Instant,
}

impl<R> Deref for Lease<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.held.as_ref().expect("a lease holds its replica until it is dropped").0
    }
}

impl<R> DerefMut for Lease<R> {
    fn deref_mut(&mut self) -> &mut R {
        &mut self.held.as_mut().expect("a lease holds its replica until it is dropped").0
    }
}

impl<R> Drop for Lease<R> {
    fn drop(&mut self) {
        let stay = self.since.elapsed();
        {
            let mut mean = self.pool.stay();
            *mean = Some(mean.map_or(stay, |mean| (mean * 7 + stay) / 8));
        }
        if let Some((replica, permit)) = self.held.take() {
            self.pool.give_back(replica, permit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_to_come_back_is_whole_seconds_from_1_to_60() {
        let seconds = |seconds| Some(Duration::from_secs_f64(seconds));
        assert_eq!(retry_after_seconds(8, None, 4), 1);
        assert_eq!(retry_after_seconds(0, seconds(0.2), 4), 1);
        assert_eq!(retry_after_seconds(0, seconds(2.2), 4), 3);
        assert_eq!(retry_after_seconds(7, seconds(2.5), 4), 5);
        assert_eq!(retry_after_seconds(8, seconds(2.5), 4), 8);
        assert_eq!(retry_after_seconds(100, seconds(30.0), 1), 60);
        assert_eq!(retry_after_seconds(usize::MAX - 1, Some(Duration::MAX), 1), 60);
    }
}
