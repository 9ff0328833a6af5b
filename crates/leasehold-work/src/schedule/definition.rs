//! The definition of a job, as schedulers publish it: when it is due, so that anybody can notice that nobody ran it.
//!
//! Promise: if two files define the same job, the newer one counts, by its revision, in whatever order they are
//! published: two schedulers with different files do not overwrite each other's definitions. The command itself stays
//! in the file, because it may contain secrets; only a digest is published. `run --slot` publishes too, for jobs that
//! no file has. Non-promise: a scheduler runs what its own file says, published or not.

use crate::schedule::due::CatchUp;
use crate::schedule::job::{Job, LATE_AFTER, Timing, slot_delay};
use crate::schedule::slots::Schedule;
use leasehold_core::cell::{Fate, MAX_ATTEMPTS};
use leasehold_core::document::{Document, Edit};
use leasehold_core::store::Range;
use leasehold_core::{Coordinator, Error, Key, LeaseName, Result, Shelf, Slot, Timestamp, codec};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

const KIND: &str = "job";
/// The owner of what `run --slot` publishes. The owner of a file is a path, or what the file says.
const RUN: &str = "run --slot";
const PAGE: usize = 500;

/// Decides which of two files is newer: by the `revision` in the file if there
/// is one, then by the time of its last change.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileRevision {
    /// The `revision` in the file. A file with one is newer than all files without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// When the file was last written, by its machine's clock, in milliseconds since 1970.
    pub modified_ms: u64,
    /// A digest of the file's content. It orders files that are otherwise equal, in the same way everywhere.
    pub digest: String,
}

impl FileRevision {
    /// The revision of a file with this text, last written this long after 1970.
    pub fn new(number: Option<u64>, modified: Duration, text: &str) -> Self {
        let modified_ms = u64::try_from(modified.as_millis()).unwrap_or(u64::MAX);
        FileRevision { number, modified_ms, digest: format!("{:032x}", crate::digest::digest([text])) }
    }
}

impl std::fmt::Display for FileRevision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let written = super::job::slot_text(Slot(Timestamp::from_millis(self.modified_ms)));
        match self.number {
            Some(number) => write!(f, "revision {number}, written {written}"),
            None => write!(f, "written {written}"),
        }
    }
}

/// A file with jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publisher {
    /// Whose jobs they are. Jobs that are missing in a newer file of the same owner are retired.
    pub owner: String,
    /// The revision of that file.
    pub revision: FileRevision,
    /// The machine that publishes it.
    pub host: String,
}

/// A job as it is published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Definition {
    /// When it is due.
    pub timing: Timing,
    catch_up: u32,
    catch_up_max_age_ms: u64,
    jitter_ms: u64,
    late_after_ms: u64,
    /// The labels of machines that may run it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on: Vec<String>,
    /// A digest of its command, its arguments and its environment.
    pub command: String,
    name: LeaseName,
    /// Whose job it is.
    pub owner: String,
    /// The revision of the file that it is from.
    pub revision: FileRevision,
    /// The machine that published it.
    pub host: String,
    /// When it was first published, in store time. Changing the job does not change this.
    pub at: Timestamp,
}

/// Refuses bytes that are not a published definition of the job of this name, or one that nobody could act on.
pub(crate) fn check(bytes: &[u8], name: &str) -> Result<()> {
    let Some(definition) = codec::decode::<Published>(KIND, bytes, name)?.definition else { return Ok(()) };
    if definition.name.as_str() != name {
        let form = format!("it is published as `{name}`; publish a job under its own name");
        return Err(Error::invalid("name of a job", &definition.name, form));
    }
    definition.schedule()?;
    definition.catch_up().map(drop)
}

/// The record of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Published {
    definition: Option<Definition>,
    /// The file in which the job was missing: an older file does not publish it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retired: Option<(String, FileRevision)>,
}

impl Published {
    /// The newer file of this owner in which the job is missing.
    fn retired_after(&self, publisher: &Publisher) -> Option<&FileRevision> {
        let (owner, revision) = self.retired.as_ref()?;
        (*owner == publisher.owner && *revision > publisher.revision).then_some(revision)
    }
}

impl Definition {
    /// The definition of a job in this file.
    pub fn of(job: &Job, publisher: &Publisher, at: Timestamp) -> Self {
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let env = job.env.iter().flat_map(|(name, value)| [name.as_str(), value.as_str()]);
        let words = job.argv.iter().map(String::as_str).chain(["\0"]).chain(env);
        Definition {
            timing: job.timing.clone(),
            catch_up: job.catch_up.count(),
            catch_up_max_age_ms: ms(job.catch_up.max_age()),
            jitter_ms: ms(job.jitter),
            late_after_ms: ms(job.late_after),
            on: job.on.clone(),
            command: format!("{:016x}", crate::digest::digest(words) as u64),
            name: job.name.clone(),
            owner: publisher.owner.clone(),
            revision: publisher.revision.clone(),
            host: publisher.host.clone(),
            at,
        }
    }

    /// The definition of a job without a file, according to a run of this slot. What starts the job may always do so
    /// long after the slot; the job is late only when it is later than that.
    fn of_run(run: &RunDefinition, slot: Slot, now: Timestamp) -> Self {
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Definition {
            timing: run.timing.clone(),
            catch_up: run.catch_up.count(),
            catch_up_max_age_ms: ms(run.catch_up.max_age()),
            jitter_ms: 0,
            late_after_ms: ms(LATE_AFTER + now.saturating_since(slot.0)).next_multiple_of(60_000),
            on: Vec::new(),
            command: String::new(),
            name: run.name.clone(),
            owner: RUN.to_owned(),
            // Any file's is newer.
            revision: FileRevision::default(),
            host: run.host.clone(),
            at: now,
        }
    }

    /// What a run has to publish when it finds `old`, if anything: a file's definition stays.
    fn after_run(old: Option<&Definition>, run: &RunDefinition, slot: Slot, now: Timestamp) -> Option<Self> {
        let new = Definition::of_run(run, slot, now);
        let Some(old) = old else { return Some(new) };
        let is_same = old.timing == new.timing && old.catch_up == new.catch_up;
        let is_same = is_same && old.catch_up_max_age_ms == new.catch_up_max_age_ms;
        (old.owner == RUN && !is_same).then_some(Definition { at: old.at, ..new })
    }

    /// When it is due.
    pub fn schedule(&self) -> Result<Arc<Schedule>> {
        self.timing.schedule().map(Arc::new)
    }

    /// How many missed slots are caught up on.
    pub fn catch_up(&self) -> Result<CatchUp> {
        CatchUp::new(self.catch_up, Duration::from_millis(self.catch_up_max_age_ms))
    }

    /// How long after its instant a slot starts.
    pub fn delay(&self, slot: Slot) -> Duration {
        slot_delay(&self.name, slot, Duration::from_millis(self.jitter_ms))
    }

    /// How long after that it counts as late.
    pub const fn late_after(&self) -> Duration {
        Duration::from_millis(self.late_after_ms)
    }

    /// Whether it is from a file with jobs, and not only from the flags of a run.
    pub fn is_of_file(&self) -> bool {
        self.owner != RUN
    }

    /// The differences between two definitions, in words for people.
    pub fn differences(&self, other: &Definition) -> Vec<String> {
        let duration = |ms: u64| leasehold_core::format_duration(Duration::from_millis(ms));
        let rows = [
            ("schedule", self.timing.to_string(), other.timing.to_string()),
            ("catch_up", self.catch_up.to_string(), other.catch_up.to_string()),
            ("catch_up_max_age", duration(self.catch_up_max_age_ms), duration(other.catch_up_max_age_ms)),
            ("jitter", duration(self.jitter_ms), duration(other.jitter_ms)),
            ("late_after", duration(self.late_after_ms), duration(other.late_after_ms)),
            ("on", self.on.join(", "), other.on.join(", ")),
            ("owner", self.owner.clone(), other.owner.clone()),
        ];
        let changed = rows.into_iter().filter(|(_, old, new)| old != new);
        let mut words: Vec<String> = changed.map(|(field, old, new)| format!("{field}: {old} -> {new}")).collect();
        if self.command != other.command {
            words.push("command: changed".to_owned());
        }
        words
    }

    /// Whether both say the same about the job, from whichever file.
    fn says_the_same(&self, other: &Definition) -> bool {
        self.differences(other).is_empty()
    }
}

/// A job that only the flags of `run --slot` define.
#[derive(Debug, Clone)]
pub struct RunDefinition {
    /// The job that is run.
    pub name: LeaseName,
    /// When it is due.
    pub timing: Timing,
    /// How many missed slots are caught up on.
    pub catch_up: CatchUp,
    /// The machine that runs it.
    pub host: String,
}

/// The result of publishing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PublishReport {
    /// How many jobs were published for the first time or changed.
    pub published: usize,
    /// Jobs that are no longer in the file.
    pub retired: Vec<LeaseName>,
    /// Jobs that a newer file defines differently, and where that was published.
    pub outdated: Vec<(LeaseName, String)>,
    /// Jobs that a newer file of the same owner is without, and which file that is. They are not published.
    pub left_out: Vec<(LeaseName, String)>,
}

/// The published definitions of a store's jobs.
#[derive(Debug, Clone)]
pub struct Definitions {
    coordinator: Coordinator,
}

impl Definitions {
    /// The definitions in this store.
    pub fn new(coordinator: Coordinator) -> Self {
        Definitions { coordinator }
    }

    /// The definition of one job, if it is published.
    pub async fn read(&self, job: &LeaseName) -> Result<Option<Definition>> {
        Ok(self.document(job).look(self.coordinator.clock().now()).await?.record.definition)
    }

    /// The newer file of the same owner in which this job is missing: with it, an older one does not publish the job.
    pub async fn retired_by(&self, job: &LeaseName, publisher: &Publisher) -> Result<Option<FileRevision>> {
        let seen = self.document(job).look(self.coordinator.clock().now()).await?;
        Ok(seen.record.retired_after(publisher).cloned())
    }

    /// All definitions. Those that cannot be read are left out.
    pub async fn all(&self) -> Result<Vec<(LeaseName, Definition)>> {
        self.all_and_retired().await.map(|(all, _)| all)
    }

    /// All definitions, and the jobs that had one once: a newer file is without them, or an operator has retired them.
    /// Those that cannot be read are left out.
    pub async fn all_and_retired(&self) -> Result<(Vec<(LeaseName, Definition)>, HashSet<LeaseName>)> {
        let (mut all, mut retired, mut after) = (Vec::new(), HashSet::new(), None);
        loop {
            let (records, next) = self.records(after.as_ref(), PAGE).await?;
            for (name, record) in records {
                match record.map(|published| published.definition) {
                    Ok(Some(definition)) => all.push((name, definition)),
                    Ok(None) => {
                        retired.insert(name);
                    }
                    Err(_) => {}
                }
            }
            match next {
                Some(next) => after = Some(next),
                None => return Ok((all, retired)),
            }
        }
    }

    /// The definitions after a name, among the next `limit` records, and where the next page begins. One that cannot be
    /// read is an error in its place.
    pub async fn page(
        &self,
        after: Option<&LeaseName>,
        limit: usize,
    ) -> Result<(Vec<(LeaseName, Result<Definition>)>, Option<LeaseName>)> {
        let (records, next) = self.records(after, limit).await?;
        let defined = records.into_iter().filter_map(|(name, record)| {
            let definition = record.map(|published| published.definition).transpose()?;
            Some((name, definition))
        });
        Ok((defined.collect(), next))
    }

    async fn records(
        &self,
        after: Option<&LeaseName>,
        limit: usize,
    ) -> Result<(Vec<(LeaseName, Result<Published>)>, Option<LeaseName>)> {
        let page = self.coordinator.store().list(Shelf::Job, Range::new(after, limit)).await?;
        let next = page.entries.last().map(|(name, _)| name.clone()).filter(|_| page.more);
        let decoded = page.entries.into_iter().map(|(name, value)| {
            let published = codec::decode::<Published>(KIND, &value.bytes, name.as_str());
            (name, published)
        });
        Ok((decoded.collect(), next))
    }

    /// Publishes the jobs of a file, and retires those of its owner that are no
    /// longer in it. A newer file's definitions stay.
    pub async fn publish(&self, jobs: &[Arc<Job>], publisher: &Publisher) -> Result<PublishReport> {
        let known: std::collections::HashMap<LeaseName, Definition> = self.all().await?.into_iter().collect();
        let mut report = PublishReport::default();
        for job in jobs {
            let old = known.get(&job.name);
            let is_settled = |old: &&Definition| {
                let new = Definition::of(job, publisher, old.at);
                old.revision > new.revision || **old == Definition { host: old.host.clone(), ..new }
            };
            let seen = match old.filter(is_settled) {
                Some(old) => old.clone(),
                None => match self.put(job, publisher).await? {
                    Ok(definition) => definition,
                    Err(newer) => {
                        report.left_out.push((job.name.clone(), format!("{}, {newer}", publisher.owner)));
                        continue;
                    }
                },
            };
            if seen.revision > publisher.revision {
                if !seen.says_the_same(&Definition::of(job, publisher, seen.at)) {
                    report.outdated.push((job.name.clone(), format!("{} on {}", seen.owner, seen.host)));
                }
            } else if old != Some(&seen) {
                report.published += 1;
            }
        }
        let ours: HashSet<&LeaseName> = jobs.iter().map(|job| &job.name).collect();
        for (name, old) in &known {
            let is_gone = !ours.contains(name) && old.owner == publisher.owner && old.revision < publisher.revision;
            if is_gone && self.retire(name, publisher).await? {
                report.retired.push(name.clone());
            }
        }
        report.retired.sort();
        Ok(report)
    }

    /// Publishes a job according to a run of this slot, unless a file has defined it;
    /// returns whether anything changed. It costs one read, and a write only if the
    /// job is new or its flags have changed. If runs differ, the last one counts.
    pub async fn publish_run(&self, run: &RunDefinition, slot: Slot) -> Result<bool> {
        let decide = |before: &Published, now| {
            let next = Definition::after_run(before.definition.as_ref(), run, slot, now);
            Ok(next.map(|next| Published { definition: Some(next), retired: before.retired.clone() }))
        };
        let edit = Edit { decide: &decide, fate: &|_| Fate::NotApplied, attempts: MAX_ATTEMPTS };
        let before = self.document(&run.name).change(self.coordinator.clock().as_ref(), &edit).await?;
        Ok(decide(&before.record, before.anchor.now)?.is_some())
    }

    /// Publishes one job, unless a newer file has; returns the definition that is now published. If a newer file of the
    /// same owner is without the job, nothing is published, and that file is returned.
    async fn put(&self, job: &Job, publisher: &Publisher) -> Result<std::result::Result<Definition, FileRevision>> {
        let next = |before: &Published, now| {
            let at = before.definition.as_ref().map_or(now, |old| old.at);
            Definition::of(job, publisher, at)
        };
        let decide = |before: &Published, now| {
            let is_newer = before.definition.as_ref().is_some_and(|old| old.revision > publisher.revision);
            let definition = Some(next(before, now));
            let is_same = before.definition == definition;
            let is_retired = before.retired_after(publisher).is_some();
            Ok((!is_newer && !is_retired && !is_same).then_some(Published { definition, retired: None }))
        };
        let edit = Edit { decide: &decide, fate: &|_| Fate::NotApplied, attempts: MAX_ATTEMPTS };
        let before = self.document(&job.name).change(self.coordinator.clock().as_ref(), &edit).await?;
        let written = decide(&before.record, before.anchor.now)?.unwrap_or(before.record);
        let newer = written.retired_after(publisher).cloned();
        let definition = written.definition.unwrap_or_else(|| next(&Published::default(), before.anchor.now));
        Ok(newer.map_or(Ok(definition), Err))
    }

    /// Retires what an older file of the same owner published; returns whether there was something.
    async fn retire(&self, name: &LeaseName, publisher: &Publisher) -> Result<bool> {
        let decide = |before: &Published, _| {
            let old = before.definition.as_ref();
            let is_ours = old.is_some_and(|old| old.owner == publisher.owner && old.revision < publisher.revision);
            let retired = Some((publisher.owner.clone(), publisher.revision.clone()));
            Ok(is_ours.then_some(Published { definition: None, retired }))
        };
        let edit = Edit { decide: &decide, fate: &|_| Fate::NotApplied, attempts: MAX_ATTEMPTS };
        let before = self.document(name).change(self.coordinator.clock().as_ref(), &edit).await?;
        Ok(decide(&before.record, before.anchor.now)?.is_some())
    }

    /// Removes a definition, whoever published it, until a scheduler or a run
    /// publishes it again. Returns whether there was one.
    pub async fn remove(&self, name: &LeaseName) -> Result<bool> {
        let decide = |before: &Published, _| Ok(before.definition.is_some().then(Published::default));
        let edit = Edit { decide: &decide, fate: &|_| Fate::NotApplied, attempts: MAX_ATTEMPTS };
        let before = self.document(name).change(self.coordinator.clock().as_ref(), &edit).await?;
        Ok(before.record.definition.is_some())
    }

    fn document(&self, job: &LeaseName) -> Document<'_, Published> {
        let what = format!("the definition of `{job}`");
        Document::new(self.coordinator.store().as_ref(), Key::new(Shelf::Job, job), KIND, what).unless_moved()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::MemoryStore;

    fn run(line: &str) -> RunDefinition {
        let name = LeaseName::new("tick").unwrap();
        let timing = Timing::of_line(line, None, None, None);
        RunDefinition { name, timing, catch_up: CatchUp::default(), host: "a".into() }
    }

    async fn revision(definitions: &Definitions) -> Option<leasehold_core::Revision> {
        let key = Key::new(Shelf::Job, &LeaseName::new("tick").unwrap());
        definitions.coordinator.store().read(&key).await.unwrap().value.map(|value| value.revision)
    }

    #[tokio::test]
    async fn a_run_publishes_once_and_again_only_when_its_line_has_changed() {
        let definitions = Definitions::new(Coordinator::new(Arc::new(MemoryStore::default())));
        let now = definitions.coordinator.store().read(&Key::new(Shelf::Job, &run("@daily").name)).await.unwrap().now;
        let slot = |minutes_ago: u64| Slot(Timestamp::from_millis(now.as_millis() - minutes_ago * 60_000));
        assert!(definitions.publish_run(&run("@hourly"), slot(30)).await.unwrap());
        let published = revision(&definitions).await;
        // Started sooner or later after its slot, or by another machine: nothing is written.
        let other = RunDefinition { host: "b".into(), ..run("@hourly") };
        assert!(!definitions.publish_run(&other, slot(5)).await.unwrap());
        assert_eq!(revision(&definitions).await, published);
        let late_after = definitions.all().await.unwrap()[0].1.late_after();
        assert!((35..=37).contains(&(late_after.as_secs() / 60)), "{late_after:?}");
        assert!(definitions.publish_run(&run("@daily"), slot(0)).await.unwrap());
        assert_ne!(revision(&definitions).await, published);
        // A file's definition stays.
        let table = toml_job();
        let revision = FileRevision::new(None, Duration::from_secs(1), "text");
        let publisher = Publisher { owner: "team".into(), revision, host: "c".into() };
        assert_eq!(definitions.publish(&[Arc::new(table)], &publisher).await.unwrap().published, 1);
        assert!(!definitions.publish_run(&run("@hourly"), slot(0)).await.unwrap());
        assert_eq!(definitions.all().await.unwrap()[0].1.owner, "team");
    }

    #[tokio::test]
    async fn an_older_file_publishes_no_job_that_a_newer_one_is_without_and_is_told_so() {
        let definitions = Definitions::new(Coordinator::new(Arc::new(MemoryStore::default())));
        let publisher = |number: u64| {
            let revision = FileRevision::new(Some(number), Duration::from_secs(1), "text");
            Publisher { owner: "team".into(), revision, host: "a".into() }
        };
        let jobs = [Arc::new(toml_job())];
        assert_eq!(definitions.publish(&jobs, &publisher(1)).await.unwrap().published, 1);
        assert_eq!(definitions.publish(&[], &publisher(2)).await.unwrap().retired, [jobs[0].name.clone()]);
        let report = definitions.publish(&jobs, &publisher(1)).await.unwrap();
        let newer = "team, revision 2, written 1970-01-01T00:00:01Z".to_owned();
        let left_out = vec![(jobs[0].name.clone(), newer)];
        assert_eq!(report, PublishReport { left_out, ..PublishReport::default() });
        let (all, retired) = definitions.all_and_retired().await.unwrap();
        assert!(all.is_empty() && retired.contains(&jobs[0].name), "{all:?}");
        // In a file that is newer still it is back.
        let report = definitions.publish(&jobs, &publisher(3)).await.unwrap();
        assert_eq!(report, PublishReport { published: 1, ..PublishReport::default() });
    }

    fn toml_job() -> Job {
        let table = serde_json::json!({ "name": "tick", "every": "2h", "command": "true" });
        Job::read(serde_json::from_value(table).unwrap(), 1).unwrap()
    }
}
