//! One request on one item: read, decide, swap, at most so many times; and the first write of an item.
//!
//! Promise: nothing counts unless a swap answered that it is stored. A write without an answer is looked for by its nonce:
//! what is found is confirmed by a new write, what the record proves was not applied is tried again, and what it no longer
//! remembers is *unknown* ([`super::protocol::fate`]). Non-promise: places in line are hints, and follow later.

use super::desk::{Added, Queue};
use super::grant::Known;
use super::item::{Item, State};
use super::name::ItemName;
use super::protocol::{Decision, Refusal, Request, decide, fate};
use leasehold::protocol::Fate;
use leasehold::relocation::elsewhere;
use leasehold::residence;
use leasehold::store::Swap;
use leasehold::{Anchor, Error, Jitter, Kind, Nonce, Result};
use std::time::Duration;

/// How often a request is decided anew when others keep writing in between.
const MAX_ATTEMPTS: u32 = 40;
/// The longest pause between two attempts.
const MAX_BACKOFF: Duration = Duration::from_millis(64);

/// The outcome of a request.
#[derive(Debug)]
pub(super) enum Applied {
    /// Written now, or found written by this very request.
    Yes(Box<Known>),
    /// Refused.
    No(Refusal, Box<Known>),
    /// Not tried: the item has changed since the copy that it was to be decided on.
    Overtaken,
    /// There is no such item.
    Missing,
}

/// What is to be done if an item has changed since the copy that a request was decided on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Copy {
    /// Read it, and decide again.
    Refresh,
    /// Nothing: there are others.
    LetGo,
}

/// A write that got no answer, and the record that it was based on.
struct Unanswered {
    error: Error,
    base: Known,
}

impl Unanswered {
    fn fate(&self, seen: &Known, request: &Request) -> Fate {
        // Nobody has written since: it was not applied. Should it still arrive, it finds what it expects only if ours has not.
        if seen.revision == self.base.revision { Fate::NotApplied } else { fate(&self.base.item, &seen.item, request) }
    }

    fn forgotten(self, name: &ItemName, seen: &Item) -> Error {
        let (base, now) = (self.base.item.epoch, seen.epoch);
        let message = format!(
            "no answer came, and whether it was applied to item `{name}` is not known: it was asked for at epoch {base}, and the \
             item is at epoch {now} and remembers no further back; look at it before asking again"
        );
        Error::new(Kind::Indeterminate, message).with_source(self.error)
    }
}

impl Queue {
    /// The loop: decide on what is known (or read), swap, and read again when somebody was faster or no answer came.
    pub(super) async fn apply(&self, name: &ItemName, request: &Request, known: Option<Known>) -> Result<Applied> {
        self.apply_to(name, request, known, Copy::Refresh).await
    }

    pub(super) async fn apply_to(
        &self,
        name: &ItemName,
        request: &Request,
        known: Option<Known>,
        copy: Copy,
    ) -> Result<Applied> {
        let grain = self.grain();
        let mut jitter: Option<Jitter> = None;
        let mut unanswered: Option<Unanswered> = None;
        let mut remembered = known;
        for attempt in 0..MAX_ATTEMPTS {
            let from_memory = remembered.is_some();
            let known = match remembered.take() {
                Some(known) => known,
                None => match self.look(name).await {
                    Ok(Some(known)) => known,
                    Ok(None) => return unanswered.map_or(Ok(Applied::Missing), |write| Err(write.error)),
                    // What happened to the earlier swap is still unknown: saying "unavailable" would deny it.
                    Err(error) => return Err(unanswered.map_or(error, |write| write.error)),
                },
            };
            let fate = unanswered.as_ref().map_or(Fate::NotApplied, |write| write.fate(&known, request));
            if let Some(write) = unanswered.take_if(|_| fate == Fate::Unknown) {
                return Err(write.forgotten(name, &known.item));
            }
            let asked = self.clock().now();
            // What was just read is judged by the time it was read at; what is remembered, by how long ago that was. A
            // renewal must not come too late, so for it the latest time counts that it can be.
            let unsure = if let Request::Renew { .. } = request { grain } else { Duration::ZERO };
            let now = if from_memory { known.anchor.at_latest(asked, unsure) } else { known.anchor.now };
            let next = match decide(&known.item, request, now) {
                // It was applied, and is over: once more would be a second time.
                Decision::Write(_) if fate == Fate::Applied => match unanswered {
                    Some(write) => return Err(write.forgotten(name, &known.item)),
                    None => continue,
                },
                Decision::Write(next) => *next,
                // Nothing was to be done, and nothing rests on it.
                Decision::AlreadyApplied if unanswered.is_none() && !rests_on_it(request) => {
                    return Ok(Applied::Yes(Box::new(known)));
                }
                // It is visible; whether it is durable, only a new write's answer can tell.
                Decision::AlreadyApplied => known.item.clone(),
                Decision::Refuse(_) if from_memory => continue,
                Decision::Refuse(Refusal::Stale { .. }) if fate == Fate::Applied => known.item.clone(),
                Decision::Refuse(Refusal::Elsewhere(state)) => {
                    return Err(elsewhere(&format!("item `{name}`"), &state));
                }
                Decision::Refuse(refusal) => return Ok(Applied::No(refusal, Box::new(known))),
            };
            match self.line.swap(name, Some((&known.item, &known.revision)), &next).await {
                Ok(Swap::Done { revision, now }) => {
                    let known = Known { item: next, revision, anchor: Anchor { now, asked } };
                    return Ok(Applied::Yes(Box::new(known)));
                }
                Ok(Swap::Mismatch) if from_memory && copy == Copy::LetGo => return Ok(Applied::Overtaken),
                Ok(Swap::Mismatch) => {}
                Err(error) if error.kind() == Kind::Indeterminate => {
                    unanswered.get_or_insert(Unanswered { error, base: known });
                }
                Err(error) => return Err(unanswered.map_or(error, |write| write.error)),
            }
            if !from_memory {
                let jitter = jitter.get_or_insert_with(|| Jitter::new(Nonce::random()));
                let bound = Duration::from_millis(1 << attempt.min(6)).min(MAX_BACKOFF);
                let pause = Duration::from_micros(jitter.below(bound.as_micros().max(1) as u64));
                self.clock().sleep_until(self.clock().now() + pause).await;
            }
        }
        Err(unanswered.map(|write| write.error).unwrap_or_else(|| {
            let message = format!("item `{name}` is too busy: {MAX_ATTEMPTS} attempts were overtaken; try again");
            Error::new(Kind::Contended, message)
        }))
    }

    /// Writes a new item unless it is there, and sees that it stands in line.
    pub(super) async fn put(&self, name: ItemName, item: &Item) -> Result<Added> {
        let mut unanswered: Option<Error> = None;
        let mut there: Option<Known> = None;
        for _ in 0..MAX_ATTEMPTS {
            if let Some(state) = there.as_ref().and_then(|known| known.item.relocation.as_ref()) {
                return Err(elsewhere(&format!("item `{name}`"), state));
            }
            let next = match &there {
                None => item.clone(),
                Some(known) if matches!(known.item.state, State::Purged { .. }) => item.after(&known.item),
                // Ours, or added before by somebody else, who perhaps got no answer either. It is visible; whether it is durable,
                // only a new write's answer can tell.
                Some(known) => known.item.clone(),
            };
            let was = there.as_ref().map(|known| (&known.item, &known.revision));
            match self.line.swap(&name, was, &next).await {
                Ok(Swap::Done { revision, now }) => {
                    let is_first = there.as_ref().is_none_or(|known| known.item != next);
                    if is_first && self.line.is_one_step() {
                        return Ok(Added::New(name));
                    }
                    let is_ours = is_first || next.lineage == item.lineage;
                    let known = Known { item: next, revision, anchor: Anchor { now, asked: self.clock().now() } };
                    return self.stands(&name, &known, if is_ours { Added::New } else { Added::Duplicate }).await;
                }
                Ok(Swap::Mismatch) => {}
                Err(error) if error.kind() == Kind::Indeterminate => unanswered = Some(unanswered.unwrap_or(error)),
                Err(error) => return Err(unanswered.unwrap_or(error)),
            }
            there = match self.look(&name).await {
                Ok(found) => found,
                // Whether it was added is still unknown: saying "unavailable" would deny it.
                Err(error) => return Err(unanswered.unwrap_or(error)),
            };
        }
        Err(unanswered.unwrap_or_else(|| {
            Error::new(Kind::Contended, format!("item `{name}` keeps changing while it is added; try again"))
        }))
    }

    /// Sees that an item which is stored stands in line: whoever added it may have died before that.
    async fn stands(&self, name: &ItemName, known: &Known, added: fn(ItemName) -> Added) -> Result<Added> {
        let place = self.line.place(name, &known.item);
        if known.item.is_open()
            && let Err(error) = self.line.enter(&place, &known.revision, &known.item).await
        {
            let message = format!(
                "item `{name}` was added, but could not be put in line; workers find it within 10 minutes, and `leasehold queue \
                 janitor {}` at once",
                self.name
            );
            return Err(Error::new(Kind::Indeterminate, message).with_source(error));
        }
        Ok(added(name.clone()))
    }

    /// Refuses to go on in a namespace that is on its way to another store, or has gone there.
    pub(super) async fn check_residence(&self) -> Result<()> {
        residence::look(self.store().as_ref()).await?.check(&format!("queue `{}`", self.name))
    }
}

/// Whether somebody builds upon the answer that a request was applied before.
fn rests_on_it(request: &Request) -> bool {
    !matches!(request, Request::Reap | Request::Settle)
}
