//! Admission: which request may pass, by the fence in the store and a copy of it in memory.
//!
//! The copy may be trusted because one proxy at a time answers for a resource: it holds a lease of its own on it, and its
//! tenure is in the fence. A request of the epoch that was let in last costs no exchange with the store. A newer one is
//! looked up in the store, waits for older requests in flight, and is let in when the fence has moved, durably.
//!
//! Promise: once a newer epoch was admitted, no complete older request reaches the upstream through this proxy, and no
//! unanswered one is still running there. Nothing passes before its epoch is also in the files of this machine, if the
//! proxy has any. Non-promise: what an upstream does with a request later than [`super::Limits::upstream_timeout`]
//! after it was sent.

use super::ProxyStep;
use super::flight::{Fault, Flight, LineEpoch};
use super::horizon::{Ahead, Inherited};
use super::problem::Problem;
use leasehold_core::clock::Moment;
use leasehold_core::guard::{self, HighWater, Policy, Rejection};
use leasehold_core::observe::Observed;
use leasehold_core::{Coordinator, Epoch, Error, Kind, LeaseName, Nonce, Resolver, Token};
use leasehold_guards::stored::high_water::LocalCopy;
use leasehold_guards::stored::{FenceDocument, FenceRecord, FenceSnapshot};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// How often the fence is read again because somebody else moved it.
const MAX_ATTEMPTS: u32 = 8;

pub(crate) struct Fence {
    pub(crate) resource: String,
    pub(crate) coordinator: Coordinator,
    /// Finds the records that tokens are of.
    pub(crate) tokens: Arc<dyn Resolver>,
    pub(crate) document: FenceDocument,
    /// The proxy's own memory.
    pub(crate) files: LocalCopy,
    pub(crate) policy: Policy,
    pub(crate) lease: Option<LeaseName>,
    pub(crate) drain: Duration,
    /// How long a complete request may run upstream.
    pub(crate) upstream_timeout: Duration,
    pub(crate) steps: Observed<ProxyStep>,
    pub(crate) state: Mutex<State>,
    /// One newer epoch at a time.
    pub(crate) turn: tokio::sync::Mutex<()>,
    /// One write to the fence at a time, from the check in memory to the answer.
    pub(crate) writing: tokio::sync::Mutex<()>,
    pub(crate) settled: Notify,
    pub(crate) horizon_wanted: Notify,
    pub(crate) horizon_moved: Notify,
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence").field("resource", &self.resource).finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub(crate) struct State {
    /// This proxy's tenure, while it answers for the resource.
    pub(crate) active: Option<Active>,
    /// Why it does not: the answer to clients.
    standby: (Kind, String),
    /// The newer epoch that the store has confirmed and that older requests are drained for.
    closing: Option<Epoch>,
    pub(crate) flights: HashMap<u64, Arc<Flight>>,
    /// Until when requests that were sent and never answered may still be running.
    pub(crate) unanswered: HashMap<LineEpoch, Moment>,
    next_flight: u64,
    pub(crate) counted: Option<Epoch>,
}

#[derive(Debug)]
pub(crate) struct Active {
    /// Its epoch and nonce.
    pub(crate) claim: (Epoch, Nonce),
    pub(crate) trust_until: Moment,
    pub(crate) seen: FenceSnapshot,
    /// What is surely in the files of this machine.
    pub(crate) filed: Option<HighWater>,
    /// Until when requests may be completed, by the horizon in the fence.
    pub(crate) send_until: Moment,
    /// What other proxies have sent.
    pub(crate) inherited: Option<Inherited>,
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

    pub(crate) fn fence(&self) -> &Fence {
        &self.fence
    }

    /// The present moment, if this proxy may still let requests pass.
    pub(crate) fn still_trusted(&self) -> Option<Moment> {
        let now = self.fence.coordinator.clock().now();
        self.fence.state().active.as_ref().filter(|active| now < active.trust_until).map(|_| now)
    }

    pub(crate) fn at(&self, step: ProxyStep) {
        self.fence.at(step);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.fence.state();
        state.flights.remove(&self.id);
        // The connection broke, or its task was dropped: the upstream knows nothing of that.
        if let Some(sent_at) = self.flight.unanswered_since() {
            let until = sent_at + self.fence.upstream_timeout;
            let known = state.unanswered.entry(self.flight.of).or_insert(until);
            *known = until.max(*known);
        }
        self.fence.settled.notify_waiters();
    }
}

impl State {
    pub(crate) fn standing_by(text: String) -> Self {
        State {
            active: None,
            standby: (Kind::Unavailable, text),
            closing: None,
            flights: HashMap::new(),
            unanswered: HashMap::new(),
            next_flight: 0,
            counted: None,
        }
    }

    fn problem(&self) -> Problem {
        let (kind, text) = &self.standby;
        Problem::from(Error::new(*kind, text.clone()))
    }
}

/// What a token is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Write,
    Seal,
}

/// The decision about a token by what is in memory.
enum Look {
    Pass(Ticket),
    Refused(Rejection),
    Problem(Problem),
    /// The fence must move first.
    Move(Box<Move>),
}

struct Move {
    seen: FenceSnapshot,
    next: HighWater,
    /// No request of this epoch was here yet.
    is_new: bool,
}

impl Fence {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn at(&self, step: ProxyStep) {
        self.steps.announce(step);
    }

    /// Admits a request, or says why not. Once begun, it runs to its end even if nobody waits for it any more.
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
            Some(active) => Ok(active.seen.record.high.clone()),
            None => Err(state.problem()),
        }
    }

    async fn admit_slowly(self: &Arc<Self>, token: &Token, purpose: Purpose) -> Result<Ticket, Problem> {
        match self.look(token, purpose) {
            Look::Pass(ticket) => return Ok(ticket),
            Look::Refused(rejection) => return Err(self.explain(token, rejection).await),
            Look::Problem(problem) => return Err(problem),
            Look::Move(_) => {}
        }
        let busy = || Problem::unavailable(format!("resource=`{}` is being handed over; try again", self.resource));
        let _turn =
            tokio::time::timeout(self.drain + self.upstream_timeout, self.turn.lock()).await.map_err(|_| busy())?;
        for _ in 0..MAX_ATTEMPTS {
            let is_new = match self.look(token, purpose) {
                Look::Pass(ticket) => return Ok(ticket),
                Look::Refused(rejection) => return Err(self.explain(token, rejection).await),
                Look::Problem(problem) => return Err(problem),
                Look::Move(change) => change.is_new,
            };
            if is_new {
                self.confirm(token).await?;
                self.state().closing = Some(token.epoch);
            }
            self.drain(token.into()).await?;
            let _writing = self.writing.lock().await;
            // The horizon may have moved meanwhile, and the fence with it.
            let Look::Move(change) = self.look(token, purpose) else { continue };
            let Move { seen, next, .. } = *change;
            if !self.advance(&seen, &next, token).await? {
                self.read_again(&seen).await?;
            } else if purpose == Purpose::Write && self.policy == Policy::OncePerEpoch {
                return self.take_off(token);
            }
        }
        Err(busy())
    }

    /// Moves the fence in the store, then in the files of this machine; false if somebody else has moved it.
    async fn advance(self: &Arc<Self>, seen: &FenceSnapshot, next: &HighWater, token: &Token) -> Result<bool, Problem> {
        if seen.record.high.as_ref() != Some(next) {
            self.at(ProxyStep::Swap);
            let ahead = self.ahead(seen, token.into());
            // The put fails unless the tenure in the fence is this proxy's.
            let record = FenceRecord { high: Some(next.clone()), horizon: Some(ahead.horizon), ..seen.record.clone() };
            let Some(written) = self.document.put(seen, record).await? else { return Ok(false) };
            self.take_over(seen, written, &ahead)?;
        }
        if self.files.path().is_some() {
            self.at(ProxyStep::File);
            if let Err(rejection) = self.files.raise(next).await? {
                return Err(self.explain(token, rejection).await);
            }
        }
        self.at(ProxyStep::Swapped);
        self.remember(seen, |active| active.filed = Some(next.clone()))?;
        let mut state = self.state();
        if state.closing.is_some_and(|closing| closing <= token.epoch) {
            state.closing = None;
        }
        Ok(true)
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
            return Look::Problem(state.problem());
        };
        let high = active.seen.record.high.as_ref();
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
        let own = LineEpoch::from(token);
        let is_new = high.is_none_or(|high| LineEpoch::from(high) != own);
        let is_clear = active.inherited.is_none_or(|inherited| inherited.of == own || now >= inherited.until);
        let is_filed = self.files.path().is_none()
            || active.filed.as_ref().is_some_and(|filed| HighWater { seq: next.seq, ..filed.clone() } == next);
        let is_numbered = purpose == Purpose::Write && self.policy == Policy::OncePerEpoch;
        if !is_new && is_clear && is_filed && !is_numbered {
            return Look::Pass(self.ticket(&mut state, own));
        }
        // Reentrant writes are not numbered in the store: they would cost an exchange each.
        let is_reentrant = purpose == Purpose::Write && self.policy != Policy::OncePerEpoch;
        let seq = if is_reentrant { high.filter(|_| !is_new).map_or(0, |high| high.seq) } else { next.seq };
        Look::Move(Box::new(Move { seen: active.seen.clone(), next: HighWater { seq, ..next }, is_new }))
    }

    fn ticket(self: &Arc<Self>, state: &mut State, of: LineEpoch) -> Ticket {
        let id = state.next_flight;
        state.next_flight = id.wrapping_add(1);
        let flight = Arc::new(Flight::new(of));
        state.flights.insert(id, flight.clone());
        Ticket { fence: self.clone(), id, flight }
    }

    /// A ticket for what the fence was just moved for.
    fn take_off(self: &Arc<Self>, token: &Token) -> Result<Ticket, Problem> {
        let mut state = self.state();
        if state.active.is_none() {
            return Err(state.problem());
        }
        Ok(self.ticket(&mut state, token.into()))
    }

    /// Takes a fence that was written over into memory, with its horizon.
    pub(crate) fn take_over(&self, seen: &FenceSnapshot, written: FenceSnapshot, ahead: &Ahead) -> Result<(), Problem> {
        let send_until = self.send_until(ahead, &written);
        self.remember(seen, |active| {
            active.seen = written;
            active.send_until = send_until;
        })
    }

    /// Changes what is in memory, unless this proxy was replaced meanwhile.
    fn remember(&self, seen: &FenceSnapshot, change: impl FnOnce(&mut Active)) -> Result<(), Problem> {
        match &mut self.state().active {
            Some(active) if Some(active.claim) == seen.record.by => change(active),
            _ => return Err(Problem::unavailable("this proxy was replaced; try again")),
        }
        Ok(())
    }

    /// Somebody else moved the fence. If it went back, the store was restored. If it names another proxy, this one
    /// stands down.
    pub(crate) async fn read_again(&self, seen: &FenceSnapshot) -> Result<(), Problem> {
        let found = self.document.look().await?;
        let mut state = self.state();
        if found.record.by != seen.record.by {
            if state.active.as_ref().is_some_and(|active| Some(active.claim) == seen.record.by) {
                self.stand_down(&mut state, "has another proxy now, or was given to another lease");
            }
            return Err(state.problem());
        }
        let standby = state.problem();
        let Some(active) = &mut state.active else { return Err(standby) };
        let back = match (&active.seen.record.high, &found.record.high) {
            (Some(known), Some(found)) => (found.epoch, found.seq) < (known.epoch, known.seq),
            (known, found) => known.is_some() && found.is_none(),
        };
        if let (true, Some(known)) = (back, &active.seen.record.high) {
            return Err(guard::regressed(&self.resource, &known.lease, known.epoch).into());
        }
        active.seen = found;
        Ok(())
    }

    /// Waits until no request of another epoch is in flight or may be running upstream. At the limit those that were
    /// not sent completely are cut, which is always safe. A complete one is waited for as long as the upstream may
    /// take.
    async fn drain(&self, own: LineEpoch) -> Result<(), Problem> {
        let clock = self.coordinator.clock().clone();
        let limit = clock.now() + self.drain;
        let end = limit + self.upstream_timeout;
        loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            let now = clock.now();
            let (waiting, wake) = self.older(own, now, now >= limit);
            if waiting == 0 {
                return Ok(());
            }
            if now >= end {
                return Err(Problem::unavailable(format!(
                    "resource=`{}` {waiting} older request(s) may still be in progress upstream; try again",
                    self.resource
                )));
            }
            tokio::select! {
                () = &mut settled => {}
                () = clock.sleep_until(wake.min(if now >= limit { end } else { limit })) => {}
            }
        }
    }

    /// How many older requests have to be waited for, and when the next of them is over by itself.
    fn older(&self, own: LineEpoch, now: Moment, is_late: bool) -> (usize, Moment) {
        let mut state = self.state();
        let (mut waiting, mut wake) = (0, now + self.drain + self.upstream_timeout);
        for flight in state.flights.values().filter(|flight| flight.of != own) {
            if is_late {
                flight.cut(Fault::Overtaken(own.epoch));
            }
            waiting += usize::from(!flight.is_cut());
        }
        if is_late {
            // Some may wait for the horizon.
            self.horizon_moved.notify_waiters();
        }
        state.unanswered.retain(|_, until| now < *until);
        let inherited = state.active.as_ref().and_then(|active| active.inherited);
        let inherited = inherited.map(|inherited| (inherited.of, inherited.until));
        for (of, until) in state.unanswered.iter().map(|(of, until)| (*of, *until)).chain(inherited) {
            if of != own && now < until {
                waiting += 1;
                wake = wake.min(until);
            }
        }
        (waiting, wake)
    }

    /// Stands down: nothing more is admitted, and requests that are not complete are cut.
    pub(crate) fn stand_down(&self, state: &mut State, why: &str) {
        self.depose(state, (Kind::Unavailable, format!("resource=`{}` {why}; try again", self.resource)));
    }

    /// The same, because of an error. One that a person has to fix is told to every client.
    pub(crate) fn fail(&self, error: &Error) {
        let mut state = self.state();
        match error.kind() {
            kind @ (Kind::Regressed | Kind::Corrupt | Kind::Invalid | Kind::Unsupported) => {
                self.depose(&mut state, (kind, error.to_string()));
            }
            _ => self.stand_down(&mut state, &format!("has no proxy: {error}")),
        }
    }

    fn depose(&self, state: &mut State, standby: (Kind, String)) {
        state.active = None;
        state.closing = None;
        state.standby = standby;
        for flight in state.flights.values() {
            flight.cut(Fault::Deposed);
        }
        self.wake(state);
    }

    /// Wakes whoever waits for the horizon.
    pub(crate) fn wake(&self, state: &State) {
        for flight in state.flights.values() {
            flight.wake();
        }
        self.horizon_moved.notify_waiters();
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
