//! One loaded model in the foreground: load it, ask it, be interrupted by Ctrl-C at any moment.
//!
//! Everything that can happen arrives on one channel, so there is one place that waits and no
//! lock. Knows no flags and no conversation.

use std::{
    future::pending,
    ops::ControlFlow,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use tokio::runtime::{Builder, Runtime};
use toko_engine::{
    Applicant, Engine, Error as EngineError, Event, Options, Params, Prompt, Summary,
};

use toko_admission::{eviction::Candidate, steward::Steward};

use crate::{failure::Failure, model_source::ModelSource};

/// A loaded model and the channel on which its answers and Ctrl-C arrive.
pub(crate) struct Session {
    engine: Engine,
    /// How long loading took.
    pub(crate) load_time: Duration,
    sender: Sender<Happening>,
    receiver: Receiver<Happening>,
    /// Waits in the foreground for what is async.
    waiting: Runtime,
    /// Counts the questions, so that the rest of an abandoned answer is told from the next one.
    question: u64,
}

enum Happening {
    Interrupted,
    Loaded(anyhow::Result<Engine>),
    Answer { question: u64, event: Event },
}

/// How an answer came to its end.
pub(crate) enum Ending {
    /// The engine finished it.
    Finished(Summary),
    /// Ctrl-C.
    Interrupted,
}

impl Session {
    /// Loads a model; Ctrl-C ends the wait with [`Failure::Interrupted`].
    ///
    /// From here on Ctrl-C no longer ends the process by itself.
    pub(crate) fn load(source: &ModelSource, options: Options, door: Door) -> anyhow::Result<Self> {
        let started = Instant::now();
        let (sender, receiver) = channel();
        listen_for_interrupts(sender.clone(), || Happening::Interrupted)?;
        let (loaded, source) = (sender.clone(), source.clone());
        thread::Builder::new().name("load".to_owned()).spawn(move || {
            let engine = load_alone(&source, &options, &door);
            // A receiver that has gone means that the user has: the model is dropped here.
            drop(loaded.send(Happening::Loaded(engine)));
        })?;
        loop {
            match receiver.recv().context("the model did not finish loading")? {
                Happening::Interrupted => return Err(Failure::Interrupted.into()),
                Happening::Loaded(engine) => {
                    let (engine, load_time) = (engine?, started.elapsed());
                    let waiting = Builder::new_current_thread().build()?;
                    return Ok(Self { engine, load_time, sender, receiver, waiting, question: 0 });
                }
                Happening::Answer { .. } => {}
            }
        }
    }

    /// Returns the loaded model.
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Asks and hands the answer on piece by piece, until it ends or Ctrl-C ends it.
    pub(crate) fn ask(
        &mut self,
        prompt: Prompt,
        params: Params,
        mut on_text: impl FnMut(&str) -> Result<(), Failure>,
    ) -> anyhow::Result<Ending> {
        self.question += 1;
        let question = self.question;
        // What was pressed before the question was asked is not about its answer.
        while self.receiver.try_recv().is_ok() {}
        let is_abandoned = Arc::new(AtomicBool::new(false));
        let (sender, seen_by_sink) = (self.sender.clone(), Arc::clone(&is_abandoned));
        self.engine.check(&prompt, &params)?;
        // Its only replica is idle as soon as an abandoned answer has seen that it is.
        let lease = self.waiting.block_on(self.engine.pool().acquire(pending()))?;
        lease.generate(prompt, params, move |event| {
            let is_sent = sender.send(Happening::Answer { question, event }).is_ok();
            if is_sent && !seen_by_sink.load(Ordering::Relaxed) {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
        let ending = self.receive(question, &mut on_text);
        is_abandoned.store(true, Ordering::Relaxed);
        ending
    }

    fn receive(
        &self,
        expected: u64,
        on_text: &mut impl FnMut(&str) -> Result<(), Failure>,
    ) -> anyhow::Result<Ending> {
        loop {
            match self.receiver.recv().context("the engine ended without an answer")? {
                Happening::Interrupted => return Ok(Ending::Interrupted),
                Happening::Answer { question, event } if question == expected => match event {
                    Event::Waiting
                    | Event::Prefilled { .. }
                    | Event::Prompt { .. }
                    | Event::Embedded { .. } => {}
                    Event::Text { text, .. } => on_text(&text)?,
                    Event::Finished(summary) => return Ok(Ending::Finished(summary)),
                    Event::Failed(error) => bail!(error),
                },
                Happening::Answer { .. } | Happening::Loaded(_) => {}
            }
        }
    }
}

/// Whom a load asks for memory, and whether it takes no for an answer.
#[derive(Clone)]
pub(crate) struct Door {
    /// Who decides.
    pub(crate) steward: Arc<Steward>,
    /// Whether the model is loaded whatever the answer is.
    pub(crate) is_forced: bool,
}

/// Opens and loads a model where no other one could go for it, so that a refusal stands.
pub(crate) fn load_alone(
    source: &ModelSource,
    options: &Options,
    door: &Door,
) -> anyhow::Result<Engine> {
    load_engine(source, options, door, &[]).inspect_err(|error| {
        if let Some(EngineError::Refused(decision)) = error.downcast_ref() {
            door.steward.note_decision(decision);
        }
    })
}

/// Opens and loads a model in the calling thread; `idle` are the models of this process that could go for it.
pub(crate) fn load_engine(
    source: &ModelSource,
    options: &Options,
    door: &Door,
    idle: &[Candidate],
) -> anyhow::Result<Engine> {
    let file = source.open()?;
    let name = source.short_name();
    let admission = door.steward.admission();
    let applicant = Applicant { admission, model: &name, idle, is_forced: door.is_forced };
    match Engine::load(&file, options, &applicant) {
        // A refusal names the model itself.
        Err(refused @ EngineError::Refused(_)) => Err(refused.into()),
        Ok(engine) => {
            door.steward.note_decision(engine.decision());
            Ok(engine)
        }
        Err(error) => Err(error).with_context(|| format!("cannot load {source}")),
    }
}

/// Does something on a thread of its own; Ctrl-C ends the wait for it with [`Failure::Interrupted`].
///
/// Ctrl-C no longer ends the process by itself.
pub(crate) fn interruptible<T: Send + 'static>(
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let (sender, receiver) = channel();
    listen_for_interrupts(sender.clone(), || None)?;
    thread::Builder::new().name("work".to_owned()).spawn(move || {
        let done = catch_unwind(AssertUnwindSafe(work));
        // A receiver that has gone was interrupted.
        drop(sender.send(Some(done)));
    })?;
    match receiver.recv().context("the work did not end")? {
        None => Err(Failure::Interrupted.into()),
        Some(Ok(done)) => done,
        Some(Err(panicked)) => resume_unwind(panicked),
    }
}

fn listen_for_interrupts<T: Send + 'static>(
    sender: Sender<T>,
    interrupted: fn() -> T,
) -> anyhow::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("interrupts".to_owned()).spawn(move || {
        runtime.block_on(async {
            while tokio::signal::ctrl_c().await.is_ok() {
                if sender.send(interrupted()).is_err() {
                    break;
                }
            }
        });
    })?;
    Ok(())
}
