//! The segments of one lease's archive.
//!
//! Promise and non-promise are the history's: see the module above. A segment that cannot
//! be read is never overwritten: the next one is written beside it. The newest segment
//! knows the number of the oldest, so that nobody searches what was erased long ago.

use super::{History, Retention};
use crate::cell::{Fate, MAX_ATTEMPTS};
use crate::clock::Clock;
use crate::codec;
use crate::document::{Document, Edit};
use crate::epoch::Epoch;
use crate::error::{Error, Kind, Result};
use crate::lease::record::Ownership;
use crate::lease::transfer::Transfer;
use crate::masked::{Mask, transfer};
use crate::name::{Key, LeaseName, Shelf};
use crate::nonce::Lineage;
use crate::store::{Change, Range, Revision, Store};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

const KIND: &str = "history";
/// How many epochs a segment covers. Even with transfers of the greatest length, a segment fits into a record.
const EPOCHS: u64 = 16;
/// How many segments are read at once.
const PAGE: usize = 64;
/// How many old segments are erased when a new one begins.
const ERASED: usize = 4;
/// How many names a segment may have: the next one is used where those before it are damaged.
const SUFFIXES: u32 = 8;

/// The transfers of some epochs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Segment {
    /// The lease. None in a segment that was never written.
    lease: Option<LeaseName>,
    /// The epoch of the last transfer before it; zero if there is none. It shows whether a segment is missing.
    since: Epoch,
    /// How many transfers were archived before it.
    before: u64,
    /// The number of the oldest segment that was left when this one began.
    oldest: u64,
    /// In the order of their epochs.
    transfers: Vec<Arc<Transfer>>,
}

impl Segment {
    /// How many transfers were archived up to its end.
    fn total(&self) -> u64 {
        self.before.saturating_add(self.transfers.len() as u64)
    }

    /// The segment with these transfers added.
    fn with(&self, lease: &LeaseName, more: &[Arc<Transfer>]) -> Self {
        let mut segment = Segment { lease: Some(lease.clone()), ..self.clone() };
        merge(&mut segment.transfers, more);
        segment
    }
}

/// A segment as it is shown to those who may only look: without the nonces of its grants.
pub fn masked(bytes: &[u8], name: &str, mask: Mask) -> Result<Vec<u8>> {
    let mut segment: Segment = codec::decode(KIND, bytes, name)?;
    segment.transfers = segment.transfers.iter().map(|it| Arc::new(transfer(it, mask))).collect();
    codec::encode(KIND, &segment)
}

/// Adds the transfers that are missing. The same epoch under another nonce is another transfer.
pub(super) fn merge(transfers: &mut Vec<Arc<Transfer>>, more: &[Arc<Transfer>]) {
    let known = transfers.len();
    for transfer in more {
        let is_same = |t: &Arc<Transfer>| t.epoch == transfer.epoch && t.nonce == transfer.nonce;
        if !transfers[..known].iter().any(is_same) {
            transfers.push(transfer.clone());
        }
    }
    transfers.sort_by_key(|t| (t.epoch, t.at));
}

/// The transfers of a record that are not archived yet and whose segment is complete.
pub(crate) fn due(record: &Ownership) -> impl Iterator<Item = &Arc<Transfer>> {
    record.transfers.iter().filter(|t| t.epoch > record.archived && number(t.epoch) < number(record.epoch))
}

const fn number(epoch: Epoch) -> u64 {
    epoch.get() / EPOCHS
}

fn key(lineage: Lineage, number: u64, suffix: u32) -> Result<Key> {
    let name = match suffix {
        0 => format!("{lineage}/{number:016}"),
        suffix => format!("{lineage}/{number:016}.{suffix}"),
    };
    Ok(Key::new(Shelf::History, &LeaseName::new(name)?))
}

/// The number of the segment with this name.
fn number_of(name: &LeaseName) -> u64 {
    let last = name.as_str().rsplit('/').next().unwrap_or_default();
    last.split('.').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Whether retrying cannot help.
pub(crate) fn is_damage(error: &Error) -> bool {
    matches!(error.kind(), Kind::Corrupt | Kind::Unsupported | Kind::Invalid)
}

/// The lease whose transfers a segment has; an error if the bytes are not a segment.
pub fn subject(bytes: &[u8], name: &str) -> Result<Option<LeaseName>> {
    codec::decode::<Segment>(KIND, bytes, name).map(|segment| segment.lease)
}

/// The archive of one lease.
#[derive(Debug)]
pub(crate) struct Archive<'a> {
    store: &'a dyn Store,
    clock: &'a dyn Clock,
    lease: &'a LeaseName,
    retention: Retention,
}

impl<'a> Archive<'a> {
    pub(crate) fn new(store: &'a dyn Store, clock: &'a dyn Clock, lease: &'a LeaseName, retention: Retention) -> Self {
        Archive { store, clock, lease, retention }
    }

    fn document(&self, lineage: Lineage, number: u64, suffix: u32) -> Result<Document<'a, Segment>> {
        let what = format!("the history of lease `{}`", self.lease);
        Ok(Document::new(self.store, key(lineage, number, suffix)?, KIND, what))
    }

    /// Archives what is due of this record; returns the epoch up to which everything is archived.
    pub(crate) async fn take(&self, record: &Ownership) -> Result<Epoch> {
        let Some(lineage) = record.lineage else { return Ok(record.archived) };
        let due: Vec<Arc<Transfer>> = due(record).cloned().collect();
        let mut archived = record.archived;
        for part in due.chunk_by(|a, b| number(a.epoch) == number(b.epoch)) {
            archived = self.write(lineage, archived, part).await?;
        }
        Ok(archived)
    }

    /// Writes transfers of one segment, whose predecessors up to `since` are all archived.
    async fn write(&self, lineage: Lineage, since: Epoch, part: &[Arc<Transfer>]) -> Result<Epoch> {
        let Some(last) = part.last() else { return Ok(since) };
        let mut first = self.beginning(lineage, since).await?;
        let total = first.before.saturating_add(part.len() as u64);
        // Best effort: what is not erased now is erased next time.
        let (oldest, surplus) = self.surplus(lineage, first.oldest, total).await.unwrap_or((first.oldest, Vec::new()));
        first.oldest = oldest;
        self.add(lineage, number(last.epoch), &first, part).await?;
        for (name, revision) in surplus.iter().filter(|(name, _)| number_of(name) < number(last.epoch)) {
            let _ = self.store.write(&Change::erase(&Key::new(Shelf::History, name), revision)).await;
        }
        Ok(last.epoch)
    }

    /// An empty segment that follows this epoch.
    async fn beginning(&self, lineage: Lineage, since: Epoch) -> Result<Segment> {
        let mut first = Segment { since, ..Segment::default() };
        if since == Epoch::ZERO {
            return Ok(first);
        }
        if let Some(last) = self.segment(lineage, number(since)).await? {
            (first.before, first.oldest) = (last.total(), last.oldest);
            return Ok(first);
        }
        // It is missing or damaged, but the other segments have these numbers too.
        let mut pages = Pages::new(lineage, 0);
        while let Some(page) = pages.next(self).await? {
            for (_, _, segment) in page.segments {
                first.before = first.before.max(segment.total());
                first.oldest = first.oldest.max(segment.oldest);
            }
        }
        Ok(first)
    }

    /// A segment; none if it is missing, or damaged under every name.
    async fn segment(&self, lineage: Lineage, number: u64) -> Result<Option<Segment>> {
        for suffix in 0..SUFFIXES {
            match self.document(lineage, number, suffix)?.look(self.clock.now()).await {
                // Ours may lie beside another lease's.
                Ok(found) if found.record.lease.as_ref().is_some_and(|lease| lease != self.lease) => {}
                Ok(found) => return Ok(Some(found.record).filter(|found| found.lease.is_some())),
                Err(error) if is_damage(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Adds transfers to a segment, or to `first` if there is none. Damaged
    /// segments are left alone, and it is written beside them.
    async fn add(&self, lineage: Lineage, number: u64, first: &Segment, part: &[Arc<Transfer>]) -> Result<()> {
        let lease = self.lease;
        let decide = |found: &Segment, _: Timestamp| {
            if found.lease.as_ref().is_some_and(|found| found != lease) {
                let message =
                    format!("corrupt history of lease `{lease}`: it is another lease's; it was left as it is");
                return Err(Error::new(Kind::Corrupt, message));
            }
            Ok(Some(if found.lease.is_none() { first } else { found }.with(lease, part)))
        };
        // Writing it again changes nothing, even after a write without an answer.
        let edit = Edit { decide: &decide, fate: &|_| Fate::NotApplied, attempts: MAX_ATTEMPTS };
        let mut suffix = 0;
        loop {
            let added = self.document(lineage, number, suffix)?.change(self.clock, &edit).await;
            suffix += 1;
            match added {
                Err(error) if is_damage(&error) && suffix < SUFFIXES => {}
                other => return other.map(|_| ()),
            }
        }
    }

    /// The number of the oldest segment from `from` on, and up to [`ERASED`] segments that need not be kept.
    async fn surplus(&self, lineage: Lineage, from: u64, total: u64) -> Result<(u64, Vec<(LeaseName, Revision)>)> {
        let (mut oldest, mut surplus, mut damaged) = (None, Vec::new(), Vec::new());
        if total <= self.retention.transfers && self.retention.age.is_none() {
            return Ok((from, surplus));
        }
        let mut pages = Pages { limit: ERASED, ..Pages::new(lineage, from) };
        'pages: while let Some(page) = pages.next(self).await? {
            damaged.extend(page.damaged.into_iter().map(|damage| (damage.name, damage.revision)));
            for (name, revision, segment) in page.segments {
                oldest = oldest.or(Some(number_of(&name)));
                let is_surplus = total.saturating_sub(segment.total()) >= self.retention.transfers;
                let is_young = |age| segment.transfers.last().is_none_or(|last| last.at.plus(age) >= page.now);
                let is_old = self.retention.age.is_some_and(|age| !is_young(age)) && total > segment.total();
                if (!is_surplus && !is_old) || surplus.len() >= ERASED {
                    break 'pages;
                }
                // A damaged segment is as old as its neighbours.
                surplus.extend(damaged.extract_if(.., |(other, _)| *other < name));
                surplus.push((name, revision));
            }
        }
        // A damaged segment that cannot be erased either is skipped once it is old enough.
        let oldest = damaged.first().map(|(name, _)| number_of(name)).into_iter().chain(oldest).min();
        Ok((oldest.unwrap_or(from), surplus))
    }

    /// The segment at which a search of the record's archive for this epoch and later ones begins.
    async fn first(&self, lineage: Lineage, record: &Ownership, from: Epoch) -> Result<u64> {
        let newest = self.segment(lineage, number(record.archived)).await?;
        Ok(newest.map_or(0, |newest| newest.oldest).max(number(from)))
    }

    /// Every archived transfer of this record from this epoch on.
    pub(super) async fn since(&self, record: &Ownership, from: Epoch) -> Result<ArchivedHistory> {
        let Some(lineage) = record.lineage.filter(|_| record.archived > Epoch::ZERO) else {
            return Ok(ArchivedHistory { is_whole: record.archived == Epoch::ZERO, ..ArchivedHistory::default() });
        };
        let mut pages = Pages::new(lineage, self.first(lineage, record, from).await?);
        let (mut history, mut others, mut begins, mut ends) = (History::default(), Vec::new(), None, Epoch::ZERO);
        // The numbers of damaged segments: a gap beside one needs no report of its own.
        let mut damaged = Vec::new();
        while let Some(page) = pages.next(self).await? {
            for damage in page.damaged {
                damaged.push(number_of(&damage.name));
                history.damaged.push(self.unreadable(&damage));
            }
            for (_, _, segment) in page.segments {
                // The transfer before this segment is in the segment before it, or there was none.
                let follows = ends == Epoch::ZERO || segment.since <= ends;
                begins = if follows { begins.or(Some(segment.since)) } else { Some(segment.since) };
                // `before` counts erased segments too. If it is zero, earlier
                // transfers were forgotten and never archived.
                let is_first = ends == Epoch::ZERO && segment.before == 0 && segment.since > Epoch::ZERO;
                if (!follows || is_first) && segment.since > record.dropped {
                    history.damaged.extend(self.gap(&damaged, ends, segment.since));
                }
                if let Some(first) = segment.transfers.first().filter(|_| segment.since < ends) {
                    others.push((segment.since, first.epoch));
                }
                ends = segment.transfers.last().map_or(ends, |last| last.epoch.max(ends));
                history.transfers.extend(segment.transfers.into_iter().filter(|t| t.epoch >= from));
            }
        }
        let reaches_back = begins.is_some_and(|begins| begins < from || begins == Epoch::ZERO);
        // The record itself may still have what is missing at the end.
        let known = record.transfers.first().filter(|first| first.epoch.get() <= ends.get().saturating_add(1));
        if ends.max(record.dropped) < record.archived && known.is_none() {
            history.damaged.extend(self.gap(&damaged, ends, record.archived));
        }
        Ok(ArchivedHistory { history, is_whole: reaches_back && ends >= record.archived, others })
    }

    fn unreadable(&self, damage: &Damage) -> Error {
        let first = number_of(&damage.name).saturating_mul(EPOCHS);
        let message = format!(
            "of epochs {} to {} of lease `{}`, what its history had under `{}` is missing",
            first.max(1),
            first.saturating_add(EPOCHS - 1),
            self.lease,
            damage.name
        );
        Error::new(damage.error.kind(), message).with_source(Error::new(damage.error.kind(), damage.error.to_string()))
    }

    /// What is missing between two epochs, unless a damaged segment there was already reported.
    fn gap(&self, damaged: &[u64], after: Epoch, until: Epoch) -> Option<Error> {
        let is_told = damaged.iter().any(|damaged| (number(after)..=number(until)).contains(damaged));
        let (first, lease) = (after.get().saturating_add(1), self.lease);
        let message = format!(
            "epochs {first} to {until} are missing from the history of lease `{lease}`: they were erased, or never archived"
        );
        (!is_told).then(|| Error::new(Kind::Corrupt, message))
    }

    /// The same record with the archived transfers around this epoch, if they
    /// can be read. Enough to look up one transfer.
    pub(super) async fn around(&self, record: &Ownership, epoch: Epoch) -> Result<Ownership> {
        let mut more = record.clone();
        let Some(lineage) = record.lineage else { return Ok(more) };
        if let Some(found) = self.segment(lineage, number(epoch)).await? {
            let theirs: Vec<_> = found.transfers.into_iter().filter(|t| t.epoch <= record.archived).collect();
            merge(&mut more.transfers, &theirs);
        }
        Ok(more)
    }

    /// The same record with all of its transfers from this epoch on, if they are there.
    /// For a record that was restored below its archive, later transfers are left out, and
    /// so are those by an epoch that was granted twice: only one of the two was its own.
    pub(crate) async fn remember(&self, record: &Ownership, from: Epoch) -> Result<Option<Ownership>> {
        let ArchivedHistory { history, is_whole, others } = self.since(record, from).await?;
        let is_own = |t: &Arc<Transfer>| {
            let is_of_another = others.iter().any(|(after, until)| *after < t.epoch && t.epoch < *until);
            t.epoch <= record.archived && !is_of_another
        };
        let archived: Vec<_> = history.transfers.into_iter().filter(is_own).collect();
        let mut whole = record.clone();
        merge(&mut whole.transfers, &archived);
        let is_one_line = whole.transfers.windows(2).all(|pair| pair[0].epoch < pair[1].epoch);
        Ok((is_whole && is_one_line).then_some(whole))
    }

    /// Erases all segments, even those that cannot be read.
    pub(super) async fn erase(&self, lineage: Lineage) -> Result<()> {
        let mut pages = Pages::new(lineage, 0);
        while let Some(page) = pages.next(self).await? {
            let damaged = page.damaged.into_iter().map(|damage| (damage.name, damage.revision));
            for (name, revision) in page.segments.into_iter().map(|(name, revision, _)| (name, revision)).chain(damaged)
            {
                self.store.write(&Change::erase(&Key::new(Shelf::History, &name), &revision)).await?;
            }
        }
        Ok(())
    }

    /// Copies the archive of a record to another store; returns the errors of what cannot be read, which stays behind.
    pub(super) async fn copy(&self, record: &Ownership, to: &Archive<'_>) -> Result<Vec<Error>> {
        let mut left = Vec::new();
        let Some(lineage) = record.lineage else { return Ok(left) };
        let mut pages = Pages::new(lineage, self.first(lineage, record, Epoch::ZERO).await?);
        while let Some(page) = pages.next(self).await? {
            left.extend(page.damaged.iter().map(|damage| self.unreadable(damage)));
            for (name, _, segment) in page.segments {
                to.add(lineage, number_of(&name), &segment, &segment.transfers).await?;
            }
        }
        Ok(left)
    }
}

/// What the archive knows of a record.
#[derive(Default)]
pub(super) struct ArchivedHistory {
    pub(super) history: History,
    /// Whether nothing is missing.
    is_whole: bool,
    /// Pairs of epochs between which the archive has transfers of a line that a
    /// restored record left: the next transfer names the one before it.
    others: Vec<(Epoch, Epoch)>,
}

/// The segments of a lineage from a number on, a page at a time.
struct Pages {
    lineage: Lineage,
    /// The listing continues just after this name.
    after: Option<LeaseName>,
    from: u64,
    limit: usize,
    is_over: bool,
}

/// Some segments of a lease.
struct Page {
    segments: Vec<(LeaseName, Revision, Segment)>,
    damaged: Vec<Damage>,
    now: Timestamp,
}

/// A segment that cannot be read.
struct Damage {
    name: LeaseName,
    revision: Revision,
    error: Error,
}

impl Pages {
    const fn new(lineage: Lineage, from: u64) -> Self {
        Pages { lineage, after: None, from, limit: PAGE, is_over: false }
    }

    async fn next(&mut self, archive: &Archive<'_>) -> Result<Option<Page>> {
        if self.is_over {
            return Ok(None);
        }
        let begin = LeaseName::new(self.lineage.to_string())?;
        let after = match (self.after.take(), self.from) {
            (Some(after), _) => after,
            (None, 0) => begin.clone(),
            (None, from) => key(self.lineage, from - 1, SUFFIXES)?.name,
        };
        let listed = archive.store.list(Shelf::History, Range::new(Some(&after), self.limit)).await?;
        self.is_over = !listed.more || listed.entries.is_empty();
        let mut page = Page { segments: Vec::new(), damaged: Vec::new(), now: listed.now };
        for (name, value) in listed.entries {
            if !name.as_str().strip_prefix(begin.as_str()).is_some_and(|rest| rest.starts_with('/')) {
                self.is_over = true;
                break;
            }
            self.after = Some(name.clone());
            match codec::decode::<Segment>(KIND, &value.bytes, name.as_str()) {
                // A segment of another lease is not ours to read or erase, even under this lineage.
                Ok(segment) if segment.lease.as_ref().is_some_and(|lease| lease != archive.lease) => {}
                Ok(segment) => page.segments.push((name, value.revision, segment)),
                Err(error) => page.damaged.push(Damage { name, revision: value.revision, error }),
            }
        }
        Ok(Some(page))
    }
}
