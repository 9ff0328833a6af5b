//! `doctor`: do this store, this machine and this folder keep their promises?
//!
//! Everything is tried in a scratch namespace of its own, which is emptied again; the user's leases are only looked at.

mod guard;
mod processes;
mod race;
mod scratch;
mod spool;
mod store;

pub use race::{CONTENDER, contend};

use crate::args::Doctor as Args;
use crate::context::{Context, moved_to, open_store};
use crate::exit::Exit;
use crate::interrupt::{Interruption, Watch, exit_by};
use crate::output;
use crate::patience::Patience;
use crate::table::Column::{State, Text, Whole};
use crate::table::table;
use leasehold_core::relocation::Address;
use leasehold_core::store::Reach;
use leasehold_core::{Error, Kind, Result};
use leasehold_stores::StoreUrl;
use scratch::Scratch;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// The whole examination, where `--timeout` says nothing: as long as the doctor's lease on that namespace.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Emptying the scratch namespace.
const CLEARING: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Good,
    Note,
    Bad,
}

#[derive(Debug, Clone)]
struct Finding {
    verdict: Verdict,
    what: String,
    detail: String,
}

fn finding(verdict: Verdict, what: impl Into<String>, detail: impl Into<String>) -> Finding {
    Finding { verdict, what: what.into(), detail: detail.into() }
}

pub async fn doctor(context: &Context, args: &Args) -> Result<Exit> {
    if let Some(url) = args.url.as_deref().filter(|url| url.starts_with("spool:")) {
        return report(context, &spool::examine(context, url).await?, "work on this spool", None);
    }
    let url: StoreUrl = match &args.url {
        Some(url) => url.parse()?,
        None => context.settings()?.store.value.clone(),
    };
    if url.scheme() == "remote" {
        let message = "a server cannot be examined from outside: its promises are those of the store behind it; run doctor there, with that store's own URL";
        return Err(Error::new(Kind::Unsupported, message));
    }
    if let Some(folder) = args.folder.as_ref().filter(|folder| !folder.is_dir()) {
        return Err(Error::invalid("--folder", folder.display(), "it is not a folder"));
    }
    let patience = Patience::from_flag(args.timeout.as_deref(), TIMEOUT, format!("`{url}`"))?;
    // Where processes cannot be watched over is one of the findings; those of the race end with their handles.
    let (mut watch, shared) = (Watch::begin_anyway()?, SharedScratch::default());
    let examined = watch.run(&patience, examine(&url, args, &patience, &shared)).await;
    let left = clear(&mut watch, &shared).await;
    match examined {
        Ok(examined) => {
            let Examined { findings, reach, moved } = examined?;
            let purpose = if reach == Reach::Host { "leases between processes of this machine" } else { "leases" };
            report(context, &[findings, left].concat(), purpose, moved.as_deref())
        }
        Err(cut) => {
            left.iter().for_each(|left| output::say(&left.detail));
            match cut {
                Interruption::Signal(number) => Ok(exit_by(number)),
                Interruption::TimedOut => Err(patience.gave_up(Kind::Unavailable)),
            }
        }
    }
}

/// The scratch namespace, once there is one. Locked while it is being made.
type SharedScratch = Arc<Mutex<Option<Scratch>>>;

/// The findings about one store.
struct Examined {
    findings: Vec<Finding>,
    /// Who can share the store's leases.
    reach: Reach,
    /// The store that everything here has moved to.
    moved: Option<String>,
}

/// Everything that is looked at and tried. The scratch namespace is left in `shared`.
async fn examine(url: &StoreUrl, args: &Args, patience: &Patience, shared: &SharedScratch) -> Result<Examined> {
    let coordinator = open_store(url).await?;
    let mut findings = vec![finding(Verdict::Good, "store", url.to_string())];
    findings.extend(store::describe(&**coordinator.store()).await?);
    findings.push(store::clock(&**coordinator.store()).await?);
    findings.extend(store::migration(&**coordinator.store()).await?);
    findings.extend(store::records(&coordinator, &Address::named("store", url.to_string())?).await?);
    patience.at(format!("a scratch namespace in `{url}`"));
    let scratch = set_up(url.clone(), shared.clone()).await?;
    findings.push(store::round_trips(&scratch).await?);
    patience.at(format!("the promises that are tested on `{url}`"));
    findings.extend(store::promises(&scratch).await);
    patience.at(format!("processes that race on `{url}`"));
    findings.push(race::race(&scratch).await?);
    findings.push(processes::processes()?);
    if let Some(folder) = &args.folder {
        patience.at(format!("the folder `{}`", folder.display()));
        findings.extend(guard::guard(folder.clone()).await?);
    }
    let (reach, moved) = (coordinator.store().capabilities().reach, moved_to(&coordinator).await);
    Ok(Examined { findings, reach, moved })
}

/// Makes the scratch namespace, even if the caller stops waiting: a lease that was granted and is known to nobody would keep the
/// next doctor out.
async fn set_up(url: StoreUrl, shared: SharedScratch) -> Result<Scratch> {
    let making = tokio::spawn(async move {
        let mut scratch_slot = shared.lock().await;
        let scratch = Scratch::set_up(&url).await?;
        Ok(scratch_slot.insert(scratch).clone())
    });
    making.await.map_err(|e| Error::new(Kind::Unavailable, "the scratch namespace could not be made").with_source(e))?
}

/// Empties the scratch namespace, and says what could not be taken away.
async fn clear(watch: &mut Watch, shared: &SharedScratch) -> Vec<Finding> {
    let clearing = async {
        match shared.lock().await.take() {
            Some(scratch) => scratch.clear().await,
            None => Ok(()),
        }
    };
    let patience = Patience::new(CLEARING, "the scratch namespace to be emptied");
    let why = match watch.run(&patience, clearing).await {
        Ok(Ok(())) => return Vec::new(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "there was no answer in time; the next doctor does it".to_owned(),
    };
    vec![finding(Verdict::Note, "scratch", format!("not everything could be removed: {why}"))]
}

fn report(context: &Context, findings: &[Finding], purpose: &str, moved: Option<&str>) -> Result<Exit> {
    let word = |verdict| match verdict {
        Verdict::Good => "ok",
        Verdict::Note => "note",
        Verdict::Bad => "bad",
    };
    let sound = findings.iter().all(|f| f.verdict != Verdict::Bad);
    let check = |f: &Finding| json!({ "check": f.what, "verdict": word(f.verdict), "detail": f.detail });
    let row = |f: &Finding| vec![word(f.verdict).into(), f.what.clone(), f.detail.clone()];
    context.print(
        || json!({ "sound": sound, "checks": findings.iter().map(check).collect::<Vec<Value>>() }),
        || {
            format!(
                "{}{}",
                table(&[State(""), Whole(""), Text("")], findings.iter().map(row)),
                verdict_line(findings, purpose, moved)
            )
        },
    )?;
    if sound {
        return Ok(Exit::Done);
    }
    let message = format!("not fit for {purpose}: see the lines marked `bad`, and docs/guarantees.md");
    Err(Error::new(Kind::Unsupported, message))
}

/// The last line, for who reads no other; where something is bad, the error says it.
fn verdict_line(findings: &[Finding], purpose: &str, moved: Option<&str>) -> String {
    let count = |verdict| findings.iter().filter(|f| f.verdict == verdict).count();
    if let (0, Some(url)) = (count(Verdict::Bad), moved) {
        return format!("this store has moved to `{url}`; use that one: nothing is granted here any more\n");
    }
    match (count(Verdict::Bad), count(Verdict::Note)) {
        (0, 0) => format!("fit for {purpose}: every check passed\n"),
        (0, 1) => format!("fit for {purpose}: every check passed, with 1 note to read\n"),
        (0, notes) => format!("fit for {purpose}: every check passed, with {notes} notes to read\n"),
        _ => String::new(),
    }
}
