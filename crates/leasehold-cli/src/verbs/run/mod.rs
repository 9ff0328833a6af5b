//! `run`: a command under a lease.

mod after;
mod dry;
mod end;
mod plan;
mod ready;
mod skip;
mod slot;
mod take;

use crate::args::Run as Args;
use crate::context::Context;
use crate::exit::Exit;
use crate::ping;
use crate::run_context::ContextFile;
use crate::run_output::Keep;
use crate::supervise::deadlines::Deadlines;
use crate::supervise::settlement::{PATIENCE, Verdict, is_temporary};
use crate::supervise::{self, Asked, Ended, Finished, Gathered, Signals, Standby, Task, TimeLimit};
use crate::{guards, log, output};
use after::{After, Told};
use leasehold_core::clock::{Clock, Moment, SystemClock};
use leasehold_core::{
    Ask, Coordinator, Distribution, Error, Event, Grant, HolderId, Keeper, Kind, Outcome, ProgressGate, Result, Slot,
    Token,
};
use leasehold_work::schedule::slot_text;
use plan::Plan;
use ready::{check, context_file, environment, seal};
pub use skip::skip_event;
use skip::{skip, skip_nothing};
use slot::{Begun, DueSlot};
pub use slot::{ahead_line, log_dropped, passed_line};
use std::fs::File;
use std::time::Duration;
use take::{Taken, take};

/// The signal for a command that is asked to finish.
const SIGTERM: i32 = 15;
/// The longest pause between two tries.
const MAX_BACKOFF: Duration = Duration::from_secs(3_600);

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
    let unrun = |error| not_run(&plan, error);
    let (coordinator, mut early, mut before) = (coordinator.map_err(unrun)?, early?, None);
    let mut signals = Signals::listen()?;
    loop {
        let chosen = match plan.slot.find(coordinator, &plan.leases[0], &mut signals).await.map_err(unrun)? {
            DueSlot::Go(chosen) => chosen,
            DueSlot::Signal(number) => return Ok(Exit::by_signal(number)),
            DueSlot::Nothing(why, event) => match before {
                None => return Ok(skip_nothing(coordinator, &plan, why, event).await),
                Some(exit) => return Ok(exit),
            },
        };
        let slot = chosen.map(|chosen| chosen.slot);
        log_slot(&plan, slot);
        let mut ask = Ask::new(HolderId::new(plan.settings.label.value.clone()), plan.settings.ttl.value);
        (ask.slot, ask.spacing) = (plan.slot.claim(chosen), plan.spacing);
        let taken = tokio::select! {
            taken = take(coordinator, &plan, &mut ask) => taken.map_err(unrun)?,
            number = signals.next_ending() => {
                let _ = tokio::time::timeout(PATIENCE, plan.give_back(coordinator, &ask, slot)).await;
                return Ok(Exit::by_signal(number));
            }
        };
        let (grant, flock) = match taken {
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
        let (coordinator, begun) = (coordinator.clone(), SystemClock.now());
        let after = plan.listeners.start(&coordinator, &grant);
        let (keep, gathered) = plan.gather(grant.token());
        let mut run = Run {
            coordinator,
            plan: &plan,
            slot,
            recorded: !unrecorded,
            signals: &mut signals,
            begun,
            over: None,
            tries: 0,
            ran: None,
            asked: Asked::No,
            verdict: None,
            why: None,
            renewals: Distribution::default(),
            gathered,
            keep,
            after,
            flock,
        };
        let exit = run.under(*grant, early.take()).await?;
        let worst = before.filter(|before: &Exit| before.code() != 0 && exit.code() == 0).unwrap_or(exit);
        let goes_on = chosen.is_some_and(|chosen| chosen.is_recovery) && !stays_open(exit, run.verdict);
        if !goes_on || signals.told_to_end() {
            return Ok(worst);
        }
        before = Some(worst);
    }
}

/// From now on log lines name this slot, and the job that it is of.
fn log_slot(plan: &Plan<'_>, slot: Option<Slot>) {
    log::refine(|subject| {
        subject.slot = slot.map(slot_text);
        subject.job = slot.map(|_| plan.leases[0].to_string());
    });
}

/// Says what became of the job, where the store does not answer: its error says only that it does not.
fn not_run(plan: &Plan<'_>, error: Error) -> Error {
    if !is_temporary(error.kind()) {
        return error;
    }
    Error::new(error.kind(), format!("`{}` was not run", plan.leases[0])).with_source(error)
}

/// Whether a slot whose run ended so would be found again: it was lost, drained or not even started.
fn stays_open(exit: Exit, verdict: Option<Verdict>) -> bool {
    matches!(exit, Exit::LostInRun | Exit::Unavailable) || matches!(verdict, Some(Verdict::Lost | Verdict::Drained))
}

/// A run under a lease that is held.
struct Run<'a> {
    coordinator: Coordinator,
    plan: &'a Plan<'a>,
    slot: Option<Slot>,
    recorded: bool,
    signals: &'a mut Signals,
    begun: Moment,
    /// When the last try had ended that ran: what comes after it, such as waiting for the store, is not the run's time.
    over: Option<Moment>,
    tries: u32,
    /// How the last try ended that was started: from then on the slot has had its run.
    ran: Option<(Ended, TimeLimit)>,
    /// Whether somebody asked for the end of it between two tries.
    asked: Asked,
    /// What it came to, once it is settled.
    verdict: Option<Verdict>,
    /// Why it was ended, if it did not end by itself.
    why: Option<String>,
    /// How long the store took to answer the renewals of all tries.
    renewals: Distribution,
    /// The output of all tries, if anybody wants it.
    gathered: Option<Gathered>,
    keep: Option<Keep>,
    after: After,
    /// Held until every process of the command has ended.
    flock: Option<File>,
}

/// What a try came to.
enum Tried {
    Ended(Box<Finished>),
    /// Nothing was run, for this reason. The lease is kept no longer, and not given back yet.
    Unready(Box<Grant>, Error),
    /// Nothing was run, because this signal came.
    Signal(Box<Grant>, i32),
}

/// How the pause between two attempts ended.
enum Paused {
    Over,
    Lost(String),
    /// An operator asked for the end.
    Asked,
    Signal(i32),
}

impl Run<'_> {
    /// Tries as often as it may.
    async fn under(&mut self, grant: Grant, early: Option<Standby>) -> Result<Exit> {
        let deadlines = self.plan.settings.deadlines(grant.ttl())?;
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
            let begun = Begun::new(&self.plan.slot, self.slot.filter(|_| self.recorded), epoch);
            let dead: Vec<_> = grant.record().found_dead().into_iter().map(|dead| (dead.slot, dead.epoch)).collect();
            async move {
                let known = begun.note(&coordinator, &lease).await;
                for (slot, epoch) in dead {
                    // A slot that was given up and is run again all the same was counted then.
                    if slot.is_none() || known.as_ref().is_none_or(|known| !known.tells_end(epoch)) {
                        let _ = coordinator.count(&lease, Event::Died).await;
                    }
                }
                coordinator.count(&lease, Event::Granted).await
            }
        });
        let (mut grant, mut early) = (grant, early);
        let finished = loop {
            self.tries += 1;
            let stopped = match self.once(grant, early.take(), deadlines).await {
                Tried::Ended(finished) if !self.may_try_again(&finished) => break finished,
                Tried::Ended(finished) => match self.wait_for_next_try(*finished).await {
                    Ok(again) => {
                        grant = again;
                        continue;
                    }
                    Err(finished) => break finished,
                },
                Tried::Unready(kept, error) if self.tries <= self.plan.retries && is_temporary(error.kind()) => {
                    match self.pause(*kept, &error.to_string()).await {
                        (again, Paused::Over) => {
                            grant = again;
                            continue;
                        }
                        (kept, Paused::Lost(why)) => {
                            let lost = format!("lost `{}` before anything was run: {why}", kept.token());
                            (kept, Err(Error::new(Kind::Unavailable, lost).with_source(error)))
                        }
                        (kept, Paused::Asked) => (kept, Ok(Exit::by_signal(SIGTERM))),
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
            self.tell(&token, exit).await;
            return ended;
        };
        // The journal has the end after the beginning.
        let _ = tokio::time::timeout(PATIENCE, counting).await;
        let token = finished.grant.token().clone();
        let exit = self.end(*finished).await;
        self.tell(&token, exit).await;
        Ok(exit)
    }

    /// Notifies the configured targets, with the last lines of output.
    async fn tell(&mut self, token: &Token, exit: Exit) {
        let tail = self.gathered.as_ref().map(|gathered| gathered.tail().text).filter(|text| !text.is_empty());
        let is_kept = self.keep.as_ref().is_some_and(Keep::has_some);
        let (verdict, ran_for_ms) = (self.verdict, self.ran_for_ms());
        let told = Told { exit, verdict, ran_for_ms, why: self.why.take(), is_kept, tail };
        self.after.tell(token, told, self.signals).await;
    }

    async fn once(&mut self, grant: Grant, early: Option<Standby>, deadlines: Deadlines) -> Tried {
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
        let mut environment = environment(&token, self.slot);
        // A `run` within the command is not this one.
        environment.extend(std::env::var_os(ping::VARIABLE).map(|_| (ping::VARIABLE, String::new())));
        environment.extend(plan.fences.iter().map(|fences| (guards::FENCE_NAMESPACE, fences.to_string())));
        let context = context_file(&plan.settings.store, &token, self.slot);
        environment.push(ContextFile::variable(context.as_ref()));
        let store = plan.settings.store.value.clone();
        let capture = plan.capture(&token.lease, self.gathered.as_ref());
        if let Some(gathered) = self.gathered.as_ref().filter(|_| self.tries > 1) {
            gathered.note(&format!("try {} of {}", self.tries, plan.retries + 1));
        }
        let task =
            Task { environment, deadlines, capture, run_limit: plan.run_limit, managed: plan.managed, store, context };
        let finished = supervise::supervise(keeper, standby, task, &mut *self.signals).await;
        self.renewals.merge(&finished.renewals);
        if !finished.ended.is_temporary() {
            self.ran = Some((finished.ended.clone(), finished.time_limit));
            self.over = Some(finished.ended_at);
        }
        Tried::Ended(Box::new(finished))
    }

    /// A command that was told to end is not started again, whatever it ended with.
    fn may_try_again(&self, finished: &Finished) -> bool {
        Verdict::of(&finished.ended, finished.time_limit, finished.asked) != Verdict::Succeeded
            && self.tries <= self.plan.retries
            && finished.lost.is_none()
            && finished.survivors.is_empty()
            && !self.signals.told_to_end()
    }

    /// The lease is kept while it is waited. Gives back how it ended if there is no next try after all.
    async fn wait_for_next_try(&mut self, mut finished: Finished) -> Result<Grant, Box<Finished>> {
        for note in std::mem::take(&mut finished.notes) {
            output::warn(&note);
        }
        let _ = finished.dead_man.wait();
        let (grant, paused) = self.pause(finished.grant.clone(), &finished.ended.to_string()).await;
        finished.grant = grant;
        match paused {
            Paused::Over => return Ok(finished.grant),
            Paused::Lost(why) => finished.lost = Some(why),
            Paused::Asked => finished.asked = Asked::ToFinish,
            Paused::Signal(_) => {}
        }
        Err(Box::new(finished))
    }

    /// Waits for the time of the next try. The lease is kept meanwhile.
    async fn pause(&mut self, grant: Grant, told: &str) -> (Grant, Paused) {
        let pause = self.plan.backoff.saturating_mul(1 << (self.tries - 1).min(16)).min(MAX_BACKOFF);
        let (tries, all) = (self.tries, self.plan.retries + 1);
        let pause_text = leasehold_core::format_duration(pause);
        let what = log::subject();
        output::say(&format!("try {tries} of {all} of {what} ended with {told}; next try in {pause_text}"));
        let keeper = Keeper::start(self.coordinator.clone(), grant);
        let paused = tokio::select! {
            () = SystemClock.sleep_until(SystemClock.now() + pause) => Paused::Over,
            loss = keeper.lost() => Paused::Lost(loss.to_string()),
            drain = keeper.asked_to_finish() => {
                output::say(&format!("{drain}; it is not tried again"));
                self.asked = Asked::ToFinish;
                Paused::Asked
            }
            number = self.signals.next_ending() => Paused::Signal(number),
        };
        (keeper.stop().await, paused)
    }
}
