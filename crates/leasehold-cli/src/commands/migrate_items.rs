//! The items of queues, when everything moves to another store.
//!
//! Promise: an item that can still be claimed is cancelled in the old store before it is taken in by the new one, with a
//! higher epoch, so no two workers have it under epochs that count; broken off anywhere, it is found again by the order's
//! reason. What is finished goes along as it is. Places in line are made anew. Non-promise: what is added to the old
//! store after its queue was moved stays there: point its producers to the new one first.

use leasehold::store::Store;
use leasehold::{Coordinator, Error, Kind, LeaseName, Result, Shelf, Who, Why};
use leasehold_work::queue::protocol::Order;
use leasehold_work::queue::{Item, ItemName, Queue, QueueName, State, What};
use std::collections::BTreeSet;
use std::sync::Arc;

const PAGE: usize = 200;

/// What there is to move.
#[derive(Default)]
pub struct Items {
    /// Every item.
    pub all: Vec<ItemName>,
    /// Those that somebody is at.
    pub claimed: Vec<ItemName>,
    /// Those that are not finished.
    pub open: Vec<ItemName>,
}

impl Items {
    /// Looks at every record; one that cannot be read stops everything before anything is changed.
    pub async fn read(store: &Arc<dyn Store>) -> Result<Self> {
        let (mut items, mut after) = (Items::default(), None);
        loop {
            let page = store.list(Shelf::Item, after.as_ref(), PAGE).await?;
            for (record, value) in &page.entries {
                let name = ItemName::from_record(record).ok_or_else(|| stray(record))?;
                let item = Item::decode(&value.bytes, &name.to_string())?;
                if item.tenure().is_some_and(|t| page.now < t.deadline) {
                    items.claimed.push(name.clone());
                }
                if item.is_open() {
                    items.open.push(name.clone());
                }
                items.all.push(name);
            }
            after = page.entries.last().map(|(name, _)| name.clone());
            if !page.more || after.is_none() {
                return Ok(items);
            }
        }
    }

    /// Moves every item; gives how many the new store took in.
    pub async fn carry(from: &Coordinator, to: &Coordinator, by: &Who, gone: &Why) -> Result<usize> {
        let queues: BTreeSet<QueueName> =
            Items::read(from.store()).await?.all.into_iter().map(|name| name.queue).collect();
        let mut moved = 0;
        for name in queues {
            let old = Queue::with_clock(from.store().clone(), name.clone(), from.clock().clone());
            let new = Queue::with_clock(to.store().clone(), name, to.clock().clone());
            // What a completion has yet to add is added there, and moves with the rest.
            old.clean().await?;
            moved += carry_queue(&old, &new, by, gone).await?;
            // Whatever was taken in and stands in no line, because this was broken off before.
            new.clean().await?;
        }
        Ok(moved)
    }
}

async fn carry_queue(old: &Queue, new: &Queue, by: &Who, gone: &Why) -> Result<usize> {
    let (mut moved, mut after) = (0, None);
    loop {
        let page = old.list(after.as_ref(), PAGE).await?;
        for (name, item) in page.entries {
            let mut item = item?;
            if item.is_open() {
                item = old.operate(&name.id, by.clone(), gone.clone(), Order::Cancel).await?.0;
            }
            if is_moved(&item, gone) {
                item.state = State::Ready;
                item.turn = item.epoch;
            }
            moved += usize::from(new.take_in(&name.id, &item).await?);
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(moved),
        }
    }
}

/// Whether it was cancelled by a migration, this one or one that was broken off.
fn is_moved(item: &Item, gone: &Why) -> bool {
    let last = item.history.last().filter(|event| event.what == What::Cancelled);
    matches!(item.state, State::Cancelled { .. })
        && last.and_then(|event| event.why.as_ref()).is_some_and(|why| why.as_str() == gone.as_str())
}

fn stray(record: &LeaseName) -> Error {
    Error::new(Kind::Corrupt, format!("`{record}` is not the name of a queue's item; it was left as it is"))
}
