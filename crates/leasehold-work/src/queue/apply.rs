//! One request on one item, by the loop in [`leasehold_core::cell`]; and the first write of an item.
//!
//! Promise: the loop's. Non-promise: positions in line are hints, and follow
//! later where the store writes one record at a time.

use super::grant::ItemSnapshot;
use super::queue::{Added, Queue, missing};
use leasehold_core::cell::{Cell, Decision, Fate, Protocol, Row, Start};
use leasehold_core::clock::Moment;
use leasehold_core::holding;
use leasehold_core::item::name::ItemName;
use leasehold_core::item::protocol::{Refusal, Request};
use leasehold_core::item::record::{Item, State};
use leasehold_core::migration;
use leasehold_core::relocation::{Relocation, evicted_error};
use leasehold_core::store::{self, Verb, Versioned};
use leasehold_core::{Anchor, Error, Kind, Remedy, Result, Timestamp};

/// The outcome of a request.
pub(super) type Applied<'a> = leasehold_core::cell::Applied<'a, Item, Refusal>;

/// Where an item's record is stored. Its position in line is moved with it.
#[derive(Clone, Copy)]
pub(super) struct ItemRow<'a> {
    pub(super) queue: &'a Queue,
    pub(super) name: &'a ItemName,
    pub(super) verb: Verb<'a>,
}

impl Row for ItemRow<'_> {
    type Record = Item;

    fn what(&self) -> String {
        format!("item `{}`", self.name)
    }

    async fn read(&self, asked: Moment) -> Result<Option<ItemSnapshot>> {
        let seen = OptionalRow(*self).read(asked).await?;
        Ok(seen.and_then(|seen| Some(ItemSnapshot::new(seen.record?, seen.revision, seen.anchor))))
    }

    async fn write(&mut self, seen: &ItemSnapshot, next: Item, asked: Moment) -> Result<Option<ItemSnapshot>> {
        let (name, was, revision) = (self.name, Some(&seen.record), seen.revision.as_ref());
        let swap = self.queue.line.swap(name, was, revision, &next, self.verb).await?;
        Ok(ItemSnapshot::after(swap, next, asked))
    }
}

impl Queue {
    /// Decides a request and writes the result.
    pub(super) async fn apply<'s>(
        &self,
        name: &ItemName,
        request: &Request,
        start: Start<'s, Item>,
    ) -> Result<Applied<'s>> {
        let store = self.store().as_ref();
        let row = ItemRow { queue: self, name, verb: Verb::Item(request) };
        let mut cell = Cell::new(row, store, self.clock().as_ref());
        match holding::reading_for(request.claim(), cell.apply(request, start, &mut None)).await? {
            Applied::No { refusal: Refusal::Elsewhere(state), .. } => {
                let what = format!("item `{name}`");
                Err(match request.needs_a_claim() {
                    true => evicted_error(&what, &state),
                    false => migration::elsewhere(store, &what, &state).await,
                })
            }
            other => Ok(other),
        }
    }

    pub(super) async fn look(&self, name: &ItemName) -> Result<Option<ItemSnapshot>> {
        ItemRow { queue: self, name, verb: Verb::Direct }.read(self.clock().now()).await
    }

    /// Changes a record that may not exist.
    async fn change<'s>(
        &self,
        name: &ItemName,
        change: &Change<'_>,
        start: Start<'s, Option<Item>>,
    ) -> Result<ChangeApplied<'s>> {
        Cell::new(self.optional_row(name, change), self.store().as_ref(), self.clock().as_ref())
            .apply(change, start, &mut None)
            .await
    }

    pub(super) fn optional_row<'a>(&'a self, name: &'a ItemName, change: &Change<'a>) -> OptionalRow<'a> {
        let verb = match change {
            Change::Add(item) => Verb::Add(item),
            Change::TakeBack => Verb::TakeBack,
        };
        OptionalRow(ItemRow { queue: self, name, verb })
    }

    /// Writes a new item unless it exists, and ensures that it is in line.
    pub(super) async fn put(&self, name: ItemName, item: &Item) -> Result<Added> {
        // Most are new, so the first write expects that the key has no value.
        let nothing = Anchor { now: item.added, asked: self.clock().now() };
        let nothing = OptionalSnapshot::new(None, None, nothing);
        match self.change(&name, &Change::Add(item), Start::Remembered(&nothing)).await? {
            ChangeApplied::Yes { before, written } => {
                let is_first = before.record != written.record;
                let OptionalSnapshot { record: Some(record), revision, anchor, .. } = *written else {
                    return Err(missing(&name));
                };
                if is_first && self.line.is_one_step() {
                    return Ok(Added::New(name));
                }
                let is_ours = is_first || record.lineage == item.lineage;
                let known = ItemSnapshot::new(record, revision, anchor);
                self.ensure_in_line(&name, &known, if is_ours { Added::New } else { Added::Duplicate }).await
            }
            ChangeApplied::No { refusal: Obstacle::Relocation(state), .. } => {
                Err(migration::elsewhere(self.store().as_ref(), &format!("item `{name}`"), &state).await)
            }
            _ => Err(changing(&name)),
        }
    }

    /// Ensures that a stored item is in line: the process that added it may have died before that.
    pub(super) async fn ensure_in_line(
        &self,
        name: &ItemName,
        known: &ItemSnapshot,
        added: fn(ItemName) -> Added,
    ) -> Result<Added> {
        let position = self.line.position(name, &known.record);
        if known.record.is_open()
            && let Err(error) = self.line.enter(&position, known).await
        {
            let message =
                format!("item `{name}` was added, but could not be put in line; workers find it within 10 minutes");
            let remedy = Remedy::CleanQueue { queue: self.name.to_string() };
            return Err(Error::new(Kind::Indeterminate, message).with_source(error).with_remedy(remedy));
        }
        Ok(added(name.clone()))
    }

    /// Refuses to continue in a namespace that is moving to another store, has moved there, or into which another
    /// store's records arrive. A migration does not block itself.
    pub(super) async fn check_migration(&self) -> Result<()> {
        let what = format!("queue `{}`", self.name);
        migration::look(self.store().as_ref()).await?.check_for(&what, self.migration)
    }

    /// Reads the namespace's mark again after items were added: either the migration sees
    /// them, or this read sees the migration. Items that the migration has seen move with
    /// it and count. The others are taken back, and if there were any, this is an error.
    pub(super) async fn confirm(&self, added: &mut Vec<Added>) -> Result<()> {
        let Err(refused) = self.check_migration().await else { return Ok(()) };
        let (mut gone, all) = (false, std::mem::take(added));
        for one in all {
            if let Added::New(name) = &one {
                match self.take_back(name).await {
                    Ok(true) => {
                        gone = true;
                        continue;
                    }
                    Ok(false) => {}
                    Err(error) => {
                        let message = format!(
                            "item `{name}` was added while its queue was moved, and whether it was taken back is not known; look \
                             at it before adding it again ({refused})"
                        );
                        return Err(Error::new(Kind::Indeterminate, message).with_source(error));
                    }
                }
            }
            added.push(one);
        }
        if gone { Err(refused) } else { Ok(()) }
    }

    /// Erases an item that was just added, unless a migration is moving it or somebody has claimed it. Returns whether
    /// it is gone. If not, the migration takes it to the new store, or leaves it here if it is given up.
    async fn take_back(&self, name: &ItemName) -> Result<bool> {
        match self.change(name, &Change::TakeBack, Start::Read).await? {
            ChangeApplied::Yes { before, .. } => {
                if let Some(item) = &before.record {
                    self.line.leave(&self.line.position(name, item), None).await?;
                }
                Ok(true)
            }
            ChangeApplied::No { refusal: Obstacle::Relocation(_) | Obstacle::InUse, .. } => Ok(false),
            _ => Err(changing(name)),
        }
    }
}

fn changing(name: &ItemName) -> Error {
    Error::new(Kind::Contended, format!("item `{name}` keeps changing; try again"))
}

/// A record that may not exist, as last seen.
pub(super) type OptionalSnapshot = leasehold_core::cell::Snapshot<Option<Item>>;
type ChangeApplied<'a> = leasehold_core::cell::Applied<'a, Option<Item>, Obstacle>;

/// A change that creates or erases a record.
pub(super) enum Change<'a> {
    /// Writes it, unless it exists.
    Add(&'a Item),
    /// Erases it, unless something has happened to it since it was added.
    TakeBack,
}

/// Why a record is left as it is.
pub(super) enum Obstacle {
    /// A migration is moving it.
    Relocation(Relocation),
    /// Somebody has claimed it.
    InUse,
    /// It continues the epochs of an earlier item, which must not be forgotten.
    EarlierEpochs,
}

impl Protocol for Change<'_> {
    type Record = Option<Item>;
    type Refusal = Obstacle;

    fn decide(&self, there: &Option<Item>, _: Timestamp) -> Decision<Option<Item>, Obstacle> {
        let write = |next| Decision::Write(Box::new(next));
        match (self, there) {
            (Change::Add(item), None) => write(Some((*item).clone())),
            (Change::TakeBack, None) => Decision::AlreadyApplied,
            (_, Some(Item { relocation: Some(state), .. })) => Decision::Refuse(Obstacle::Relocation(state.clone())),
            (Change::Add(item), Some(known)) if matches!(known.state, State::Purged { .. }) => {
                write(Some(item.after(known)))
            }
            // Ours, or added by another process, whose write may also have got no answer.
            (Change::Add(_), Some(_)) => Decision::AlreadyApplied,
            (Change::TakeBack, Some(known)) if known.state != State::Ready => Decision::Refuse(Obstacle::InUse),
            (Change::TakeBack, Some(known)) if !known.history.is_empty() => Decision::Refuse(Obstacle::EarlierEpochs),
            (Change::TakeBack, Some(_)) => write(None),
        }
    }

    fn fate(&self, _: &Option<Item>, _: &Option<Item>) -> Fate {
        match self {
            // The record that is there now is confirmed, even if another request added it.
            Change::Add(_) => Fate::NotApplied,
            Change::TakeBack => Fate::Unknown,
        }
    }

    fn memory(_: &Option<Item>, _: &Option<Item>) -> String {
        "what is erased leaves no trace".into()
    }

    fn needs_confirmation(&self) -> bool {
        matches!(self, Change::Add(_))
    }
}

/// The same row, which may have no record yet.
pub(super) struct OptionalRow<'a>(ItemRow<'a>);

impl Row for OptionalRow<'_> {
    type Record = Option<Item>;

    fn what(&self) -> String {
        self.0.what()
    }

    async fn read(&self, asked: Moment) -> Result<Option<OptionalSnapshot>> {
        let reading = self.0.queue.store().read(&self.0.name.key()?).await?;
        let item = |value: &Versioned| Item::decode(&value.bytes, &self.0.name.to_string());
        let record = reading.value.as_ref().map(item).transpose()?;
        let revision = reading.value.map(|value| value.revision);
        Ok(Some(OptionalSnapshot::new(record, revision, Anchor { now: reading.now, asked })))
    }

    async fn write(
        &mut self,
        seen: &OptionalSnapshot,
        next: Option<Item>,
        asked: Moment,
    ) -> Result<Option<OptionalSnapshot>> {
        let ItemRow { queue, name, verb } = self.0;
        let swap = match (&next, &seen.revision) {
            (Some(item), revision) => {
                queue.line.swap(name, seen.record.as_ref(), revision.as_ref(), item, verb).await?
            }
            (None, Some(revision)) => {
                let key = name.key()?;
                queue.store().write(&store::Change { verb, ..store::Change::erase(&key, revision) }).await?
            }
            (None, None) => return Ok(Some(seen.clone())),
        };
        Ok(OptionalSnapshot::after(swap, next, asked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{Attempts, NewItem, Payload, Priority};
    use leasehold_core::item::protocol::Order;
    use leasehold_core::lease::protocol::Holder;
    use leasehold_core::migration::Migration;
    use leasehold_core::relocation::Step;
    use leasehold_core::{Lineage, MemoryStore, Nonce};
    use std::sync::Arc;

    /// An item that was written after the first read of the namespace's mark, and before the migration's mark.
    async fn overtaken() -> (Queue, Migration, Added) {
        let queue = Queue::new(Arc::new(MemoryStore::default()), "mail".parse().unwrap());
        let payload = Payload::new("one").unwrap();
        let (now, lineage) = (Timestamp::from_millis(1), Lineage::random());
        let item = Item::new(lineage, payload, Priority::default(), Attempts::default(), now, None);
        let added = queue.put(queue.item("k.a".parse().unwrap()), &item).await.unwrap();
        let migration = Migration {
            number: Nonce::from_u128(5),
            from: "dir:/old".parse().unwrap(),
            to: "dir:/new".parse().unwrap(),
            by: "ada".parse().unwrap(),
        };
        let leave = Step::Leave { to: migration.to.clone() };
        migration::leave(queue.store().as_ref(), &leave, &migration).await.unwrap();
        (queue, migration, added)
    }

    #[tokio::test]
    async fn an_item_that_the_migration_has_not_seen_is_taken_back() {
        let (queue, _, added) = overtaken().await;
        let error = queue.confirm(&mut vec![added.clone()]).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable, "{error}");
        assert!(queue.look(added.name()).await.unwrap().is_none());
        let line =
            queue.store().list(leasehold_core::Shelf::Line, leasehold_core::store::Range::new(None, 10)).await.unwrap();
        assert!(line.entries.is_empty(), "{line:?}");
        assert_eq!(queue.add(NewItem::default()).await.unwrap_err().kind(), Kind::Unavailable);
    }

    #[tokio::test]
    async fn an_item_that_the_migration_has_seen_goes_along_and_was_added() {
        let (queue, migration, added) = overtaken().await;
        let step = Step::Leave { to: migration.to.clone() };
        let order = Order::Relocate { migration: migration.number, step, holder: Holder::Stays };
        let why = "moved".parse().unwrap();
        queue.operate(&added.name().id, migration.by.clone(), why, None, order).await.unwrap();
        queue.confirm(&mut vec![added.clone()]).await.unwrap();
        assert!(queue.look(added.name()).await.unwrap().is_some());
    }
}
