//! One request on one record: read, decide, swap, at most so many times.
//!
//! Promise and non-promise are the coordinator's: see the module above.

use super::Coordinator;
use crate::clock::Moment;
use crate::error::{Error, Kind, Result};
use crate::grant::{Anchor, Known};
use crate::lease::protocol::{Decision, Fate, Order, Refusal, Request, decide, fate};
use crate::lease::record::Ownership;
use crate::migration;
use crate::name::{Key, LeaseName, Shelf};
use crate::nonce::{Jitter, Nonce};
use crate::relocation;
use crate::sheet::Sheet;
use crate::store::Swap;
use crate::time::Timestamp;
use std::borrow::Cow;
use std::time::Duration;

/// How often a request is decided anew when others keep writing in between.
const MAX_ATTEMPTS: u32 = 40;
/// The longest pause between two attempts.
const MAX_BACKOFF: Duration = Duration::from_millis(64);

/// The outcome of a request.
pub(super) enum Applied {
    /// Written now, or found written by this very request.
    Yes {
        known: Box<Known>,
        trust_until: Option<Moment>,
    },
    No {
        refusal: Box<Refusal>,
        now: Timestamp,
    },
}

impl Coordinator {
    /// Applies a request that is not made again if it fails.
    pub(super) async fn apply(&self, lease: &LeaseName, request: &Request, known: Option<&Known>) -> Result<Applied> {
        self.apply_again(lease, request, known, &mut None).await
    }

    /// The loop: decide on what is known (or read), swap, and read again when somebody was faster or no answer came.
    /// Whoever makes the same request again passes on what an earlier call left `unanswered`.
    pub(super) async fn apply_again(
        &self,
        lease: &LeaseName,
        request: &Request,
        known: Option<&Known>,
        unanswered: &mut Option<Unanswered>,
    ) -> Result<Applied> {
        let grain = self.grain();
        let mut jitter: Option<Jitter> = None;
        let (mut remembered, mut is_looked_up) = (known, false);
        for attempt in 0..MAX_ATTEMPTS {
            let from_memory = remembered.is_some();
            let known = match remembered.take() {
                Some(known) => Cow::Borrowed(known),
                None => match self.look(lease).await {
                    Ok(known) => Cow::Owned(known),
                    // What happened to the earlier swap is still unknown: saying "unavailable" would deny it.
                    Err(error) => return Err(unanswered.as_ref().map_or(error, Unanswered::error)),
                },
            };
            let fate = unanswered.as_ref().map_or(Fate::NotApplied, |write| write.fate(&known, request));
            if let Some(write) = unanswered.as_ref().filter(|_| fate == Fate::Unknown) {
                return Err(write.forgotten(lease, &known.record));
            }
            // What was just read is judged by the time it was read at; what is remembered, by the latest it can be.
            let asked = self.clock.now();
            let now = if from_memory { known.anchor.at_latest(asked, grain) } else { known.anchor.now };
            let next = match decide(&known.record, request, now) {
                Decision::Write(next) => *next,
                // It is visible; whether it is durable, only a new write's answer can tell.
                Decision::AlreadyApplied => known.record.clone(),
                Decision::Refuse(_) if from_memory => continue,
                Decision::Refuse(Refusal::AlreadyReleased { .. }) if fate == Fate::Applied => known.record.clone(),
                Decision::Refuse(Refusal::Elsewhere(state)) => {
                    let what = format!("lease `{lease}`");
                    return Err(match is_a_holders(request) {
                        true => relocation::taken_away(&what, &state),
                        false => migration::elsewhere(self.store.as_ref(), &what, &state).await,
                    });
                }
                Decision::Refuse(refusal) if known.revision.is_some() && is_so_already(request, &refusal) => {
                    // Whoever made it so may have got no answer: it is visible, and only a new write's answer says that it lasts.
                    let confirmed = self.write(lease, &known, known.record.clone(), request, asked).await;
                    match confirmed.map_err(|error| unconfirmed(lease, error))? {
                        Some(_) => return Ok(Applied::No { refusal: Box::new(refusal), now }),
                        None => continue,
                    }
                }
                Decision::Refuse(refusal) => return Ok(Applied::No { refusal: Box::new(refusal), now }),
            };
            if next.newborn && !is_a_holders(request) && !is_looked_up && unanswered.is_none() {
                // Before anything is written: a namespace that is moved leaves no trace of a name that it never knew.
                migration::look(self.store.as_ref()).await?.check(&namespace_of(lease))?;
                is_looked_up = true;
            }
            match self.write(lease, &known, next, request, asked).await {
                Ok(Some(written)) => {
                    self.check_birth(lease, &known, &written).await?;
                    // By the anchor that the deadline was reckoned from, and by the answer's own: a store whose clock was set
                    // forward in between has used up part of the time, or all of it.
                    let trust =
                        |deadline| known.anchor.trust(deadline, grain).min(written.anchor.trust(deadline, grain));
                    let trust_until = written.record.tenure.as_ref().map(|tenure| trust(tenure.deadline));
                    return Ok(Applied::Yes { known: Box::new(written), trust_until });
                }
                Ok(None) => {}
                Err(error) if error.kind() == Kind::Indeterminate => {
                    unanswered.get_or_insert_with(|| Unanswered { error, base: known.into_owned() });
                }
                Err(error) => return Err(unanswered.as_ref().map_or(error, Unanswered::error)),
            }
            if !from_memory {
                let jitter = jitter.get_or_insert_with(|| Jitter::new(Nonce::random()));
                let bound = Duration::from_millis(1 << attempt.min(6)).min(MAX_BACKOFF);
                let pause = Duration::from_micros(jitter.below(bound.as_micros().max(1) as u64));
                self.clock.sleep_until(self.clock.now() + pause).await;
            }
        }
        Err(unanswered.as_ref().map(Unanswered::error).unwrap_or_else(|| {
            let message = format!("lease `{lease}` is too busy: {MAX_ATTEMPTS} attempts were overtaken; try again");
            Error::new(Kind::Contended, message)
        }))
    }

    /// One swap; none if somebody was faster.
    async fn write(
        &self,
        lease: &LeaseName,
        known: &Known,
        next: Ownership,
        request: &Request,
        asked: Moment,
    ) -> Result<Option<Known>> {
        // Nobody waits to hear that a lease was taken or is still held.
        let is_news = matches!(request, Request::Release { .. } | Request::Operate { .. });
        let sheet = Sheet::new(&next, &known.record, &known.old)?;
        let key = Key::new(Shelf::Lease, lease);
        Ok(match self.store.swap_parts(&key, known.revision.as_ref(), sheet.parts(is_news)).await? {
            Swap::Done { revision, now } => {
                let anchor = Anchor { now, asked };
                Some(Known { record: next, revision: Some(revision), old: sheet.old, anchor })
            }
            Swap::Mismatch => None,
        })
    }

    /// A name that has just come up may have come up in a store that everybody is leaving, since it was looked at. The record
    /// was there before this look: either the migration sees the record, or this look sees the migration. Then what was
    /// written is taken back, for it was granted to nobody.
    async fn check_birth(&self, lease: &LeaseName, before: &Known, written: &Known) -> Result<()> {
        if !written.record.newborn || written.record.relocation.is_some() {
            return Ok(());
        }
        let seen = migration::look(self.store.as_ref()).await.map_err(|error| {
            let message =
                format!("lease `{lease}` is new, and whether its namespace was moved cannot be told; look first");
            Error::new(Kind::Indeterminate, message).with_source(error)
        })?;
        let Err(refused) = seen.check(&namespace_of(lease)) else { return Ok(()) };
        match self.take_back(lease, before, written).await {
            // Somebody has built upon it, and looks at the mark as well; or the migration takes it along.
            Ok(Swap::Done { .. } | Swap::Mismatch) => Err(refused),
            Err(error) => {
                let message = format!(
                    "lease `{lease}` came up while its namespace was moved; nothing was granted, and whether its record was \
                     taken back is not known; look at `{lease}` before asking again ({refused})"
                );
                Err(Error::new(Kind::Indeterminate, message).with_source(error))
            }
        }
    }

    /// Writes the record that was there before, or an empty one, which is as good as none.
    async fn take_back(&self, lease: &LeaseName, before: &Known, written: &Known) -> Result<Swap> {
        let sheet = Sheet::new(&before.record, &written.record, &written.old)?;
        let key = Key::new(Shelf::Lease, lease);
        self.store.swap_parts(&key, written.revision.as_ref(), sheet.parts(true)).await
    }
}

fn namespace_of(lease: &LeaseName) -> String {
    format!("the namespace of lease `{lease}`")
}

/// Whether a request is of somebody who holds the lease. What left has left without a holder.
fn is_a_holders(request: &Request) -> bool {
    match request {
        Request::Acquire { .. } | Request::Operate { .. } => false,
        Request::Renew { .. } | Request::Release { .. } | Request::Checkpoint { .. } | Request::Complete { .. } => true,
    }
}

/// A write that got no answer, and the record that it was based on.
#[derive(Debug)]
pub(super) struct Unanswered {
    error: Error,
    base: Known,
}

impl Unanswered {
    /// What to say for as long as nothing more is known.
    fn error(&self) -> Error {
        Error::new(self.error.kind(), self.error.to_string())
    }

    fn fate(&self, seen: &Known, request: &Request) -> Fate {
        // Nobody has written since: it was not applied. Should it still arrive, it finds what it expects only if ours has not.
        if seen.revision == self.base.revision {
            Fate::NotApplied
        } else {
            fate(&self.base.record, &seen.record, request)
        }
    }

    fn forgotten(&self, lease: &LeaseName, seen: &Ownership) -> Error {
        let (base, now) = (self.base.record.epoch, seen.epoch);
        let message = format!(
            "no answer came, and whether it was applied to lease `{lease}` is not known: it was asked for at epoch {base}, and the \
             record is at epoch {now} and remembers no further back; look at `{lease}` before asking again"
        );
        Error::new(Kind::Indeterminate, message).with_source(self.error())
    }
}

/// Whether the refusal says that what was asked for is so, which callers take for done.
fn is_so_already(request: &Request, refusal: &Refusal) -> bool {
    match (request, refusal) {
        (Request::Release { .. }, Refusal::AlreadyReleased { .. }) => true,
        (Request::Operate { order, .. }, Refusal::Paused(_)) => matches!(order, Order::Pause),
        (Request::Operate { order, .. }, Refusal::NotPaused) => matches!(order, Order::Resume { .. }),
        _ => false,
    }
}

fn unconfirmed(lease: &LeaseName, cause: Error) -> Error {
    let message = format!(
        "lease `{lease}` is as it was to be, by an earlier request; whether that lasts is not known, for a write that was to \
         confirm it failed; ask again"
    );
    Error::new(Kind::Indeterminate, message).with_source(cause)
}
