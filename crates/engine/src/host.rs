//! One model that comes and goes: loaded once however many ask for it at the same moment, unloaded when its last user is
//! gone, and gone when its memory is.
//!
//! Invariant: at no moment are there two of it. Knows nothing about what is loaded.

use std::error;
use std::ops::Deref;

use crate::Error;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// How far the model is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Residence {
    /// It takes no memory.
    Unloaded,
    /// Somebody loads it.
    Loading,
    /// It answers.
    Loaded,
    /// Its last users finish.
    Unloading,
}

/// Why a load failed, for everybody who waited for it.
pub type LoadError = Arc<dyn error::Error + Send + Sync>;

/// The place of one model.
pub struct Host<M> {
    place: Arc<Place<M>>,
}

/// A loaded model in use; it stays until its last user is dropped.
pub struct Loaded<M>(Arc<Held<M>>);

struct Place<M> {
    state: Mutex<State<M>>,
    changed: Condvar,
}

struct State<M> {
    residence: Residence,
    /// The model while it is loaded.
    model: Option<Loaded<M>>,
    /// Counts the loads that were begun.
    loads: u64,
    /// The number of the last load that failed, and why.
    failure: Option<(u64, LoadError)>,
}

/// The model with the duty to say when it is gone.
struct Held<M> {
    /// `None` only while it is dropped.
    model: Option<M>,
    place: Arc<Place<M>>,
}

impl<M> Default for Host<M> {
    fn default() -> Self {
        let residence = Residence::Unloaded;
        let state = State { residence, model: None, loads: 0, failure: None };
        let place = Place { state: Mutex::new(state), changed: Condvar::new() };
        Self { place: Arc::new(place) }
    }
}

impl<M> Host<M> {
    /// Returns how far the model is.
    pub fn residence(&self) -> Residence {
        self.place.lock().residence
    }

    /// Returns the model if it is loaded.
    pub fn loaded(&self) -> Option<Loaded<M>> {
        self.place.lock().model.clone()
    }

    /// Returns the model, which this call or another one loads if it is not there; blocks for as long as that takes.
    ///
    /// # Errors
    /// Why the load failed, whoever loaded; [`Error::LoadFailed`] where it panicked.
    pub fn get<E: error::Error + Send + Sync + 'static>(
        &self,
        load: impl FnOnce() -> Result<M, E>,
    ) -> Result<Loaded<M>, LoadError> {
        let mut state = self.place.lock();
        loop {
            if let Some(model) = &state.model {
                return Ok(model.clone());
            }
            let is_joined = state.residence == Residence::Loading;
            let joined = state.loads;
            match state.residence {
                Residence::Unloaded => break,
                Residence::Loading | Residence::Loaded | Residence::Unloading => {
                    state = self.place.wait(state);
                }
            }
            if let Some((_, reason)) =
                state.failure.as_ref().filter(|(load, _)| is_joined && *load == joined)
            {
                return Err(LoadError::clone(reason));
            }
        }
        state.residence = Residence::Loading;
        state.loads += 1;
        drop(state);
        let panicked = Error::LoadFailed { reason: "it panicked".to_owned() };
        let mut attempt = Attempt { place: &self.place, outcome: Err(Arc::new(panicked)) };
        let model = load().map_err(|error| {
            let error: LoadError = Arc::new(error);
            attempt.outcome = Err(LoadError::clone(&error));
            error
        })?;
        let held = Held { model: Some(model), place: Arc::clone(&self.place) };
        let model = Loaded(Arc::new(held));
        attempt.outcome = Ok(model.clone());
        Ok(model)
    }

    /// Returns the model's users at this moment.
    pub fn users(&self) -> usize {
        let state = self.place.lock();
        // The place itself holds the model, too.
        state.model.as_ref().map_or(0, |model| Arc::strong_count(&model.0) - 1)
    }

    /// Takes the model away if it is loaded, has no user and `is_idle`, and returns when its memory is free; says whether
    /// it was taken.
    pub fn evict(&self, is_idle: impl FnOnce(&M) -> bool) -> bool {
        let mut state = self.place.lock();
        // Users come by way of this lock: who is none now will not be one before the model is taken.
        let idle = state.model.take_if(|model| Arc::strong_count(&model.0) == 1 && is_idle(model));
        if idle.is_some() {
            state.residence = Residence::Unloading;
        }
        drop(state);
        idle.is_some()
    }

    /// Takes the model away: `drain` ends what it does, and this returns when its last user is gone and its memory free.
    ///
    /// Says whether there was anything to unload. Whoever asks for the model meanwhile waits, then loads it anew.
    pub fn unload(&self, drain: impl FnOnce(&M)) -> bool {
        let mut state = self.place.lock();
        while state.residence == Residence::Loading {
            state = self.place.wait(state);
        }
        let taken = state.model.take();
        if state.residence == Residence::Unloaded {
            return false;
        }
        state.residence = Residence::Unloading;
        let load = state.loads;
        drop(state);
        if let Some(model) = taken {
            drain(&model);
        }
        let mut state = self.place.lock();
        while state.residence == Residence::Unloading && state.loads == load {
            state = self.place.wait(state);
        }
        true
    }
}

/// A load in progress; what came of it is told when this is dropped, a panic included.
struct Attempt<'a, M> {
    place: &'a Place<M>,
    outcome: Result<Loaded<M>, LoadError>,
}

impl<M> Drop for Attempt<'_, M> {
    fn drop(&mut self) {
        let mut state = self.place.lock();
        match &self.outcome {
            Ok(model) => {
                state.model = Some(model.clone());
                state.residence = Residence::Loaded;
            }
            Err(reason) => {
                state.failure = Some((state.loads, LoadError::clone(reason)));
                state.residence = Residence::Unloaded;
            }
        }
        self.place.changed.notify_all();
    }
}

impl<M> Place<M> {
    fn lock(&self) -> MutexGuard<'_, State<M>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something has changed.
    fn wait<'a>(&self, state: MutexGuard<'a, State<M>>) -> MutexGuard<'a, State<M>> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M> Clone for Loaded<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M> Deref for Loaded<M> {
    type Target = M;

    fn deref(&self) -> &M {
        self.0.model.as_ref().expect("a model is there until its last user is dropped")
    }
}

impl<M> Drop for Held<M> {
    fn drop(&mut self) {
        drop(self.model.take());
        self.place.lock().residence = Residence::Unloaded;
        self.place.changed.notify_all();
    }
}
