//! One request on one item, by the loop in [`leasehold_core::cell`]; and the first write of an item.
//!
//! Promise: the loop's. Non-promise: places in line are hints, and follow later where the store writes one record at a time.

use super::grant::Seen;
use super::queue::{Added, Queue};
use leasehold_core::cell::{Cell, MAX_ATTEMPTS, Row, Start};
use leasehold_core::clock::Moment;
use leasehold_core::item::name::ItemName;
use leasehold_core::item::protocol::{Refusal, Request};
use leasehold_core::item::record::{Item, State};
use leasehold_core::migration;
use leasehold_core::relocation::taken_away;
use leasehold_core::store::Swap;
use leasehold_core::{Anchor, Error, Kind, Result};

/// The outcome of a request.
pub(super) type Applied<'a> = leasehold_core::cell::Applied<'a, Item, Refusal>;

/// Where an item's record lies. Its place in line is moved along with it.
struct ItemRow<'a> {
    queue: &'a Queue,
    name: &'a ItemName,
}

impl Row for ItemRow<'_> {
    type Record = Item;

    fn what(&self) -> String {
        format!("item `{}`", self.name)
    }

    async fn read(&self, asked: Moment) -> Result<Option<Seen>> {
        let reading = self.queue.store().read(&self.name.key()?).await?;
        let anchor = Anchor { now: reading.now, asked };
        let seen = |(item, revision)| Seen::new(item, Some(revision), anchor);
        let value =
            reading.value.map(|value| Ok((Item::decode(&value.bytes, &self.name.to_string())?, value.revision)));
        Ok(value.transpose()?.map(seen))
    }

    async fn write(&mut self, seen: &Seen, next: Item, asked: Moment) -> Result<Option<Seen>> {
        Ok(Seen::after(self.queue.line.swap(self.name, Some(seen), &next).await?, next, asked))
    }
}

impl Queue {
    /// Decides a request and writes what comes of it.
    pub(super) async fn apply<'s>(
        &self,
        name: &ItemName,
        request: &Request,
        start: Start<'s, Item>,
    ) -> Result<Applied<'s>> {
        let store = self.store().as_ref();
        let mut cell = Cell::new(ItemRow { queue: self, name }, store, self.clock().as_ref());
        match cell.apply(request, start, &mut None).await? {
            Applied::No { refusal: Refusal::Elsewhere(state), .. } => {
                let what = format!("item `{name}`");
                Err(match request.is_a_workers() {
                    true => taken_away(&what, &state),
                    false => migration::elsewhere(store, &what, &state).await,
                })
            }
            other => Ok(other),
        }
    }

    pub(super) async fn look(&self, name: &ItemName) -> Result<Option<Seen>> {
        ItemRow { queue: self, name }.read(self.clock().now()).await
    }

    /// Writes a new item unless it is there, and sees that it stands in line.
    pub(super) async fn put(&self, name: ItemName, item: &Item) -> Result<Added> {
        let mut unanswered: Option<Error> = None;
        let mut there: Option<Seen> = None;
        for _ in 0..MAX_ATTEMPTS {
            if let Some(state) = there.as_ref().and_then(|known| known.record.relocation.as_ref()) {
                return Err(migration::elsewhere(self.store().as_ref(), &format!("item `{name}`"), state).await);
            }
            let next = match &there {
                None => item.clone(),
                Some(known) if matches!(known.record.state, State::Purged { .. }) => item.after(&known.record),
                // Ours, or added before by somebody else, who perhaps got no answer either. It is visible; whether it is durable,
                // only a new write's answer can tell.
                Some(known) => known.record.clone(),
            };
            match self.line.swap(&name, there.as_ref(), &next).await {
                Ok(Swap::Done { revision, now }) => {
                    let is_first = there.as_ref().is_none_or(|known| known.record != next);
                    if is_first && self.line.is_one_step() {
                        return Ok(Added::New(name));
                    }
                    let is_ours = is_first || next.lineage == item.lineage;
                    let known = Seen::new(next, Some(revision), Anchor { now, asked: self.clock().now() });
                    return self.stands(&name, &known, if is_ours { Added::New } else { Added::Duplicate }).await;
                }
                Ok(Swap::Mismatch) => {}
                Err(error) if error.kind() == Kind::Indeterminate => unanswered = Some(unanswered.unwrap_or(error)),
                Err(error) => return Err(unanswered.unwrap_or(error)),
            }
            there = match self.look(&name).await {
                Ok(found) => found,
                // Whether it was added is still unknown: saying "unavailable" would deny it.
                Err(error) => return Err(unanswered.unwrap_or(error)),
            };
        }
        Err(unanswered.unwrap_or_else(|| {
            Error::new(Kind::Contended, format!("item `{name}` keeps changing while it is added; try again"))
        }))
    }

    /// Sees that an item which is stored stands in line: whoever added it may have died before that.
    async fn stands(&self, name: &ItemName, known: &Seen, added: fn(ItemName) -> Added) -> Result<Added> {
        let place = self.line.place(name, &known.record);
        if known.record.is_open()
            && let Err(error) = self.line.enter(&place, known).await
        {
            let message = format!(
                "item `{name}` was added, but could not be put in line; workers find it within 10 minutes, and `leasehold queue \
                 janitor {}` at once",
                self.name
            );
            return Err(Error::new(Kind::Indeterminate, message).with_source(error));
        }
        Ok(added(name.clone()))
    }

    /// Refuses to go on in a namespace that is on its way to another store, or has gone there, or in which another store's
    /// records arrive. A migration is not in its own way.
    pub(super) async fn check_migration(&self) -> Result<()> {
        let what = format!("queue `{}`", self.name);
        migration::look(self.store().as_ref()).await?.check_for(&what, self.migration)
    }

    /// Looks at the namespace's mark again after items were added: either the migration sees them, or this look sees the
    /// migration. Those that it has seen go along and count; the others are taken back, and then nothing was added.
    pub(super) async fn confirm(&self, added: &mut Vec<Added>) -> Result<()> {
        let Err(refused) = self.check_migration().await else { return Ok(()) };
        let (mut gone, all) = (false, std::mem::take(added));
        for one in all {
            if let Added::New(name) = &one {
                match self.take_back(name).await {
                    Ok(TakenBack::Gone) => {
                        gone = true;
                        continue;
                    }
                    Ok(TakenBack::GoesAlong) => {}
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

    /// Erases an item that was just added, unless a migration has it on its way or somebody was at it.
    async fn take_back(&self, name: &ItemName) -> Result<TakenBack> {
        for _ in 0..MAX_ATTEMPTS {
            let Some(known) = self.look(name).await? else { return Ok(TakenBack::Gone) };
            if known.record.relocation.is_some() || known.record.state != State::Ready {
                return Ok(TakenBack::GoesAlong);
            }
            let Some(revision) = known.revision.as_ref().filter(|_| known.record.history.is_empty()) else {
                // It goes on from the epochs of an earlier one, which must not be forgotten.
                break;
            };
            if let Swap::Done { .. } = self.store().erase(&name.key()?, revision).await? {
                self.line.leave(&self.line.place(name, &known.record), None).await?;
                return Ok(TakenBack::Gone);
            }
        }
        Err(Error::new(Kind::Contended, format!("item `{name}` keeps changing")))
    }
}

/// What became of an item that was added while its namespace was moved.
enum TakenBack {
    Gone,
    /// The migration takes it to the new store, or leaves it here if it is given up.
    GoesAlong,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{Attempts, NewItem, Payload, Priority};
    use leasehold_core::item::protocol::Order;
    use leasehold_core::lease::protocol::Holder;
    use leasehold_core::migration::Migration;
    use leasehold_core::relocation::Step;
    use leasehold_core::{Lineage, MemoryStore, Nonce, Timestamp};
    use std::sync::Arc;

    /// An item that was written after the first look at the namespace's mark, and before the migration's mark.
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
