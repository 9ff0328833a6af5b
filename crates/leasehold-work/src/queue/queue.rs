//! A queue: adds items, and carries out what [`leasehold_core::item::protocol`] decides, in one swap each.
//!
//! Promise: an item's record is the truth. Its position in line is a hint that may be stale, duplicated or lost, and is
//! repaired by the next process that finds it. No answer means *unknown* and is resolved by the request's nonce. Non-promise: it
//! does not renew by itself (see [`crate::backlog::KeptItem`]), and it starts no command.

use super::apply::Applied;
use super::grant::{ItemGrant, ItemSnapshot};
use super::line::Line;
use crate::backlog::OnExpired;
use crate::backlog::changed_since;
use leasehold_core::cell::Start;
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::holding;
use leasehold_core::item::name::{DedupeKey, ItemId, ItemName, LinePosition, Priority, QueueName};
use leasehold_core::item::payload::Payload;
use leasehold_core::item::protocol::{Order, Refusal, Request};
use leasehold_core::item::record::{Attempts, Event, FollowUp, Item, Reason, State, What};
use leasehold_core::lease::protocol::Report;
use leasehold_core::{
    Anchor, Epoch, Error, Grant, HolderId, Kind, Lineage, Nonce, Remedy, Result, Revision, Store, Timestamp, Token,
    Ttl, Who, Why,
};
use std::sync::Arc;
use std::time::Duration;

/// A queue in a store. Clones refer to the same queue.
#[derive(Debug, Clone)]
pub struct Queue {
    pub(super) name: QueueName,
    pub(super) line: Line,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    /// The migration that this handle works for, which does not block it.
    pub(super) migration: Option<Nonce>,
    pub(super) on_expired: OnExpired,
}

/// An item to be added.
#[derive(Debug, Clone, Default)]
pub struct NewItem {
    /// What the item carries.
    pub payload: Payload,
    /// How urgent it is.
    pub priority: Priority,
    /// How long it waits before it may be claimed.
    pub delay: Duration,
    /// How often it is tried.
    pub attempts: Attempts,
    /// Added only if no item has this key.
    pub key: Option<DedupeKey>,
}

/// The result of an addition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Added {
    /// A new item is in line.
    New(ItemName),
    /// An item with this key already exists; nothing was added.
    Duplicate(ItemName),
}

impl Added {
    /// The item's name, even if another process added it.
    pub fn name(&self) -> &ItemName {
        match self {
            Added::New(name) | Added::Duplicate(name) => name,
        }
    }
}

/// An item, as read for display.
#[derive(Debug, Clone)]
pub struct Inspection {
    /// The item's full name.
    pub name: ItemName,
    /// As it was read.
    pub item: Item,
    /// The store's time when it was read.
    pub now: Timestamp,
}

impl Queue {
    /// A queue of this name on this store and this machine's clock.
    pub fn new(store: Arc<dyn Store>, name: QueueName) -> Self {
        Queue::with_clock(store, name, Arc::new(SystemClock))
    }

    /// The same with another clock, for tests.
    pub fn with_clock(store: Arc<dyn Store>, name: QueueName, clock: Arc<dyn Clock>) -> Self {
        Queue {
            line: Line::new(store.clone(), name.clone()),
            name,
            store,
            clock,
            migration: None,
            on_expired: OnExpired::default(),
        }
    }

    /// The same for a migration, which works on queues that nobody else may change meanwhile.
    #[must_use]
    pub fn under_migration(self, migration: Nonce) -> Self {
        Queue { migration: Some(migration), ..self }
    }

    /// The name under which its items are stored.
    pub fn name(&self) -> &QueueName {
        &self.name
    }

    /// The store in which the queue is.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The clock by which trust windows are counted.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The full name of an item of this queue.
    pub fn item(&self, id: ItemId) -> ItemName {
        ItemName { queue: self.name.clone(), id }
    }

    /// Adds one item and wakes the workers.
    pub async fn add(&self, new: NewItem) -> Result<Added> {
        let mut added = self.add_all(vec![new]).await?;
        added.pop().ok_or_else(|| Error::new(Kind::Invalid, "nothing was to be added"))
    }

    /// Adds items in this order, and then wakes the workers. If one fails, those before it were added.
    ///
    /// If the queue is moved meanwhile, items that the migration has seen move with it, and the others are taken back.
    pub async fn add_all(&self, items: Vec<NewItem>) -> Result<Vec<Added>> {
        let mut added = Vec::with_capacity(items.len());
        match self.add_each(items, &mut added).await {
            // *Certainly not applied* would be wrong.
            Err(error) if !added.is_empty() && error.is_retryable() => {
                let message = format!(
                    "queue `{}`: {} added before this went wrong; look at the queue before adding anything again",
                    self.name,
                    added.len()
                );
                Err(Error::new(Kind::Indeterminate, message).with_source(error))
            }
            Err(error) => Err(error),
            Ok(()) => Ok(added),
        }
    }

    /// The same for a caller that needs to know which items were added before one failed: they are in `added`.
    pub async fn add_each(&self, items: Vec<NewItem>, added: &mut Vec<Added>) -> Result<()> {
        self.check_migration().await?;
        let asked = self.clock.now();
        let anchor = Anchor { now: self.line.now().await?, asked };
        for new in items {
            let now = anchor.at_latest(self.clock.now(), Duration::ZERO);
            let id = new.key.as_ref().map_or_else(|| ItemId::fresh(now), ItemId::keyed);
            let due = (!new.delay.is_zero()).then(|| now.plus(new.delay));
            let item = Item::new(Lineage::random(), new.payload, new.priority, new.attempts, now, due);
            added.push(self.put(self.item(id), &item).await?);
        }
        self.line.wake_workers().await;
        self.confirm(added).await
    }

    /// Reads an item without changing anything.
    pub async fn inspect(&self, id: &ItemId) -> Result<Inspection> {
        let name = self.item(id.clone());
        let seen = self.read(&name).await?;
        Ok(Inspection { name, item: seen.record, now: seen.anchor.now })
    }

    pub(super) async fn read(&self, name: &ItemName) -> Result<ItemSnapshot> {
        self.look(name).await?.ok_or_else(|| missing(name))
    }

    /// Claims this item, if it may be claimed.
    pub async fn claim_item(&self, id: &ItemId, holder: HolderId, ttl: Ttl) -> Result<Result<ItemGrant, Refusal>> {
        self.check_ttl(ttl)?;
        let name = self.item(id.clone());
        match self.apply(&name, &Request::Claim { holder: holder.clone(), ttl }, Start::Read).await? {
            Applied::Yes { written, .. } => self.granted(name, &holder, ttl, *written, None).map(Ok),
            Applied::No { refusal, .. } => Ok(Err(refusal)),
            Applied::Missing | Applied::Overtaken => Err(missing(&name)),
        }
    }

    /// Takes over a claim that another process made, by its token.
    pub async fn adopt(&self, token: &Token) -> Result<ItemGrant> {
        let name = ItemName::of(token)?;
        let seen = holding::reading_for(Some(token.claim()), self.read(&name)).await?;
        let held = seen.record.tenure().filter(|_| seen.record.is_held_by(token.claim())).cloned();
        match held.filter(|_| !seen.has_run_out()) {
            Some(tenure) => self.granted(name, &tenure.holder, tenure.ttl, seen, None),
            None => Err(lost(&name, token, &seen.record)),
        }
    }

    /// Extends a claim by another TTL. An error of kind [`Kind::Lost`] is final.
    pub async fn renew(&self, grant: &mut ItemGrant) -> Result<()> {
        let request = Request::Renew { claim: grant.token().claim(), ttl: grant.ttl() };
        match self.apply(&grant.name, &request, Start::Remembered(grant.seen())).await? {
            Applied::Yes { before, written } => {
                let (what, before) = (format!("item `{}`", grant.name), before.anchor);
                grant.grant.renew(&what, before, *written, self.grain(), self.clock.now())
            }
            Applied::No { seen, .. } => Err(lost(&grant.name, grant.token(), &seen.record)),
            Applied::Missing | Applied::Overtaken => Err(missing(&grant.name)),
        }
    }

    /// Records how far the work has come.
    pub async fn progress(&self, token: &Token, report: Report) -> Result<()> {
        self.progress_from(token, report, Start::Read).await
    }

    pub(crate) async fn progress_from(&self, token: &Token, report: Report, start: Start<'_, Item>) -> Result<()> {
        let name = ItemName::of(token)?;
        match self.apply(&name, &Request::Progress { claim: token.claim(), report }, start).await? {
            Applied::Yes { .. } => Ok(()),
            Applied::No { seen, .. } => Err(lost(&name, token, &seen.record)),
            Applied::Missing | Applied::Overtaken => Err(missing(&name)),
        }
    }

    /// Completes an item, with its result and follow-ups in the same swap. Refused with [`Kind::Fenced`] unless the
    /// claim is the current one; then nothing is changed or added.
    pub async fn complete(
        &self,
        grant: &ItemGrant,
        result: Option<Payload>,
        follow_ups: Vec<FollowUp>,
    ) -> Result<Item> {
        let request = Request::Complete { claim: grant.token().claim(), result, follow_ups };
        let known = self.decided(grant, &request).await?;
        let was = self.line.position(&grant.name, grant.item());
        // Before the item leaves the line: if this process dies here, the next worker that finds its entry finishes it.
        if !known.record.outbox.is_empty() {
            self.settle(&grant.name, &known).await.map_err(|e| {
                let message =
                    format!("item `{}` is completed; its follow-ups are added by the next worker", grant.name);
                // The item is done: *certainly not applied* would be wrong.
                let kind = if e.is_retryable() { Kind::Indeterminate } else { e.kind() };
                Error::new(kind, message).with_source(e)
            })?;
            // An entry that was put aside has the revision of the claim.
            let tag = if self.line.is_one_step() { grant.seen().revision.clone() } else { grant.entry.clone() };
            let _ = self.line.leave(&was, tag).await;
            return Ok(known.record);
        }
        self.update_line(&grant.name, &known, was, grant.entry.clone()).await?;
        Ok(known.record)
    }

    /// Gives an attempt up. The item is tried again after a pause, or becomes a dead letter.
    pub async fn fail(
        &self,
        grant: &ItemGrant,
        why: Reason,
        retry_in: Option<Duration>,
        is_final: bool,
    ) -> Result<Item> {
        let request = Request::Fail { claim: grant.token().claim(), why, retry_in, is_final };
        Ok(self.end(grant, &request).await?.record)
    }

    /// Gives an item back untried.
    pub async fn give_back(&self, grant: &ItemGrant) -> Result<Item> {
        Ok(self.end(grant, &Request::Return { claim: grant.token().claim(), wait: None }).await?.record)
    }

    /// The same, and nobody can claim it for this long.
    pub async fn postpone(&self, grant: &ItemGrant, wait: Duration) -> Result<Item> {
        Ok(self.end(grant, &Request::Return { claim: grant.token().claim(), wait: Some(wait) }).await?.record)
    }

    /// The claim of a token, unchecked: for requests that the record decides anyway.
    pub async fn by_token(&self, token: &Token) -> Result<ItemGrant> {
        let name = ItemName::of(token)?;
        let seen = holding::reading_for(Some(token.claim()), self.read(&name)).await?;
        let ttl = seen.record.tenure().map_or(Ttl::MIN, |t| t.ttl);
        Ok(ItemGrant { name, grant: Grant::unchecked(token.clone(), ttl, seen, self.grain()), entry: None })
    }

    /// Carries out an operator's order, decided on an item of this epoch if one is
    /// given. Returns the item, and the token for a hand-off. If a hand-off's claim
    /// was over before its answer arrived, that is an error of kind [`Kind::Lost`].
    pub async fn operate(
        &self,
        id: &ItemId,
        by: Who,
        why: Why,
        expected: Option<Epoch>,
        order: Order,
    ) -> Result<(Item, Option<Token>)> {
        self.operate_as(Nonce::random(), id, by, why, expected, order).await
    }

    /// The same under the caller's nonce: an order that was already carried out
    /// under it is not repeated, until another order is carried out.
    pub async fn operate_as(
        &self,
        nonce: Nonce,
        id: &ItemId,
        by: Who,
        why: Why,
        expected: Option<Epoch>,
        order: Order,
    ) -> Result<(Item, Option<Token>)> {
        let name = self.item(id.clone());
        let to = match &order {
            Order::HandOff { to, ttl } => {
                self.check_ttl(*ttl)?;
                Some((to.nonce(), name.lease()?))
            }
            _ => None,
        };
        let before = self.read(&name).await?;
        let position = self.line.position(&name, &before.record);
        let request = Request::Operate { nonce, by, why, expected, order };
        match self.apply(&name, &request, Start::Remembered(&before)).await? {
            Applied::Yes { written, .. } => {
                self.update_line(&name, &written, position, None).await?;
                let is_held_by = |nonce| written.record.tenure().is_some_and(|tenure| tenure.holder.nonce() == nonce);
                if to.as_ref().is_some_and(|(nonce, _)| !is_held_by(*nonce)) {
                    return Err(over_before_known(&name, &written.record));
                }
                let (lineage, epoch) = (written.record.lineage, written.record.epoch);
                Ok((written.record, to.map(|(nonce, lease)| Token { lease, lineage, epoch, nonce, seq: 0 })))
            }
            Applied::No { refusal, seen } => Err(refused(&name, &refusal, &seen.record)),
            Applied::Missing | Applied::Overtaken => Err(missing(&name)),
        }
    }

    /// A request that ends a claim, and its effect on the position in line.
    async fn end(&self, grant: &ItemGrant, request: &Request) -> Result<ItemSnapshot> {
        let known = self.decided(grant, request).await?;
        let was = self.line.position(&grant.name, grant.item());
        self.update_line(&grant.name, &known, was, grant.entry.clone()).await?;
        Ok(known)
    }

    async fn decided(&self, grant: &ItemGrant, request: &Request) -> Result<ItemSnapshot> {
        match self.apply(&grant.name, request, Start::Remembered(grant.seen())).await? {
            Applied::Yes { written, .. } => Ok(*written),
            Applied::No { refusal: Refusal::TooLarge { bytes, most }, .. } => Err(too_large(&grant.name, bytes, most)),
            Applied::No { seen, .. } => Err(fenced(&grant.name, grant.token(), &seen.record)),
            Applied::Missing | Applied::Overtaken => Err(missing(&grant.name)),
        }
    }

    /// Updates the line after an item has changed. The record counts; whatever cannot be done here is repaired by
    /// the next process that finds it, so an error of the line does not fail the request.
    pub(super) async fn update_line(
        &self,
        name: &ItemName,
        known: &ItemSnapshot,
        was: LinePosition,
        entry: Option<Revision>,
    ) -> Result<()> {
        let is = self.line.position(name, &known.record);
        let is_one_step = self.line.is_one_step();
        if known.record.is_open() && is != was {
            // Before the old entry is removed: an item that is in line twice is
            // found, one that is in no line must be searched for.
            if !is_one_step && self.line.enter(&is, known).await.is_err() {
                return Ok(());
            }
            if known.record.tenure().is_none() && known.record.is_due(known.anchor.now) {
                self.line.wake_workers().await;
            }
        }
        if !is_one_step && (!known.record.is_open() || is != was) {
            let _ = self.line.leave(&was, entry).await;
        }
        Ok(())
    }

    pub(super) fn granted(
        &self,
        name: ItemName,
        holder: &HolderId,
        ttl: Ttl,
        seen: ItemSnapshot,
        entry: Option<Revision>,
    ) -> Result<ItemGrant> {
        let (lease, Item { lineage, epoch, .. }) = (name.lease()?, &seen.record);
        let token = Token { lease, lineage: *lineage, epoch: *epoch, nonce: holder.nonce(), seq: 0 };
        let grant = Grant::new(&format!("item `{name}`"), token, ttl, seen, self.grain(), self.clock.now())?;
        Ok(ItemGrant { name, grant, entry })
    }

    pub(super) fn check_ttl(&self, ttl: Ttl) -> Result<()> {
        self.store.capabilities().check_ttl(ttl)
    }

    pub(super) fn grain(&self) -> Duration {
        self.store.capabilities().clock.grain()
    }
}

pub(super) fn missing(name: &ItemName) -> Error {
    let remedy = Remedy::ListItems { queue: Some(name.queue.to_string()) };
    Error::new(Kind::Invalid, format!("there is no item `{name}`")).with_remedy(remedy)
}

/// The error for an operator's order that was refused.
pub(super) fn refused(name: &ItemName, refusal: &Refusal, item: &Item) -> Error {
    let (kind, why) = match refusal {
        Refusal::Changed { expected, seen } => return changed_since(&format!("item `{name}`"), *expected, *seen),
        Refusal::Finished { state } => (Kind::Invalid, format!("is {state}; nothing was changed")),
        Refusal::Busy { holder, .. } => (Kind::Contended, format!("is claimed by {holder}; nothing was changed")),
        Refusal::NotMoving => {
            let Item { lineage, epoch, .. } = item;
            let here = format!("is here, with lineage {lineage} and epoch {epoch}");
            (Kind::Invalid, format!("{here}, and no migration has it on its way; nothing was changed"))
        }
        other => (Kind::Invalid, format!("was not changed: {other}")),
    };
    Error::new(kind, format!("item `{name}` {why}"))
}

fn lost(name: &ItemName, token: &Token, item: &Item) -> Error {
    let (held, seen, state) = (token.epoch, item.epoch, item.state.as_str());
    let what = if seen == held { format!("epoch {held} ran out") } else { format!("held={held} seen={seen}") };
    let order = item.history.iter().rev().find(|event| event.epoch > held && is_order(event.what));
    let order = order.filter(|_| seen != held).map(order_told).unwrap_or_default();
    let holder = item.tenure().filter(|_| seen != held).map(|tenure| tenure.holder.clone());
    let error = Error::new(Kind::Lost, format!("item `{name}` was lost: {what}, {order}it is {state} now"));
    error.with_epochs(held, seen).with_holder(holder)
}

const fn is_order(what: What) -> bool {
    matches!(what, What::Retried | What::Cancelled | What::HandedOff | What::Evicted | What::Moved)
}

/// An operator's order, in words that can be inserted into a message.
fn order_told(event: &Event) -> String {
    let by = event.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
    let why = event.why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
    format!("{}{by}{why}, ", event.what.as_str().replace('_', " "))
}

pub(super) fn too_large(name: &ItemName, bytes: usize, most: usize) -> Error {
    let message = format!(
        "item `{name}` was not changed: with that, its record would have {bytes} bytes, and {most} fit; leave fewer or smaller \
         follow-ups"
    );
    Error::new(Kind::Invalid, message)
}

fn fenced(name: &ItemName, token: &Token, item: &Item) -> Error {
    let (held, seen) = (token.epoch, item.epoch);
    let what = match &item.state {
        State::Claimed(tenure) => format!("now held by {}", tenure.holder),
        // Nobody came after it: it is over because it has ended, or ran out.
        other if held == seen => format!("the claim of this epoch is over, and the item is {}", other.as_str()),
        other => format!("it is {} now", other.as_str()),
    };
    let message = format!("stale epoch refused: resource=`queue:{name}` held={held} seen={seen}, {what}");
    let holder = item.tenure().map(|tenure| tenure.holder.clone());
    Error::new(Kind::Fenced, message).with_epochs(held, seen).with_holder(holder)
}

/// The error for a hand-off that was carried out, but whose claim ended before its lost answer was found.
fn over_before_known(name: &ItemName, item: &Item) -> Error {
    let message = format!(
        "item `{name}` was handed off as ordered, but no answer came in time, and that claim is over: it is {} now, under epoch \
         {}; look at its history before asking again",
        item.state.as_str(),
        item.epoch
    );
    Error::new(Kind::Lost, message)
}
