//! The automatic, reversible choice of a policy: what it has seen, what it would do next, and the mark it leaves.
//!
//! Invariant: a choice of the user is never changed, and a raise that was taken back is never made again.
//! Knows no clock: days and seconds are passed in.

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

/// Why the policy is never raised again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Barred {
    /// A raise was taken back.
    Reverted,
    /// The history could not be read, so a raise may have been taken back.
    HistoryLost,
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
    /// Refusals by the ceiling of models that the raised ceiling would have admitted, by day.
    pub would_have_fitted: Vec<DayCount>,
    /// The day on which the policy was raised.
    pub raised_on: Option<u64>,
    /// Since then: refusals for want of free memory of models that *everyday* admits.
    pub live_refusals: u32,
    /// Since then: failed loads of models that only the raise admits.
    pub raised_failures: u32,
    /// Since then: loads of models that only the raise admits.
    pub raised_successes: u32,
    /// Why the policy is never raised again.
    pub barred: Option<Barred>,
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

    /// Notes a step that was taken on a day.
    fn note_step(&mut self, step: &Step, day: u64) {
        match step {
            Step::Raise(_) => {
                *self = Self { is_off: self.is_off, raised_on: Some(day), ..Self::default() };
            }
            Step::Revert(_) => self.barred = Some(Barred::Reverted),
            Step::Keep { .. } => {}
        }
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
    match history.barred {
        Some(Barred::HistoryLost) => {
            return keep(
                "what was seen before could not be read, so a raise may have been taken back already",
            );
        }
        Some(Barred::Reverted) => return keep("a raise was taken back, and is not made again"),
        None if choice.is_some_and(|choice| choice.reverted) || history.raised_on.is_some() => {
            return keep("a raise was taken back, and is not made again");
        }
        None => {}
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
    policy_file::save(root, &choice.policy)?;
    replace(root, MARKER_NAME, choice)
}

/// Saves a policy as the user's choice.
pub fn save_user_choice(root: &Path, policy: &Policy) -> Result<(), Error> {
    policy.validate()?;
    let _changing = changing();
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
    let lost = || History { barred: Some(Barred::HistoryLost), ..History::default() };
    match document::read(&root.join(HISTORY_NAME)) {
        Ok(Content::Missing) => History::default(),
        Ok(Content::Bytes(bytes)) => serde_json::from_slice(&bytes).unwrap_or_else(|_| lost()),
        Ok(Content::Unfit(_)) | Err(_) => lost(),
    }
}

/// Notes on disk what happened on a day to a model, and returns all that has been seen.
pub fn note(root: &Path, event: Event, day: u64, total_memory_mb: u64) -> Result<History, Error> {
    change_history(root, |history| history.note(event, day, total_memory_mb))
}

/// Switches the automatic choice off: nothing is raised or taken back.
pub fn switch_off(root: &Path) -> Result<History, Error> {
    change_history(root, |history| history.is_off = true)
}

/// Switches the automatic choice on again.
pub fn switch_on(root: &Path) -> Result<History, Error> {
    change_history(root, |history| history.is_off = false)
}

/// Decides on what is on disk now and does it; returns what was done, for the journal.
///
/// `at_secs` are seconds since 1970.
pub fn step(root: &Path, total_memory_mb: u64, at_secs: u64) -> Result<Step, Error> {
    const SECONDS_A_DAY: u64 = 86_400;
    let _changing = changing();
    let loaded = policy_file::load(root)?;
    let (choice, history) = (choice(root), history(root));
    let situation =
        Situation { loaded: &loaded, choice: choice.as_ref(), total_memory_mb, history: &history };
    let step = decide(&situation);
    let (change, reverted) = match &step {
        Step::Raise(change) => (change, false),
        Step::Revert(change) => (change, true),
        Step::Keep { .. } => return Ok(step),
    };
    let (policy, reason) = (change.policy, change.reason.clone());
    save_choice(root, &Choice { policy, reason, at: at_secs, reverted })?;
    let mut history = history;
    history.note_step(&step, at_secs / SECONDS_A_DAY);
    replace(root, HISTORY_NAME, &history)?;
    Ok(step)
}

fn undo(policy: &Policy) -> String {
    format!("toko policy set {policy}")
}

fn change_history(root: &Path, change: impl FnOnce(&mut History)) -> Result<History, Error> {
    let _changing = changing();
    let before = history(root);
    let mut after = before.clone();
    change(&mut after);
    if after != before {
        replace(root, HISTORY_NAME, &after)?;
    }
    Ok(after)
}

fn replace<T: Serialize>(root: &Path, name: &str, document: &T) -> Result<(), Error> {
    let bytes = serde_json::to_vec_pretty(document).expect("no part of these is unknown to JSON");
    document::prepare(root)
        .and_then(|()| document::replace(root, name, &bytes))
        .map_err(|source| Error::Io { action: "save", path: root.join(name), source })
}

/// Keeps the others of this process from choosing meanwhile.
fn changing() -> MutexGuard<'static, ()> {
    static CHANGING: Mutex<()> = Mutex::new(());
    // It guards no value that a panic could have spoilt.
    CHANGING.lock().unwrap_or_else(PoisonError::into_inner)
}
