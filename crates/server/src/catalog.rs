//! The models of this server: which there are, which are loaded, and the one way to get at one.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use toko_admission::decision::Decision;
use toko_admission::eviction::Candidate;
use toko_admission::ledger::{ModelId, Verdict};
use toko_engine::{Host, Loaded, Residence};

use crate::Backend;
use crate::backend::Metered;
use crate::error::ApiError;
use crate::state::{LoadError, ServedModel, Shared};

/// The alias that stands for every name that no model has.
const ANY_NAME: &str = "*";

/// All models, in the order in which they were given.
pub(crate) struct Catalog {
    entries: Vec<Arc<Entry>>,
}

/// One model, loaded or not.
pub(crate) struct Entry {
    served: ServedModel,
    host: Host<Arc<dyn Backend>>,
    usage: Mutex<Usage>,
}

/// When and how a model is used.
#[derive(Debug, Clone, Copy)]
struct Usage {
    last_used: Instant,
    last_load: Duration,
    keep_alive: Option<Duration>,
}

/// A loaded model in use; while one of these lives it is not unloaded.
pub(crate) struct Model {
    entry: Arc<Entry>,
    pub(crate) backend: InUse,
}

/// What runs a loaded model.
pub(crate) struct InUse(Loaded<Arc<dyn Backend>>);

impl Catalog {
    pub(crate) fn new(models: Vec<ServedModel>) -> Self {
        let entry = |served: ServedModel| {
            let (last_used, last_load) = (Instant::now(), Duration::ZERO);
            let usage = Mutex::new(Usage { last_used, last_load, keep_alive: served.keep_alive });
            Arc::new(Entry { served, host: Host::default(), usage })
        };
        Self { entries: models.into_iter().map(entry).collect() }
    }

    pub(crate) fn entries(&self) -> &[Arc<Entry>] {
        &self.entries
    }

    /// Returns the model that is meant by requests without a name.
    pub(crate) fn first(&self) -> &Arc<Entry> {
        self.entries.first().expect("a server has a model")
    }

    /// Returns the model that goes by a name.
    pub(crate) fn find(&self, asked: &str) -> Result<&Arc<Entry>, ApiError> {
        let named = |name: &str| self.entries.iter().find(|entry| entry.is_named(name));
        let default = || (asked == "default").then(|| self.first());
        named(asked).or_else(default).or_else(|| named(ANY_NAME)).ok_or_else(|| {
            let known: Vec<&str> = self.entries.iter().map(|entry| &*entry.id).collect();
            ApiError::UnknownModel { asked: asked.to_owned(), known: known.join(", ") }
        })
    }

    /// Returns the loaded models as those who look for room see them.
    pub(crate) fn candidates(&self) -> Vec<Candidate> {
        self.entries.iter().filter_map(|entry| entry.candidate()).collect()
    }

    /// Lets all models give up what they keep of earlier prompts.
    fn shed(&self) {
        for backend in self.entries.iter().filter_map(|entry| entry.loaded()) {
            backend.shed();
        }
    }

    /// Takes away whoever was idle for longer than it is kept.
    pub(crate) fn expire(&self, shared: &Shared) {
        for entry in &self.entries {
            let keep_alive = entry.usage().keep_alive;
            let is_over =
                keep_alive.is_some_and(|keep| entry.idle().is_some_and(|idle| idle >= keep));
            if is_over {
                entry.let_go(shared, "keep_alive");
            }
        }
    }

    /// Begins nothing on any model any more.
    pub(crate) fn close(&self) {
        for entry in &self.entries {
            if let Some(backend) = entry.loaded() {
                backend.close();
            }
        }
    }
}

impl Model {
    /// Returns a model for use; loads it, for as long as that takes, if it is not there. Idle models go if there is no
    /// room for it otherwise, one after the other until there is.
    pub(crate) fn of(entry: &Arc<Entry>, shared: &Shared) -> Result<Arc<Self>, ApiError> {
        let mut attempts = 0..=shared.catalog.entries.len();
        let mut has_shed = false;
        loop {
            let error = match entry.load(shared) {
                Ok(loaded) => {
                    shared.steward.admission().used(&ModelId::new(&*entry.id), entry.is_pinned);
                    let entry = Arc::clone(entry);
                    return Ok(Arc::new(Self { entry, backend: InUse(loaded) }));
                }
                Err(error) => error,
            };
            let ApiError::Refused { decision, .. } = &error else { return Err(error) };
            // What is kept of earlier prompts is worth less than a model.
            if decision.reason == Verdict::InsufficientLiveMemory && !has_shed {
                has_shed = true;
                shared.catalog.shed();
            } else if attempts.next().is_none() || !make_room(shared, decision) {
                shared.steward.note_decision(decision);
                return Err(error);
            }
        }
    }
}

/// Lets the first model go that a refusal proposes to unload; says whether one has gone.
fn make_room(shared: &Shared, decision: &Decision) -> bool {
    let going = decision.unloads().iter().find_map(|model| {
        let entry = shared.catalog.entries.iter().find(|entry| entry.id == model.as_str())?;
        entry.let_go(shared, "room").then_some(entry)
    });
    going.is_some()
}

impl Drop for Model {
    fn drop(&mut self) {
        self.entry.touch();
    }
}

impl Entry {
    fn load(&self, shared: &Shared) -> Result<Loaded<Arc<dyn Backend>>, ApiError> {
        let load = || -> Result<Arc<dyn Backend>, LoadError> {
            let began = Instant::now();
            let backend = (self.served.load)(&shared.catalog.candidates());
            shared.metrics.memory().count_load(backend.as_ref().map(drop));
            let backend = backend?;
            backend.count_into(shared.metrics.tokens());
            self.usage().last_load = began.elapsed();
            self.touch();
            Ok(Arc::new(Metered::new(backend, shared.metrics.clone())))
        };
        let loaded = self.host.get(load);
        loaded.map_err(|error| match error.downcast_ref() {
            Some(LoadError::Refused(decision)) => {
                ApiError::Refused { model: self.id.clone(), decision: decision.clone() }
            }
            _ => ApiError::LoadFailed { model: self.id.clone(), reason: error.to_string() },
        })
    }

    fn usage(&self) -> std::sync::MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn touch(&self) {
        self.usage().last_used = Instant::now();
    }

    /// Returns for how long nobody has used the model; `None` while somebody does or it is not there.
    pub(crate) fn idle(&self) -> Option<Duration> {
        // Whoever asks holds the model until the request is counted there.
        let is_unused = self.host.users() == 0;
        let is_idle = self.host.loaded().is_some_and(|model| is_unused && has_no_work(&**model));
        is_idle.then(|| self.usage().last_used.elapsed())
    }

    /// Takes the model away if nobody uses it, and returns when its memory is free; says whether it was taken.
    fn let_go(&self, shared: &Shared, reason: &'static str) -> bool {
        let frees = self.host.loaded().map(|backend| backend.held());
        let has_gone = self.host.evict(|backend| has_no_work(&**backend));
        if let Some(frees) = frees.filter(|_| has_gone) {
            log::info!("{}: unloaded ({reason})", self.id);
            shared.metrics.memory().count_eviction(reason);
            shared.steward.note_evicted(&ModelId::new(&*self.id), frees, reason);
        }
        has_gone
    }

    /// Returns for how long the model stays when nobody uses it.
    pub(crate) fn keep_alive(&self) -> Option<Duration> {
        self.usage().keep_alive
    }

    /// Changes for how long the model stays when nobody uses it.
    pub(crate) fn keep_for(&self, keep_alive: Option<Duration>) {
        self.usage().keep_alive = keep_alive;
    }

    fn candidate(&self) -> Option<Candidate> {
        let idle = self.idle();
        let backend = self.host.loaded()?;
        backend.observe();
        let frees = backend.held();
        let reload_ms = u64::try_from(self.usage().last_load.as_millis()).unwrap_or(u64::MAX);
        Some(Candidate {
            model: ModelId::new(&*self.id),
            frees,
            reload_ms,
            idle_seconds: idle.map(|idle| idle.as_secs()),
            is_pinned: self.is_pinned,
        })
    }

    /// Returns what runs the model if it is loaded.
    pub(crate) fn loaded(&self) -> Option<InUse> {
        self.host.loaded().map(InUse)
    }

    /// Returns how far the model is.
    pub(crate) fn residence(&self) -> Residence {
        self.host.residence()
    }

    /// Lets what runs end in time, cuts the rest, and returns when the memory is free; says whether it was loaded.
    pub(crate) fn unload(&self, shared: &Shared) -> bool {
        let grace = shared.limits.drain;
        let frees = self.host.loaded().map(|backend| backend.held());
        let was_loaded = self.host.unload(|backend| {
            backend.close();
            if !backend.wait_idle(grace) {
                log::warn!("{}: answers that still ran after {grace:?} are cut", self.id);
            }
        });
        if let Some(frees) = frees.filter(|_| was_loaded) {
            shared.steward.note_unloaded(&ModelId::new(&*self.id), frees);
        }
        was_loaded
    }

    fn is_named(&self, asked: &str) -> bool {
        asked == self.id || self.aliases.iter().any(|alias| alias == asked)
    }
}

fn has_no_work(backend: &dyn Backend) -> bool {
    let occupancy = backend.occupancy();
    occupancy.leased == 0 && occupancy.waiting == 0
}

impl Deref for Entry {
    type Target = ServedModel;

    fn deref(&self) -> &ServedModel {
        &self.served
    }
}

impl Deref for Model {
    type Target = ServedModel;

    fn deref(&self) -> &ServedModel {
        &self.entry.served
    }
}

impl Deref for InUse {
    type Target = dyn Backend;

    fn deref(&self) -> &(dyn Backend + 'static) {
        &**self.0
    }
}
