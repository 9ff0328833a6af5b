//! The janitor: puts items with expired claims back, finds items that are in no
//! line, and finishes what a dead worker left undone.
//!
//! Promise: any number of janitors may run at any time, because each of their steps is a swap on the
//! item's own record, or only concerns hints. Every worker does its share, so no separate janitor is
//! needed. An item that causes an error is reported, and the others are handled. A purged item's key
//! may be used again, and its epochs continue. Non-promise: purging cannot be undone.

use super::apply::Applied;
use super::claimer::{MAX_TROUBLED, is_temporary};
use super::grant::ItemSnapshot;
use super::queue::Queue;
use crate::backlog::{Expired, ItemView};
use leasehold_core::cell::Start;
use leasehold_core::clock::Moment;
use leasehold_core::item::name::{ItemId, ItemName, LinePosition};
use leasehold_core::item::protocol::{Order, Request, arriving};
use leasehold_core::item::record::{Item, State};
use leasehold_core::relocation::Address;
use leasehold_core::store::{Change, Range, Swap, Verb};
use leasehold_core::{Anchor, Epoch, Error, Kind, LeaseName, Nonce, Result, Revision, Shelf, Timestamp, Who, Why};
use std::time::Duration;

/// How many records are read at once.
const PAGE: usize = 50;
/// How long an idle worker pauses between two pages, and between two rounds.
const BETWEEN_PAGES: Duration = Duration::from_secs(2);
const BETWEEN_ROUNDS: Duration = Duration::from_secs(600);

/// What a janitor did.
#[derive(Debug, Default)]
pub struct Chores {
    /// Items whose claims had expired, put back in line.
    pub requeued: usize,
    /// Items that had used up their attempts, and are dead letters now.
    pub buried: usize,
    /// Items that were in no line, or that had become due in a spool.
    pub lined_up: usize,
    /// Completions whose follow-ups were added now.
    pub settled: usize,
    /// Items whose wait was too long because the store's clock was set back, and was shortened to what was requested.
    pub redated: usize,
    /// Entries of a spool that are not items.
    pub foreign: Vec<Error>,
    /// Items that were left as they are, and why: their records cannot be read, or the store did not answer.
    pub troubles: Vec<Error>,
}

/// What a purge did.
#[derive(Debug, Default)]
pub struct Purged {
    /// How many items were removed.
    pub items: usize,
    /// Items that were left as they are, and why.
    pub troubles: Vec<Error>,
}

/// Tells apart one item's trouble and the store's.
#[derive(Debug, Default)]
struct Patience {
    in_a_row: usize,
}

impl Patience {
    /// The result for one item. Its own error is added to `troubles`; an error here is the store's.
    fn record<T: Default>(&mut self, name: &ItemName, done: Result<T>, troubles: &mut Vec<Error>) -> Result<T> {
        let error = match done {
            Ok(done) => {
                self.in_a_row = 0;
                return Ok(done);
            }
            Err(error) => error,
        };
        self.in_a_row = if is_temporary(error.kind()) { self.in_a_row + 1 } else { 0 };
        // A store that denies permission, or that has moved, does so for all items.
        if matches!(error.kind(), Kind::Unsupported | Kind::Moved) || self.in_a_row >= MAX_TROUBLED {
            return Err(error);
        }
        troubles.push(Error::new(error.kind(), format!("item `{name}` was left as it is: {error}")));
        Ok(T::default())
    }
}

/// One page of a queue's items.
#[derive(Debug)]
pub struct Items {
    /// Each item with its record, or the error of reading it.
    pub entries: Vec<(ItemName, Result<Item>)>,
    /// Where the next page begins, if there is one.
    pub next: Option<LeaseName>,
    /// The store's time.
    pub now: Timestamp,
}

impl Queue {
    /// Reads the items of this queue, a page at a time, in the order of their names. Purged items are not shown.
    pub async fn list(&self, after: Option<&LeaseName>, limit: usize) -> Result<Items> {
        let (page, next) = self.page(after, limit).await?;
        let now = page.now;
        let entries = page
            .items
            .into_iter()
            .map(|(name, seen)| (name, seen.map(|seen| seen.record)))
            .filter(|(_, item)| !item.as_ref().is_ok_and(|item| matches!(item.state, State::Purged { .. })))
            .collect();
        Ok(Items { entries, next, now })
    }

    async fn page(&self, after: Option<&LeaseName>, limit: usize) -> Result<(Page, Option<LeaseName>)> {
        // `-` is the lowest character that a name may have, and no item's begins with it.
        let start = LeaseName::new(format!("{}/-", self.name))?;
        let asked = self.clock().now();
        let page = self.store().list(Shelf::Item, Range::new(Some(after.unwrap_or(&start)), limit)).await?;
        let anchor = Anchor { now: page.now, asked };
        let mut next = page.entries.last().map(|(name, _)| name.clone()).filter(|_| page.more);
        let mut items = Vec::with_capacity(page.entries.len());
        for (record, value) in page.entries {
            let is_ours = record.as_str().strip_prefix(self.name.as_str()).is_some_and(|rest| rest.starts_with('/'));
            if !is_ours {
                next = None;
                break;
            }
            // A name that is not an item's must not hide those behind it.
            let Some(name) = ItemName::from_record(&record) else { continue };
            let item = Item::decode(&value.bytes, &name.to_string());
            items.push((name, item.map(|item| ItemSnapshot::new(item, Some(value.revision), anchor))));
        }
        Ok((Page { items, now: page.now }, next))
    }

    /// Handles every item of the queue, once.
    pub async fn clean(&self) -> Result<Chores> {
        let mut chores = Chores::default();
        let mut after = None;
        loop {
            let (page, next) = self.page(after.as_ref(), PAGE).await?;
            self.clean_page(page, Thorough::Yes, &mut chores).await?;
            match next {
                Some(next) => after = Some(next),
                None => return Ok(chores),
            }
        }
    }

    async fn clean_page(&self, page: Page, thorough: Thorough, chores: &mut Chores) -> Result<()> {
        // An item that a worker has, or that is not due, need not be found yet.
        let is_wanted = |item: &Item| match thorough {
            Thorough::Yes => item.is_open(),
            Thorough::No => item.state == State::Ready && item.is_due(page.now),
        };
        let mut patience = Patience::default();
        for (name, seen) in readable(page.items, &mut chores.troubles) {
            let item = &seen.record;
            let expired = seen.has_run_out();
            let is_misdated = item.relocation.is_none() && item.has_future_times(page.now);
            if is_misdated || (expired && thorough == Thorough::Yes) {
                match patience.record(&name, self.reap(&name).await, &mut chores.troubles)? {
                    _ if is_misdated => chores.redated += 1,
                    Some(State::Ready) => chores.requeued += 1,
                    Some(State::Dead { .. }) => chores.buried += 1,
                    _ => {}
                }
            } else if expired || is_wanted(item) {
                let entered = self.enter_if_missing(&name, &seen).await;
                chores.lined_up += usize::from(patience.record(&name, entered, &mut chores.troubles)?);
            } else if !item.outbox.is_empty() {
                let settled = self.settle(&name, &seen).await.map(|()| true);
                chores.settled += usize::from(patience.record(&name, settled, &mut chores.troubles)?);
            }
        }
        Ok(())
    }

    /// Puts an item in line if it is in none; returns whether it was in none.
    pub(super) async fn enter_if_missing(&self, name: &ItemName, seen: &ItemSnapshot) -> Result<bool> {
        let position = self.line.position(name, &seen.record);
        if self.line.is_served() || self.store().read(&position.key()?).await?.value.is_some() {
            return Ok(false);
        }
        self.line.enter(&position, seen).await?;
        Ok(true)
    }

    /// Puts an item with an expired claim back in line, or gives it up. Returns its new state, if it changed.
    pub(super) async fn reap(&self, name: &ItemName) -> Result<Option<State>> {
        match self.look(name).await? {
            Some(before) if before.has_run_out() || before.record.has_future_times(before.anchor.now) => {
                self.reap_known(name, before).await
            }
            _ => Ok(None),
        }
    }

    /// The same for a claim that is known to have expired. Only the process that ended it reports it: others may have read the same
    /// record. A claim of which only the times were corrected is still in force.
    pub(super) async fn reap_known(&self, name: &ItemName, before: ItemSnapshot) -> Result<Option<State>> {
        let position = self.line.position(name, &before.record);
        match self.apply(name, &Request::Reap, Start::Remembered(&before)).await? {
            Applied::Yes { before: found, written } => {
                if found.record.tenure().is_some() && written.record.tenure().is_none() {
                    self.tell_expired(name, &found.record, &written.record);
                }
                self.update_line(name, &written, position, None).await?;
                Ok(Some(written.record.state))
            }
            Applied::No { .. } | Applied::Missing | Applied::Overtaken => Ok(None),
        }
    }

    /// Reports that the claim of this record has expired, and what became of the item.
    pub(super) fn tell_expired(&self, name: &ItemName, before: &Item, after: &Item) {
        self.on_expired.call(|| {
            let seen = ItemView::written(name.clone(), after.clone());
            Expired { id: name.id.clone(), epoch: before.epoch, seen }
        });
    }

    /// Removes an entry that its item has left, after ensuring that nothing is lost by that.
    pub(super) async fn repair_entry(
        &self,
        name: &ItemName,
        known: &ItemSnapshot,
        position: LinePosition,
        tag: Option<Revision>,
    ) -> Result<()> {
        let is = self.line.position(name, &known.record);
        if known.record.is_open() && is == position {
            return Ok(());
        }
        if known.record.is_open() {
            self.line.enter(&is, known).await?;
        } else if !known.record.outbox.is_empty() {
            self.settle(name, known).await?;
        }
        self.line.leave(&position, tag).await
    }

    /// Adds the follow-ups of a completion, each once, and records that they were added. Any number may do so at once.
    pub(super) async fn settle(&self, name: &ItemName, known: &ItemSnapshot) -> Result<()> {
        let State::Done { at } = known.record.state else { return Ok(()) };
        if self.line.is_served() {
            return Ok(());
        }
        // A follow-up that is added behind a migration would be added again in the new store.
        self.check_migration().await?;
        let (mut queues, mut added): (Vec<Queue>, _) = (Vec::new(), Vec::new());
        for follow_up in &known.record.outbox {
            let due = (follow_up.delay_ms > 0).then(|| at.plus(Duration::from_millis(follow_up.delay_ms)));
            let mut item = Item::new(
                leasehold_core::Lineage::random(),
                follow_up.payload.clone(),
                follow_up.priority,
                follow_up.attempts,
                at,
                due,
            );
            item.origin = Some(format!("{name}@{}", known.record.epoch));
            let there = follow_up.name.queue.clone();
            let queue = Queue::with_clock(self.store().clone(), there, self.clock().clone());
            added.push(queue.put(follow_up.name.clone(), &item).await?);
            if queues.iter().all(|known| known.name != queue.name) {
                queues.push(queue);
            }
        }
        for queue in queues {
            queue.line.wake_workers().await;
        }
        self.confirm(&mut added).await?;
        self.apply(name, &Request::Settle, Start::Remembered(known)).await?;
        Ok(())
    }

    /// Adds what a completed item still has to add. None of it is lost if that was begun before.
    pub async fn finish(&self, id: &ItemId) -> Result<()> {
        let name = self.item(id.clone());
        match self.look(&name).await? {
            Some(known) if !known.record.outbox.is_empty() => self.settle(&name, &known).await,
            _ => Ok(()),
        }
    }

    /// Creates the queue's own record if it is missing, and wakes workers that wait.
    pub async fn announce(&self) {
        self.line.wake_workers().await;
    }

    /// Takes in an item of another store. It cannot be claimed before the migration is settled.
    pub async fn take_in(
        &self,
        id: &ItemId,
        item: &Item,
        migration: Nonce,
        from: &Address,
        (by, why): (&Who, &Why),
    ) -> Result<()> {
        let name = self.item(id.clone());
        let arriving = arriving(item, migration, from);
        match self.store().swap(&name.key()?, None, &arriving.encode()?).await {
            Ok(Swap::Done { .. }) => return Ok(()),
            Ok(Swap::Mismatch) => {}
            // An item that is there now counts as ours only if it has this
            // migration's number, and is written once more.
            Err(error) if error.kind() == Kind::Indeterminate => {}
            Err(error) => return Err(error),
        }
        let order = Order::Arrive { migration, from: from.clone(), item: Box::new(item.clone()) };
        self.operate(id, by.clone(), why.clone(), None, order).await.map(drop)
    }

    /// Erases items that were finished longer ago than this. Their keys may be used again.
    pub async fn purge(&self, older_than: Duration, which: impl Fn(&State) -> bool) -> Result<Purged> {
        if older_than < MIN_PURGE_AGE {
            let age = leasehold_core::format_duration(older_than);
            let form = "use 1m or more: whoever is late with adding a follow-up must not find it gone";
            return Err(Error::invalid("age", age, form));
        }
        let mut purged = Purged::default();
        match self.purge_pages(older_than, which, &mut purged).await {
            Ok(()) => Ok(purged),
            Err(error) if purged.items == 0 => Err(error),
            Err(error) => {
                let message = format!("{} items were purged before it was interrupted; run this again", purged.items);
                Err(Error::new(Kind::Indeterminate, message).with_source(error))
            }
        }
    }

    async fn purge_pages(
        &self,
        older_than: Duration,
        which: impl Fn(&State) -> bool,
        purged: &mut Purged,
    ) -> Result<()> {
        let (mut after, mut patience) = (None, Patience::default());
        loop {
            let (page, next) = self.page(after.as_ref(), PAGE).await?;
            for (name, seen) in readable(page.items, &mut purged.troubles) {
                let old = seen.record.state.finished_at().is_some_and(|at| page.now >= at.plus(older_than));
                if old && which(&seen.record.state) {
                    let erased = self.erase(&name, &seen).await;
                    purged.items += usize::from(patience.record(&name, erased, &mut purged.troubles)?);
                }
            }
            match next {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// Erases one dead letter, if it is unchanged since this epoch, and was
    /// given up more than a minute ago. Returns whether it is gone.
    pub async fn purge_dead_letter(&self, id: &ItemId, epoch: Epoch) -> Result<bool> {
        let name = self.item(id.clone());
        let Some(seen) = self.look(&name).await? else { return Ok(false) };
        let State::Dead { at, .. } = seen.record.state else { return Ok(false) };
        let is_as_seen = seen.record.epoch == epoch && seen.anchor.now >= at.plus(MIN_PURGE_AGE);
        Ok(is_as_seen && self.erase(&name, &seen).await?)
    }

    pub(super) async fn erase(&self, name: &ItemName, seen: &ItemSnapshot) -> Result<bool> {
        let ItemSnapshot { record: item, revision: Some(revision), anchor, .. } = seen else { return Ok(false) };
        if !item.outbox.is_empty() || item.relocation.is_some() || self.may_come_again(item).await? {
            return Ok(false);
        }
        self.line.leave(&item.position(name), None).await?;
        let key = name.key()?;
        if name.id.is_keyed() {
            // Its key may be used again. Then an old item's worker must still be distinguished from the new one's.
            let left = item.tombstone(anchor.now).encode()?;
            let change = Change { verb: Verb::Purge, ..Change::put(&key, Some(revision), &left) };
            let swap = self.store().write(&change).await?;
            return Ok(matches!(swap, Swap::Done { .. }));
        }
        match self.store().write(&Change { verb: Verb::Purge, ..Change::erase(&key, revision) }).await {
            Ok(swap) => Ok(matches!(swap, Swap::Done { .. })),
            // Gone or not: the next purge finds out.
            Err(error) if error.kind() == Kind::Indeterminate => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether the item that added this one has not yet recorded that, so that it would add it again.
    async fn may_come_again(&self, item: &Item) -> Result<bool> {
        let origin = item.origin.as_deref().and_then(|origin| origin.rsplit_once('@'));
        let Some(parent) =
            origin.and_then(|(name, _)| LeaseName::new(name).ok()).and_then(|name| ItemName::from_record(&name))
        else {
            return Ok(false);
        };
        Ok(self.look(&parent).await?.is_some_and(|known| !known.record.outbox.is_empty()))
    }
}

/// The least age at which an item may be purged.
pub(super) const MIN_PURGE_AGE: Duration = Duration::from_secs(60);

struct Page {
    items: Vec<(ItemName, Result<ItemSnapshot>)>,
    now: Timestamp,
}

/// The items whose records can be read; the errors of the others are added to `troubles`.
fn readable(items: Vec<(ItemName, Result<ItemSnapshot>)>, troubles: &mut Vec<Error>) -> Vec<(ItemName, ItemSnapshot)> {
    let read = |(name, seen): (ItemName, Result<ItemSnapshot>)| Some((name, seen.map_err(|e| troubles.push(e)).ok()?));
    items.into_iter().filter_map(read).collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Thorough {
    /// Every item is handled.
    Yes,
    /// Only items that could be claimed but cannot be found.
    No,
}

/// The janitor's work in small parts: a page now and then, while there is nothing else to do.
#[derive(Debug)]
pub struct Sweep {
    queue: Queue,
    after: Option<LeaseName>,
    next: Moment,
}

impl Sweep {
    /// A sweep of this queue, from the beginning.
    pub fn new(queue: Queue) -> Self {
        let next = queue.clock().now();
        Sweep { queue, after: None, next }
    }

    /// Postpones the next page, because this worker has something else to do.
    pub(super) fn put_off(&mut self) {
        self.next = self.next.max(self.queue.clock().now() + BETWEEN_PAGES);
    }

    /// The store's clock was set back: every item is handled again, and soon.
    pub(super) fn restart(&mut self) {
        (self.after, self.next) = (None, self.queue.clock().now());
    }

    /// Handles the next page, if it is time. Failures are retried in the next round.
    pub async fn idle(&mut self) {
        let clock = self.queue.clock().clone();
        if clock.now() < self.next {
            return;
        }
        let mut chores = Chores::default();
        let next = match self.queue.page(self.after.as_ref(), PAGE).await {
            Ok((page, next)) => {
                let _ = self.queue.clean_page(page, Thorough::No, &mut chores).await;
                next
            }
            Err(_) => None,
        };
        self.next = clock.now() + if next.is_some() { BETWEEN_PAGES } else { BETWEEN_ROUNDS };
        self.after = next;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::backlog::{Backlog, OnExpired};
    use crate::queue::{Claimer, NewItem};
    use leasehold_core::clock::ManualClock;
    use leasehold_core::{MemoryStore, Ttl};
    use std::sync::{Arc, Mutex};

    /// A queue with one claimed item, its store's clock, and the epochs that were told as lost.
    async fn claimed(ahead: Duration) -> (Queue, ItemName, ManualClock, Arc<Mutex<Vec<u64>>>) {
        let clock = ManualClock::default();
        clock.advance(ahead);
        let store = Arc::new(MemoryStore::with_clock(Arc::new(clock.clone())));
        let (told, ours) = (Arc::new(Mutex::new(Vec::new())), Arc::new(clock.clone()));
        let telling = told.clone();
        let queue = Queue::with_clock(store, "mail".parse().unwrap(), ours)
            .with_expiry_callback(OnExpired::new(move |expired| telling.lock().unwrap().push(expired.epoch.get())));
        let name = queue.add(NewItem::default()).await.unwrap().name().clone();
        let mut worker = Claimer::new(queue.clone(), None, Ttl::new(TTL).unwrap()).unwrap();
        worker.claim().await.unwrap();
        (queue, name, clock, told)
    }

    const TTL: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn the_death_of_a_worker_is_told_once_however_many_found_it() {
        let (queue, name, clock, told) = claimed(Duration::ZERO).await;
        clock.advance(TTL + Duration::from_secs(1));
        let mut lanes = Vec::new();
        for _ in 0..3 {
            lanes.push(queue.look(&name).await.unwrap().unwrap());
        }
        for seen in lanes {
            assert!(seen.has_run_out());
            queue.reap_known(&name, seen).await.unwrap();
        }
        assert_eq!(*told.lock().unwrap(), vec![1]);
    }

    #[tokio::test]
    async fn a_claim_whose_times_are_set_right_is_not_told_as_lost() {
        let (queue, name, _, told) = claimed(Duration::from_secs(7_200)).await;
        let seen = queue.look(&name).await.unwrap().unwrap();
        let back = Timestamp::from_millis(seen.anchor.now.as_millis() - 7_200_000);
        let set_back = ItemSnapshot::new(seen.record, seen.revision, Anchor { now: back, ..seen.anchor });
        let state = queue.reap_known(&name, set_back).await.unwrap();
        assert!(matches!(state, Some(State::Claimed(_))), "{state:?}");
        assert!(told.lock().unwrap().is_empty());
    }

    fn failures_until_error(kind: Kind) -> Option<usize> {
        let (mut patience, mut troubles) = (Patience::default(), Vec::new());
        let name = ItemName { queue: "mail".parse().unwrap(), id: ItemId::fresh(Timestamp::from_millis(1)) };
        let fails = |_: &usize| patience.record::<bool>(&name, Err(Error::new(kind, "no")), &mut troubles).is_err();
        (1..=100).find(fails)
    }

    #[test]
    fn only_a_store_that_does_not_answer_stops_the_janitor() {
        assert_eq!(failures_until_error(Kind::Unavailable), Some(MAX_TROUBLED));
        assert_eq!(failures_until_error(Kind::Moved), Some(1));
        for of_the_items in [Kind::Invalid, Kind::Corrupt, Kind::Regressed, Kind::Fenced] {
            assert_eq!(failures_until_error(of_the_items), None, "{of_the_items:?}");
        }
    }
}
