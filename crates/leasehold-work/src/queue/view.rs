//! A worker's view of the line: the entries that it has listed, and how far it keeps away from other workers.
//!
//! Promise: a lone worker claims from the very front, in order, and lists again before each claim. A worker that loses
//! a race for an item starts somewhere else: further away the more often that happens, and closer again with each
//! claim. Non-promise: entries may be stale; only the claim decides.

use super::claimer::{Claimer, POLL_WITH_HINTS};
use super::line::{Front, Listed};
use leasehold_core::clock::Moment;
use leasehold_core::item::name::{LinePosition, Priority, Section};
use leasehold_core::item::record::SKEW;
use leasehold_core::{Anchor, Jitter, Nonce, Result};
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

/// How many entries one listing reads: far from the front, at first, usually, and at most.
const SEGMENT: usize = 8;
const FIRST_BATCH: usize = 16;
const BATCH: usize = 64;
const MAX_BATCH: usize = 512;
/// The most that the workers of a queue spread out, in entries: within one listing, and beyond it.
const MAX_SPREAD: usize = 64;
const MAX_FAR_SPREAD: usize = 1024;
/// How many lost races are remembered.
const MAX_TAKEN: usize = 1024;
/// How many claimed or delayed items one listing reads, at first.
const ASIDE_BATCH: usize = 4;
/// The longest time between listings of claimed items: claims may be shorter than those seen.
const ASIDE: Duration = Duration::from_secs(1);
/// The longest time between listings of delayed items: new ones may be due sooner than those seen.
const LATER: Duration = Duration::from_secs(1);
/// How many entries of items that others work on are skipped to find the first free one.
const PEEKED: usize = 16;

/// What a worker has seen of the line.
#[derive(Debug)]
pub(super) struct View {
    pub(super) candidates: VecDeque<Listed>,
    pub(super) anchor: Option<Anchor>,
    /// Positions of items that others work on, and until when.
    pub(super) busy: HashMap<LinePosition, Moment>,
    /// Positions of items that others claimed, or that changed, after they were listed.
    taken: HashSet<LinePosition>,
    spread: usize,
    /// The length of the line, as far as known: spreading further finds nothing.
    reach: usize,
    batch: usize,
    /// When to list claimed items next, and delayed ones.
    aside: Moment,
    later: Moment,
    /// Whether some delayed items are due now, and perhaps not claimed yet.
    has_come: bool,
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
            later: now,
            has_come: false,
            jitter: Jitter::new(Nonce::random()),
        }
    }

    /// Removes and returns the next candidate.
    pub(super) fn next(&mut self, is_one_step: bool) -> Option<Listed> {
        // Where claimed items keep their entries, free ones may be anywhere among them.
        let among = if is_one_step { 1 } else { self.spread.min(self.candidates.len()).max(1) };
        let at = self.below(among);
        self.candidates.remove(at)
    }

    /// Called when a claim succeeded.
    pub(super) fn claimed(&mut self, is_one_step: bool) {
        let slower = self.spread * 15 / 16;
        self.spread = if is_one_step { slower } else { self.spread / 2 }.max(1);
    }

    /// Called when another worker was faster.
    pub(super) fn lost_race(&mut self, position: LinePosition, is_one_step: bool) {
        self.taken.insert(position);
        if !is_one_step {
            self.spread = (self.spread * 2).min(MAX_SPREAD);
            return;
        }
        self.spread = (self.spread * 8).min(self.reach);
        // That worker began before us, and will have claimed the next items by the time we reach them.
        self.candidates.clear();
    }

    /// Starts somewhere else among the candidates.
    fn step_aside(&mut self) {
        let by = self.below(self.spread.min(self.candidates.len()).max(1));
        self.candidates.rotate_left(by);
    }

    fn below(&mut self, bound: usize) -> usize {
        self.jitter.below(bound as u64) as usize
    }

    /// Takes listed entries as candidates, up to the first that is not due yet, which is returned.
    fn take_in(&mut self, front: Front) -> Option<Listed> {
        for mut listed in front.line {
            if matches!(listed.position.section, Section::Later(_)) && listed.position.at > front.now {
                return Some(listed);
            }
            listed.is_suspect = self.taken.contains(&listed.position);
            if !self.busy.contains_key(&listed.position) {
                self.candidates.push_back(listed);
            }
        }
        None
    }
}

impl Claimer {
    /// Looks at the front of the line. Returns when the next item is due, if none is now.
    pub(super) async fn look(&mut self) -> Result<Option<Moment>> {
        let asked = self.queue.clock().now();
        self.view.candidates.clear();
        self.view.busy.retain(|_, until| *until > asked);
        if self.view.taken.len() > MAX_TAKEN {
            self.view.taken.clear();
        }
        let is_one_step = self.queue.line.is_one_step();
        let mut next_due = asked + POLL_WITH_HINTS;
        if is_one_step {
            if asked >= self.view.aside {
                self.look_aside().await?;
            }
            next_due = next_due.min(self.view.aside);
        }
        if asked >= self.view.later || self.view.has_come {
            self.look_later().await?;
        }
        if !(is_one_step && self.look_far().await?) {
            self.look_ahead().await?;
        }
        if self.view.candidates.is_empty() {
            return Ok(Some(next_due.min(self.view.later)));
        }
        self.view.candidates.make_contiguous().sort_by(|a, b| a.position.rank().cmp(&b.position.rank()));
        if self.view.spread > 1 && is_one_step {
            self.view.step_aside();
        }
        Ok(None)
    }

    /// Records the store's time, and detects that it was set back.
    fn saw(&mut self, anchor: Anchor) {
        if self.view.anchor.is_some_and(|before| before.now > anchor.now.plus(SKEW)) {
            self.sweep.restart();
        }
        self.view.anchor = Some(anchor);
    }

    /// Whether something more urgent than the next candidate has come: one
    /// short listing. A worker that keeps away from others does not check.
    pub(super) async fn is_overtaken(&mut self) -> Result<bool> {
        let Some(next) = self.view.candidates.front().filter(|_| self.view.spread == 1) else { return Ok(false) };
        if self.queue.clock().now() >= self.view.later {
            return Ok(true);
        }
        let limit = 1 + self.view.busy.len().min(PEEKED);
        let front = self.queue.line.front(Section::Waiting(Priority::HIGHEST), None, 0, limit).await?;
        let first = front.line.iter().find(|listed| !self.view.busy.contains_key(&listed.position));
        Ok(first.is_some_and(|first| first.position.rank() < next.position.rank()))
    }

    /// Lists the line from the very front, until it finds something.
    async fn look_ahead(&mut self) -> Result<()> {
        let mut limit = std::mem::replace(&mut self.view.batch, BATCH);
        let mut after = None;
        loop {
            let asked = self.queue.clock().now();
            let front = self.queue.line.front(Section::Waiting(Priority::HIGHEST), after.as_ref(), 0, limit).await?;
            self.saw(Anchor { now: front.now, asked });
            let is_all = front.is_all;
            after.clone_from(&front.last);
            self.view.take_in(front);
            if !self.view.candidates.is_empty() || is_all || after.is_none() {
                return Ok(());
            }
            limit = (limit * 2).min(MAX_BATCH);
        }
    }

    /// Lists delayed items, and takes those that are due.
    async fn look_later(&mut self) -> Result<()> {
        let (mut after, mut limit) = (None, ASIDE_BATCH);
        loop {
            let asked = self.queue.clock().now();
            let mut front = self.queue.line.front(Section::Later(Priority::HIGHEST), after.as_ref(), 0, limit).await?;
            let (now, listed) = (front.now, front.line.len());
            self.saw(Anchor { now, asked });
            after.clone_from(&front.last);
            front.line.retain(|listed| matches!(listed.position.section, Section::Later(_)));
            let is_all = front.is_all || front.line.len() < listed || after.is_none();
            let first = self.view.take_in(front);
            let wait = first.as_ref().map_or(LATER, |first| first.position.at.saturating_since(now).min(LATER));
            self.view.later = asked + wait;
            if is_all || first.is_some() || self.view.candidates.len() >= MAX_BATCH {
                self.view.has_come = !self.view.candidates.is_empty();
                return Ok(());
            }
            limit = (limit * 2).min(MAX_BATCH);
        }
    }

    /// Lists entries some way behind the front, if other workers are there. Returns whether it found any.
    async fn look_far(&mut self) -> Result<bool> {
        let skip = self.view.below(self.view.spread);
        if skip == 0 {
            return Ok(false);
        }
        let asked = self.queue.clock().now();
        let front = self.queue.line.front(Section::Waiting(Priority::HIGHEST), None, skip, SEGMENT).await?;
        let (listed, known) = (front.line.len(), self.view.candidates.len());
        self.saw(Anchor { now: front.now, asked });
        self.view.take_in(front);
        if listed == 0 {
            // The line is shorter than that.
            self.view.reach = skip;
            self.view.spread = self.view.spread.min(skip);
            return Ok(false);
        }
        self.view.reach = (self.view.reach * 2).min(MAX_FAR_SPREAD);
        Ok(self.view.candidates.len() > known)
    }

    /// Lists claimed items, and puts those with expired claims back in line.
    async fn look_aside(&mut self) -> Result<()> {
        let mut after = None;
        loop {
            let asked = self.queue.clock().now();
            let Front { line, last, is_all, now } =
                self.queue.line.front(Section::Aside, after.as_ref(), 0, ASIDE_BATCH).await?;
            after = last;
            for listed in line {
                if listed.position.section != Section::Aside {
                    self.view.aside = asked + ASIDE;
                    return Ok(());
                }
                if listed.position.at > now {
                    self.view.aside = asked + listed.position.at.saturating_since(now).min(ASIDE);
                    return Ok(());
                }
                if !self.view.busy.contains_key(&listed.position) {
                    let position = listed.position.clone();
                    if let Err(error) = self.requeue_expired(listed).await {
                        self.set_aside(position, error).await?;
                    }
                }
            }
            if is_all || after.is_none() {
                self.view.aside = asked + ASIDE;
                return Ok(());
            }
        }
    }

    async fn requeue_expired(&mut self, listed: Listed) -> Result<()> {
        let name = listed.position.item.clone();
        let tag = Some(listed.tag().clone());
        match self.queue.look(&name).await? {
            None => self.queue.line.leave(&listed.position, tag).await,
            Some(known) if known.has_run_out() => self.queue.reap_known(&name, known).await.map(|_| ()),
            Some(known) => self.queue.repair_entry(&name, &known, listed.position, tag).await,
        }
    }
}
