//! kill -9 at every named step of a slot's run: real schedulers in processes of their own, on real stores.
//!
//! Each store has several worker processes with the same jobs, whose slots lie in the past and are caught up on. A worker
//! kills itself at a step, and another is started in its place. What each did is in a log that survives it. Checked: no
//! slot is lost unless it died three times and its journal says so, none is begun again after its completion was accepted, epochs rise, and the job's record ends as done.
//! A control, which notes the slot after the run instead of in the grant, must be caught by the same checks.

#![allow(clippy::unwrap_used)]

mod worker;

use leasehold_core::codec;
use leasehold_core::store::Store;
use leasehold_core::{Coordinator, Event, Key, LeaseName, Shelf, SlotState, Timestamp};
use leasehold_testbed::{Postgres, postgres, redis};
use leasehold_work::schedule::{Fate, Journal, Journals};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use worker::STEPS;

const WORKERS: usize = 3;
const JOBS: usize = 8;
const SLOTS: u64 = 70;
/// How many workers of each store die, and so how often each step is died at.
const DEATHS: usize = 2 * STEPS.len();

/// Kept alive for as long as it is used.
type Engine = Option<Box<dyn std::any::Any + Send + Sync>>;

struct Bed {
    name: &'static str,
    url: String,
    folder: TempDir,
    _engine: Engine,
}

fn beds() -> Vec<Bed> {
    let folder = || tempfile::tempdir().unwrap();
    let (sqlite, dir, server, cache) = (folder(), folder(), postgres(), redis());
    vec![
        Bed {
            name: "sqlite",
            url: format!("sqlite:{}/leases.db", sqlite.path().display()),
            folder: sqlite,
            _engine: None,
        },
        Bed { name: "dir", url: format!("dir:{}/leases", dir.path().display()), folder: dir, _engine: None },
        Bed { name: "postgres", url: Postgres::url(server.port()), folder: folder(), _engine: Some(Box::new(server)) },
        Bed {
            name: "redis",
            url: format!("redis://127.0.0.1:{}", cache.port()),
            folder: folder(),
            _engine: Some(Box::new(cache)),
        },
    ]
}

fn job(number: usize) -> LeaseName {
    LeaseName::new(format!("job-{number}")).unwrap()
}

async fn open(url: &str) -> Arc<dyn Store> {
    leasehold_stores::open(&leasehold_stores::StoreUrl::parse_in(None, url).unwrap()).await.unwrap()
}

/// Makes the jobs known as of so many seconds ago; gives the first and the last slot that is then due.
async fn seed(store: &Arc<dyn Store>) -> (u64, u64) {
    let now = store.read(&Key::new(Shelf::Runs, &job(0))).await.unwrap().now.as_millis() / 1000;
    let since = Timestamp::from_millis((now - SLOTS) * 1000);
    for number in 0..JOBS {
        let journal = Journal { since: Some(since), ..Journal::default() };
        let bytes = codec::encode("runs", &journal).unwrap();
        store.swap(&Key::new(Shelf::Runs, &job(number)), None, &bytes).await.unwrap();
    }
    (now - SLOTS + 1, now)
}

fn start(bed: &Bed, dies_at: Option<usize>, nth: usize, control: bool) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .env(worker::ROLE, if control { "control" } else { "worker" })
        .env(worker::STORE, &bed.url)
        .env(worker::LOG, bed.folder.path().join("log"))
        .env(worker::DIES_AT, dies_at.map_or("-", |step| STEPS[step]))
        .env(worker::NTH, nth.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command.spawn().unwrap()
}

/// Slots whose run died as often as a slot is run.
type GivenUp = BTreeSet<(String, u64)>;

/// Runs workers until every job's slots are done; gives the first and last slot, and those that were given up.
fn exercise(bed: &Bed, control: bool) -> (u64, u64, GivenUp) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = runtime.block_on(open(&bed.url));
    let (first, last) = runtime.block_on(seed(&store));
    let coordinator = Coordinator::new(store);
    let mut dead = 0;
    let mut launched = 0;
    let mut next = || {
        launched += 1;
        // Every step in turn, at the first, second or third time that it is come to.
        let step = (launched <= DEATHS).then_some((launched - 1) % STEPS.len());
        start(bed, step, 1 + launched % 3, control)
    };
    let mut workers: Vec<Child> = (0..WORKERS).map(|_| next()).collect();
    let begun = leasehold_system::clock::now();
    loop {
        for worker in &mut workers {
            if worker.try_wait().unwrap().is_some() {
                dead += 1;
                *worker = next();
            }
        }
        let done = runtime.block_on(async {
            for number in 0..JOBS {
                let mark = coordinator.inspect(&job(number)).await.unwrap().record.slot;
                let over = |slot: u64, state| slot > last || (slot == last && state == SlotState::Done);
                if !mark.is_some_and(|mark| over(mark.slot.0.as_millis() / 1000, mark.state)) {
                    return false;
                }
            }
            true
        });
        // The ones that were to die must have had the chance to.
        if done && (control || dead >= DEATHS) {
            break;
        }
        let waited = leasehold_system::clock::now().saturating_since(begun);
        if waited > Duration::from_secs(120) {
            workers.iter_mut().for_each(|worker| drop(worker.kill()));
            panic!("{}: not done after {waited:?}, {dead} deaths", bed.name);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    for worker in &mut workers {
        let _ = worker.kill();
        let _ = worker.wait();
    }
    if !control {
        let counted = runtime.block_on(async {
            let mut counted = 0;
            for number in 0..JOBS {
                let counters = coordinator.counters(&job(number)).await.unwrap();
                counted += counters.get(Event::DroppedTooOld) + counters.get(Event::DroppedCoalesced);
            }
            counted
        });
        assert_eq!(counted, 0, "{}: slots were dropped", bed.name);
    }
    let journals = Journals::new(coordinator);
    let given_up = runtime.block_on(async {
        let mut found = GivenUp::new();
        for number in 0..JOBS {
            let (journal, _) = journals.read(&job(number)).await.unwrap();
            let died = journal.entries.iter().filter(|entry| entry.fate == Fate::Died);
            found.extend(died.map(|entry| (job(number).to_string(), entry.slot.0.as_millis() / 1000)));
        }
        found
    });
    (first, last, given_up)
}

/// What the log says about one slot of one job.
#[derive(Default)]
struct History {
    /// Epochs that began it, in the order of the log.
    begun: Vec<u64>,
    /// Epochs whose completion was asked for.
    asked: Vec<u64>,
    /// Epochs whose completion was accepted.
    accepted: Vec<u64>,
    /// Epochs that began it after a completion of it was accepted.
    again: Vec<u64>,
}

/// Everything that is wrong with what was logged.
fn complaints(log: &Path, first: u64, last: u64, given_up: &GivenUp) -> (Vec<String>, u64, BTreeMap<String, u32>) {
    let mut slots: BTreeMap<(String, u64), History> = BTreeMap::new();
    let mut deaths: BTreeMap<String, u32> = BTreeMap::new();
    for line in std::fs::read_to_string(log).unwrap_or_default().lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["dies", step] => *deaths.entry(step.into()).or_default() += 1,
            [what, job, slot, epoch] => {
                let (slot, epoch): (u64, u64) = (slot.parse().unwrap(), epoch.parse().unwrap());
                let history = slots.entry((job.into(), slot)).or_default();
                match what {
                    "begin" => {
                        if !history.accepted.is_empty() {
                            history.again.push(epoch);
                        }
                        history.begun.push(epoch);
                    }
                    "ask" => history.asked.push(epoch),
                    "accepted" => history.accepted.push(epoch),
                    _ => panic!("{line}"),
                }
            }
            _ => panic!("{line}"),
        }
    }
    let mut wrong = Vec::new();
    let mut completed = 0;
    for number in 0..JOBS {
        let mut highest = 0;
        for slot in first..=last {
            let run = format!("job-{number}@{slot}");
            let is_given_up = given_up.contains(&(format!("job-{number}"), slot));
            if is_given_up && !slots.contains_key(&(format!("job-{number}"), slot)) {
                continue;
            }
            let Some(history) = slots.get(&(format!("job-{number}"), slot)) else {
                wrong.push(format!("{run} was lost"));
                continue;
            };
            if history.accepted.len() > 1 {
                wrong.push(format!("{run} has {} accepted completions", history.accepted.len()));
            }
            if !history.again.is_empty() {
                wrong.push(format!("{run} was begun again by {:?} after its completion", history.again));
            }
            if !history.begun.is_sorted_by(|a, b| a < b) || history.begun[0] <= highest {
                wrong.push(format!("{run}: epochs do not rise: {:?} after {highest}", history.begun));
            }
            // A worker that died with its question on the way may have been answered: then nobody began it again.
            let last_epoch = history.begun.last().copied().unwrap_or(0);
            if history.begun.len() > 3 {
                wrong.push(format!("{run} was begun more than three times: {:?}", history.begun));
            }
            if !is_given_up && history.accepted.last().or(history.asked.last()) != Some(&last_epoch) {
                wrong.push(format!("{run} was begun by {last_epoch} and never completed"));
            }
            highest = highest.max(last_epoch);
            completed += 1;
        }
    }
    (wrong, completed, deaths)
}

fn main() {
    if std::env::var_os(worker::ROLE).is_some() {
        return worker::main();
    }
    // The harness of this file is its own; what `cargo test` asks for by name is run if it is in the name.
    let filter = std::env::args().skip(1).find(|word| !word.starts_with('-')).unwrap_or_default();
    if !"killed_at_every_step".contains(&filter) {
        return println!("0 tests, filtered out");
    }
    let begun = leasehold_system::clock::now();
    let beds = beds();
    let mut total = 0;
    std::thread::scope(|scope| {
        let running: Vec<_> = beds.iter().map(|bed| scope.spawn(move || (bed, exercise(bed, false)))).collect();
        for bed in running {
            let (bed, (first, last, given_up)) = bed.join().unwrap();
            let (wrong, completed, deaths) = complaints(&bed.folder.path().join("log"), first, last, &given_up);
            assert!(wrong.is_empty(), "{}: {wrong:#?}", bed.name);
            for step in STEPS {
                assert!(deaths.contains_key(step), "{}: nobody died at `{step}`: {deaths:?}", bed.name);
            }
            println!("{}: {completed} slots, {} given up, deaths {deaths:?}", bed.name, given_up.len());
            assert!(given_up.len() <= DEATHS * JOBS / 3, "{}: {given_up:?}", bed.name);
            total += completed;
        }
    });
    assert!(total >= 2_000, "{total}");
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}/leases.db", folder.path().display());
    let control = Bed { name: "control", url, folder, _engine: None };
    let (first, last, given_up) = exercise(&control, true);
    let (wrong, ..) = complaints(&control.folder.path().join("log"), first, last, &given_up);
    assert!(!wrong.is_empty(), "the control, which notes a slot after its run, was not caught");
    let took = leasehold_system::clock::now().saturating_since(begun);
    println!("killed_at_every_step ... ok: {total} slots, control caught with {} complaints, {took:.1?}", wrong.len());
}
