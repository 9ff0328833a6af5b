//! `doctor`: does this store, and this folder, keep their promises?
//!
//! Everything is tried in a scratch record and a scratch folder, which are removed again.

use super::coordinator;
use crate::args::{Common, Doctor as Args};
use crate::config::Settings;
use crate::exit::Exit;
use crate::output;
use leasehold::clock::{Clock, SystemClock};
use leasehold::guard::{Guard, Policy};
use leasehold::store::{Class, ClockSource, Reach, Store, Swap, Watching};
use leasehold::{Epoch, Error, Key, Kind, LeaseName, Nonce, Result, Shelf, Timestamp, Token, format_duration};
use leasehold_guards::{FileGuard, Step, Steps};
use leasehold_stores::StoreUrl;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// The first argument that makes this binary a contender in the race. Not for people.
pub const CONTENDER: &str = "__contend";
const CONTENDERS: u32 = 4;
const WINS_EACH: u32 = 25;
/// A contender gives up after so many attempts: a store that never lets it win must not hang the doctor.
const MAX_ATTEMPTS: u32 = 20_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Good,
    Note,
    Bad,
}

#[derive(Debug)]
struct Finding {
    verdict: Verdict,
    what: &'static str,
    detail: String,
}

fn finding(verdict: Verdict, what: &'static str, detail: impl Into<String>) -> Finding {
    Finding { verdict, what, detail: detail.into() }
}

pub async fn doctor(common: &Common, args: &Args) -> Result<Exit> {
    let settings = Settings::gather(common)?;
    if let Some(folder) = args.folder.as_ref().filter(|folder| !folder.is_dir()) {
        return Err(Error::invalid("--folder", folder.display(), "it is not a folder"));
    }
    let coordinator = coordinator(&settings).await?;
    let store = coordinator.store().clone();
    let mut findings = vec![finding(Verdict::Good, "store", settings.store.value.to_string())];
    findings.extend(describe(&*store));
    findings.push(clock(&*store).await?);
    let key = Key::new(Shelf::Probe, &LeaseName::new(format!("doctor/{}", Nonce::random()))?);
    findings.extend(swaps(&*store, &key).await?);
    findings.push(race(&settings.store.value, &*store, &key).await?);
    if let Some(value) = store.read(&key).await?.value {
        store.erase(&key, &value.revision).await?;
    }
    findings.push(records(&coordinator).await?);
    if let Some(folder) = &args.folder {
        findings.extend(guard(folder).await?);
    }
    report(common, &findings)
}

fn report(common: &Common, findings: &[Finding]) -> Result<Exit> {
    let word = |verdict| match verdict {
        Verdict::Good => "ok",
        Verdict::Note => "note",
        Verdict::Bad => "bad",
    };
    let sound = findings.iter().all(|f| f.verdict != Verdict::Bad);
    if common.json {
        let checks: Vec<Value> = findings
            .iter()
            .map(|f| json!({ "check": f.what, "verdict": word(f.verdict), "detail": f.detail }))
            .collect();
        output::json(&json!({ "sound": sound, "checks": checks }))?;
    } else {
        let rows: Vec<Vec<String>> =
            findings.iter().map(|f| vec![word(f.verdict).into(), f.what.into(), f.detail.clone()]).collect();
        output::print(&output::table(&rows))?;
    }
    if sound {
        return Ok(Exit::Done);
    }
    Err(Error::new(Kind::Unsupported, "not fit for leases: see the lines marked `bad`, and docs/guarantees.md"))
}

fn describe(store: &dyn Store) -> Vec<Finding> {
    let can = store.capabilities();
    let class = match can.class {
        Class::A => finding(Verdict::Good, "class", "A: epochs rise through crash and failover"),
        Class::B => finding(
            Verdict::Note,
            "class",
            "B: an epoch may be issued again after a failover; guards still hold by the grant's nonce",
        ),
    };
    let reach = match can.reach {
        Reach::Process => "one process",
        Reach::Host => "all processes of this machine; for several machines use a dir: store on a shared folder",
        Reach::Network => "every machine that reaches it",
    };
    let watch = match can.watch {
        Watching::Hints => "waiters are woken by the store",
        Watching::None => "waiters look once a second",
    };
    vec![
        class,
        finding(Verdict::Good, "reach", reach),
        finding(Verdict::Good, "durability", can.durability),
        finding(Verdict::Good, "waiting", watch),
    ]
}

async fn clock(store: &dyn Store) -> Result<Finding> {
    let (grain, source) = match store.capabilities().clock {
        ClockSource::Store { grain } => (grain, "the store's own"),
        ClockSource::Local { margin } => (margin, "each machine's own, with a margin"),
    };
    let key = Key::new(Shelf::Probe, &LeaseName::new("doctor/clock")?);
    let mut last: Option<Timestamp> = None;
    for _ in 0..20 {
        let now = store.read(&key).await?.now;
        if let Some(last) = last.filter(|last| now.plus(grain) < *last) {
            let detail = format!("it went back by {}", format_duration(last.saturating_since(now)));
            return Ok(finding(Verdict::Bad, "clock", detail));
        }
        last = Some(now);
    }
    let local = Timestamp::from_millis(leasehold_system::clock::wall_ms());
    let now = last.unwrap_or(local);
    let (ahead, by) =
        if now > local { ("ahead of", now.saturating_since(local)) } else { ("behind", local.saturating_since(now)) };
    let detail = format!(
        "{source}, exact to {}, {} {ahead} this machine's (which does not matter)",
        format_duration(grain),
        format_duration(by)
    );
    Ok(finding(Verdict::Good, "clock", detail))
}

/// One by one: a swap needs the revision, and an old revision never wins.
async fn swaps(store: &dyn Store, key: &Key) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let done = |swap: Swap| match swap {
        Swap::Done { revision, .. } => Some(revision),
        Swap::Mismatch => None,
    };
    let started = SystemClock.now();
    let first = done(store.swap(key, None, b"0").await?);
    let took = SystemClock.now().saturating_since(started);
    let Some(first) = first else {
        return Ok(vec![finding(Verdict::Bad, "compare and swap", "a fresh name could not be written")]);
    };
    let second = done(store.swap(key, Some(&first), b"0").await?);
    let stale = done(store.swap(key, Some(&first), b"9").await?).is_some();
    let again = done(store.swap(key, None, b"9").await?).is_some();
    findings.push(match (second, stale, again) {
        (Some(_), false, false) => {
            finding(Verdict::Good, "compare and swap", format!("enforced; a write takes {}", milliseconds(took)))
        }
        (None, ..) => finding(Verdict::Bad, "compare and swap", "the right revision was refused"),
        _ => finding(Verdict::Bad, "compare and swap", "a write with an old revision was accepted"),
    });
    let started = SystemClock.now();
    store.read(key).await?;
    findings.push(finding(
        Verdict::Good,
        "round trip",
        format!("a read takes {}", milliseconds(SystemClock.now().saturating_since(started))),
    ));
    Ok(findings)
}

/// Every record can be read back.
async fn records(coordinator: &leasehold::Coordinator) -> Result<Finding> {
    const PAGE: usize = 500;
    let (mut sound, mut damaged, mut after) = (0, Vec::new(), None);
    loop {
        let page = coordinator.list(after.as_ref(), PAGE).await?;
        after = page.entries.last().map(|(name, _)| name.clone());
        for (name, record) in page.entries {
            match record {
                Ok(_) => sound += 1,
                Err(_) => damaged.push(name.to_string()),
            }
        }
        if !page.more {
            break;
        }
    }
    Ok(if damaged.is_empty() {
        finding(Verdict::Good, "records", format!("{sound} can be read"))
    } else {
        finding(Verdict::Bad, "records", format!("{sound} can be read, damaged are: {}", damaged.join(", ")))
    })
}

fn milliseconds(duration: Duration) -> String {
    format!("{:.2} ms", duration.as_secs_f64() * 1000.0)
}

/// Real processes count up one record; every win must show in the final count.
async fn race(url: &StoreUrl, store: &dyn Store, key: &Key) -> Result<Finding> {
    let cannot = |e: std::io::Error| Error::unavailable("cannot start the racing processes", e);
    let program = std::env::current_exe().map_err(cannot)?;
    let start = |_| {
        Command::new(&program)
            .args([CONTENDER, key.name.as_str()])
            .env("LEASEHOLD_STORE", url.portable())
            .stdout(Stdio::piped())
            .spawn()
    };
    let contenders = (0..CONTENDERS).map(start).collect::<std::io::Result<Vec<_>>>().map_err(cannot)?;
    let mut wins = 0;
    for contender in contenders {
        let output = contender.wait_with_output().map_err(cannot)?;
        match String::from_utf8_lossy(&output.stdout).trim().parse::<u32>() {
            Ok(own) if output.status.success() => wins += own,
            _ => return Ok(finding(Verdict::Bad, "race", "a racing process failed: see its message above")),
        }
    }
    let count = store.read(key).await?.value.and_then(|v| String::from_utf8_lossy(&v.bytes).parse::<u32>().ok());
    let detail = format!("{CONTENDERS} processes won {wins} swaps, the record counted {}", count.unwrap_or(0));
    let sound = count == Some(wins) && wins == CONTENDERS * WINS_EACH;
    Ok(finding(if sound { Verdict::Good } else { Verdict::Bad }, "race", detail))
}

/// Runs as a contender, with the arguments after [`CONTENDER`], and prints how often it won.
pub fn contend(args: &[OsString]) -> ExitCode {
    let count = || -> Result<u32> {
        let name = args.first().and_then(|a| a.to_str()).unwrap_or_default();
        let key = Key::new(Shelf::Probe, &LeaseName::new(name)?);
        let url: StoreUrl = std::env::var("LEASEHOLD_STORE").unwrap_or_default().parse()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| Error::unavailable("cannot start", e))?;
        runtime.block_on(async {
            let store = leasehold_stores::open(&url).await?;
            let mut wins = 0;
            for _ in 0..MAX_ATTEMPTS {
                let Some(value) = store.read(&key).await?.value else { break };
                let seen: u32 = String::from_utf8_lossy(&value.bytes).parse().unwrap_or(0);
                let next = (seen + 1).to_string();
                if let Swap::Done { .. } = store.swap(&key, Some(&value.revision), next.as_bytes()).await? {
                    wins += 1;
                }
                if wins == WINS_EACH {
                    break;
                }
            }
            Ok(wins)
        })
    };
    match count() {
        Ok(wins) => {
            let _ = output::line(&wins.to_string());
            ExitCode::SUCCESS
        }
        Err(error) => {
            output::say(&error.to_string());
            Exit::from(&error).into()
        }
    }
}

/// The file guard on the user's own folder: a writer that passed its check and is overtaken must not publish.
async fn guard(folder: &Path) -> Result<Vec<Finding>> {
    let scratch = folder.join(format!(".leasehold-doctor-{}", Nonce::random()));
    std::fs::create_dir(&scratch)
        .map_err(|e| Error::new(Kind::Unsupported, format!("cannot write in `{}`", folder.display())).with_source(e))?;
    let findings = overtake(&scratch).await;
    let removed = std::fs::remove_dir_all(&scratch);
    let mut findings = findings?;
    if let Err(error) = removed {
        findings.push(finding(Verdict::Note, "scratch folder", format!("could not be removed: {error}")));
    }
    Ok(findings)
}

async fn overtake(scratch: &Path) -> Result<Vec<Finding>> {
    let target = scratch.join("probe");
    let token = |epoch| -> Result<Token> {
        Ok(Token { lease: LeaseName::new("doctor")?, epoch: Epoch::new(epoch)?, nonce: Nonce::random(), seq: 0 })
    };
    let (old, new) = (token(1)?, token(2)?);
    let plain = FileGuard::new(&target, Policy::Reentrant)?;
    let overtaken = FileGuard::new(&target, Policy::Reentrant)?
        .with_steps(Arc::new(Overtaker { guard: FileGuard::new(&target, Policy::Reentrant)?, new: new.clone() }));
    let stale = overtaken.write_from(&old, &b"stale"[..]);
    let seen = std::fs::read(&target).unwrap_or_default();
    let late = plain.write_from(&old, &b"stale"[..]);
    let high = plain.high_water().await?;
    let refused = |result: &Result<_>| matches!(result, Err(error) if error.kind() == Kind::Fenced);
    let sound = refused(&stale)
        && refused(&late)
        && seen == b"new"
        && std::fs::read(&target).unwrap_or_default() == b"new"
        && high.is_some_and(|high| high.epoch == new.epoch);
    let detail = if sound {
        format!("{}: a writer that was overtaken between check and publish was refused", plain.strength())
    } else {
        "a stale write was not refused: this file system does not rename and remove as POSIX says".into()
    };
    Ok(vec![finding(if sound { Verdict::Good } else { Verdict::Bad }, "file guard", detail)])
}

/// Lets a newer epoch write at the worst moment: when the old one is about to publish.
#[derive(Debug)]
struct Overtaker {
    guard: FileGuard,
    new: Token,
}

impl Steps for Overtaker {
    fn reach(&self, step: Step) -> std::io::Result<()> {
        if step == Step::Publish {
            self.guard.write_from(&self.new, &b"new"[..]).map_err(std::io::Error::other)?;
        }
        Ok(())
    }
}
