//! `doctor`: do this store, this machine and this folder keep their promises?
//!
//! Everything is tried in a scratch room of its own, which is emptied again; the user's leases are only looked at.

mod guard;
mod processes;
mod race;
mod scratch;
mod store;

pub use race::{CONTENDER, contend};

use super::coordinator;
use crate::args::{Common, Doctor as Args};
use crate::config::{Setting, Settings, Source};
use crate::exit::Exit;
use crate::output;
use leasehold::{Error, Kind, Result};
use scratch::Scratch;
use serde_json::{Value, json};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Good,
    Note,
    Bad,
}

#[derive(Debug)]
struct Finding {
    verdict: Verdict,
    what: String,
    detail: String,
}

fn finding(verdict: Verdict, what: impl Into<String>, detail: impl Into<String>) -> Finding {
    Finding { verdict, what: what.into(), detail: detail.into() }
}

pub async fn doctor(common: &Common, args: &Args) -> Result<Exit> {
    let mut settings = Settings::gather(common)?;
    if let Some(url) = &args.url {
        settings.store = Setting { value: url.parse()?, source: Source::Flag };
    }
    if let Some(folder) = args.folder.as_ref().filter(|folder| !folder.is_dir()) {
        return Err(Error::invalid("--folder", folder.display(), "it is not a folder"));
    }
    let coordinator = coordinator(&settings).await?;
    let mut findings = vec![finding(Verdict::Good, "store", settings.store.value.to_string())];
    findings.extend(store::describe(&**coordinator.store()).await?);
    findings.push(store::clock(&**coordinator.store()).await?);
    findings.push(store::records(&coordinator).await?);
    let scratch = Scratch::set_up(&settings.store.value).await?;
    let tried = try_out(&scratch).await;
    let cleared = scratch.clear().await;
    findings.extend(tried?);
    if let Err(error) = cleared {
        findings.push(finding(Verdict::Note, "scratch", format!("not everything could be taken away: {error}")));
    }
    findings.push(processes::processes()?);
    if let Some(folder) = &args.folder {
        findings.extend(guard::guard(folder).await?);
    }
    report(common, &findings)
}

async fn try_out(scratch: &Scratch) -> Result<Vec<Finding>> {
    let mut findings = vec![store::round_trips(scratch).await?];
    findings.extend(store::promises(scratch).await);
    findings.push(race::race(scratch).await?);
    Ok(findings)
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
            findings.iter().map(|f| vec![word(f.verdict).into(), f.what.clone(), f.detail.clone()]).collect();
        output::print(&output::table(&rows))?;
    }
    if sound {
        return Ok(Exit::Done);
    }
    Err(Error::new(Kind::Unsupported, "not fit for leases: see the lines marked `bad`, and docs/guarantees.md"))
}
