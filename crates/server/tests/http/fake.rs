//! An engine that says what a test wrote down, and a server around it.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use toko_admission::handles::{Admission, Resident};
use toko_admission::machine::record::Process;
use toko_admission::probe::Roots;
use toko_admission::steward::Steward;
use toko_admission::surroundings::Settings;
use toko_admission::units::Bytes;
use toko_engine::{
    Chat, ChatTemplate, Error, Event, FinishReason, Infill, Metrics, ModelInfo, Occupancy, Opening,
    Params, Prompt, Sampling, Special, Summary, Tokenizer,
};
use toko_gguf::Gguf;
use toko_server::{Access, Backend, Defaults, Limits, LoadError, ServedModel, Sink, State, serve};

/// What the engine does with each request.
type Script = Box<dyn Fn(Sink) -> Result<(), Error> + Send + Sync>;

/// An engine with a script, which remembers what it was asked.
pub(crate) struct Fake {
    info: ModelInfo,
    script: Script,
    words: (Tokenizer, ChatTemplate),
    occupancy: Occupancy,
    asked: Mutex<Vec<(Chat, Params)>>,
    continued: Mutex<Vec<(Prompt, Params)>>,
    embedded: Mutex<Vec<Vec<u32>>>,
    capacity: usize,
    gap_marks: Option<[u32; 3]>,
    held: Bytes,
    /// What is kept of earlier prompts.
    kept: Arc<Mutex<Bytes>>,
    /// Requests that run beside those of `occupancy`.
    running: Arc<AtomicUsize>,
    /// Given back when the engine is dropped.
    _resident: Option<Resident>,
}

impl Fake {
    pub(crate) fn new(script: impl Fn(Sink) -> Result<(), Error> + Send + Sync + 'static) -> Self {
        let info = ModelInfo {
            name: "Scripted".to_owned(),
            architecture: "qwen3".to_owned(),
            parameters: 1000,
            weight_bytes: 500,
            context_tokens: 64,
            trained_context_tokens: 128,
            embedding_length: 8,
            vocabulary_tokens: 300,
            replicas: 2,
            tier: "scalar",
            threads: 1,
        };
        Self {
            info,
            script: Box::new(script),
            words: words(&toko_fixtures::embedded_model_path()),
            occupancy: Occupancy { size: 2, idle: 2, leased: 0, lost: 0, waiting: 0 },
            asked: Mutex::new(Vec::new()),
            continued: Mutex::new(Vec::new()),
            embedded: Mutex::new(Vec::new()),
            capacity: usize::MAX,
            gap_marks: None,
            held: Bytes::ZERO,
            kept: Arc::default(),
            running: Arc::default(),
            _resident: None,
        }
    }

    /// Runs as many requests as a test counts.
    pub(crate) fn running(self, running: &Arc<AtomicUsize>) -> Self {
        Self { running: Arc::clone(running), ..self }
    }

    /// Keeps something of earlier prompts until it is to give that up.
    pub(crate) fn keeping(self, kept: &Arc<Mutex<Bytes>>) -> Self {
        Self { kept: Arc::clone(kept), ..self }
    }

    /// Takes memory that a table knows of.
    pub(crate) fn holding(self, bytes: Bytes, resident: Resident) -> Self {
        Self { held: bytes, _resident: Some(resident), ..self }
    }

    /// Has the vocabulary of a file, and nothing to say.
    pub(crate) fn with_vocabulary(path: &Path) -> Self {
        Self { words: words(path), ..Self::saying(&[]) }
    }

    /// Has this chat template instead of its vocabulary's.
    pub(crate) fn with_template(mut self, source: &str) -> Self {
        self.words.1 = ChatTemplate::new(source, "", "").unwrap();
        self
    }

    /// Has replicas and requests as it is told.
    pub(crate) fn occupied(occupancy: Occupancy) -> Self {
        Self { occupancy, ..Self::saying(&["Hi"]) }
    }

    /// Answers with the texts, one event each, from a thread of its own.
    pub(crate) fn saying(texts: &'static [&'static str]) -> Self {
        Self::new(move |mut sink| {
            thread::spawn(move || {
                for piece in texts {
                    if sink(text(piece)).is_break() {
                        return;
                    }
                }
                tell(&mut sink, Event::Finished(summary()));
            });
            Ok(())
        })
    }

    /// Works without end; `given_up` learns that nobody waits any more.
    pub(crate) fn endless(given_up: oneshot::Sender<()>) -> Self {
        let given_up = Mutex::new(Some(given_up));
        Self::new(move |mut sink| {
            let given_up = given_up.lock().unwrap().take().expect("one request");
            thread::spawn(move || {
                while sink(Event::Prefilled { tokens: 1 }).is_continue() {
                    thread::yield_now();
                }
                given_up.send(()).unwrap();
            });
            Ok(())
        })
    }

    /// Collects the sinks of `count` choices, then plays the script with all of them.
    pub(crate) fn playing(
        count: usize,
        script: impl Fn(&mut [Sink]) + Send + Sync + 'static,
    ) -> Self {
        let waiting = Mutex::new(Vec::new());
        Self::new(move |sink| {
            let mut sinks = waiting.lock().unwrap();
            sinks.push(sink);
            if sinks.len() == count {
                script(&mut sinks);
                sinks.clear();
            }
            Ok(())
        })
    }

    /// Returns the parameters of all choices that were asked for.
    pub(crate) fn all_params(&self) -> Vec<Params> {
        self.asked.lock().unwrap().iter().map(|(_, params)| params.clone()).collect()
    }

    /// Returns the only conversation that was asked for.
    pub(crate) fn asked(&self) -> (Chat, Params) {
        let mut asked = self.asked.lock().unwrap();
        assert_eq!(asked.len(), 1);
        asked.remove(0)
    }

    /// Returns the prompts that were to be continued, in order.
    pub(crate) fn continued(&self) -> Vec<(Prompt, Params)> {
        std::mem::take(&mut self.continued.lock().unwrap())
    }

    /// Fills gaps, which these tokens mark.
    pub(crate) fn with_gap_marks(self, marks: [u32; 3]) -> Self {
        Self { gap_marks: Some(marks), ..self }
    }

    /// Has room for so many requests.
    pub(crate) fn with_capacity(self, capacity: usize) -> Self {
        Self { capacity, ..self }
    }

    /// Returns the texts that were to become vectors, in order.
    pub(crate) fn embedded(&self) -> Vec<Vec<u32>> {
        std::mem::take(&mut self.embedded.lock().unwrap())
    }

    pub(crate) fn was_asked(&self) -> bool {
        !self.asked.lock().unwrap().is_empty()
            || !self.continued.lock().unwrap().is_empty()
            || !self.embedded.lock().unwrap().is_empty()
    }
}

impl Backend for Fake {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn held(&self) -> Bytes {
        self.held
    }

    fn kv_bytes(&self) -> Bytes {
        *self.kept.lock().unwrap()
    }

    fn observe(&self) {}

    fn shed(&self) {
        *self.kept.lock().unwrap() = Bytes::ZERO;
    }

    fn occupancy(&self) -> Occupancy {
        let leased = self.occupancy.leased + self.running.load(Ordering::SeqCst);
        Occupancy { leased, ..self.occupancy }
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn count_into(&self, _: &Arc<Metrics>) {}

    fn close(&self) {}

    fn wait_idle(&self, _: Duration) -> bool {
        true
    }

    fn generate(&self, chat: &Chat, params: Params, sink: Sink) -> Result<(), Error> {
        self.asked.lock().unwrap().push((chat.clone(), params));
        (self.script)(sink)
    }

    fn tokenizer(&self) -> &Tokenizer {
        &self.words.0
    }

    fn chat_template(&self) -> &ChatTemplate {
        &self.words.1
    }

    fn text_prompt(&self, text: &str) -> Prompt {
        let tokens = self.words.0.encode_with_bos(text, Special::Parse);
        Prompt { tokens, opening: Opening::Continuation }
    }

    fn infill_prompt(&self, before: &[u32], after: &[u32]) -> Option<Infill> {
        let [before_mark, after_mark, gap_mark] = self.gap_marks?;
        let tokens = [&[before_mark], before, &[after_mark], after, &[gap_mark]].concat();
        let prompt = Prompt { tokens, opening: Opening::Continuation };
        Some(Infill { prompt, before: 1..before.len() + 1 })
    }

    fn complete(&self, prompt: Prompt, params: Params, sink: Sink) -> Result<(), Error> {
        self.continued.lock().unwrap().push((prompt, params));
        (self.script)(sink)
    }

    fn embed(&self, texts: Vec<Vec<u32>>, sink: Sink) -> Result<(), Error> {
        self.embedded.lock().unwrap().extend(texts);
        (self.script)(sink)
    }
}

fn words(path: &Path) -> (Tokenizer, ChatTemplate) {
    let file = Gguf::open(path).unwrap();
    let tokenizer = toko_engine::tokenizer(&file).unwrap();
    let template = toko_engine::chat_template(&file, &tokenizer).unwrap();
    (tokenizer, template)
}

/// Says one thing and returns whether more is wanted, which a script need not heed.
pub(crate) fn tell(sink: &mut Sink, event: Event) -> bool {
    sink(event).is_continue()
}

/// A piece of an answer of which no token is told.
pub(crate) fn text(text: &str) -> Event {
    Event::Text { text: text.to_owned(), tokens: Vec::new() }
}

/// The account that scripted answers end with.
pub(crate) fn summary() -> Summary {
    Summary {
        reason: FinishReason::Stop,
        stop_text: None,
        prompt_tokens: 9,
        cached_tokens: 6,
        completion_tokens: 4,
        prefill: Duration::from_millis(5),
        decode: Duration::from_millis(7),
    }
}

/// Defaults that differ from each other and from every value that the tests ask for.
pub(crate) fn sampling() -> Sampling {
    Sampling {
        temperature: 0.61,
        top_k: 31,
        top_p: 0.91,
        min_p: 0.03,
        repeat_penalty: 1.07,
        frequency_penalty: 0.11,
        presence_penalty: 0.13,
        penalty_window_tokens: 17,
        seed: Some(5),
    }
}

/// A running server; dropping it ends it with the test's runtime.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<io::Result<()>>,
}

impl Server {
    /// Starts a server around an engine, with limits that no test meets by chance.
    pub(crate) async fn start(backend: Arc<dyn Backend>) -> Self {
        Self::start_with(backend, |_| {}).await
    }

    pub(crate) async fn saying(texts: &'static [&'static str]) -> Self {
        Self::start(Arc::new(Fake::saying(texts))).await
    }

    pub(crate) async fn start_with(
        backend: Arc<dyn Backend>,
        change: impl FnOnce(&mut State),
    ) -> Self {
        let mut state = State {
            models: vec![served("org/model:q1", move || Ok(Arc::clone(&backend)))],
            limits: Limits {
                body_bytes: 1 << 20,
                ping_every: Duration::from_hours(1),
                client_silence: Duration::from_hours(1),
                drain: Duration::from_hours(1),
                cut_grace: Duration::from_hours(1),
            },
            access: Access { origins: Vec::new(), hosts: Vec::new(), keys: Vec::new() },
            steward: Arc::new(steward(Admission::unlimited(), Path::new("no/such/folder"))),
        };
        change(&mut state);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let ended = tokio::spawn(serve(listener, state, async move { drop(stopped.await) }));
        Self { address, stop, ended }
    }

    /// Begins the shutdown and returns the server's end.
    pub(crate) fn stop(self) -> JoinHandle<io::Result<()>> {
        self.stop.send(()).unwrap();
        self.ended
    }
}

/// Who looks after memory of which nothing is read.
pub(crate) fn steward(admission: Admission, state_root: &Path) -> Steward {
    let nowhere = Roots { proc: "no/such/folder".into(), cgroup: "no/such/folder".into() };
    let process =
        Process { program: "test".to_owned(), pid: 1, started_ms: 0, scope: String::new() };
    let settings = Settings {
        state_root: state_root.to_owned(),
        leases: state_root.join("leases"),
        roots: nowhere,
        limit: None,
        process,
        now_ms: || 0,
    };
    Steward::new(settings, admission)
}

/// The smallest chat request with the fields laid over it; `null` stays in it.
pub(crate) fn ask(fields: Value) -> Value {
    laid_over(json!({"model": "default", "messages": [{"role": "user", "content": "Hi"}]}), fields)
}

/// The smallest completion request with the fields laid over it.
pub(crate) fn ask_to_continue(fields: Value) -> Value {
    laid_over(json!({"model": "default", "prompt": "Hi"}), fields)
}

pub(crate) fn laid_over(mut request: Value, fields: Value) -> Value {
    let Value::Object(fields) = fields else { panic!("fields are an object") };
    request.as_object_mut().unwrap().extend(fields);
    request
}

/// A model with an id, an alias and a way to load it.
pub(crate) fn served(
    id: &str,
    load: impl Fn() -> Result<Arc<dyn Backend>, LoadError> + Send + Sync + 'static,
) -> ServedModel {
    ServedModel {
        id: id.to_owned(),
        aliases: vec!["model-q1".to_owned()],
        created: UNIX_EPOCH + Duration::from_secs(1_700_000_000),
        defaults: Defaults { sampling: sampling(), max_tokens: Some(77) },
        keep_alive: None,
        is_pinned: false,
        load: Box::new(move |_| load()),
        explain: Box::new(|_, _| Err("nobody knows its size".into())),
    }
}
