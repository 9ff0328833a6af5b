//! How a name stands with a rule: what was judged, and what was told. Pure functions.
//!
//! A name is *down* when it failed or lost its lease as often in a row as the rule says, or when a slot was missed or
//! is late. It is up again after as many successes in a row as the rule says. While it is down, each cause is reported
//! once, then there are reminders, then a message that it is up; for a job that nobody runs, late and missed slots
//! count as one cause. Refused writes and dead letters are not states: the first is reported at once, and those within
//! [`QUIET`] after it are reported together.
//!
//! Promise: judging the same facts twice changes nothing. A name that goes down for the [`TURNS`]th time within
//! [`STEADY`] is flapping. That message says so. Then there is none until the name has not gone down for [`STEADY`],
//! and then one about its state at that time. A clock that was ahead suppresses no message once it is right. Each
//! message names the previous one about the same name, so that they arrive in order. Success is not recorded, so a name
//! without a record may be new to the rule, or may always have been up. If it is new, an outage that is over is
//! reported if it began within [`NEWS`]; of older ones, only whether it is still down.

use super::cause::Cause;
use super::facts::{Detail, End, Facts, Subject};
use super::notice::{Notice, Story};
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

/// How a name stands with one rule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Standing {
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
struct Happening {
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
    standing: Standing,
    /// When the outage that is being reported was over.
    over_at: Option<Timestamp>,
    notices: Vec<Notice>,
}

impl Standing {
    /// Judges the facts at `now`. Returns the new standing, and the messages.
    /// `before` is none for a name that the rule meets for the first time.
    pub fn judge(
        before: Option<&Standing>,
        subject: &Subject,
        rule: &Rule,
        facts: &Facts,
        now: Timestamp,
    ) -> (Standing, Vec<Notice>) {
        let standing = before.cloned().unwrap_or_else(|| Standing {
            // Slots missed before the newest run no longer matter.
            missed_to: facts.claimed,
            ..Standing::default()
        });
        let mut judge = Judge { subject, rule, facts, now, standing, over_at: None, notices: Vec::new() };
        judge.standing.set_clock_back(now);
        for happening in judge.happenings() {
            judge.hear(&happening, before.is_some());
        }
        judge.settle();
        judge.gather();
        let Judge { mut standing, mut notices, .. } = judge;
        for notice in &mut notices {
            notice.after = standing.last.replace(notice.id.clone()).filter(|last| *last != notice.id);
        }
        (standing, notices)
    }

    /// Whether it says no more than a missing one would, so that it need not be stored.
    pub fn is_plain(&self) -> bool {
        let Standing { epoch, missed_to, fenced, .. } = *self;
        *self == Standing { epoch, missed_to, fenced, ..Standing::default() }
    }

    /// Whether two differ in more than how far they have read. If not, it need not be stored.
    pub fn differs(&self, other: &Standing) -> bool {
        *self != Standing { epoch: self.epoch, ..other.clone() }
    }

    /// Whether there are dead letters or refused writes that are still to be reported.
    pub fn holds_back(&self) -> bool {
        self.held_back > 0
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

    fn is_flapping(&self, now: Timestamp) -> bool {
        self.is_hushed && self.turns.last().is_some_and(|turn| now.saturating_since(*turn) < STEADY)
    }

    fn recent_turns(&self, now: Timestamp) -> usize {
        self.turns.iter().filter(|turn| now.saturating_since(**turn) < STEADY).count()
    }
}

impl<'a> Judge<'a> {
    /// The new events since the last judgment, in the order of time.
    fn happenings(&mut self) -> Vec<Happening> {
        let standing = &mut self.standing;
        let new = self.facts.ends.iter().filter(|end| end.epoch > standing.epoch);
        let mut happenings: Vec<Happening> = new.filter_map(happening).collect();
        standing.epoch = self.facts.ends.iter().map(|end| end.epoch).max().unwrap_or_default().max(standing.epoch);
        if let Some(missed) = self.facts.missed_after(standing.missed_to) {
            standing.missed_to = Some(missed.last);
            let (cause, at, slot, count) = (Some(Cause::Missed), missed.last.0, Some(missed.last), missed.count);
            happenings.push(Happening { cause, at, epoch: None, slot, count });
        }
        if let Some(late) = self.facts.late.filter(|late| standing.late.is_none_or(|known| *late > known)) {
            standing.late = Some(late);
            // `Missed` says more than `Late`, so of the two it is reported.
            let is_told = self.rule.on.has(Cause::Missed) && happenings.iter().any(|h| h.cause == Some(Cause::Missed));
            happenings.extend((!is_told).then_some(Happening {
                cause: Some(Cause::Late),
                at: late.0,
                epoch: None,
                slot: Some(late),
                count: 1,
            }));
        }
        happenings.sort_by_key(|happening| happening.at);
        happenings
    }

    fn hear(&mut self, happening: &Happening, is_known: bool) {
        let Happening { cause, at, epoch, slot, count } = *happening;
        let Some(cause) = cause else {
            self.over_at = Some(at);
            self.succeed(epoch, slot, is_known);
            self.over_at = None;
            return;
        };
        // It was steady in between, although no machine judged it then.
        if self.standing.is_hushed && !self.standing.is_down && !self.standing.is_flapping(at) {
            self.standing.is_hushed = false;
            self.tell_up();
        }
        let standing = &mut self.standing;
        standing.good = 0;
        if cause == Cause::Missed {
            standing.missed += count;
        }
        if !self.rule.on.has(cause) {
            return;
        }
        standing.since.get_or_insert(at);
        standing.cause = Some((cause, epoch, slot));
        let known = epoch.and_then(|epoch| self.facts.detail_of(epoch));
        standing.detail = known.map(|known| Detail { tail: None, ..known.clone() });
        if cause.is_counted() {
            standing.bad = standing.bad.saturating_add(1);
            if standing.bad < self.rule.after {
                return;
            }
        }
        if !standing.is_down {
            standing.is_down = true;
            standing.turns.push(at);
            let first = standing.turns.len().saturating_sub(TURNS);
            standing.turns.drain(..first);
        }
        if is_known && !standing.told.iter().any(|told| told.covers(cause)) {
            self.tell_down(cause);
        }
    }

    fn succeed(&mut self, epoch: Option<Epoch>, slot: Option<Slot>, is_known: bool) {
        let standing = &mut self.standing;
        let bad = std::mem::take(&mut standing.bad);
        if standing.is_down {
            standing.good += 1;
            if standing.good < self.rule.recovered_after {
                return;
            }
            let is_news = standing.since.is_some_and(|since| self.now.saturating_since(since) < NEWS);
            if let Some((cause, ..)) = standing.cause.filter(|_| !is_known && is_news) {
                standing.bad = bad;
                self.tell_down(cause);
                self.standing.bad = 0;
            }
            let standing = &mut self.standing;
            standing.is_down = false;
            (standing.cause, standing.detail) = (Some((Cause::Recovered, epoch, slot)), None);
            if is_known || is_news {
                self.tell_up();
            }
        }
        let standing = &mut self.standing;
        if standing.told.is_empty() {
            (standing.cause, standing.since, standing.detail) = (None, None, None);
        }
        (standing.good, standing.missed) = (0, 0);
    }

    fn story(&self, cause: Cause, epoch: Option<Epoch>, slot: Option<Slot>) -> Story<'_> {
        let standing = &self.standing;
        Story {
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
            failures: standing.bad,
            since: standing.since,
            over_at: self.over_at.or_else(|| self.end_of(epoch.filter(|_| cause == Cause::Recovered)?)),
            missed: standing.missed,
            reminder: None,
            is_flapping: false,
        }
    }

    fn end_of(&self, epoch: Epoch) -> Option<Timestamp> {
        self.facts.ends.iter().find(|end| end.epoch == epoch).map(|end| end.at)
    }

    fn detail(&self, epoch: Epoch) -> Option<Detail> {
        let written = self.standing.detail.as_ref().filter(|detail| detail.epoch == epoch).cloned();
        match (self.facts.detail_of(epoch).cloned(), written) {
            (Some(known), Some(written)) => Some(known.or(written)),
            (known, written) => known.or(written),
        }
    }

    fn tell_down(&mut self, cause: Cause) {
        if self.standing.is_flapping(self.now) {
            return;
        }
        let (_, epoch, slot) = self.standing.cause.unwrap_or((cause, None, None));
        let is_flapping = self.standing.recent_turns(self.now) >= TURNS;
        self.standing.is_hushed = is_flapping;
        let notice = Story { is_flapping, ..self.story(cause, epoch, slot) }.notice();
        self.notices.push(notice);
        self.standing.told.push(cause);
        self.standing.told_at = Some(self.now);
    }

    fn tell_up(&mut self) {
        if self.standing.told.is_empty() || self.standing.is_flapping(self.now) {
            return;
        }
        if self.rule.on.has(Cause::Recovered) {
            let (_, epoch, slot) = self.standing.cause.unwrap_or((Cause::Recovered, None, None));
            let notice = self.story(Cause::Recovered, epoch, slot).notice();
            self.notices.push(notice);
        }
        self.standing.told.clear();
        (self.standing.told_at, self.standing.since, self.standing.cause) = (None, None, None);
        // The next outage begins at another time, which tells its reminders apart.
        self.standing.reminders = 0;
    }

    /// Reports what was not reported yet, because it was flapping or new, and sends reminders.
    fn settle(&mut self) {
        let standing = &mut self.standing;
        if standing.is_hushed && !standing.is_flapping(self.now) {
            standing.is_hushed = false;
            // It went up and down since the last message, so its present state is reported again.
            if standing.is_down {
                standing.told.clear();
            }
        }
        let standing = &self.standing;
        match (standing.is_down, standing.told.is_empty()) {
            (true, true) => {
                if let Some((cause, ..)) = standing.cause {
                    self.tell_down(cause);
                }
            }
            (false, false) => self.tell_up(),
            (true, false) => self.remind(),
            (false, true) => {}
        }
    }

    fn remind(&mut self) {
        let (Some(every), Some(told_at)) = (self.rule.remind, self.standing.told_at) else { return };
        let Some((cause, epoch, slot)) = self.standing.cause else { return };
        if self.now.saturating_since(told_at) < every || self.standing.is_flapping(self.now) {
            return;
        }
        self.standing.reminders += 1;
        self.standing.told_at = Some(self.now);
        let reminder = Some(self.standing.reminders);
        let notice = Story { reminder, ..self.story(cause, epoch, slot) }.notice();
        self.notices.push(notice);
    }

    /// Dead letters that were not judged before.
    fn new_letters(&mut self) -> Vec<&'a DeadLetter> {
        let (facts, standing) = (self.facts, &mut self.standing);
        let key = |letter: &DeadLetter| format!("{} {}", letter.id, letter.epoch);
        let from = if facts.is_survey { Some(standing.dead_to.unwrap_or(self.now)) } else { None };
        let is_old = |letter: &DeadLetter| from.is_some_and(|from| letter.at.plus(OVERLAP) < from);
        let is_first = facts.is_survey && standing.dead_to.is_none();
        let new = facts.dead.iter().filter(|letter| !is_old(letter) && !standing.dead.contains(&key(letter)));
        let new: Vec<&DeadLetter> = new.collect();
        let latest = new.iter().map(|letter| letter.at).max();
        standing.dead_to = latest.max(standing.dead_to).or(Some(self.now));
        standing.dead.extend(new.iter().map(|letter| key(letter)));
        let surplus = standing.dead.len().saturating_sub(DEAD_KEPT);
        standing.dead.drain(..surplus);
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
                let before = self.standing.fenced.unwrap_or(known);
                let seen = self.facts.fenced.map_or(before, |(total, _)| total);
                self.standing.fenced = self.facts.fenced.map(|(total, _)| total).or(self.standing.fenced);
                (Cause::Fenced, seen.saturating_sub(before), None)
            }
        };
        if !self.rule.on.has(cause) {
            return;
        }
        let standing = &mut self.standing;
        standing.held_back += new;
        let is_quiet = standing.gathered_from.is_some_and(|from| self.now.saturating_since(from) < QUIET);
        if standing.held_back == 0 || is_quiet {
            return;
        }
        let count = std::mem::take(&mut standing.held_back);
        standing.gathered_from = Some(self.now);
        let standing = &self.standing;
        // A report about several is identified by the latest of them.
        let which = standing.dead.last().cloned().unwrap_or_else(|| standing.fenced.unwrap_or(0).to_string());
        let story = self.story(cause, None, None);
        let notice = Story { item, count, which, failures: 0, since: None, missed: 0, ..story }.notice();
        self.notices.push(notice);
    }
}

/// The event behind an end; none if it is not an event.
fn happening(end: &End) -> Option<Happening> {
    let cause = match end.outcome {
        Outcome::Succeeded => None,
        Outcome::Failed => Some(Cause::Failed),
        Outcome::Lost | Outcome::Expired => Some(Cause::Lost),
        // Nothing was run, or an operator knows why it was ended.
        Outcome::NotStarted | Outcome::Drained | Outcome::Evicted => return None,
    };
    Some(Happening { cause, at: end.at, epoch: Some(end.epoch), slot: end.slot, count: 1 })
}
