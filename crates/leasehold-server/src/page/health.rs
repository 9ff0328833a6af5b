//! Health: what the store promises and how fast it answers, and which processes and machines have reported.

use super::budget::{MACHINES, PROCESSES, ROUND_TRIPS};
use super::frame::{self, Frame};
use super::times::{When, brief, ms, thousands};
use super::visit::Visit;
use crate::access::Verb;
use crate::serve::{Problem, Site};
use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use leasehold_core::store::{Class, ClockSource, Reach, Remark, Store, Watching};
use leasehold_core::{Key, Kind, LeaseName, Shelf, Timestamp};
use leasehold_work::presence::{self, Presence, Role};
use leasehold_work::schedule::Definitions;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long the store may take before it is shown as not answering.
const PATIENCE: Duration = Duration::from_secs(5);

/// A setting of the store.
struct Setting {
    name: String,
    found: String,
    advice: Option<String>,
}

/// What a machine holds and has published, among the records that were looked at.
#[derive(Default)]
struct Machine {
    holds: u64,
    publishes: u64,
    reported: Option<Timestamp>,
}

/// The same as a row.
struct MachineRow {
    host: String,
    holds: String,
    publishes: String,
    reported: Option<When>,
}

/// A process that has reported within the last day.
struct ProcessRow {
    role: &'static str,
    host: String,
    pid: u32,
    queue: Option<String>,
    /// The key that it reports with, if it does so through a server.
    key: Option<String>,
    version: String,
    since: When,
    reported: When,
    is_silent: bool,
}

#[derive(Template)]
#[template(path = "health.html")]
struct HealthPage {
    frame: Frame,
    now_ms: u64,
    store: &'static str,
    class: &'static str,
    class_words: &'static str,
    settings: Vec<Setting>,
    median: String,
    /// The fastest and the slowest, if they differ.
    spread: Option<(String, String)>,
    is_slow: bool,
    waiters: String,
    processes: Vec<ProcessRow>,
    more_processes: bool,
    machines: Vec<MachineRow>,
    looked_at: String,
    is_more: bool,
}

/// Answers with the page on health. Without `read` it is refused.
pub async fn page(visit: Visit, State(site): State<Site>) -> Result<Response, Problem> {
    let store = visit.coordinator.store().clone();
    let late = |_| {
        let kind = Kind::Unavailable.as_str();
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, kind, "the store did not answer within 5 s")
    };
    let survey = tokio::time::timeout(PATIENCE, store.survey()).await.map_err(late)??;
    let (trips, now) = tokio::time::timeout(PATIENCE, round_trips(&visit)).await.map_err(late)??;
    let can = store.capabilities();
    let (processes, more_processes) = processes(&visit, &site).await?;
    let (machines, looked_at, is_more) = machines(&visit).await?;
    let (class, class_words) = match survey.class {
        Class::A => ("A", "epochs rise through crash and failover"),
        Class::B => ("B", "an epoch may be issued again after a failover; guards still hold by the grant's nonce"),
    };
    let at = |index: usize| brief_exact(trips.get(index).copied().unwrap_or_default());
    let page = HealthPage {
        now_ms: now.as_millis(),
        store: can.name,
        class,
        class_words,
        settings: settings(store.as_ref(), survey.remarks),
        median: at(trips.len() / 2),
        spread: Some((at(0), at(trips.len().saturating_sub(1)))).filter(|(fastest, slowest)| fastest != slowest),
        is_slow: trips.get(trips.len() / 2).is_some_and(|median| *median > Duration::from_millis(250)),
        waiters: thousands(site.waiters() as u64),
        processes,
        more_processes,
        machines: machines.into_iter().map(|(host, machine)| row(host, &machine, now)).collect(),
        looked_at: thousands(looked_at as u64),
        is_more,
        frame: visit.frame,
    };
    Ok(frame::send(StatusCode::OK, &page))
}

/// Servers, and the schedulers and workers of this namespace; those that are silent last. Whether there may be more.
async fn processes(visit: &Visit, site: &Site) -> leasehold_core::Result<(Vec<ProcessRow>, bool)> {
    let is_seen = |process: &Presence| match &process.queue {
        Some(queue) => visit.sees(queue),
        // It is for all names, so it is shown to whoever may look at all of them.
        None => visit.caller.may(Verb::Read, &visit.namespace, None).is_ok(),
    };
    let servers = site.servers(PROCESSES).await?;
    let here = presence::processes(visit.coordinator.store().as_ref(), PROCESSES).await?;
    let servers_row = servers.processes.into_iter().filter(|process| process.role == Role::Server);
    let here_row = here.processes.into_iter().filter(|process| process.role != Role::Server);
    let all = servers_row.map(|process| (process, servers.now)).chain(here_row.map(|process| (process, here.now)));
    let mut rows: Vec<ProcessRow> =
        all.filter(|(process, _)| is_seen(process)).map(|(process, now)| process_row(process, now)).collect();
    // The sort is stable: roles stay together.
    rows.sort_by_key(|row| row.is_silent);
    Ok((rows, servers.more || here.more))
}

fn process_row(process: Presence, now: Timestamp) -> ProcessRow {
    ProcessRow {
        role: process.role.as_str(),
        is_silent: process.is_silent(now),
        since: When::new(process.since, now),
        reported: When::new(process.reported, now),
        host: process.host,
        pid: process.pid,
        queue: process.queue,
        key: process.via.map(|via| format!("{} ({})", via.label, via.key)),
        version: process.version,
    }
}

fn row(host: String, machine: &Machine, now: Timestamp) -> MachineRow {
    MachineRow {
        host,
        holds: thousands(machine.holds),
        publishes: thousands(machine.publishes),
        reported: machine.reported.map(|at| When::new(at, now)),
    }
}

/// Milliseconds with one place behind the point where there are few.
fn brief_exact(took: Duration) -> String {
    let micros = took.as_micros();
    if micros < 100 {
        return "under 0.1ms".to_owned();
    }
    if micros < 10_000 { format!("{}.{}ms", micros / 1_000, micros % 1_000 / 100) } else { brief(ms(took)) }
}

/// How long reads take, from the fastest to the slowest, and the store's time.
async fn round_trips(visit: &Visit) -> leasehold_core::Result<(Vec<Duration>, Timestamp)> {
    let key = Key::new(Shelf::Probe, &LeaseName::new("page/health")?);
    let clock = visit.coordinator.clock();
    let (mut trips, mut now) = (Vec::new(), Timestamp::from_millis(0));
    for _ in 0..ROUND_TRIPS {
        let asked = clock.now();
        now = visit.coordinator.store().read(&key).await?.now;
        trips.push(clock.now().saturating_since(asked));
    }
    trips.sort();
    Ok((trips, now))
}

fn settings(store: &dyn Store, remarks: Vec<Remark>) -> Vec<Setting> {
    let can = store.capabilities();
    let fact = |name: &str, found: String| Setting { name: name.to_owned(), found, advice: None };
    let reach = match can.reach {
        Reach::Process => "one process",
        Reach::Host => "all processes of one machine",
        Reach::Network => "every machine that reaches it",
    };
    let watch = match can.watch {
        Watching::Hints => "woken by the store",
        Watching::None => "look once a second",
    };
    let clock = match can.clock {
        ClockSource::Store { grain } => format!("the store's own, exact to {}", brief(ms(grain))),
        ClockSource::Local { margin } => format!("each machine's own, with a margin of {}", brief(ms(margin))),
    };
    let facts = [
        fact("Reach", reach.to_owned()),
        fact("Durability", can.durability.to_owned()),
        fact("Clock", clock),
        fact("Waiters", watch.to_owned()),
    ];
    let remarks = remarks.into_iter().map(|r| Setting { name: r.setting, found: r.found, advice: r.advice });
    facts.into_iter().chain(remarks).collect()
}

/// Machines in the first leases and jobs that the visitor may see; how many leases that is, and whether there may be more.
async fn machines(visit: &Visit) -> Result<(BTreeMap<String, Machine>, usize, bool), Problem> {
    let mut machines: BTreeMap<String, Machine> = BTreeMap::new();
    let begin = visit.reach().first();
    let listing = visit.coordinator.list(begin.as_ref(), MACHINES).await?;
    let last = listing.entries.last().map(|(name, _)| name.clone());
    let is_more = listing.more && last.is_some_and(|last| visit.reach().after(&last).is_some());
    let mut looked_at = 0;
    for (_, lease) in listing.entries.into_iter().filter(|(name, _)| visit.sees(name.as_str())) {
        looked_at += 1;
        let Ok(lease) = lease else { continue };
        let live = lease.record.live_tenure(lease.now);
        for transfer in lease.record.transfers.iter() {
            let Some(to) = &transfer.to else { continue };
            let machine = machines.entry(to.host().to_owned()).or_default();
            machine.reported = machine.reported.max(Some(transfer.at));
        }
        if let Some(tenure) = live {
            let machine = machines.entry(tenure.holder.host().to_owned()).or_default();
            machine.holds += 1;
            // It renewed at the latest a TTL before its deadline.
            let renewed = tenure.deadline.as_millis().saturating_sub(ms(tenure.ttl.get()));
            machine.reported = machine.reported.max(Some(Timestamp::from_millis(renewed)));
        }
    }
    let (jobs, _) = Definitions::new(visit.coordinator.clone()).page(begin.as_ref(), MACHINES).await?;
    let seen = jobs.iter().filter(|(name, _)| visit.sees(name.as_str()));
    for definition in seen.filter_map(|(_, definition)| definition.as_ref().ok()) {
        let machine = machines.entry(definition.host.clone()).or_default();
        machine.publishes += 1;
        machine.reported = machine.reported.max(Some(definition.at));
    }
    Ok((machines, looked_at, is_more))
}
