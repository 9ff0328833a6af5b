//! The state of a name under a rule: what was judged, and what was reported. Pure functions.
//!
//! A name is *down* when it failed or lost its lease as often in a row as the rule says, or when a slot was missed or
//! is late. It is up again after as many successes in a row as the rule says. While it is down, each cause is reported
//! once, then there are reminders, then a message that it is up; for a job that nobody runs, late and missed slots
//! count as one cause. Refused writes and dead letters are not states: the first is reported at once, and those within
//! [`QUIET`] after it are reported together. A job that was retired, or a lease that was forgotten, may never succeed
//! again: what it was down with is dismissed, without a message.
//!
//! Promise: judging the same facts twice changes nothing. A name that goes down for the [`TURNS`]th time within
//! [`STEADY`] is flapping. That message says so. Then there is none until the name has not gone down for [`STEADY`],
//! and then one about its state at that time. A clock that was ahead suppresses no message once it is right. Each
//! message names the previous one about the same name, so that they arrive in order. Success is not recorded, so a name
//! without a record may be new to the rule, or may always have been up. If it is new, an outage that is over is
//! reported if it began within [`NEWS`]; of older ones, only whether it is still down.

use super::cause::Cause;
use super::facts::{Detail, End, Facts, Subject};
use super::notice::{MessageParts, Notice};
use super::rule::Rule;
use crate::tally::DeadLetter;
use leasehold_core::{Epoch, Outcome, Slot, Timestamp};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How long refused writes and dead letters are gathered.
pub(super) const QUIET: Duration = Duration::from_secs(300);
/// How often it must go down within [`STEADY`] to count as flapping.
pub(super) const TURNS: usize = 3;
pub(super) const STEADY: Duration = Duration::from_secs(3_600);
/// How many dead letters are remembered, so that none is reported twice.
const DEAD_KEPT: usize = 128;
/// How long an outage that is over is still reported, if no machine judged it earlier.
const NEWS: Duration = Duration::from_secs(86_400);
/// Two machines may record dead letters in another order than that of their deaths, by at most this.
const OVERLAP: Duration = Duration::from_secs(60);

/// The state of a name under one rule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RuleState {
    /// Ends up to this epoch were judged.
    epoch: Epoch,
    /// Missed slots up to this one were judged; and the newest slot that was found late.
    #[serde(skip_serializing_if = "Option::is_none")]
    missed_to: Option<Slot>,
    #[serde(skip_serializing_if = "Option::is_none")]
    late: Option<Slot>,
    /// How many refused writes were judged, and which dead letters.
    #[serde(skip_serializing_if = "Option::is_none")]
    fenced: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    dead: Vec<String>,
    /// Dead letters before this time were judged, except for those of the last [`OVERLAP`].
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_to: Option<Timestamp>,
    /// Failures and losses in a row, and successes in a row.
    bad: u32,
    good: u32,
    /// Slots missed since the last success.
    missed: u64,
    /// When the first of these happened.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Timestamp>,
    is_down: bool,
    /// The latest cause, with its epoch and slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<(Cause, Option<Epoch>, Option<Slot>)>,
    /// What is known about the run that it was about, without its output.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<Detail>,
    /// The causes that were reported while it is down, and the time of the last message.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    told: Vec<Cause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    told_at: Option<Timestamp>,
    reminders: u32,
    /// When it went down, the latest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    turns: Vec<Timestamp>,
    /// Whether a message has said that there will be none for now.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_hushed: bool,
    /// The id of the last message.
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<String>,
    /// Refused writes or dead letters that were not reported yet, and the time of the last report.
    held_back: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    gathered_from: Option<Timestamp>,
}

/// Something that happened to the name.
#[derive(Debug, Clone, Copy)]
struct Event {
    cause: Option<Cause>,
    at: Timestamp,
    epoch: Option<Epoch>,
    slot: Option<Slot>,
    count: u64,
}

/// A judgment in progress.
struct Judge<'a> {
    subject: &'a Subject,
    rule: &'a Rule,
    facts: &'a Facts,
    now: Timestamp,
    state: RuleState,
    /// When the outage that is being reported was over.
    over_at: Option<Timestamp>,
    notices: Vec<Notice>,
}

impl RuleState {
    /// Judges the facts at `now`. Returns the new state, and the messages.
    /// `before` is none for a name that the rule meets for the first time.
    pub fn judge(
        before: Option<&RuleState>,
        subject: &Subject,
        rule: &Rule,
        facts: &Facts,
        now: Timestamp,
    ) -> (RuleState, Vec<Notice>) {
        let state = before.cloned().unwrap_or_else(|| RuleState {
            // Slots missed before the newest run no longer matter.
            missed_to: facts.claimed,
            ..RuleState::default()
        });
        let mut judge = Judge { subject, rule, facts, now, state, over_at: None, notices: Vec::new() };
        judge.state.set_clock_back(now);
        // A slot that is missed after that is another outage.
        judge.state.dismiss(facts.over_by);
        for event in judge.events() {
            judge.apply(&event, before.is_some());
        }
        judge.settle(before.is_some());
        judge.gather();
        let Judge { mut state, mut notices, .. } = judge;
        for notice in &mut notices {
            notice.after = state.last.replace(notice.id.clone()).filter(|last| *last != notice.id);
        }
        (state, notices)
    }

    /// Whether it says no more than a missing one would, so that it need not be stored.
    pub fn is_plain(&self) -> bool {
        let RuleState { epoch, missed_to, fenced, .. } = *self;
        *self == RuleState { epoch, missed_to, fenced, ..RuleState::default() }
    }

    /// Whether two differ in more than how far they have read. If not, it need not be stored.
    pub fn differs(&self, other: &RuleState) -> bool {
        *self != RuleState { epoch: self.epoch, ..other.clone() }
    }

    /// Whether there are dead letters or refused writes that are still to be reported.
    pub fn holds_back(&self) -> bool {
        self.held_back > 0
    }

    /// Whether it is down, or was and nobody was notified yet that it is up.
    pub fn has_outage(&self) -> bool {
        self.is_down || !self.told.is_empty()
    }

    fn began_by(&self, time: Option<Timestamp>) -> bool {
        self.has_outage() && self.since.is_some_and(|since| time.is_some_and(|time| since <= time))
    }

    /// Ends an outage that began by this time, without a message.
    fn dismiss(&mut self, over_by: Option<Timestamp>) {
        if !self.began_by(over_by) {
            return;
        }
        if self.told.is_empty() {
            // Nobody has heard of it, so it is no part of flapping.
            self.turns.pop();
        }
        self.told.clear();
        (self.is_down, self.bad, self.good, self.missed, self.reminders) = (false, 0, 0, 0, 0);
        (self.since, self.cause, self.detail, self.told_at) = (None, None, None, None);
    }

    /// Times recorded while the store's clock was ahead would suppress messages
    /// until then, so they are reduced to `now`.
    fn set_clock_back(&mut self, now: Timestamp) {
        self.turns.iter_mut().for_each(|turn| *turn = (*turn).min(now));
        for time in [&mut self.dead_to, &mut self.since, &mut self.told_at, &mut self.gathered_from] {
            *time = time.map(|time| time.min(now));
        }
        for slot in [&mut self.missed_to, &mut self.late] {
            *slot = slot.map(|slot| slot.min(Slot(now)));
        }
    }

    fn is_news(&self, now: Timestamp) -> bool {
        self.since.is_some_and(|since| now.saturating_since(since) < NEWS)
    }

    fn is_flapping(&self, now: Timestamp) -> bool {
        self.is_hushed && self.turns.last().is_some_and(|turn| now.saturating_since(*turn) < STEADY)
    }

    fn recent_turns(&self, now: Timestamp) -> usize {
        self.turns.iter().filter(|turn| now.saturating_since(**turn) < STEADY).count()
    }
}

impl<'a> Judge<'a> {
    /// The new events since the last judgment, in the order of time.
    fn events(&mut self) -> Vec<Event> {
        let state = &mut self.state;
        let new = self.facts.ends.iter().filter(|end| end.epoch > state.epoch);
        let mut events: Vec<Event> = new.filter_map(event_of).collect();
        state.epoch = self.facts.ends.iter().map(|end| end.epoch).max().unwrap_or_default().max(state.epoch);
        if let Some(missed) = self.facts.missed_after(state.missed_to) {
            state.missed_to = Some(missed.last);
            let (cause, at, slot, count) = (Some(Cause::Missed), missed.last.0, Some(missed.last), missed.count);
            events.push(Event { cause, at, epoch: None, slot, count });
        }
        if let Some(late) = self.facts.late.filter(|late| state.late.is_none_or(|known| *late > known)) {
            state.late = Some(late);
            // `Missed` says more than `Late`, so of the two it is reported.
            let is_reported = self.rule.on.has(Cause::Missed) && events.iter().any(|h| h.cause == Some(Cause::Missed));
            events.extend((!is_reported).then_some(Event {
                cause: Some(Cause::Late),
                at: late.0,
                epoch: None,
                slot: Some(late),
                count: 1,
            }));
        }
        events.sort_by_key(|event| event.at);
        events
    }

    fn apply(&mut self, event: &Event, is_known: bool) {
        let Event { cause, at, epoch, slot, count } = *event;
        let Some(cause) = cause else {
            self.over_at = Some(at);
            self.succeed(epoch, slot, is_known);
            self.over_at = None;
            return;
        };
        // It was steady in between, although no machine judged it then.
        if self.state.is_hushed && !self.state.is_down && !self.state.is_flapping(at) {
            self.state.is_hushed = false;
            self.report_up();
        }
        let state = &mut self.state;
        state.good = 0;
        if cause == Cause::Missed {
            state.missed += count;
        }
        if !self.rule.on.has(cause) {
            return;
        }
        state.since.get_or_insert(at);
        state.cause = Some((cause, epoch, slot));
        let known = epoch.and_then(|epoch| self.facts.detail_of(epoch));
        state.detail = known.map(|known| Detail { tail: None, ..known.clone() });
        if cause.is_counted() {
            state.bad = state.bad.saturating_add(1);
            if state.bad < self.rule.after {
                return;
            }
        }
        if !state.is_down {
            state.is_down = true;
            state.turns.push(at);
            let first = state.turns.len().saturating_sub(TURNS);
            state.turns.drain(..first);
        }
        if is_known && !state.told.iter().any(|told| told.covers(cause)) {
            self.report_down(cause);
        }
    }

    fn succeed(&mut self, epoch: Option<Epoch>, slot: Option<Slot>, is_known: bool) {
        let state = &mut self.state;
        let bad = std::mem::take(&mut state.bad);
        if state.is_down {
            state.good += 1;
            if state.good < self.rule.recovered_after {
                return;
            }
            let is_news = state.is_news(self.now);
            if let Some((cause, ..)) = state.cause.filter(|_| !is_known && is_news) {
                state.bad = bad;
                self.report_down(cause);
                self.state.bad = 0;
            }
            let state = &mut self.state;
            state.is_down = false;
            (state.cause, state.detail) = (Some((Cause::Recovered, epoch, slot)), None);
            if is_known || is_news {
                self.report_up();
            }
        }
        let state = &mut self.state;
        if state.told.is_empty() {
            (state.cause, state.since, state.detail) = (None, None, None);
        }
        (state.good, state.missed) = (0, 0);
    }

    fn parts(&self, cause: Cause, epoch: Option<Epoch>, slot: Option<Slot>) -> MessageParts<'_> {
        let state = &self.state;
        MessageParts {
            subject: self.subject,
            facts: self.facts,
            cause,
            now: self.now,
            epoch,
            slot,
            item: None,
            detail: epoch.and_then(|epoch| self.detail(epoch)),
            count: 1,
            which: String::new(),
            failures: state.bad,
            since: state.since,
            over_at: self.over_at.or_else(|| self.end_of(epoch.filter(|_| cause == Cause::Recovered)?)),
            missed: state.missed,
            reminder: None,
            is_flapping: false,
        }
    }

    fn end_of(&self, epoch: Epoch) -> Option<Timestamp> {
        self.facts.ends.iter().find(|end| end.epoch == epoch).map(|end| end.at)
    }

    fn detail(&self, epoch: Epoch) -> Option<Detail> {
        let written = self.state.detail.as_ref().filter(|detail| detail.epoch == epoch).cloned();
        match (self.facts.detail_of(epoch).cloned(), written) {
            (Some(known), Some(written)) => Some(known.or(written)),
            (known, written) => known.or(written),
        }
    }

    fn report_down(&mut self, cause: Cause) {
        if self.state.is_flapping(self.now) {
            return;
        }
        let (_, epoch, slot) = self.state.cause.unwrap_or((cause, None, None));
        let is_flapping = self.state.recent_turns(self.now) >= TURNS;
        self.state.is_hushed = is_flapping;
        let notice = MessageParts { is_flapping, ..self.parts(cause, epoch, slot) }.notice();
        self.notices.push(notice);
        self.state.told.push(cause);
        self.state.told_at = Some(self.now);
    }

    fn report_up(&mut self) {
        if self.state.told.is_empty() || self.state.is_flapping(self.now) {
            return;
        }
        if self.rule.on.has(Cause::Recovered) {
            let (_, epoch, slot) = self.state.cause.unwrap_or((Cause::Recovered, None, None));
            let notice = self.parts(Cause::Recovered, epoch, slot).notice();
            self.notices.push(notice);
        }
        self.state.told.clear();
        (self.state.told_at, self.state.since, self.state.cause) = (None, None, None);
        // The next outage begins at another time, which tells its reminders apart.
        self.state.reminders = 0;
    }

    /// Reports what was not reported yet, because it was flapping or new, and sends reminders.
    fn settle(&mut self, is_known: bool) {
        let state = &mut self.state;
        if state.is_hushed && !state.is_flapping(self.now) {
            state.is_hushed = false;
            // It went up and down since the last message, so its present state is reported again.
            if state.is_down {
                state.told.clear();
            }
        }
        let state = &self.state;
        if state.began_by(self.facts.over_by) {
            let is_untold = !is_known && state.is_down && state.told.is_empty() && state.is_news(self.now);
            if let Some((cause, ..)) = state.cause.filter(|_| is_untold) {
                self.report_down(cause);
            }
            self.state.dismiss(self.facts.over_by);
            return;
        }
        match (state.is_down, state.told.is_empty()) {
            (true, true) => {
                if let Some((cause, ..)) = state.cause {
                    self.report_down(cause);
                }
            }
            (false, false) => self.report_up(),
            (true, false) => self.remind(),
            (false, true) => {}
        }
    }

    fn remind(&mut self) {
        let (Some(every), Some(told_at)) = (self.rule.remind, self.state.told_at) else { return };
        let Some((cause, epoch, slot)) = self.state.cause else { return };
        if self.now.saturating_since(told_at) < every || self.state.is_flapping(self.now) {
            return;
        }
        self.state.reminders += 1;
        self.state.told_at = Some(self.now);
        let reminder = Some(self.state.reminders);
        let notice = MessageParts { reminder, ..self.parts(cause, epoch, slot) }.notice();
        self.notices.push(notice);
    }

    /// Dead letters that were not judged before.
    fn new_letters(&mut self) -> Vec<&'a DeadLetter> {
        let (facts, state) = (self.facts, &mut self.state);
        let key = |letter: &DeadLetter| format!("{} {}", letter.id, letter.epoch);
        let from = if facts.is_survey { Some(state.dead_to.unwrap_or(self.now)) } else { None };
        let is_old = |letter: &DeadLetter| from.is_some_and(|from| letter.at.plus(OVERLAP) < from);
        let is_first = facts.is_survey && state.dead_to.is_none();
        let new = facts.dead.iter().filter(|letter| !is_old(letter) && !state.dead.contains(&key(letter)));
        let new: Vec<&DeadLetter> = new.collect();
        let latest = new.iter().map(|letter| letter.at).max();
        state.dead_to = latest.max(state.dead_to).or(Some(self.now));
        state.dead.extend(new.iter().map(|letter| key(letter)));
        let surplus = state.dead.len().saturating_sub(DEAD_KEPT);
        state.dead.drain(..surplus);
        // A rule that meets the queue for the first time does not report old ones.
        if is_first { Vec::new() } else { new }
    }

    /// Refused writes and dead letters: the first is reported at once, those that follow are gathered.
    fn gather(&mut self) {
        let (cause, new, item): (_, u64, Option<&DeadLetter>) = match self.subject {
            Subject::Queue(_) | Subject::Spool(..) => {
                let new = self.new_letters();
                // Those that were held back were judged before.
                let latest = new.last().copied().or_else(|| self.facts.dead.iter().max_by_key(|letter| letter.at));
                (Cause::DeadLetter, new.len() as u64, latest)
            }
            Subject::Job(_) | Subject::Lease(_) => {
                // Writes that were refused before the rule existed are not reported.
                let known = self.facts.fenced.map_or(0, |(total, new)| total.saturating_sub(new));
                let before = self.state.fenced.unwrap_or(known);
                let seen = self.facts.fenced.map_or(before, |(total, _)| total);
                self.state.fenced = self.facts.fenced.map(|(total, _)| total).or(self.state.fenced);
                (Cause::Fenced, seen.saturating_sub(before), None)
            }
        };
        if !self.rule.on.has(cause) {
            return;
        }
        let state = &mut self.state;
        state.held_back += new;
        let is_quiet = state.gathered_from.is_some_and(|from| self.now.saturating_since(from) < QUIET);
        if state.held_back == 0 || is_quiet {
            return;
        }
        let count = std::mem::take(&mut state.held_back);
        state.gathered_from = Some(self.now);
        let state = &self.state;
        // A report about several is identified by the latest of them.
        let which = state.dead.last().cloned().unwrap_or_else(|| state.fenced.unwrap_or(0).to_string());
        let parts = self.parts(cause, None, None);
        let notice = MessageParts { item, count, which, failures: 0, since: None, missed: 0, ..parts }.notice();
        self.notices.push(notice);
    }
}

/// The event behind an end; none if it is not an event.
fn event_of(end: &End) -> Option<Event> {
    let cause = match end.outcome {
        Outcome::Succeeded => None,
        Outcome::Failed => Some(Cause::Failed),
        Outcome::Lost | Outcome::Expired => Some(Cause::Lost),
        // Nothing was run, or an operator knows why it was ended.
        _ => return None,
    };
    Some(Event { cause, at: end.at, epoch: Some(end.epoch), slot: end.slot, count: 1 })
}
