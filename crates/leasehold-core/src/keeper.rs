//! The keeper: keeps the lease while the work runs, and knows the moment it is lost.
//!
//! # The trust window
//! A holder may trust its lease only while nobody else can have been granted it. The keeper renews at a third of the
//! TTL, so two renewals in a row may fail. It never asks "did a renewal fail?" but "has the trust window passed?". The
//! window ends at [`Grant::trust_until`], counted from the instant the last successful renewal was *sent*, on a clock
//! that also counts while the machine sleeps.
//!
//! - *The store does not answer*: the keeper tries again until the window ends.
//!   Then the lease is lost, whatever the store answers later.
//! - *The store says that the lease has moved*, to another holder or to another store: lost at once. Where the store
//!   can push, the keeper learns of it when it happens; elsewhere, with the next renewal.
//! - *The store's clock is set forward*: the answer to a renewal has the new time, and the window ends by that. If it
//!   has ended already, the lease is lost at once; if it is shorter, the keeper renews at once.
//! - *The machine slept past the window*: the timer fires at the resume, and
//!   the lease is lost before anything else runs.
//! - *An operator asks the holder to finish*: the keeper learns of it with the next renewal, or at once where the store can
//!   push. It keeps renewing, so that the work has time to end by itself.
//! - *The work is stuck*: with a [`ProgressGate`], renewal depends on evidence of progress and not on this task being
//!   alive. If this machine saw none for the whole timeout, the store is read before the work counts as stalled.
//!   Without a gate, a keeper renews as long as its process lives.
//! - *The process is stopped or dies*: nobody renews, and the lease expires by itself. A supervisor of child processes
//!   must watch from another process (the command's dead-man does).
//!
//! Promise: [`Keeper::lost`] resolves before anybody else can be granted the lease, if this process is running.
//! Non-promise: a process that is not running learns nothing; that is why writes go through a guard.

use crate::clock::Moment;
use crate::distribution::{Distribution, REQUESTS};
use crate::error::{Kind, Result};
use crate::grant::Grant;
use crate::hints::Hints;
use crate::holding;
use crate::lease::record::Drain;
use crate::tenancy::{Held, Tenancy};
use crate::time::format_duration;
use crate::verbs::LeaseVerbs;
use leasehold_system::sync::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;

/// How long after its start the keeper begins to watch the store.
const LISTEN_AFTER: Duration = Duration::from_millis(250);
/// How long hints are ignored after a write of our own, and the least time
/// between two reads: a store that many processes share hints often.
const HINT_COOLDOWN: Duration = Duration::from_millis(250);

/// Whether a keeper still holds its lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeeperState {
    /// Held, at least until then.
    Held {
        /// The end of the trust window.
        trust_until: Moment,
    },
    /// No longer held.
    Lost(Loss),
}

/// How a lease was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// The store says that it has moved or expired.
    Moved(String),
    /// It could not be renewed before the trust window ended.
    OutOfTime(String),
    /// There was no evidence of progress for too long, so it was not renewed.
    Stalled {
        /// How long there was no evidence.
        quiet_for: Duration,
    },
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::Moved(message) => f.write_str(message),
            Loss::OutOfTime(message) => write!(f, "it could not be renewed in time: {message}"),
            Loss::Stalled { quiet_for } => write!(f, "no progress was seen for {}", format_duration(*quiet_for)),
        }
    }
}

/// Makes renewal depend on evidence that the work makes progress.
#[derive(Clone)]
pub struct ProgressGate {
    /// How long evidence may be missing.
    pub timeout: Duration,
    /// The latest moment at which there was evidence on this machine (output, a touched file). Progress reported
    /// through the store counts too, and need not be included.
    pub evidence: Arc<dyn Fn() -> Option<Moment> + Send + Sync>,
}

impl fmt::Debug for ProgressGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgressGate").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// Renews a grant in the background. If it is dropped, renewing stops and the lease expires by itself.
///
/// ```
/// use leasehold_core::{Acquired, Ask, Coordinator, HolderId, Keeper, MemoryStore, Outcome};
/// use std::sync::{Arc, Mutex, PoisonError};
///
/// # async fn work() -> bool { true }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold_core::Result<()> {
/// let leases = Coordinator::new(Arc::new(MemoryStore::default()));
/// let ask = Ask::new(HolderId::new(None), "90s".parse()?);
/// let Acquired::Granted(grant) = leases.acquire(&"daily".parse()?, &ask).await? else { return Ok(()) };
/// let keeper = Keeper::start(leases.clone(), *grant);
/// let outcome = tokio::select! {
///     biased;
///     loss = keeper.lost() => { eprintln!("stopped: {loss}"); Outcome::Lost }
///     went_well = work() => if went_well { Outcome::Succeeded } else { Outcome::Failed },
/// };
/// leases.release(&keeper.stop().await, outcome).await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Keeper<T: Tenancy = Held> {
    state: watch::Receiver<KeeperState>,
    trouble: watch::Receiver<Option<String>>,
    asked: watch::Receiver<Option<Drain>>,
    renewals: Arc<Mutex<Distribution>>,
    stop: Option<oneshot::Sender<()>>,
    task: Option<JoinHandle<T::Grant>>,
}

impl Keeper {
    /// Starts keeping a grant.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(leases: impl Into<Arc<dyn LeaseVerbs>>, grant: Grant) -> Self {
        Keeper::start_gated(leases, grant, None)
    }

    /// Starts keeping a grant for as long as there is progress.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start_gated(leases: impl Into<Arc<dyn LeaseVerbs>>, grant: Grant, gate: Option<ProgressGate>) -> Self {
        Keeper::keep(Held { leases: leases.into(), grant }, gate)
    }
}

impl<T: Tenancy> Keeper<T> {
    /// Starts keeping any tenancy, for as long as there is progress if a gate is given.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn keep(tenancy: T, gate: Option<ProgressGate>) -> Self {
        let (publish, state) = watch::channel(KeeperState::Held { trust_until: tenancy.trust_until() });
        let (note, trouble) = watch::channel(None);
        let (ask, asked) = watch::channel(tenancy.asked_to_finish().cloned());
        let (stop, stopped) = oneshot::channel();
        let renewals = Arc::<Mutex<Distribution>>::default();
        let answers = renewals.clone();
        let task = tokio::spawn(async move {
            let mut work =
                Renewals::new(tenancy, gate, Publisher { state: publish, trouble: note, asked: ask, answers });
            tokio::select! {
                biased;
                loss = work.run() => { work.publisher.state.send_replace(KeeperState::Lost(loss)); }
                _ = stopped => {}
            }
            work.tenancy.into_grant()
        });
        Keeper { state, trouble, asked, renewals, stop: Some(stop), task: Some(task) }
    }

    /// The state now and, through the receiver, every change.
    pub fn state(&self) -> watch::Receiver<KeeperState> {
        self.state.clone()
    }

    /// Why the last renewal failed, if it did.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.borrow().clone()
    }

    /// The operator's request to finish, if there is one, and, through the receiver, every new request. Renewing
    /// continues, so that there is time to finish.
    pub fn asked(&self) -> watch::Receiver<Option<Drain>> {
        self.asked.clone()
    }

    /// Resolves when an operator asks the holder to finish.
    pub async fn asked_to_finish(&self) -> Drain {
        asked_to_finish(&self.asked).await
    }

    /// How long the store took to answer the renewals so far, on the scale of [`REQUESTS`].
    pub fn renewals(&self) -> Distribution {
        self.renewals.lock().clone()
    }

    /// Resolves when the lease is lost.
    pub async fn lost(&self) -> Loss {
        let mut state = self.state.clone();
        loop {
            if let KeeperState::Lost(loss) = &*state.borrow_and_update() {
                return loss.clone();
            }
            if state.changed().await.is_err() {
                return Loss::OutOfTime("the keeper has ended".into());
            }
        }
    }

    /// Stops renewing and gives the grant back, to be released.
    ///
    /// # Panics
    /// If the keeper's task panicked.
    pub async fn stop(mut self) -> T::Grant {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        let task = self.task.take().expect("a keeper is stopped once");
        task.await.expect("the keeper's task does not panic")
    }
}

impl<T: Tenancy> Drop for Keeper<T> {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// Resolves when there is a request to finish. If the keeper ends first, it never resolves.
pub async fn asked_to_finish(asked: &watch::Receiver<Option<Drain>>) -> Drain {
    let found = asked.clone().wait_for(Option::is_some).await.ok().and_then(|drain| drain.clone());
    match found {
        Some(drain) => drain,
        None => std::future::pending().await,
    }
}

/// What the keeper publishes to its users.
struct Publisher {
    state: watch::Sender<KeeperState>,
    trouble: watch::Sender<Option<String>>,
    asked: watch::Sender<Option<Drain>>,
    answers: Arc<Mutex<Distribution>>,
}

struct Renewals<T> {
    tenancy: T,
    gate: Option<ProgressGate>,
    publisher: Publisher,
    last_evidence: Moment,
    judge_again: Moment,
    /// Notified when the record may have changed: an operator may have taken the lease away, or asked for it.
    changed: Arc<Notify>,
    _hints: Hints,
}

impl<T: Tenancy> Renewals<T> {
    fn new(tenancy: T, gate: Option<ProgressGate>, publisher: Publisher) -> Self {
        let now = tenancy.clock().now();
        let (clock, opening, changed) = (tenancy.clock().clone(), tenancy.watch(), Arc::new(Notify::new()));
        let opening = async move {
            // Short work ends before anybody could take its lease away, so watching would be wasted.
            clock.sleep_until(clock.now() + LISTEN_AFTER).await;
            opening.await
        };
        let _hints = Hints::pass_on(opening, changed.clone());
        Renewals { tenancy, gate, publisher, last_evidence: now, judge_again: now, changed, _hints }
    }

    async fn run(&mut self) -> Loss {
        let clock = self.tenancy.clock().clone();
        let period = self.tenancy.ttl().get() / 3;
        let retry = (self.tenancy.ttl().get() / 12).min(Duration::from_secs(5));
        // Leaves time for two failed renewals in the rest of the window, which
        // is less than a TTL if the grant is not fresh.
        let left = self.tenancy.trust_until().saturating_since(clock.now());
        let mut next = clock.now() + if left < period * 2 { left / 3 } else { period };
        let (mut cooldown_until, mut looked) = (clock.now(), clock.now());
        let mut look_at: Option<Moment> = None;
        loop {
            let end = self.tenancy.trust_until();
            let changed = self.changed.clone();
            tokio::select! {
                biased;
                () = clock.sleep_until(next.min(end).min(self.judge_at()).min(look_at.unwrap_or(end))) => {}
                () = changed.notified() => if clock.now() >= cooldown_until {
                    look_at = look_at.or(Some(clock.now().max(looked + HINT_COOLDOWN)));
                },
            }
            if clock.now() >= end {
                let trouble = self.publisher.trouble.borrow().clone();
                return Loss::OutOfTime(trouble.unwrap_or_else(|| "this process did not run".into()));
            }
            if look_at.is_some_and(|at| clock.now() >= at) {
                (look_at, looked) = (None, clock.now());
                if self.has_news(end).await {
                    // The next renewal finds out what changed.
                    next = clock.now();
                }
            }
            if clock.now() >= self.judge_at() {
                match self.judge(end).await {
                    Ok(None) => {}
                    Ok(Some(loss)) => return loss,
                    // Whether there was progress is unknown: that is no reason to renew, and none to give up early.
                    Err(error) => {
                        self.publisher.trouble.send_replace(Some(error.to_string()));
                        self.judge_again = clock.now() + retry;
                        next = next.max(self.judge_again);
                    }
                }
            }
            if clock.now() < next {
                continue;
            }
            let asked = clock.now();
            let renewed = tokio::select! {
                biased;
                () = clock.sleep_until(end) => {
                    return Loss::OutOfTime("the store did not answer".into());
                }
                renewed = holding::trusted_until(end, self.tenancy.renew()) => renewed,
            };
            let took = clock.now().saturating_since(asked);
            self.publisher.answers.lock().add(REQUESTS, took);
            match renewed {
                // The machine may have slept between the answer and now. Once the window has ended, the work has been
                // stopped, so a later answer comes too late.
                Ok(()) if clock.now() >= end => {
                    return Loss::OutOfTime("the store's answer came after the window had ended".into());
                }
                Ok(()) => {
                    self.tell_renewed();
                    next = self.after_renewal(asked, period);
                    // The hint of our own write is on its way.
                    cooldown_until = clock.now() + HINT_COOLDOWN;
                }
                // A lease that has moved to another store is granted there.
                // Trying again could only lead to a second run.
                Err(error) if matches!(error.kind(), Kind::Lost | Kind::Moved) => {
                    return Loss::Moved(error.to_string());
                }
                Err(error) => {
                    self.publisher.trouble.send_replace(Some(error.to_string()));
                    next = clock.now() + retry;
                }
            }
        }
    }

    fn tell_renewed(&self) {
        self.publisher.state.send_replace(KeeperState::Held { trust_until: self.tenancy.trust_until() });
        self.publisher.trouble.send_replace(None);
        if let Some(drain) = self.tenancy.asked_to_finish() {
            self.publisher.asked.send_if_modified(|asked| asked.replace(drain.clone()).as_ref() != Some(drain));
        }
    }

    /// When the next renewal is due. If the window is far too short, because the store's clock was set forward, the
    /// keeper renews at once. (With a slow store it is that short only if each answer takes longer than a period.)
    fn after_renewal(&self, asked: Moment, period: Duration) -> Moment {
        let (now, end) = (self.tenancy.clock().now(), self.tenancy.trust_until());
        let missing = (asked + self.tenancy.ttl().get()).saturating_since(end);
        if missing > period { now } else { (asked + period).min(now + end.saturating_since(now) / 3) }
    }

    /// Whether the record shows something new. A record that cannot be read shows nothing.
    async fn has_news(&self, end: Moment) -> bool {
        tokio::select! {
            biased;
            () = self.tenancy.clock().sleep_until(end) => false,
            news = self.tenancy.has_news() => news.unwrap_or(false),
        }
    }

    /// When to check the evidence next; never without a gate.
    fn judge_at(&self) -> Moment {
        match &self.gate {
            Some(gate) => (self.last_evidence + gate.timeout).max(self.judge_again),
            None => Moment::from_nanos(u64::MAX),
        }
    }

    /// Looks for evidence, first on this machine, then in the store. A worker may have reported there since the last
    /// renewal, and giving up without that read would end work that makes progress.
    async fn judge(&mut self, end: Moment) -> Result<Option<Loss>> {
        let Some(gate) = &self.gate else { return Ok(None) };
        let clock = self.tenancy.clock().clone();
        if let Some(seen) = (gate.evidence)() {
            self.last_evidence = self.last_evidence.max(seen);
        }
        if clock.now().saturating_since(self.last_evidence) < gate.timeout {
            return Ok(None);
        }
        let seen = tokio::select! {
            biased;
            () = clock.sleep_until(end) => return Ok(Some(Loss::OutOfTime("the store did not answer".into()))),
            seen = self.tenancy.progress_age() => seen?,
        };
        if let Some(age) = seen {
            self.last_evidence = self.last_evidence.max(clock.now() - age);
        }
        let quiet_for = clock.now().saturating_since(self.last_evidence);
        Ok((quiet_for >= gate.timeout).then_some(Loss::Stalled { quiet_for }))
    }
}
