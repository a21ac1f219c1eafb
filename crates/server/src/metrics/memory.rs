//! What is counted about memory: who was let in, who had to go, and where the bytes are at this moment.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use toko_admission::steward::{Memory, Steward};
use toko_admission::units::Bytes;

use super::{Label, Labels, add};
use crate::admin::state;
use crate::catalog::Catalog;
use crate::state::LoadError;

/// Clones count into the same numbers.
#[derive(Clone)]
pub(crate) struct MemoryMetrics {
    bytes: Family<Label, Gauge>,
    admissions: Family<Labels, Counter>,
    loads: Family<Label, Counter>,
    evictions: Family<Label, Counter>,
    states: Family<Labels, Gauge>,
}

impl MemoryMetrics {
    pub(super) fn new(all: &mut Registry) -> Self {
        let bytes = "Memory of this machine by kind: total, available, limit (what models may take), emergency_reserve, \
                     charged (to models of all processes), unseen (charged, and still counted as available), kv (keys and \
                     values of this process), free (what could be admitted)";
        Self {
            bytes: add(all, "memory_bytes", bytes, Family::default()),
            admissions: add(
                all,
                "admission",
                "Loads by what the machine's memory allowed and why",
                Family::default(),
            ),
            loads: add(
                all,
                "model_loads",
                "Loads by how they ended: loaded, refused, failed",
                Family::default(),
            ),
            evictions: add(
                all,
                "evictions",
                "Models unloaded by why: room, keep_alive",
                Family::default(),
            ),
            states: add(all, "model_state", "1 for the state of each model", Family::default()),
        }
    }

    /// Counts how a load ended.
    pub(crate) fn count_load(&self, outcome: Result<(), &LoadError>) {
        let (result, decision) = match outcome {
            Ok(()) => ("loaded", Some(("admit", "allowed".to_owned()))),
            Err(LoadError::Refused(decision)) => {
                ("refused", Some(("refuse", decision.reason.name().to_owned())))
            }
            Err(_) => ("failed", None),
        };
        self.loads.get_or_create(&[("result", result.to_owned())]).inc();
        if let Some((decision, reason)) = decision {
            let labels = [("decision", decision.to_owned()), ("reason", reason)];
            self.admissions.get_or_create(&labels).inc();
        }
    }

    /// Counts a model that had to go.
    pub(crate) fn count_eviction(&self, reason: &'static str) {
        self.evictions.get_or_create(&[("reason", reason.to_owned())]).inc();
    }

    /// Takes down where the memory is at this moment.
    pub(super) fn observe(&self, catalog: &Catalog, steward: &Steward) {
        let memory: Memory = steward.memory(&catalog.candidates());
        let loaded = catalog.entries().iter().filter_map(|entry| entry.loaded());
        let kv: Bytes = loaded.map(|backend| backend.kv_bytes()).sum();
        let kinds = [
            ("total", memory.total_bytes),
            ("available", memory.available_bytes),
            ("limit", Some(memory.ceiling_bytes)),
            ("emergency_reserve", Some(memory.emergency_reserve_bytes)),
            ("charged", Some(memory.charged_bytes)),
            ("unseen", Some(memory.unseen_bytes)),
            ("kv", Some(kv)),
            ("free", Some(memory.room_bytes)),
        ];
        for (kind, bytes) in kinds {
            let bytes =
                bytes.map_or(-1, |bytes: Bytes| i64::try_from(bytes.get()).unwrap_or(i64::MAX));
            self.bytes.get_or_create(&[("kind", kind.to_owned())]).set(bytes);
        }
        self.states.clear();
        for entry in catalog.entries() {
            let labels = [("model", entry.id.clone()), ("state", state(entry).to_owned())];
            self.states.get_or_create(&labels).set(1);
        }
    }
}
