//! The specification: deliberately naive, it keeps a few facts and forgets the rest of the record.

use crate::histories::{Concrete, ConcreteOrder};
use leasehold_core::{Claim, Outcome, SlotState};
use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Write,
    Already,
    No(&'static str),
}

#[derive(Debug, Default)]
pub(crate) struct Spec {
    pub(crate) epoch: u64,
    /// The nonce of whoever holds it, and the deadline.
    pub(crate) holder: Option<(u128, u64)>,
    /// When it was granted.
    pub(crate) since: u64,
    /// When the last run began that is over.
    pub(crate) last_run: Option<u64>,
    /// Who asks to finish, under which epoch, until when.
    pub(crate) drain: Option<(u128, u64, u64)>,
    pub(crate) forgotten: Option<u128>,
    /// Whether anything was ever written.
    pub(crate) is_known: bool,
    /// When the last tenure ended, or an operator moved the epoch; nothing after it was forgotten.
    pub(crate) idle_since: Option<u64>,
    pub(crate) paused: Option<u128>,
    pub(crate) resumed: Option<u128>,
    /// The migration that has it on its way, and whether it is gone.
    pub(crate) leaving: Option<(u128, bool)>,
    /// Slot, state, epoch.
    pub(crate) slot: Option<(u64, SlotState, u64)>,
    /// How often that slot was claimed.
    pub(crate) runs: u32,
    /// The nonces of all transfers; only the last 32 are remembered.
    pub(crate) nonces: Vec<u128>,
    /// Tenures whose holder gave them back.
    pub(crate) released: BTreeMap<(u64, u128), Outcome>,
}

impl Spec {
    pub(crate) fn knows(&self, nonce: u128) -> bool {
        self.nonces.iter().rev().take(32).any(|n| *n == nonce)
    }

    pub(crate) fn live(&self, now: u64) -> Option<u128> {
        self.holder.filter(|(_, deadline)| now < *deadline).map(|(nonce, _)| nonce)
    }

    /// The present tenure is over.
    fn end(&mut self, tried: bool, at: u64) {
        if self.holder.take().is_some() {
            self.idle_since = Some(at);
            if tried {
                self.last_run = Some(self.since);
            }
        }
    }

    fn forget(&mut self, nonce: u128, idle: u64, now: u64) -> Answer {
        use Answer::{Already, No, Write};
        let since = self.holder.map(|(_, deadline)| deadline).or(self.idle_since);
        match self.forgotten {
            Some(old) if old == nonce => Already,
            Some(_) => No("forgotten"),
            None if !self.is_known => No("never held"),
            None if self.live(now).is_some() => No("held"),
            None if self.paused.is_some() => No("paused"),
            None if self.drain.is_some_and(|(_, epoch, until)| epoch == self.epoch && now < until) => No("draining"),
            None if since.is_some_and(|since| now < since + idle) => No("recent"),
            None => {
                self.end(true, now);
                (self.forgotten, self.drain, self.resumed, self.idle_since) = (Some(nonce), None, None, None);
                self.nonces.clear();
                self.released.clear();
                Write
            }
        }
    }

    fn is_too_soon(&self, spacing: u64, now: u64) -> bool {
        let began = if self.holder.is_some() { Some(self.since) } else { self.last_run };
        began.is_some_and(|began| now < began + spacing)
    }

    /// An operator ends whatever runs: that does not count as one of its slot's runs.
    fn evict(&mut self, now: u64) {
        if self.live(now).is_some() && self.slot.is_some_and(|(_, s, e)| s == SlotState::Running && e == self.epoch) {
            self.runs = self.runs.saturating_sub(1);
        }
    }

    pub(crate) fn transfer(&mut self, nonce: u128, to: u64, grant: Option<u64>, now: u64) -> Answer {
        self.end(true, now);
        (self.epoch, self.since, self.drain, self.forgotten) = (to, now, None, None);
        self.idle_since = Some(now);
        self.nonces.push(nonce);
        self.holder = grant.map(|deadline| (nonce, deadline));
        Answer::Write
    }

    pub(crate) fn step(&mut self, op: &Concrete, now: u64) -> Answer {
        use Answer::{Already, No, Write};
        let ours = |spec: &Spec, c: Claim| {
            spec.epoch == c.epoch.get() && spec.holder.is_some_and(|(nonce, _)| nonce == c.nonce.as_u128())
        };
        if self.leaving.is_some() && !matches!(op, Concrete::Operate { order: ConcreteOrder::Relocate { .. }, .. }) {
            return No("elsewhere");
        }
        match *op {
            Concrete::Acquire { nonce, .. } if self.knows(nonce) => {
                if self.live(now) == Some(nonce) {
                    Already
                } else {
                    No("lost")
                }
            }
            Concrete::Acquire { nonce, ttl, slot, gives_up, spacing, requested } => {
                if let Some((expected, until)) = requested {
                    if expected != self.epoch {
                        return No("changed");
                    }
                    if now >= until {
                        return No("request expired");
                    }
                }
                if let (Some((wanted, retry)), Some((last, state, _))) = (slot, self.slot) {
                    let over =
                        matches!(state, SlotState::Done | SlotState::Rewound) || (state == SlotState::Failed && !retry);
                    if wanted < last || (wanted == last && over) {
                        return No("already run");
                    }
                }
                if self.live(now).is_some() {
                    return No("held");
                }
                if self.paused.is_some() {
                    return No("paused");
                }
                if self.drain.is_some_and(|(_, epoch, until)| epoch == self.epoch && now < until) {
                    return No("draining");
                }
                if spacing.is_some_and(|spacing| self.is_too_soon(spacing, now)) {
                    return No("too soon");
                }
                // Nobody holds it by now, so a slot that is said to be running is not.
                if let (Some((wanted, retry)), Some((last, SlotState::Running, _))) = (slot, self.slot)
                    && (wanted == last && self.runs >= 3 && !retry || wanted > last && gives_up != Some(last))
                {
                    return No("interrupted");
                }
                if let Some((wanted, _)) = slot {
                    let again = self.slot.is_some_and(|(last, ..)| last == wanted);
                    self.runs = if again { self.runs + 1 } else { 1 };
                    self.slot = Some((wanted, SlotState::Running, self.epoch + 1));
                }
                self.transfer(nonce, self.epoch + 1, Some(now + ttl), now)
            }
            Concrete::Renew(c, ttl) => {
                if !ours(self, c) || self.live(now).is_none() {
                    return No("lost");
                }
                self.holder = Some((c.nonce.as_u128(), now + ttl));
                Write
            }
            Concrete::Checkpoint(c) => {
                if ours(self, c) {
                    Write
                } else {
                    No("lost")
                }
            }
            Concrete::Release(c, outcome) => {
                if !ours(self, c) {
                    let back = self.released.contains_key(&(c.epoch.get(), c.nonce.as_u128()));
                    let known = back && self.knows(c.nonce.as_u128());
                    return No(if known { "already released" } else { "lost" });
                }
                let deadline = self.holder.filter(|_| outcome == Outcome::Expired).map(|(_, deadline)| deadline);
                self.end(outcome != Outcome::NotStarted, deadline.map_or(now, |deadline| deadline.min(now)));
                self.released.insert((c.epoch.get(), c.nonce.as_u128()), outcome);
                self.close(c.epoch.get(), outcome);
                Write
            }
            Concrete::Complete(c, outcome) => match self.slot {
                _ if !ours(self, c) => No("lost"),
                Some((_, state, e)) if e == c.epoch.get() => match (state, outcome) {
                    (SlotState::Running, Outcome::Lost | Outcome::NotStarted | Outcome::Drained) => Already,
                    (SlotState::Running, _) => {
                        self.close(e, outcome);
                        Write
                    }
                    (SlotState::Done, Outcome::Failed) | (SlotState::Failed, Outcome::Succeeded) => No("already run"),
                    _ => Already,
                },
                _ => No("no slot"),
            },
            Concrete::Operate { nonce, ref order, .. } => match *order {
                ConcreteOrder::HandOff { to, .. } if self.knows(to) => {
                    if self.live(now) == Some(to) {
                        Already
                    } else {
                        No("lost")
                    }
                }
                ConcreteOrder::HandOff { to, ttl } => {
                    self.evict(now);
                    if let Some((slot, SlotState::Running, e)) = self.slot
                        && e == self.epoch
                    {
                        self.slot = Some((slot, SlotState::Running, self.epoch + 1));
                        self.runs += 1;
                    }
                    self.transfer(to, self.epoch + 1, Some(now + ttl), now)
                }
                _ if self.knows(nonce) => Already,
                ConcreteOrder::Drain { .. } if self.drain.is_some_and(|(old, ..)| old == nonce) => Already,
                ConcreteOrder::Drain { .. } if self.live(now).is_none() => No("not held"),
                ConcreteOrder::Drain { within } => {
                    let earlier = self.drain.filter(|(_, epoch, until)| *epoch == self.epoch && now < *until);
                    let until = earlier.map_or(now + within, |(.., until)| until.max(now + within));
                    self.drain = Some((nonce, self.epoch, until));
                    Write
                }
                ConcreteOrder::Forget { idle } => self.forget(nonce, idle, now),
                ConcreteOrder::Revoke if self.epoch == 0 => No("never held"),
                ConcreteOrder::Revoke => {
                    self.evict(now);
                    self.transfer(nonce, self.epoch + 1, None, now)
                }
                ConcreteOrder::Advance { past } => {
                    self.evict(now);
                    self.transfer(nonce, (self.epoch + 1).max(past + 1), None, now)
                }
                ConcreteOrder::Rewind if self.epoch == 0 => No("never held"),
                ConcreteOrder::Rewind => {
                    self.evict(now);
                    if self.slot.is_some_and(|(slot, ..)| slot > now) {
                        (self.slot, self.runs) = (Some((now, SlotState::Rewound, self.epoch + 1)), 1);
                    }
                    self.transfer(nonce, self.epoch + 1, None, now)
                }
                ConcreteOrder::Relocate { migration, step, evict } => self.relocate(nonce, migration, step, evict, now),
                ConcreteOrder::Pause => match self.paused {
                    Some(other) if other != nonce => No("paused"),
                    Some(_) => Already,
                    None => {
                        (self.paused, self.forgotten) = (Some(nonce), None);
                        Write
                    }
                },
                ConcreteOrder::Resume { .. } if self.resumed == Some(nonce) => Already,
                ConcreteOrder::Resume { pause } => match self.paused {
                    None => No("not paused"),
                    Some(other) if other != pause => No("other pause"),
                    Some(_) => {
                        self.paused = None;
                        self.resumed = Some(nonce);
                        Write
                    }
                },
            },
        }
    }

    fn relocate(&mut self, nonce: u128, migration: u128, step: usize, evict: bool, now: u64) -> Answer {
        use Answer::{Already, No, Write};
        match (step, self.leaving) {
            (0, None) if self.live(now).is_some() && !evict => No("held"),
            (0, None) => {
                if self.live(now).is_some() {
                    self.evict(now);
                    self.transfer(nonce, self.epoch + 1, None, now);
                }
                // What has run out ended then, not when somebody noticed.
                self.end(true, self.holder.map_or(now, |(_, deadline)| deadline.min(now)));
                (self.drain, self.leaving) = (None, Some((migration, false)));
                Write
            }
            (1 | 3, None) => Already,
            (_, None) => No("not moving"),
            (_, Some((other, _))) if other != migration => No("elsewhere"),
            (0, Some(_)) | (2 | 4, Some((_, true))) => Already,
            (1, Some((_, false))) => {
                self.leaving = None;
                Write
            }
            (2, Some((_, false))) => {
                self.leaving = Some((migration, true));
                Write
            }
            _ => No("elsewhere"),
        }
    }

    pub(crate) fn close(&mut self, under: u64, outcome: Outcome) {
        if let Some((slot, SlotState::Running, e)) = self.slot
            && e == under
        {
            match outcome {
                Outcome::Succeeded => self.slot = Some((slot, SlotState::Done, e)),
                Outcome::Failed => self.slot = Some((slot, SlotState::Failed, e)),
                Outcome::NotStarted | Outcome::Drained => self.runs = self.runs.saturating_sub(1),
                _ => {}
            }
        }
    }
}
