//! From a GGUF file to a running engine, and the handle through which it is used.

use std::io;
use std::ops::Deref;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use toko_admission::decision::Decision;
use toko_admission::handles::Resident;
use toko_admission::units::Bytes;
use toko_gguf::Gguf;
use toko_gguf::tensor::TensorInfo;
use toko_kernels::isa::Tier;
use toko_kernels::pool::default_threads;
use toko_model::{Config, Model, Pooling};
use toko_tokenizer::{Chat, ChatTemplate, Special, Tokenizer};

use crate::admit::{self, Applicant, Measure, Plan};
use crate::constraint::Grammars;
use crate::infill::{Infill, Marks};
use crate::metrics::Metrics;
use crate::pool::{Decoding, Pool, resolve_pool_size};
use crate::replica::Replica;
use crate::worker::{Capacity, Message, Worker};
use crate::{Error, Opening, Params, Prompt, embedding, request, vocabulary};

/// The context that a model gets when nobody asks for one: its own, but no more than this.
pub(crate) const DEFAULT_CONTEXT_TOKENS: usize = 4096;

/// How a model is loaded.
#[derive(Debug, Clone)]
pub struct Options {
    /// Tokens of context per sequence; `None` takes the model's own, at most 4,096.
    pub context_tokens: Option<usize>,
    /// Compute threads; `None` takes what this process may use.
    pub threads: Option<usize>,
    /// Instruction set of the kernels; `None` takes the fastest that this machine has.
    pub tier: Option<Tier>,
    /// Element type of the KV cache.
    pub kv_type: toko_model::KvType,
    /// Replicas, which are requests that may run at once; `None` takes [`crate::default_pool_size`].
    pub replicas: Option<usize>,
    /// Requests that may wait beside those that run; further ones are refused at once.
    pub queue_limit: usize,
    /// How long a request should be let wait; see [`Engine::queue_timeout`].
    pub queue_timeout: Duration,
    /// Where the random state of every replica starts.
    pub seed: u64,
    /// Tokens of earlier prompts and answers whose keys and values are kept for prompts that begin
    /// the same; 0 keeps none, `None` as many as one context holds.
    ///
    /// They give way to running sequences: both together never take more than all contexts full,
    /// or this where it is more.
    pub prefix_cache_tokens: Option<usize>,
}

/// What a loaded model is, for people and for clients.
#[derive(Debug, Clone)]
pub struct ModelInfo {
    /// `general.name`, or the architecture when the file has none.
    pub name: String,
    /// `general.architecture`.
    pub architecture: String,
    /// Weights of all tensors together.
    pub parameters: u64,
    /// Bytes of all tensors together.
    pub weight_bytes: u64,
    /// Tokens of context that each sequence has here.
    pub context_tokens: usize,
    /// Tokens of context that the model was trained for.
    pub trained_context_tokens: usize,
    /// Length of the embedding vector.
    pub embedding_length: usize,
    /// Tokens in the vocabulary.
    pub vocabulary_tokens: usize,
    /// Requests that it can run at once.
    pub replicas: usize,
    /// The kernels in use.
    pub tier: &'static str,
    /// Compute threads.
    pub threads: usize,
}

/// A loaded model with its replicas and its worker thread; clones share it.
///
/// When the last clone is dropped the running requests are ended, the worker is joined and the
/// memory is given back.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

struct Shared {
    /// `None` only while it is given back.
    made: Option<Made>,
    decision: Decision,
    /// What is charged for all that was made; given back after it.
    resident: Resident,
    /// Looks at what was taken when all of it is gone.
    _measure: Option<Measure>,
}

/// All that a load makes, and an unload takes apart.
struct Made {
    info: ModelInfo,
    tokenizer: Arc<Tokenizer>,
    grammars: Arc<Grammars>,
    template: ChatTemplate,
    pooling: Pooling,
    marks: Option<Marks>,
    pool: Pool<Replica>,
    queue_timeout: Duration,
    messages: Sender<Message>,
    worker: Option<JoinHandle<()>>,
    kv: KvUse,
}

/// What the KV cache takes at this moment.
struct KvUse {
    pages: Arc<AtomicUsize>,
    page_bytes: u64,
}

impl Engine {
    /// Loads a model if there is room for it: binds the weights once, builds the tokenizer and the replicas, starts the
    /// worker. Before it is admitted nothing but the file's header is read.
    ///
    /// # Errors
    /// [`Error::Refused`] when there is no room; whatever makes the file unusable, a context longer than the model was
    /// trained for, and a type of the KV cache that its heads do not fit.
    pub fn load(file: &Gguf, options: &Options, applicant: &Applicant<'_>) -> Result<Self, Error> {
        let plan = Plan::new(file, options, applicant.model)?;
        let (options, decision, loading, measure) = plan.admit(options, applicant)?;
        // From here on an error or a panic frees what was made before it gives back the charge.
        let made =
            apart(|| Made::of(file, &options)).map_err(|source| Error::Thread { source })??;
        let resident = admit::publish(loading, &decision);
        let shared = Shared { made: Some(made), decision, _measure: measure, resident };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Returns what was loaded.
    pub fn info(&self) -> &ModelInfo {
        &self.shared.info
    }

    /// Returns what the keys and values of running and kept prompts take at this moment.
    pub fn kv_bytes(&self) -> Bytes {
        let KvUse { pages, page_bytes } = &self.shared.kv;
        Bytes::new(*page_bytes) * pages.load(Ordering::Relaxed) as u64
    }

    /// Lets the ledger know how much of what is charged the system's readings leave out by now.
    pub fn observe(&self) {
        admit::observe(&self.shared.resident, &self.shared.decision, self.kv_bytes());
    }

    /// Gives up what is kept of earlier prompts; returns when that memory is free.
    pub fn shed(&self) {
        let (done, is_done) = channel();
        if self.shared.messages.send(Message::Shed(done)).is_ok() {
            // A worker that has ended has nothing left to give up.
            let (Ok(()) | Err(_)) = is_done.recv();
        }
        self.observe();
    }

    /// Returns on what grounds it was loaded.
    pub fn decision(&self) -> &Decision {
        &self.shared.decision
    }

    /// Returns the replicas.
    pub fn pool(&self) -> &Pool<Replica> {
        &self.shared.pool
    }

    /// Returns how long a request should be let wait for a replica; whoever waits brings the clock.
    pub fn queue_timeout(&self) -> Duration {
        self.shared.queue_timeout
    }

    /// Returns the tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.shared.tokenizer
    }

    /// Returns the chat template: the file's own or the fallback.
    pub fn chat_template(&self) -> &ChatTemplate {
        &self.shared.template
    }

    /// Renders a conversation and turns it into prompt tokens.
    pub fn chat_prompt(&self, chat: &Chat) -> Result<Prompt, Error> {
        let tokens = self.shared.template.prompt(&self.shared.tokenizer, chat)?;
        Ok(Prompt { tokens, opening: Opening::Answer })
    }

    /// Turns a text that is to be continued into prompt tokens; special tokens written in it count.
    pub fn text_prompt(&self, text: &str) -> Prompt {
        let tokens = self.shared.tokenizer.encode_with_bos(text, Special::Parse);
        Prompt { tokens, opening: Opening::Continuation }
    }

    /// Returns the prompt whose answer goes between two texts, if the model can fill gaps.
    pub fn infill_prompt(&self, before: &[u32], after: &[u32]) -> Option<Infill> {
        let marks = self.shared.marks?;
        Some(marks.prompt(before, after, &self.shared.tokenizer))
    }

    /// Refuses a request that [`crate::Lease::generate`] would refuse, before it waits for a lease.
    ///
    /// # Errors
    /// A prompt that is empty or fills the context, an unknown token in it or in the bias, and a constraint
    /// that cannot be enforced.
    pub fn check(&self, prompt: &Prompt, params: &Params) -> Result<(), Error> {
        let info = &self.shared.info;
        request::check(prompt, params, info.context_tokens, info.vocabulary_tokens)?;
        self.shared.grammars.guide(params.constraint.as_ref()).map(drop)
    }

    /// Refuses texts that [`crate::Lease::embed`] would refuse, before they wait for a lease.
    ///
    /// # Errors
    /// A text that is empty or longer than the context, by its index; an unknown token, and a model with a pooling
    /// that is not built in.
    pub fn check_texts(&self, texts: &[Vec<u32>]) -> Result<(), Error> {
        let info = &self.shared.info;
        embedding::check(texts, self.shared.pooling, info.context_tokens, info.vocabulary_tokens)
    }
}

impl Made {
    fn of(file: &Gguf, options: &Options) -> Result<Self, Error> {
        let (model, info) = bind(file, options)?;
        let model = Arc::new(model);
        let tokenizer = Arc::new(vocabulary::tokenizer(file)?);
        let (tokens, rows) = (tokenizer.len(), model.config().vocabulary);
        if tokens != rows {
            return Err(Error::Vocabulary { tokens, rows });
        }
        let template = vocabulary::chat_template(file, &tokenizer)?;
        let capacity = Capacity {
            context_tokens: info.context_tokens,
            sequences: info.replicas,
            threads: info.threads,
            kv_type: options.kv_type,
            prefix_cache_tokens: options.prefix_cache_tokens.unwrap_or(info.context_tokens),
        };
        let worker = Worker::new(Arc::clone(&model), Arc::clone(&tokenizer), &capacity);
        let kv = KvUse {
            pages: Arc::clone(worker.kv_pages()),
            page_bytes: options.kv_type.page_bytes(model.config()).unwrap_or(u64::MAX),
        };
        let (messages, receiver) = channel();
        let thread = thread::Builder::new()
            .name("toko-engine".to_owned())
            .spawn(move || worker.run(&receiver))
            .map_err(|source| Error::Thread { source })?;
        let (pooling, marks) = (model.config().pooling, Marks::of(file, &tokenizer)?);
        let grammars = Arc::new(Grammars::new(Arc::clone(&tokenizer)));
        let sender = messages.clone();
        let pool = replicas(model, &info, options, Arc::clone(&grammars), sender);
        Ok(Self {
            info,
            tokenizer,
            grammars,
            template,
            pooling,
            marks,
            pool,
            queue_timeout: options.queue_timeout,
            messages,
            worker: Some(thread),
            kv,
        })
    }
}

/// Binds the weights, and tells what was bound and how it runs.
pub(crate) fn bind(file: &Gguf, options: &Options) -> Result<(Model, ModelInfo), Error> {
    let threads = options.threads.unwrap_or_else(default_threads).max(1);
    let tier = options.tier.unwrap_or_else(Tier::detect);
    let model = Model::bind(file, tier, threads)?;
    options.kv_type.check(model.config())?;
    let mut info = describe(file, model.config())?;
    info.context_tokens = context_tokens(&info, options)?;
    (info.tier, info.threads) = (tier.name(), threads);
    // Every tier so far reads the weights for any number of sequences.
    info.replicas = resolve_pool_size(options.replicas, Decoding::Replicated);
    Ok((model, info))
}

/// Does something on a thread of its own, and waits for it.
///
/// What lives as long as a model is made and dropped on such threads only. Allocators keep memory by thread: among what
/// other work leaves there for longer, little of a model's memory would go back to the system.
fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("toko-load".to_owned());
        match thread.spawn_scoped(scope, work)?.join() {
            Ok(done) => Ok(done),
            Err(panicked) => resume_unwind(panicked),
        }
    })
}

/// Makes the pool over one copy of the weights.
fn replicas(
    model: Arc<Model>,
    info: &ModelInfo,
    options: &Options,
    grammars: Arc<Grammars>,
    messages: Sender<Message>,
) -> Pool<Replica> {
    let (context_tokens, seed) = (info.context_tokens, options.seed);
    let metrics = Arc::new(Metrics::default());
    // The pool makes replicas on any thread; a sender is made for one.
    let messages = Mutex::new(messages);
    Pool::new(info.replicas, options.queue_limit, move || {
        let messages = messages.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Replica {
            model: Arc::clone(&model),
            context_tokens,
            random: fastrand::Rng::with_seed(seed),
            grammars: Arc::clone(&grammars),
            metrics: Arc::clone(&metrics),
            messages,
        }
    })
}

impl Pool<Replica> {
    /// Attaches counters to every idle replica; says whether those were all.
    #[must_use]
    pub fn set_metrics(&self, metrics: &Arc<Metrics>) -> bool {
        let attached = self.for_each_idle(|replica| replica.metrics = Arc::clone(metrics));
        attached == self.occupancy().size
    }
}

impl Deref for Shared {
    type Target = Made;

    fn deref(&self) -> &Made {
        self.made.as_ref().expect("it is there until the last clone is dropped")
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let Some(mut made) = self.made.take() else { return };
        made.pool.close();
        // A worker that has ended already needs no telling.
        drop(made.messages.send(Message::End));
        // A sink may hold the last clone: then this is the worker itself, which ends on its own.
        let is_other = |worker: &JoinHandle<()>| worker.thread().id() != thread::current().id();
        if let Some(worker) = made.worker.take().filter(is_other) {
            worker.join().expect("the worker catches panics");
        }
        // Without a thread it is dropped here.
        drop(apart(move || drop(made)));
        toko_gguf::give_back_free_memory();
    }
}

pub(crate) fn describe(file: &Gguf, config: &Config) -> Result<ModelInfo, Error> {
    let architecture = config.architecture.name();
    let name = file.metadata().optional_str("general.name")?.unwrap_or(architecture);
    Ok(ModelInfo {
        name: name.to_owned(),
        architecture: architecture.to_owned(),
        parameters: file.tensors().iter().map(TensorInfo::elements).sum(),
        weight_bytes: file.tensors().iter().map(|tensor| tensor.bytes).sum(),
        context_tokens: config.context,
        trained_context_tokens: config.context,
        embedding_length: config.hidden,
        vocabulary_tokens: config.vocabulary,
        replicas: 0,
        tier: "",
        threads: 0,
    })
}

pub(crate) fn context_tokens(info: &ModelInfo, options: &Options) -> Result<usize, Error> {
    let trained = info.trained_context_tokens;
    match options.context_tokens {
        None => Ok(trained.min(DEFAULT_CONTEXT_TOKENS)),
        Some(asked) if (1..=trained).contains(&asked) => Ok(asked),
        Some(asked) => Err(Error::Context {
            asked_tokens: asked,
            trained_tokens: trained,
            model: info.name.clone(),
        }),
    }
}
