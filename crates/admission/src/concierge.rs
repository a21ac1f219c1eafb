//! The automatic, reversible choice of a policy: what it has seen, what it would do next, and the mark it leaves.
//!
//! Invariant: a choice of the user is never changed, and a raise that was taken back is never made again.
//! Knows no clock: days and seconds are passed in.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::policy::Policy;
use crate::policy_file::document::{self, Content};
use crate::policy_file::{self, Error, Loaded, Source};

/// Name of the mark in the state root.
pub const MARKER_NAME: &str = "model-resource-policy.concierge.json";

/// Name of the history in the state root.
pub const HISTORY_NAME: &str = "model-resource-policy.concierge-history.json";

/// Name of the file in the state root that is locked while somebody chooses; it is empty.
pub const LOCK_NAME: &str = "model-resource-policy.lock";

/// The smallest machine on which the policy is raised, in MB.
pub const LEAST_MEMORY_MB: u64 = 32_768;

const REFUSALS_TO_RAISE: u32 = 3;
const DAYS_TO_RAISE: usize = 2;
const REFUSALS_TO_REVERT: u32 = 3;
const FAILURES_TO_REVERT: u32 = 3;
/// Days that are remembered; more would change no decision.
const MOST_DAYS: usize = 32;

/// The mark of an automatic choice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// What was chosen.
    pub policy: Policy,
    /// Why, in words.
    pub reason: String,
    /// When, in seconds since 1970.
    pub at: u64,
    /// Whether this took an earlier choice back.
    #[serde(default)]
    pub reverted: bool,
}

/// Something that happened to a model whose estimated peak is `peak_mb`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It was refused because of the policy's ceiling.
    RefusedByCeiling {
        /// Its estimated peak.
        peak_mb: u64,
    },
    /// It was refused because too little memory was free.
    RefusedByLiveMemory {
        /// Its estimated peak.
        peak_mb: u64,
    },
    /// It was loaded.
    Loaded {
        /// Its estimated peak.
        peak_mb: u64,
    },
    /// It was admitted, and loading it failed.
    LoadFailed {
        /// Its estimated peak.
        peak_mb: u64,
    },
}

/// Refusals of one day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DayCount {
    /// Days since 1970.
    pub day: u64,
    /// How many.
    pub count: u32,
}

/// What has been seen: counts only, so its size is bounded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct History {
    /// Whether the user has switched the concierge off.
    pub is_off: bool,
    /// Whether an earlier history could not be read, so that a raise may have been taken back in it.
    pub is_incomplete: bool,
    /// Refusals by the ceiling of models that the raised ceiling would have admitted, by day.
    pub would_have_fitted: Vec<DayCount>,
    /// The day on which the policy was raised; it is raised once only.
    pub raised_on: Option<u64>,
    /// Since then: refusals for want of free memory of models that *everyday* admits.
    pub live_refusals: u32,
    /// Since then: failed loads of models that only the raise admits.
    pub raised_failures: u32,
    /// Since then: loads of models that only the raise admits.
    pub raised_successes: u32,
}

/// What a decision rests on.
#[derive(Debug, Clone, Copy)]
pub struct Situation<'a> {
    /// The policy in force.
    pub loaded: &'a Loaded,
    /// The mark of an automatic choice.
    pub choice: Option<&'a Choice>,
    /// Memory of the machine.
    pub total_memory_mb: u64,
    /// What has been seen.
    pub history: &'a History,
}

/// A change of the policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// What to change to.
    pub policy: Policy,
    /// Why, in words.
    pub reason: String,
    /// How the user undoes it, in words.
    pub undo: String,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Give models more.
    Raise(Change),
    /// Take the raise back.
    Revert(Change),
    /// Change nothing.
    Keep {
        /// Why, in words.
        reason: String,
    },
}

impl History {
    /// Notes what happened on a day to a model; what no decision rests on leaves no trace.
    pub fn note(&mut self, event: Event, day: u64, total_memory_mb: u64) {
        let ceiling =
            |policy: Policy| policy.effective_budget(total_memory_mb).effective_new_load_ceiling_mb;
        let fits_everyday = |peak_mb| peak_mb <= ceiling(Policy::everyday());
        let fits_raised = |peak_mb| peak_mb <= ceiling(Policy::local_focused());
        let is_raised = self.raised_on.is_some();
        let count = match event {
            Event::RefusedByCeiling { peak_mb } if !is_raised && fits_raised(peak_mb) => {
                self.day(day)
            }
            Event::RefusedByLiveMemory { peak_mb } if is_raised && fits_everyday(peak_mb) => {
                &mut self.live_refusals
            }
            Event::Loaded { peak_mb } | Event::LoadFailed { peak_mb }
                if !is_raised || fits_everyday(peak_mb) || !fits_raised(peak_mb) =>
            {
                return;
            }
            Event::Loaded { .. } => &mut self.raised_successes,
            Event::LoadFailed { .. } => &mut self.raised_failures,
            Event::RefusedByCeiling { .. } | Event::RefusedByLiveMemory { .. } => return,
        };
        *count = count.saturating_add(1);
    }

    /// Returns the count of a day, with room made for it.
    fn day(&mut self, day: u64) -> &mut u32 {
        let days = &mut self.would_have_fitted;
        let at = days.iter().position(|of| of.day == day).unwrap_or_else(|| {
            if days.len() >= MOST_DAYS {
                days.remove(0);
            }
            days.push(DayCount { day, count: 0 });
            days.len() - 1
        });
        &mut days[at].count
    }

    fn refusals(&self) -> u32 {
        self.would_have_fitted.iter().fold(0, |sum, of| sum.saturating_add(of.count))
    }

    /// Notes that the policy was raised on a day, from which counting starts again.
    fn note_raise(&mut self, day: u64) {
        *self = Self { is_off: self.is_off, raised_on: Some(day), ..Self::default() };
    }
}

/// Decides what to do next.
pub fn decide(situation: &Situation<'_>) -> Step {
    let Situation { loaded, choice, total_memory_mb, history } = *situation;
    let keep = |reason: &str| Step::Keep { reason: reason.to_owned() };
    if history.is_off {
        return keep("the automatic choice is switched off");
    }
    if user_chose(loaded, choice.map(|choice| &choice.policy)) {
        return keep("the user has chosen this policy");
    }
    if loaded.policy == Policy::local_focused() {
        return decide_revert(history);
    }
    if loaded.policy != Policy::everyday() {
        return keep("this policy is not one that is raised");
    }
    if history.is_incomplete {
        return keep("what was seen before could not be read; a raise may have been taken back");
    }
    if history.raised_on.is_some() || choice.is_some_and(|choice| choice.reverted) {
        return keep("a raise was taken back, and is not made again");
    }
    if total_memory_mb < LEAST_MEMORY_MB {
        return Step::Keep {
            reason: format!("this machine has less than {LEAST_MEMORY_MB} MB of memory"),
        };
    }
    let (refusals, days) = (history.refusals(), history.would_have_fitted.len());
    if refusals < REFUSALS_TO_RAISE || days < DAYS_TO_RAISE {
        return Step::Keep {
            reason: format!(
                "{refusals} refused loads on {days} days would have fitted local-focused; \
                 {REFUSALS_TO_RAISE} on {DAYS_TO_RAISE} days are needed"
            ),
        };
    }
    Step::Raise(Change {
        policy: Policy::local_focused(),
        reason: format!(
            "{refusals} loads on {days} days were refused by everyday and fit local-focused"
        ),
        undo: undo(&Policy::everyday()),
    })
}

fn decide_revert(history: &History) -> Step {
    let (failures, successes) = (history.raised_failures, history.raised_successes);
    let refusals = history.live_refusals;
    let reason = if refusals >= REFUSALS_TO_REVERT {
        format!("{refusals} loads that fit everyday found too little free memory since the raise")
    } else if failures >= FAILURES_TO_REVERT && successes == 0 {
        format!("{failures} loads that only the raise admits failed, and none succeeded")
    } else {
        return Step::Keep { reason: "nothing speaks against the raise".to_owned() };
    };
    Step::Revert(Change {
        policy: Policy::everyday(),
        reason,
        undo: undo(&Policy::local_focused()),
    })
}

/// Tells whether the policy in force is the user's choice: not where there is no file, and not where the mark says
/// that this very policy was chosen automatically.
pub fn user_chose(loaded: &Loaded, marked: Option<&Policy>) -> bool {
    match loaded.source {
        Source::MissingDefault => false,
        Source::CorruptDefault | Source::LastGood => true,
        Source::Loaded => marked != Some(&loaded.policy),
    }
}

/// Returns the mark of an automatic choice; one that cannot be read or understood is none.
pub fn choice(root: &Path) -> Option<Choice> {
    match document::read(&root.join(MARKER_NAME)) {
        Ok(Content::Bytes(bytes)) => serde_json::from_slice(&bytes).ok(),
        _ => None,
    }
}

/// Saves a policy and marks it as chosen automatically.
///
/// A process that dies between the two leaves what looks like a choice of the user, which nobody changes.
pub fn save_choice(root: &Path, choice: &Choice) -> Result<(), Error> {
    choice.policy.validate()?;
    let _changing = Changing::begin(root)?;
    write_choice(root, choice)
}

/// Saves a policy as the user's choice.
pub fn save_user_choice(root: &Path, policy: &Policy) -> Result<(), Error> {
    policy.validate()?;
    let _changing = Changing::begin(root)?;
    // First, so that no failure later lets the user's choice look like an automatic one.
    clear(root)?;
    policy_file::save(root, policy)
}

/// Removes the mark; there being none is success.
pub fn clear(root: &Path) -> Result<(), Error> {
    document::remove(root, MARKER_NAME).map_err(|source| Error::Io {
        action: "remove",
        path: root.join(MARKER_NAME),
        source,
    })
}

/// Reads what has been seen. What cannot be read or understood counts as a raise that was taken back.
pub fn history(root: &Path) -> History {
    let lost = || History { is_incomplete: true, ..History::default() };
    match document::read(&root.join(HISTORY_NAME)) {
        Ok(Content::Missing) => History::default(),
        Ok(Content::Bytes(bytes)) => serde_json::from_slice(&bytes).unwrap_or_else(|_| lost()),
        Ok(Content::Unfit(_)) | Err(_) => lost(),
    }
}

/// Notes on disk what happened on a day to a model, and returns all that has been seen.
///
/// Does not wait: while another process changes the policy, the event is forgotten.
pub fn note(root: &Path, event: Event, day: u64, total_memory_mb: u64) -> Result<History, Error> {
    let noted = || {
        let before = history(root);
        let mut after = before.clone();
        after.note(event, day, total_memory_mb);
        (before, after)
    };
    let (before, after) = noted();
    // Most events leave no trace, and cost no lock.
    if before == after {
        return Ok(before);
    }
    let Some(_changing) = Changing::try_begin(root)? else { return Ok(before) };
    let (_, after) = noted();
    replace(root, HISTORY_NAME, &after)?;
    Ok(after)
}

/// Switches the automatic choice off: nothing is raised or taken back.
pub fn switch_off(root: &Path) -> Result<History, Error> {
    switch(root, true)
}

/// Switches the automatic choice on again.
pub fn switch_on(root: &Path) -> Result<History, Error> {
    switch(root, false)
}

/// Decides on what is on disk now and does it; returns what was done, for the journal.
///
/// `at_secs` are seconds since 1970. Does not wait: while another process changes the policy, nothing is done.
pub fn step(root: &Path, total_memory_mb: u64, at_secs: u64) -> Result<Step, Error> {
    const SECONDS_A_DAY: u64 = 86_400;
    let Some(_changing) = Changing::try_begin(root)? else {
        return Ok(Step::Keep { reason: "the policy is being changed".to_owned() });
    };
    let loaded = policy_file::load(root)?;
    let (choice, mut history) = (choice(root), history(root));
    if let (Some(choice), None) = (&choice, history.raised_on)
        && choice.policy == Policy::local_focused()
    {
        // Whoever raised it did not come to note that.
        history.note_raise(choice.at / SECONDS_A_DAY);
        replace(root, HISTORY_NAME, &history)?;
    }
    let situation =
        Situation { loaded: &loaded, choice: choice.as_ref(), total_memory_mb, history: &history };
    let step = decide(&situation);
    let (change, reverted) = match &step {
        Step::Raise(change) => (change, false),
        Step::Revert(change) => (change, true),
        Step::Keep { .. } => return Ok(step),
    };
    let (policy, reason) = (change.policy, change.reason.clone());
    write_choice(root, &Choice { policy, reason, at: at_secs, reverted })?;
    if matches!(step, Step::Raise(_)) {
        history.note_raise(at_secs / SECONDS_A_DAY);
        replace(root, HISTORY_NAME, &history)?;
    }
    Ok(step)
}

fn undo(policy: &Policy) -> String {
    format!("toko policy set {policy}")
}

fn write_choice(root: &Path, choice: &Choice) -> Result<(), Error> {
    policy_file::save(root, &choice.policy)?;
    replace(root, MARKER_NAME, choice)
}

fn switch(root: &Path, is_off: bool) -> Result<History, Error> {
    let _changing = Changing::begin(root)?;
    let history = History { is_off, ..history(root) };
    replace(root, HISTORY_NAME, &history)?;
    Ok(history)
}

fn replace<T: Serialize>(root: &Path, name: &str, document: &T) -> Result<(), Error> {
    let bytes = serde_json::to_vec_pretty(document).expect("no part of these is unknown to JSON");
    document::prepare(root)
        .and_then(|()| document::replace(root, name, &bytes))
        .map_err(|source| Error::Io { action: "save", path: root.join(name), source })
}

/// Keeps everybody else from choosing, in this process and in others.
///
/// Without it a user could choose between the moment at which nobody had chosen and the raise.
struct Changing {
    // Given back in this order, so that a thread that comes next finds the file free.
    _elsewhere: File,
    _here: MutexGuard<'static, ()>,
}

impl Changing {
    /// Waits for the others.
    fn begin(root: &Path) -> Result<Self, Error> {
        let here = Self::here();
        let file = Self::file(root)?;
        match file.lock() {
            // A file system without locks: nobody else can be kept out.
            Err(error) if error.kind() != io::ErrorKind::Unsupported => {
                Err(Self::error(root, error))
            }
            _ => Ok(Self { _elsewhere: file, _here: here }),
        }
    }

    /// Waits for the others of this process only; `None` while another process changes something.
    fn try_begin(root: &Path) -> Result<Option<Self>, Error> {
        let here = Self::here();
        let file = Self::file(root)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) if error.kind() != io::ErrorKind::Unsupported => {
                Err(Self::error(root, error))
            }
            _ => Ok(Some(Self { _elsewhere: file, _here: here })),
        }
    }

    fn here() -> MutexGuard<'static, ()> {
        static CHANGING: Mutex<()> = Mutex::new(());
        // It guards no value that a panic could have spoilt.
        CHANGING.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(root: &Path) -> Result<File, Error> {
        document::prepare(root)
            .and_then(|()| document::lock_file(root, LOCK_NAME))
            .map_err(|source| Self::error(root, source))
    }

    fn error(root: &Path, source: io::Error) -> Error {
        Error::Io { action: "lock", path: root.join(LOCK_NAME), source }
    }
}
