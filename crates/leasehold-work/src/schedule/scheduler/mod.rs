//! The scheduler: checks each job when one of its slots comes due, and runs what it may.
//!
//! Promise: it decides only by the store's clock and records, so any number of schedulers, whether their machines'
//! clocks agree or not, together run each slot once. It holds no state that a crash could lose. Non-promise: a slot
//! starts when a machine is there to start it, not before; a command may be started again if its machine died.

mod agenda;
mod decided;
mod dispatch;
mod outage;
mod pulse;
mod readiness;

pub use agenda::Agenda;
pub use decided::{Decided, Watcher};
pub use pulse::Pulse;

use crate::schedule::job::Job;
use crate::schedule::journal::{JobVerbs, Journals};
use async_trait::async_trait;
use dispatch::{Dispatcher, Tried};
use leasehold_core::clock::Moment;
use leasehold_core::hints::Hints;
use leasehold_core::{Grant, Label, LeaseName, Nonce, Result, Slot, SlotState, Timestamp, Ttl};
use leasehold_system::undo::{Fix, is_disabled};
use outage::Sign;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};

/// How often the store's time is requested when nothing else requests it,
/// together with the requests for runs, because a watch on those is only a hint.
const RESYNC: Duration = Duration::from_secs(10);
/// From this many jobs on, the store is read shelf by shelf at the start instead of job by job.
const MANY: usize = 256;
const PAGE: usize = 500;
/// How many jobs are checked at once. A check takes a few kilobytes, and there may be 100,000 jobs.
const MAX_CHECKS: usize = 256;

/// A task that checks jobs, one after the other, for as long as the scheduler runs.
///
/// A task for each job would be created and dropped 100,000 times, and the lasting data of each job would be allocated
/// in the gaps: that took three times the memory.
#[derive(Debug)]
struct Checker(mpsc::UnboundedSender<Check>);

/// A job to check.
#[derive(Debug)]
struct Check {
    job: Arc<Job>,
    generation: u64,
    index: u32,
}

/// A job to run, with its lease.
#[derive(Debug)]
pub struct Start {
    /// The job to start.
    pub job: Arc<Job>,
    /// The slot that was claimed with the lease.
    pub slot: Slot,
    /// The lease, with the slot claimed in it. The launcher releases it with the outcome.
    pub grant: Grant,
    /// Why it is run.
    pub origin: Origin,
}

/// Why a job is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Its slot is due, and was claimed with the lease.
    Slot,
    /// An operator requested it. The slot is the moment at which the lease was granted, and was not claimed.
    Request,
}

/// Starts the command of a job. The scheduler does not know how.
#[async_trait]
pub trait Launcher: std::fmt::Debug + Send + Sync {
    /// Runs the job under its lease, releases the lease, and returns when that is done. An error means that nothing was
    /// started; the scheduler then releases the lease, and the slot stays open.
    async fn launch(&self, start: &Start) -> Result<()>;
}

/// An order to a running scheduler.
#[derive(Debug)]
enum Order {
    Replace(Vec<Arc<Job>>),
    Drain,
}

/// Controls a running [`Scheduler`].
#[derive(Debug, Clone)]
pub struct Steering {
    orders: mpsc::UnboundedSender<Order>,
    draining: Arc<AtomicBool>,
}

impl Steering {
    /// Schedules these jobs from now on. Present runs continue.
    pub fn replace(&self, jobs: Vec<Arc<Job>>) {
        let _ = self.orders.send(Order::Replace(jobs));
    }

    /// Starts nothing new; the scheduler ends when its last run does.
    pub fn drain(&self) {
        // The main loop may be waiting for the store.
        self.draining.store(true, Ordering::SeqCst);
        let _ = self.orders.send(Order::Drain);
    }
}

/// A report of a task that checked or ran a job.
pub(crate) enum Event {
    /// A job was checked; check again at this time.
    Checked { checker: usize, generation: u64, index: u32, again: Option<Timestamp> },
    /// A run of it began.
    Began,
    /// A run ended.
    Ended { name: LeaseName },
    /// This request was tried.
    Tried { request: Nonce, tried: Tried },
}

/// Runs jobs when they are due.
#[derive(Debug)]
pub struct Scheduler {
    dispatcher: Arc<Dispatcher>,
    orders: mpsc::UnboundedReceiver<Order>,
    events: mpsc::UnboundedReceiver<Event>,
    jobs: Vec<Arc<Job>>,
    indices: HashMap<LeaseName, u32>,
    agenda: Agenda,
    generation: u64,
    checkers: Vec<Checker>,
    /// Checkers that have nothing to do.
    idle: Vec<usize>,
    running: usize,
    pulse: Pulse,
    requests: SeenRequests,
}

/// The requests for runs, as this scheduler sees them.
#[derive(Debug)]
struct SeenRequests {
    verbs: Arc<dyn JobVerbs>,
    /// Requests that were carried out, were refused for good, or are being tried.
    settled: HashSet<Nonce>,
    /// How many are being tried.
    trying: usize,
}

impl Scheduler {
    /// A scheduler of these jobs, with at most `settings.max_running` runs at once.
    pub fn new(
        verbs: impl JobVerbs + 'static,
        jobs: Vec<Arc<Job>>,
        launcher: Arc<dyn Launcher>,
        watcher: Arc<dyn Watcher>,
        settings: Settings,
    ) -> (Self, Steering) {
        let (steer, orders) = mpsc::unbounded_channel();
        let (tell, events) = mpsc::unbounded_channel();
        let verbs: Arc<dyn JobVerbs> = Arc::new(verbs);
        let journals = Journals::shared(verbs.clone());
        let requests = SeenRequests { verbs: verbs.clone(), settled: HashSet::new(), trying: 0 };
        let draining = Arc::new(AtomicBool::new(false));
        let dispatcher = Dispatcher::new(verbs, journals, launcher, watcher, settings, tell, draining.clone());
        let dispatcher = Arc::new(dispatcher);
        let mut scheduler = Scheduler {
            dispatcher,
            orders,
            events,
            jobs: Vec::new(),
            indices: HashMap::new(),
            agenda: Agenda::default(),
            generation: 0,
            checkers: Vec::new(),
            idle: Vec::new(),
            running: 0,
            pulse: Pulse::new(),
            requests,
        };
        scheduler.take(jobs);
        (scheduler, Steering { orders: steer, draining })
    }

    /// Shows whether the main loop is alive, while it runs.
    pub fn pulse(&self) -> Pulse {
        self.pulse.clone()
    }

    fn take(&mut self, jobs: Vec<Arc<Job>>) {
        self.generation += 1;
        self.indices = jobs.iter().zip(0..).map(|(job, index)| (job.name.clone(), index)).collect();
        self.agenda = Agenda::for_jobs(jobs.len());
        self.jobs = jobs;
    }

    /// Runs until it is drained and the last run has ended. Fails only if the store cannot be read at the start.
    pub async fn run(mut self) -> Result<()> {
        let (now, asked) = self.ask_time().await?;
        self.dispatcher.learn(now, asked);
        self.survey().await?;
        let clock = self.dispatcher.clock();
        let heard = Arc::new(Notify::new());
        let _hints = Hints::pass_on(self.requests.verbs.watch_run_requests(), heard.clone());
        let mut resync = clock.now();
        loop {
            self.pulse.beat(clock.now());
            // A check or a request may be about to start a run.
            if self.dispatcher.is_draining() && self.running == 0 && self.checking() == 0 && self.requests.trying == 0 {
                return Ok(());
            }
            if self.dispatcher.was_set_back() {
                // Slots in the time that was set back are due again, unless they were run.
                self.arm_next(self.dispatcher.now());
            }
            if !self.dispatcher.is_draining() {
                self.start_due();
            }
            let wake = self.wake_at().map_or(resync, |wake| wake.min(resync));
            tokio::select! {
                biased;
                Some(event) = self.events.recv() => self.handle(event),
                order = self.orders.recv() => match order {
                    Some(Order::Replace(jobs)) => {
                        self.take(jobs);
                        // If the store is unreachable now, each job tries again by itself.
                        if self.survey().await.is_err() {
                            self.arm_all();
                        }
                    }
                    // The other end was dropped.
                    Some(Order::Drain) | None => self.dispatcher.drain(),
                },
                () = heard.notified() => self.look_for_requests().await,
                () = clock.sleep_until(wake) => {
                    if clock.now() >= resync {
                        self.look_for_requests().await;
                        resync = clock.now() + RESYNC;
                    }
                }
            }
        }
    }

    fn checking(&self) -> usize {
        self.checkers.len() - self.idle.len()
    }

    /// Starts checks of the jobs that are due, up to [`MAX_CHECKS`] at once.
    fn start_due(&mut self) {
        let now = self.dispatcher.now();
        while self.checking() < MAX_CHECKS {
            let Some(index) = self.agenda.pop_due(now) else { return };
            let Some(job) = self.jobs.get(index as usize).cloned() else { continue };
            let checker = self.idle.pop().unwrap_or_else(|| self.add_checker());
            let check = Check { job, generation: self.generation, index };
            if let Some(Checker(tell)) = self.checkers.get(checker) {
                let _ = tell.send(check);
            }
        }
    }

    /// Starts one more checker; returns its index.
    fn add_checker(&mut self) -> usize {
        let (tell, mut checks) = mpsc::unbounded_channel::<Check>();
        let (dispatcher, checker) = (self.dispatcher.clone(), self.checkers.len());
        tokio::spawn(async move {
            while let Some(Check { job, generation, index }) = checks.recv().await {
                let again = dispatcher.check(&job).await;
                dispatcher.send(Event::Checked { checker, generation, index, again });
            }
        });
        self.checkers.push(Checker(tell));
        checker
    }

    fn handle(&mut self, event: Event) {
        if let Event::Checked { checker, .. } = event {
            self.idle.push(checker);
        }
        match event {
            Event::Checked { generation, index, again, .. } if generation == self.generation => {
                if let Some(again) = again {
                    self.agenda.arm(index, again);
                }
            }
            Event::Checked { .. } => {}
            Event::Began => self.running += 1,
            Event::Tried { request, tried } => {
                self.requests.trying = self.requests.trying.saturating_sub(1);
                if tried == Tried::Again {
                    self.requests.settled.remove(&request);
                }
            }
            Event::Ended { name } => {
                self.running = self.running.saturating_sub(1);
                if let Some(index) = self.indices.get(&name) {
                    self.agenda.arm(*index, self.dispatcher.now());
                }
            }
        }
    }

    fn wake_at(&self) -> Option<Moment> {
        // When all checkers are busy, the next check starts when one reports.
        let next = self.agenda.next().filter(|_| !self.dispatcher.is_draining() && self.checking() < MAX_CHECKS)?;
        Some(self.dispatcher.moment_of(next))
    }

    /// Requests the store's time.
    async fn ask_time(&self) -> Result<(Timestamp, Moment)> {
        let asked = self.dispatcher.clock().now();
        Ok((self.dispatcher.coordinator().now().await?, asked))
    }

    /// Reads the requests for runs, together with the store's time, and carries out those for jobs of this machine. A
    /// request that cannot be carried out now is tried again next time.
    async fn look_for_requests(&mut self) {
        let asked = self.dispatcher.clock().now();
        let Ok((requests, now)) = self.requests.verbs.run_requests().await else {
            // An error in the requests concerns no job: the time is still needed.
            match self.ask_time().await {
                Ok((now, asked)) => self.dispatcher.learn(now, asked),
                Err(error) => self.dispatcher.store_away(Sign::Look, &error),
            }
            return;
        };
        self.dispatcher.learn(now, asked);
        self.requests.settled.retain(|id| requests.iter().any(|request| request.id == *id));
        if self.dispatcher.is_draining() {
            return;
        }
        for request in requests.into_iter().filter(|request| now < request.until) {
            let Some(job) = self.indices.get(&request.job).and_then(|index| self.jobs.get(*index as usize)) else {
                continue;
            };
            if self.requests.settled.insert(request.id) {
                self.requests.trying += 1;
                let (dispatcher, job) = (self.dispatcher.clone(), job.clone());
                tokio::spawn(async move {
                    let tried = dispatcher.try_request(&job, &request).await;
                    dispatcher.send(Event::Tried { request: request.id, tried });
                });
            }
        }
    }

    fn arm_next(&mut self, now: Timestamp) {
        for (index, job) in (0..).zip(&self.jobs) {
            if let Some(slot) = job.schedule.next_after(now) {
                self.agenda.arm(index, slot.0.plus(job.delay(slot)));
            }
        }
    }

    fn arm_all(&mut self) {
        let now = self.dispatcher.now();
        for index in 0..self.jobs.len() {
            self.agenda.arm(index as u32, now);
        }
    }

    /// Finds out which jobs have something to catch up on. If there are few jobs, each is checked. Of many, only those
    /// that may have open slots according to two listings of the store.
    async fn survey(&mut self) -> Result<()> {
        if self.jobs.len() < MANY {
            self.dispatcher.check_journal_of(self.jobs.iter().map(|job| job.name.clone()));
            self.arm_all();
            return Ok(());
        }
        let mut known: HashMap<LeaseName, Timestamp> = HashMap::new();
        let mut after: Option<LeaseName> = None;
        loop {
            let (page, more) = self.dispatcher.journals().list(after.as_ref(), PAGE).await?;
            after = page.last().map(|(name, _)| name.clone());
            for (name, journal) in page {
                // A damaged journal is read again, reported and retried with its own job.
                let journal = match journal {
                    Err(error) if is_disabled(Fix::JournalErrorStopsTheScheduler) => return Err(error),
                    Err(_) => {
                        self.dispatcher.check_journal_of([name]);
                        continue;
                    }
                    Ok(journal) => journal,
                };
                let settled = journal.settled_to.map(|slot| slot.0);
                if let Some(at) = settled.max(journal.since) {
                    known.insert(name, at);
                }
            }
            if !more {
                break;
            }
        }
        after = None;
        loop {
            let page = self.dispatcher.coordinator().list(after.as_ref(), PAGE).await?;
            after = page.entries.last().map(|(name, _)| name.clone());
            for (name, read) in page.entries {
                let Some(mark) = read.ok().and_then(|read| read.record.slot) else { continue };
                if mark.state == SlotState::Running {
                    known.remove(&name);
                } else if let Some(at) = known.get_mut(&name) {
                    *at = mark.slot.0.max(*at);
                }
            }
            if !page.more {
                break;
            }
        }
        let now = self.dispatcher.now();
        for (index, job) in (0..).zip(&self.jobs) {
            // Slots that are settled ahead of their time have to be reported.
            let settled = known.get(&job.name).filter(|at| **at <= now);
            let next = job.schedule.next_after(settled.copied().unwrap_or(now));
            match (settled.is_some(), next) {
                (true, Some(slot)) => self.agenda.arm(index, slot.0.plus(job.delay(slot))),
                (true, None) => {}
                (false, _) => self.agenda.arm(index, now),
            }
        }
        Ok(())
    }
}

/// Settings for all jobs of a scheduler.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How long a lease lasts unless renewed, if the job does not say.
    pub ttl: Ttl,
    /// The label of the scheduler as a holder.
    pub label: Option<Label>,
    /// The most runs at once.
    pub max_running: usize,
}
