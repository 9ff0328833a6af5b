//! One request on a lease's record, by the loop in [`crate::cell`].
//!
//! Promise and non-promise are the coordinator's: see the module above.

use super::Coordinator;
use crate::cell::{Applied, Cell, Row, Seen, Start, Unanswered};
use crate::clock::Moment;
use crate::codec;
use crate::error::{Error, Kind, Result};
use crate::grant::Anchor;
use crate::lease::protocol::{Refusal, Request};
use crate::lease::record::{KIND, Ownership, TRANSFERS_KEPT};
use crate::migration;
use crate::name::{Key, LeaseName, Shelf};
use crate::relocation;
use crate::store::Change;

/// What a request has made of a record.
pub(super) struct Changed {
    /// The time that it was decided on.
    pub(super) before: Anchor,
    pub(super) written: Seen<Ownership>,
}

/// Why a request was refused, and by what.
pub(super) struct Refused {
    pub(super) refusal: Box<Refusal>,
    pub(super) seen: Box<Seen<Ownership>>,
}

/// Where a lease's record lies.
pub(super) struct LeaseRow<'a> {
    coordinator: &'a Coordinator,
    lease: &'a LeaseName,
    /// Whether others wait to hear of its change.
    notify: bool,
    /// Whether the namespace's mark is looked at before a name comes up.
    looks_first: bool,
    room: Room,
}

/// Who makes room in a record that is overfull, by archiving what is over.
enum Room {
    /// Whoever acquires, before it is written.
    Needed,
    /// Operators try to, and go on without it.
    Wanted,
    /// Holders write whatever there is.
    Any,
}

/// Beyond so many transfers the archive is waited for before anything is written. Up to that, only who has acquired the lease
/// waits: if all who want it archived at once, they would be in each other's way.
const OVERFULL: usize = TRANSFERS_KEPT + 8;

impl<'a> LeaseRow<'a> {
    pub(super) fn new(coordinator: &'a Coordinator, lease: &'a LeaseName) -> Self {
        LeaseRow { coordinator, lease, notify: true, looks_first: true, room: Room::Any }
    }

    /// Drops what is archived, and archives what is over where the record is too long even so.
    async fn make_room(&self, next: &mut Ownership) -> Result<()> {
        next.drop_archived();
        if matches!(self.room, Room::Any) || next.transfers.len() <= OVERFULL {
            return Ok(());
        }
        match (self.coordinator.archive(self.lease).take(next).await, &self.room) {
            (Ok(archived), _) => next.archived = archived,
            (Err(_), Room::Wanted) => {}
            // It will not get better by waiting: a damaged history stops no work.
            (Err(error), _) if matches!(error.kind(), Kind::Corrupt | Kind::Unsupported | Kind::Invalid) => {}
            (Err(error), _) => {
                let message = format!("lease `{}` was not acquired: its history is to be archived first", self.lease);
                return Err(Error::unavailable(message, error));
            }
        }
        next.drop_archived();
        Ok(())
    }

    pub(super) async fn seen(&self, asked: Moment) -> Result<Seen<Ownership>> {
        let reading = self.coordinator.store.read(&Key::new(Shelf::Lease, self.lease)).await?;
        let anchor = Anchor { now: reading.now, asked };
        Ok(match reading.value {
            None => Seen::new(Ownership::default(), None, anchor),
            Some(value) => {
                let record = codec::decode(KIND, &value.bytes, self.lease.as_str())?;
                Seen::new(record, Some(value.revision), anchor)
            }
        })
    }
}

impl Row for LeaseRow<'_> {
    type Record = Ownership;

    fn what(&self) -> String {
        format!("lease `{}`", self.lease)
    }

    async fn read(&self, asked: Moment) -> Result<Option<Seen<Ownership>>> {
        self.seen(asked).await.map(Some)
    }

    async fn remember(&self, seen: Seen<Ownership>, base: &Ownership) -> Seen<Ownership> {
        let record = self.coordinator.with_history(self.lease, seen.record, base.epoch).await;
        Seen { record, ..seen }
    }

    async fn write(
        &mut self,
        seen: &Seen<Ownership>,
        mut next: Ownership,
        asked: Moment,
    ) -> Result<Option<Seen<Ownership>>> {
        if next.newborn && next != seen.record && std::mem::take(&mut self.looks_first) {
            // Before anything is written: a namespace that is moved leaves no trace of a name that it never knew.
            migration::look(self.coordinator.store.as_ref()).await?.check(&namespace_of(self.lease))?;
        }
        self.make_room(&mut next).await?;
        let (key, bytes) = (Key::new(Shelf::Lease, self.lease), codec::encode(KIND, &next)?);
        let change = Change { notify: self.notify, ..Change::put(&key, seen.revision.as_ref(), &bytes) };
        Ok(Seen::after(self.coordinator.store.write(&change).await?, next, asked))
    }
}

impl Coordinator {
    /// Applies a request that is not made again if it fails.
    pub(super) async fn apply(
        &self,
        lease: &LeaseName,
        request: &Request,
        start: Start<'_, Ownership>,
    ) -> Result<std::result::Result<Changed, Refused>> {
        self.apply_again(lease, request, start, &mut None).await
    }

    /// Whoever makes the same request again passes on what an earlier call left `unanswered`.
    pub(super) async fn apply_again(
        &self,
        lease: &LeaseName,
        request: &Request,
        start: Start<'_, Ownership>,
        unanswered: &mut Option<Unanswered<Ownership>>,
    ) -> Result<std::result::Result<Changed, Refused>> {
        let store = self.store.as_ref();
        // Nobody waits to hear that a lease was taken or is still held.
        let notify = matches!(request, Request::Release { .. } | Request::Operate { .. });
        let room = match request {
            Request::Acquire { .. } => Room::Needed,
            Request::Operate { .. } => Room::Wanted,
            _ => Room::Any,
        };
        let row = LeaseRow { notify, looks_first: !request.needs_a_claim(), room, ..LeaseRow::new(self, lease) };
        match Cell::new(row, store, self.clock.as_ref()).apply(request, start, unanswered).await? {
            Applied::Yes { before, written } => {
                self.check_birth(lease, &before, &written).await?;
                Ok(Ok(Changed { before: before.anchor, written: *written }))
            }
            Applied::No { refusal: Refusal::Elsewhere(state), .. } => {
                let what = format!("lease `{lease}`");
                Err(match request.needs_a_claim() {
                    true => relocation::taken_away(&what, &state),
                    false => migration::elsewhere(store, &what, &state).await,
                })
            }
            Applied::No { refusal, seen } => Ok(Err(Refused { refusal: Box::new(refusal), seen })),
            // A name that was never written has the default record, and what has changed is read again.
            Applied::Overtaken | Applied::Missing => {
                Err(Error::new(Kind::Contended, format!("lease `{lease}` has changed meanwhile; try again")))
            }
        }
    }

    /// A name that has just come up may have come up in a store that everybody is leaving, since the mark was looked at. The
    /// record was there before this look: either the migration sees the record, or this look sees the migration. Then what
    /// was written is taken back, for it was granted to nobody.
    async fn check_birth(&self, lease: &LeaseName, before: &Seen<Ownership>, written: &Seen<Ownership>) -> Result<()> {
        if !written.record.newborn || written.record.relocation.is_some() {
            return Ok(());
        }
        let seen = migration::look(self.store.as_ref()).await.map_err(|error| {
            let message =
                format!("lease `{lease}` is new, and whether its namespace was moved cannot be told; look first");
            Error::new(Kind::Indeterminate, message).with_source(error)
        })?;
        let Err(refused) = seen.check(&namespace_of(lease)) else { return Ok(()) };
        // The record that was there before, or an empty one, which is as good as none.
        let mut row = LeaseRow { looks_first: false, ..LeaseRow::new(self, lease) };
        match row.write(written, before.record.clone(), self.clock.now()).await {
            // Written over: somebody has built upon it, and looks at the mark as well; or the migration takes it along.
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

fn namespace_of(lease: &LeaseName) -> String {
    format!("the namespace of lease `{lease}`")
}
