//! The sweep: judges every lease and every published job, whether it was ever
//! run or not, and dead letters that were held back.
//!
//! Promise: what a machine left unjudged when it died is judged by the next sweep of any other; reminders are sent by
//! sweeps. Non-promise: that may be as late as the time between two sweeps.

use super::board::{Board, KIND, Watched};
use super::cause::Cause;
use super::facts::{Facts, Subject};
use super::rule::Rule;
use crate::backlog::Backlog;
use crate::schedule::{Definition, Definitions, Due, Entry, Fate, Interrupted, Journal, Journals, Plan};
use leasehold_core::{
    Event, Inspection, Kind, LeaseName, Ownership, Result, Shelf, Slot, Timestamp, codec, store::Range,
};
use std::collections::{HashMap, HashSet};

const PAGE: usize = 500;

/// What is wrong with a job's slots now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overdue {
    /// The slot that was not started in time, or whose run was lost and was not taken up again in time.
    pub late: Option<Slot>,
    /// Slots after the newest run that were not run and will not be: how many, the first and the last.
    pub missed: Option<(u64, Slot, Slot)>,
}

impl Overdue {
    /// Whether no slot is late or missed.
    pub const fn is_none(&self) -> bool {
        self.late.is_none() && self.missed.is_none()
    }
}

/// What is wrong with a job's slots, according to its definition, its lease's
/// record and its journal, at the store's time.
pub fn overdue(
    definition: &Definition,
    record: &Ownership,
    journal: &Journal,
    now: Timestamp,
) -> Result<(Overdue, Facts)> {
    let schedule = definition.schedule()?;
    // Before the job was published, nobody had to run it.
    let mut known = journal.clone();
    known.since = Some(journal.since.unwrap_or(definition.at));
    let mut plan = Plan::of(&schedule, record, &known, definition.catch_up()?, now);
    // The oldest that nobody took up. A running scheduler would run it, or record that it is dropped.
    let pending = plan.due.dropped.iter().map(|dropped| dropped.first).chain(plan.due.run.first().copied()).min();
    let late_at = |slot: &Slot| slot.0.plus(definition.delay(*slot)).plus(definition.late_after());
    let is_busy = record.paused.is_some() || record.live_tenure(now).is_some();
    let late = pending.filter(|slot| !is_busy && late_at(slot) <= now);
    if late.is_none() {
        plan.due.dropped.clear();
    }
    let late = late.into_iter().chain(left_open(&plan, record, now, definition).filter(|_| !is_busy)).min();
    let facts = Facts::of_lease(record, now).with_slots(&schedule, journal, &plan, late);
    let mut seen = facts.clone();
    let claimed = record.slot.map(|mark| mark.slot).filter(|_| plan.ahead.is_none());
    if plan.ahead.is_some() {
        // The newest run has a slot that is still in the future. Missed are the slots
        // that came due since, and those that were dropped up to a future time.
        let is_blocked =
            |entry: &&Entry| entry.fate == Fate::DroppedClockAhead || entry.fate.is_missed() && entry.end().0 > now;
        let written = journal.entries.iter().filter(is_blocked).map(|entry| (entry.slot, entry.end()));
        seen.dropped = written.chain(plan.due.dropped.iter().map(|dropped| (dropped.first, dropped.last))).collect();
    }
    let missed = seen.missed_after(claimed).filter(|_| record.paused.is_none());
    let first = || {
        let spans = seen.dropped.iter().filter(|(_, last)| claimed.is_none_or(|claimed| *last > claimed));
        let first = spans.map(|(first, _)| *first).min()?;
        // A span may have begun before the newest run.
        claimed.filter(|claimed| first <= *claimed).map_or(Some(first), |claimed| schedule.next_after(claimed.0))
    };
    let missed = missed.map(|missed| (missed.count, first().unwrap_or(missed.last), missed.last));
    Ok((Overdue { late, missed }, facts))
}

/// The slot whose run did not complete, and that was not taken up again in time although it could have been.
fn left_open(plan: &Plan, record: &Ownership, now: Timestamp, definition: &Definition) -> Option<Slot> {
    let slot = match plan.interrupted? {
        Interrupted::Again(slot) | Interrupted::Died(slot) => slot,
        Interrupted::Settled(_) => return None,
    };
    let kept_until = record.drain.as_ref().map(|drain| drain.until());
    let resumed_at = record.resumed.as_ref().map(|resumed| resumed.at);
    let free_since = [record.idle_since(), kept_until, resumed_at].into_iter().flatten().max()?;
    (free_since.plus(definition.late_after()) <= now).then_some(slot)
}

impl Board {
    /// Judges every lease and every published job that a rule is about. What cannot be read or judged is left for the
    /// next sweep; the first such error is returned at the end.
    pub async fn sweep(&self) -> Result<()> {
        if self.rules().is_empty() {
            return Ok(());
        }
        let (watched, fenced) = (self.all_watched().await?, self.all_fenced().await?);
        let (mut definitions, mut journals, mut retired) = (HashMap::new(), HashMap::new(), HashSet::new());
        let watches_slots = self.rules().iter().any(Rule::watches_slots);
        if watches_slots || watched.values().any(Watched::has_outage) {
            let (published, gone) = Definitions::new(self.coordinator().clone()).all_and_retired().await?;
            retired = gone;
            if watches_slots {
                definitions.extend(published);
                journals = self.all_journals().await?;
            }
        }
        let (mut after, mut trouble) = (None, None);
        loop {
            let page = self.coordinator().list(after.as_ref(), PAGE).await?;
            after = page.entries.last().map(|(name, _)| name.clone());
            for (name, seen) in page.entries {
                let Ok(seen) = seen else { continue };
                let definition = definitions.remove(&name);
                let journal = journals.remove(&name);
                let slots = definition.as_ref().map(|definition| (definition, journal.unwrap_or_default()));
                let is_retired = retired.remove(&name);
                let observed = Observed { seen: &seen, slots, is_retired, fenced: fenced.get(&name).copied() };
                if let Err(error) = self.sweep_one(watched.get(&name), observed).await {
                    trouble.get_or_insert(error);
                }
            }
            if !page.more {
                break;
            }
        }
        // Jobs that were never run, and those of them that somebody was notified of and that were retired since.
        let is_down = |name: &LeaseName| watched.get(name).is_some_and(Watched::has_outage);
        let retired = retired.into_iter().filter(is_down).map(|name| (name, None));
        let published = definitions.into_iter().map(|(name, definition)| (name, Some(definition)));
        for (name, definition) in published.chain(retired) {
            let seen = match self.coordinator().inspect(&name).await {
                Ok(seen) => seen,
                // It is the store's, and of every job that is left.
                Err(error) if error.kind() == Kind::Unavailable => return Err(error),
                // A damaged record keeps nobody from looking at the others.
                Err(error) => {
                    trouble.get_or_insert(error);
                    continue;
                }
            };
            let (journal, is_retired) = (journals.remove(&name), definition.is_none());
            let slots = definition.as_ref().map(|definition| (definition, journal.unwrap_or_default()));
            let observed = Observed { seen: &seen, slots, is_retired, fenced: None };
            if let Err(error) = self.sweep_one(watched.get(&name), observed).await {
                trouble.get_or_insert(error);
            }
        }
        for (key, watched) in &watched {
            if let Err(error) = self.report_held_back(key, watched).await {
                trouble.get_or_insert(error);
            }
        }
        trouble.map_or(Ok(()), Err)
    }

    /// Reports dead letters that were held back, of any queue.
    async fn sweep_held_back(&self) -> Result<()> {
        let mut trouble = None;
        for (key, watched) in &self.all_watched().await? {
            if let Err(error) = self.report_held_back(key, watched).await {
                trouble.get_or_insert(error);
            }
        }
        trouble.map_or(Ok(()), Err)
    }

    async fn sweep_one(&self, watched: Option<&Watched>, observed: Observed<'_>) -> Result<()> {
        let Observed { seen, slots, is_retired, fenced } = observed;
        let (name, record) = (&seen.lease, &seen.record);
        // A rule about jobs has judged it as one, whether it was ever run or not.
        let subject = match slots {
            None if !is_retired => Subject::of(name, record),
            _ => Subject::Job(name.clone()),
        };
        if !Subject::is_reported(name) || !self.watches(&subject) || record.relocation.is_some() {
            return Ok(());
        }
        let facts = match slots {
            Some((definition, journal)) => overdue(definition, record, &journal, seen.now)?.1,
            None => Facts::of_lease(record, seen.now),
        };
        let facts = if is_retired { facts.retired(seen.now) } else { facts };
        let facts = if let Some(total) = fenced { facts.with_fenced(total, 0) } else { facts }.without_fresh(seen.now);
        let none = Watched::default();
        let watched = watched.unwrap_or(&none);
        if watched.has_waiting() || watched.judged(&subject, self.rules(), &facts, seen.now).is_some() {
            self.judge(&subject, &facts).await?;
        }
        Ok(())
    }

    /// The facts about a lease whose run has ended, with its slots if a rule is about them: slots missed before the run
    /// are judged before it. A slot that is due now may be starting at this moment, so it is left to a sweep.
    pub async fn facts(&self, lease: &LeaseName, seen: &Inspection) -> Result<Facts> {
        if seen.record.slot.is_some() && self.rules().iter().any(Rule::watches_slots) {
            let definition = Definitions::new(self.coordinator().clone()).read(lease).await?;
            if let Some(definition) = definition {
                let (journal, _) = Journals::new(self.coordinator().clone()).read(lease).await?;
                let nothing_due = Plan { interrupted: None, due: Due::default(), ahead: None };
                let facts = Facts::of_lease(&seen.record, seen.now);
                return Ok(facts.with_slots(&definition.schedule()?, &journal, &nothing_due, None));
            }
        }
        Ok(Facts::of_lease(&seen.record, seen.now))
    }

    /// Judges the dead letters of a queue or a spool, and reports what was held
    /// back for others. Letters that cannot be read are left for a later sweep.
    pub async fn sweep_letters(&self, subject: &Subject, backlog: &impl Backlog) -> Result<()> {
        if !self.watches(subject) {
            return self.sweep_held_back().await;
        }
        let own = async {
            let letters = backlog.dead_letters(&mut Vec::new()).await?;
            self.judge(subject, &Facts::of_survey(letters)).await
        };
        let own = own.await;
        self.sweep_held_back().await.and(own)
    }

    async fn all_journals(&self) -> Result<HashMap<LeaseName, Journal>> {
        let journals = Journals::new(self.coordinator().clone());
        let (mut all, mut after) = (HashMap::new(), None);
        loop {
            let (page, more) = journals.list(after.as_ref(), PAGE).await?;
            after = page.last().map(|(name, _)| name.clone());
            all.extend(page.into_iter().filter_map(|(name, journal)| Some((name, journal.ok()?))));
            if !more {
                return Ok(all);
            }
        }
    }

    async fn all_watched(&self) -> Result<HashMap<LeaseName, Watched>> {
        let (mut all, mut after) = (HashMap::new(), None);
        loop {
            let page = self.coordinator().store().list(Shelf::Watch, Range::new(after.as_ref(), PAGE)).await?;
            after = page.entries.last().map(|(name, _)| name.clone());
            let decoded = page.entries.into_iter().filter_map(|(name, value)| {
                let watched: Watched = codec::decode(KIND, &value.bytes, name.as_str()).ok()?;
                Some((name, watched))
            });
            all.extend(decoded);
            if !page.more {
                return Ok(all);
            }
        }
    }

    /// How many stale writes of each lease were refused, if a rule is about that.
    async fn all_fenced(&self) -> Result<HashMap<LeaseName, u64>> {
        let mut all = HashMap::new();
        if !self.rules().iter().any(|rule| rule.on.has(Cause::Fenced)) {
            return Ok(all);
        }
        let mut after = None;
        loop {
            let (page, more) = self.coordinator().list_counters(after.as_ref(), PAGE).await?;
            after = page.last().map(|(name, _)| name.clone());
            let counted =
                page.into_iter().filter_map(|(name, counters)| Some((name, counters.ok()?.get(Event::Fenced))));
            all.extend(counted);
            if !more {
                return Ok(all);
            }
        }
    }
}

/// What a sweep read about one lease.
struct Observed<'a> {
    seen: &'a Inspection,
    slots: Option<(&'a Definition, Journal)>,
    /// Whether it is a job that was published and is no longer.
    is_retired: bool,
    fenced: Option<u64>,
}
