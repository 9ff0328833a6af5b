//! A store in memory with one flaw.

mod leases;

use async_trait::async_trait;
use leasehold_core::store::{
    Along, Capabilities, Change, Next, Page, Range, Reading, Store, Survey, Swap, Versioned, Watch,
};
use leasehold_core::{Error, Key, Kind, LeaseName, MemoryStore, Ownership, Result, Revision, Shelf, Timestamp, codec};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

macro_rules! flaws {
    ($($flaw:ident),+ $(,)?) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Flaw { $($flaw),+ }
        impl Flaw {
            pub const ALL: &[Flaw] = &[$(Flaw::$flaw),+];
        }
    };
}

flaws![
    TakesAnyRevisionForAbsent,
    IgnoresTheExpectedRevision,
    SaysDoneWithoutWriting,
    WritesOnlyWhatDiffers,
    TakesErrorsForApplied,
    ReadsFromACache,
    CutsLongValues,
    IgnoresCase,
    ErasesWhateverIsThere,
    ReusesRevisionsAfterAnErase,
    TagsByContent,
    ForgetsOldRevisionsWereUsed,
    ErasesLeases,
    ListsTheFirstPageOnly,
    ListsOutOfOrder,
    TouchesWhatItLists,
    SkipsOneTooMany,
    SkipsWithinOnePage,
    ListsPastTheEnd,
    WritesAlongWithWhatItRefused,
    ForgetsWhatIsWrittenAlong,
    WritesAlongInASecondStep,
    ErasesLeasesAlong,
    ClockRunsBackwards,
    ClockStandsStill,
    ChecksThenWrites,
    DeniesWhatItDid,
    DeletesReleasedLeases,
    FallsBackToAnOlderLease,
    TellsHoldersByTheirLabel,
    RenewsWhoeverAsks,
    LooksBeforeItCreatesALease,
    RefusesToRepeatAWrite,
    FlushesRenewalsLate,
    StaysLockedByADroppedCall,
    NeverHints,
    DeletesExpiredLeases,
];

/// The longest value that a store which cuts them keeps.
const CUT: usize = 64 * 1024;
/// How many revisions a store remembers that counts them in a small circle.
const CIRCLE: u64 = 40;
/// Every so many swaps, something goes wrong in a store where errors happen.
const HICCUP: u64 = 7;
/// The most that a store lists at once which gives short pages.
const SHORT_PAGE: usize = 4;
/// How long it takes to get from one half of a write to the other, where that shows.
const SLOW_STEP: Duration = Duration::from_millis(3);

#[derive(Debug)]
pub struct BrokenStore {
    flaw: Flaw,
    contents: Arc<Contents>,
    /// What this handle has read before.
    cache: Mutex<HashMap<Key, Option<Versioned>>>,
}

/// A revision and what was stored with it.
type Version = (u64, Vec<u8>);

#[derive(Debug, Default)]
struct Contents {
    records: Mutex<BTreeMap<Key, Version>>,
    last_revision: AtomicU64,
    calls: AtomicU64,
    /// Every version of every lease.
    versions: Mutex<HashMap<Key, Vec<Version>>>,
    /// What a call has locked and not unlocked.
    locked: Mutex<HashSet<Key>>,
    /// Held while a swap checks and writes.
    turn: tokio::sync::Mutex<()>,
    /// Only asked for the time and for hints.
    sound: MemoryStore,
}

fn is_new_lease(key: &Key, expected: Option<&Revision>) -> bool {
    key.shelf == Shelf::Lease && expected.is_none()
}

impl BrokenStore {
    pub fn new(flaw: Flaw) -> Self {
        BrokenStore { flaw, contents: Arc::default(), cache: Mutex::default() }
    }

    pub fn another_handle(&self) -> Self {
        BrokenStore { flaw: self.flaw, contents: self.contents.clone(), cache: Mutex::default() }
    }

    fn call(&self) -> u64 {
        self.contents.calls.fetch_add(1, Ordering::SeqCst) + 1
    }

    async fn now(&self, key: &Key) -> Timestamp {
        let now = self.contents.sound.read(key).await.unwrap().now;
        match self.flaw {
            Flaw::ClockStandsStill => Timestamp::from_millis(1_700_000_000_000),
            Flaw::ClockRunsBackwards => Timestamp::from_millis(now.as_millis() - self.call() * 100),
            _ => now,
        }
    }

    fn key(&self, key: &Key) -> Key {
        match self.flaw {
            Flaw::IgnoresCase => Key::new(key.shelf, &key.name.as_str().to_lowercase().parse().unwrap()),
            _ => key.clone(),
        }
    }

    fn next_revision(&self, key: &Key, previous: Option<u64>, bytes: &[u8]) -> u64 {
        match self.flaw {
            Flaw::TagsByContent => bytes.iter().fold(bytes.len() as u64, |sum, b| sum.wrapping_mul(31) + u64::from(*b)),
            Flaw::ReusesRevisionsAfterAnErase if key.shelf == Shelf::Probe => previous.unwrap_or(0) + 1,
            Flaw::ForgetsOldRevisionsWereUsed => {
                (self.contents.last_revision.fetch_add(1, Ordering::SeqCst) + 1) % CIRCLE
            }
            _ => self.contents.last_revision.fetch_add(1, Ordering::SeqCst) + 1,
        }
    }

    fn current(&self, key: &Key) -> Option<Version> {
        self.contents.records.lock().unwrap().get(key).cloned()
    }

    fn holds(&self, key: &Key, expected: Option<&Revision>) -> bool {
        let current = self.current(key).map(|(revision, _)| revision.to_string());
        match self.flaw {
            Flaw::IgnoresTheExpectedRevision => expected.is_none() == current.is_none(),
            Flaw::TakesAnyRevisionForAbsent if current.is_none() => true,
            _ => current.as_ref() == expected.map(|revision| &revision.0),
        }
    }

    /// Writes the record and what goes along with it in one step, except where the flaw is that they are two.
    fn insert(&self, key: &Key, next: &[u8], along: &Along<'_>) -> Revision {
        let mut records = self.contents.records.lock().unwrap();
        let previous = records.get(key).map(|(revision, _)| *revision);
        let revision = self.next_revision(key, previous, next);
        let kept = if self.flaw == Flaw::CutsLongValues { next.len().min(CUT) } else { next.len() };
        records.insert(key.clone(), (revision, next[..kept].to_vec()));
        if let Some(older) = self.overwritten_by(key, records[key].clone()) {
            records.insert(key.clone(), older);
        }
        if !matches!(self.flaw, Flaw::ForgetsWhatIsWrittenAlong | Flaw::WritesAlongInASecondStep) {
            self.move_along(&mut records, along, revision);
        }
        Revision(revision.to_string())
    }

    fn move_along(&self, records: &mut BTreeMap<Key, Version>, along: &Along<'_>, revision: u64) {
        if let Some(erased) = along.erase {
            records.remove(&self.key(erased));
        }
        if let Some((put, bytes)) = along.put {
            records.entry(self.key(put)).or_insert((revision, bytes.to_vec()));
        }
    }

    fn drop_if_over(&self, key: &Key, now: Timestamp) {
        let over = |record: &Ownership| match self.flaw {
            Flaw::DeletesReleasedLeases => record.tenure.is_none(),
            // A tenure that a test itself moved into the distant past does not show this flaw.
            Flaw::DeletesExpiredLeases => {
                record.tenure.as_ref().is_some_and(|t| t.deadline.as_millis() > 1 && t.deadline <= now)
            }
            _ => false,
        };
        let mut records = self.contents.records.lock().unwrap();
        let decoded = records.get(key).and_then(|(_, bytes)| codec::decode("ownership", bytes, "x").ok());
        if key.shelf == Shelf::Lease && decoded.is_some_and(|record| over(&record)) {
            records.remove(key);
        }
    }

    async fn put(&self, change: &Change<'_>, next: &[u8]) -> Result<Swap> {
        let (key, expected) = (change.key, change.expected);
        let key = self.key(key);
        let now = self.now(&key).await;
        let call = self.call();
        // Both halves in one turn, except where the flaw is that they are not.
        let _turn = match self.flaw {
            Flaw::ChecksThenWrites => None,
            Flaw::LooksBeforeItCreatesALease if is_new_lease(&key, expected) => None,
            _ => Some(self.contents.turn.lock().await),
        };
        if !self.holds(&key, expected) && !self.lets_an_old_revision_pass(&key, expected, next) {
            return Ok(Swap::Mismatch);
        }
        if self.flaw == Flaw::RefusesToRepeatAWrite && self.is_a_repeated_lease(&key, next) {
            return Ok(Swap::Mismatch);
        }
        self.lock(&key)?;
        match self.flaw {
            Flaw::LooksBeforeItCreatesALease if is_new_lease(&key, expected) => tokio::time::sleep(SLOW_STEP).await,
            _ => tokio::task::yield_now().await,
        }
        self.unlock(&key);
        if let (Flaw::WritesOnlyWhatDiffers, Some((revision, bytes))) = (self.flaw, self.current(&key))
            && bytes == next
        {
            return Ok(Swap::Done { revision: Revision(revision.to_string()), now });
        }
        let unwritten = Revision("1000000".into());
        match self.flaw {
            Flaw::SaysDoneWithoutWriting if expected.is_none() && key.name.as_str().contains("/done/") => {
                return Ok(Swap::Done { revision: unwritten, now });
            }
            Flaw::TakesErrorsForApplied if call.is_multiple_of(HICCUP) && key.name.as_str().contains("/done/") => {
                return Ok(Swap::Done { revision: unwritten, now });
            }
            _ => {}
        }
        let revision = self.insert(&key, next, &change.along);
        if self.flaw == Flaw::DeniesWhatItDid && call.is_multiple_of(HICCUP) && key.name.as_str().contains("contended")
        {
            return Err(Error::new(Kind::Unavailable, "says that it did nothing"));
        }
        // Somebody must push hints; the sound store does when it is written to.
        let told = self.contents.sound.read(&key).await?.value.map(|value| value.revision);
        if self.flaw != Flaw::NeverHints {
            let _ = self.contents.sound.write(&Change::put(&key, told.as_ref(), b"")).await;
        }
        Ok(Swap::Done { revision, now })
    }

    async fn page(&self, shelf: Shelf, after: Option<&LeaseName>, limit: usize) -> Result<Page> {
        let limit = if self.flaw == Flaw::SkipsWithinOnePage { limit.min(SHORT_PAGE) } else { limit };
        let any = Key::new(shelf, &"any".parse()?);
        let now = self.now(&any).await;
        let mut records = self.contents.records.lock().unwrap();
        if self.flaw == Flaw::TouchesWhatItLists {
            records.values_mut().for_each(|(revision, _)| *revision += 1_000_000);
        }
        let mut entries: Vec<_> = records
            .iter()
            .filter(|(key, _)| key.shelf == shelf && after.is_none_or(|after| key.name > *after))
            .map(|(key, (revision, bytes))| {
                (key.name.clone(), Versioned { bytes: bytes.clone(), revision: Revision(revision.to_string()) })
            })
            .collect();
        let more = entries.len() > limit && self.flaw != Flaw::ListsTheFirstPageOnly;
        entries.truncate(limit);
        if self.flaw == Flaw::ListsOutOfOrder {
            entries.reverse();
        }
        Ok(Page { entries, more, now })
    }

    /// Moves along, after the write, what a sound store moves with the write or not at all.
    async fn move_along_too_late(&self, swap: &Swap, along: &Along<'_>) {
        let revision = match (swap, self.flaw) {
            (Swap::Mismatch, Flaw::WritesAlongWithWhatItRefused) => 0,
            (Swap::Done { revision, .. }, Flaw::WritesAlongInASecondStep) => {
                tokio::time::sleep(SLOW_STEP).await;
                revision.0.parse().unwrap()
            }
            _ => return,
        };
        self.move_along(&mut self.contents.records.lock().unwrap(), along, revision);
    }

    async fn erase(&self, key: &Key, expected: Option<&Revision>) -> Result<Swap> {
        let key = self.key(key);
        let now = self.now(&key).await;
        if !self.holds(&key, expected) && self.flaw != Flaw::ErasesWhateverIsThere {
            return Ok(Swap::Mismatch);
        }
        self.contents.records.lock().unwrap().remove(&key);
        Ok(Swap::Done { revision: Revision("erased".into()), now })
    }
}

#[async_trait]
impl Store for BrokenStore {
    fn capabilities(&self) -> Capabilities {
        self.contents.sound.capabilities()
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        let key = self.key(key);
        let now = self.now(&key).await;
        self.drop_if_over(&key, now);
        let mut value =
            self.current(&key).map(|(revision, bytes)| Versioned { bytes, revision: Revision(revision.to_string()) });
        if self.flaw == Flaw::ReadsFromACache && key.name.as_str().contains("fresh") {
            value = self.cache.lock().unwrap().entry(key).or_insert(value).clone();
        }
        Ok(Reading { value, now })
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        let is_let_pass = match change.next {
            Next::Erase => self.flaw == Flaw::ErasesLeases,
            Next::Put(_) => self.flaw == Flaw::ErasesLeasesAlong,
        };
        if !is_let_pass {
            change.check(&self.capabilities())?;
        }
        match change.next {
            Next::Put(next) => {
                let swap = self.put(change, next).await?;
                self.move_along_too_late(&swap, &change.along).await;
                Ok(swap)
            }
            Next::Erase => self.erase(change.key, change.expected).await,
        }
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        let skip = range.skip + usize::from(self.flaw == Flaw::SkipsOneTooMany && range.skip > 0);
        let mut page = self.page(shelf, range.after, skip + range.limit).await?;
        page.entries.drain(..skip.min(page.entries.len()));
        Ok(if self.flaw == Flaw::ListsPastTheEnd { page } else { page.until(range.until) })
    }

    async fn watch(&self, key: &Key) -> Result<Watch> {
        self.contents.sound.watch(&self.key(key)).await
    }

    async fn survey(&self) -> Result<Survey> {
        self.contents.sound.survey().await
    }
}
