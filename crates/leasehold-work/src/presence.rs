//! Presence: which servers, schedulers and workers there are, and when each last reported.
//!
//! Each such process maintains one small record, with the store's time, under a number of its host. A process that
//! ends removes it. The record of a killed process is shown as silent for a day, unless a new process of the same host
//! needs the number. So there are never more records than there were processes at once.
//!
//! Promise: best effort in the background. Nothing waits for it but the end of the
//! process, and that for at most a second; if the store refuses a record, no more are
//! sent. Through a server a process writes its own record alone, and that says by which key.
//! Non-promise: no decision depends on it. Other records say who holds what.

use crate::queue::QueueName;
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::store::{Change, Range, Swap, Verb};
use leasehold_core::{
    Error, Key, Kind, Label, LeaseName, Line, Nonce, Result, Revision, Shelf, Store, Timestamp, codec,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

const KIND: &str = "presence";
/// A process that ends sooner leaves no record.
const FIRST: Duration = Duration::from_secs(1);
/// The interval of reports.
const EVERY: Duration = Duration::from_secs(45);
/// A process that did not report for this long is gone, or cannot reach the store.
pub const SILENT: Duration = Duration::from_secs(150);
/// How long after its last report a process is shown.
pub const SHOWN: Duration = Duration::from_secs(24 * 3_600);
/// How long removing the record may take when the process ends.
const PATIENCE: Duration = Duration::from_secs(1);
/// Records for processes of one role on one host. More processes are not recorded.
const RECORDS: usize = 64;
/// How many old records a new process reads, to remove those that are no longer shown.
const MAX_SWEPT: usize = 500;

leasehold_system::words! {
    /// The role of a process.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Role {
        /// `leasehold serve`.
        Server = "server",
        /// `leasehold schedule`.
        Scheduler = "scheduler",
        /// `leasehold work`.
        Worker = "worker",
    }
}

/// The key that a process reports with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Via {
    /// What people call it.
    pub label: Label,
    /// The id of the key that it was reported with.
    pub key: Line<64>,
    /// What all keys have in common that were made for the tokens of one subject; none of another key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<Line<64>>,
}

/// A process, as it last reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Presence {
    /// The role of the process.
    pub role: Role,
    /// The name of its machine.
    pub host: String,
    /// The process id on that machine.
    pub pid: u32,
    /// The version of the program.
    pub version: String,
    /// The queue that a worker is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The key of a process that reports through a server; the server says which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<Via>,
    /// When it first reported, by the store's clock.
    pub since: Timestamp,
    /// When it last reported, by the store's clock.
    #[serde(rename = "heard")]
    pub reported: Timestamp,
    /// Identifies the process, even if its id is reused.
    nonce: Nonce,
}

impl Presence {
    /// This process, before its first report.
    pub fn own(role: Role, queue: Option<String>) -> Self {
        let never = Timestamp::from_millis(0);
        Presence {
            role,
            host: leasehold_system::host::name(),
            pid: leasehold_system::host::pid(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            queue,
            via: None,
            since: never,
            reported: never,
            nonce: Nonce::random(),
        }
    }

    /// Whether it should have reported since.
    pub fn is_silent(&self, now: Timestamp) -> bool {
        now.saturating_since(self.reported) >= SILENT
    }

    fn is_over(&self, now: Timestamp) -> bool {
        now.saturating_since(self.reported) >= SHOWN
    }

    fn record_key(&self, number: usize) -> Result<Key> {
        let fit = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
        let host: String = self.host.chars().map(fit).take(64).collect();
        let host = if host.is_empty() { "_" } else { &host };
        Ok(Key::new(Shelf::Presence, &LeaseName::new(format!("{}/{host}/{number:02}", self.role.as_str()))?))
    }
}

/// The processes that reported within the last day.
#[derive(Debug)]
pub struct Processes {
    /// In the order of their roles and hosts.
    pub processes: Vec<Presence>,
    /// Whether there may be more.
    pub more: bool,
    /// The store's time.
    pub now: Timestamp,
}

/// Reads at most `limit` records. Records that cannot be read are left out.
pub async fn processes(store: &dyn Store, limit: usize) -> Result<Processes> {
    let page = store.list(Shelf::Presence, Range::new(None, limit)).await?;
    let decode = |(name, value): &(LeaseName, _)| read(name, value);
    let found = page.entries.iter().filter_map(decode);
    Ok(Processes { processes: found.filter(|it| !it.is_over(page.now)).collect(), more: page.more, now: page.now })
}

/// What a client of a server reports under this key, as the server records it: with its key, at the store's time, and of bounded
/// size, whatever it says itself.
pub fn reported(bytes: &[u8], key: &Key, via: Via, now: Timestamp) -> Result<Presence> {
    let own: Presence = codec::decode(KIND, bytes, key.name.as_str())?;
    Line::<255>::named("host", own.host.as_str())?;
    Line::<64>::named("version", own.version.as_str())?;
    own.queue.as_deref().map(str::parse::<QueueName>).transpose()?;
    if own.role == Role::Server || own.queue.is_some() != (own.role == Role::Worker) {
        return Err(Error::new(Kind::Invalid, "a client is a scheduler, or a worker of a queue"));
    }
    if !(0..RECORDS).any(|number| own.record_key(number).is_ok_and(|own_key| own_key == *key)) {
        let what = format!("`{key}` is not the name of a record of a {} on that host", own.role.as_str());
        return Err(Error::new(Kind::Invalid, what));
    }
    let since = if own.since.as_millis() == 0 { now } else { own.since.min(now) };
    Ok(Presence { via: Some(via), since, reported: now, ..own })
}

impl Presence {
    /// The stored record; none if it cannot be read.
    pub fn decode(bytes: &[u8], name: &str) -> Option<Self> {
        codec::decode(KIND, bytes, name).ok()
    }

    /// The record to store.
    pub fn encode(&self) -> Result<Vec<u8>> {
        codec::encode(KIND, self)
    }

    /// Whether it reports with this key, or with another of the same account.
    pub fn is_of_account(&self, key: &str, account: Option<&Line<64>>) -> bool {
        self.is_of(key) || self.via.as_ref().is_some_and(|via| via.account.is_some() && via.account.as_ref() == account)
    }

    /// Whether it reports with this key.
    pub fn is_of(&self, key: &str) -> bool {
        self.via.as_ref().is_some_and(|via| via.key.as_str() == key)
    }
}

fn read(name: &LeaseName, value: &leasehold_core::store::Versioned) -> Option<Presence> {
    Presence::decode(&value.bytes, name.as_str())
}

/// A process whose record is maintained in the background.
#[derive(Debug)]
pub struct Announced {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Announced {
    /// Records a process, soon, and reports until [`Announced::end`].
    pub fn start(store: Arc<dyn Store>, own: Presence) -> Self {
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(keep(Announcer { store, own, at: None }, stopped));
        Announced { stop, task }
    }

    /// Removes the record. If that takes longer than a second, it is abandoned.
    pub async fn end(self) {
        let _ = self.stop.send(true);
        let mut task = self.task;
        if tokio::time::timeout(PATIENCE, &mut task).await.is_err() {
            task.abort();
        }
    }
}

async fn keep(mut announcer: Announcer, mut stopped: watch::Receiver<bool>) {
    let mut next = SystemClock.now() + FIRST;
    loop {
        tokio::select! {
            _ = stopped.changed() => break,
            () = SystemClock.sleep_until(next) => {}
        }
        tokio::select! {
            _ = stopped.changed() => break,
            told = tokio::time::timeout(EVERY, announcer.tell()) => {
                // A temporary error is retried with the next report; a store
                // that refuses this one refuses the next too.
                if let Ok(Err(error)) = told && !is_temporary(&error) {
                    return;
                }
            }
        }
        next = SystemClock.now() + EVERY;
    }
    announcer.end().await;
}

fn is_temporary(error: &Error) -> bool {
    error.is_retryable() || error.kind() == Kind::Indeterminate
}

/// Maintains one record.
#[derive(Debug)]
struct Announcer {
    store: Arc<dyn Store>,
    own: Presence,
    /// The record's key, once it has one.
    at: Option<Key>,
}

impl Announcer {
    /// Reports that this process is alive.
    async fn tell(&mut self) -> Result<()> {
        if let Some(key) = self.at.clone() {
            let reading = self.store.read(&key).await?;
            let is_ours = |found: &Presence| found.nonce == self.own.nonce;
            if let Some(value) = reading.value.filter(|value| read(&key.name, value).as_ref().is_some_and(is_ours)) {
                self.put(&key, Some(&value.revision), reading.now).await?;
                return Ok(());
            }
            // Another process has taken the record, because this one did not report for long.
            self.at = None;
        }
        self.take_a_record().await
    }

    async fn take_a_record(&mut self) -> Result<()> {
        let now = self.sweep().await?;
        let before = self.own.record_key(0)?.name;
        let before = LeaseName::new(before.as_str().trim_end_matches(char::is_numeric).to_owned() + "-")?;
        let page = self.store.list(Shelf::Presence, Range::new(Some(&before), RECORDS)).await?;
        for number in 0..RECORDS {
            let key = self.own.record_key(number)?;
            let found = page.entries.iter().find(|(name, _)| *name == key.name).map(|(_, value)| value);
            let is_free = |value: &leasehold_core::store::Versioned| {
                read(&key.name, value).is_none_or(|found| found.nonce == self.own.nonce || found.is_silent(now))
            };
            if !found.is_none_or(is_free) {
                continue;
            }
            if self.own.since.as_millis() == 0 {
                self.own.since = page.now;
            }
            // Another process that starts here at the same time may be faster.
            if self.put(&key, found.map(|value| &value.revision), page.now).await? {
                self.at = Some(key);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Removes records that are no longer shown; returns the store's time.
    async fn sweep(&self) -> Result<Timestamp> {
        let page = self.store.list(Shelf::Presence, Range::new(None, MAX_SWEPT)).await?;
        for (name, value) in &page.entries {
            if read(name, value).is_some_and(|found| found.is_over(page.now)) {
                self.erase(&Key::new(Shelf::Presence, name), &value.revision).await?;
            }
        }
        Ok(page.now)
    }

    /// Writes the record; false if another process has written there meanwhile.
    async fn put(&mut self, key: &Key, expected: Option<&Revision>, now: Timestamp) -> Result<bool> {
        self.own.reported = now;
        let bytes = self.own.encode()?;
        // Nobody waits for it.
        let change = Change { notify: false, verb: Verb::Document, ..Change::put(key, expected, &bytes) };
        Ok(matches!(self.store.write(&change).await?, Swap::Done { .. }))
    }

    async fn erase(&self, key: &Key, revision: &Revision) -> Result<()> {
        let change = Change { notify: false, verb: Verb::Purge, ..Change::erase(key, revision) };
        self.store.write(&change).await.map(drop)
    }

    /// Removes the record, if it is still this process's.
    async fn end(&self) {
        let Some(key) = &self.at else { return };
        let Ok(reading) = self.store.read(key).await else { return };
        let is_ours = |found: &Presence| found.nonce == self.own.nonce;
        if let Some(value) = reading.value.filter(|value| read(&key.name, value).as_ref().is_some_and(is_ours)) {
            let _ = self.erase(key, &value.revision).await;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use leasehold_core::MemoryStore;
    use leasehold_core::clock::ManualClock;

    fn announcer(store: &Arc<MemoryStore>, role: Role, host: &str, pid: u32) -> Announcer {
        let own = Presence { host: host.to_owned(), pid, ..Presence::own(role, None) };
        Announcer { store: store.clone(), own, at: None }
    }

    fn store() -> (Arc<ManualClock>, Arc<MemoryStore>) {
        let clock = Arc::new(ManualClock::default());
        (clock.clone(), Arc::new(MemoryStore::with_clock(clock)))
    }

    async fn pids(store: &Arc<MemoryStore>) -> Vec<(u32, bool)> {
        let found = processes(store.as_ref(), 100).await.unwrap();
        found.processes.iter().map(|it| (it.pid, it.is_silent(found.now))).collect()
    }

    #[tokio::test]
    async fn each_process_has_one_record_until_it_ends() {
        let (clock, store) = store();
        let mut one = announcer(&store, Role::Server, "box 1:ü", 1);
        let mut two = announcer(&store, Role::Server, "box 1:ü", 2);
        let mut three = announcer(&store, Role::Worker, "box-2", 3);
        for process in [&mut one, &mut two, &mut three] {
            process.tell().await.unwrap();
        }
        assert_eq!(pids(&store).await, [(1, false), (2, false), (3, false)]);
        let since = processes(store.as_ref(), 1).await.unwrap().processes[0].since;
        clock.advance(EVERY);
        one.tell().await.unwrap();
        let found = processes(store.as_ref(), 1).await.unwrap();
        assert_eq!((found.processes[0].since, found.processes[0].reported, found.more), (since, found.now, true));
        one.end().await;
        assert_eq!(pids(&store).await, [(2, false), (3, false)]);
    }

    #[tokio::test]
    async fn a_killed_process_is_silent_then_gone_and_its_place_is_used_again() {
        let (clock, store) = store();
        for pid in 1..=3 {
            announcer(&store, Role::Worker, "box", pid).tell().await.unwrap();
        }
        clock.advance(SILENT);
        assert_eq!(pids(&store).await, [(1, true), (2, true), (3, true)]);
        // A crash loop leaves one record, not one for each crash.
        for pid in 10..20 {
            announcer(&store, Role::Worker, "box", pid).tell().await.unwrap();
            clock.advance(SILENT);
        }
        assert_eq!(pids(&store).await, [(19, true), (2, true), (3, true)]);
        clock.advance(SHOWN);
        assert!(pids(&store).await.is_empty());
        announcer(&store, Role::Scheduler, "other", 5).tell().await.unwrap();
        let left = store.list(Shelf::Presence, Range::new(None, 10)).await.unwrap().entries;
        assert_eq!(left.len(), 1, "what nobody is shown is taken away");
    }

    #[tokio::test]
    async fn one_that_was_away_for_long_does_not_write_over_who_took_its_place() {
        let (clock, store) = store();
        let mut first = announcer(&store, Role::Server, "box", 1);
        first.tell().await.unwrap();
        clock.advance(SILENT);
        announcer(&store, Role::Server, "box", 2).tell().await.unwrap();
        first.tell().await.unwrap();
        assert_eq!(pids(&store).await, [(2, false), (1, false)]);
        first.end().await;
        assert_eq!(pids(&store).await, [(2, false)]);
    }

    #[tokio::test]
    async fn of_one_host_so_many_are_recorded_and_no_more() {
        let (_, store) = store();
        for pid in 0..RECORDS as u32 + 3 {
            announcer(&store, Role::Worker, "box", pid).tell().await.unwrap();
        }
        assert_eq!(pids(&store).await.len(), RECORDS);
    }

    #[tokio::test]
    async fn it_is_on_record_in_the_background_and_off_it_at_the_end() {
        let (_, store) = store();
        let announced = Announced::start(store.clone(), Presence::own(Role::Worker, Some("mail".into())));
        while pids(&store).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let found = processes(store.as_ref(), 10).await.unwrap().processes.remove(0);
        assert_eq!((found.queue.as_deref(), found.pid), (Some("mail"), leasehold_system::host::pid()));
        announced.end().await;
        assert!(pids(&store).await.is_empty());
        // A process that ends at once leaves no record.
        Announced::start(store.clone(), Presence::own(Role::Worker, None)).end().await;
        assert!(pids(&store).await.is_empty());
    }
}
