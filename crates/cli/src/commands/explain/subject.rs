//! What is to be explained, and what it would take: from a file's header or a folder's `config.json`, nothing else.

use std::{
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use toko_admission::{
    decision::{Change, Decision, Fix, Load},
    estimate::{Backend, ForeignModel, Scoring},
    geometry::{
        Error as GeometryError, Exactness, KvElement, Shape, checkpoint,
        gguf::{self, Field},
        hf,
        reference::ReferenceGeometry,
    },
    handles::Admission,
    ledger::{Home, ModelId, Pool, ScopeId},
    sizing::{Growth, Kind, Sizing, Term},
    units::Bytes,
};
use toko_engine::{Error as EngineError, KvType, Options, Plan};
use toko_gguf::{Gguf, value::Value};

use crate::{args::policy::ExplainArgs, failure::Failure, model_source::ModelSource};

/// The context that a model gets when nobody asks for one: its own, but no more than this.
const DEFAULT_CONTEXT_TOKENS: u64 = 4096;
/// Four 16-bit tensors of the hidden width, for each token of a prompt.
const ACTIVATION_BYTES: u64 = 8;
/// The file that describes a checkpoint.
const CONFIG: &str = "config.json";

/// What a load would take.
pub(super) struct Subject {
    pub(super) load: Load,
    /// What is needed beside weights of which nobody knows the size.
    overhead: Vec<Term>,
    pub(super) kv_bytes: Option<Bytes>,
    pub(super) recurrent_state_bytes: Option<Bytes>,
    /// Tokens that the model takes at most, where more were asked for.
    limit_tokens: Option<u64>,
    pub(super) is_upper_bound: bool,
    pub(super) runs_here: bool,
    pub(super) notes: Vec<String>,
}

/// What another engine's need is estimated from.
struct Foreign {
    name: String,
    weights: Option<Bytes>,
    shape: Result<Shape, String>,
    reference: Option<ReferenceGeometry>,
    notes: Vec<String>,
}

impl Subject {
    /// Reads what is meant; `admission` knows what earlier loads of it took.
    pub(super) fn read(args: &ExplainArgs, admission: &Admission) -> anyhow::Result<Self> {
        let path = Path::new(&args.model);
        let is_config = path.file_name() == Some(OsStr::new(CONFIG));
        if path.is_dir() {
            return Self::folder(path, &path.join(CONFIG), args);
        }
        if is_config {
            return Self::folder(path.parent().unwrap_or(Path::new(".")), path, args);
        }
        let source = ModelSource::named(&args.model);
        let file = source.open()?;
        Ok(Self::gguf(&file, &source.short_name(), args, admission))
    }

    /// Proposes no context that the model would not take; less context fits where more does.
    pub(super) fn keep_trained(&self, decision: &mut Decision) {
        let (Some(limit), Some(sizing)) = (self.limit_tokens, &self.load.sizing) else { return };
        let mut shorten = |fix: &mut Fix| {
            let (context_tokens, replicas) = match &mut fix.change {
                Change::Context { context_tokens } => (context_tokens, self.load.replicas),
                Change::ContextAndReplicas { context_tokens, replicas } => {
                    (context_tokens, *replicas)
                }
                // With that context still asked for nothing else makes the model run.
                _ => return false,
            };
            *context_tokens = limit.min(*context_tokens);
            fix.total_bytes = sizing.footprint(*context_tokens, replicas).total();
            true
        };
        decision.fixes.retain_mut(&mut shorten);
    }

    /// Returns the terms that are known, with or without the weights.
    pub(super) fn terms(&self) -> Vec<Term> {
        match self.load.footprint() {
            Some(footprint) => footprint.terms,
            None => self.overhead.clone(),
        }
    }

    fn gguf(file: &Gguf, name: &str, args: &ExplainArgs, admission: &Admission) -> Self {
        let lookup = |key: &str| file.metadata().get(key).map(field);
        let shape = gguf::read(&lookup).map_err(|error| error.to_string());
        let weights: Bytes = file.tensors().iter().map(|tensor| Bytes::new(tensor.bytes)).sum();
        let mut notes = Vec::new();
        match own(file, name, args, admission, &mut notes) {
            Ok(load) if weights > Bytes::ZERO => {
                let context_tokens = load.context_tokens;
                Self {
                    load,
                    overhead: Vec::new(),
                    limit_tokens: trained(&shape).filter(|trained| *trained < context_tokens),
                    kv_bytes: kv_bytes(&shape, context_tokens),
                    recurrent_state_bytes: recurrent_bytes(&shape),
                    is_upper_bound: false,
                    runs_here: true,
                    notes,
                }
            }
            planned => {
                notes.extend(planned.err().map(|reason| format!("It cannot run here: {reason}.")));
                if weights == Bytes::ZERO {
                    notes.push("The file has no tensors.".to_owned());
                }
                let weights = Some(weights).filter(|weights| *weights > Bytes::ZERO);
                let name = name.to_owned();
                Foreign { name, weights, shape, reference: None, notes }.subject(args)
            }
        }
    }

    fn folder(folder: &Path, config: &Path, args: &ExplainArgs) -> anyhow::Result<Self> {
        let text = match checkpoint::read_config(config) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Failure::ModelNotFound { path: config.to_owned() }.into());
            }
            read => read.with_context(|| format!("cannot read {}", config.display()))?,
        };
        let shape = match hf::read(&text) {
            Err(error @ GeometryError::NotJson(_)) => {
                return Err(error).with_context(|| format!("cannot read {}", config.display()));
            }
            read => read.map_err(|error| error.to_string()),
        };
        let name = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
        let name = name.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned();
        let weights = checkpoint::weights(folder).or_else(|| gguf_bytes(folder));
        let foreign = Foreign {
            name,
            weights,
            shape,
            reference: ReferenceGeometry::from_config(&text),
            notes: Vec::new(),
        };
        Ok(foreign.subject(args))
    }
}

impl Foreign {
    fn subject(mut self, args: &ExplainArgs) -> Subject {
        let default =
            trained(&self.shape).unwrap_or(DEFAULT_CONTEXT_TOKENS).min(DEFAULT_CONTEXT_TOKENS);
        let context_tokens = args.ctx.unwrap_or(default);
        let sizing = self.sizing(args.kv_type);
        match &self.shape {
            Ok(Shape { exactness: Exactness::UpperBound(why), .. }) => {
                self.notes.push(format!("Every layer is counted in full: {why}."));
            }
            Ok(_) => {}
            Err(why) => self.notes.push(format!("The layers are guessed: {why}.")),
        }
        if self.weights.is_none() {
            self.notes.push("Nobody can tell how large the weights are.".to_owned());
        }
        let overhead = sizing.footprint(context_tokens, args.replicas).terms;
        let weights = self.weights;
        Subject {
            load: Load {
                scope: ScopeId(0),
                model: ModelId::new(&*self.name),
                sizing: weights.is_some().then_some(sizing),
                context_tokens,
                replicas: args.replicas,
                pool: Pool::Host,
                home: Home::Process,
                variants: Vec::new(),
            },
            overhead,
            limit_tokens: None,
            kv_bytes: kv_bytes(&self.shape, context_tokens),
            recurrent_state_bytes: recurrent_bytes(&self.shape),
            is_upper_bound: true,
            runs_here: false,
            notes: self.notes,
        }
    }

    /// Returns what an engine takes whose inside nobody knows; without weights where their size is unknown.
    fn sizing(&self, element: KvElement) -> Sizing {
        let model = ForeignModel {
            parameter_text: "",
            ram_mb: None,
            size_mb: None,
            measured_weights_mb: Some(0),
            geometry: None,
            backend: Backend::Cpu,
            scoring: Scoring::LastPosition,
        };
        let flat = model.sizing().expect("a size that was measured is known");
        let sizing = Sizing { private_weights: self.weights.unwrap_or_default(), ..flat };
        let Ok(shape) = &self.shape else { return sizing };
        let per_token = self.reference.map(|reference| reference.prefill_bytes_per_token);
        let by_width = shape.hidden.map(|hidden| hidden.saturating_mul(ACTIVATION_BYTES));
        let activations = Growth {
            kind: Kind::Scratch,
            step_tokens: 1,
            step_bytes: Bytes::new(per_token.or(by_width).unwrap_or(0)),
            window_tokens: None,
            source: "activations of the whole context, upper bound".to_owned(),
        };
        let mut growth = shape.growth(element, 1);
        growth.push(activations);
        let state = Term {
            kind: Kind::RecurrentState,
            bytes: shape.recurrent_bytes(KvElement::F32),
            source: "layers without a KV cache, upper bound".to_owned(),
        };
        Sizing { growth, per_replica: vec![state], ..sizing }
    }
}

/// Returns what a load by our own engine would take.
fn own(
    file: &Gguf,
    name: &str,
    args: &ExplainArgs,
    admission: &Admission,
    notes: &mut Vec<String>,
) -> Result<Load, String> {
    let kv_type = match args.kv_type {
        KvElement::F16 => KvType::F16,
        KvElement::F32 => KvType::F32,
        KvElement::Q8_0 => KvType::Q8_0,
        other => return Err(format!("there is no KV cache of type {}", other.name())),
    };
    let plan = |context_tokens: Option<usize>| -> Result<Load, EngineError> {
        let options = Options {
            context_tokens,
            threads: None,
            tier: None,
            kv_type,
            replicas: Some(usize::try_from(args.replicas).unwrap_or(usize::MAX)),
            queue_limit: 0,
            queue_timeout: Duration::ZERO,
            seed: 0,
            prefix_cache_tokens: None,
        };
        let plan = Plan::new(file, &options, name)?;
        Ok(plan.corrected(admission).load().clone())
    };
    let Some(asked) = args.ctx else { return plan(None).map_err(|error| error.to_string()) };
    let planned = plan(usize::try_from(asked).ok());
    planned.or_else(|too_long| {
        let load = plan(None).map_err(|error| error.to_string())?;
        notes.push(format!("It would not run with that context: {too_long}."));
        Ok(Load { context_tokens: asked, ..load })
    })
}

fn trained(shape: &Result<Shape, String>) -> Option<u64> {
    shape.as_ref().ok()?.trained_context
}

fn kv_bytes(shape: &Result<Shape, String>, context_tokens: u64) -> Option<Bytes> {
    Some(shape.as_ref().ok()?.kv_bytes(context_tokens, KvElement::F16))
}

fn recurrent_bytes(shape: &Result<Shape, String>) -> Option<Bytes> {
    Some(shape.as_ref().ok()?.recurrent_bytes(KvElement::F32))
}

fn gguf_bytes(folder: &Path) -> Option<Bytes> {
    let entries = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let is_gguf = |path: &PathBuf| path.extension().is_some_and(|suffix| suffix == "gguf");
    let sizes = entries.filter(is_gguf).filter_map(|path| fs::metadata(path).ok());
    let sum: Bytes = sizes.filter(fs::Metadata::is_file).map(|file| Bytes::new(file.len())).sum();
    Some(sum).filter(|sum| *sum > Bytes::ZERO)
}

/// Puts a metadata value into the words of the geometry.
fn field(value: Value<'_>) -> Field {
    let count = |value: &Value<'_>| value.as_integer().and_then(|it| u64::try_from(it).ok());
    match value {
        Value::String(bytes) => Field::Text(String::from_utf8_lossy(bytes).into_owned()),
        Value::Bool(flag) => Field::Flag(flag),
        Value::F32(number) => Field::Real(number.into()),
        Value::F64(number) => Field::Real(number),
        Value::Array(array) => {
            let flag = |value| if let Value::Bool(flag) = value { Some(flag) } else { None };
            let counts: Option<Vec<u64>> = array.iter().map(|value| count(&value)).collect();
            let flags = || array.iter().map(flag).collect::<Option<Vec<bool>>>();
            counts.map(Field::Counts).or_else(|| flags().map(Field::Flags)).unwrap_or(Field::Other)
        }
        integer => match (count(&integer), integer.as_integer()) {
            (Some(count), _) => Field::Count(count),
            #[expect(clippy::cast_precision_loss, reason = "it is only told to people")]
            (None, Some(negative)) => Field::Real(negative as f64),
            (None, None) => Field::Other,
        },
    }
}
