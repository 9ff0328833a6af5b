//! Schedules: jobs that are due at certain times, each slot of which is run once in the whole fleet.
//!
//! Promise: a slot is claimed in the same write as the lease, so two machines can never both run it. The store's clock decides
//! which slots are due. Non-promise: a slot starts only when a machine is there to start it, and one whose machine died is run
//! again.
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
//! # async fn back_up() -> leasehold::Result<()> { Ok(()) }
//! let leases = leasehold::connect("sqlite:").await?;
//! leases
//!     .schedule("backup", "30 3 * * *")
//!     .zone("Europe/Berlin")
//!     .each(async |held| {
//!         println!("slot {} under {}", held.slot().unwrap_or_default(), held.token());
//!         back_up().await
//!     })
//!     .await
//! # }
//! ```

use crate::held::{Held, Tenure};
use crate::lease::{Run, TTL, duration, lifetime, under};
use async_trait::async_trait;
use leasehold_core::guard::Guard;
use leasehold_core::{Coordinator, EndedRun, Error, Event, Kind, Label, LeaseName, Result, Ttl};
use leasehold_work::schedule::{
    self as work, Busy, CatchUp, Decided, Fate, Job, Journals, Launcher, RunEnd, Scheduler, Settings, Start, Watcher,
    Zone,
};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// A job that is due at certain times. [`each`](Schedule::each) runs it, and also returns the first error in the values that were
/// set before.
#[derive(Debug)]
#[must_use = "nothing happens before `each`"]
pub struct Schedule<'a> {
    coordinator: Coordinator,
    asked: Result<JobOptions>,
    guards: Vec<&'a dyn Guard>,
}

#[derive(Debug)]
struct JobOptions {
    name: LeaseName,
    line: String,
    zone: Zone,
    ttl: Ttl,
    label: Option<Label>,
    catch_up: CatchUp,
}

impl<'a> Schedule<'a> {
    pub(crate) fn new(coordinator: Coordinator, name: &str, line: &str) -> Self {
        let asked = || {
            let (name, ttl) = (name.parse()?, TTL.parse()?);
            let catch_up = CatchUp::default();
            Ok(JobOptions { name, line: line.to_owned(), zone: Zone::UTC, ttl, label: None, catch_up })
        };
        Schedule { coordinator, asked: asked(), guards: Vec::new() }
    }

    /// The time zone of the cron line, by its IANA name; by default UTC.
    pub fn zone(self, zone: &str) -> Self {
        self.set(zone.parse(), |asked, value| asked.zone = value)
    }

    /// How long the lease lasts unless renewed: from `1s` to `24h`, by default `90s`.
    pub fn ttl(self, ttl: &str) -> Self {
        self.set(lifetime(ttl), |asked, value| asked.ttl = value)
    }

    /// What the holder calls itself, by default the machine's name.
    pub fn label(self, label: &str) -> Self {
        self.set(Label::named("label", label), |asked, value| asked.label = Some(value))
    }

    /// After an outage, runs the newest `count` slots that are no older than `max_age`; by default one, from the last day. The
    /// others are recorded as dropped.
    pub fn catch_up(self, count: u32, max_age: &str) -> Self {
        self.set(duration("max_age", max_age).and_then(|age| CatchUp::new(count, age)), |asked, value| {
            asked.catch_up = value
        })
    }

    /// Shuts every earlier run out of this resource before the work begins. May be called for several resources.
    pub fn guard(mut self, guard: &'a dyn Guard) -> Self {
        self.guards.push(guard);
        self
    }

    /// Does this work for each due slot that nobody else runs. If the work returns an error, the slot has failed, and the schedule
    /// continues. It waits for a store that is away. It ends only with an error: a value that was set is wrong, or something needs
    /// a person.
    ///
    /// Dropping the future drops the work; the slot is run again after the TTL, here or elsewhere. To end without that, use
    /// [`each_until`](Schedule::each_until).
    ///
    /// # Errors
    /// Those that end it, as described.
    pub async fn each<E, F>(self, work: impl Fn(Tenure) -> F) -> Result<()>
    where
        F: Future<Output = Result<(), E>>,
    {
        self.each_until(std::future::pending(), work).await
    }

    /// The same until `stop` resolves. Then it finishes the current run and begins nothing new.
    ///
    /// # Errors
    /// Those of [`each`](Schedule::each).
    pub async fn each_until<E, F>(self, stop: impl Future<Output = ()>, work: impl Fn(Tenure) -> F) -> Result<()>
    where
        F: Future<Output = Result<(), E>>,
    {
        let JobOptions { name, line, zone, ttl, label, catch_up } = self.asked?;
        let job = Arc::new(job(name, work::Schedule::new(&line, zone, None, None)?, catch_up));
        let (begin, mut starts) = mpsc::unbounded_channel();
        let (tell, mut troubles) = mpsc::unbounded_channel();
        let settings = Settings { ttl, label, max_running: 1 };
        let (scheduler, steering) = Scheduler::new(
            self.coordinator.clone(),
            vec![job],
            Arc::new(Here(begin)),
            Arc::new(Troubles(tell)),
            settings,
        );
        let (mut scheduling, mut stop, mut is_stopping) = (pin!(scheduler.run()), pin!(stop), false);
        let mut running = pin!(None);
        loop {
            tokio::select! {
                biased;
                Some(ran) = poll_some(running.as_mut()) => {
                    running.set(None);
                    ran?;
                }
                ended = &mut scheduling => return ended,
                Some(trouble) = troubles.recv() => return Err(trouble),
                () = &mut stop, if !is_stopping => {
                    is_stopping = true;
                    steering.drain();
                }
                Some((start, done)) = starts.recv() => {
                    running.set(Some(run_slot(&self.coordinator, &self.guards, start, done, &work)));
                }
            }
        }
    }

    fn set<T>(mut self, value: Result<T>, set: impl FnOnce(&mut JobOptions, T)) -> Self {
        self.asked = self.asked.and_then(|mut asked| {
            set(&mut asked, value?);
            Ok(asked)
        });
        self
    }
}

/// The result of a future, if there is one.
async fn poll_some<F: Future>(mut future: std::pin::Pin<&mut Option<F>>) -> Option<F::Output> {
    match future.as_mut().as_pin_mut() {
        Some(future) => Some(future.await),
        None => None,
    }
}

/// One run of the work, and its entry in the journal. An error needs a person.
async fn run_slot<E, F>(
    coordinator: &Coordinator,
    guards: &[&dyn Guard],
    start: Start,
    done: oneshot::Sender<()>,
    work: &impl Fn(Tenure) -> F,
) -> Result<()>
where
    F: Future<Output = Result<(), E>>,
{
    let (clock, journals) = (coordinator.clock().clone(), Journals::new(coordinator.clone()));
    let (lease, epoch, began) = (start.job.name.clone(), start.grant.token().epoch, clock.now());
    let held = Held::keep(coordinator.clone(), start.grant, None);
    // The journal is for people, and best effort: what counts is in the lease's record.
    let _ = journals.begin(&lease, start.slot, epoch).await;
    let mut refused = None;
    let fate = match held.seal(guards).await {
        Err(error) => {
            refused = Some(error).filter(needs_a_person);
            Fate::NotStarted
        }
        Ok(Err(_)) => Fate::Lost,
        Ok(Ok(held)) => {
            let work = work(held.tenure());
            match under(held, work).await {
                Ok(Run::Ran(())) => Fate::Succeeded,
                Ok(Run::Lost(_) | Run::Skipped(_)) => Fate::Lost,
                Err(_) => Fate::Failed,
            }
        }
    };
    let ran_for = clock.now().saturating_since(began);
    let ran_for_ms = u64::try_from(ran_for.as_millis()).unwrap_or(u64::MAX);
    let _ = journals.end(&lease, start.slot, epoch, RunEnd::new(fate, None, ran_for_ms)).await;
    let event = match fate {
        Fate::Succeeded => Some(Event::Succeeded),
        Fate::Lost => Some(Event::Lost),
        Fate::Failed => Some(Event::Failed),
        _ => None,
    };
    if event.is_some() {
        let ended = EndedRun { event, epoch: Some(epoch), took: Some(ran_for), ..EndedRun::default() };
        let _ = coordinator.count_run(&lease, &ended).await;
    }
    let _ = done.send(());
    refused.map_or(Ok(()), Err)
}

/// Whether trying again cannot help.
fn needs_a_person(error: &Error) -> bool {
    !matches!(error.kind(), Kind::Unavailable | Kind::Contended | Kind::Indeterminate | Kind::Lost)
}

/// A job without a command.
fn job(name: LeaseName, schedule: work::Schedule, catch_up: CatchUp) -> Job {
    Job {
        name,
        schedule,
        timing: Default::default(),
        argv: Vec::new(),
        ttl: None,
        grace: None,
        busy: Busy::Skip,
        catch_up,
        jitter: Duration::ZERO,
        env: Default::default(),
        env_file: Vec::new(),
        cwd: None,
        guards: Vec::new(),
        retries: 0,
        backoff: Duration::ZERO,
        timeout: None,
        progress_timeout: None,
        on: Vec::new(),
        ping: None,
        late_after: Duration::MAX,
    }
}

/// Hands each run to the future that does the work, so that dropping that future drops the run.
#[derive(Debug)]
struct Here(mpsc::UnboundedSender<(Start, oneshot::Sender<()>)>);

#[async_trait]
impl Launcher for Here {
    async fn launch(&self, start: &Start) -> Result<()> {
        let (done, over) = oneshot::channel();
        let Start { job, slot, grant, origin } = start;
        let start = Start { job: job.clone(), slot: *slot, grant: grant.clone(), origin: *origin };
        let gone = |_| Error::new(Kind::Unavailable, "the schedule was dropped");
        self.0.send((start, done)).map_err(gone)?;
        // A run that is dropped in the middle has no end: it is no longer renewed, and counts as died.
        let _ = over.await;
        Ok(())
    }
}

/// Passes on what needs a person.
#[derive(Debug)]
struct Troubles(mpsc::UnboundedSender<Error>);

impl Watcher for Troubles {
    fn decided(&self, _job: &Job, decided: Decided) {
        if let Decided::Trouble(error) = decided
            && needs_a_person(&error)
        {
            let _ = self.0.send(error);
        }
    }
}
