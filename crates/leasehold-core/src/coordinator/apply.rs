//! One request on a lease's record, by the loop in [`crate::cell`].
//!
//! Promise and non-promise are the coordinator's: see the module above.

use super::Coordinator;
use crate::backoff::Backoff;
use crate::cell::{Applied, Cell, Decision, Protocol, Row, Snapshot, Start, Unanswered};
use crate::clock::Moment;
use crate::codec;
use crate::error::{Error, Kind, Result};
use crate::grant::Anchor;
use crate::history;
use crate::holding;
use crate::lease::protocol::{Refusal, Request};
use crate::lease::record::{KIND, Ownership, TRANSFERS_KEPT};
use crate::lease::transfer::Transfer;
use crate::migration;
use crate::name::{Key, LeaseName, Shelf};
use crate::relocation;
use crate::store::{Change, Revision, Verb};
use std::borrow::Cow;
use std::time::Duration;

/// A record that a request has changed.
pub(super) struct Changed {
    /// The store's time on which it was decided.
    pub(super) before: Anchor,
    pub(super) written: Snapshot<Ownership>,
    /// The transfer that the request made, if it moves the epoch. After a lost
    /// answer it may be found only in the archive.
    pub(super) transfer: Option<Transfer>,
}

/// Why a request was refused, and the record that refused it.
pub(super) struct Refused {
    pub(super) refusal: Box<Refusal>,
    pub(super) seen: Box<Snapshot<Ownership>>,
}

/// Where a lease's record is stored.
pub(super) struct LeaseRow<'a> {
    coordinator: &'a Coordinator,
    lease: &'a LeaseName,
    /// Whether watchers are notified of its change.
    notify: bool,
    /// Whether the namespace's mark is read before the first write of a name.
    checks_mark: bool,
    shortening: Shortening,
    /// The request; none if the record is only read or written back.
    request: Option<&'a Request>,
}

/// Whether a record that is too long is shortened before it is written, by archiving its oldest transfers.
enum Shortening {
    /// The write fails without it: acquirers.
    Required,
    /// The write continues without it: operators.
    BestEffort,
    /// The record is written as it is: holders.
    Never,
}

/// With more transfers than this, acquirers wait for the archive before they write. Up to this number, only the process
/// that acquired the lease archives: if all contenders archived at once, they would collide.
const OVERFULL: usize = TRANSFERS_KEPT + 8;

/// If the archive cannot be written, the oldest transfers beyond this many bytes are forgotten. It is half of a record.
const MAX_UNARCHIVED: usize = codec::MAX_RECORD_BYTES / 2;

/// How often the namespace's mark is read after a first write, and how long the pauses between are at first and at most.
const MAX_LOOKS: u32 = 4;
const FIRST_BACKOFF: Duration = Duration::from_millis(20);
const MAX_BACKOFF: Duration = Duration::from_millis(200);

impl<'a> LeaseRow<'a> {
    pub(super) fn new(coordinator: &'a Coordinator, lease: &'a LeaseName) -> Self {
        LeaseRow { coordinator, lease, notify: true, checks_mark: true, shortening: Shortening::Never, request: None }
    }

    /// Drops what is archived, and archives more if the record is still too long.
    async fn archive_excess(&self, next: &mut Ownership) -> Result<()> {
        next.drop_archived();
        if matches!(self.shortening, Shortening::Never) || next.transfers.len() <= OVERFULL {
            return Ok(());
        }
        match (self.coordinator.archive(self.lease).take(next).await, &self.shortening) {
            (Ok(archived), _) => next.archived = archived,
            // An operator's order must get through. A damaged history does not
            // get better by waiting, so it must not block work.
            (Err(error), shortening) if matches!(shortening, Shortening::BestEffort) || history::is_damage(&error) => {
                next.forget_oldest(MAX_UNARCHIVED);
            }
            (Err(error), _) => {
                let message = format!("lease `{}` was not acquired: its history is to be archived first", self.lease);
                return Err(Error::unavailable(message, error));
            }
        }
        next.drop_archived();
        Ok(())
    }

    pub(super) async fn seen(&self, asked: Moment) -> Result<Snapshot<Ownership>> {
        let reading = self.coordinator.store.read(&Key::new(Shelf::Lease, self.lease)).await?;
        let anchor = Anchor { now: reading.now, asked };
        Ok(match reading.value {
            None => Snapshot::new(Ownership::default(), None, anchor),
            Some(value) => {
                let record = codec::decode(KIND, &value.bytes, self.lease.as_str())?;
                Snapshot::new(record, Some(value.revision), anchor)
            }
        })
    }
}

impl Row for LeaseRow<'_> {
    type Record = Ownership;

    fn what(&self) -> String {
        format!("lease `{}`", self.lease)
    }

    async fn read(&self, asked: Moment) -> Result<Option<Snapshot<Ownership>>> {
        self.seen(asked).await.map(Some)
    }

    async fn remember(&self, seen: Snapshot<Ownership>, base: &Ownership) -> Snapshot<Ownership> {
        let record = self.coordinator.with_history(self.lease, seen.record, base.epoch).await;
        Snapshot { record, ..seen }
    }

    async fn write(
        &mut self,
        seen: &Snapshot<Ownership>,
        mut next: Ownership,
        asked: Moment,
    ) -> Result<Option<Snapshot<Ownership>>> {
        if next.newborn && next != seen.record && std::mem::take(&mut self.checks_mark) {
            // Checked before anything is written: a namespace that has moved
            // must get no record for a name that it never had.
            migration::look(self.coordinator.store.as_ref()).await?.check(&namespace_of(self.lease))?;
        }
        self.archive_excess(&mut next).await?;
        let (key, bytes) = (Key::new(Shelf::Lease, self.lease), codec::encode(KIND, &next)?);
        let verb = match self.request {
            _ if next == seen.record => Verb::Confirm,
            Some(request) => Verb::Lease(request),
            None => Verb::Direct,
        };
        let change = Change { notify: self.notify, verb, ..Change::put(&key, seen.revision.as_ref(), &bytes) };
        Ok(Snapshot::after(self.coordinator.store.write(&change).await?, next, asked))
    }
}

impl Coordinator {
    /// Applies a request that is not repeated if it fails.
    pub(super) async fn apply(
        &self,
        lease: &LeaseName,
        request: &Request,
        start: Start<'_, Ownership>,
    ) -> Result<std::result::Result<Changed, Refused>> {
        self.apply_again(lease, request, start, &mut None).await
    }

    /// To repeat a request, pass what the earlier call left `unanswered`.
    pub(super) async fn apply_again(
        &self,
        lease: &LeaseName,
        request: &Request,
        start: Start<'_, Ownership>,
        unanswered: &mut Option<Unanswered<Ownership>>,
    ) -> Result<std::result::Result<Changed, Refused>> {
        let store = self.store.as_ref();
        let row = self.row(lease, request);
        let mut cell = Cell::new(row, store, self.clock.as_ref());
        match holding::reading_for(request.claim(), cell.apply(request, start, unanswered)).await? {
            Applied::Yes { before, written } => {
                self.check_birth(lease, &before, &written).await?;
                let by =
                    |record: &Ownership| request.transfer_nonce().and_then(|nonce| record.transfer_by(nonce).cloned());
                let transfer = by(&written.record).or_else(|| by(&before.record));
                Ok(Ok(Changed { before: before.anchor, written: *written, transfer }))
            }
            Applied::No { refusal: Refusal::Elsewhere(state), .. } => {
                let what = format!("lease `{lease}`");
                Err(match request.needs_a_claim() {
                    true => relocation::evicted_error(&what, &state),
                    false => migration::elsewhere(store, &what, &state).await,
                })
            }
            Applied::No { refusal, seen } => Ok(Err(Refused { refusal: Box::new(refusal), seen })),
            // A name that was never written has the default record, and a record that has changed is read again.
            Applied::Overtaken | Applied::Missing => {
                Err(Error::new(Kind::Contended, format!("lease `{lease}` has changed meanwhile; try again")))
            }
        }
    }

    /// The record that a request is about.
    fn row<'a>(&'a self, lease: &'a LeaseName, request: &'a Request) -> LeaseRow<'a> {
        // Nobody waits to be notified of an acquisition or a renewal.
        let notify = matches!(request, Request::Release { .. } | Request::Operate { .. });
        // A server archives, and reads the namespace's mark, by itself.
        let is_served = self.store.capabilities().by_verbs;
        let shortening = match request {
            _ if is_served => Shortening::Never,
            Request::Acquire { .. } => Shortening::Required,
            Request::Operate { .. } => Shortening::BestEffort,
            _ => Shortening::Never,
        };
        let checks_mark = !request.needs_a_claim() && !is_served;
        LeaseRow { notify, checks_mark, shortening, request: Some(request), ..LeaseRow::new(self, lease) }
    }

    /// Carries out a server client's request on the record of this revision only. `None` if the record has another
    /// revision by now, or if the request is refused: the client then reads the record and finds out.
    ///
    /// The client names the revision that it has seen, and never sends the record: the decision is made on the stored
    /// record, at the store's time. With `remembered`, the record that this process last wrote, no read is needed.
    pub async fn carry_out(
        &self,
        lease: &LeaseName,
        request: &Request,
        expected: Option<&Revision>,
        remembered: Option<&Snapshot<Ownership>>,
    ) -> Result<Option<Snapshot<Ownership>>> {
        lease.check_lease()?;
        let (seen, now) = match remembered.filter(|seen| seen.revision.as_ref() == expected) {
            Some(seen) => (Cow::Borrowed(seen), seen.anchor.at_latest(self.clock.now(), self.grain())),
            None => {
                let seen = self.look(lease).await?;
                let now = seen.anchor.now;
                (Cow::Owned(seen), now)
            }
        };
        if seen.revision.as_ref() != expected {
            return Ok(None);
        }
        let next = match request.decide(&seen.record, now) {
            Decision::Write(next) => *next,
            Decision::AlreadyApplied => seen.record.clone(),
            Decision::Refuse(_) => return Ok(None),
        };
        let written = self.row(lease, request).write(&seen, next, self.clock.now()).await?;
        if let Some(written) = &written {
            self.check_birth(lease, &seen, written).await?;
        }
        Ok(written)
    }

    /// Writes a record again unchanged, if it has this revision, for a client whose earlier write got no answer.
    pub async fn confirm(&self, lease: &LeaseName, expected: &Revision) -> Result<Option<Snapshot<Ownership>>> {
        let seen = self.look(lease).await?;
        if seen.revision.as_ref() != Some(expected) {
            return Ok(None);
        }
        let record = seen.record.clone();
        LeaseRow::new(self, lease).write(&seen, record, self.clock.now()).await
    }

    /// The first write of a name may race with a migration that began after the mark was read. The record was written
    /// before this second read of the mark, so either the migration sees the record, or this read sees the migration.
    /// In the second case the write is taken back, because nothing was granted yet.
    async fn check_birth(
        &self,
        lease: &LeaseName,
        before: &Snapshot<Ownership>,
        written: &Snapshot<Ownership>,
    ) -> Result<()> {
        let is_settled = !written.record.newborn || written.record.relocation.is_some();
        if is_settled || self.store.capabilities().by_verbs {
            return Ok(());
        }
        let seen = match self.look_again_for_mark().await {
            Ok(seen) => seen,
            Err(error) => return Err(self.take_birth_back(lease, before, written, error).await),
        };
        let Err(refused) = seen.check(&namespace_of(lease)) else { return Ok(()) };
        // Restores the previous record, or writes an empty one, which counts as none.
        let mut row = LeaseRow { checks_mark: false, ..LeaseRow::new(self, lease) };
        match row.write(written, before.record.clone(), self.clock.now()).await {
            // If it was overwritten, the other writer reads the mark as well, or the migration copies the record.
            Ok(_) => Err(refused),
            Err(error) => {
                let message = format!(
                    "lease `{lease}` came up while its namespace was moved; nothing was granted, and whether its record was \
                     taken back is not known; look at `{lease}` before asking again ({refused})"
                );
                Err(Error::new(Kind::Indeterminate, message).with_source(error))
            }
        }
    }
}

impl Coordinator {
    /// Reads the namespace's mark after a write, more than once if it must: nothing may be granted without it.
    async fn look_again_for_mark(&self) -> Result<migration::MarksSnapshot> {
        let mut backoff = Backoff::new(FIRST_BACKOFF, MAX_BACKOFF);
        for _ in 1..MAX_LOOKS {
            match migration::look(self.store.as_ref()).await {
                Err(error) if matches!(error.kind(), Kind::Unavailable | Kind::Indeterminate | Kind::Contended) => {
                    self.clock.sleep_until(self.clock.now() + backoff.at_least_half()).await;
                }
                looked => return looked,
            }
        }
        migration::look(self.store.as_ref()).await
    }

    /// The error for a first write after which the mark could not be read. The write is taken back, because otherwise nobody
    /// would have the lease until it expires.
    async fn take_birth_back(
        &self,
        lease: &LeaseName,
        before: &Snapshot<Ownership>,
        written: &Snapshot<Ownership>,
        error: Error,
    ) -> Error {
        let mut row = LeaseRow { checks_mark: false, ..LeaseRow::new(self, lease) };
        // If an earlier attempt of this request wrote the record, what was there before is not known.
        if before.record != written.record {
            let restored = row.write(written, before.record.clone(), self.clock.now()).await;
            if let Ok(Some(_)) = restored {
                let message = format!(
                    "lease `{lease}` is new, and whether its namespace was moved cannot be told; nothing was changed"
                );
                return Error::unavailable(message, error);
            }
        }
        let message = format!("lease `{lease}` is new, and whether its namespace was moved cannot be told; look first");
        Error::new(Kind::Indeterminate, message).with_source(error)
    }
}

fn namespace_of(lease: &LeaseName) -> String {
    format!("the namespace of lease `{lease}`")
}
