//! `run`: a command under a lease.

mod seal;
mod slot;
mod take;

use crate::args::Run as Args;
use crate::config::{Settings, duration_of};
use crate::context::{Context, token};
use crate::exit::Exit;
use crate::kept::{self, Keep, Keeping, RunFacts};
use crate::supervise::settlement::{Noted, PATIENCE, Settlement, Verdict, own_exit, passes, settle};
use crate::supervise::windows::Windows;
use crate::supervise::{
    self, Capture, Copying, Ended, Evidence, Feed, Finished, Output, Piping, Signals, Standby, Task, TimeLimit,
};
use crate::{guards, output, view};
use leasehold_core::clock::{Clock, Moment, SystemClock};
use leasehold_core::guard::Guard;
use leasehold_core::lease::protocol::Refusal;
use leasehold_core::{
    Ask, Coordinator, Error, Event, Grant, HolderId, Keeper, Kind, LeaseName, Outcome, ProgressGate, Released, Result,
    Slot, Token,
};
use leasehold_guards::git::FenceNamespace;
use leasehold_work::schedule::{idempotency_key, slot_text};
use seal::{check, seal};
use slot::{Found, SlotPlan};
pub use slot::{ahead_line, dropped_line, passed_line};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use take::{Busy, Seats, Taken, take};

/// The longest pause between two tries.
const MAX_BACKOFF: Duration = Duration::from_secs(3_600);

/// The validated arguments.
struct Plan<'a> {
    leases: Vec<LeaseName>,
    seats: Seats,
    busy: Busy,
    progress: Option<(Duration, Evidence)>,
    keeping: Option<Keeping>,
    prefixes: bool,
    max_runtime: Option<Duration>,
    guards: Vec<Arc<dyn Guard>>,
    fences: Option<FenceNamespace>,
    flock: Option<PathBuf>,
    adopt: Option<Token>,
    slot: SlotPlan,
    retries: u32,
    backoff: Duration,
    settings: &'a Settings,
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
            keeping: if args.keep_output { settings.keeping_or_say() } else { None },
            prefixes: args.prefix_output,
            max_runtime: duration_of("--max-runtime", args.max_runtime.as_deref())?,
            guards: args.guard.iter().map(|text| guards::parse_with(text, &namespace)).collect::<Result<_>>()?,
            fences,
            flock: args.also_flock,
            adopt,
            slot: SlotPlan::new(&args.slot)?,
            retries: args.slot.retries,
            backoff: duration_of("--backoff", args.slot.backoff.as_deref())?.unwrap_or(Duration::from_secs(10)),
            settings,
            quiet: args.quiet,
            command: args.command,
        })
    }

    /// Whether the dead-man may be started before the lease is acquired. Not if it may be a long wait, and not if the command
    /// is to inherit a flock that is taken after the lease.
    fn stands_by_early(&self) -> bool {
        self.flock.is_none() && matches!(self.busy, Busy::Skip) && !matches!(self.slot, SlotPlan::Newest(..))
    }

    fn capture(&self, lease: &LeaseName, keep: Option<&Keep>) -> Capture {
        let evidence = self.progress.as_ref().map(|(_, evidence)| evidence.clone());
        let prefix = self.prefixes.then(|| kept::prefix(lease));
        Capture { evidence, prefix, gathered: keep.map(|keep| keep.gathered.clone()) }
    }

    fn stand_by(&self) -> Result<Standby> {
        let is_piped = self.keeping.is_some() || self.capture(&self.leases[0], None).wants_output();
        let output = if is_piped { Piping::Piped } else { Piping::Inherited };
        Standby::start(self.command.clone(), &self.settings.store.value.portable(), Feed { output, ..Feed::default() })
    }
}

pub async fn run(context: &Context, args: Args) -> Result<Exit> {
    let (unrecorded, unless_succeeded) = (args.slot.unrecorded, args.slot.unless_succeeded);
    let plan = Plan::new(context, args)?;
    supervise::check()?;
    check(&plan.guards, &plan.leases[0]).await?;
    let opening = async {
        match &plan.adopt {
            Some(_) => context.granting().await,
            None => context.coordinator().await,
        }
    };
    // The dead-man starts while the store is opened.
    let (coordinator, early) =
        tokio::join!(opening, async { plan.stands_by_early().then(|| plan.stand_by()).transpose() });
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
        let mut ask = Ask::new(HolderId::new(plan.settings.label.value.clone()), plan.settings.ttl.value);
        ask.slot = plan.slot.claim(chosen);
        let taken = tokio::select! {
            taken = take(coordinator, &plan, &mut ask) => taken?,
            number = signals.next_ending() => {
                // The request may have been on its way: give back what it may have been granted.
                let _ = tokio::time::timeout(PATIENCE, coordinator.withdraw(&plan.leases, &ask)).await;
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
        let keep = plan.keeping.as_ref().map(|keeping| keeping.begin(grant.token()));
        let signals = &mut signals;
        let run = Run { coordinator, plan: &plan, slot, recorded, signals, begun, tries: 0, ran: None, keep };
        let exit = run.under(*grant, early.take()).await?;
        let worst = before.filter(|before: &Exit| before.code() != 0 && exit.code() == 0).unwrap_or(exit);
        // A slot that was lost, or not even started, would be found again.
        let is_open = matches!(exit, Exit::LostInRun | Exit::Unavailable);
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
    /// Of all tries.
    keep: Option<Keep>,
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
    async fn under(mut self, grant: Grant, early: Option<Standby>) -> Result<Exit> {
        let windows = self.plan.settings.windows(grant.ttl())?;
        // The count is written while the command runs, not before.
        let counting = tokio::spawn({
            let (coordinator, lease) = (self.coordinator.clone(), self.plan.leases[0].clone());
            let (slot, epoch) = (self.slot.filter(|_| self.recorded), grant.token().epoch);
            async move {
                slot::note_begin(&coordinator, &lease, slot, epoch).await;
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
            return self.unstarted(stopped.0, stopped.1).await;
        };
        // The journal has the end after the beginning.
        let _ = tokio::time::timeout(PATIENCE, counting).await;
        Ok(self.end(*finished).await)
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
        let mut environment = environment(&token, self.slot);
        environment.extend(plan.fences.iter().map(|fences| (guards::FENCE_NAMESPACE, fences.to_string())));
        let store = plan.settings.store.value.clone();
        let capture = plan.capture(&token.lease, self.keep.as_ref());
        if let Some(gathered) = capture.gathered.as_ref().filter(|_| self.tries > 1) {
            gathered.note(&format!("try {} of {}", self.tries, plan.retries + 1));
        }
        let task = Task { environment, windows, capture, max_runtime: plan.max_runtime, store };
        let finished = supervise::supervise(keeper, standby, task, &mut *self.signals).await;
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
            let is_lost = matches!(releasing.attempt().await?, Released::Lost(_));
            Ok(is_lost.then(|| "it was taken away while the command ran".to_owned()))
        });
        let Settlement { verdict, exit, is_recorded, usage, .. } = settled.await;
        let facts = RunFacts { slot: self.slot, exit: Some(exit.code()), usage };
        let kept = match &self.keep {
            Some(keep) => keep.end(Some(&self.coordinator).filter(|_| is_recorded), facts).await,
            None => None,
        };
        if is_recorded {
            self.note_end(token, verdict, facts, kept).await;
        }
        let exit = self.pass_on(output, cut, exit).await;
        if let Some(keep) = &self.keep {
            tokio::select! {
                () = keep.upload() => {}
                _ = self.signals.next_ending() => {}
            }
        }
        exit
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
        let facts = RunFacts { slot: self.slot, exit: None, usage: None };
        self.note_end(grant.token(), verdict, facts, None).await;
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
            number = self.signals.next_ending() => Paused::Signal(number),
        };
        (keeper.stop().await, paused)
    }

    async fn note_end(&self, token: &Token, verdict: Verdict, facts: RunFacts, output: Option<LeaseName>) {
        let ran_for_ms = SystemClock.now().saturating_since(self.begun).as_millis() as u64;
        let (slot, epoch, tries) = (self.slot.filter(|_| self.recorded), token.epoch, self.tries);
        let noted = Noted { slot, epoch, exit: facts.exit, ran_for_ms, tries, usage: facts.usage, output };
        verdict.note(&self.coordinator, &self.plan.leases[0], noted).await;
    }
}

/// Skipped: one quiet line and a count.
async fn skip(coordinator: &Coordinator, plan: &Plan<'_>, slot: Option<Slot>, busy: Taken) -> Exit {
    let (why, event) = match &busy {
        Taken::Refused(lease, refusal, now) => {
            let event = match slot.filter(|_| !matches!(plan.slot, SlotPlan::Named(_))) {
                Some(slot) => slot::pass_over(coordinator, &plan.slot, lease, slot, refusal).await,
                None => Some(skip_event(refusal)),
            };
            (view::refusal_line(lease, refusal, *now), event)
        }
        Taken::FlockHeld(path) => {
            (format!("`{}` is flocked by another process", path.display()), Some(Event::SkippedOverlap))
        }
        Taken::Granted(..) => return Exit::Done,
    };
    report_skipped(coordinator, plan, &why, event).await
}

async fn report_skipped(coordinator: &Coordinator, plan: &Plan<'_>, why: &str, event: Option<Event>) -> Exit {
    if !plan.quiet {
        let waited = match plan.busy {
            Busy::Wait(limit) => format!(" after waiting for {}", leasehold_core::format_duration(limit)),
            Busy::Skip | Busy::RetryAfter(_) => String::new(),
        };
        let seats =
            if plan.leases.len() > 1 { format!(" all {} are taken;", plan.leases.len()) } else { String::new() };
        output::say(&format!("skipped{waited}:{seats} {why}"));
    }
    if let Some(event) = event {
        let _ = tokio::time::timeout(PATIENCE, coordinator.count(&plan.leases[0], event)).await;
    }
    Exit::Code(plan.settings.held_exit_code.value)
}

/// What the command finds in its environment beside the store, so that `leasehold write` inside it needs no flags.
fn environment(token: &Token, slot: Option<Slot>) -> Vec<(&'static str, String)> {
    // A slot's key is the same for each attempt to run it, whatever the epoch.
    let key =
        slot.map_or_else(|| format!("{}@{}", token.lease, token.epoch), |slot| idempotency_key(&token.lease, slot));
    let mut environment = vec![
        ("LEASEHOLD_NAME", token.lease.to_string()),
        ("LEASEHOLD_EPOCH", token.epoch.to_string()),
        ("LEASEHOLD_TOKEN", token.wire()),
        ("LEASEHOLD_IDEMPOTENCY_KEY", key),
    ];
    environment.extend(slot.map(|slot| ("LEASEHOLD_SLOT", slot_text(slot))));
    environment
}

/// The counter for a refusal.
pub fn skip_event(refusal: &Refusal) -> Event {
    match refusal {
        Refusal::Paused(_) => Event::Paused,
        Refusal::AlreadyRun(_) => Event::AlreadyRun,
        _ => Event::SkippedOverlap,
    }
}
