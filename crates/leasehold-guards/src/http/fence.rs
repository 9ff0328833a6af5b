//! Admission: which request may pass, by the fence in the store and a copy of it in memory.
//!
//! The copy may be trusted because one proxy at a time answers for a resource: it holds a lease of its own on it, and its
//! tenure is in the fence. A request of the epoch that was let in last costs no exchange with the store. A newer one is
//! looked up in the store, waits for older requests in flight, and is let in when the fence has moved, durably.
//!
//! Promise: once a newer epoch was let in, no older request becomes whole at the upstream through this proxy, and none is
//! at work there that had not been answered. Non-promise: what an upstream does with a request later than
//! [`super::Limits::upstream_timeout`] after it was sent.

use super::Stage;
use super::flight::{Fault, Flight};
use super::problem::Problem;
use crate::kept::{Kept, KeptFence};
use leasehold::clock::Moment;
use leasehold::guard::{self, HighWater, Policy, Rejection};
use leasehold::{Claim, Coordinator, Epoch, Event, LeaseName, Resolver, Right, Token, TokenState};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// How often the fence is read again because somebody else moved it.
const MAX_ATTEMPTS: u32 = 8;

/// Told at every named step of an admitted request. Tests stop the process there.
pub type OnStage = Arc<dyn Fn(Stage) + Send + Sync>;

pub(crate) struct Fence {
    pub(crate) resource: String,
    pub(crate) coordinator: Coordinator,
    /// Finds the records that tokens are of.
    pub(crate) tokens: Arc<dyn Resolver>,
    pub(crate) kept: KeptFence,
    pub(crate) policy: Policy,
    pub(crate) lease: Option<LeaseName>,
    pub(crate) drain: Duration,
    /// How long a request that was sent whole may be at work upstream.
    pub(crate) upstream_timeout: Duration,
    pub(crate) on_stage: Option<OnStage>,
    pub(crate) state: Mutex<State>,
    /// One newer epoch at a time.
    pub(crate) turn: tokio::sync::Mutex<()>,
    pub(crate) settled: Notify,
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence").field("resource", &self.resource).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// This proxy's tenure, while it answers for the resource.
    pub(crate) active: Option<Active>,
    /// Why it does not, for those who ask.
    pub(crate) standby: String,
    /// The newer epoch that the store has confirmed and that older requests are drained for.
    closing: Option<Epoch>,
    flights: HashMap<u64, Arc<Flight>>,
    next_flight: u64,
    counted: Option<Epoch>,
}

#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) claim: Claim,
    pub(crate) trust_until: Moment,
    pub(crate) kept: Kept,
    /// A proxy before this one died or was stopped: what it had sent may be at work until then.
    pub(crate) haunted_until: Option<Moment>,
}

/// The right of one request to pass; in flight until it is dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    fence: Arc<Fence>,
    id: u64,
    flight: Arc<Flight>,
}

impl Ticket {
    pub(crate) fn flight(&self) -> &Flight {
        &self.flight
    }

    /// The present moment, if this proxy may still let anything pass at it.
    pub(crate) fn still_trusted(&self) -> Option<Moment> {
        let now = self.fence.coordinator.clock().now();
        self.fence.state().active.as_ref().filter(|active| now < active.trust_until).map(|_| now)
    }

    pub(crate) fn at(&self, stage: Stage) {
        self.fence.at(stage);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.fence.state().flights.remove(&self.id);
        self.fence.settled.notify_waiters();
    }
}

impl State {
    pub(crate) fn standing_by(standby: String) -> Self {
        State { standby, ..State::default() }
    }
}

/// What a token is shown for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Write,
    Seal,
}

/// What becomes of a token by what is in memory.
enum Look {
    Pass(Ticket),
    Refused(Rejection),
    Problem(Problem),
    /// The fence must move first, from what was seen to this.
    Move(Kept, HighWater),
}

impl Fence {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn at(&self, stage: Stage) {
        if let Some(on_stage) = &self.on_stage {
            on_stage(stage);
        }
    }

    /// Lets a request pass, or says why not. Runs to its end even if nobody waits for it any more: a fence that was
    /// moved half-way helps nobody.
    pub(crate) async fn admit(self: &Arc<Self>, token: &Token, purpose: Purpose) -> Result<Ticket, Problem> {
        if let Look::Pass(ticket) = self.look(token, purpose) {
            return Ok(ticket);
        }
        let (fence, token) = (self.clone(), token.clone());
        let moved = tokio::spawn(async move { fence.admit_slowly(&token, purpose).await }).await;
        moved.unwrap_or_else(|_| Err(Problem::unavailable("the proxy is shutting down")))
    }

    pub(crate) fn high_water(&self) -> Result<Option<HighWater>, Problem> {
        let state = self.state();
        match &state.active {
            Some(active) => Ok(active.kept.high.clone()),
            None => Err(Problem::unavailable(state.standby.clone())),
        }
    }

    async fn admit_slowly(self: &Arc<Self>, token: &Token, purpose: Purpose) -> Result<Ticket, Problem> {
        match self.look(token, purpose) {
            Look::Pass(ticket) => return Ok(ticket),
            Look::Refused(rejection) => return Err(self.explain(token, rejection).await),
            Look::Problem(problem) => return Err(problem),
            Look::Move(..) => {}
        }
        let busy = || Problem::unavailable(format!("resource=`{}` is being handed over; try again", self.resource));
        let _turn =
            tokio::time::timeout(self.drain + self.upstream_timeout, self.turn.lock()).await.map_err(|_| busy())?;
        for _ in 0..MAX_ATTEMPTS {
            let (seen, next) = match self.look(token, purpose) {
                Look::Pass(ticket) => return Ok(ticket),
                Look::Refused(rejection) => return Err(self.explain(token, rejection).await),
                Look::Problem(problem) => return Err(problem),
                Look::Move(seen, next) => (seen, next),
            };
            let newer = seen.high.as_ref().is_none_or(|high| high.epoch < next.epoch);
            if newer {
                self.confirm(token).await?;
                self.state().closing = Some(token.epoch);
                self.drain(token.epoch).await?;
            }
            self.at(Stage::Swap);
            // The tenure in the fence is this proxy's, or the fence is not this proxy's to move.
            match self.kept.put(&seen, Some(next), seen.by).await? {
                Some(kept) => {
                    self.at(Stage::Swapped);
                    self.remember(&seen, kept, token)?;
                    if purpose == Purpose::Write && self.policy == Policy::OncePerEpoch {
                        return self.take_off(token);
                    }
                }
                None => self.read_again(&seen).await?,
            }
        }
        Err(busy())
    }

    /// By what is in memory alone.
    fn look(self: &Arc<Self>, token: &Token, purpose: Purpose) -> Look {
        if self.lease.as_ref().is_some_and(|lease| *lease != token.lease) {
            let seen = self.lease.clone().unwrap_or_else(|| token.lease.clone());
            return Look::Refused(Rejection::Foreign { held: token.lease.clone(), seen });
        }
        let now = self.coordinator.clock().now();
        let mut state = self.state();
        let Some(active) = state.active.as_ref().filter(|active| now < active.trust_until) else {
            return Look::Problem(Problem::unavailable(state.standby.clone()));
        };
        let high = active.kept.high.as_ref();
        let next = match purpose {
            Purpose::Seal => guard::seal(high, token),
            Purpose::Write => guard::admit(high, token, self.policy),
        };
        let next = match next {
            Ok(next) => next,
            Err(rejection) => return Look::Refused(rejection),
        };
        if let Some(seen) = state.closing.filter(|closing| *closing > token.epoch) {
            return Look::Refused(Rejection::Stale { held: token.epoch, seen });
        }
        let same = high.is_some_and(|high| high.epoch == next.epoch);
        if same && (purpose == Purpose::Seal || self.policy != Policy::OncePerEpoch) {
            return Look::Pass(self.ticket(&mut state, token.epoch));
        }
        Look::Move(active.kept.clone(), HighWater { seq: self.seq(&next, purpose), ..next })
    }

    /// Reentrant writes are not numbered in the store: they would cost an exchange each.
    fn seq(&self, next: &HighWater, purpose: Purpose) -> u64 {
        if purpose == Purpose::Write && self.policy == Policy::OncePerEpoch { next.seq } else { 0 }
    }

    fn ticket(self: &Arc<Self>, state: &mut State, epoch: Epoch) -> Ticket {
        let id = state.next_flight;
        state.next_flight = id.wrapping_add(1);
        let flight = Arc::new(Flight::new(epoch));
        state.flights.insert(id, flight.clone());
        Ticket { fence: self.clone(), id, flight }
    }

    /// A ticket for what the fence was just moved for.
    fn take_off(self: &Arc<Self>, token: &Token) -> Result<Ticket, Problem> {
        let mut state = self.state();
        if state.active.is_none() {
            return Err(Problem::unavailable(state.standby.clone()));
        }
        Ok(self.ticket(&mut state, token.epoch))
    }

    /// Takes a moved fence over into memory, unless this proxy was replaced meanwhile.
    fn remember(&self, seen: &Kept, kept: Kept, token: &Token) -> Result<(), Problem> {
        let mut state = self.state();
        match &mut state.active {
            Some(active) if Some(active.claim) == seen.by => active.kept = kept,
            _ => return Err(Problem::unavailable("this proxy was replaced; try again")),
        }
        if state.closing.is_some_and(|closing| closing <= token.epoch) {
            state.closing = None;
        }
        Ok(())
    }

    /// Somebody else moved the fence: an older one is a store that went back, another watcher's ends this proxy's say.
    async fn read_again(&self, seen: &Kept) -> Result<(), Problem> {
        let found = self.kept.look().await?;
        let mut state = self.state();
        if found.by != seen.by {
            if state.active.as_ref().is_some_and(|active| Some(active.claim) == seen.by) {
                self.stand_down(&mut state, "another proxy answers for this resource now");
            }
            return Err(Problem::unavailable(state.standby.clone()));
        }
        let Some(active) = &mut state.active else { return Err(Problem::unavailable(state.standby.clone())) };
        let back = match (&active.kept.high, &found.high) {
            (Some(known), Some(found)) => (found.epoch, found.seq) < (known.epoch, known.seq),
            (known, found) => known.is_some() && found.is_none(),
        };
        if let (true, Some(known)) = (back, &active.kept.high) {
            return Err(guard::regressed(&self.resource, &known.lease, known.epoch).into());
        }
        active.kept = found;
        Ok(())
    }

    /// Asks the store whether it granted this token and has granted no other since: a client's word moves no fence.
    async fn confirm(&self, token: &Token) -> Result<(), Problem> {
        let found = self.tokens.resolve(token).await?;
        let refuse = |status, kind| {
            let refusal = found.refusal(token);
            Err(Problem::new(status, kind, format!("token refused: resource=`{}` {refusal}", self.resource)))
        };
        match &found.state {
            TokenState::Live(_) | TokenState::Expired => Ok(()),
            TokenState::Moved(_) => refuse(hyper::StatusCode::FORBIDDEN, leasehold::Kind::Moved),
            _ if found.epoch > token.epoch && !matches!(found.state, TokenState::OtherLineage { .. }) => {
                let stale = Rejection::Stale { held: token.epoch, seen: found.epoch };
                self.count(token);
                Err(Problem::rejection(stale, &self.resource))
            }
            TokenState::Ended { .. } => refuse(hyper::StatusCode::PRECONDITION_FAILED, leasehold::Kind::Lost),
            TokenState::NeverGranted if found.epoch == token.epoch => {
                let lease = token.lease.clone();
                Err(Problem::rejection(Rejection::Regressed { lease, seen: token.epoch }, &self.resource))
            }
            // Anybody can make a token up: nobody is called for it.
            _ => refuse(hyper::StatusCode::FORBIDDEN, leasehold::Kind::Invalid),
        }
    }

    /// A stale token is the holder's all the same if the store went back in time.
    async fn explain(self: &Arc<Self>, token: &Token, rejection: Rejection) -> Problem {
        let found = match &rejection {
            Rejection::Stale { .. } | Rejection::Regressed { .. } => self.tokens.resolve(token).await.ok(),
            _ => None,
        };
        let holder = found.map(|found| found.is_newest());
        match (&rejection, holder) {
            (Rejection::Stale { seen, .. }, Some(true)) => {
                return Problem::rejection_of_store(&self.resource, &token.lease, token.epoch, *seen);
            }
            (Rejection::Stale { .. }, _) => self.count(token),
            // The store does not know this grant of the epoch either: somebody made it up, and nobody is called for it.
            (Rejection::Regressed { seen, .. }, Some(false)) => {
                let detail = format!(
                    "token refused: resource=`{}` has let another grant of epoch {seen} in, and the store does not know \
                     this one",
                    self.resource
                );
                return Problem::new(hyper::StatusCode::FORBIDDEN, leasehold::Kind::Invalid, detail);
            }
            _ => {}
        }
        Problem::rejection(rejection, &self.resource)
    }

    /// Counts a refusal, once for each stale epoch: a zombie that knocks all day is one event.
    fn count(&self, token: &Token) {
        if Right::of(&token.lease) == Right::Lease && self.state().counted.replace(token.epoch) != Some(token.epoch) {
            let (coordinator, lease) = (self.coordinator.clone(), token.lease.clone());
            tokio::spawn(async move { coordinator.count(&lease, Event::Fenced).await });
        }
    }

    /// Waits until no older request is in flight. At the limit those are cut that were not sent whole, which is always
    /// safe; one that was is at work upstream, and is waited for as long as the upstream may take.
    async fn drain(&self, below: Epoch) -> Result<(), Problem> {
        let clock = self.coordinator.clock().clone();
        let limit = clock.now() + self.drain;
        let end = limit + self.upstream_timeout;
        loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            let now = clock.now();
            let (waiting, wake) = self.older(below, now >= limit, if now >= limit { end } else { limit });
            if waiting == 0 {
                return Ok(());
            }
            if now >= end {
                return Err(Problem::unavailable(format!(
                    "resource=`{}` the upstream has not answered {waiting} older request(s) yet; try again",
                    self.resource
                )));
            }
            tokio::select! {
                () = &mut settled => {}
                () = clock.sleep_until(wake) => {}
            }
        }
    }

    /// How many older requests have to be waited for, and when to look again.
    fn older(&self, below: Epoch, late: bool, limit: Moment) -> (usize, Moment) {
        let now = self.coordinator.clock().now();
        let mut state = self.state();
        let mut waiting = 0;
        for flight in state.flights.values().filter(|flight| flight.epoch < below) {
            if late {
                flight.cut(Fault::Overtaken(below));
            }
            waiting += usize::from(!flight.is_cut());
        }
        let Some(active) = &mut state.active else { return (waiting, limit) };
        match active.haunted_until {
            Some(until) if now < until => (waiting + 1, until.min(limit)),
            _ => {
                active.haunted_until = None;
                (waiting, limit)
            }
        }
    }

    /// Ends this proxy's say: nothing more is let in, and what is not whole is cut.
    pub(crate) fn stand_down(&self, state: &mut State, why: &str) {
        state.active = None;
        state.closing = None;
        state.standby = format!("resource=`{}` {why}; try again", self.resource);
        for flight in state.flights.values() {
            flight.cut(Fault::Deposed);
        }
    }

    /// Waits until nothing is in flight, at most this long; says whether that is so.
    pub(crate) async fn empty(&self, limit: Duration) -> bool {
        let waiting = async {
            loop {
                let settled = self.settled.notified();
                tokio::pin!(settled);
                settled.as_mut().enable();
                if self.state().flights.is_empty() {
                    return;
                }
                settled.await;
            }
        };
        tokio::time::timeout(limit, waiting).await.is_ok()
    }
}
