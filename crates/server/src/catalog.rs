//! The models of this server: which there are, which are loaded, and the one way to get at one.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use toko_engine::{Host, Loaded, Residence};

use crate::Backend;
use crate::backend::Metered;
use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::state::{LoadError, ServedModel};

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
        let entry = |served| Arc::new(Entry { served, host: Host::default() });
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
    /// Returns a model for use; loads it, for as long as that takes, if it is not there.
    pub(crate) fn of(entry: &Arc<Entry>, metrics: &Metrics) -> Result<Arc<Self>, ApiError> {
        let load = || -> Result<Arc<dyn Backend>, LoadError> {
            let backend = (entry.load)()?;
            backend.count_into(metrics.tokens());
            Ok(Arc::new(Metered::new(backend, metrics.clone())))
        };
        let loaded = entry.host.get(load).map_err(|error| ApiError::LoadFailed {
            model: entry.id.clone(),
            reason: error.to_string(),
        })?;
        Ok(Arc::new(Self { entry: Arc::clone(entry), backend: InUse(loaded) }))
    }
}

impl Entry {
    /// Returns what runs the model if it is loaded.
    pub(crate) fn loaded(&self) -> Option<InUse> {
        self.host.loaded().map(InUse)
    }

    /// Returns how far the model is.
    pub(crate) fn residence(&self) -> Residence {
        self.host.residence()
    }

    /// Lets what runs end within `grace`, cuts the rest, and returns when the memory is free; says whether it was loaded.
    pub(crate) fn unload(&self, grace: Duration) -> bool {
        self.host.unload(|backend| {
            backend.close();
            if !backend.wait_idle(grace) {
                log::warn!("{}: answers that still ran after {grace:?} are cut", self.id);
            }
        })
    }

    fn is_named(&self, asked: &str) -> bool {
        asked == self.id || self.aliases.iter().any(|alias| alias == asked)
    }
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
