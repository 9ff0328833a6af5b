//! Whether a whole namespace lives here: one small record. By it a migration excludes other migrations, and keeps new
//! names from being created meanwhile, in the old store and in the new one.
//!
//! Promise:
//! - Two migrations of one namespace, or into one, never run at once.
//! - The mark turns from *moving* to *moved* in one swap. From then on a migration can no longer be given up.
//! - A migration that was given up is never resumed, even by a process that was suspended.
//! - The writer of a record's first version reads the mark before it writes and again after. Either the migration sees the
//!   record, or the writer sees the mark and takes the record back.
//!
//! Non-promise: it does not say where a single lease is; the lease's own record does.

use crate::cell::Fate;
use crate::clock::{Clock, SystemClock};
use crate::document::{Document, Edit};
use crate::error::{Error, Kind, Result};
use crate::name::{Key, LeaseName, Shelf};
use crate::nonce::Nonce;
use crate::relocation::{self, Address, Relocated, Relocation, Step, relocate};
use crate::remedy::Remedy;
use crate::store::Store;
use crate::text::Who;
use crate::time::{Timestamp, format_duration};
use serde::{Deserialize, Serialize};
use std::time::Duration;

const KIND: &str = "namespace";
const NAME: &str = "namespace";
/// How often a change of the mark is tried when others keep writing it.
const MAX_ATTEMPTS: u32 = 8;
/// How many migrations that were given up are remembered.
const MAX_GIVEN_UP: usize = 64;

/// One migration, as its marks describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migration {
    /// Its own random number.
    pub number: Nonce,
    /// The old store, without its secrets.
    pub from: Address,
    /// The new store, without its secrets.
    pub to: Address,
    /// The operator who began it.
    pub by: Who,
}

/// The mark of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// Whether it leaves or arrives, and the other store.
    pub state: Relocation,
    /// The address of this store, as the migration was told.
    pub here: Address,
    /// Who began the migration.
    pub by: Who,
    /// When, in this store's time.
    pub since: Timestamp,
    /// Set when everything is in the other store, and the migration has nothing left to do.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub finished: bool,
}

impl Mark {
    /// The old store and the new one.
    pub const fn ends(&self) -> (&Address, &Address) {
        match &self.state {
            Relocation::Arriving { from, .. } => (from, &self.here),
            Relocation::Moving { to, .. } | Relocation::Moved { to, .. } => (&self.here, to),
        }
    }

    /// The error for a migration that somebody else is giving up.
    pub fn given_up(&self) -> Error {
        let message = "somebody is giving this migration up, or began to; nothing more is moved. If that was interrupted, give \
                       it up again, and then start over";
        let (from, to) = self.ends();
        let remedy = Remedy::AbortMigration { from: Some(from.clone()), to: Some(to.clone()) };
        Error::new(Kind::Invalid, message).with_remedy(remedy)
    }

    /// Who began it, and how long ago.
    pub fn begun(&self, now: Timestamp) -> String {
        let ago = Duration::from_secs(now.saturating_since(self.since).as_secs());
        format!("begun {} ago by {}", format_duration(ago), self.by)
    }

    /// The error for a request that finds this mark.
    fn refusal(&self, what: &str, now: Timestamp) -> Error {
        let under_way = match &self.state {
            state @ Relocation::Moved { .. } => return relocation::elsewhere(what, state),
            Relocation::Moving { to, .. } => format!("{what} is being moved to `{to}`"),
            Relocation::Arriving { from, .. } => format!("{what} has to wait for what arrives from `{from}`"),
        };
        let (begun, (from, to)) = (self.begun(now), self.ends());
        let message = format!(
            "{under_way}, by a migration {begun}; nothing was changed. Try again when it is over. If it was interrupted, it has \
             to be finished or given up"
        );
        let remedy = Remedy::FinishMigration { from: from.clone(), to: to.clone() };
        Error::new(Kind::Unavailable, message).with_remedy(remedy)
    }
}

/// The namespace's record: its marks, and the migrations that were given up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Marks {
    /// Set when the namespace is moving to another store, or has moved there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaving: Option<Mark>,
    /// Set while another store's records arrive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arriving: Option<Mark>,
    /// Migrations from here that were given up, or that somebody began to give
    /// up, latest last. None of them can continue.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    given_up: Vec<Nonce>,
    /// New for each write, so that no two records are equal.
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<Nonce>,
}

/// The record, as it was read.
#[derive(Debug, Clone)]
pub struct MarksSnapshot {
    /// The record; the default one if there is none.
    pub marks: Marks,
    /// The store's time when it was read.
    pub now: Timestamp,
}

impl MarksSnapshot {
    /// Refuses to create a name in a namespace that is leaving or has left, or into which another namespace is moving.
    pub fn check(&self, what: &str) -> Result<()> {
        self.check_for(what, None)
    }

    /// The same for a migration, which its own mark does not block.
    pub fn check_for(&self, what: &str, migration: Option<Nonce>) -> Result<()> {
        let marks = [&self.marks.arriving, &self.marks.leaving];
        let blocks = |mark: &&Mark| Some(mark.state.migration()) != migration;
        let mark = marks.into_iter().flatten().find(blocks);
        mark.map_or(Ok(()), |mark| Err(mark.refusal(what, self.now)))
    }
}

impl Marks {
    /// Whether everything has moved to another store. What was written here since does not count.
    pub fn has_left(&self) -> bool {
        self.leaving.as_ref().is_some_and(|mark| matches!(mark.state, Relocation::Moved { .. }))
    }

    /// Whether a migration from here was given up, or somebody began to give it up.
    pub fn has_given_up(&self, migration: Nonce) -> bool {
        self.given_up.contains(&migration)
    }

    /// Refuses a migration into this namespace if another one blocks it.
    pub fn may_receive(&self, migration: Nonce) -> Result<()> {
        let leaving = self.leaving.iter().filter(|mark| !mark.finished);
        let others = self.arriving.iter().filter(|mark| mark.state.migration() != migration);
        others.chain(leaving).next().map_or(Ok(()), |mark| Err(blocked_error("TO", Some(mark))))
    }

    /// Refuses a migration from this namespace while another one arrives.
    pub fn may_leave(&self) -> Result<()> {
        self.arriving.as_ref().map_or(Ok(()), |mark| Err(blocked_error("FROM", Some(mark))))
    }

    /// The marks after a step of a departure; an error if another migration blocks it.
    fn leave(&self, step: &Step, migration: &Migration, now: Timestamp) -> Result<Option<Marks>> {
        let first = || migration.mark(now);
        if let (Step::Leave { .. } | Step::Depart, true) = (step, self.has_given_up(migration.number)) {
            return Err(self.leaving.clone().unwrap_or_else(first).given_up());
        }
        if let Step::Leave { .. } = step {
            self.may_leave()?;
        }
        match relocate(self.leaving.as_ref().map(|mark| &mark.state), step, migration.number) {
            Relocated::To(state) => {
                let mark = |state| Mark { state, ..self.leaving.clone().unwrap_or_else(first) };
                Ok(Some(Marks { leaving: state.map(mark), ..self.clone() }))
            }
            Relocated::AlreadyDone => Ok(None),
            Relocated::Invalid => Err(blocked_error("FROM", self.leaving.as_ref())),
        }
    }

    /// The marks after a migration from here is given up; an error if everything has already moved.
    fn give_up(&self, migration: Nonce) -> Result<Option<Marks>> {
        let ours = self.leaving.as_ref().filter(|mark| mark.state.migration() == migration);
        if let Some(mark @ Mark { state: Relocation::Moved { .. }, .. }) = ours {
            return Err(blocked_error("FROM", Some(mark)));
        }
        if self.has_given_up(migration) {
            return Ok(None);
        }
        let forgotten = (self.given_up.len() + 1).saturating_sub(MAX_GIVEN_UP);
        let given_up = self.given_up.iter().skip(forgotten).copied().chain([migration]).collect();
        Ok(Some(Marks { given_up, ..self.clone() }))
    }

    /// The marks after an arrival begins. A namespace that had left may come back.
    fn arrive(&self, migration: &Migration, now: Timestamp) -> Result<Option<Marks>> {
        self.may_receive(migration.number)?;
        let state = Relocation::Arriving { from: migration.from.clone(), migration: migration.number };
        let arriving =
            Mark { state, here: migration.to.clone(), by: migration.by.clone(), since: now, finished: false };
        Ok(self.arriving.is_none().then(|| Marks { arriving: Some(arriving), ..self.clone() }))
    }
}

impl Migration {
    /// The old namespace's first mark.
    fn mark(&self, since: Timestamp) -> Mark {
        let state = Relocation::Moving { to: self.to.clone(), migration: self.number };
        Mark { state, here: self.from.clone(), by: self.by.clone(), since, finished: false }
    }
}

fn blocked_error(which: &str, mark: Option<&Mark>) -> Error {
    let Some(mark) = mark else {
        return Error::new(Kind::Invalid, format!("{which} is not being moved; nothing was changed"));
    };
    let (state, by, (from, to)) = (&mark.state, &mark.by, mark.ends());
    let (from, to) = (from.clone(), to.clone());
    match state {
        Relocation::Moved { .. } if mark.finished => {
            let message = format!("{which} has {state} already; nothing was changed. Its leases live there now");
            Error::new(Kind::Invalid, message)
        }
        Relocation::Moved { .. } => {
            let message = format!(
                "{which} has {state}, by a migration of {by} that is not finished; nothing was changed. Finish that one first"
            );
            Error::new(Kind::Invalid, message).with_remedy(Remedy::CompleteMigration { from, to })
        }
        _ => {
            let message = format!(
                "another migration is under way: {which} is {state}, begun by {by}; nothing was changed. That one has to be \
                 finished or given up first"
            );
            Error::new(Kind::Invalid, message).with_remedy(Remedy::FinishMigration { from, to })
        }
    }
}

fn document(store: &dyn Store) -> Result<Document<'_, Marks>> {
    let key = Key::new(Shelf::Namespace, &LeaseName::new(NAME)?);
    Ok(Document::new(store, key, KIND, "the namespace's mark".into()))
}

/// Reads the record. A namespace that was never moved has the default.
pub async fn look(store: &dyn Store) -> Result<MarksSnapshot> {
    let seen = document(store)?.look(SystemClock.now()).await?;
    Ok(MarksSnapshot { marks: seen.record, now: seen.anchor.now })
}

/// The error for a record that is moving or has moved. If the namespace's mark
/// can be read, the error says who began the migration and how to end it.
pub async fn elsewhere(store: &dyn Store, what: &str, state: &Relocation) -> Error {
    if let Relocation::Moved { .. } = state {
        return relocation::elsewhere(what, state);
    }
    let Ok(seen) = look(store).await else { return relocation::elsewhere(what, state) };
    let marks = [&seen.marks.leaving, &seen.marks.arriving].into_iter().flatten();
    let mut ours = marks.filter(|mark| mark.state.migration() == state.migration());
    ours.next().map_or_else(|| left_behind(what, state), |mark| mark.refusal(what, seen.now))
}

/// The error for a record that a suspended process marked after its migration was given up.
fn left_behind(what: &str, state: &Relocation) -> Error {
    let (from, to) = match state {
        Relocation::Arriving { from, .. } => (Some(from.clone()), None),
        other => (None, Some(other.address().clone())),
    };
    let message = format!("{what} is {state}, by a migration that was given up; nothing was changed");
    Error::new(Kind::Unavailable, message).with_remedy(Remedy::AbortMigration { from, to })
}

/// Makes a step of a departure: [`Step::Leave`], [`Step::Stay`] or [`Step::Depart`].
pub async fn leave(store: &dyn Store, step: &Step, migration: &Migration) -> Result<()> {
    change(store, |seen, now| seen.leave(step, migration, now)).await
}

/// The first step of giving a migration up. From here on it can neither be finished nor continued.
pub async fn give_up(store: &dyn Store, migration: Nonce) -> Result<()> {
    change(store, |seen, _| seen.give_up(migration)).await
}

/// The last step of a migration, in the old store. From here on another migration may bring records back.
pub async fn finish(store: &dyn Store, migration: Nonce) -> Result<()> {
    change(store, |marks, _| {
        let ours = marks.leaving.as_ref().filter(|mark| mark.state.migration() == migration);
        let finished = ours.map(|mark| Mark { finished: true, ..mark.clone() });
        Ok(finished.map(|mark| Marks { leaving: Some(mark), ..marks.clone() }))
    })
    .await
}

/// Marks that records arrive here; refused while another migration is under way.
pub async fn arrive(store: &dyn Store, migration: &Migration) -> Result<()> {
    change(store, |seen, now| seen.arrive(migration, now)).await
}

/// Ends an arrival. `outcome` says whether the namespace lives here from now on, even if it had left before.
pub async fn arrived(store: &dyn Store, migration: Nonce, outcome: Arrival) -> Result<()> {
    change(store, |seen, _| {
        let is_ours = seen.arriving.as_ref().is_some_and(|mark| mark.state.migration() == migration);
        let leaving = if outcome == Arrival::Complete { None } else { seen.leaving.clone() };
        Ok(is_ours.then(|| Marks { arriving: None, leaving, ..seen.clone() }))
    })
    .await
}

/// How an arrival ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// It lives here now.
    Complete,
    /// The migration was given up.
    Abandoned,
}

/// Decides and swaps. Every step may be repeated, so a write without an answer is repeated.
async fn change(store: &dyn Store, decide: impl Fn(&Marks, Timestamp) -> Result<Option<Marks>> + Sync) -> Result<()> {
    // The record may be visible but not yet durable, so it is written again even if it is unchanged.
    let tagged = |seen: &Marks, now| -> Result<_> {
        let next = decide(seen, now)?.unwrap_or_else(|| seen.clone());
        Ok(Some(Marks { tag: Some(Nonce::random()), ..next }))
    };
    let edit = Edit { decide: &tagged, fate: &|_| Fate::NotApplied, attempts: MAX_ATTEMPTS };
    document(store)?.change(&SystemClock, &edit).await.map(|_| ())
}
