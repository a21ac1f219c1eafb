//! What the events say about loads that ended with their process. Pure: which runs are alive is passed in.

use std::collections::{BTreeMap, BTreeSet};

use super::event::{Event, What};
use crate::units::Bytes;

/// So many loads of a model in a row must have taken their process down until it is held.
const CRASHES_TO_HOLD: usize = 2;

/// A load that ended with its process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crash {
    /// What was being loaded.
    pub model: String,
    /// All that was charged for it.
    pub bytes: Bytes,
    /// When the load began, in Unix milliseconds.
    pub at_ms: u64,
    /// The run that ended.
    pub run: String,
    /// The program, where that is still known.
    pub program: Option<String>,
    /// Whether the user was told already.
    pub is_reported: bool,
}

/// What became of earlier loads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Past {
    /// Loads that ended with their process, as far back as is still written down; the latest last.
    pub crashes: Vec<Crash>,
    /// Models that must not be loaded until the user says so.
    pub held: BTreeSet<String>,
    /// What could not be read, in words.
    pub warnings: Vec<String>,
}

/// A load that was begun and of which no end is known.
struct Attempt<'a> {
    /// Its place among the events.
    index: usize,
    model: &'a str,
    run: &'a str,
    bytes: Bytes,
    at_ms: u64,
    /// Whether no good end of a load of that model, nor the user's word, came later.
    is_in_row: bool,
}

fn attempts(events: &[Event]) -> Vec<Attempt<'_>> {
    let mut attempts: Vec<Attempt<'_>> = Vec::new();
    for (index, event) in events.iter().enumerate() {
        let run = &*event.run;
        match &event.what {
            What::LoadStarted { model, bytes } => attempts.push(Attempt {
                index,
                model,
                run,
                bytes: *bytes,
                at_ms: event.at_ms,
                is_in_row: true,
            }),
            What::Loaded { model, .. } | What::LoadFailed { model, .. } => {
                let ended = attempts.iter().rposition(|it| it.run == run && it.model == model);
                if let Some(ended) = ended {
                    attempts.remove(ended);
                }
                break_row(&mut attempts, model);
            }
            What::Cleared { model } => break_row(&mut attempts, model),
            What::RunEnded => attempts.retain(|attempt| attempt.run != run),
            _ => {}
        }
    }
    attempts
}

fn break_row(attempts: &mut [Attempt<'_>], model: &str) {
    for attempt in attempts.iter_mut().filter(|attempt| attempt.model == model) {
        attempt.is_in_row = false;
    }
}

impl Past {
    pub(super) fn of(
        events: &[Event],
        is_alive: impl Fn(&str) -> bool,
        warnings: Vec<String>,
    ) -> Self {
        let reported = reported(events);
        let mut past = Self { warnings, ..Self::default() };
        let mut in_row: BTreeMap<&str, usize> = BTreeMap::new();
        for attempt in attempts(events) {
            if is_alive(attempt.run) {
                continue;
            }
            if attempt.is_in_row {
                *in_row.entry(attempt.model).or_default() += 1;
            }
            past.crashes.push(Crash {
                model: attempt.model.to_owned(),
                bytes: attempt.bytes,
                at_ms: attempt.at_ms,
                run: attempt.run.to_owned(),
                program: events.iter().find_map(|event| program(event, attempt.run)),
                is_reported: reported.contains(attempt.run),
            });
        }
        let held = in_row.into_iter().filter(|(_, crashes)| *crashes >= CRASHES_TO_HOLD);
        past.held = held.map(|(model, _)| model.to_owned()).collect();
        past
    }
}

/// Returns the places of those events without which other models would be held, or a crash never be reported.
pub(super) fn needed(events: &[Event]) -> BTreeSet<usize> {
    let reported = reported(events);
    let (mut needed, mut runs) = (BTreeSet::new(), BTreeSet::new());
    let mut in_row: BTreeMap<&str, usize> = BTreeMap::new();
    for attempt in attempts(events).iter().rev() {
        let later = in_row.entry(attempt.model).or_default();
        let counts = attempt.is_in_row && *later < CRASHES_TO_HOLD;
        *later += usize::from(counts);
        if counts || !reported.contains(attempt.run) {
            needed.insert(attempt.index);
            runs.insert(attempt.run);
        }
    }
    let about_runs = events.iter().enumerate().filter(|(_, event)| match &event.what {
        What::RunStarted { .. } => runs.contains(&*event.run),
        What::CrashReported { ended } => runs.contains(&**ended),
        _ => false,
    });
    needed.extend(about_runs.map(|(index, _)| index));
    needed
}

fn reported(events: &[Event]) -> BTreeSet<&str> {
    let reported = events.iter().filter_map(|event| match &event.what {
        What::CrashReported { ended } => Some(&**ended),
        _ => None,
    });
    reported.collect()
}

fn program(event: &Event, run: &str) -> Option<String> {
    match &event.what {
        What::RunStarted { program, .. } if event.run == run => Some(program.clone()),
        _ => None,
    }
}
