//! Waiting for a lease: one of several names, woken by the store where it can push.

use crate::backoff::Backoff;
use crate::clock::Moment;
use crate::coordinator::{Acquired, Ask, Coordinator};
use crate::epoch::Epoch;
use crate::error::{Error, Kind, Result};
use crate::lease::protocol::Refusal;
use crate::lease::transfer::Outcome;
use crate::migration;
use crate::name::{Key, LeaseName, Shelf};
use crate::store::Watch;
use crate::token::Token;
use futures_util::future::select_all;
use std::time::Duration;

/// How often a waiter reads the record, with or without hints.
const POLL: Duration = Duration::from_secs(1);
/// The first and the longest pause of a waiter after another waiter was faster.
const FIRST_BACKOFF: Duration = Duration::from_millis(250);
const MAX_BACKOFF: Duration = POLL;
/// The longest pause between a hint and the read that follows it.
const MAX_SPREAD: Duration = Duration::from_millis(1);
/// The longest pause before a waiter tries a store again that has no free connection.
const MAX_STORE_BACKOFF: Duration = Duration::from_secs(5);

/// Keeps the waiters that one hint wakes from colliding.
///
/// All of them are notified of a release, but only one can get the lease. If all read at every
/// release, their reads and lost swaps would slow that one down. So a waiter that finds a new holder
/// after a hint backs off, and does not watch meanwhile. The others read at slightly different
/// times. Otherwise the waiter that is notified first would always win: the last holder, which did
/// not have to back off and so began to watch before all others. A lone waiter never backs off.
#[derive(Debug)]
struct Contention {
    seen: Option<Epoch>,
    backoff: Backoff,
}

impl Contention {
    const fn new() -> Self {
        Contention { seen: None, backoff: Backoff::new(FIRST_BACKOFF, MAX_BACKOFF) }
    }

    /// How long to back off after this refusal; none if another waiter was not faster, or no hint preceded it.
    fn after(&mut self, refusal: &Refusal, is_hinted: bool) -> Option<Duration> {
        let Refusal::Held { epoch, .. } = refusal else { return None };
        let is_same = self.seen.replace(*epoch).is_none_or(|seen| seen == *epoch);
        (!is_same && is_hinted).then(|| self.backoff.at_least_half())
    }

    /// How long to pause after a hint that took `waited` to come: a small part
    /// of that, so that short tenures are handed over without delay.
    fn spread(&mut self, waited: Duration) -> Duration {
        self.backoff.below((waited / 20).min(MAX_SPREAD))
    }
}

/// How long to pause when the store is unreachable. If it has no room for another
/// client, because all its connections are in use, the pause grows each time.
fn unreachable_pause(kind: Kind, backoff: &mut Backoff) -> Duration {
    if kind == Kind::Contended { backoff.at_least_half() } else { POLL }
}

/// What to wait for.
#[derive(Clone, Copy)]
enum Group<'a> {
    /// Any one of these leases.
    Names(&'a [LeaseName]),
    /// Any seat of one lease, whose name comes first.
    Seats(&'a [LeaseName]),
}

impl<'a> Group<'a> {
    const fn names(self) -> &'a [LeaseName] {
        match self {
            Group::Names(names) | Group::Seats(names) => names,
        }
    }
}

/// The result of one try.
enum Attempt {
    /// Granted, or refused with the nonce unused.
    Answered(Acquired),
    /// A seat was granted and given back, because the lease was paused meanwhile: the nonce is used up.
    GivenBack(Acquired),
}

impl Coordinator {
    /// Tries each name in turn and acquires the first that is free.
    pub async fn acquire_any(&self, leases: &[LeaseName], ask: &Ask) -> Result<Acquired> {
        let mut soonest: Option<Acquired> = None;
        for (index, lease) in leases.iter().enumerate() {
            let mut ask = ask.clone();
            ask.holder.nonce = ask.holder.nonce.nth(index);
            let answer = self.acquire(lease, &ask).await?;
            if let Acquired::Granted(_) = answer {
                return Ok(answer);
            }
            if soonest.as_ref().is_none_or(|best| frees_before(&answer, best)) {
                soonest = Some(answer);
            }
        }
        soonest.ok_or_else(|| Error::new(Kind::Invalid, "no lease name was given"))
    }

    /// Tries until one of the names is acquired or `limit` has passed. Woken by the store where it can push; otherwise
    /// reads once a second and when a deadline comes.
    ///
    /// A refusal that waiting does not end, such as a slot that was already run, is returned at once. If the store
    /// becomes unreachable while waiting, or has no room for another client, it is tried again; if it is unreachable at
    /// the first attempt, that is an error. Each request has the same nonce, so it finds out what happened to one
    /// without an answer. The limit bounds the waiting, not a call to the store that hangs.
    ///
    /// Dropping the future leaves nothing held, or a grant that expires by itself.
    ///
    /// ```
    /// # use leasehold_core::{Acquired, Ask, Coordinator, HolderId, MemoryStore, Outcome};
    /// # use std::{sync::Arc, time::Duration};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold_core::Result<()> {
    /// let leases = Coordinator::new(Arc::new(MemoryStore::default()));
    /// // Either of two seats will do, and ten seconds are long enough to wait.
    /// let seats = ["encode".parse()?, "encode/seat-2".parse()?];
    /// let ask = Ask::new(HolderId::new(None), "90s".parse()?);
    /// match leases.acquire_within(&seats, &ask, Duration::from_secs(10)).await? {
    ///     Acquired::Granted(grant) => assert_eq!(grant.token().lease, seats[0]),
    ///     Acquired::Refused { lease, refusal, .. } => println!("{lease} comes free first: {refusal:?}"),
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn acquire_within(&self, leases: &[LeaseName], ask: &Ask, limit: Duration) -> Result<Acquired> {
        self.wait_for(Group::Names(leases), ask, limit).await
    }

    /// Continues where [`Coordinator::acquire`] of this one lease was refused, under the same nonce, as
    /// [`Coordinator::acquire_within`] does after its first attempt. A grant, and a refusal that waiting does not end,
    /// are returned at once.
    pub async fn acquire_after(
        &self,
        answer: Acquired,
        lease: &LeaseName,
        ask: &Ask,
        limit: Duration,
    ) -> Result<Acquired> {
        let (give_up, full) = (self.clock().now() + limit, Backoff::new(FIRST_BACKOFF, MAX_STORE_BACKOFF));
        self.wait_after(answer, Group::Names(std::slice::from_ref(lease)), ask, give_up, full).await
    }

    /// The same for the seats of one lease (see [`LeaseName::seat`]). A pause of
    /// the lease applies to all of its seats, even if it begins during the wait.
    ///
    /// If a pause came between the read and the grant, the seat is given back and the refusal is returned at once. To
    /// wait again, use a fresh [`crate::HolderId`].
    pub async fn acquire_seat(&self, seats: &[LeaseName], ask: &Ask, limit: Duration) -> Result<Acquired> {
        self.wait_for(Group::Seats(seats), ask, limit).await
    }

    async fn attempt(&self, group: Group<'_>, ask: &Ask) -> Result<Attempt> {
        let Group::Seats(seats @ [first, ..]) = group else {
            return self.acquire_any(group.names(), ask).await.map(Attempt::Answered);
        };
        if let Some(paused) = self.paused(first).await? {
            return Ok(Attempt::Answered(paused));
        }
        let answer = self.acquire_any(seats, ask).await?;
        match &answer {
            // For the first seat the swap itself has checked the pause; for the others it has not.
            Acquired::Granted(grant) if grant.token().lease != *first => match self.paused(first).await {
                Ok(None) => Ok(Attempt::Answered(answer)),
                Ok(Some(paused)) => {
                    self.release(grant, Outcome::NotStarted).await?;
                    Ok(Attempt::GivenBack(paused))
                }
                Err(error) => {
                    self.release(grant, Outcome::NotStarted).await?;
                    Err(error)
                }
            },
            _ => Ok(Attempt::Answered(answer)),
        }
    }

    /// The refusal, if an operator has paused the lease.
    async fn paused(&self, lease: &LeaseName) -> Result<Option<Acquired>> {
        let seen = self.inspect(lease).await?;
        if let Some(state) = &seen.record.relocation {
            // A lease that has moved: its pause does not count here.
            return Err(migration::elsewhere(self.store().as_ref(), &format!("lease `{lease}`"), state).await);
        }
        let refused =
            |mark| Acquired::Refused { lease: lease.clone(), refusal: Box::new(Refusal::Paused(mark)), now: seen.now };
        Ok(seen.record.paused.map(refused))
    }

    /// The first try that is answered. Only a store that has no room for another client is tried again.
    async fn first_attempt(&self, group: Group<'_>, ask: &Ask, give_up: Moment, full: &mut Backoff) -> Result<Attempt> {
        loop {
            match self.attempt(group, ask).await {
                Err(error) if error.kind() == Kind::Contended && self.clock().now() < give_up => {
                    let pause = unreachable_pause(error.kind(), full);
                    self.clock().sleep_until((self.clock().now() + pause).min(give_up)).await;
                }
                attempted => return attempted,
            }
        }
    }

    async fn wait_for(&self, group: Group<'_>, ask: &Ask, limit: Duration) -> Result<Acquired> {
        let give_up = self.clock().now() + limit;
        let mut full = Backoff::new(FIRST_BACKOFF, MAX_STORE_BACKOFF);
        match self.first_attempt(group, ask, give_up, &mut full).await? {
            Attempt::Answered(answer) => self.wait_after(answer, group, ask, give_up, full).await,
            Attempt::GivenBack(paused) => Ok(paused),
        }
    }

    /// Waits, once the first attempt was answered.
    async fn wait_after(
        &self,
        mut answer: Acquired,
        group: Group<'_>,
        ask: &Ask,
        give_up: Moment,
        mut full: Backoff,
    ) -> Result<Acquired> {
        let leases = group.names();
        let mut watches: Option<Vec<Watch>> = None;
        let (mut contention, mut is_hinted) = (Contention::new(), false);
        loop {
            let Acquired::Refused { refusal, now: told, .. } = &answer else { return Ok(answer) };
            let until_free = match &**refusal {
                Refusal::Held { tenure, .. } => tenure.deadline.saturating_since(*told),
                Refusal::Paused(_) | Refusal::Draining(_) => POLL,
                _ => return Ok(answer),
            };
            let now = self.clock().now();
            if now >= give_up {
                return Ok(answer);
            }
            if let Some(pause) = contention.after(refusal, std::mem::take(&mut is_hinted)) {
                watches = None;
                self.clock().sleep_until((now + pause).min(give_up)).await;
            }
            if let Some(watches) = &mut watches {
                let wake = (now + until_free.clamp(Duration::from_millis(1), POLL)).min(give_up);
                tokio::select! {
                    biased;
                    () = self.clock().sleep_until(wake) => {}
                    () = any_hint(watches) => {
                        is_hinted = true;
                        let hinted = self.clock().now();
                        let pause = contention.spread(hinted.saturating_since(now));
                        self.clock().sleep_until((hinted + pause).min(give_up)).await;
                        // The next read sees what the hints meanwhile were about.
                        watches.iter_mut().for_each(Watch::forget);
                    }
                }
            } else {
                // Watch first, read again, then sleep: so no release between the read and the watch is missed.
                let mut opened = Vec::with_capacity(leases.len());
                for lease in leases {
                    opened.push(self.store().watch(&Key::new(Shelf::Lease, lease)).await.unwrap_or(Watch::silent()));
                }
                watches = Some(opened);
            }
            // Refused requests were not applied, so the nonce is still unused.
            match self.attempt(group, ask).await {
                Ok(Attempt::Answered(next)) => {
                    answer = next;
                    full.reset();
                }
                Ok(Attempt::GivenBack(paused)) => return Ok(paused),
                // The store may be back before the limit. The first read has shown that the configuration works.
                Err(error) if is_temporary(error.kind()) && self.clock().now() < give_up => {
                    if error.kind() == Kind::Contended {
                        // A watch needs one more connection.
                        watches = None;
                    }
                    let pause = unreachable_pause(error.kind(), &mut full);
                    self.clock().sleep_until((self.clock().now() + pause).min(give_up)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Releases what an abandoned [`Coordinator::acquire_within`] may have been granted after all.
    pub async fn withdraw(&self, leases: &[LeaseName], ask: &Ask) -> Result<()> {
        for (index, lease) in leases.iter().enumerate() {
            let nonce = ask.holder.nonce.nth(index);
            let record = self.inspect(lease).await?.record;
            let Some(lineage) = record.lineage else { continue };
            let token = Token { lease: lease.clone(), lineage, epoch: record.epoch, nonce, seq: 0 };
            if record.is_held_by(token.claim()) {
                self.release_by_token(&token, Outcome::NotStarted).await?;
            }
        }
        Ok(())
    }
}

/// Whether waiting may end this kind of error.
pub(crate) const fn is_temporary(kind: Kind) -> bool {
    matches!(kind, Kind::Unavailable | Kind::Contended | Kind::Indeterminate)
}

fn frees_before(a: &Acquired, b: &Acquired) -> bool {
    let deadline = |acquired: &Acquired| match acquired {
        Acquired::Refused { refusal, .. } => match &**refusal {
            Refusal::Held { tenure, .. } => Some(tenure.deadline),
            _ => None,
        },
        Acquired::Granted(_) => None,
    };
    match (deadline(a), deadline(b)) {
        (Some(a), Some(b)) => a < b,
        (Some(_), None) => true,
        _ => false,
    }
}

async fn any_hint(watches: &mut [Watch]) {
    select_all(watches.iter_mut().map(|watch| Box::pin(watch.hint()))).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holder::HolderId;
    use crate::lease::record::Tenure;
    use crate::time::{Timestamp, Ttl};

    fn held(epoch: u64) -> Refusal {
        let (granted_at, deadline) = (Timestamp::from_millis(1), Timestamp::from_millis(2));
        let tenure = Tenure { holder: HolderId::new(None), granted_at, deadline, ttl: Ttl::MIN };
        Refusal::Held { tenure, epoch: Epoch::new(epoch).unwrap() }
    }

    #[test]
    fn a_waiter_at_the_longest_backoff_still_backs_off() {
        let mut contention = Contention::new();
        while contention.backoff.at_least_half() < MAX_BACKOFF / 2 {}
        assert_eq!(contention.after(&held(1), true), None, "there was nobody before");
        assert!(contention.after(&held(2), true).is_some_and(|pause| pause >= MAX_BACKOFF / 2 && pause < MAX_BACKOFF));
        assert_eq!(contention.after(&held(2), true), None, "the same one as before");
        assert_eq!(contention.after(&held(3), false), None, "found so without a hint");
    }
}
