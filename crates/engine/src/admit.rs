//! The door to memory: what a load would take is judged before anything but the file's header was read.
//!
//! Invariant: no engine exists without a record in the ledger, from before its memory is taken until after it is free.

use std::hash::{DefaultHasher, Hash, Hasher};

use toko_admission::decision::{Change, Decision, Load, Variant};
use toko_admission::eviction::Candidate;
use toko_admission::handles::{Admission, Admitted, Loading, Resident};
use toko_admission::history::Key;
use toko_admission::ledger::{Home, Ledger, ModelId, Pool, ScopeId};
use toko_admission::probe::Roots;
use toko_admission::probe::process::process_memory;
use toko_admission::sizing::{Kind, Term};
use toko_admission::units::Bytes;
use toko_gguf::Gguf;
use toko_model::{Config, KvType};

use crate::footprint::sizing;
use crate::pool::{Decoding, resolve_pool_size};
use crate::{Error, Options, load};

/// Who asks for memory.
#[derive(Clone, Copy)]
pub struct Applicant<'a> {
    /// Who decides.
    pub admission: &'a Admission,
    /// The name under which the model is charged.
    pub model: &'a str,
    /// Idle models of this process that could go, for the explanation of a refusal.
    pub idle: &'a [Candidate],
    /// Whether the model is loaded whatever the answer is.
    pub is_forced: bool,
}

impl<'a> Applicant<'a> {
    /// Asks for a model by its name, and takes no for an answer.
    pub fn new(admission: &'a Admission, model: &'a str) -> Self {
        Self { admission, model, idle: &[], is_forced: false }
    }
}

/// What a load would take, from the file's header alone.
#[derive(Debug, Clone)]
pub struct Plan {
    load: Load,
    key: Key,
}

impl Plan {
    /// Reads what a load with these options would take.
    ///
    /// # Errors
    /// Whatever in the header makes the file unusable, and a context longer than the model was trained for.
    pub fn new(file: &Gguf, options: &Options, model: &str) -> Result<Self, Error> {
        let config = Config::from_gguf(file)?;
        let context_tokens = load::context_tokens(&load::describe(file, &config)?, options)?;
        let replicas = resolve_pool_size(options.replicas, Decoding::Replicated);
        let load = Load {
            scope: ScopeId(0),
            model: ModelId::new(model),
            sizing: Some(sizing(file, options)?),
            context_tokens: context_tokens as u64,
            replicas: replicas as u64,
            pool: Pool::Host,
            home: Home::Process,
            variants: smaller_kv(file, options, &config)?,
        };
        let key = key(file, options, &load);
        Ok(Self { load, key })
    }

    /// Corrects it by what earlier loads of the same took.
    #[must_use]
    pub fn corrected(mut self, admission: &Admission) -> Self {
        admission.correct(&mut self.load, &self.key);
        self
    }

    /// Says for what else than an engine it is; what that took tells nothing about engines.
    #[must_use]
    pub(crate) fn of(mut self, what: &str) -> Self {
        self.key.engine = format!("{what} {}", env!("CARGO_PKG_VERSION"));
        self
    }

    /// Returns it as the ledger is asked.
    pub fn load(&self) -> &Load {
        &self.load
    }

    /// Asks for the memory. Where nobody said how many replicas there should be, fewer are better than none.
    pub(crate) fn admit(
        mut self,
        options: &Options,
        applicant: &Applicant<'_>,
    ) -> Result<(Options, Decision, Loading, Option<Measure>), Error> {
        let Applicant { admission, idle, .. } = *applicant;
        let predicted = admission.correct(&mut self.load, &self.key);
        let decision = admission.inspect(|ledger, env| Decision::of(&self.load, ledger, env, idle));
        let fewer = decision.fixes.iter().find_map(|fix| match fix.change {
            Change::Replicas { replicas } if options.replicas.is_none() => Some(replicas),
            _ => None,
        });
        if let Some(replicas) = fewer.filter(|_| !applicant.is_forced) {
            log::warn!(
                "{}: {replicas} replicas instead of {}",
                applicant.model,
                self.load.replicas
            );
            self.load.replicas = replicas;
        }
        let ask = self.load.ask();
        let explain = |preflight| {
            admission
                .inspect(|ledger, env| Decision::explain(&self.load, &preflight, ledger, env, idle))
        };
        let (admitted, decision) = if applicant.is_forced {
            let (admitted, preflight) = admission.reserve_forced(&ask);
            let is_forced = !preflight.verdict.admits();
            let decision = Decision { is_forced, ..explain(preflight) };
            if is_forced {
                log::warn!("loaded all the same: {}", decision.sentence());
            }
            (admitted, decision)
        } else {
            match admission.reserve(&ask) {
                Ok((admitted, preflight)) => (admitted, explain(preflight)),
                Err(refusal) => return Err(Error::Refused(Box::new(explain(refusal)))),
            }
        };
        let Admitted::Cold(reservation) = admitted else {
            unreachable!("a load asks for weights of its own")
        };
        let admitted_options = Options {
            context_tokens: Some(usize::try_from(self.load.context_tokens).unwrap_or(usize::MAX)),
            replicas: Some(usize::try_from(self.load.replicas).unwrap_or(usize::MAX)),
            ..options.clone()
        };
        // The weights' record stands for the whole model; no request of it is charged by itself.
        let (_, loading) = reservation.launch();
        let measure = Measure::begin(admission, self.key, predicted);
        Ok((admitted_options, decision, loading, measure))
    }
}

/// Keeps what a load took at its peak when the model is gone, for later estimates.
pub(crate) struct Measure {
    admission: Admission,
    key: Key,
    predicted: Bytes,
    /// What the process took before.
    base: Bytes,
}

impl Measure {
    /// Begins where the system tells what a process takes.
    fn begin(admission: &Admission, key: Key, predicted: Bytes) -> Option<Self> {
        let base = process_memory(&Roots::system()).ok()?.resident;
        Some(Self { admission: admission.clone(), key, predicted, base })
    }
}

impl Drop for Measure {
    fn drop(&mut self) {
        // A peak does not tell one model from another.
        if self.admission.look(Ledger::launches) != 1 {
            return;
        }
        if let Ok(memory) = process_memory(&Roots::system()) {
            let measured = memory.peak.left_after(self.base);
            self.admission.measured(&self.key, self.predicted, measured);
        }
    }
}

/// Returns what loads have in common that take the same.
fn key(file: &Gguf, options: &Options, load: &Load) -> Key {
    let mut header = DefaultHasher::new();
    for tensor in file.tensors() {
        (&tensor.name, tensor.bytes, tensor.offset).hash(&mut header);
    }
    let (context, replicas) = (load.context_tokens, load.replicas);
    let (kv_type, threads) = (options.kv_type, options.threads);
    Key {
        model: format!("{}-{:016x}", load.model, header.finish()),
        engine: concat!("toko ", env!("CARGO_PKG_VERSION")).to_owned(),
        settings: format!(
            "{context} tokens, {replicas} replicas, {kv_type:?}, threads {threads:?}, kept {:?}",
            options.prefix_cache_tokens
        ),
    }
}

/// Notes that a model can be used.
pub(crate) fn publish(loading: Loading, decision: &Decision) -> Resident {
    let resident = loading.publish(decision.need.weights_bytes.unwrap_or_default());
    observe(&resident, decision, Bytes::ZERO);
    resident
}

/// Notes what whoever reads how much memory is free sees of a model by now: its tables, and the pages of the KV cache that
/// are there. What is mapped is never seen, and of scratch not all is there before it is used.
pub(crate) fn observe(resident: &Resident, decision: &Decision, kv: Bytes) {
    let is_there = |term: &&Term| term.kind == Kind::Tokenizer;
    let there: Bytes = decision.need.terms.iter().filter(is_there).map(|term| term.bytes).sum();
    resident.observe(there + kv);
}

/// Returns the model with smaller keys and values, where there are smaller ones than asked for.
fn smaller_kv(file: &Gguf, options: &Options, config: &Config) -> Result<Vec<Variant>, Error> {
    let smaller = KvType::Q8_0;
    if options.kv_type == smaller || smaller.check(config).is_err() {
        return Ok(Vec::new());
    }
    let options = Options { kv_type: smaller, ..options.clone() };
    let change = Change::KvType { kv_type: "q8_0".to_owned() };
    Ok(vec![Variant { change, sizing: sizing(file, &options)? }])
}
