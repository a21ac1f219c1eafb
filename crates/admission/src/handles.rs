//! Typed handles on the ledger's records: what a caller may do next is the type that it holds.
//!
//! ```text
//! Admission::reserve ─▶ Warm(Arc<Charged>) | Cold(Reservation)
//! Reservation ─ measure ─▶ Reservation     ─ launch ─▶ (Arc<Charged>, Loading)
//! Loading ─ publish ─▶ Resident            ─ drop ─▶ draining
//! Resident ─ drain ─▶ Draining ─ exited ─▶ gone          Resident ─ drop ─▶ gone
//! ```
//!
//! Invariant: a record is there exactly as long as its handle, except that memory which may still be in use stays
//! charged. One lock, taken in one place; nothing is measured under it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::decision::Load;
use crate::history::Key;
use crate::ledger::{
    AllocationId, Ask, ChargeId, Env, Holding, Ledger, MaintenanceError, ModelId, Phase, Preflight,
    ScopeId, Verdict,
};
use crate::surroundings::Fixed;
use crate::units::Bytes;

/// The one table of a process, with the numbers from outside that decisions need.
#[derive(Clone)]
pub struct Admission {
    desk: Arc<Desk>,
    scope: ScopeId,
}

struct Desk {
    ledger: Mutex<Ledger>,
    surroundings: Box<dyn Surroundings>,
}

/// Where the numbers of the moment come from, and who else has to know what is held.
pub trait Surroundings: Send + Sync {
    /// Measures, then calls `decide` once while nobody else on this machine decides, then tells the others what
    /// `decide` left in the table. Says whether they know; what they do not know of must not be used.
    fn decide(&self, decide: &mut dyn FnMut(&Env) -> Snapshot) -> bool;

    /// Tells the others what is held after something ended; they may learn of it late, and never too early.
    fn tell(&self, snapshot: &dyn Fn() -> Snapshot);

    /// Notes that a model was used just now, and whether it stays whatever comes; told with the next change.
    fn used(&self, model: &ModelId, is_pinned: bool);

    /// Notes how far a load came; nothing by default.
    fn loads(&self, _model: &ModelId, _bytes: Bytes, _event: LoadEvent<'_>) {}

    /// Corrects what a load is going to need by what earlier ones took, and returns what was predicted before; by default
    /// nothing is known.
    fn correct(&self, load: &mut Load, _key: &Key) -> Bytes {
        let footprint =
            load.sizing.as_ref().map(|of| of.footprint(load.context_tokens, load.replicas));
        footprint.map_or(Bytes::ZERO, |footprint| footprint.total())
    }

    /// Notes what a load took; by default it is forgotten.
    fn measured(&self, _key: &Key, _predicted: Bytes, _measured: Bytes) {}
}

/// How far a load came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadEvent<'a> {
    /// It begins now.
    Begun,
    /// Requests can run on it.
    Done,
    /// It will not come to its end, for this reason.
    Failed(&'a str),
}

/// What a process holds at one moment, for others to count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The records: allocations, then loads that have not begun.
    pub held: Vec<Held>,
    /// All that is charged to the host.
    pub charged: Bytes,
    /// The part of it that readings of free memory still count as free.
    pub unseen: Bytes,
}

/// One model of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The model.
    pub model: ModelId,
    /// Host memory.
    pub bytes: Bytes,
    /// How far it is: `reserved`, or the name of the phase.
    pub state: &'static str,
}

/// A request that was admitted; its memory is promised until the last clone of this is gone.
pub struct Charged {
    desk: Arc<Desk>,
    id: ChargeId,
}

/// What an admitted request may do.
pub enum Admitted {
    /// Run: the weights are there, or on their way.
    Warm(Arc<Charged>),
    /// Load the weights.
    Cold(Reservation),
}

/// The right to load weights, of the size that was asked for.
#[must_use]
pub struct Reservation {
    charged: Charged,
}

/// Weights that are being filled.
#[must_use]
pub struct Loading(Allocated);

/// Weights that requests can run on; belongs into whatever owns the memory, declared after it.
#[must_use]
pub struct Resident(Allocated);

/// Weights that are being given back; charged until somebody has seen that they are gone.
#[must_use]
pub struct Draining(Allocated);

/// Keeps new requests off a model for as long as it is there.
#[must_use]
pub struct Maintenance {
    desk: Arc<Desk>,
    scope: ScopeId,
    model: ModelId,
}

/// A record of the table; dropping it abandons it.
struct Allocated {
    desk: Arc<Desk>,
    id: AllocationId,
}

impl Admission {
    /// Opens an empty table.
    pub fn new(surroundings: Box<dyn Surroundings>, scope: ScopeId) -> Self {
        let desk = Desk { ledger: Mutex::default(), surroundings };
        Self { desk: Arc::new(desk), scope }
    }

    /// Opens a table of its own that admits everything: for trying out whether something loads at all.
    pub fn unlimited() -> Self {
        Self::new(Box::new(Fixed::unlimited()), ScopeId(0))
    }

    /// Returns the same table for another scope.
    #[must_use]
    pub fn for_scope(&self, scope: ScopeId) -> Self {
        Self { desk: Arc::clone(&self.desk), scope }
    }

    /// Returns whose requests these are.
    pub fn scope(&self) -> ScopeId {
        self.scope
    }

    /// Judges a request with the numbers of this moment; promises nothing.
    pub fn preflight(&self, ask: &Ask) -> Preflight {
        self.inspect(|ledger, env| ledger.preflight(ask, env))
    }

    /// Shows the table and the numbers of this moment.
    pub fn inspect<R>(&self, mut look: impl FnMut(&Ledger, &Env) -> R) -> R {
        self.desk.decide(|ledger, env| look(ledger, env)).0
    }

    /// Shows the table.
    pub fn look<R>(&self, look: impl FnOnce(&Ledger) -> R) -> R {
        self.desk.with(|ledger| look(ledger))
    }

    /// Admits a request, or says why not.
    ///
    /// # Errors
    /// The refusal, with every number that led to it.
    #[expect(clippy::result_large_err, reason = "a refusal is a value with its numbers")]
    pub fn reserve(&self, ask: &Ask) -> Result<(Admitted, Preflight), Preflight> {
        let (outcome, is_known) = self.desk.decide(|ledger, env| ledger.reserve(ask, env));
        let (id, preflight) = outcome?;
        let admitted = self.admitted(id);
        if is_known {
            return Ok((admitted, preflight));
        }
        Err(Preflight { verdict: Verdict::OthersUnknown, ..preflight })
    }

    /// Charges a request whatever the judgement is, because somebody has taken the responsibility.
    pub fn reserve_forced(&self, ask: &Ask) -> (Admitted, Preflight) {
        let ((id, preflight), _) = self.desk.decide(|ledger, env| ledger.reserve_forced(ask, env));
        (self.admitted(id), preflight)
    }

    fn admitted(&self, id: ChargeId) -> Admitted {
        Charged { desk: Arc::clone(&self.desk), id }.admitted()
    }

    /// Keeps new requests off a model until the guard is dropped.
    ///
    /// # Errors
    /// When requests run on it, or it is maintained already.
    pub fn begin_maintenance(&self, model: &ModelId) -> Result<Maintenance, MaintenanceError> {
        self.desk.with(|ledger| ledger.begin_maintenance(self.scope, model))?;
        Ok(Maintenance { desk: Arc::clone(&self.desk), scope: self.scope, model: model.clone() })
    }

    /// Gives up the records of a model whose end is overdue; says how many there were.
    pub fn give_up(&self, model: &ModelId) -> usize {
        let given_up = self.desk.with(|ledger| ledger.give_up(self.scope, model));
        self.desk.tell();
        given_up
    }

    /// Notes that a model was used just now, and whether it stays whatever comes.
    pub fn used(&self, model: &ModelId, is_pinned: bool) {
        self.desk.surroundings.used(model, is_pinned);
    }

    /// Corrects what a load is going to need by what earlier ones took, and returns what was predicted before.
    pub fn correct(&self, load: &mut Load, key: &Key) -> Bytes {
        self.desk.surroundings.correct(load, key)
    }

    /// Keeps what a load took at its peak, beside what was predicted before any correction.
    pub fn measured(&self, key: &Key, predicted: Bytes, measured: Bytes) {
        self.desk.surroundings.measured(key, predicted, measured);
    }

    /// Returns what is held at this moment.
    pub fn snapshot(&self) -> Snapshot {
        self.desk.with(|ledger| Snapshot::of(ledger))
    }
}

impl Desk {
    /// The one place that takes the lock.
    fn with<R>(&self, step: impl FnOnce(&mut Ledger) -> R) -> R {
        // Every transition decides before it writes: a panic in one leaves a table that is whole.
        step(&mut self.ledger.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn decide<R>(&self, mut step: impl FnMut(&mut Ledger, &Env) -> R) -> (R, bool) {
        let mut outcome = None;
        let is_known = self.surroundings.decide(&mut |env| {
            self.with(|ledger| {
                outcome = Some(step(ledger, env));
                Snapshot::of(ledger)
            })
        });
        (outcome.expect("surroundings call the decision"), is_known)
    }

    fn tell(&self) {
        self.surroundings.tell(&|| self.with(|ledger| Snapshot::of(ledger)));
    }
}

impl Snapshot {
    fn of(ledger: &Ledger) -> Self {
        let there = ledger.allocations().map(|(_, held)| Held {
            model: ledger.resolve(&held.model).clone(),
            bytes: held.host(),
            state: held.phase.name(),
        });
        let promised = ledger.charges().filter(|(_, held)| held.host() > Bytes::ZERO);
        let promised = promised.map(|(_, held)| Held {
            model: ledger.resolve(&held.model).clone(),
            bytes: held.host(),
            state: "reserved",
        });
        let (charged, unseen) = (ledger.host(), ledger.unseen_host());
        Self { held: there.chain(promised).collect(), charged, unseen }
    }
}

impl Charged {
    fn admitted(self) -> Admitted {
        let is_cold = self
            .desk
            .with(|ledger| ledger.charge_of(self.id).is_some_and(|held| held.cold.is_some()));
        if is_cold {
            Admitted::Cold(Reservation { charged: self })
        } else {
            Admitted::Warm(Arc::new(self))
        }
    }
}

impl Reservation {
    /// Replaces the estimate by what was measured, and says what is to be done now; `on` names the weights if somebody
    /// else has loaded them meanwhile.
    ///
    /// # Errors
    /// The reservation as it was, and the refusal.
    #[expect(clippy::result_large_err, reason = "a refusal is a value with its numbers")]
    pub fn measure(
        self,
        on: Option<AllocationId>,
        measured: Holding,
    ) -> Result<Admitted, (Self, Preflight)> {
        let Charged { desk, id } = &self.charged;
        match desk.decide(|ledger, env| ledger.measure(*id, on, measured, env)).0 {
            Ok(_) => Ok(self.charged.admitted()),
            Err(refusal) => Err((self, refusal)),
        }
    }

    /// Begins the load.
    ///
    /// # Panics
    /// Never: a reservation has something to load.
    pub fn launch(self) -> (Arc<Charged>, Loading) {
        let desk = Arc::clone(&self.charged.desk);
        let promised = desk.with(|ledger| {
            let held = ledger.charge_of(self.charged.id)?;
            Some((ledger.resolve(&held.model).clone(), held.cold?.total()))
        });
        let (model, bytes) = promised.expect("a reservation has something to load");
        // Before it begins: a crash after this is known to be about this model.
        desk.surroundings.loads(&model, bytes, LoadEvent::Begun);
        let id = desk.with(|ledger| ledger.launch(self.charged.id));
        (Arc::new(self.charged), Loading(Allocated { desk, id }))
    }
}

impl Loading {
    /// Notes that requests can run on the weights, and what they really take.
    pub fn publish(self, actual: Bytes) -> Resident {
        self.0.desk.with(|ledger| ledger.publish(self.0.id, actual));
        self.0.desk.tell();
        self.0.note(LoadEvent::Done);
        Resident(self.0)
    }

    /// Gives the load up for a reason; what was filled so far may still be there.
    pub fn fail(self, reason: &str) -> Draining {
        self.0.desk.with(|ledger| ledger.drain(self.0.id));
        self.0.note(LoadEvent::Failed(reason));
        Draining(self.0)
    }

    /// Gives the load up; what was filled so far may still be there.
    pub fn abandon(self) -> Draining {
        self.fail("it was given up")
    }
}

impl Resident {
    /// Returns the name of the weights.
    pub fn id(&self) -> AllocationId {
        self.0.id
    }

    /// Notes how much of it readings of free memory already leave out.
    pub fn observe(&self, visible: Bytes) {
        self.0.desk.with(|ledger| ledger.observe(self.0.id, visible));
        self.0.desk.tell();
    }

    /// Begins to give the weights back.
    pub fn drain(self) -> Draining {
        self.0.desk.with(|ledger| ledger.drain(self.0.id));
        self.0.desk.tell();
        Draining(self.0)
    }
}

impl Draining {
    /// Notes that the weights are gone.
    pub fn exited(self) {
        self.0.desk.with(|ledger| ledger.exit(self.0.id));
        self.0.desk.tell();
    }

    /// Notes that this takes longer than it may.
    pub fn overdue(&self) {
        self.0.desk.with(|ledger| ledger.lose(self.0.id));
        self.0.desk.tell();
    }
}

impl Allocated {
    fn note(&self, event: LoadEvent<'_>) {
        let held = self.desk.with(|ledger| {
            let held = ledger.allocation(self.id)?;
            Some((ledger.resolve(&held.model).clone(), held.holding.total()))
        });
        if let Some((model, bytes)) = held {
            self.desk.surroundings.loads(&model, bytes, event);
        }
    }
}

impl Drop for Allocated {
    fn drop(&mut self) {
        let is_loading = self.desk.with(|ledger| {
            ledger.allocation(self.id).is_some_and(|held| held.phase == Phase::Loading)
        });
        if is_loading {
            self.note(LoadEvent::Failed("it ended before it was done"));
        }
        self.desk.with(|ledger| ledger.abandon(self.id));
        self.desk.tell();
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        self.desk.with(|ledger| ledger.release(self.id));
        self.desk.tell();
    }
}

impl Drop for Maintenance {
    fn drop(&mut self) {
        self.desk.with(|ledger| ledger.end_maintenance(self.scope, &self.model));
    }
}

impl fmt::Debug for Admitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Warm(_) => "Warm",
            Self::Cold(_) => "Cold",
        })
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation({:?})", self.charged.id)
    }
}
