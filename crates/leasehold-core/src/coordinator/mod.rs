//! The coordinator: read, decide, swap, a bounded number of times.
//!
//! Promise: nothing is granted, renewed, completed or ordered until a swap has answered that it is stored. A write without an
//! answer is looked for by its nonce. What is found is confirmed by a new write. What the record proves was not applied is tried
//! again. What the record no longer remembers is *unknown* ([`crate::lease::protocol::fate`]) and never applied again. Acquiring
//! costs a read and a swap. Renewing and releasing cost one swap, because the holder knows the revision it wrote.
//! Non-promise: it does not renew by itself (see [`crate::Keeper`]).

use crate::cell::{Snapshot, Start, Unanswered};
use crate::clock::{Clock, SystemClock};
use crate::codec;
use crate::epoch::Epoch;
use crate::error::{Error, Kind, Result};
use crate::grant::Grant;
use crate::history::{self, Retention};
use crate::holder::HolderId;
use crate::holding;
use crate::lease::protocol::{self, Order, Refusal, Report, Request, RunRequest, SlotClaim};
use crate::lease::record::{KIND, Ownership, TRANSFERS_KEPT};
use crate::lease::transfer::{Outcome, Transfer};
use crate::name::{LeaseName, Shelf};
use crate::nonce::{Lineage, Nonce};
use crate::store::{Range, Store};
use crate::text::{Who, Why};
use crate::time::{Timestamp, Ttl};
use crate::token::Token;
use std::sync::Arc;
use std::time::Duration;

mod apply;

use apply::{Changed, LeaseRow, Refused};

/// Acquires, renews and releases leases in a store.
#[derive(Debug, Clone)]
pub struct Coordinator {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    retention: Retention,
    archiving: Archiving,
}

/// When the process that was granted a lease archives old transfers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Archiving {
    /// In the background, unless the record is full.
    InBackground,
    /// Only when the record is full. For tests that count calls.
    WhenFull,
    /// Never: another process keeps the grant, and its writes say how far the record is archived.
    ByOthers,
}

/// What an acquirer asks for.
#[derive(Debug, Clone)]
pub struct Ask {
    /// Who asks. Use a fresh [`HolderId`] for every acquisition: asking twice under one nonce is a retry, and finds the
    /// grant that the first one got. Two tasks that share a nonce would both be told that they hold the lease.
    pub holder: HolderId,
    /// How long the grant lasts unless renewed.
    pub ttl: Ttl,
    /// The slot to claim in the same step.
    pub slot: Option<SlotClaim>,
    /// The least time since the last run began, by whatever holder, by the store's clock.
    pub spacing: Option<Duration>,
    /// The operator's request that this carries out. Refused if the lease has moved on since it was made.
    pub requested: Option<RunRequest>,
}

impl Ask {
    /// Asks for this long, as this holder, without a slot.
    pub fn new(holder: HolderId, ttl: Ttl) -> Self {
        Ask { holder, ttl, slot: None, spacing: None, requested: None }
    }
}

/// The outcome of an acquisition. It is not an error that somebody else holds the lease.
#[derive(Debug)]
pub enum Acquired {
    /// The lease was acquired.
    Granted(Box<Grant>),
    /// The lease was not acquired. Of several names, this is the one that becomes free first.
    Refused {
        /// The lease that was refused.
        lease: LeaseName,
        /// Why it was refused.
        refusal: Box<Refusal>,
        /// The store's time when it was refused.
        now: Timestamp,
    },
}

/// The outcome of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Released {
    /// The lease is free now.
    Now,
    /// This tenure was already released; nothing changed.
    Already(Outcome),
    /// The lease was already lost; nothing changed.
    Lost(Refusal),
}

/// A record, as read for display.
#[derive(Debug, Clone)]
pub struct Inspection {
    /// The lease that was read.
    pub lease: LeaseName,
    /// Its record; the default one if the lease was never held.
    pub record: Ownership,
    /// The store's time when it was read.
    pub now: Timestamp,
}

impl Coordinator {
    /// A coordinator on this store and this machine's clock.
    pub fn new(store: Arc<dyn Store>) -> Self {
        // A server archives by itself.
        let archiving = if store.capabilities().by_verbs { Archiving::ByOthers } else { Archiving::InBackground };
        Coordinator { archiving, ..Self::with_clock(store, Arc::new(SystemClock)) }
    }

    /// The same with another clock, for tests.
    pub fn with_clock(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        Coordinator { store, clock, retention: Retention::default(), archiving: Archiving::WhenFull }
    }

    /// The same with another retention.
    #[must_use]
    pub fn with_retention(self, retention: Retention) -> Self {
        Coordinator { retention, ..self }
    }

    /// The same for a process that passes on what it is granted: the process
    /// that keeps the grant archives old transfers.
    #[must_use]
    pub fn for_others(self) -> Self {
        Coordinator { archiving: Archiving::ByOthers, ..self }
    }

    /// How much history is kept.
    pub fn retention(&self) -> Retention {
        self.retention
    }

    /// The store in which the leases are.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The clock by which trust windows are counted.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Tries once to become the holder.
    ///
    /// ```
    /// # use leasehold_core::{Acquired, Ask, Coordinator, HolderId, MemoryStore, Outcome};
    /// # use std::sync::Arc;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold_core::Result<()> {
    /// let leases = Coordinator::new(Arc::new(MemoryStore::default()));
    /// let name = "daily-publish".parse()?;
    /// let ask = Ask::new(HolderId::new(None), "90s".parse()?);
    /// if let Acquired::Granted(grant) = leases.acquire(&name, &ask).await? {
    ///     println!("working under {}", grant.token());
    ///     leases.release(&grant, Outcome::Succeeded).await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn acquire(&self, lease: &LeaseName, ask: &Ask) -> Result<Acquired> {
        self.store.capabilities().check_ttl(ask.ttl)?;
        lease.check_lease()?;
        let Ask { holder, ttl, slot, spacing, requested } = ask.clone();
        let request = Request::Acquire { lineage: Lineage::random(), holder, ttl, slot, spacing, requested };
        Ok(match self.apply(lease, &request, Start::Read).await? {
            Ok(Changed { written, .. }) => {
                let grant = self.granted(lease, &ask.holder, ask.ttl, written)?;
                self.archive_granted(&grant).await;
                Acquired::Granted(Box::new(grant))
            }
            Err(Refused { refusal, seen }) => Acquired::Refused { lease: lease.clone(), refusal, now: seen.anchor.now },
        })
    }

    /// Archives old transfers: in the background, unless the record is full. Best
    /// effort: an acquirer that finds the record too long must archive first.
    async fn archive_granted(&self, grant: &Grant) {
        let (lease, record) = (&grant.token().lease, grant.record());
        if self.archiving == Archiving::ByOthers || history::due(record).next().is_none() {
            return;
        }
        let archive = self.archive(lease);
        if record.transfers.len() > TRANSFERS_KEPT {
            tokio::select! {
                archived = archive.take(record) => if let Ok(archived) = archived {
                    grant.mark().set(archived);
                },
                // At most a quarter of the TTL: the rest is for the work.
                () = self.clock.sleep_until(self.clock.now() + grant.ttl().get() / 4) => {}
            }
        } else if self.archiving != Archiving::WhenFull {
            self.archive_in_background(lease, record, grant.mark());
        }
    }

    /// Takes over a grant that was passed to this process as a token, if it is still in force. One read; it does not
    /// renew. It archives old transfers, as acquiring does.
    pub async fn adopt(&self, token: &Token) -> Result<Grant> {
        let seen = holding::reading_for(Some(token.claim()), self.look(&token.lease)).await?;
        let held = seen.record.is_held_by(token.claim());
        match seen.record.live_tenure(seen.anchor.now).filter(|_| held) {
            Some(tenure) => {
                let (holder, ttl) = (tenure.holder.clone(), tenure.ttl);
                let grant = self.granted(&token.lease, &holder, ttl, seen)?;
                self.archive_granted(&grant).await;
                Ok(grant)
            }
            None => Err(lost_error(token, &protocol::lost(&seen.record))),
        }
    }

    /// Extends the grant by another TTL, if it is still held.
    ///
    /// An error of kind [`Kind::Lost`] is final: the lease has moved or expired, or the answer took longer than the TTL. After
    /// any other error the grant is unchanged, and the renewal can be tried again until [`Grant::trust_until`].
    pub async fn renew(&self, grant: &mut Grant, progress: Option<Report>) -> Result<()> {
        let claim = grant.token().claim();
        let request = Request::Renew { claim, ttl: grant.ttl(), progress };
        self.apply_held(grant, &request).await
    }

    /// Records progress, if the epoch is still the current one.
    pub async fn checkpoint(&self, grant: &mut Grant, report: Report) -> Result<()> {
        let request = Request::Checkpoint { claim: grant.token().claim(), report };
        self.apply_held(grant, &request).await
    }

    /// Records progress by token alone, for a process other than the one that acquired the lease.
    pub async fn checkpoint_by_token(&self, token: &Token, report: Report) -> Result<()> {
        let request = Request::Checkpoint { claim: token.claim(), report };
        let changed = self.apply(&token.lease, &request, Start::Read).await?;
        changed.map(|_| ()).map_err(|refused| lost_error(token, &refused.refusal))
    }

    /// Records that the claimed slot's run is over, if the epoch is still the current one.
    pub async fn complete(&self, grant: &mut Grant, outcome: Outcome) -> Result<()> {
        let request = Request::Complete { claim: grant.token().claim(), outcome };
        self.apply_held(grant, &request).await
    }

    /// Ends the tenure. Releasing twice, or after the loss, changes nothing and says so.
    pub async fn release(&self, grant: &Grant, outcome: Outcome) -> Result<Released> {
        self.releasing(grant, outcome).attempt().await
    }

    /// A release that can be retried while the store is unreachable.
    pub fn releasing<'a>(&'a self, grant: &'a Grant, outcome: Outcome) -> Releasing<'a> {
        let request = Request::Release { claim: grant.token().claim(), outcome };
        Releasing { coordinator: self, grant, request, unanswered: None }
    }

    /// Releases by token alone, for a process other than the one that acquired the lease.
    pub async fn release_by_token(&self, token: &Token, outcome: Outcome) -> Result<Released> {
        let request = Request::Release { claim: token.claim(), outcome };
        let answer = self.apply(&token.lease, &request, Start::Read).await?;
        Ok(self.released(token, answer).await)
    }

    /// Carries out an operator's order, decided on the present record. A hand-off returns the new grant. If the new
    /// tenure was over before its answer arrived, that is an error of kind [`Kind::Lost`].
    pub async fn operate(&self, lease: &LeaseName, by: Who, why: Why, order: Order) -> Result<Operated> {
        self.operate_if(lease, by, why, None, order).await
    }

    /// The same for an order that was decided on a record of this epoch. It is refused at any other epoch.
    pub async fn operate_if(
        &self,
        lease: &LeaseName,
        by: Who,
        why: Why,
        expected: Option<Epoch>,
        order: Order,
    ) -> Result<Operated> {
        self.operate_as(Nonce::random(), lease, by, why, expected, order).await
    }

    /// The same under the caller's nonce: an order that was already carried out under it is not repeated, as long as
    /// the record remembers it. A hand-off is recognised by the nonce of its new holder.
    pub async fn operate_as(
        &self,
        nonce: Nonce,
        lease: &LeaseName,
        by: Who,
        why: Why,
        expected: Option<Epoch>,
        order: Order,
    ) -> Result<Operated> {
        lease.check_lease()?;
        if let Order::HandOff { ttl, .. } = &order {
            self.store.capabilities().check_ttl(*ttl)?;
        }
        let lineage = Lineage::random();
        let request = Request::Operate { nonce, lineage, by, why, expected, order: order.clone() };
        match self.apply(lease, &request, Start::Read).await? {
            Err(refused) => Ok(Operated::Refused(refused.refusal)),
            Ok(Changed { written, transfer, .. }) => Ok(match order {
                Order::HandOff { to, ttl } => {
                    if written.record.live_tenure(written.anchor.now).is_none_or(|t| t.holder.nonce != to.nonce) {
                        return Err(over_before_known(lease, &to, transfer.as_ref(), &written.record));
                    }
                    Operated::HandedOff(Box::new(self.granted(lease, &to, ttl, written)?))
                }
                _ => Operated::Done(Box::new(Carried { record: written.record, transfer })),
            }),
        }
    }

    /// Reads a record without changing anything. A lease that was never held has the default record.
    pub async fn inspect(&self, lease: &LeaseName) -> Result<Inspection> {
        let seen = self.look(lease).await?;
        Ok(Inspection { lease: lease.clone(), record: seen.record, now: seen.anchor.now })
    }

    /// Reads all records after a name, a page at a time. A record that cannot be read is returned as its error, so that
    /// one damaged record does not hide the others.
    pub async fn list(&self, after: Option<&LeaseName>, limit: usize) -> Result<Listing> {
        let page = self.store.list(Shelf::Lease, Range::new(after, limit)).await?;
        let now = page.now;
        let entries = page
            .entries
            .into_iter()
            .map(|(lease, value)| {
                let read = codec::decode(KIND, &value.bytes, lease.as_str());
                (lease.clone(), read.map(|record| Inspection { lease, record, now }))
            })
            .collect();
        Ok(Listing { entries, more: page.more })
    }

    async fn apply_held(&self, grant: &mut Grant, request: &Request) -> Result<()> {
        let lease = &grant.token().lease;
        let applied = self.apply(lease, request, Start::Remembered(&grant.seen_and_archived())).await?;
        match applied {
            Ok(Changed { before, written, .. }) if matches!(request, Request::Renew { .. }) => {
                let what = format!("lease `{lease}`");
                grant.renew(&what, before, written, self.grain(), self.clock.now())
            }
            // Checkpoints and completions depend on the epoch alone, at any time.
            Ok(Changed { before, written, .. }) => {
                grant.follow(before, written, self.grain());
                Ok(())
            }
            Err(refused) => Err(lost_error(grant.token(), &refused.refusal)),
        }
    }

    /// The result of a release. If the record no longer remembers it, the archive is searched.
    async fn released(&self, token: &Token, answer: std::result::Result<Changed, Refused>) -> Released {
        let Refused { refusal, seen } = match answer {
            Ok(_) => return Released::Now,
            Err(refused) => refused,
        };
        if let Refusal::AlreadyReleased { outcome } = *refusal {
            return Released::Already(outcome);
        }
        let record = self.with_transfer(&token.lease, &seen.record, token.epoch).await;
        protocol::outcome_of(&record, token.claim()).map_or(Released::Lost(*refusal), Released::Already)
    }

    fn granted(&self, lease: &LeaseName, holder: &HolderId, ttl: Ttl, seen: Snapshot<Ownership>) -> Result<Grant> {
        let Some(lineage) = seen.record.lineage else { return Err(no_lineage(lease)) };
        let token = Token { lease: lease.clone(), lineage, epoch: seen.record.epoch, nonce: holder.nonce, seq: 0 };
        Grant::new(&format!("lease `{lease}`"), token, ttl, seen, self.grain(), self.clock.now())
    }

    pub(crate) async fn look(&self, lease: &LeaseName) -> Result<Snapshot<Ownership>> {
        LeaseRow::new(self, lease).seen(self.clock.now()).await
    }

    /// The grain of the store's clock.
    pub(crate) fn grain(&self) -> Duration {
        self.store.capabilities().clock.grain()
    }
}

/// A release that may take several attempts.
///
/// Promise: the next attempt finds out whether an unanswered one was applied, and confirms that by a new write.
/// Non-promise: an attempt whose future is dropped is forgotten, so drop it only to give up.
#[derive(Debug)]
pub struct Releasing<'a> {
    coordinator: &'a Coordinator,
    grant: &'a Grant,
    request: Request,
    unanswered: Option<Unanswered<Ownership>>,
}

impl Releasing<'_> {
    /// Tries once. After [`Kind::Unavailable`], [`Kind::Contended`] or [`Kind::Indeterminate`] it may be tried again.
    pub async fn attempt(&mut self) -> Result<Released> {
        let (token, seen) = (self.grant.token(), self.grant.seen_and_archived());
        let start = Start::Remembered(&seen);
        let answer = self.coordinator.apply_again(&token.lease, &self.request, start, &mut self.unanswered).await?;
        Ok(self.coordinator.released(token, answer).await)
    }
}

/// The outcome of an operator's order.
#[derive(Debug)]
pub enum Operated {
    /// It was carried out, and the record is written.
    Done(Box<Carried>),
    /// Carried out; the grant for the new holder.
    HandedOff(Box<Grant>),
    /// Not carried out, and why.
    Refused(Box<Refusal>),
}

/// An order that was carried out.
#[derive(Debug, Clone)]
pub struct Carried {
    /// The record now. If the answer was lost, others may have held the lease since.
    pub record: Ownership,
    /// The transfer that the order made, if it moves the epoch.
    pub transfer: Option<Transfer>,
}

impl Carried {
    /// The epoch that the order started, or left as it was.
    pub fn epoch(&self) -> Epoch {
        self.transfer.as_ref().map_or(self.record.epoch, |transfer| transfer.epoch)
    }
}

/// A page of records.
#[derive(Debug)]
pub struct Listing {
    /// Each lease with its record, or the error of reading it.
    pub entries: Vec<(LeaseName, Result<Inspection>)>,
    /// Whether there may be more after the last.
    pub more: bool,
}

fn no_lineage(lease: &LeaseName) -> Error {
    let message = format!("corrupt ownership record `{lease}`: it has an epoch and no lineage; it was left as it is");
    Error::new(Kind::Corrupt, message)
}

/// The error for a hand-off that was carried out, but whose tenure ended before its lost answer was found.
fn over_before_known(lease: &LeaseName, to: &HolderId, transfer: Option<&Transfer>, record: &Ownership) -> Error {
    let seen = record.epoch;
    let outcome = transfer.and_then(|transfer| transfer.outcome).unwrap_or(Outcome::Expired);
    let now = match (&record.relocation, &record.tenure) {
        (Some(state), _) => state.to_string(),
        (None, Some(tenure)) if tenure.holder.nonce != to.nonce => format!("held by {}", tenure.holder),
        _ => "free".to_owned(),
    };
    let epoch = transfer.map_or(seen, |transfer| transfer.epoch);
    let message = format!(
        "lease `{lease}` was handed off to {to} as ordered, under epoch {epoch}, but no answer came in time, and that tenure \
         is over ({}); it is at epoch {seen} now, {now}; look at its history before asking again",
        outcome.as_str()
    );
    Error::new(Kind::Lost, message).with_epochs(epoch, seen)
}

/// The error for a holder that lost its lease: who took it, and why, if an operator did.
pub fn lost_error(token: &Token, refusal: &Refusal) -> Error {
    let message = match refusal {
        Refusal::Lost { seen, holder, last } if *seen != token.epoch => {
            let how = last.as_ref().map(|transfer| transfer.order_told()).unwrap_or_default();
            let now = holder.as_ref().map_or("free now".into(), |holder| format!("now held by {holder}"));
            format!("lease `{}` was lost: held={} seen={seen}, {how}{now}", token.lease, token.epoch)
        }
        Refusal::Lost { seen, holder: None, .. } => {
            format!("lease `{}` was lost: epoch {seen} has already been released", token.lease)
        }
        Refusal::Lost { seen, .. } => {
            format!("lease `{}` was lost: epoch {seen} ran out before it was renewed", token.lease)
        }
        Refusal::NoSlot => {
            let message = format!("lease `{}` has no slot to complete", token.lease);
            return Error::new(Kind::Invalid, message);
        }
        Refusal::AlreadyRun(mark) => {
            let message = format!("slot of lease `{}` was completed before, as {}", token.lease, mark.state.as_str());
            return Error::new(Kind::Invalid, message);
        }
        other => format!("lease `{}` was lost: {other}", token.lease),
    };
    let error = Error::new(Kind::Lost, message);
    match refusal {
        Refusal::Lost { seen, holder, last } => {
            let reason = last.as_ref().map(|transfer| transfer.reason);
            error.with_epochs(token.epoch, *seen).with_holder(holder.clone()).with_reason(reason)
        }
        _ => error,
    }
}
