//! Who may wait and for how long: first come, first served, counted, timed.
//!
//! A [`Gate`] counts every request from its acceptance to its end. A [`Line`] is where the worker keeps those that
//! it cannot run yet. A request that is refused or waits too long has cost no computation.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::worker::Job;
use crate::{Error, Event};

/// Clients retry after this time at the latest; the official ones do not retry at all when told more than twice this.
const LONGEST_RETRY: Duration = Duration::from_mins(1);

/// Waiting requests that are asked between two passes whether their client is still there: enough to find those that
/// left within seconds, few enough to cost no pass noticeable time.
const ASKED_PER_PASS: usize = 8;

/// How many requests an engine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Occupancy {
    /// Requests that are being computed.
    pub running: usize,
    /// Requests that wait for a place.
    pub waiting: usize,
}

/// Lets requests in while there is room.
pub(crate) struct Gate {
    /// Requests that can run at once.
    places: usize,
    /// Requests that may wait beyond them.
    limit: usize,
    timeout: Duration,
    counts: Mutex<Counts>,
}

struct Counts {
    occupancy: Occupancy,
    /// How long a request has its place, smoothed; `None` before the first has ended.
    stay: Option<Duration>,
}

/// One accepted request's share of the gate, given back when dropped.
pub(crate) struct Ticket {
    gate: Arc<Gate>,
    /// When it was accepted, then when it got its place.
    since: Instant,
    is_running: bool,
}

impl Gate {
    pub(crate) fn new(places: usize, limit: usize, timeout: Duration) -> Self {
        let occupancy = Occupancy { running: 0, waiting: 0 };
        Self { places, limit, timeout, counts: Mutex::new(Counts { occupancy, stay: None }) }
    }

    pub(crate) fn occupancy(&self) -> Occupancy {
        self.counts().occupancy
    }

    /// Lets one more request in, or says how many wait already.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<Ticket, Error> {
        let mut counts = self.counts();
        let Occupancy { running, waiting } = counts.occupancy;
        if running + waiting >= self.places.saturating_add(self.limit) {
            let retry_after_seconds = retry_after_seconds(&counts, self.places);
            return Err(Error::QueueFull { waiting, retry_after_seconds });
        }
        counts.occupancy.waiting += 1;
        Ok(Ticket { gate: Arc::clone(self), since: Instant::now(), is_running: false })
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Estimates when those that wait now will have been served.
fn retry_after_seconds(counts: &Counts, places: usize) -> u32 {
    let stay = counts.stay.unwrap_or_default().as_secs_f64();
    let rounds = (counts.occupancy.waiting + 1).div_ceil(places);
    let estimate =
        Duration::try_from_secs_f64(stay * f64::from(u32::try_from(rounds).unwrap_or(u32::MAX)));
    let seconds = estimate.map_or(LONGEST_RETRY, |estimate| estimate.min(LONGEST_RETRY));
    // Whole seconds, rounded up: at most 60.
    let whole = seconds.as_secs() + u64::from(seconds.subsec_nanos() > 0);
    u32::try_from(whole.max(1)).unwrap_or(1)
}

impl Ticket {
    /// Turns waiting into running.
    pub(crate) fn start(&mut self) {
        let mut counts = self.gate.counts();
        counts.occupancy.waiting -= 1;
        counts.occupancy.running += 1;
        self.is_running = true;
        self.since = Instant::now();
    }

    /// Returns the error of a request that has waited too long.
    fn overdue(&self, now: Instant) -> Option<Error> {
        let waited = now.saturating_duration_since(self.since);
        (waited >= self.gate.timeout).then(|| Error::QueueTimeout {
            waited,
            retry_after_seconds: retry_after_seconds(&self.gate.counts(), self.gate.places),
        })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut counts = self.gate.counts();
        if self.is_running {
            counts.occupancy.running -= 1;
            let stay = self.since.elapsed();
            counts.stay = Some(counts.stay.map_or(stay, |mean| (mean * 7 + stay) / 8));
        } else {
            counts.occupancy.waiting -= 1;
        }
    }
}

/// Those that wait, in order of arrival.
#[derive(Default)]
pub(crate) struct Line {
    jobs: VecDeque<Job>,
    /// Counts the jobs that were asked whether anybody listens.
    asked: usize,
}

impl Line {
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    pub(crate) fn join(&mut self, job: Job) {
        self.jobs.push_back(job);
    }

    pub(crate) fn next(&mut self) -> Option<Job> {
        self.jobs.pop_front()
    }

    /// Sends away those that have waited too long, and drops some of those whose client has left.
    pub(crate) fn tidy(&mut self, now: Instant) {
        // All may wait equally long, so whoever is overdue stands in front.
        while let Some(error) = self.jobs.front().and_then(|job| job.ticket.overdue(now)) {
            if let Some(job) = self.jobs.pop_front() {
                fail(job, error);
            }
        }
        for _ in 0..ASKED_PER_PASS.min(self.jobs.len()) {
            self.asked = self.asked.wrapping_add(1) % self.jobs.len();
            if (self.jobs[self.asked].sink)(Event::Prefilled { tokens: 0 }).is_break() {
                self.jobs.remove(self.asked);
            }
        }
    }

    /// Sends everybody away because the engine ends.
    pub(crate) fn close(&mut self) {
        for job in self.jobs.drain(..) {
            fail(job, Error::Closed);
        }
    }
}

/// Gives the ticket back before the client learns of it, so that it can come again at once.
fn fail(job: Job, error: Error) {
    let Job { mut sink, ticket, .. } = job;
    drop(ticket);
    // The request ends whatever its sink answers.
    let (ControlFlow::Continue(()) | ControlFlow::Break(())) = sink(Event::Failed(error));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_places_and_the_queue_together_bound_who_is_let_in() {
        let gate = Arc::new(Gate::new(2, 1, Duration::MAX));
        let mut first = gate.enter().unwrap();
        let second = gate.enter().unwrap();
        first.start();
        let third = gate.enter().unwrap();
        assert_eq!(gate.occupancy(), Occupancy { running: 1, waiting: 2 });
        let refused = gate.enter().err();
        assert!(matches!(refused, Some(Error::QueueFull { waiting: 2, .. })), "{refused:?}");
        drop(second);
        let again = gate.enter().unwrap();
        assert!(gate.enter().is_err());
        drop((first, third, again));
        assert_eq!(gate.occupancy(), Occupancy { running: 0, waiting: 0 });
    }

    #[test]
    fn a_request_may_wait_so_long_and_no_longer() {
        let timeout = Duration::from_secs(7);
        let ticket = Arc::new(Gate::new(1, 1, timeout)).enter().unwrap();
        assert!(ticket.overdue(ticket.since + Duration::from_millis(6_999)).is_none());
        let error = ticket.overdue(ticket.since + timeout);
        assert!(
            matches!(error, Some(Error::QueueTimeout { waited, .. }) if waited == timeout),
            "{error:?}"
        );
    }

    #[test]
    fn a_timeout_beyond_all_time_never_comes() {
        let ticket = Arc::new(Gate::new(1, 1, Duration::MAX)).enter().unwrap();
        assert!(ticket.overdue(ticket.since + Duration::from_secs(1 << 30)).is_none());
    }

    #[test]
    fn the_time_to_come_back_is_whole_seconds_from_1_to_60() {
        let after = |waiting, stay, places| {
            let occupancy = Occupancy { running: places, waiting };
            retry_after_seconds(&Counts { occupancy, stay }, places)
        };
        let seconds = |seconds| Some(Duration::from_secs_f64(seconds));
        assert_eq!(after(8, None, 4), 1);
        assert_eq!(after(0, seconds(0.2), 4), 1);
        assert_eq!(after(0, seconds(2.2), 4), 3);
        assert_eq!(after(7, seconds(2.5), 4), 5);
        assert_eq!(after(8, seconds(2.5), 4), 8);
        assert_eq!(after(100, seconds(30.0), 1), 60);
        assert_eq!(after(usize::MAX - 1, Some(Duration::MAX), 1), 60);
    }
}
