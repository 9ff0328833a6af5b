//! A worker's view of the line: what it has seen of the front, and how far it keeps from the others.
//!
//! Promise: a worker that meets nobody looks at the very front, in order. One that finds an item taken from under it
//! begins somewhere else, the further away the more often that happens, and comes closer again with each item it gets.
//! Non-promise: what is seen may be stale; only the claim tells.

use super::claiming::{Claimer, DAMAGED, POLL_WITH_HINTS};
use super::line::{Front, Standing};
use super::name::{Place, Priority, Stand};
use leasehold::clock::Moment;
use leasehold::{Anchor, Error, Jitter, Kind, Nonce, Result};
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

/// How many places are looked at behind the front, at first, where nobody else is, and at most.
const SEGMENT: usize = 8;
const FIRST_BATCH: usize = 16;
const BATCH: usize = 64;
const MAX_BATCH: usize = 512;
/// How far the workers of a queue spread out at most, in places, within one batch and beyond it.
const MAX_SPREAD: usize = 64;
const MAX_FAR_SPREAD: usize = 1024;
/// How many of the items that others took are remembered.
const MAX_TAKEN: usize = 1024;
/// How many of those that stand aside are looked at at once.
const ASIDE_BATCH: usize = 4;
/// How often the items that stand aside are looked at, at least: claims may be shorter than those seen.
const ASIDE: Duration = Duration::from_secs(1);

/// What a worker has seen of the line.
#[derive(Debug)]
pub(super) struct View {
    pub(super) candidates: VecDeque<Standing>,
    pub(super) anchor: Option<Anchor>,
    /// Places whose items others are at, and until when.
    pub(super) busy: HashMap<Place, Moment>,
    /// Places whose items were taken, or changed, while we looked.
    taken: HashSet<Place>,
    spread: usize,
    /// How far it may spread: the line is not longer than that.
    reach: usize,
    batch: usize,
    /// When to look aside next, and when the first of those there is due.
    aside: Moment,
    jitter: Jitter,
}

impl View {
    pub(super) fn new(now: Moment) -> Self {
        View {
            candidates: VecDeque::new(),
            anchor: None,
            busy: HashMap::new(),
            taken: HashSet::new(),
            spread: 1,
            reach: MAX_FAR_SPREAD,
            batch: FIRST_BATCH,
            aside: now,
            jitter: Jitter::new(Nonce::random()),
        }
    }

    /// The next candidate.
    pub(super) fn next(&mut self, is_one_step: bool) -> Option<Standing> {
        // Where what is taken stays in line, the free ones are anywhere among them.
        let among = if is_one_step { 1 } else { self.spread.min(self.candidates.len()).max(1) };
        let at = self.below(among);
        self.candidates.remove(at)
    }

    /// An item was had.
    pub(super) fn had(&mut self, is_one_step: bool) {
        let slower = self.spread * 15 / 16;
        self.spread = if is_one_step { slower } else { self.spread / 2 }.max(1);
    }

    /// Another was faster.
    pub(super) fn missed(&mut self, place: Place, is_one_step: bool) {
        self.taken.insert(place);
        if !is_one_step {
            self.spread = (self.spread * 2).min(MAX_SPREAD);
            return;
        }
        self.spread = (self.spread * 8).min(self.reach);
        // Whoever has it began before us, and has those behind it, too, by the time we come to them.
        self.candidates.clear();
    }

    /// Begins somewhere else among the candidates.
    fn step_aside(&mut self) {
        let by = self.below(self.spread.min(self.candidates.len()).max(1));
        self.candidates.rotate_left(by);
    }

    fn below(&mut self, bound: usize) -> usize {
        self.jitter.below(bound as u64) as usize
    }

    /// Takes what is due as candidates; gives the first that is not.
    fn take_in(&mut self, front: Front) -> Option<Standing> {
        for mut standing in front.line {
            if standing.place.due > front.now {
                // Those behind it, of the same priority, are due later still.
                return Some(standing);
            }
            standing.is_suspect = self.taken.contains(&standing.place);
            if !self.busy.contains_key(&standing.place) {
                self.candidates.push_back(standing);
            }
        }
        None
    }
}

impl Claimer {
    /// Looks at the front of the line. Gives the moment at which the next item is due, if none is now.
    pub(super) async fn look(&mut self) -> Result<Option<Moment>> {
        let asked = self.queue.clock().now();
        self.view.candidates.clear();
        self.view.busy.retain(|_, until| *until > asked);
        if self.view.taken.len() > MAX_TAKEN {
            self.view.taken.clear();
        }
        let mut next_due = asked + POLL_WITH_HINTS;
        if self.queue.line.is_one_step() {
            if asked >= self.view.aside {
                self.look_aside().await?;
            }
            next_due = next_due.min(self.view.aside);
            if self.look_far().await? {
                return Ok(None);
            }
        }
        let next = self.look_ahead(next_due).await?;
        if next.is_none() && self.view.spread > 1 && self.queue.line.is_one_step() {
            self.view.step_aside();
        }
        Ok(next)
    }

    /// Looks at the line from its very front, until something is found.
    async fn look_ahead(&mut self, mut next_due: Moment) -> Result<Option<Moment>> {
        let limit = std::mem::replace(&mut self.view.batch, BATCH);
        let (mut priority, mut after, mut limit) = (Priority::HIGHEST, None, limit);
        loop {
            let asked = self.queue.clock().now();
            let front = self.queue.line.front(Stand::Waiting(priority), after.as_ref(), 0, limit).await?;
            let (now, is_all) = (front.now, front.is_all);
            self.view.anchor = Some(Anchor { now, asked });
            let last = front.line.last().map(|standing| standing.place.clone());
            let later = self.view.take_in(front);
            let skip_to = later.map(|standing| {
                next_due = next_due.min(asked + standing.place.due.saturating_since(now));
                if let Stand::Waiting(priority) = standing.place.stand { priority.below() } else { None }
            });
            let exhausted = match (skip_to, last) {
                (Some(Some(lower)), _) => {
                    (priority, after) = (lower, None);
                    false
                }
                (Some(None), _) | (None, None) => true,
                (None, Some(last)) => {
                    after = Some(last.key()?.name);
                    is_all
                }
            };
            if !self.view.candidates.is_empty() {
                return Ok(None);
            }
            if exhausted {
                return Ok(Some(next_due));
            }
            limit = (limit * 2).min(MAX_BATCH);
        }
    }

    /// Looks somewhere behind the front, if others are there. Gives whether something was found.
    async fn look_far(&mut self) -> Result<bool> {
        let skip = self.view.below(self.view.spread);
        if skip == 0 {
            return Ok(false);
        }
        let asked = self.queue.clock().now();
        let front = self.queue.line.front(Stand::Waiting(Priority::HIGHEST), None, skip, SEGMENT).await?;
        self.view.anchor = Some(Anchor { now: front.now, asked });
        self.view.take_in(front);
        if self.view.candidates.is_empty() {
            // The line is not as long as that.
            self.view.reach = skip;
            self.view.spread = self.view.spread.min(skip);
            return Ok(false);
        }
        self.view.reach = (self.view.reach * 2).min(MAX_FAR_SPREAD);
        Ok(true)
    }

    /// Looks at the items that others are at, and puts those back in line whose claims have run out.
    async fn look_aside(&mut self) -> Result<()> {
        let mut after = None;
        loop {
            let asked = self.queue.clock().now();
            let Front { line, is_all, now } =
                self.queue.line.front(Stand::Aside, after.as_ref(), 0, ASIDE_BATCH).await?;
            after = line.last().map(|standing| standing.place.key()).transpose()?.map(|key| key.name);
            for standing in line {
                if standing.place.stand != Stand::Aside {
                    self.view.aside = asked + ASIDE;
                    return Ok(());
                }
                if standing.place.due > now {
                    self.view.aside = asked + standing.place.due.saturating_since(now).min(ASIDE);
                    return Ok(());
                }
                if !self.view.busy.contains_key(&standing.place) {
                    self.recall(standing).await?;
                }
            }
            if is_all || after.is_none() {
                self.view.aside = asked + ASIDE;
                return Ok(());
            }
        }
    }

    async fn recall(&mut self, standing: Standing) -> Result<()> {
        let name = standing.place.item.clone();
        let known = match self.queue.look(&name).await {
            Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::Unsupported) => {
                self.pass_over(standing.place, error);
                return Ok(());
            }
            known => known?,
        };
        let tag = Some(standing.tag().clone());
        match known {
            None => self.queue.line.leave(&standing.place, tag).await,
            Some(known) if known.has_run_out() => self.queue.reap_known(&name, known).await.map(|_| ()),
            Some(known) => self.queue.mend(&name, &known, standing.place, tag).await,
        }
    }

    /// Leaves a record that cannot be read alone for a while, and keeps what is wrong with it to be told.
    pub(super) fn pass_over(&mut self, place: Place, error: Error) {
        self.view.busy.insert(place, self.queue.clock().now() + DAMAGED);
        self.damaged.push(error);
    }
}
