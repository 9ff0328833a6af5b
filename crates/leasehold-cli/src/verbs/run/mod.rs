//! `run`: a command under a lease.

mod after;
mod dry;
mod ready;
mod skip;
mod slot;
mod take;

use crate::args::Run as Args;
use crate::config::{Settings, duration_of};
use crate::context::{Context, token};
use crate::exit::Exit;
use crate::ping;
use crate::supervise::settlement::{Noted, PATIENCE, Settlement, Verdict, log_end, own_exit, passes, settle};
use crate::supervise::windows::Windows;
use crate::supervise::{self, Copying, Ended, Evidence, Finished, Output, Signals, Standby, Task, TimeLimit};
use crate::{guards, log, output};
use after::{After, Listeners};
use leasehold_core::clock::{Clock, Moment, SystemClock};
use leasehold_core::guard::Guard;
use leasehold_core::{
    Ask, Coordinator, Distribution, Error, Event, Grant, HolderId, Keeper, Kind, LeaseName, Outcome, ProgressGate,
    Reason, Released, Result, Slot, Token, lost_error,
};
use leasehold_guards::git::FenceNamespace;
use leasehold_work::schedule::slot_text;
use ready::{check, environment, seal};
pub use skip::skip_event;
use skip::{report_skipped, skip};
use slot::{Found, SlotPlan};
pub use slot::{ahead_line, dropped_line, passed_line};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use take::{Busy, Seats, Taken, take};

/// What a command is told that is asked to finish.
const SIGTERM: i32 = 15;
/// The longest pause between two tries.
const MAX_BACKOFF: Duration = Duration::from_secs(3_600);

/// The validated arguments.
struct Plan<'a> {
    leases: Vec<LeaseName>,
    seats: Seats,
    busy: Busy,
    progress: Option<(Duration, Evidence)>,
    max_runtime: Option<Duration>,
    spacing: Option<Duration>,
    guards: Vec<Arc<dyn Guard>>,
    fences: Option<FenceNamespace>,
    flock: Option<PathBuf>,
    adopt: Option<Token>,
    slot: SlotPlan,
    retries: u32,
    backoff: Duration,
    settings: &'a Settings,
    listeners: Listeners,
    quiet: bool,
    command: Vec<OsString>,
}

impl<'a> Plan<'a> {
    fn new(context: &'a Context, args: Args) -> Result<Self> {
        let settings = context.settings()?;
        let name = LeaseName::to_hold(&args.name)?;
        let mut leases = vec![name.clone()];
        for other in &args.or {
            leases.push(LeaseName::to_hold(other)?);
        }
        for seat in 2..=args.limit.unwrap_or(1) {
            leases.push(name.seat(seat)?);
        }
        let wait = duration_of("--wait", args.wait.as_deref())?;
        let retry_after = duration_of("--retry-after", args.retry_after.as_deref())?;
        let progress_timeout = duration_of("--progress-timeout", args.progress_timeout.as_deref())?;
        let busy = match (wait, retry_after) {
            (Some(limit), _) => Busy::Wait(limit),
            (None, Some(pause)) => Busy::RetryAfter(pause),
            (None, None) => Busy::Skip,
        };
        let output = if args.progress_output { Output::Counts } else { Output::Ignored };
        let evidence = Evidence::new(output, args.progress_file);
        let adopt = if args.slot.adopt {
            Some(token(None)?)
        } else {
            args.token.as_deref().map(str::parse::<Token>).transpose()?
        };
        if let Some(token) = adopt.as_ref().filter(|token| token.lease != name) {
            return Err(Error::invalid("token", token, format!("it belongs to another lease than `{name}`")));
        }
        if !args.guard.is_empty() && leases.len() > 1 {
            let message = "--guard and --or do not go together: a guarded resource admits one lease only";
            return Err(Error::new(Kind::Invalid, message));
        }
        let fences = guards::fence_namespace(args.fence_namespace.as_deref())?;
        let namespace = fences.clone().unwrap_or_default();
        if adopt.is_none() {
            settings.windows(settings.ttl.value)?;
        }
        Ok(Plan {
            leases,
            seats: if args.limit.is_some() { Seats::OfOneLease } else { Seats::Apart },
            busy,
            progress: progress_timeout.map(|timeout| (timeout, evidence)),
            max_runtime: duration_of("--max-runtime", args.max_runtime.as_deref())?,
            spacing: duration_of("--min-interval", args.min_interval.as_deref())?,
            guards: args.guard.iter().map(|text| guards::parse_with(text, &namespace)).collect::<Result<_>>()?,
            fences,
            flock: args.also_flock,
            adopt,
            slot: SlotPlan::new(&args.slot)?,
            retries: args.slot.retries,
            backoff: duration_of("--backoff", args.slot.backoff.as_deref())?.unwrap_or(Duration::from_secs(10)),
            settings,
            listeners: Listeners::new(args.ping.as_deref(), settings)?,
            quiet: args.quiet,
            command: args.command,
        })
    }

    /// Whether the dead-man may be started before the lease is acquired. Not if it may be a long wait, and not if the command
    /// is to inherit a flock that is taken after the lease.
    fn stands_by_early(&self) -> bool {
        self.flock.is_none() && matches!(self.busy, Busy::Skip) && !matches!(self.slot, SlotPlan::Newest(..))
    }

    async fn open<'c>(&self, context: &'c Context) -> Result<&'c Coordinator> {
        match &self.adopt {
            Some(_) => context.granting().await,
            None => context.coordinator().await,
        }
    }

    /// Gives back what a request may have been granted that was on its way, or the lease that was to be taken up: nothing was
    /// run under it, and its slot stays open.
    async fn give_back(&self, coordinator: &Coordinator, ask: &Ask, slot: Option<Slot>) {
        let Some(token) = &self.adopt else {
            let _ = coordinator.withdraw(&self.leases, ask).await;
            return;
        };
        let verdict = Verdict::NotStarted;
        if coordinator.release_by_token(token, verdict.row().0).await.is_ok() {
            let (epoch, renewals) = (token.epoch, Distribution::default());
            let noted = Noted { slot, epoch, exit: None, ran_for_ms: 0, tries: 0, renewals };
            verdict.note(coordinator, &token.lease, noted).await;
        }
    }

    fn stand_by(&self) -> Result<Standby> {
        let evidence = self.progress.as_ref().map(|(_, evidence)| evidence);
        Standby::start(self.command.clone(), &self.settings.store.value.portable(), evidence)
    }
}

/// What its lines in the log are about. Started by a scheduler, they are among those of other jobs.
fn subject(args: &Args) -> log::Subject {
    let (is_one_of_many, slot) = (args.slot.adopt, args.slot.slot_at.clone());
    let (lease, job) = (Some(args.name.clone()), slot.as_ref().map(|_| args.name.clone()));
    log::Subject { job, lease, slot, is_one_of_many, ..log::Subject::default() }
}

pub async fn run(context: &Context, args: Args) -> Result<Exit> {
    log::about(Some(subject(&args)));
    let (unrecorded, unless_succeeded, dry_run) = (args.slot.unrecorded, args.slot.unless_succeeded, args.dry_run);
    let plan = Plan::new(context, args)?;
    supervise::check()?;
    check(&plan.guards, &plan.leases[0]).await?;
    if dry_run {
        return dry::run(context, &plan).await;
    }
    // The dead-man starts while the store is opened.
    let (coordinator, early) =
        tokio::join!(plan.open(context), async { plan.stands_by_early().then(|| plan.stand_by()).transpose() });
    let (coordinator, early) = (coordinator?, early?);
    let mut signals = Signals::listen()?;
    let (mut early, mut before) = (early, None);
    loop {
        let chosen = match plan.slot.find(coordinator, &plan.leases[0], &mut signals).await? {
            Found::Go(chosen) => chosen,
            Found::Signal(number) => return Ok(Exit::by_signal(number)),
            Found::Nothing(why, event) => match before {
                None => return Ok(report_skipped(coordinator, &plan, &why, Some(event)).await),
                Some(exit) => return Ok(exit),
            },
        };
        let slot = chosen.map(|chosen| chosen.slot);
        log::refine(|subject| {
            subject.slot = slot.map(slot_text);
            subject.job = slot.map(|_| plan.leases[0].to_string());
        });
        let mut ask = Ask::new(HolderId::new(plan.settings.label.value.clone()), plan.settings.ttl.value);
        (ask.slot, ask.spacing) = (plan.slot.claim(chosen), plan.spacing);
        let taken = tokio::select! {
            taken = take(coordinator, &plan, &mut ask) => taken?,
            number = signals.next_ending() => {
                let _ = tokio::time::timeout(PATIENCE, plan.give_back(coordinator, &ask, slot)).await;
                return Ok(Exit::by_signal(number));
            }
        };
        let (grant, _flock) = match taken {
            Taken::Granted(grant, flock) => (grant, flock),
            // A run died while this one waited: that slot comes first.
            Taken::Refused(_, refusal, _) if plan.slot.finds(&refusal) => continue,
            busy => {
                let skipped = skip(coordinator, &plan, slot, busy).await;
                return Ok(before.unwrap_or(skipped));
            }
        };
        if unless_succeeded && slot::is_over(coordinator, &plan.leases[0], slot).await? {
            coordinator.release(&grant, Outcome::Succeeded).await?;
            return Ok(Exit::Code(0));
        }
        let recorded = !unrecorded;
        let (coordinator, begun) = (coordinator.clone(), SystemClock.now());
        let after = plan.listeners.start(&coordinator);
        let mut run = Run {
            coordinator,
            plan: &plan,
            slot,
            recorded,
            signals: &mut signals,
            begun,
            tries: 0,
            ran: None,
            verdict: None,
            renewals: Distribution::default(),
            after,
        };
        let exit = run.under(*grant, early.take()).await?;
        let worst = before.filter(|before: &Exit| before.code() != 0 && exit.code() == 0).unwrap_or(exit);
        // A slot that was lost, or not even started, would be found again.
        let is_open = matches!(exit, Exit::LostInRun | Exit::Unavailable) || run.verdict == Some(Verdict::Lost);
        let goes_on = chosen.is_some_and(|chosen| chosen.is_recovery) && !is_open;
        if !goes_on || signals.told_to_end() {
            return Ok(worst);
        }
        before = Some(worst);
    }
}

/// A run under a lease that is held.
struct Run<'a> {
    coordinator: Coordinator,
    plan: &'a Plan<'a>,
    slot: Option<Slot>,
    recorded: bool,
    signals: &'a mut Signals,
    begun: Moment,
    tries: u32,
    /// How the last try ended that was started: from then on the slot has had its run.
    ran: Option<(Ended, TimeLimit)>,
    /// What it came to, once it is settled.
    verdict: Option<Verdict>,
    /// How long the store took to answer the renewals of all tries.
    renewals: Distribution,
    after: After,
}

/// What a try came to.
enum Tried {
    Ended(Box<Finished>),
    /// Nothing was run, for this reason. The lease is kept no longer, and not given back yet.
    Unready(Box<Grant>, Error),
    /// Nothing was run, because this signal came.
    Signal(Box<Grant>, i32),
}

/// What came of the pause between two tries.
enum Paused {
    Over,
    Lost(String),
    Signal(i32),
}

impl Run<'_> {
    /// Tries as often as it may.
    async fn under(&mut self, grant: Grant, early: Option<Standby>) -> Result<Exit> {
        let windows = self.plan.settings.windows(grant.ttl())?;
        let (lease, epoch) = (grant.token().lease.to_string(), grant.token().epoch);
        log::refine(|subject| (subject.lease, subject.epoch) = (Some(lease), Some(epoch.get())));
        // A scheduler has said so.
        if self.plan.adopt.is_none() {
            let what = log::subject();
            tracing::info!(target: log::RUNS, "started {what} under epoch {epoch}");
        }
        // The count is written while the command runs, not before.
        let counting = tokio::spawn({
            let (coordinator, lease) = (self.coordinator.clone(), self.plan.leases[0].clone());
            let (slot, epoch) = (self.slot.filter(|_| self.recorded), grant.token().epoch);
            // What became of a slot whose run died is for the journal to say.
            let died =
                self.slot.is_none() && grant.record().transfers.last().is_some_and(|t| t.reason == Reason::Expired);
            async move {
                slot::note_begin(&coordinator, &lease, slot, epoch).await;
                if died {
                    let _ = coordinator.count(&lease, Event::Died).await;
                }
                coordinator.count(&lease, Event::Granted).await
            }
        });
        let (mut grant, mut early) = (grant, early);
        let finished = loop {
            self.tries += 1;
            let stopped = match self.once(grant, early.take(), windows).await {
                Tried::Ended(finished) if !self.may_try_again(&finished) => break finished,
                Tried::Ended(finished) => match self.wait_for_next_try(*finished).await {
                    Ok(again) => {
                        grant = again;
                        continue;
                    }
                    Err(finished) => break finished,
                },
                Tried::Unready(kept, error) if self.tries <= self.plan.retries && passes(error.kind()) => {
                    match self.pause(*kept, &error.to_string()).await {
                        (again, Paused::Over) => {
                            grant = again;
                            continue;
                        }
                        (kept, Paused::Lost(why)) => {
                            let lost = format!("lost `{}` before anything was run: {why}", kept.token());
                            (kept, Err(Error::new(Kind::Unavailable, lost).with_source(error)))
                        }
                        (kept, Paused::Signal(number)) => (kept, Ok(Exit::by_signal(number))),
                    }
                }
                Tried::Unready(kept, error) => (*kept, Err(error)),
                Tried::Signal(kept, number) => (*kept, Ok(Exit::by_signal(number))),
            };
            let _ = tokio::time::timeout(PATIENCE, counting).await;
            let token = stopped.0.token().clone();
            let ended = self.unstarted(stopped.0, stopped.1).await;
            let exit = ended.as_ref().map_or_else(Exit::from, |exit| *exit);
            self.after.tell(&token, exit, self.begun, self.signals).await;
            return ended;
        };
        // The journal has the end after the beginning.
        let _ = tokio::time::timeout(PATIENCE, counting).await;
        let token = finished.grant.token().clone();
        let exit = self.end(*finished).await;
        self.after.tell(&token, exit, self.begun, self.signals).await;
        Ok(exit)
    }

    async fn once(&mut self, grant: Grant, early: Option<Standby>, windows: Windows) -> Tried {
        let token = grant.token().clone();
        let plan = self.plan;
        let gate = plan
            .progress
            .as_ref()
            .map(|(timeout, evidence)| ProgressGate { timeout: *timeout, evidence: evidence.reader() });
        // Kept from here on: shutting others out may take its time.
        let keeper = Keeper::start_gated(self.coordinator.clone(), grant, gate);
        let standby = tokio::select! {
            sealed = seal(&plan.guards, &token) => sealed.and_then(|()| early.map_or_else(|| plan.stand_by(), Ok)),
            number = self.signals.next_ending() => return Tried::Signal(Box::new(keeper.stop().await), number),
        };
        let standby = match standby {
            Ok(standby) => standby,
            Err(error) => return Tried::Unready(Box::new(keeper.stop().await), error),
        };
        // What came while the dead-man was started is heard first: nothing is begun that is to end at once.
        if let Some(number) = self.signals.pending_ending().await {
            return Tried::Signal(Box::new(keeper.stop().await), number);
        }
        let evidence = plan.progress.as_ref().map(|(_, evidence)| evidence.clone());
        let mut environment = environment(&token, self.slot);
        // A `run` within the command is not this one.
        environment.extend(std::env::var_os(ping::VARIABLE).map(|_| (ping::VARIABLE, String::new())));
        environment.extend(plan.fences.iter().map(|fences| (guards::FENCE_NAMESPACE, fences.to_string())));
        let store = plan.settings.store.value.clone();
        let task = Task { environment, windows, evidence, max_runtime: plan.max_runtime, store };
        let finished = supervise::supervise(keeper, standby, task, &mut *self.signals).await;
        self.renewals.merge(&finished.renewals);
        if !finished.ended.passes() {
            self.ran = Some((finished.ended.clone(), finished.time_limit));
        }
        Tried::Ended(Box::new(finished))
    }

    /// Gives the lease back, and says what people should know.
    async fn end(&mut self, mut finished: Finished) -> Exit {
        let (output, cut) = (finished.output.take(), finished.cut);
        if finished.ended.passes()
            && let Some((ended, time_limit)) = self.ran.take()
        {
            output::say("the last try could not be started; the one before it counts");
            (finished.ended, finished.time_limit) = (ended, time_limit);
        }
        let (grant, program, coordinator) = (finished.grant.clone(), &self.plan.command[0], &self.coordinator);
        let (token, name) = (grant.token(), format!("`{}`", grant.token()));
        let signals = &mut *self.signals;
        let told_to_end = async {
            signals.next_ending().await;
        };
        let mut releasing = None;
        let settled = settle(finished, &name, program, told_to_end, async |_, verdict| {
            let releasing = releasing.get_or_insert_with(|| coordinator.releasing(&grant, verdict.row().0));
            let released = releasing.attempt().await?;
            let Released::Lost(refusal) = released else { return Ok(None) };
            let lost = lost_error(grant.token(), &refusal);
            Ok(Some(format!("it was taken away while the command ran: {lost}")))
        });
        let Settlement { verdict, exit, is_recorded, .. } = settled.await;
        self.verdict = Some(verdict);
        if is_recorded {
            self.note_end(token, verdict, Some(exit.code())).await;
        }
        self.pass_on(output, cut, exit).await
    }

    /// Waits for the rest of the output, until a signal comes: then it is lost, and that is not a good end.
    async fn pass_on(&mut self, output: Option<Copying>, mut cut: Option<i32>, exit: Exit) -> Exit {
        if let Some(mut output) = output {
            tokio::select! {
                biased;
                () = output.arrive() => {}
                number = self.signals.next_ending() => cut = Some(number),
            }
        }
        let Some(number) = cut else { return exit };
        output::say("stopped by a signal before all of the command's output was passed on; the rest is lost");
        if exit.code() == 0 { Exit::by_signal(number) } else { exit }
    }

    /// Gives back a lease under which nothing was run this time. Its slot stays open, unless an earlier try was run, or
    /// trying again would not help.
    async fn unstarted(&mut self, grant: Grant, why: Result<Exit>) -> Result<Exit> {
        let ran = self.ran.take();
        let verdict = match &why {
            _ if ran.is_some() => Verdict::Failed,
            Err(error) => Verdict::of_error(error.kind()),
            Ok(_) => Verdict::NotStarted,
        };
        let _ = tokio::time::timeout(PATIENCE, self.coordinator.release(&grant, verdict.row().0)).await;
        self.note_end(grant.token(), verdict, None).await;
        match (why, ran) {
            // 69 would say that nothing was done.
            (Err(error), Some((ended, time_limit))) if passes(error.kind()) => {
                output::say(&error.to_string());
                Ok(own_exit(&ended, time_limit, &self.plan.command[0]))
            }
            (why, _) => why,
        }
    }

    /// A command that was told to end is not started again, whatever it ended with.
    fn may_try_again(&self, finished: &Finished) -> bool {
        Verdict::of(&finished.ended, finished.time_limit) != Verdict::Succeeded
            && self.tries <= self.plan.retries
            && finished.lost.is_none()
            && finished.survivors.is_empty()
            && !self.signals.told_to_end()
    }

    /// The lease is kept while it is waited. Gives back how it ended if there is no next try after all.
    async fn wait_for_next_try(&mut self, mut finished: Finished) -> Result<Grant, Box<Finished>> {
        for note in std::mem::take(&mut finished.notes) {
            output::say(&note);
        }
        let _ = finished.dead_man.wait();
        let (grant, paused) = self.pause(finished.grant.clone(), &finished.ended.to_string()).await;
        finished.grant = grant;
        match paused {
            Paused::Over => return Ok(finished.grant),
            Paused::Lost(why) => finished.lost = Some(why),
            Paused::Signal(_) => {}
        }
        Err(Box::new(finished))
    }

    /// Waits for the time of the next try. The lease is kept meanwhile.
    async fn pause(&mut self, grant: Grant, told: &str) -> (Grant, Paused) {
        let pause = self.plan.backoff.saturating_mul(1 << (self.tries - 1).min(16)).min(MAX_BACKOFF);
        let (tries, all) = (self.tries, self.plan.retries + 1);
        let pause_text = leasehold_core::format_duration(pause);
        output::say(&format!("try {tries} of {all} ended with {told}; the next in {pause_text}"));
        let keeper = Keeper::start(self.coordinator.clone(), grant);
        let paused = tokio::select! {
            () = SystemClock.sleep_until(SystemClock.now() + pause) => Paused::Over,
            loss = keeper.lost() => Paused::Lost(loss.to_string()),
            drain = keeper.asked_to_finish() => {
                output::say(&format!("{drain}; it is not tried again"));
                Paused::Signal(SIGTERM)
            }
            number = self.signals.next_ending() => Paused::Signal(number),
        };
        (keeper.stop().await, paused)
    }

    async fn note_end(&self, token: &Token, verdict: Verdict, exit: Option<u8>) {
        let ran_for_ms = SystemClock.now().saturating_since(self.begun).as_millis() as u64;
        let (slot, epoch, tries) = (self.slot.filter(|_| self.recorded), token.epoch, self.tries);
        log_end(verdict, exit, ran_for_ms, tries);
        let noted = Noted { slot, epoch, exit, ran_for_ms, tries, renewals: self.renewals.clone() };
        verdict.note(&self.coordinator, &self.plan.leases[0], noted).await;
    }
}
