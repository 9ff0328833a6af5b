//! One request on one item: read, decide, swap, at most so many times; and the first write of an item.
//!
//! Promise: nothing counts unless a swap answered that it is stored. A write without an answer is looked for by its nonce:
//! what is found is confirmed by a new write, what the record proves was not applied is tried again, and what it no longer
//! remembers is *unknown* ([`leasehold_core::item::protocol::fate`]). Non-promise: places in line are hints, and follow later.

use super::grant::Known;
use super::queue::{Added, Queue};
use leasehold_core::item::name::ItemName;
use leasehold_core::item::protocol::{Decision, Refusal, Request, decide, fate};
use leasehold_core::item::record::{Item, State};
use leasehold_core::lease::protocol::Fate;
use leasehold_core::migration;
use leasehold_core::relocation::taken_away;
use leasehold_core::store::Swap;
use leasehold_core::{Anchor, Error, Jitter, Kind, Nonce, Result};
use std::time::Duration;

/// How often a request is decided anew when others keep writing in between.
const MAX_ATTEMPTS: u32 = 40;
/// The longest pause between two attempts.
const MAX_BACKOFF: Duration = Duration::from_millis(64);

/// The outcome of a request.
#[derive(Debug)]
pub(super) enum Applied {
    /// Written now, or found written by this very request.
    Yes(Box<Known>),
    /// Refused.
    No(Refusal, Box<Known>),
    /// Not tried: the item has changed since the copy that it was to be decided on.
    Overtaken,
    /// There is no such item.
    Missing,
}

/// What is to be done if an item has changed since the copy that a request was decided on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Copy {
    /// Read it, and decide again.
    Refresh,
    /// Nothing: there are others.
    LetGo,
}

/// A write that got no answer, and the record that it was based on.
struct Unanswered {
    error: Error,
    base: Known,
}

impl Unanswered {
    fn fate(&self, seen: &Known, request: &Request) -> Fate {
        // Nobody has written since: it was not applied. Should it still arrive, it finds what it expects only if ours has not.
        if seen.revision == self.base.revision { Fate::NotApplied } else { fate(&self.base.item, &seen.item, request) }
    }

    fn forgotten(self, name: &ItemName, seen: &Item) -> Error {
        let (base, now) = (self.base.item.epoch, seen.epoch);
        let message = format!(
            "no answer came, and whether it was applied to item `{name}` is not known: it was asked for at epoch {base}, and the \
             item is at epoch {now} and remembers no further back; look at it before asking again"
        );
        Error::new(Kind::Indeterminate, message).with_source(self.error)
    }
}

impl Queue {
    /// The loop: decide on what is known (or read), swap, and read again when somebody was faster or no answer came.
    pub(super) async fn apply(&self, name: &ItemName, request: &Request, known: Option<Known>) -> Result<Applied> {
        self.apply_to(name, request, known, Copy::Refresh).await
    }

    pub(super) async fn apply_to(
        &self,
        name: &ItemName,
        request: &Request,
        known: Option<Known>,
        copy: Copy,
    ) -> Result<Applied> {
        let grain = self.grain();
        let mut jitter: Option<Jitter> = None;
        let mut unanswered: Option<Unanswered> = None;
        let mut remembered = known;
        for attempt in 0..MAX_ATTEMPTS {
            let from_memory = remembered.is_some();
            let known = match remembered.take() {
                Some(known) => known,
                None => match self.look(name).await {
                    Ok(Some(known)) => known,
                    Ok(None) => return unanswered.map_or(Ok(Applied::Missing), |write| Err(write.error)),
                    // What happened to the earlier swap is still unknown: saying "unavailable" would deny it.
                    Err(error) => return Err(unanswered.map_or(error, |write| write.error)),
                },
            };
            let fate = unanswered.as_ref().map_or(Fate::NotApplied, |write| write.fate(&known, request));
            if let Some(write) = unanswered.take_if(|_| fate == Fate::Unknown) {
                return Err(write.forgotten(name, &known.item));
            }
            let asked = self.clock().now();
            // What was just read is judged by the time it was read at; what is remembered, by how long ago that was. A
            // renewal must not come too late, so for it the latest time counts that it can be.
            let unsure = if let Request::Renew { .. } = request { grain } else { Duration::ZERO };
            let now = if from_memory { known.anchor.at_latest(asked, unsure) } else { known.anchor.now };
            let next = match decide(&known.item, request, now) {
                // It was applied, and is over: once more would be a second time.
                Decision::Write(_) if fate == Fate::Applied => match unanswered {
                    Some(write) => return Err(write.forgotten(name, &known.item)),
                    None => continue,
                },
                Decision::Write(next) => *next,
                // Nothing was to be done, and nothing rests on it.
                Decision::AlreadyApplied if unanswered.is_none() && !rests_on_it(request) => {
                    return Ok(Applied::Yes(Box::new(known)));
                }
                // It is visible; whether it is durable, only a new write's answer can tell.
                Decision::AlreadyApplied => known.item.clone(),
                Decision::Refuse(_) if from_memory => continue,
                Decision::Refuse(Refusal::Stale { .. }) if fate == Fate::Applied => known.item.clone(),
                Decision::Refuse(Refusal::Elsewhere(state)) => {
                    let what = format!("item `{name}`");
                    return Err(match is_a_workers(request) {
                        true => taken_away(&what, &state),
                        false => migration::elsewhere(self.store().as_ref(), &what, &state).await,
                    });
                }
                Decision::Refuse(refusal) => return Ok(Applied::No(refusal, Box::new(known))),
            };
            match self.line.swap(name, Some((&known.item, &known.revision)), &next).await {
                Ok(Swap::Done { revision, now }) => {
                    let known = Known { item: next, revision, anchor: Anchor { now, asked } };
                    return Ok(Applied::Yes(Box::new(known)));
                }
                Ok(Swap::Mismatch) if from_memory && copy == Copy::LetGo => return Ok(Applied::Overtaken),
                Ok(Swap::Mismatch) => {}
                Err(error) if error.kind() == Kind::Indeterminate => {
                    unanswered.get_or_insert(Unanswered { error, base: known });
                }
                Err(error) => return Err(unanswered.map_or(error, |write| write.error)),
            }
            if !from_memory {
                let jitter = jitter.get_or_insert_with(|| Jitter::new(Nonce::random()));
                let bound = Duration::from_millis(1 << attempt.min(6)).min(MAX_BACKOFF);
                let pause = Duration::from_micros(jitter.below(bound.as_micros().max(1) as u64));
                self.clock().sleep_until(self.clock().now() + pause).await;
            }
        }
        Err(unanswered.map(|write| write.error).unwrap_or_else(|| {
            let message = format!("item `{name}` is too busy: {MAX_ATTEMPTS} attempts were overtaken; try again");
            Error::new(Kind::Contended, message)
        }))
    }

    /// Writes a new item unless it is there, and sees that it stands in line.
    pub(super) async fn put(&self, name: ItemName, item: &Item) -> Result<Added> {
        let mut unanswered: Option<Error> = None;
        let mut there: Option<Known> = None;
        for _ in 0..MAX_ATTEMPTS {
            if let Some(state) = there.as_ref().and_then(|known| known.item.relocation.as_ref()) {
                return Err(migration::elsewhere(self.store().as_ref(), &format!("item `{name}`"), state).await);
            }
            let next = match &there {
                None => item.clone(),
                Some(known) if matches!(known.item.state, State::Purged { .. }) => item.after(&known.item),
                // Ours, or added before by somebody else, who perhaps got no answer either. It is visible; whether it is durable,
                // only a new write's answer can tell.
                Some(known) => known.item.clone(),
            };
            let was = there.as_ref().map(|known| (&known.item, &known.revision));
            match self.line.swap(&name, was, &next).await {
                Ok(Swap::Done { revision, now }) => {
                    let is_first = there.as_ref().is_none_or(|known| known.item != next);
                    if is_first && self.line.is_one_step() {
                        return Ok(Added::New(name));
                    }
                    let is_ours = is_first || next.lineage == item.lineage;
                    let known = Known { item: next, revision, anchor: Anchor { now, asked: self.clock().now() } };
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
    async fn stands(&self, name: &ItemName, known: &Known, added: fn(ItemName) -> Added) -> Result<Added> {
        let place = self.line.place(name, &known.item);
        if known.item.is_open()
            && let Err(error) = self.line.enter(&place, &known.revision, &known.item).await
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
            if known.item.relocation.is_some() || known.item.state != State::Ready {
                return Ok(TakenBack::GoesAlong);
            }
            if !known.item.history.is_empty() {
                // It goes on from the epochs of an earlier one, which must not be forgotten.
                break;
            }
            if let Swap::Done { .. } = self.store().erase(&name.key()?, &known.revision).await? {
                self.line.leave(&self.line.place(name, &known.item), None).await?;
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

/// Whether a request is of a worker who holds the item. What left has left without one.
fn is_a_workers(request: &Request) -> bool {
    match request {
        Request::Claim { .. } | Request::Reap | Request::Settle | Request::Operate { .. } => false,
        Request::Renew { .. }
        | Request::Progress { .. }
        | Request::Complete { .. }
        | Request::Fail { .. }
        | Request::Return { .. } => true,
    }
}

/// Whether somebody builds upon the answer that a request was applied before.
fn rests_on_it(request: &Request) -> bool {
    !matches!(request, Request::Reap | Request::Settle)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{Attempts, NewItem, Payload, Priority};
    use leasehold_core::item::protocol::Order;
    use leasehold_core::lease::protocol::Holder;
    use leasehold_core::migration::Migration;
    use leasehold_core::relocation::Step;
    use leasehold_core::{Lineage, MemoryStore, Timestamp};
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
        let line = queue.store().list(leasehold_core::Shelf::Line, None, 10).await.unwrap();
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
