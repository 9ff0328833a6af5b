//! The items of queues, when everything moves to another store.
//!
//! Promise: an item is marked as moving in the old store before it is copied, and its copy is claimed by nobody before the
//! old one is *moved*; so no two workers have it under epochs that count, wherever the migration is broken off. Finished
//! items and what is left of purged keys go along. Positions in line are made again. Non-promise: what is added to the old store
//! after that stays there, and its producer gets an error.

use super::{HeldUp, MAX_ROUNDS, Move, WAY_OUT, restless};
use leasehold_core::relocation::Step;
use leasehold_core::store::{Range, Store};
use leasehold_core::{Coordinator, Error, Kind, LeaseName, Result, Shelf};
use leasehold_work::queue::protocol::Order;
use leasehold_work::queue::{Item, ItemName, Queue, QueueName};
use std::collections::BTreeSet;
use std::sync::Arc;

const PAGE: usize = 200;

/// What there is to move.
#[derive(Default)]
pub struct Items {
    /// Every item, as it was seen.
    pub all: Vec<(ItemName, Item)>,
    /// Those that somebody is at.
    pub claimed: Vec<ItemName>,
}

impl Items {
    /// Looks at every record; one that cannot be read stops everything before anything is changed.
    pub async fn read(store: &Arc<dyn Store>) -> Result<Self> {
        let (mut items, mut after) = (Items::default(), None);
        loop {
            let page = store.list(Shelf::Item, Range::new(after.as_ref(), PAGE)).await?;
            for (record, value) in &page.entries {
                let name = ItemName::from_record(record).ok_or_else(|| stray(record))?;
                let item = Item::decode(&value.bytes, &name.to_string())?;
                if item.tenure().is_some_and(|t| page.now < t.deadline) {
                    items.claimed.push(name.clone());
                }
                items.all.push((name, item));
            }
            after = page.entries.last().map(|(name, _)| name.clone());
            if !page.more || after.is_none() {
                return Ok(items);
            }
        }
    }

    /// Marks every item of the old store as moving; what is claimed if that is in the way.
    pub(super) async fn leave(&self, work: &Move) -> Result<Option<HeldUp>> {
        // What a completion has yet to add is added there, and moves with the rest.
        for name in queues(work.from.store()).await? {
            clean(&queue(work, &work.from, name)).await?;
        }
        let step = Step::Leave { to: work.migration.to.clone() };
        // What came up just before the namespace's mark is found by looking again.
        for _ in 0..MAX_ROUNDS {
            let all = Items::read(work.from.store()).await?.all;
            let mut unmarked = all.iter().filter(|(_, item)| !is_of(work, item)).peekable();
            if unmarked.peek().is_none() {
                return Ok(None);
            }
            for (name, _) in unmarked {
                match order(work, &work.from, name, &step).await {
                    Err(error) if error.kind() == Kind::Contended => {
                        return Ok(Some(HeldUp { leases: 0, items: 1, names: vec![name.to_string()] }));
                    }
                    // Its producer has taken it back.
                    Err(error) if error.kind() == Kind::Invalid => {}
                    other => other?,
                }
                work.course.count();
            }
        }
        Err(restless("items"))
    }

    /// Copies every item that is marked. One that was added after the mark is not: its producer takes it back.
    pub(super) async fn arrive(&self, work: &Move) -> Result<()> {
        for (name, item) in Items::read(work.from.store()).await?.all.iter().filter(|(_, item)| is_of(work, item)) {
            let (migration, new) = (&work.migration, queue(work, &work.to, name.queue.clone()));
            new.take_in(&name.id, item, migration.number, &migration.from, (&migration.by, &work.why)).await?;
            work.course.count();
        }
        Ok(())
    }

    /// Makes a step on every item of this migration in a store; how many there are.
    pub(super) async fn step(work: &Move, store: &Coordinator, step: &Step) -> Result<usize> {
        let mut count = 0;
        for (name, item) in Items::read(store.store()).await?.all {
            if is_of(work, &item) {
                order(work, store, &name, step).await?;
                count += 1;
                work.course.count();
            }
        }
        for name in queues(store.store()).await? {
            let queue = queue(work, store, name);
            // Places in line that a store makes in a step of their own.
            clean(&queue).await?;
            if *step == Step::Settle {
                queue.announce().await;
            }
        }
        Ok(count)
    }
}

impl Move {
    /// Refuses items of the new store that are other ones than those of the same name here, before anything is changed.
    pub(super) async fn refuse_items(&self, items: &Items) -> Result<()> {
        for (name, item) in items.all.iter().filter(|(_, item)| !is_of(self, item)) {
            let Some(value) = self.to.store().read(&name.key()?).await?.value else { continue };
            let there = Item::decode(&value.bytes, &name.to_string())?;
            let comes_home = there.relocation.is_some() && there.lineage == item.lineage && there.epoch <= item.epoch;
            if !comes_home {
                let message =
                    format!("queue item `{name}` is in TO already and is another one; nothing changed: {WAY_OUT}");
                return Err(Error::new(Kind::Unsupported, message));
            }
        }
        Ok(())
    }
}

async fn order(work: &Move, store: &Coordinator, name: &ItemName, step: &Step) -> Result<()> {
    let order = Order::Relocate { migration: work.migration.number, step: step.clone(), holder: work.holder };
    let queue = queue(work, store, name.queue.clone());
    queue.operate(&name.id, work.migration.by.clone(), work.why.clone(), None, order).await.map(drop)
}

/// A queue that this migration may work on while nobody else may.
fn queue(work: &Move, store: &Coordinator, name: QueueName) -> Queue {
    Queue::with_clock(store.store().clone(), name, store.clock().clone()).under_migration(work.migration.number)
}

/// Whether this migration has marked it.
fn is_of(work: &Move, item: &Item) -> bool {
    item.relocation.as_ref().is_some_and(|state| state.migration() == work.migration.number)
}

/// Finishes what dead workers left of every item of a queue: the migration does not come back for it.
async fn clean(queue: &Queue) -> Result<()> {
    queue.clean().await?.troubles.into_iter().next().map_or(Ok(()), Err)
}

async fn queues(store: &Arc<dyn Store>) -> Result<BTreeSet<QueueName>> {
    Ok(Items::read(store).await?.all.into_iter().map(|(name, _)| name.queue).collect())
}

fn stray(record: &LeaseName) -> Error {
    Error::new(Kind::Corrupt, format!("`{record}` is not the name of a queue's item; it was left as it is"))
}
