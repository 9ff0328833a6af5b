//! What a run is to do: arguments and settings, validated before the store is touched.

use super::after::Listeners;
use super::slot::SlotPlan;
use super::take::{Busy, Seats};
use crate::args::Run as Args;
use crate::config::{Settings, duration_of};
use crate::context::Context;
use crate::guards;
use crate::run_output::{self, Keep, Keeping};
use crate::supervise::settlement::{Noted, Verdict};
use crate::supervise::{Capture, Evidence, Feed, Gathered, Output, Piping, RunLimit, Standby};
use leasehold_core::guard::Guard;
use leasehold_core::{Ask, Coordinator, Distribution, Error, Kind, LeaseName, Result, Slot, Token};
use leasehold_guards::git::FenceNamespace;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The validated arguments.
pub struct Plan<'a> {
    pub leases: Vec<LeaseName>,
    pub seats: Seats,
    pub busy: Busy,
    pub progress: Option<(Duration, Evidence)>,
    pub keeping: Option<Keeping>,
    pub prefixes: bool,
    pub run_limit: Option<RunLimit>,
    pub spacing: Option<Duration>,
    pub guards: Vec<Arc<dyn Guard>>,
    pub fences: Option<FenceNamespace>,
    pub flock: Option<PathBuf>,
    pub adopt: Option<Token>,
    /// Whether a scheduler runs it.
    pub managed: bool,
    pub slot: SlotPlan,
    pub retries: u32,
    pub backoff: Duration,
    pub settings: &'a Settings,
    pub listeners: Listeners,
    /// Whether they want the last lines of the output.
    pub tells_output: bool,
    pub quiet: bool,
    pub command: Vec<OsString>,
}

impl<'a> Plan<'a> {
    pub fn new(context: &'a Context, args: Args) -> Result<Self> {
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
        let adopt = if args.slot.adopt {
            Some(context.token(None)?)
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
        let fences = guards::fence_namespace(&args.fence_namespace)?;
        let namespace = fences.clone().unwrap_or_default();
        if adopt.is_none() {
            settings.deadlines(settings.ttl.value)?;
        }
        let max_runtime = duration_of("--max-runtime", args.max_runtime.as_deref())?;
        // A job's table has another word for it.
        let setting = if args.slot.is_of_job() { "`timeout`" } else { "--max-runtime" };
        let listeners = Listeners::new(&args.ping, settings)?;
        Ok(Plan {
            tells_output: listeners.want_output(&leases, settings),
            leases,
            seats: if args.limit.is_some() { Seats::OfOneLease } else { Seats::Apart },
            busy,
            progress: progress_timeout.map(|timeout| (timeout, Evidence::new(output, args.progress_file))),
            keeping: if args.keep_output { settings.keeping_or_say() } else { None },
            prefixes: args.prefix_output,
            run_limit: max_runtime.map(|longest| RunLimit { longest, setting }),
            spacing: duration_of("--min-interval", args.min_interval.as_deref())?,
            guards: args.guard.iter().map(|text| guards::parse_with(text, &namespace)).collect::<Result<_>>()?,
            fences,
            flock: args.also_flock,
            adopt,
            managed: args.slot.adopt,
            slot: SlotPlan::new(&args.slot)?,
            retries: args.slot.retries,
            backoff: duration_of("--backoff", args.slot.backoff.as_deref())?.unwrap_or(Duration::from_secs(10)),
            settings,
            listeners,
            quiet: args.quiet,
            command: args.command,
        })
    }

    /// Whether the dead-man may be started before the lease is acquired. Not if it may be a long wait, and not if the command
    /// is to inherit a flock that is taken after the lease.
    pub fn stands_by_early(&self) -> bool {
        self.flock.is_none() && matches!(self.busy, Busy::Skip) && !matches!(self.slot, SlotPlan::Newest(..))
    }

    pub async fn open<'c>(&self, context: &'c Context) -> Result<&'c Coordinator> {
        match &self.adopt {
            Some(_) => context.granting().await,
            None => context.coordinator().await,
        }
    }

    /// Gives back what a request may have been granted that was on its way, or the lease that was to be taken up: nothing was
    /// run under it, and its slot stays open.
    pub async fn give_back(&self, coordinator: &Coordinator, ask: &Ask, slot: Option<Slot>) {
        let Some(token) = &self.adopt else {
            let _ = coordinator.withdraw(&self.leases, ask).await;
            return;
        };
        let verdict = Verdict::NotStarted;
        if coordinator.release_by_token(token, verdict.row().0).await.is_ok() {
            let (epoch, renewals) = (token.epoch, Distribution::default());
            let (usage, output, why) = (None, None, Some("it was told to end before it began".to_owned()));
            let noted = Noted { slot, epoch, exit: None, ran_for_ms: 0, tries: 0, renewals, usage, output, why };
            verdict.note(coordinator, &token.lease, noted).await;
        }
    }

    /// Begins to keep the output of a run, and to collect its last lines for notifications.
    pub fn gather(&self, token: &Token) -> (Option<Keep>, Option<Gathered>) {
        let keep = self.keeping.as_ref().map(|keeping| keeping.begin(token));
        let gathered = keep.as_ref().map(|keep| keep.gathered.clone());
        (keep, gathered.or_else(|| self.tells_output.then(|| Gathered::new(None))))
    }

    /// What becomes of the output of a run under this lease; none if it does not pass through us.
    pub fn capture(&self, lease: &LeaseName, gathered: Option<&Gathered>) -> Option<Capture> {
        self.pipes_output().then(|| {
            let evidence = self.progress.as_ref().map(|(_, evidence)| evidence.clone());
            let prefix = self.prefixes.then(|| run_output::prefix(lease));
            Capture { evidence, prefix, gathered: gathered.cloned() }
        })
    }

    /// Whether the command's output passes through us.
    fn pipes_output(&self) -> bool {
        let is_evidence = self.progress.as_ref().is_some_and(|(_, evidence)| evidence.wants_output());
        self.prefixes || self.keeping.is_some() || self.tells_output || is_evidence
    }

    pub fn stand_by(&self) -> Result<Standby> {
        let output = if self.pipes_output() { Piping::Piped } else { Piping::Inherited };
        Standby::start(self.command.clone(), &self.settings.store.value.portable(), Feed { output, ..Feed::default() })
    }
}
