//! What a process writes down about its loads, and what it knows from those of earlier processes.
//!
//! Invariant: nothing here makes a load fail. What cannot be written or read is said once, and done without.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::concierge;
use crate::decision::{Decision, Load};
use crate::handles::LoadEvent;
use crate::history::{History, Key, Measurement};
use crate::journal::event::What;
use crate::journal::past::Past;
use crate::journal::{self, Journal};
use crate::ledger::{ModelId, Verdict};
use crate::policy::Policy;
use crate::probe;
use crate::sizing::{Evidence, Kind, Sizing, Term};
use crate::surroundings::{self, Settings};
use crate::units::Bytes;

/// Longest wait for other processes that write something down; nobody holds these files for long.
const LIMIT: Duration = Duration::from_millis(250);

const MS_A_DAY: u64 = 24 * 60 * 60 * 1000;

/// The notes of a process.
pub(crate) struct Notes {
    settings: Settings,
    /// `None` where nothing is written down.
    journal: Mutex<Option<Journal>>,
    past: Past,
    held: Mutex<BTreeSet<ModelId>>,
    history: Mutex<History>,
    total_memory_mb: u64,
    has_complained: AtomicBool,
}

impl Notes {
    /// Begins to write down what a process does, says what became of the last one, and lets the automatic choice of the
    /// policy take its step.
    pub(crate) fn open(settings: &Settings) -> Self {
        let mut notes = Self::new(settings);
        let Settings { state_root, process, now_ms, .. } = settings;
        let run = run_name(settings);
        match Journal::open(state_root, &run, &process.program, now_ms(), LIMIT) {
            Ok((journal, past)) => {
                notes.remember(past);
                notes.journal = Mutex::new(Some(journal));
            }
            Err(error) => notes.complain("what is loaded is not written down", &error),
        }
        notes.report();
        notes.choose();
        notes
    }

    /// Reads what is known, and writes nothing.
    pub(crate) fn read(settings: &Settings) -> Self {
        let mut notes = Self::new(settings);
        match journal::past(&settings.state_root, LIMIT) {
            Ok(past) => notes.remember(past),
            Err(error) => notes.complain("what was loaded before is not known", &error),
        }
        notes
    }

    fn new(settings: &Settings) -> Self {
        let reading = probe::read(&settings.roots);
        let total = surroundings::env(&Policy::everyday(), &reading, None).total;
        let (history, warning) = History::load(&settings.state_root);
        if let Some(warning) = warning {
            log::warn!("what earlier loads took is not known: {warning}");
        }
        Self {
            settings: settings.clone(),
            journal: Mutex::default(),
            past: Past::default(),
            held: Mutex::default(),
            history: Mutex::new(history),
            total_memory_mb: total.map_or(0, Bytes::floor_mib),
            has_complained: AtomicBool::new(false),
        }
    }

    fn remember(&mut self, past: Past) {
        self.held = Mutex::new(past.held.iter().map(ModelId::new).collect());
        self.past = past;
    }

    /// Returns what became of earlier loads, as it was when this process began.
    pub(crate) fn past(&self) -> &Past {
        &self.past
    }

    /// Returns the models that must not be loaded until the user says so.
    pub(crate) fn held(&self) -> BTreeSet<ModelId> {
        let known = lock(&self.held).clone();
        if known.is_empty() {
            return known;
        }
        // Another process may have been told to let them go.
        match journal::past(&self.settings.state_root, LIMIT) {
            Ok(past) => {
                let mut held = lock(&self.held);
                held.retain(|model| past.held.contains(model.as_str()));
                held.clone()
            }
            Err(_) => known,
        }
    }

    /// Lets a model be loaded again that is held.
    pub(crate) fn clear(&self, model: &ModelId) -> Result<(), journal::Error> {
        let Settings { state_root, now_ms, .. } = &self.settings;
        journal::clear(state_root, model.as_str(), now_ms(), LIMIT)?;
        lock(&self.held).remove(model);
        Ok(())
    }

    /// Writes something down.
    pub(crate) fn record(&self, what: What) {
        let journal = lock(&self.journal);
        if let Some(Err(error)) =
            journal.as_ref().map(|journal| journal.record((self.settings.now_ms)(), what))
        {
            self.complain("what is loaded is not written down", &error);
        }
    }

    /// Writes down how far a load came.
    pub(crate) fn load(&self, model: &ModelId, bytes: Bytes, event: LoadEvent<'_>) {
        let name = model.as_str().to_owned();
        let peak_mb = bytes.ceil_mib();
        let (what, for_concierge) = match event {
            LoadEvent::Begun => (What::LoadStarted { model: name, bytes }, None),
            LoadEvent::Done => {
                (What::Loaded { model: name, bytes }, Some(concierge::Event::Loaded { peak_mb }))
            }
            LoadEvent::Failed(reason) => (
                What::LoadFailed { model: name, reason: reason.to_owned() },
                Some(concierge::Event::LoadFailed { peak_mb }),
            ),
        };
        self.record(what);
        if let Some(event) = for_concierge {
            self.tell_concierge(event);
        }
    }

    /// Writes down that a load was refused for good, or was forced.
    pub(crate) fn decided(&self, decision: &Decision) {
        let (model, bytes) = (decision.model.clone(), decision.need.total_bytes);
        let reason = decision.sentence();
        if decision.is_forced {
            self.record(What::Forced { model, bytes, reason });
            return;
        }
        if decision.reason.admits() {
            return;
        }
        self.record(What::Refused { model, bytes, reason });
        let peak_mb = bytes.ceil_mib();
        match decision.reason {
            Verdict::ExceedsConfiguredCeiling | Verdict::DisabledByPolicy => {
                self.tell_concierge(concierge::Event::RefusedByCeiling { peak_mb });
            }
            Verdict::InsufficientLiveMemory => {
                self.tell_concierge(concierge::Event::RefusedByLiveMemory { peak_mb });
            }
            _ => {}
        }
    }

    /// Corrects a load by what earlier ones took, and returns what was predicted before.
    pub(crate) fn correct(&self, load: &mut Load, key: &Key) -> Bytes {
        let (context_tokens, replicas) = (load.context_tokens, load.replicas);
        let Some(sizing) = &mut load.sizing else { return Bytes::ZERO };
        let predicted = sizing.footprint(context_tokens, replicas).total();
        let correction = lock(&self.history).correct(predicted, sizing.evidence, key);
        if let Some(note) = correction.note {
            reckon(sizing, predicted, correction.bytes, &note);
        }
        predicted
    }

    /// Keeps what a load took.
    pub(crate) fn measured(&self, key: &Key, predicted: Bytes, measured: Bytes) {
        let Settings { state_root, now_ms, .. } = &self.settings;
        let measurement = Measurement { key: key.clone(), predicted, measured, at_ms: now_ms() };
        let observed = lock(&self.history).observe(state_root, &measurement, LIMIT);
        if let Err(error) = observed {
            self.complain("what loads take is forgotten when this process ends", &error);
        }
    }

    /// Writes down that this process ends in good order.
    pub(crate) fn end(&self) {
        let journal = lock(&self.journal).take();
        if let Some(Err(error)) = journal.map(|journal| journal.end((self.settings.now_ms)())) {
            self.complain("the next start may report a crash that was none", &error);
        }
    }

    fn report(&self) {
        for warning in &self.past.warnings {
            log::warn!("{warning}");
        }
        for crash in self.past.crashes.iter().filter(|crash| !crash.is_reported) {
            let program = crash.program.as_deref().unwrap_or("a process");
            log::warn!("{program} ended while it loaded {} ({})", crash.model, crash.bytes);
        }
        for model in &self.past.held {
            log::warn!("{model} took its process down more than once and is not loaded");
        }
    }

    fn choose(&self) {
        let Settings { state_root, now_ms, .. } = &self.settings;
        let step = concierge::step(state_root, self.total_memory_mb, now_ms() / 1000);
        match step {
            Ok(concierge::Step::Raise(change) | concierge::Step::Revert(change)) => {
                let concierge::Change { policy, reason, undo } = change;
                let detail = format!("{policy}: {reason}; undo it with {undo}");
                log::warn!("the policy was chosen automatically: {detail}");
                self.record(What::Concierge { detail });
            }
            Ok(concierge::Step::Keep { .. }) => {}
            Err(error) => self.complain("no policy was chosen automatically", &error),
        }
    }

    fn tell_concierge(&self, event: concierge::Event) {
        if lock(&self.journal).is_none() {
            return;
        }
        let Settings { state_root, now_ms, .. } = &self.settings;
        let day = now_ms() / MS_A_DAY;
        if let Err(error) = concierge::note(state_root, event, day, self.total_memory_mb) {
            self.complain("the automatic choice of the policy learns nothing", &error);
        }
    }

    /// Says what does not work, the first time that something does not.
    fn complain(&self, effect: &str, error: &dyn fmt::Display) {
        if !self.has_complained.swap(true, Ordering::Relaxed) {
            log::warn!("{effect}: {error}");
        }
    }
}

impl Drop for Notes {
    fn drop(&mut self) {
        self.end();
    }
}

/// Makes a sizing come to what was observed; the note stands wherever it changed something, and beside the weights.
fn reckon(sizing: &mut Sizing, predicted: Bytes, observed: Bytes, note: &str) {
    sizing.weights_source = format!("{}; {note}", sizing.weights_source);
    if observed > predicted {
        let bytes = observed.left_after(predicted);
        sizing.fixed.push(Term { kind: Kind::Margin, bytes, source: note.to_owned() });
        sizing.evidence = Evidence::Observed;
        return;
    }
    // What nobody could account for is all that may turn out not to be there.
    let mut surplus = predicted.left_after(observed);
    for term in sizing.fixed.iter_mut().filter(|term| term.kind == Kind::Margin) {
        let less = surplus.min(term.bytes);
        if less > Bytes::ZERO {
            term.bytes = term.bytes.left_after(less);
            surplus = surplus.left_after(less);
            note.clone_into(&mut term.source);
            sizing.evidence = Evidence::Observed;
        }
    }
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    // None of these is ever left half changed.
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a name that no other run has: a process may have several stewards.
fn run_name(settings: &Settings) -> String {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    format!("{}-{}-{run}", (settings.now_ms)(), settings.process.pid)
}
