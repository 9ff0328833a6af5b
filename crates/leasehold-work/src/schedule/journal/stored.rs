//! The journals of all jobs: read, listed, and written note by note.
//!
//! Promise: an event in a note is counted once, by the first process that
//! writes the note. Non-promise: counting is best effort.

use super::{Entry, Fate, Journal, KIND, Note, RunEnd};
use crate::schedule::due::{Dropped, Interrupted, Plan};
use crate::schedule::requests::{Requested, RunRequests};
use async_trait::async_trait;
use leasehold_core::cell::{Fate as Written, MAX_ATTEMPTS};
use leasehold_core::codec;
use leasehold_core::document::{Document, Edit};
use leasehold_core::hints::Opening;
use leasehold_core::store::Range;
use leasehold_core::{Coordinator, Epoch, Key, LeaseName, LeaseVerbs, Result, Shelf, Slot, Timestamp};
use std::sync::Arc;

/// A job and its journal, or the error of reading it.
pub type Listed = (LeaseName, Result<Journal>);

/// What a scheduler needs besides the verbs on leases. Like those, these name no store.
#[async_trait]
pub trait JobVerbs: LeaseVerbs {
    /// One journal, and the store's time. A job without one has an empty journal.
    async fn journal(&self, job: &LeaseName) -> Result<(Journal, Timestamp)>;

    /// Journals of jobs after a name, a page at a time, and whether there may be more. A damaged one is returned as an
    /// error of its own and does not hide the others.
    async fn list_journals(&self, after: Option<&LeaseName>, limit: usize) -> Result<(Vec<Listed>, bool)>;

    /// Writes a note for the machine `host`; returns the journal before it and the time of writing.
    async fn write(&self, job: &LeaseName, note: &Note, host: &str) -> Result<(Journal, Timestamp)>;

    /// The requests for runs, and the store's time.
    async fn run_requests(&self) -> Result<(Vec<Requested>, Timestamp)>;

    /// Hints that there may be a new request; none where the store cannot push them.
    fn watch_run_requests(&self) -> Opening;
}

#[async_trait]
impl JobVerbs for Coordinator {
    async fn journal(&self, job: &LeaseName) -> Result<(Journal, Timestamp)> {
        let seen = document(self, job).look(self.clock().now()).await?;
        Ok((seen.record, seen.anchor.now))
    }

    async fn list_journals(&self, after: Option<&LeaseName>, limit: usize) -> Result<(Vec<Listed>, bool)> {
        let page = self.store().list(Shelf::Runs, Range::new(after, limit)).await?;
        let decoded = page.entries.into_iter().map(|(job, value)| {
            let journal = codec::decode(KIND, &value.bytes, job.as_str());
            (job, journal)
        });
        Ok((decoded.collect(), page.more))
    }

    async fn write(&self, job: &LeaseName, note: &Note, host: &str) -> Result<(Journal, Timestamp)> {
        let written = |old: &Journal, now| {
            let mut journal = old.clone();
            journal.write(note, now, host);
            Ok((journal != *old).then_some(journal))
        };
        // Every note may be written twice, so one without an answer is written again.
        let edit = Edit { decide: &written, fate: &|_| Written::NotApplied, attempts: MAX_ATTEMPTS };
        let before = document(self, job).change(self.clock().as_ref(), &edit).await?;
        Ok((before.record, before.anchor.now))
    }

    async fn run_requests(&self) -> Result<(Vec<Requested>, Timestamp)> {
        RunRequests::new(self.clone()).all().await
    }

    fn watch_run_requests(&self) -> Opening {
        RunRequests::new(self.clone()).watch()
    }
}

/// The first entry of a job is not written in a namespace that is moving or has moved to another store.
fn document<'a>(coordinator: &'a Coordinator, job: &LeaseName) -> Document<'a, Journal> {
    let what = format!("the journal of `{job}`");
    Document::new(coordinator.store().as_ref(), Key::new(Shelf::Runs, job), KIND, what).unless_moved()
}

/// Refuses bytes that are not a journal.
pub(crate) fn check(bytes: &[u8], name: &str) -> Result<()> {
    codec::decode::<Journal>(KIND, bytes, name).map(drop)
}

/// The journals, written on behalf of this machine.
#[derive(Debug, Clone)]
pub struct Journals {
    jobs: Arc<dyn JobVerbs>,
    host: String,
}

impl Journals {
    /// The journals that these verbs reach.
    pub fn new(jobs: impl JobVerbs + 'static) -> Self {
        Journals::shared(Arc::new(jobs))
    }

    pub(in crate::schedule) fn shared(jobs: Arc<dyn JobVerbs>) -> Self {
        Journals { jobs, host: leasehold_system::host::name() }
    }

    /// See [`JobVerbs::journal`].
    pub async fn read(&self, job: &LeaseName) -> Result<(Journal, Timestamp)> {
        self.jobs.journal(job).await
    }

    /// See [`JobVerbs::list_journals`].
    pub async fn list(&self, after: Option<&LeaseName>, limit: usize) -> Result<(Vec<Listed>, bool)> {
        self.jobs.list_journals(after, limit).await
    }

    /// Records that this job is known from now on, unless it was; returns since when it is known.
    pub async fn register(&self, job: &LeaseName) -> Result<Timestamp> {
        let (before, now) = self.jobs.write(job, &Note::Known, &self.host).await?;
        Ok(before.since.map_or(now, |since| since.min(now)))
    }

    /// See [`Journal::drop_slots`]; counts the new ones.
    pub async fn drop_slots(&self, job: &LeaseName, dropped: &[Dropped]) -> Result<Vec<Dropped>> {
        let note = Note::Dropped(dropped.to_vec());
        let (mut before, now) = self.jobs.write(job, &note, &self.host).await?;
        let new = before.drop_slots(dropped, now, &self.host);
        for dropped in &new {
            self.jobs.count_many(job, dropped.reason.event(), dropped.count).await?;
        }
        Ok(new)
    }

    /// See [`Journal::skip`]; counts the slot if it is new.
    pub async fn skip(&self, job: &LeaseName, slot: Slot, before: Option<Slot>, fate: Fate) -> Result<bool> {
        let note = Note::Skipped { slot, before, fate };
        let (mut old, now) = self.jobs.write(job, &note, &self.host).await?;
        let new = old.skip(slot, before, fate, now, &self.host);
        self.count(job, Some(fate).filter(|_| new)).await?;
        Ok(new)
    }

    /// See [`Journal::give_up`].
    pub async fn give_up(&self, job: &LeaseName, slot: Slot) -> Result<Option<Fate>> {
        let (mut before, now) = self.jobs.write(job, &Note::GivenUp(slot), &self.host).await?;
        let new = before.give_up(slot, now, &self.host);
        self.count(job, new).await?;
        Ok(new)
    }

    /// Records and counts what a plan gives up and drops; returns what is new.
    pub async fn settle(&self, job: &LeaseName, plan: &Plan) -> Result<(Option<(Slot, Fate)>, Vec<Dropped>)> {
        let mut given_up = None;
        if let Some(Interrupted::Died(slot)) = plan.interrupted {
            given_up = self.give_up(job, slot).await?.map(|fate| (slot, fate));
        }
        let dropped = &plan.due.dropped;
        Ok((given_up, if dropped.is_empty() { Vec::new() } else { self.drop_slots(job, dropped).await? }))
    }

    async fn count(&self, job: &LeaseName, new: Option<Fate>) -> Result<()> {
        match new.and_then(Fate::event) {
            Some(event) => self.jobs.count_many(job, event, 1).await,
            None => Ok(()),
        }
    }

    /// See [`Journal::rewind`].
    pub async fn rewind(&self, job: &LeaseName) -> Result<()> {
        self.jobs.write(job, &Note::Rewound, &self.host).await.map(drop)
    }

    /// See [`Journal::begin`]. Returns what was known of the slot before.
    pub async fn begin(&self, job: &LeaseName, slot: Slot, epoch: Epoch) -> Result<Option<Entry>> {
        let (before, _) = self.jobs.write(job, &Note::Began(slot, epoch), &self.host).await?;
        Ok(before.single(slot).cloned())
    }

    /// See [`Journal::end`].
    pub async fn end(&self, job: &LeaseName, slot: Slot, epoch: Epoch, end: RunEnd) -> Result<()> {
        self.jobs.write(job, &Note::Ended(slot, epoch, end), &self.host).await.map(drop)
    }
}
