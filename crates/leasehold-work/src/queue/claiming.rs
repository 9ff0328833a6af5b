//! Claiming the next item: "acquire any of these", from the front of the line.
//!
//! Promise: a lone worker claims strictly in order; several spread out over the front of the line when they get in each
//! other's way, and each takes its share of the janitor's work: what ran out is claimed again, what is stale is taken out
//! of the line, what a dead worker left undone is done. Claiming costs one swap, and one listing for a batch, however
//! long the line is. Non-promise: with several workers the order holds within a batch only, and no two batches are in order.

use super::apply::{Applied, Copy};
use super::desk::Queue;
use super::grant::{ItemGrant, Known};
use super::janitor::Sweep;
use super::line::Standing;
use super::looking::View;
use super::protocol::{Refusal, Request};
use leasehold::clock::Moment;
use leasehold::store::{Watch, Watching};
use leasehold::{Error, HolderId, Kind, Label, Result, Ttl};
use std::time::Duration;

/// How long a batch is worked off before the line is looked at again: something more urgent may have come.
const FRESH: Duration = Duration::from_secs(1);
/// How often an idle worker looks where the store cannot push, and where it can: hints may be lost.
const POLL: Duration = Duration::from_secs(1);
pub(super) const POLL_WITH_HINTS: Duration = Duration::from_secs(5);
/// How long an item whose record cannot be read is left alone.
pub(super) const DAMAGED: Duration = Duration::from_secs(60);
/// How often a worker with nothing to do makes sure that the queue was not moved to another store.
const RESIDENCE: Duration = Duration::from_secs(10);
/// How long lies between two looks at least, however often the store hints.
const DEAF: Duration = Duration::from_millis(20);

/// Claims items of one queue, one after the other.
#[derive(Debug)]
pub struct Claimer {
    pub(super) queue: Queue,
    label: Option<Label>,
    ttl: Ttl,
    pub(super) view: View,
    watch: Option<Watch>,
    sweep: Sweep,
    /// When to ask next whether the queue was moved.
    residence: Moment,
    pub(super) damaged: Vec<Error>,
}

/// What a look at the line gave.
#[derive(Debug)]
pub enum Claimed {
    /// An item.
    Item(Box<ItemGrant>),
    /// There is nothing to claim; it is worth looking again at this moment, if nobody says so earlier.
    Nothing {
        /// When.
        look_again: Moment,
    },
}

impl Claimer {
    /// Claims for this long at a time, as a holder of this label.
    pub fn new(queue: Queue, label: Option<Label>, ttl: Ttl) -> Result<Self> {
        queue.check_ttl(ttl)?;
        Ok(Claimer {
            label,
            ttl,
            view: View::new(queue.clock().now()),
            watch: None,
            sweep: Sweep::new(queue.clone()),
            residence: queue.clock().now(),
            damaged: Vec::new(),
            queue,
        })
    }

    /// The queue.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// What was wrong with records that were passed over, since this was last asked.
    pub fn damaged(&mut self) -> Vec<Error> {
        std::mem::take(&mut self.damaged)
    }

    /// Waits for an item. Nothing is claimed when the future is dropped while it waits; what was being claimed runs out
    /// by itself.
    pub async fn next(&mut self) -> Result<ItemGrant> {
        loop {
            match self.claim().await? {
                Claimed::Item(grant) => return Ok(*grant),
                Claimed::Nothing { look_again } => self.rest(look_again).await,
            }
        }
    }

    /// Waits for an item, for this long at most. What is there already is claimed however short that is, and a claim that
    /// was begun is ended. A store that is away in between, or has no room for one more client, is waited for; one that is
    /// away at the first look is an error.
    pub async fn next_within(&mut self, limit: Duration) -> Result<Option<ItemGrant>> {
        let clock = self.queue.clock().clone();
        let until = clock.now() + limit;
        let mut is_first = true;
        loop {
            let look_again = match self.claim().await {
                Ok(Claimed::Item(grant)) => return Ok(Some(*grant)),
                Ok(Claimed::Nothing { look_again }) => look_again,
                Err(error) if clock.now() < until && passes(error.kind(), is_first) => {
                    // Also where a watch is to be set up: that may have to wait for the store too.
                    clock.sleep_until((clock.now() + POLL).min(until)).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            is_first = false;
            if clock.now() >= until {
                return Ok(None);
            }
            self.rest(look_again.min(until)).await;
        }
    }

    /// Until this moment, or until the bell is rung.
    async fn rest(&mut self, look_again: Moment) {
        let clock = self.queue.clock().clone();
        let Some(watch) = &mut self.watch else {
            // What came before the watch was in place hinted nobody: look once more.
            self.watch = Some(self.queue.line.listen().await);
            return;
        };
        let deaf = clock.now() + DEAF;
        tokio::select! {
            () = clock.sleep_until(look_again) => {}
            () = watch.hint() => clock.sleep_until(deaf).await,
        }
    }

    /// Looks at the line, and claims the first item that may be claimed.
    pub async fn claim(&mut self) -> Result<Claimed> {
        loop {
            let now = self.queue.clock().now();
            let fresh = self.view.anchor.is_some_and(|anchor| now < anchor.asked + FRESH);
            if (self.view.candidates.is_empty() || !fresh)
                && let Some(due) = self.look().await?
            {
                self.stay().await?;
                self.sweep.idle().await;
                let poll = match self.queue.store().capabilities().watch {
                    Watching::Hints => POLL_WITH_HINTS,
                    Watching::None => POLL,
                };
                let now = self.queue.clock().now();
                let expiry = self.view.busy.values().min().copied();
                let look_again = due.min(expiry.unwrap_or(due)).min(now + poll).max(now + DEAF);
                return Ok(Claimed::Nothing { look_again });
            }
            let Some(standing) = self.view.next(self.queue.line.is_one_step()) else { continue };
            if let Some(grant) = self.try_claim(standing).await? {
                return Ok(Claimed::Item(Box::new(grant)));
            }
        }
    }

    /// Ends the claiming if the queue was moved: an empty line says nothing about where its items went.
    async fn stay(&mut self) -> Result<()> {
        let now = self.queue.clock().now();
        if now < self.residence {
            return Ok(());
        }
        self.residence = now + RESIDENCE;
        self.queue.check_residence().await
    }

    async fn try_claim(&mut self, standing: Standing) -> Result<Option<ItemGrant>> {
        let name = standing.place.item.clone();
        let holder = HolderId::new(self.label.clone());
        let request = Request::Claim { holder: holder.clone(), ttl: self.ttl };
        let copy = if standing.is_suspect { None } else { self.view.anchor.zip(standing.copy()) };
        let copy = copy.map(|(anchor, (item, revision))| Known { item, revision, anchor });
        let applied = match self.queue.apply_to(&name, &request, copy, Copy::LetGo).await {
            // A damaged record must not hide those behind it.
            Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::Unsupported) => {
                self.pass_over(standing.place, error);
                return Ok(None);
            }
            other => other?,
        };
        let is_one_step = self.queue.line.is_one_step();
        match applied {
            Applied::Yes(known) => {
                self.view.had(is_one_step);
                self.sweep.put_off();
                // Where the item stands now, if that was a place it had left before.
                let entry = (known.item.place(&name) == standing.place).then(|| standing.tag().clone());
                if !is_one_step {
                    // Its entry stays in line while it is worked on.
                    self.view.busy.insert(standing.place, known.anchor.asked + self.ttl.get());
                }
                match self.queue.granted(name, &holder, self.ttl, *known, entry) {
                    // The exchange took longer than the claim lasts: it is as if another had it.
                    Err(error) if error.kind() == Kind::Lost => Ok(None),
                    other => other.map(Some),
                }
            }
            Applied::Overtaken => {
                self.view.missed(standing.place, is_one_step);
                Ok(None)
            }
            Applied::No(Refusal::Busy { .. }, _) if is_one_step && !standing.is_suspect => {
                self.view.missed(standing.place, is_one_step);
                Ok(None)
            }
            Applied::No(Refusal::Busy { until, .. }, known) if !is_one_step => {
                let anchor = known.anchor;
                self.view.busy.insert(standing.place, anchor.asked + until.saturating_since(anchor.now));
                Ok(None)
            }
            Applied::No(Refusal::Exhausted, _) => {
                self.queue.reap(&name).await?;
                Ok(None)
            }
            Applied::No(_, known) => {
                let tag = standing.tag().clone();
                self.queue.mend(&name, &known, standing.place, Some(tag)).await?;
                Ok(None)
            }
            // Purged.
            Applied::Missing => {
                let tag = standing.tag().clone();
                self.queue.line.leave(&standing.place, Some(tag)).await?;
                Ok(None)
            }
        }
    }
}

/// Whether whoever waits looks again.
const fn passes(kind: Kind, is_first: bool) -> bool {
    match kind {
        Kind::Contended => true,
        Kind::Unavailable | Kind::Indeterminate => !is_first,
        _ => false,
    }
}
