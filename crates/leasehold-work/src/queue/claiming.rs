//! Claiming the next item: "acquire any of these", from the front of the line.
//!
//! Promise: a lone worker claims strictly in order; several spread out over the front of the line when they get in each
//! other's way, and each takes its share of the janitor's work: what ran out is claimed again, what is stale is taken out
//! of the line, what a dead worker left undone is done. Claiming costs one swap, and one listing for a batch, however
//! long the line is. Non-promise: with several workers the order holds within a batch only.

use super::desk::{Applied, Queue};
use super::grant::{ItemGrant, Known};
use super::janitor::Sweep;
use super::line::Standing;
use super::name::{Place, Priority};
use super::protocol::{Refusal, Request};
use leasehold::clock::Moment;
use leasehold::store::{Watch, Watching};
use leasehold::{Anchor, Error, HolderId, Jitter, Kind, Label, Nonce, Result, Ttl};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// How many places are looked at to begin with, and at most.
const BATCH: usize = 64;
const MAX_BATCH: usize = 512;
/// How far the workers of a queue spread out at most.
const MAX_SPREAD: usize = 64;
/// How long a batch is worked off before the line is looked at again: something more urgent may have come.
const FRESH: Duration = Duration::from_secs(1);
/// How often an idle worker looks where the store cannot push, and where it can: hints may be lost.
const POLL: Duration = Duration::from_secs(1);
const POLL_WITH_HINTS: Duration = Duration::from_secs(5);
/// How long an item whose record cannot be read is left alone.
const DAMAGED: Duration = Duration::from_secs(60);
/// How long lies between two looks at least, however often the store hints.
const DEAF: Duration = Duration::from_millis(20);

/// Claims items of one queue, one after the other.
#[derive(Debug)]
pub struct Claimer {
    queue: Queue,
    label: Option<Label>,
    ttl: Ttl,
    candidates: VecDeque<Standing>,
    anchor: Option<Anchor>,
    /// Places whose items others are at, and until when.
    busy: HashMap<Place, Moment>,
    spread: usize,
    jitter: Jitter,
    watch: Option<Watch>,
    sweep: Sweep,
    damaged: Vec<Error>,
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
            candidates: VecDeque::new(),
            anchor: None,
            busy: HashMap::new(),
            spread: 1,
            jitter: Jitter::new(Nonce::random()),
            watch: None,
            sweep: Sweep::new(queue.clone()),
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
        let clock = self.queue.clock().clone();
        loop {
            let look_again = match self.claim().await? {
                Claimed::Item(grant) => return Ok(*grant),
                Claimed::Nothing { look_again } => look_again,
            };
            let Some(watch) = &mut self.watch else {
                // What came before the watch was in place hinted nobody: look once more.
                self.watch = Some(self.queue.line.listen().await);
                continue;
            };
            let deaf = clock.now() + DEAF;
            tokio::select! {
                () = clock.sleep_until(look_again) => {}
                () = watch.hint() => clock.sleep_until(deaf).await,
            }
        }
    }

    /// Looks at the line, and claims the first item that may be claimed.
    pub async fn claim(&mut self) -> Result<Claimed> {
        loop {
            let now = self.queue.clock().now();
            let fresh = self.anchor.is_some_and(|anchor| now < anchor.asked + FRESH);
            if (self.candidates.is_empty() || !fresh)
                && let Some(due) = self.refill().await?
            {
                self.sweep.idle().await;
                let poll = match self.queue.store().capabilities().watch {
                    Watching::Hints => POLL_WITH_HINTS,
                    Watching::None => POLL,
                };
                let now = self.queue.clock().now();
                let expiry = self.busy.values().min().copied();
                let look_again = due.min(expiry.unwrap_or(due)).min(now + poll).max(now + DEAF);
                return Ok(Claimed::Nothing { look_again });
            }
            let among = self.spread.min(self.candidates.len()).max(1);
            let at = self.jitter.below(among as u64) as usize;
            let Some(standing) = self.candidates.remove(at) else { continue };
            if let Some(grant) = self.try_claim(standing).await? {
                return Ok(Claimed::Item(Box::new(grant)));
            }
        }
    }

    /// Looks at the front of the line. Gives the moment at which the next item is due, if none is now.
    async fn refill(&mut self) -> Result<Option<Moment>> {
        let clock = self.queue.clock().clone();
        let asked = clock.now();
        self.candidates.clear();
        self.busy.retain(|_, until| *until > asked);
        let mut next_due = asked + POLL_WITH_HINTS;
        let (mut priority, mut after, mut limit) = (Priority::HIGHEST, None, BATCH);
        loop {
            let (line, now) = self.queue.line.front(priority, after.as_ref(), limit).await?;
            let anchor = *self.anchor.insert(Anchor { now, asked });
            let complete = line.len() < limit;
            let mut skip_to = None;
            let last = line.last().map(|standing| standing.place.clone());
            for standing in line {
                if standing.place.due > now {
                    // Those behind it, of the same priority, are due later still.
                    next_due = next_due.min(anchor.asked + standing.place.due.saturating_since(now));
                    skip_to = Some(standing.place.priority.below());
                    break;
                }
                if !self.busy.contains_key(&standing.place) {
                    self.candidates.push_back(standing);
                }
            }
            let exhausted = match (skip_to, last) {
                (Some(Some(lower)), _) => {
                    (priority, after) = (lower, None);
                    false
                }
                (Some(None), _) | (None, None) => true,
                (None, Some(last)) => {
                    after = Some(last.key()?.name);
                    complete
                }
            };
            if !self.candidates.is_empty() {
                return Ok(None);
            }
            if exhausted {
                return Ok(Some(next_due));
            }
            limit = (limit * 2).min(MAX_BATCH);
        }
    }

    async fn try_claim(&mut self, standing: Standing) -> Result<Option<ItemGrant>> {
        let Standing { place, tag, copy } = standing;
        let name = place.item.clone();
        let holder = HolderId::new(self.label.clone());
        let request = Request::Claim { holder: holder.clone(), ttl: self.ttl };
        let copy = self.anchor.and_then(|anchor| copy.map(|(item, revision)| Known { item, revision, anchor }));
        let applied = match self.queue.apply(&name, &request, copy).await {
            // A damaged record must not hide those behind it.
            Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::Unsupported) => {
                self.busy.insert(place, self.queue.clock().now() + DAMAGED);
                self.damaged.push(error);
                return Ok(None);
            }
            other => other?,
        };
        match applied {
            Applied::Yes(known) => {
                self.spread = (self.spread / 2).max(1);
                // Where the item stands now, if that was a place it had left before.
                let entry = (known.item.place(&name) == place).then_some(tag);
                // Its entry stays in line while it is worked on.
                self.busy.insert(place, known.anchor.asked + self.ttl.get());
                match self.queue.granted(name, &holder, self.ttl, *known, entry) {
                    // The exchange took longer than the claim lasts: it is as if another had it.
                    Err(error) if error.kind() == Kind::Lost => Ok(None),
                    other => other.map(Some),
                }
            }
            Applied::No(Refusal::Busy { until, .. }, known) => {
                self.spread = (self.spread * 2).min(MAX_SPREAD);
                let anchor = known.anchor;
                self.busy.insert(place, anchor.asked + until.saturating_since(anchor.now));
                Ok(None)
            }
            Applied::No(Refusal::Exhausted, _) => {
                self.queue.reap(&name).await?;
                Ok(None)
            }
            Applied::No(_, known) => {
                self.queue.mend(&name, &known, place, Some(tag)).await?;
                Ok(None)
            }
            // Purged.
            Applied::Missing => {
                self.queue.line.leave(&place, Some(tag)).await?;
                Ok(None)
            }
        }
    }
}
