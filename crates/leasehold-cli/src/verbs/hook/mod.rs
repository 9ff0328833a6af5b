//! `hook`: what the host of an agent runs around each tool call, so that an agent that lost its task is stopped at the next.
//!
//! Hosts let a call pass when a hook crashes, takes too long or ends with a code they do not know. Promise: whatever happens, the
//! answer is the host's own JSON and exit code 0, or exit code 2 with the reason on standard error, within [`DEADLINE`]; and a
//! call passes only if the store confirms the lease, or cannot be asked while the lease is still trusted. Non-promise: a hook is
//! advisory. A host may not run it, and a call that has passed may still run when the lease is lost.

mod host;

use crate::args::{Hook as Args, HookHost};
use crate::context::Context;
use crate::exit::Exit;
use crate::run_context::RunContext;
use crate::supervise::settlement::is_temporary;
use host::{Event, Verdict};
use leasehold_core::clock::{Clock, Moment, SystemClock};
use leasehold_core::lease::protocol::Report;
use leasehold_core::{Marker, NamePattern, Result, Token, TokenState, printable};
use leasehold_system::sync::Mutex;
use std::io::{Read, Write};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Hosts are promised an answer within 2 s; a busy machine takes some of it to start us.
const DEADLINE: Duration = Duration::from_millis(1500);
/// How long the store may take.
const STORE: Duration = Duration::from_millis(1200);
/// The largest event.
const MAX_EVENT: u64 = 64 * 1024 * 1024;

pub async fn hook(context: &Context, args: &Args) -> Result<Exit> {
    let begun = SystemClock.now();
    let patterns = args.tools.iter().map(|text| text.parse()).collect::<Result<Vec<NamePattern>>>()?;
    let run = Arc::new(OnceLock::new());
    let answering = Arc::new(Mutex::new(Some(args.host)));
    watch_the_clock(begun, run.clone(), answering.clone())?;
    let verdict = match read_event().await {
        Ok(bytes) => match args.host.parse(&bytes) {
            Ok(Event::Before(tool)) if guards(&patterns, &tool) => judge(context, args, &run).await,
            Ok(Event::After(tool)) => {
                let _ = tokio::time::timeout(STORE, report(context, &tool)).await;
                Verdict::Allow
            }
            Ok(Event::Before(_) | Event::Other) => Verdict::Allow,
            Err(why) => Verdict::Deny(format!("leasehold does not understand the host's event, so it refuses: {why}")),
        },
        Err(why) => Verdict::Deny(format!("leasehold cannot read the host's event, so it refuses: {why}")),
    };
    Ok(answer(&answering, &verdict))
}

fn guards(patterns: &[NamePattern], tool: &str) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(tool))
}

/// Answers the host when the time is over. A thread of its own: a read of a disk that does not answer
/// holds up everything else.
fn watch_the_clock(
    begun: Moment,
    run: Arc<OnceLock<RunContext>>,
    answering: Arc<Mutex<Option<HookHost>>>,
) -> Result<()> {
    let watch = move || {
        std::thread::sleep(DEADLINE.saturating_sub(SystemClock.now().saturating_since(begun)));
        if answering.lock().is_none() {
            // The answer is known and nobody reads it.
            std::process::exit(i32::from(refused("the host does not read the answer of leasehold hook").code()));
        }
        let verdict = unconfirmed(run.get(), "no answer came in time");
        std::process::exit(i32::from(answer(&answering, &verdict).code()));
    };
    let started = std::thread::Builder::new().name("hook".into()).spawn(watch);
    started.map(drop).map_err(|e| leasehold_core::Error::unavailable("cannot watch the clock", e))
}

/// Prints the answer, unless that was done.
fn answer(answering: &Mutex<Option<HookHost>>, verdict: &Verdict) -> Exit {
    // Not held while it is written: nobody may be reading.
    let taken = answering.lock().take();
    let Some(host) = taken else { return Exit::Done };
    let mut out = std::io::stdout().lock();
    let printed = writeln!(out, "{}", host.answer(verdict)).and_then(|()| out.flush());
    match (printed, verdict) {
        (Ok(()), _) | (Err(_), Verdict::Allow) => Exit::Done,
        (Err(_), Verdict::Deny(reason)) => refused(reason),
    }
}

/// Runs the command so that no failure of its own lets a call pass.
pub fn fail_closed(command: impl FnOnce() -> Exit) -> Exit {
    std::panic::set_hook(Box::new(|panic| {
        let exit = refused(&format!("leasehold hook failed, so it refuses: {panic}"));
        std::process::exit(i32::from(exit.code()));
    }));
    match command() {
        Exit::Done => Exit::Done,
        exit if exit == Exit::Code(2) => exit,
        exit => refused(&format!("leasehold hook failed (code {}), so it refuses", exit.code())),
    }
}

/// Refuses by the exit code that every host takes for a refusal, with the reason that they want to see then.
pub fn refused(reason: &str) -> Exit {
    let _ = writeln!(std::io::stderr(), "{reason}");
    Exit::Code(2)
}

async fn read_event() -> std::io::Result<Vec<u8>> {
    let read = tokio::task::spawn_blocking(|| {
        let mut bytes = Vec::new();
        std::io::stdin().lock().take(MAX_EVENT + 1).read_to_end(&mut bytes)?;
        match bytes.len() as u64 > MAX_EVENT {
            true => Err(std::io::Error::other(format!("it has more than {MAX_EVENT} bytes"))),
            false => Ok(bytes),
        }
    });
    read.await.map_err(std::io::Error::other)?
}

/// Whether the session still holds its lease.
async fn judge(context: &Context, args: &Args, run: &OnceLock<RunContext>) -> Verdict {
    const STOP: &str = "Nothing was changed. Stop, and report that this task is no longer yours.";
    let token = match session(context) {
        Ok(Some((token, found))) => {
            // Only a store that was asked can fail to answer: what holds us up before that is not the store.
            if let Err(error) = context.settings() {
                return Verdict::Deny(format!("lease `{token}` cannot be confirmed: {error}. {STOP}"));
            }
            if let Some(found) = found {
                let _ = run.set(found);
            }
            token
        }
        // `run` set it, and whatever else it set did not come through.
        Ok(None) if std::env::var_os("LEASEHOLD_EPOCH").is_some_and(|epoch| !epoch.is_empty()) => {
            let what =
                "this session runs under a lease, but neither LEASEHOLD_CONTEXT nor LEASEHOLD_TOKEN came through";
            return Verdict::Deny(format!("{what}, so its tools are refused. Tell its owner."));
        }
        Ok(None) if args.allow_unleased => return Verdict::Allow,
        Ok(None) => {
            let how =
                "start it by `leasehold run NAME -- COMMAND`, or let unleased sessions pass with --allow-unleased";
            return Verdict::Deny(format!(
                "this session holds no lease, so its tools are refused. Tell its owner: {how}."
            ));
        }
        Err(error) => return Verdict::Deny(format!("leasehold cannot tell which lease this session holds: {error}")),
    };
    let asked = async { context.open_token(&token).await?.resolve().await };
    match tokio::time::timeout(STORE, asked).await {
        Ok(Ok(found)) => match &found.state {
            TokenState::Live(_) => Verdict::Allow,
            _ => Verdict::Deny(format!("{}. {STOP}", found.refusal(&token))),
        },
        Ok(Err(error)) if is_temporary(error.kind()) => unconfirmed(run.get(), &error.to_string()),
        Ok(Err(error)) => Verdict::Deny(format!("lease `{token}` cannot be confirmed: {error}. {STOP}")),
        Err(_) => unconfirmed(run.get(), "the store did not answer in time"),
    }
}

/// The store could not be asked: the last renewal still counts for a while.
fn unconfirmed(run: Option<&RunContext>, trouble: &str) -> Verdict {
    match run {
        Some(run) if run.is_trusted() => Verdict::Allow,
        Some(run) => Verdict::Deny(format!(
            "lease `{}` can no longer be trusted: it was not renewed in time, and {trouble}. Nothing was changed. Stop; somebody \
             else may have this task.",
            run.lease
        )),
        None => {
            Verdict::Deny(format!("the lease of this session cannot be confirmed: {trouble}. Nothing was changed."))
        }
    }
}

/// The session's token, and the context of its run. A context that is named but damaged is an error in any case.
fn session(context: &Context) -> Result<Option<(Token, Option<RunContext>)>> {
    match RunContext::named(context.common.context.as_deref())? {
        Some((run, _)) => Ok(Some((run.token()?, Some(run)))),
        None => Ok(context.variable_token()?.map(|token| (token, None))),
    }
}

/// Counts a tool call as progress.
async fn report(context: &Context, tool: &str) -> Result<()> {
    let Some((token, _)) = session(context)? else { return Ok(()) };
    let marker = Marker::named("marker", format!("tool {}", printable(tool))).ok();
    let report = Report { marker, checkpoint: None };
    context.open_token(&token).await?.tokens.progress(&token, report).await.map(drop)
}
