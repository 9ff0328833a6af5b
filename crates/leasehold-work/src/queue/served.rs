//! What a server does with a queue for a client that must not have the store's password.
//!
//! Promise: each request is decided on the stored item, and only if it still has the revision
//! that the client has seen. What follows (its position in line, follow-ups, waking workers)
//! is done here, because the client cannot do it. `None` means that nothing was changed: the
//! client reads the item and finds out why. Non-promise: no authorisation is checked here.

use super::apply::{Change, ItemRow, OptionalRow, OptionalSnapshot};
use super::grant::ItemSnapshot;
use super::janitor::MIN_PURGE_AGE;
use super::queue::{Added, Queue};
use leasehold_core::cell::{Decision, Protocol, Row};
use leasehold_core::item::name::{ItemName, Section};
use leasehold_core::item::protocol::Request;
use leasehold_core::item::record::{Item, State};
use leasehold_core::store::{Swap, Verb};
use leasehold_core::{Error, Kind, Result, Revision};
use std::collections::HashSet;
use std::time::Duration;

/// How long after it was added an item may be taken back. Later it is cancelled, which its history shows.
const TAKEN_BACK_WITHIN: Duration = Duration::from_secs(60);
/// How often a claim is decided if others write in between: the same claim
/// delivered twice, or its worker's first renewal.
const ROUNDS: usize = 3;
/// How much of a line is searched for entries to be repaired, and how much of it at once. Workers look no further.
const MAX_LOOKED_AT: usize = 2048;
const PAGE: usize = 256;

impl Queue {
    /// Carries out a request on an item.
    ///
    /// A claim that the network delivers twice finds its own nonce the second time, and gets the same answer as the
    /// first. Its worker may get either answer, and would not look again at an item that another worker seems to have.
    pub async fn carry_out(&self, name: &ItemName, request: &Request, expected: &Revision) -> Result<Option<Swap>> {
        let is_claim = matches!(request, Request::Claim { .. });
        for _ in 0..ROUNDS {
            let Some(seen) = self.look(name).await? else { return Ok(None) };
            let is_expected = seen.revision.as_ref() == Some(expected);
            let next = match request.decide(&seen.record, seen.anchor.now) {
                Decision::Write(next) if is_expected => *next,
                // Written once more: being visible does not mean that it is durable.
                Decision::AlreadyApplied if is_expected || is_claim => seen.record.clone(),
                _ => return Ok(None),
            };
            let mut row = ItemRow { queue: self, name, verb: Verb::Item(request) };
            if let Some(written) = row.write(&seen, next, self.clock().now()).await? {
                self.follow(name, &seen, &written).await;
                return Ok(done(&written));
            }
            // Perhaps the other delivery of the same claim was faster.
            if !is_claim {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Writes an item again unchanged.
    pub async fn confirm_item(&self, name: &ItemName, expected: &Revision) -> Result<Option<Swap>> {
        let Some(seen) = self.seen_at(name, expected).await? else { return Ok(None) };
        let mut row = ItemRow { queue: self, name, verb: Verb::Confirm };
        let written = row.write(&seen, seen.record.clone(), self.clock().now()).await?;
        Ok(written.as_ref().and_then(done))
    }

    /// Adds an item if it does not exist, or only as a tombstone.
    pub async fn carry_out_add(
        &self,
        name: &ItemName,
        item: &Item,
        expected: Option<&Revision>,
    ) -> Result<Option<Swap>> {
        self.check_migration().await?;
        let Some(written) = self.change_at(name, &Change::Add(item), expected).await? else {
            // The client's next read shows the item; returning this failure would claim that nothing was added.
            let _ = self.put_in_line(name).await;
            return Ok(None);
        };
        let OptionalSnapshot { record: Some(record), revision: Some(revision), anchor } = written else {
            return Ok(None);
        };
        let answer = Swap::Done { revision: revision.clone(), now: anchor.now };
        let known = ItemSnapshot::new(record, Some(revision), anchor);
        if !self.line.is_one_step() {
            self.ensure_in_line(name, &known, Added::New).await?;
        }
        self.line.wake_workers().await;
        self.confirm(&mut vec![Added::New(name.clone())]).await?;
        Ok(Some(answer))
    }

    /// Ensures that an item which was added before is in line: the server that
    /// added it may have died before that, and the client cannot do it.
    async fn put_in_line(&self, name: &ItemName) -> Result<()> {
        if !self.line.is_one_step()
            && let Some(known) = self.look(name).await?
            && known.record.state == State::Ready
            && self.enter_if_missing(name, &known).await?
        {
            self.line.wake_workers().await;
        }
        Ok(())
    }

    /// Repairs the entries of these items, and removes those that their items have left, because a client that finds
    /// one cannot. Looks at as much of the line as workers do.
    pub async fn repair_line(&self, items: &HashSet<ItemName>) -> Result<()> {
        let (mut after, mut looked_at) = (None, 0);
        while looked_at < MAX_LOOKED_AT {
            let front = self.line.front(Section::Aside, after.as_ref(), 0, PAGE).await?;
            looked_at += PAGE;
            for listed in front.line.into_iter().filter(|listed| items.contains(&listed.position.item)) {
                let (name, tag) = (listed.position.item.clone(), Some(listed.tag().clone()));
                match self.look(&name).await? {
                    None => self.line.leave(&listed.position, tag).await?,
                    Some(known) => self.repair_entry(&name, &known, listed.position, tag).await?,
                }
            }
            match front.last.filter(|_| !front.is_all) {
                Some(last) => after = Some(last),
                None => break,
            }
        }
        Ok(())
    }

    /// Takes back an item that was just added.
    pub async fn carry_out_take_back(&self, name: &ItemName, expected: &Revision) -> Result<Option<Swap>> {
        let Some(before) = self.look(name).await? else { return Ok(None) };
        if before.anchor.now > before.record.added.plus(TAKEN_BACK_WITHIN) {
            let message = format!("item `{name}` was added too long ago to be taken back without a trace; cancel it");
            return Err(Error::new(Kind::Invalid, message));
        }
        let Some(gone) = self.change_at(name, &Change::TakeBack, Some(expected)).await? else { return Ok(None) };
        let _ = self.line.leave(&self.line.position(name, &before.record), None).await;
        Ok(gone.revision.map(|revision| Swap::Done { revision, now: gone.anchor.now }))
    }

    /// Removes an item that was finished long enough ago.
    pub async fn carry_out_purge(&self, name: &ItemName, expected: &Revision) -> Result<Option<Swap>> {
        let Some(seen) = self.seen_at(name, expected).await? else { return Ok(None) };
        let now = seen.anchor.now;
        let is_old = seen.record.state.finished_at().is_some_and(|at| now >= at.plus(MIN_PURGE_AGE));
        let is_gone = is_old && self.erase(name, &seen).await?;
        Ok(is_gone.then(|| Swap::Done { revision: expected.clone(), now }))
    }

    async fn seen_at(&self, name: &ItemName, expected: &Revision) -> Result<Option<ItemSnapshot>> {
        Ok(self.look(name).await?.filter(|seen| seen.revision.as_ref() == Some(expected)))
    }

    async fn change_at(
        &self,
        name: &ItemName,
        change: &Change<'_>,
        expected: Option<&Revision>,
    ) -> Result<Option<OptionalSnapshot>> {
        let mut row: OptionalRow<'_> = self.optional_row(name, change);
        let asked = self.clock().now();
        let Some(seen) = row.read(asked).await?.filter(|seen| seen.revision.as_ref() == expected) else {
            return Ok(None);
        };
        let next = match change.decide(&seen.record, seen.anchor.now) {
            Decision::Write(next) => *next,
            Decision::AlreadyApplied => seen.record.clone(),
            Decision::Refuse(_) => return Ok(None),
        };
        row.write(&seen, next, asked).await
    }

    /// The consequences of an item's change. The change counts; what cannot be
    /// done now is found by a worker or a janitor.
    async fn follow(&self, name: &ItemName, before: &ItemSnapshot, written: &ItemSnapshot) {
        let was = self.line.position(name, &before.record);
        if written.record.outbox.is_empty() {
            let _ = self.update_line(name, written, was, None).await;
        } else if self.settle(name, written).await.is_ok() {
            let _ = self.line.leave(&was, None).await;
        }
    }
}

fn done(written: &ItemSnapshot) -> Option<Swap> {
    written.revision.clone().map(|revision| Swap::Done { revision, now: written.anchor.now })
}
