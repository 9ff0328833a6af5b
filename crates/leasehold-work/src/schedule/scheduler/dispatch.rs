//! Checking one job: what is due, what is dropped, what blocks it, and what is claimed.
//!
//! Promise: every decision is based on what the store just answered, at the store's
//! time; a slot is run only under a lease in whose record it was claimed in the
//! same swap. Non-promise: skips are recorded by whichever scheduler looks first.

use super::readiness::{Readiness, readiness, recheck, try_again_at, was_drained};
use super::{Event, Launcher, Origin, Settings, Start};
use crate::schedule::due::{Candidate, Dropped, Plan};
use crate::schedule::job::Job;
use crate::schedule::journal::{Fate, Journals, RunEnd};
use crate::schedule::requests::Requested;
use leasehold_core::clock::{Clock, Moment};
use leasehold_core::lease::protocol::{AfterFailure, Refusal, SlotClaim};
use leasehold_core::{
    Acquired, Ask, Epoch, Error, Grant, HolderId, Inspection, Kind, LeaseName, LeaseVerbs, Outcome, Released, Result,
    Slot, Timestamp,
};
use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// How many jobs access the store at once.
const ASKING: usize = 64;
/// How often a job is decided again when others decide at the same time.
const MAX_ROUNDS: u32 = 32;
/// How long after an error a job is checked again.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(5);
/// How often to check whether a run that blocks a slot has ended.
pub(super) const POLL: Duration = Duration::from_secs(2);
/// How soon to retry when the maximum number of runs is running here.
const RETRY_WHEN_FULL: Duration = Duration::from_millis(500);
/// Why a slot was not started whose claim was answered after the scheduler was told to stop.
const TOO_LATE: &str = "the scheduler was stopping";
/// If the store's clock is behind its expected time by more than this, which is
/// more than an answer may take, it was set back.
const SET_BACK: Duration = Duration::from_secs(60);

/// A decision about a job.
#[derive(Debug)]
pub enum Decided {
    /// This slot has to be claimed now.
    Due(Slot),
    /// This slot was claimed under this epoch and is being started.
    Started(Slot, Epoch),
    /// A run was requested, and is being started under this epoch.
    Requested(Box<Requested>, Epoch),
    /// The run of this slot under this epoch did not complete: its process or its machine died, or it lost its lease.
    /// It is run again. A loss during the run was already reported by that run.
    Interrupted(Slot, Epoch, Outcome),
    /// This slot is not run.
    Skipped(Slot, Fate),
    /// These slots are not caught up on.
    Dropped(Dropped),
    /// No slot can be run until this one's time has come, or an operator sets the mark back: it was claimed while the
    /// store's clock was ahead of its present time. Reported once.
    Ahead {
        /// The slot that is still in the future.
        until: Slot,
        /// The store's time.
        now: Timestamp,
    },
    /// The store or the machine returned an error; the job is checked again soon.
    Trouble(Error),
}

/// Is notified of a scheduler's decisions.
pub trait Watcher: std::fmt::Debug + Send + Sync {
    /// Something was decided about this job.
    fn decided(&self, job: &Job, decided: Decided);
}

/// What all checks share.
#[derive(Debug)]
pub(super) struct Dispatcher {
    coordinator: Arc<dyn LeaseVerbs>,
    journals: Journals,
    launcher: Arc<dyn Launcher>,
    watcher: Arc<dyn Watcher>,
    settings: Settings,
    tell: mpsc::UnboundedSender<Event>,
    asking: Semaphore,
    running: Arc<Semaphore>,
    anchor: Mutex<(Timestamp, Moment)>,
    set_back: AtomicBool,
    /// Set when nothing new may be started. The claims under way must see it too, not only the main loop.
    draining: Arc<AtomicBool>,
    reported: Mutex<Reported>,
}

/// What was reported about jobs and is not repeated until it changes, and which journals are still to be read.
#[derive(Debug, Default)]
struct Reported {
    trouble: HashMap<LeaseName, String>,
    ahead: HashMap<LeaseName, Slot>,
    /// Jobs whose journal must be read before anything is run, whatever the lease's record says.
    unread: HashSet<LeaseName>,
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Event")
    }
}

/// The first slot that nothing blocks.
enum First {
    Clear(Candidate),
    /// None; check again at this time, if given.
    Later(Option<Timestamp>),
    /// Slots that are not run were recorded: check again.
    Written,
}

/// Whether a slot was claimed.
enum Claimed {
    Ours,
    /// Another process was faster.
    NotOurs,
    /// The maximum number of runs is running here.
    NoSeat,
    /// Nothing is started here any more.
    Stopping,
}

/// The result of trying to carry out a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tried {
    /// It was carried out, here or elsewhere, or it never will be.
    Settled,
    /// It may be possible later.
    Again,
}

impl Tried {
    /// Whether to retry after a refusal. A pause or a drain may end while the request is valid.
    fn after(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::Changed { .. } | Refusal::RequestExpired { .. } => Tried::Settled,
            _ => Tried::Again,
        }
    }
}

impl Dispatcher {
    pub(super) fn new(
        coordinator: Arc<dyn LeaseVerbs>,
        journals: Journals,
        launcher: Arc<dyn Launcher>,
        watcher: Arc<dyn Watcher>,
        settings: Settings,
        tell: mpsc::UnboundedSender<Event>,
        draining: Arc<AtomicBool>,
    ) -> Self {
        Dispatcher {
            running: Arc::new(Semaphore::new(settings.max_running.max(1))),
            anchor: Mutex::new((Timestamp::from_millis(0), coordinator.clock().now())),
            asking: Semaphore::new(ASKING),
            set_back: AtomicBool::new(false),
            reported: Mutex::default(),
            coordinator,
            journals,
            launcher,
            watcher,
            settings,
            tell,
            draining,
        }
    }

    pub(super) fn coordinator(&self) -> &Arc<dyn LeaseVerbs> {
        &self.coordinator
    }

    pub(super) fn journals(&self) -> &Journals {
        &self.journals
    }

    pub(super) fn clock(&self) -> Arc<dyn Clock> {
        self.coordinator.clock().clone()
    }

    pub(super) fn send(&self, event: Event) {
        let _ = self.tell.send(event);
    }

    /// Starts nothing from now on.
    pub(super) fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Notes the store's time in an answer, and when it was asked for.
    pub(super) fn learn(&self, now: Timestamp, asked: Moment) {
        if self.now().saturating_since(now) > SET_BACK {
            self.set_back.store(true, Ordering::SeqCst);
        }
        *self.anchor.lock().unwrap_or_else(PoisonError::into_inner) = (now, asked);
    }

    /// Whether the store's clock was found to be set back since the last call.
    pub(super) fn was_set_back(&self) -> bool {
        self.set_back.swap(false, Ordering::SeqCst)
    }

    /// The store's present time, estimated without asking. It only decides when to check.
    pub(super) fn now(&self) -> Timestamp {
        let (now, asked) = *self.anchor.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed = self.clock().now().saturating_since(asked);
        // Rounded down: an early check would find nothing due.
        Timestamp::from_millis(now.as_millis().saturating_add(elapsed.as_millis() as u64))
    }

    pub(super) fn moment_of(&self, at: Timestamp) -> Moment {
        let (now, asked) = *self.anchor.lock().unwrap_or_else(PoisonError::into_inner);
        asked + at.saturating_since(now)
    }

    /// Settles what is due for this job; returns when to check again.
    pub(super) async fn check(self: &Arc<Self>, job: &Arc<Job>) -> Option<Timestamp> {
        match unless_it_panics(self.settle(job)).await.flatten() {
            Ok(again) => {
                self.reported().trouble.remove(&job.name);
                again
            }
            Err(error) => {
                self.trouble(job, error);
                Some(self.now().plus(RETRY_AFTER))
            }
        }
    }

    /// Reports trouble, once for as long as it stays the same.
    fn trouble(&self, job: &Job, error: Error) {
        let text = error.to_string();
        if self.reported().trouble.insert(job.name.clone(), text.clone()).as_ref() != Some(&text) {
            self.watcher.decided(job, Decided::Trouble(error));
        }
    }

    /// Reads the journals of these jobs before any of them is run: a damaged one stops its job.
    pub(super) fn check_journal_of(&self, jobs: impl IntoIterator<Item = LeaseName>) {
        self.reported().unread.extend(jobs);
    }

    fn reported(&self) -> MutexGuard<'_, Reported> {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports a job whose slots are claimed ahead of their time.
    fn report_ahead(&self, job: &Job, ahead: Option<Slot>, now: Timestamp) {
        let Some(until) = ahead else {
            self.reported().ahead.remove(&job.name);
            return;
        };
        if self.reported().ahead.insert(job.name.clone(), until) != Some(until) {
            self.watcher.decided(job, Decided::Ahead { until, now });
        }
    }

    async fn settle(self: &Arc<Self>, job: &Arc<Job>) -> Result<Option<Timestamp>> {
        for _ in 0..MAX_ROUNDS {
            let asking = self.asking.acquire().await;
            let asked = self.clock().now();
            let seen = self.coordinator.inspect(&job.name).await?;
            self.learn(seen.now, asked);
            let plan = self.plan(job, &seen).await?;
            self.report_ahead(job, plan.ahead, seen.now);
            let (given_up, dropped) = self.journals.settle(&job.name, &plan).await?;
            if let Some((slot, fate)) = given_up {
                self.watcher.decided(job, Decided::Skipped(slot, fate));
            }
            dropped.iter().for_each(|d| self.watcher.decided(job, Decided::Dropped(*d)));
            if dropped != plan.due.dropped {
                // Another process decided at the same time: decide the rest on what it wrote.
                continue;
            }
            let next = job.schedule.next_after(seen.now).map(|slot| slot.0.plus(job.delay(slot)));
            let next = next.into_iter().chain(recheck(&seen)).min();
            if let (Some(drain), None) = (seen.record.live_drain(seen.now), seen.record.live_tenure(seen.now)) {
                // The lease is reserved for an operator: what is due is run a little later.
                let later = seen.now.plus(POLL).min(drain.until());
                return Ok(next.into_iter().chain([later]).min());
            }
            let Candidate { slot, gives_up, is_recovery } = match self.first_clear(job, &plan, &seen).await? {
                First::Clear(candidate) => candidate,
                First::Later(at) => return Ok(next.into_iter().chain(at).min()),
                First::Written => continue,
            };
            self.watcher.decided(job, Decided::Due(slot));
            drop(asking);
            let is_interrupted =
                is_recovery && !was_drained(&seen.record) && try_again_at(&seen.record, slot).is_none();
            let interrupted = seen.record.slot.filter(|_| is_interrupted);
            let claim = SlotClaim { slot, after_failure: AfterFailure::Leave, gives_up };
            match self.claim(job, claim, interrupted.map(|mark| mark.epoch)).await? {
                Claimed::Ours => return Ok(next),
                Claimed::Stopping => return Ok(None),
                Claimed::NoSeat => return Ok(Some(self.now().plus(RETRY_WHEN_FULL))),
                Claimed::NotOurs => {}
            }
        }
        Ok(Some(self.now().plus(POLL)))
    }

    /// The plan for what was seen.
    async fn plan(&self, job: &Job, seen: &Inspection) -> Result<Plan> {
        let usual = Plan::without_journal(&job.schedule, &seen.record, job.catch_up, seen.now);
        if let Some(plan) = usual.filter(|_| !self.reported().unread.contains(&job.name)) {
            return Ok(plan);
        }
        let mut journal = self.journals.read(&job.name).await?.0;
        self.reported().unread.remove(&job.name);
        if journal.since.is_none_or(|since| since > seen.now) {
            journal.since = Some(self.journals.register(&job.name).await?);
        }
        Ok(Plan::of(&job.schedule, &seen.record, &journal, job.catch_up, seen.now))
    }

    /// The first slot that nothing blocks, beginning with the slot whose run
    /// died. Slots that are not run because they are blocked are recorded.
    async fn first_clear(&self, job: &Job, plan: &Plan, seen: &Inspection) -> Result<First> {
        let (mut later, mut written) = (None, false);
        if plan.waits_for_resume(&seen.record) && seen.record.live_tenure(seen.now).is_none() {
            // Nothing hints when the job is resumed.
            later = Some(seen.now.plus(POLL));
        }
        for candidate in plan.candidates(&seen.record) {
            let slot = candidate.slot;
            if candidate.is_recovery {
                match (seen.record.live_tenure(seen.now), try_again_at(&seen.record, slot)) {
                    (Some(tenure), _) => later = Some(seen.now.plus(POLL).min(tenure.deadline)),
                    // Newer slots wait for it.
                    (None, Some(at)) if at > seen.now => return Ok(First::Later(Some(at))),
                    (None, _) => return Ok(First::Clear(candidate)),
                }
                continue;
            }
            let start = slot.0.plus(job.delay(slot));
            if start > seen.now {
                later = later.into_iter().chain([start]).min();
                break;
            }
            match readiness(job, slot, seen) {
                Readiness::Clear => return Ok(First::Clear(candidate)),
                Readiness::Later(at) => later = later.into_iter().chain([at]).min(),
                Readiness::Over(fate) => {
                    if self.journals.skip(&job.name, slot, job.schedule.before(slot), fate).await? {
                        self.watcher.decided(job, Decided::Skipped(slot, fate));
                        written = true;
                    }
                }
            }
        }
        Ok(if written { First::Written } else { First::Later(later) })
    }

    /// Claims the slot in the same swap as the lease and starts it.
    /// `interrupted` is the epoch of an interrupted run of it.
    async fn claim(self: &Arc<Self>, job: &Arc<Job>, claim: SlotClaim, interrupted: Option<Epoch>) -> Result<Claimed> {
        if self.is_draining() {
            return Ok(Claimed::Stopping);
        }
        let Ok(seat) = self.running.clone().try_acquire_owned() else { return Ok(Claimed::NoSeat) };
        let ask = Ask { slot: Some(claim), ..self.ask(job) };
        let slot = claim.slot;
        let Acquired::Granted(grant) = self.coordinator.acquire(&job.name, &ask).await? else {
            return Ok(Claimed::NotOurs);
        };
        let epoch = grant.token().epoch;
        if self.is_draining() {
            self.give_back(&grant, slot, TOO_LATE).await;
            return Ok(Claimed::Stopping);
        }
        if let Some(before) = interrupted {
            let ended = grant.record().transfers.iter().find(|transfer| transfer.epoch == before);
            let outcome = ended.and_then(|transfer| transfer.outcome).unwrap_or(Outcome::Expired);
            self.watcher.decided(job, Decided::Interrupted(slot, before, outcome));
        }
        self.watcher.decided(job, Decided::Started(slot, epoch));
        self.launch(seat, Start { job: job.clone(), slot, grant: *grant, origin: Origin::Slot });
        Ok(Claimed::Ours)
    }

    fn ask(&self, job: &Job) -> Ask {
        Ask::new(HolderId::new(self.settings.label.clone()), job.ttl.unwrap_or(self.settings.ttl))
    }

    /// Carries out a request for a run, unless another process has, or it is over.
    pub(super) async fn try_request(self: &Arc<Self>, job: &Arc<Job>, request: &Requested) -> Tried {
        match unless_it_panics(self.carry_out(job, request)).await.flatten() {
            Ok(tried) => tried,
            Err(error) => {
                self.trouble(job, error);
                Tried::Again
            }
        }
    }

    async fn carry_out(self: &Arc<Self>, job: &Arc<Job>, request: &Requested) -> Result<Tried> {
        if self.is_draining() {
            return Ok(Tried::Again);
        }
        let Ok(seat) = self.running.clone().try_acquire_owned() else { return Ok(Tried::Again) };
        let ask = Ask { requested: Some(request.condition()), ..self.ask(job) };
        let grant = match self.coordinator.acquire(&job.name, &ask).await? {
            Acquired::Granted(grant) => grant,
            Acquired::Refused { refusal, .. } => return Ok(Tried::after(&refusal)),
        };
        let granted_at = grant.record().tenure.as_ref().map_or(request.at, |tenure| tenure.granted_at);
        if self.is_draining() {
            self.give_back(&grant, Slot(granted_at), TOO_LATE).await;
            return Ok(Tried::Settled);
        }
        self.watcher.decided(job, Decided::Requested(Box::new(request.clone()), grant.token().epoch));
        self.launch(seat, Start { job: job.clone(), slot: Slot(granted_at), grant: *grant, origin: Origin::Request });
        Ok(Tried::Settled)
    }

    /// Releases a lease under which nothing was started, unless it is settled already.
    async fn give_back(&self, grant: &Grant, slot: Slot, why: &str) {
        let released = self.coordinator.release(grant, Outcome::NotStarted).await;
        if !matches!(released, Ok(Released::Already(_))) {
            let (token, end) = (grant.token(), RunEnd::NOT_STARTED.because(why));
            let _ = self.journals.end(&token.lease, slot, token.epoch, end).await;
        }
    }

    /// Runs a job in a task of its own.
    fn launch(self: &Arc<Self>, seat: OwnedSemaphorePermit, start: Start) {
        self.send(Event::Began);
        let dispatcher = self.clone();
        tokio::spawn(async move {
            let _seat = seat;
            let name: LeaseName = start.job.name.clone();
            match unless_it_panics(dispatcher.launcher.launch(&start)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    // Nothing was started: the slot stays open, for us or for
                    // others, unless the launcher has settled it.
                    dispatcher.give_back(&start.grant, start.slot, &error.to_string()).await;
                    dispatcher.trouble(&start.job, error);
                }
                // What it started, if anything, is still running or will be found dead.
                Err(error) => dispatcher.trouble(&start.job, error),
            }
            dispatcher.send(Event::Ended { name });
        });
    }
}

/// A check that panics is an error like any other: its job is checked again.
async fn unless_it_panics<T>(work: impl Future<Output = T>) -> Result<T> {
    let mut work = pin!(work);
    let outcome = poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    });
    outcome.await.map_err(|panic| {
        let words =
            panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        Error::new(Kind::Unavailable, format!("it panicked, which is a bug: {}", words.unwrap_or("without a word")))
    })
}
