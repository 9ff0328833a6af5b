//! `drill`: a fire drill on the user's own resource, in a scratch name beside it. A holder is stopped in the middle of a
//! write, the lease is transferred, the zombie is resumed; every stale write must be refused.
//!
//! Promise: the writers are processes of their own that know nothing but their token, so that only the guard can refuse
//! them; what was made is removed again, also if a signal ends it. Non-promise: it shows one course of events; the races
//! are in our tests.

mod target;

use crate::args::Drill as Args;
use crate::context::Context;
use crate::exit::Exit;
use crate::interrupt::{Interruption, Stop, Watch, exit_by};
use crate::patience::Patience;
use crate::{guards, output};
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::guard::{Guard, HighWater, Strength};
use leasehold_core::lease::protocol::Order;
use leasehold_core::{
    Acquired, Ask, Coordinator, Error, HolderId, Kind, LeaseName, MemoryStore, Nonce, Operated, Result, Token,
};
use leasehold_guards::git::SCRATCH;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use target::{Target, Writer};
use tokio::runtime::Handle;

/// How long a writer that nobody stops may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// The whole drill, where `--timeout` says nothing.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Removing what was made, after a drill that ended early: most likely nobody answers then.
const CLEANING: Duration = Duration::from_secs(30);

/// The result that an attempt must have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// The write must be admitted.
    Pass,
    /// Be refused as stale.
    Fail,
    /// Be refused as of a store that went back in time.
    Alarm,
}

/// One line of the table.
struct Attempt {
    what: String,
    expected: Expected,
    came: String,
    is_expected: bool,
    took: Duration,
}

pub async fn drill(context: &Context, args: &Args) -> Result<Exit> {
    let number = Nonce::random().to_string();
    let lease: LeaseName = format!("{SCRATCH}{}", &number[..8]).parse()?;
    let namespace = guards::fence_namespace(&args.fence_namespace)?.unwrap_or_default();
    let target = Target::parse(&args.guard, &number[..8], namespace)?;
    let patience = Patience::from_flag(args.timeout.as_deref(), TIMEOUT, format!("{target} (the drill is set up)"))?;
    if !context.common.json {
        output::say(&format!("drill on {target}"));
    }
    let mut watch = Watch::begin()?;
    let (scratch, own) = (lease.clone(), patience.clone());
    let ((target, held), cut) =
        watch.run_blocking(0, &patience, move |stop| hold(target, &scratch, stop, &own)).await?;
    let (target, cleaned, cut) = tidy_up(&mut watch, target, &lease, cut, patience.limit()).await?;
    if let Some(cut) = cut {
        if let Err(error) = &cleaned {
            output::say(&format!("not everything could be removed: {error}"));
        }
        return match cut {
            Interruption::Signal(number) => Ok(exit_by(number)),
            Interruption::TimedOut => Err(patience.gave_up(Kind::Unavailable)),
        };
    }
    let (strength, attempts) = held?;
    let is_safe = attempts.iter().all(|attempt| attempt.is_expected);
    if context.common.json {
        let rows: Vec<_> = attempts.iter().map(Attempt::json).collect();
        output::json(&json!({ "resource": target.to_string(), "strength": strength.to_string(), "safe": is_safe,
                              "attempts": rows }))?;
    } else {
        table(&attempts);
        let verdict = if is_safe {
            "every stale write was refused, and no new holder was held up by the one that was stopped"
        } else {
            "THIS RESOURCE IS NOT SAFE behind this guard: see the lines above that say WRONG"
        };
        output::line(verdict)?;
    }
    cleaned?;
    Ok(if is_safe { Exit::Done } else { Exit::Misconfigured })
}

/// Holds the drill, in a thread that may block, until it is over or is asked to stop.
fn hold(
    mut target: Target,
    lease: &LeaseName,
    stop: Stop,
    patience: &Patience,
) -> (Target, Result<(Strength, Vec<Attempt>)>) {
    target.stop_when(stop.clone());
    let held = unless_told(stop, async {
        target.prepare().await?;
        let guard = target.guard()?;
        Ok((guard.strength(), attempts(&Drill { target: &target, guard: &*guard, patience }, lease).await?))
    });
    (target, held)
}

/// Removes what the drill made. The first signal, now or before, does not keep it from that.
async fn tidy_up(
    watch: &mut Watch,
    target: Target,
    lease: &LeaseName,
    cut: Option<Interruption>,
    limit: Duration,
) -> Result<(Target, Result<()>, Option<Interruption>)> {
    // One who has no time for the drill has none for a remote that is silent when it is cleaned up either.
    let limit = if cut.is_some() { CLEANING.min(limit) } else { TIMEOUT };
    let patience = Patience::new(limit, format!("{target} (what the drill made is removed)"));
    let clean = |target: Target| {
        let name = lease.clone();
        move |stop| (unless_told(stop, target.clean(&name)), target)
    };
    let ((cleaned, target), now) = watch.run_blocking(u32::from(cut.is_none()), &patience, clean(target)).await?;
    if now == Some(Interruption::TimedOut) {
        return Ok((target, cleaned.map_err(|_| patience.gave_up(Kind::Unavailable)), cut));
    }
    if cut.is_some() || now.is_none() || cleaned.is_ok() {
        return Ok((target, cleaned, cut.or(now)));
    }
    // A key reaches the processes that clean up, too: once more.
    let ((cleaned, target), _) = watch.run_blocking(0, &patience, clean(target)).await?;
    Ok((target, cleaned, now))
}

fn unless_told<T>(mut stop: Stop, work: impl Future<Output = Result<T>>) -> Result<T> {
    Handle::current().block_on(async {
        tokio::select! {
            biased;
            _ = stop.wait_for(|told| *told) => Err(target::told_to_end()),
            done = work => done,
        }
    })
}

async fn attempts(drill: &Drill<'_>, lease: &LeaseName) -> Result<Vec<Attempt>> {
    // Report a resource that is invalid or unreachable before anything is written.
    drill.high_water().await?;
    // Grants as a store gives them. The writers do not see this store, so it warns none of them.
    let leases = Coordinator::new(Arc::new(MemoryStore::default()));
    let (one, two) = (grant(&leases, lease).await?, hand_off(&leases, lease).await?);
    let forged = Token { nonce: Nonce::random(), ..two.clone() };
    let first = drill.written(&one, "the first holder writes", Expected::Pass)?;
    if !first.is_expected {
        // Nobody can write here at all, so there is nothing to be learned about stale writers.
        return Err(Error::new(
            Kind::Unsupported,
            format!("nothing was drilled: the first write ended with {}", first.came),
        ));
    }
    let mut attempts = vec![first];
    drill.at("it is about to be stopped in the middle of a write");
    let stopped = Writer::stopped(drill.target, &one)?;
    attempts.push(
        drill.sealed(&two, "it is stopped in the middle of a write; the next holder seals", Expected::Pass).await,
    );
    attempts.push(drill.written(&two, "and writes", Expected::Pass)?);
    let started = SystemClock.now();
    drill.at("the zombie ends its write");
    let ended = stopped.resume(PATIENCE)?;
    attempts.push(Attempt::new("the zombie is resumed and ends its write", Expected::Fail, &ended, started));
    attempts.push(drill.written(&one, "it writes again, from the start", Expected::Fail)?);
    attempts.push(drill.sealed(&one, "it seals", Expected::Fail).await);
    let what = "another grant of the new epoch writes, as after a store was restored";
    attempts.push(drill.written(&forged, what, Expected::Alarm)?);
    attempts.push(drill.written(&two, "the next holder writes once more", Expected::Pass)?);
    let high = drill.high_water().await?;
    let is_expected = high.as_ref().is_some_and(|high| high.epoch == two.epoch && high.nonce == two.nonce);
    let came = high.map_or_else(|| "no epoch".to_owned(), |high| format!("epoch {}", high.epoch));
    attempts.push(Attempt::fact("the guard remembers", came, is_expected));
    if let Some(content) = drill.target.read()? {
        let content = content.trim_end().to_owned();
        let is_expected = content == target::text(&two);
        attempts.push(Attempt::fact("what is there is", content, is_expected));
    }
    Ok(attempts)
}

async fn grant(leases: &Coordinator, lease: &LeaseName) -> Result<Token> {
    match leases.acquire(lease, &Ask::new(HolderId::new(None), "1h".parse()?)).await? {
        Acquired::Granted(grant) => Ok(grant.token().clone()),
        Acquired::Refused { refusal, .. } => {
            Err(Error::new(Kind::Lost, format!("a new lease was refused: {refusal:?}")))
        }
    }
}

async fn hand_off(leases: &Coordinator, lease: &LeaseName) -> Result<Token> {
    let order = Order::HandOff { to: HolderId::new(None), ttl: "1h".parse()? };
    match leases.operate(lease, "leasehold".parse()?, "drill".parse()?, order).await? {
        Operated::HandedOff(grant) => Ok(grant.token().clone()),
        other => Err(Error::new(Kind::Lost, format!("a new lease was not handed off: {other:?}"))),
    }
}

/// What is drilled, and how long it may take.
struct Drill<'a> {
    target: &'a Target,
    guard: &'a dyn Guard,
    patience: &'a Patience,
}

impl Drill<'_> {
    /// What is waited for from now on.
    fn at(&self, what: &str) {
        self.patience.at(format!("{} ({what})", self.target));
    }

    async fn high_water(&self) -> Result<Option<HighWater>> {
        self.at("the guard is asked what it remembers");
        self.guard.high_water().await
    }

    fn written(&self, token: &Token, what: &str, expected: Expected) -> Result<Attempt> {
        self.at(what);
        let started = SystemClock.now();
        let ended = Writer::start(self.target, token, &target::text(token))?.wait(PATIENCE)?;
        Ok(Attempt::new(what, expected, &ended, started))
    }

    async fn sealed(&self, token: &Token, what: &str, expected: Expected) -> Attempt {
        self.at(what);
        let started = SystemClock.now();
        let ended = match self.guard.seal(token).await {
            Ok(_) => target::Ended { code: 0, said: String::new() },
            Err(error) => target::Ended { code: i32::from(Exit::from(&error).code()), said: error.to_string() },
        };
        Attempt::new(what, expected, &ended, started)
    }
}

impl Attempt {
    fn new(what: &str, expected: Expected, ended: &target::Ended, started: leasehold_core::clock::Moment) -> Self {
        let is_regressed = ended.said.contains("store regressed");
        let (is_expected, came) = match (expected, ended.code) {
            (Expected::Pass, 0) => (true, "admitted".to_owned()),
            (Expected::Fail, 13) => (true, "refused".to_owned()),
            (Expected::Alarm, code) if code != 0 && is_regressed => (true, "refused: store regressed".to_owned()),
            (_, 0) => (false, "admitted".to_owned()),
            (_, code) => (false, format!("exit {code}: {}", ended.said)),
        };
        Attempt {
            what: what.to_owned(),
            expected,
            came,
            is_expected,
            took: SystemClock.now().saturating_since(started),
        }
    }

    /// What was found in the end.
    fn fact(what: &str, came: String, is_expected: bool) -> Self {
        Attempt { what: what.to_owned(), expected: Expected::Pass, came, is_expected, took: Duration::ZERO }
    }

    fn json(&self) -> serde_json::Value {
        let expected = match self.expected {
            Expected::Pass => "admitted",
            Expected::Fail => "refused",
            Expected::Alarm => "regressed",
        };
        let took_ms = u64::try_from(self.took.as_millis()).unwrap_or(u64::MAX);
        json!({ "what": self.what, "should_be": expected, "came": self.came, "right": self.is_expected, "took_ms": took_ms })
    }
}

fn table(attempts: &[Attempt]) {
    let width = attempts.iter().map(|attempt| attempt.what.chars().count()).max().unwrap_or(0);
    for attempt in attempts {
        let mark = if attempt.is_expected { "ok   " } else { "WRONG" };
        let took = if attempt.took.is_zero() { String::new() } else { format!("  ({} ms)", attempt.took.as_millis()) };
        let _ = output::line(&format!("{mark}  {:width$}  {}{took}", attempt.what, attempt.came));
    }
}
