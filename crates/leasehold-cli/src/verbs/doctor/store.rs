//! What the store says of itself, and whether it is so.

use super::scratch::Scratch;
use super::{Finding, Verdict, finding};
use crate::remedy;
use leasehold_conformance::{Bench, Effort, PROMISES, exercise};
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::migration::{self, MarksSnapshot};
use leasehold_core::relocation::{Address, Relocation};
use leasehold_core::store::{Class, ClockSource, Reach, Store, Swap, Watching};
use leasehold_core::{Coordinator, Key, LeaseName, Nonce, Result, Shelf, Timestamp, format_duration};
use std::collections::BTreeMap;
use std::time::Duration;

/// How hard the promises are tried: enough to find a store that loses races, not enough to be a load.
const EFFORT: Effort = Effort { clients: 8, swaps_each: 20, tenures: 10 };
/// How many exchanges are timed.
const TIMED: usize = 11;
/// A store's clock that differs by more is worth a look: slots are due by it.
const OFF_BY: Duration = Duration::from_secs(10);

pub async fn describe(store: &dyn Store) -> Result<Vec<Finding>> {
    let can = store.capabilities();
    let survey = store.survey().await?;
    let class = match survey.class {
        Class::A => finding(Verdict::Good, "class", "A: epochs rise through crash and failover"),
        Class::B => finding(
            Verdict::Note,
            "class",
            "B: an epoch may be issued again after a failover; guards still hold by the grant's nonce",
        ),
    };
    let reach = match can.reach {
        Reach::Process => "one process",
        Reach::Host => "all processes of this machine; several machines need a store that they share",
        Reach::Network => "every machine that reaches it",
    };
    let watch = match can.watch {
        Watching::Hints => "waiters are woken by the store",
        Watching::None => "waiters poll once a second",
    };
    // What the server says of its store follows among the remarks.
    let durability = match can.by_verbs {
        true => format!("{}; for details, run `leasehold doctor` on that store", can.durability),
        false => can.durability.to_owned(),
    };
    let mut findings = vec![
        class,
        finding(Verdict::Good, "reach", reach),
        finding(Verdict::Good, "durability", durability),
        finding(Verdict::Good, "waiting", watch),
    ];
    findings.extend(survey.remarks.into_iter().map(|remark| match remark.advice {
        None => finding(Verdict::Good, remark.setting, remark.found),
        Some(advice) => finding(Verdict::Note, remark.setting, format!("{}: {advice}", remark.found)),
    }));
    Ok(findings)
}

/// Whether the leases live here, or are on their way to another store or from one.
pub async fn migration(store: &dyn Store) -> Result<Vec<Finding>> {
    let MarksSnapshot { marks, now } = migration::look(store).await?;
    let marks = [marks.leaving, marks.arriving].into_iter().flatten();
    let findings = marks.map(|mark| {
        let (from, to) = mark.ends();
        let (begun, (finish, give_up)) = (mark.begun(now), remedy::migration(from, to));
        if let Relocation::Moved { to, .. } = &mark.state {
            let detail = format!("moved to `{to}`, {begun}: nothing is granted here any more");
            if mark.finished {
                return finding(Verdict::Note, "migration", detail);
            }
            let detail = format!("{detail}; it is not over: if it does not run any more, finish with `{finish}`");
            return finding(Verdict::Bad, "migration", detail);
        }
        let detail = format!(
            "{}, {begun}, and not over: if it does not run any more, finish with `{finish}`, or give it up with `{give_up}`",
            mark.state
        );
        finding(Verdict::Bad, "migration", detail)
    });
    Ok(findings.collect())
}

pub async fn clock(store: &dyn Store) -> Result<Finding> {
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
    let detail =
        format!("{source}, exact to {}, {} {ahead} this machine's", format_duration(grain), format_duration(by));
    if by <= OFF_BY.max(grain) {
        return Ok(finding(Verdict::Good, "clock", detail));
    }
    // Leases do not mind: only durations of the store's clock count for them.
    let advice = "leases do not mind, but scheduled slots and delayed items come due by the store's clock: see which of the \
                  two is wrong, and set it";
    Ok(finding(Verdict::Note, "clock", format!("{detail}: {advice}")))
}

/// How long a read and a write take, most of the time.
pub async fn round_trips(scratch: &Scratch) -> Result<Finding> {
    let store = &scratch.store;
    let key = Key::new(Shelf::Probe, &LeaseName::new(format!("doctor/{}", Nonce::random()))?);
    let (mut reads, mut writes, mut revision) = (Vec::new(), Vec::new(), None);
    for _ in 0..TIMED {
        let started = SystemClock.now();
        let swap = store.swap(&key, revision.as_ref(), b"0").await?;
        writes.push(SystemClock.now().saturating_since(started));
        if let Swap::Done { revision: next, .. } = swap {
            revision = Some(next);
        }
        let started = SystemClock.now();
        store.read(&key).await?;
        reads.push(SystemClock.now().saturating_since(started));
    }
    let detail = format!("a read takes {}, a write {}", median(reads), median(writes));
    Ok(finding(Verdict::Good, "round trip", detail))
}

fn median(mut times: Vec<Duration>) -> String {
    times.sort();
    format!("{:.2} ms", times[times.len() / 2].as_secs_f64() * 1000.0)
}

/// Every promise of the conformance suite, on the user's own store.
pub async fn promises(scratch: &Scratch) -> Vec<Finding> {
    let opener = scratch.clone();
    let bench = Bench::new(EFFORT, move || {
        let opener = opener.clone();
        async move { opener.open().await }
    });
    let report = exercise(&bench).await;
    let broken = report.broken();
    if broken.is_empty() {
        return vec![finding(Verdict::Good, "promises", format!("all {} kept", PROMISES.len()))];
    }
    broken.into_iter().map(|(name, how)| finding(Verdict::Bad, name, how.to_string())).collect()
}

/// Whether every lease can be read, and whether one was left behind by a migration that is over.
pub async fn records(coordinator: &Coordinator, here: &Address) -> Result<Vec<Finding>> {
    const PAGE: usize = 500;
    /// After this many transfers no more histories are read, because each 16 cost a read.
    const TRANSFERS: usize = 20_000;
    let (mut sound, mut damaged, mut stray, mut after) = (0, Vec::new(), BTreeMap::new(), None);
    let (mut findings, mut transfers) = (Vec::new(), 0);
    loop {
        let page = coordinator.list(after.as_ref(), PAGE).await?;
        after = page.entries.last().map(|(name, _)| name.clone());
        for (name, record) in page.entries {
            match record {
                Ok(seen) => {
                    sound += 1;
                    if transfers < TRANSFERS {
                        let history = coordinator.history(&name, &seen.record).await?;
                        transfers += history.transfers.len();
                        let missing = history.damaged.iter();
                        findings.extend(missing.map(|error| finding(Verdict::Note, "history", error.to_string())));
                    }
                    let relocation = seen.record.relocation.filter(|state| !matches!(state, Relocation::Moved { .. }));
                    stray.extend(relocation.map(|state| (state.migration(), (name, state))));
                }
                Err(_) => damaged.push(name.to_string()),
            }
        }
        if !page.more {
            break;
        }
    }
    // After the records: a migration marks its namespaces first.
    let MarksSnapshot { marks, .. } = migration::look(coordinator.store().as_ref()).await?;
    for mark in [marks.leaving, marks.arriving].into_iter().flatten() {
        stray.remove(&mark.state.migration());
    }
    findings.extend(stray.into_values().map(|(name, state)| {
        let give_up = match &state {
            Relocation::Arriving { from, .. } => remedy::migration(from, here).1,
            Relocation::Moving { to, .. } | Relocation::Moved { to, .. } => remedy::migration(here, to).1,
        };
        let detail = format!("`{name}` is {state}, by a migration that was given up: take that back with `{give_up}`");
        finding(Verdict::Bad, "migration", detail)
    }));
    findings.push(if damaged.is_empty() {
        finding(Verdict::Good, "records", format!("{sound} can be read"))
    } else {
        finding(Verdict::Bad, "records", format!("{sound} can be read, damaged are: {}", damaged.join(", ")))
    });
    Ok(findings)
}
