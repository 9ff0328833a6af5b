//! A cell: one record that is changed by reading, deciding and writing, a bounded number of times. Leases, items,
//! counters, journals, stored fences and the namespace's migration mark all use this one loop.
//!
//! Promise: nothing counts as applied unless a write answered that it is stored.
//! - *Unknown stays unknown.* A write without an answer is looked for in the record. If the record proves that it was
//!   not applied, it is tried again. If the record no longer remembers, the result is an error of kind
//!   [`Kind::Indeterminate`], never a second attempt. If the store then becomes unreachable, the earlier error is
//!   reported, because the later one would claim that nothing was applied.
//! - *Visible is not durable.* A change that is found applied is confirmed by a new, answered write.
//! - A refusal that is based on a remembered record is believed only after a fresh read.
//!
//! Non-promise: it has no rules. Those are in [`Protocol`], which is pure; how a record is stored is in [`Row`].

use crate::backoff::Backoff;
use crate::clock::{Clock, Moment};
use crate::error::{Error, Kind, Result};
use crate::grant::Anchor;
use crate::store::{Revision, Store, Swap};
use crate::time::Timestamp;
use std::borrow::Cow;
use std::time::Duration;

/// How often a request is decided again when others keep writing in between.
pub const MAX_ATTEMPTS: u32 = 40;
/// The longest pause between two attempts, after the first and after many.
const FIRST_BACKOFF: Duration = Duration::from_millis(1);
const MAX_BACKOFF: Duration = Duration::from_millis(64);

/// A request, by the rules of its kind of record. Pure: it reads no clock and does no I/O.
pub trait Protocol: Sync {
    /// The kind of record that it changes.
    type Record: Clone + Send + Sync;
    /// Why it may be refused.
    type Refusal: Send;

    /// The decision on a record at `now`, by the store's clock.
    fn decide(&self, record: &Self::Record, now: Timestamp) -> Decision<Self::Record, Self::Refusal>;

    /// Whether it was applied, after a write that got no answer. The write was based on `base`; the record now is `seen`.
    fn fate(&self, base: &Self::Record, seen: &Self::Record) -> Fate;

    /// How far back a record remembers, in words, for the message about an unknown fate.
    fn memory(base: &Self::Record, seen: &Self::Record) -> String;

    /// What is added to the time of a remembered record; `grain` is the grain of the store's clock.
    fn margin(&self, grain: Duration) -> Duration {
        grain
    }

    /// How many times it may be decided.
    fn attempts(&self) -> u32 {
        MAX_ATTEMPTS
    }

    /// Whether a caller relies on the answer *already applied*, so that a new write has to confirm it.
    fn needs_confirmation(&self) -> bool {
        true
    }

    /// Whether this refusal is caused by its own earlier write, if that was applied.
    fn is_caused_by_own_write(&self, _: &Self::Refusal) -> bool {
        false
    }

    /// Whether a refusal means that the requested state already exists. Callers treat that as success.
    fn is_already_satisfied(&self, _: &Self::Refusal) -> bool {
        false
    }
}

/// The answer of [`Protocol::decide`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision<R, N> {
    /// Store this record. If the swap succeeds, the request was applied.
    Write(Box<R>),
    /// This very request was applied before, or there is nothing to do.
    AlreadyApplied,
    /// Not possible, and why.
    Refuse(N),
}

/// Whether a request whose answer was lost was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The record proves it.
    Applied,
    /// The record proves that it was not applied, or applying it again changes nothing that matters.
    NotApplied,
    /// The record no longer remembers.
    Unknown,
}

/// Where a record is stored and how it is written. Separate from the rules,
/// because a write may change a second row too.
pub trait Row: Send + Sync {
    /// What is stored there.
    type Record: Clone + Send + Sync;

    /// Its name in messages.
    fn what(&self) -> String;

    /// Reads it; none if there is nothing to decide on. `asked` is the present moment.
    fn read(&self, asked: Moment) -> impl Future<Output = Result<Option<Snapshot<Self::Record>>>> + Send;

    /// Adds what is stored elsewhere about the record since `base`, the record that an unanswered write was based on.
    fn remember(
        &self,
        seen: Snapshot<Self::Record>,
        _base: &Self::Record,
    ) -> impl Future<Output = Snapshot<Self::Record>> + Send {
        std::future::ready(seen)
    }

    /// One swap over what was seen; none if another writer was faster. `asked` is the present moment.
    fn write(
        &mut self,
        seen: &Snapshot<Self::Record>,
        next: Self::Record,
        asked: Moment,
    ) -> impl Future<Output = Result<Option<Snapshot<Self::Record>>>> + Send;
}

/// A record as it was last seen, with its revision and the store's time.
#[derive(Debug, Clone)]
pub struct Snapshot<R> {
    /// As it was decoded from the store.
    pub record: R,
    /// Its revision; none if it was never written.
    pub revision: Option<Revision>,
    /// The store's time when it was seen.
    pub anchor: Anchor,
}

impl<R> Snapshot<R> {
    /// A record that was just read or written.
    pub fn new(record: R, revision: Option<Revision>, anchor: Anchor) -> Self {
        Snapshot { record, revision, anchor }
    }

    /// The record after a swap; none if the swap was not applied.
    pub fn after(swap: Swap, record: R, asked: Moment) -> Option<Self> {
        let Swap::Done { revision, now } = swap else { return None };
        Some(Snapshot::new(record, Some(revision), Anchor { now, asked }))
    }
}

/// What the first decision is made on.
#[derive(Debug)]
pub enum Start<'a, R> {
    /// The record, read first.
    Read,
    /// What is remembered. If that has changed, the record is read.
    Remembered(&'a Snapshot<R>),
    /// What is remembered. If that has changed, nothing is done.
    OnlyOn(&'a Snapshot<R>),
}

/// The outcome of a request.
#[derive(Debug)]
pub enum Applied<'a, R: Clone, N> {
    /// Written now, or found written by this very request.
    Yes {
        /// The record that it was decided on.
        before: Cow<'a, Snapshot<R>>,
        /// The record after it.
        written: Box<Snapshot<R>>,
    },
    /// Refused, and nothing was changed.
    No {
        /// Why the protocol refused.
        refusal: N,
        /// The record that it was refused on.
        seen: Box<Snapshot<R>>,
    },
    /// Not tried again: the record is no longer the one that the request was meant for.
    Overtaken,
    /// There is no such record.
    Missing,
}

/// A write that got no answer, and the record that it was based on.
#[derive(Debug)]
pub struct Unanswered<R> {
    error: Error,
    base: Snapshot<R>,
}

impl<R> Unanswered<R> {
    /// A copy of the error, to report while nothing more is known.
    fn error(&self) -> Error {
        Error::new(self.error.kind(), self.error.to_string())
    }

    fn fate<P: Protocol<Record = R>>(&self, seen: &Snapshot<R>, request: &P) -> Fate {
        // Nobody has written since, so it was not applied. If it still arrives,
        // it succeeds only if our next write has not.
        if seen.revision == self.base.revision {
            Fate::NotApplied
        } else {
            request.fate(&self.base.record, &seen.record)
        }
    }

    fn forgotten<P: Protocol<Record = R>>(&self, what: &str, seen: &R) -> Error {
        let memory = P::memory(&self.base.record, seen);
        let message = format!(
            "no answer came, and whether it was applied to {what} is not known: {memory}; look at it before asking again"
        );
        Error::new(Kind::Indeterminate, message).with_source(self.error())
    }
}

/// One record, and all that is needed to change it.
#[derive(Debug)]
pub struct Cell<'a, W> {
    row: W,
    clock: &'a dyn Clock,
    /// How far the store's clock may be ahead of the time that it told. Zero where a server decides: the server may use
    /// a time that is behind by as much, and a deadline computed here must not be later than the server's.
    grain: Duration,
    is_served: bool,
}

impl<'a, W: Row> Cell<'a, W> {
    /// The record in this row of this store.
    pub fn new(row: W, store: &dyn Store, clock: &'a dyn Clock) -> Self {
        let store = store.capabilities();
        let grain = if store.by_verbs { Duration::ZERO } else { store.clock.grain() };
        Cell { row, clock, grain, is_served: store.by_verbs }
    }

    /// The loop: decide on what is remembered (or read), write, and read again if another writer was faster or no
    /// answer came. To repeat a request, pass what the earlier call left in `unanswered`.
    pub async fn apply<'s, P: Protocol<Record = W::Record>>(
        &mut self,
        request: &P,
        start: Start<'s, P::Record>,
        unanswered: &mut Option<Unanswered<P::Record>>,
    ) -> Result<Applied<'s, P::Record, P::Refusal>> {
        let (mut remembered, is_bound) = match start {
            Start::Read => (None, false),
            Start::Remembered(seen) => (Some(seen), false),
            Start::OnlyOn(seen) => (Some(seen), true),
        };
        let mut backoff = Backoff::new(FIRST_BACKOFF, MAX_BACKOFF);
        // Whether it may have been applied although no answer said so.
        let mut in_doubt = false;
        for _ in 0..request.attempts() {
            let from_memory = remembered.is_some();
            let seen = match remembered.take() {
                Some(seen) => Cow::Borrowed(seen),
                None => match self.row.read(self.clock.now()).await {
                    Ok(Some(seen)) => Cow::Owned(match unanswered.as_ref() {
                        Some(write) => self.row.remember(seen, &write.base.record).await,
                        None => seen,
                    }),
                    Ok(None) => return unanswered.as_ref().map_or(Ok(Applied::Missing), |write| Err(write.error())),
                    Err(error) => return Err(self.failed(error, unanswered.as_ref(), in_doubt)),
                },
            };
            let asked = self.clock.now();
            // A fresh read is judged at the time of the read; a remembered
            // record, at the latest time that it can be now.
            let now = match from_memory {
                true => seen.anchor.at_latest(asked, request.margin(self.grain)),
                false => seen.anchor.now,
            };
            let (next, refusal) = match self.step(request, &seen, now, unanswered.as_ref())? {
                Step::Refuse(_) | Step::Write(_, Some(_)) if from_memory => continue,
                Step::Refuse(refusal) => return Ok(Applied::No { refusal, seen: Box::new(seen.into_owned()) }),
                Step::Again(_) if is_bound => return Ok(Applied::Overtaken),
                Step::Again(next) => (next, None),
                Step::Write(next, refusal) => (next, refusal),
                Step::Confirm(next) => {
                    in_doubt = true;
                    (next, None)
                }
                Step::Nothing => {
                    return Ok(Applied::Yes { written: Box::new(seen.clone().into_owned()), before: seen });
                }
            };
            match (self.row.write(&seen, *next, asked).await, refusal) {
                (Ok(Some(written)), None) => return Ok(Applied::Yes { before: seen, written: Box::new(written) }),
                (Ok(Some(_)), Some(refusal)) => {
                    return Ok(Applied::No { refusal, seen: Box::new(seen.into_owned()) });
                }
                (Ok(None), _) if from_memory && is_bound => return Ok(Applied::Overtaken),
                // If a request reaches a server twice, the second is refused because of what the first did.
                (Ok(None), _) => in_doubt |= self.is_served,
                (Err(error), Some(_)) => return Err(unconfirmed(&self.row.what(), error)),
                (Err(error), None) if error.kind() == Kind::Indeterminate => {
                    unanswered.get_or_insert_with(|| Unanswered { error, base: seen.into_owned() });
                }
                (Err(error), None) => return Err(self.failed(error, unanswered.as_ref(), in_doubt)),
            }
            if !from_memory {
                self.clock.sleep_until(self.clock.now() + backoff.any()).await;
            }
        }
        Err(unanswered.as_ref().map(Unanswered::error).unwrap_or_else(|| {
            let (what, attempts) = (self.row.what(), request.attempts());
            Error::new(Kind::Contended, format!("{what} is too busy: {attempts} attempts were overtaken; try again"))
        }))
    }

    /// The error to report. While the fate of an earlier write is unknown,
    /// "unavailable" would wrongly say that nothing happened.
    fn failed<R>(&self, error: Error, unanswered: Option<&Unanswered<R>>, in_doubt: bool) -> Error {
        match unanswered {
            Some(write) => write.error(),
            None if in_doubt && error.is_retryable() => {
                let what = self.row.what();
                let message = format!(
                    "whether it was applied to {what} is not known, because it cannot be read; look at it first"
                );
                Error::new(Kind::Indeterminate, message).with_source(error)
            }
            None => error,
        }
    }

    /// What to do about a record, also after a write that got no answer. An
    /// error if the fate of that write stays unknown.
    fn step<P: Protocol<Record = W::Record>>(
        &self,
        request: &P,
        seen: &Snapshot<P::Record>,
        now: Timestamp,
        unanswered: Option<&Unanswered<P::Record>>,
    ) -> Result<Step<P::Record, P::Refusal>> {
        let fate = unanswered.map(|write| (write, write.fate(seen, request)));
        // It is visible. Only the answer to a new write shows that it is durable.
        let confirm = || Box::new(seen.record.clone());
        Ok(match (fate, request.decide(&seen.record, now)) {
            // The record does not remember, or it was applied and is over: doing it again would apply it twice.
            (Some((write, Fate::Unknown)), _) | (Some((write, Fate::Applied)), Decision::Write(_)) => {
                return Err(write.forgotten::<P>(&self.row.what(), &seen.record));
            }
            (Some((write, _)), Decision::Write(next)) if seen.revision != write.base.revision => Step::Again(next),
            (_, Decision::Write(next)) => Step::Write(next, None),
            (None, Decision::AlreadyApplied) if !request.needs_confirmation() => Step::Nothing,
            (_, Decision::AlreadyApplied) => Step::Confirm(confirm()),
            (Some((_, Fate::Applied)), Decision::Refuse(no)) if request.is_caused_by_own_write(&no) => {
                Step::Confirm(confirm())
            }
            // The process that wrote that state may have got no answer either.
            (_, Decision::Refuse(no)) if seen.revision.is_some() && request.is_already_satisfied(&no) => {
                Step::Write(confirm(), Some(no))
            }
            (_, Decision::Refuse(no)) => Step::Refuse(no),
        })
    }
}

/// What to do about a record.
enum Step<R, N> {
    /// Write this. Then refuse, if the requested state already existed.
    Write(Box<R>, Option<N>),
    /// Write the same record again, because it shows that the request was applied.
    Confirm(Box<R>),
    /// Like `Write`, when others have written since the write that got no answer.
    Again(Box<R>),
    /// There is nothing to do, and no caller relies on it.
    Nothing,
    Refuse(N),
}

fn unconfirmed(what: &str, cause: Error) -> Error {
    let message = format!(
        "{what} is as it was to be, by an earlier request; whether that lasts is not known, for a write that was to confirm it \
         failed; ask again"
    );
    Error::new(Kind::Indeterminate, message).with_source(cause)
}
