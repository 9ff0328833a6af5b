//! One run: set up, storm, heal, look until all is settled, tell everybody to end, judge.

use crate::actors::Fleet;
use crate::adder::{Adder, Producer};
use crate::check::{Verdict, check};
use crate::facts::{Added, History, Location, Work};
use crate::faults::{World, set_clock};
use crate::log::{self, now_ms};
use crate::look::{Client, Watcher};
use crate::options::Options;
use crate::plan::plan;
use crate::processes;
use crate::pulse::Pulse;
use crate::served::Served;
use crate::site::{self, Site};
use leasehold_system::undo;
use leasehold_testbed::{FakeTime, Postgres, Proxy};
use rustix::process::Signal;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// How often the harness looks what is due.
const STEP: Duration = Duration::from_millis(25);
/// How long everything may take to settle after it was healed: the longest TTL, retries, and the longest job twice.
const SETTLE_MS: u64 = 60_000;
/// What stalls of the machine, and items that wait for their time, may add to that at most.
const MORE_MS: u64 = 90_000;
/// How long processes may take to end that nobody waits for.
const LAST_MS: u64 = 30_000;
/// How many verdicts are printed of each promise.
const SHOWN: usize = 5;

pub(crate) fn main(leasehold: &Path, kept: &Path, options: &Options) -> ExitCode {
    if !options.undo.is_empty() {
        return crate::undo::each(options);
    }
    if once(leasehold, kept, options).is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// One run; gives what went wrong.
fn once(leasehold: &Path, kept: &Path, options: &Options) -> Vec<Verdict> {
    let (seed, minutes) = (options.seed, options.storm_ms as f64 / 60_000.0);
    println!(
        "torture: {minutes} minutes, seed {seed}; again with: cargo xtask torture --minutes {minutes} --seed {seed}{}",
        if options.is_served { " --served" } else { "" }
    );
    if !site::is_root() {
        println!("torture: not root: the spool is used by ONE user, so nothing is shown about two");
    }
    let folder = tempfile::Builder::new().prefix("leasehold-torture-").tempdir().unwrap();
    let history = storm(folder.path(), leasehold, options);
    let verdicts = check(&history);
    report(&history, &verdicts);
    // Also of one that should have found something.
    if !verdicts.is_empty() || std::env::var_os(undo::VARIABLE).is_some() {
        match crate::keep::keep(kept, seed, folder.path(), &history) {
            Ok(path) => println!("torture: the logs are in {}", path.display()),
            Err(error) => println!("torture: the logs could not be kept: {error}"),
        }
    }
    verdicts
}

fn storm(root: &Path, leasehold: &Path, options: &Options) -> History {
    let mut site = Site::new(root, leasehold);
    let clock_file = root.join("clock");
    set_clock(&clock_file, 0);
    let clock = FakeTime::file(&clock_file);
    let server = Postgres::seeing(&clock.env());
    let direct = Postgres::url(server.port());
    let mut served = None;
    if options.is_served {
        let key = Served::key(&site, &direct);
        site = site.with_key(key);
        served = Some(Served::start(&site, &direct));
    }
    let proxy = Proxy::start(served.as_ref().map_or(server.port(), Served::port));
    let far = match served {
        Some(_) => format!("leasehold+http://127.0.0.1:{}/default", proxy.port()),
        None => Postgres::url(proxy.port()),
    };
    let pulse = Pulse::start();
    let works = site::works();
    let producer = Producer { site: site.clone(), server: direct.clone() };
    let mut fleet = Fleet::new(&site, &far);
    let mut world = World::new(&site, server, served, proxy, &clock_file, producer.clone());
    let watcher = Watcher::start(Client { site: site.clone(), server: direct }, works.clone());
    let mut adder = Adder::start(producer, options.seed ^ 1);
    let begun = now_ms();
    let mut orders = plan(options.seed, options.storm_ms).into_iter().peekable();
    while now_ms() < begun + options.storm_ms {
        world.take_back(false, &mut fleet);
        while let Some(order) = orders.next_if(|order| begun + order.at <= now_ms()) {
            world.inject(order.fault, &mut fleet, &adder);
        }
        fleet.tend(&site, world.server_is_there(), |from, to| world.was_away(from, to));
        std::thread::sleep(STEP);
    }
    world.heal(&mut fleet);
    let added = adder.stop();
    let healed = now_ms();
    let due_to = (world.server_ms(), leasehold_system::clock::wall_ms());
    settle(&site, &mut fleet, &world, &watcher, &works, &added, due_to, &pulse);
    let looked = now_ms();
    let actors = fleet.end(&site, || pulse.stalled_ms());
    leave_nobody(&site);
    let mut slots = watcher.slots();
    for work in works.iter().filter(|work| work.is_job()) {
        let until = if work.location == Location::Server { due_to.0 } else { due_to.1 };
        slots.entry(work.name.clone()).or_default().due_to = until;
    }
    let (items, _) = watcher.items();
    let lines = log::parse(&std::fs::read_to_string(site.at("log")).unwrap()).unwrap();
    let happened = [std::mem::take(&mut world.happened), pulse.stalls()].concat();
    let damaged = std::mem::take(&mut world.damaged);
    drop(world);
    History { works, lines, happened, slots, items, added, actors, damaged, healed, looked }
}

/// Looks until nothing is open, or until it could have been settled for long.
#[allow(clippy::too_many_arguments)]
fn settle(
    site: &Site,
    fleet: &mut Fleet,
    world: &World<'_>,
    watcher: &Watcher,
    works: &[Work],
    added: &[Added],
    due_to: (u64, u64),
    pulse: &Pulse,
) {
    let (begun, before) = (now_ms(), pulse.stalled_ms());
    loop {
        fleet.tend(site, true, |from, to| world.was_away(from, to));
        let (items, due) = watcher.items();
        let slots = watcher.slots();
        let is_damaged = |work: &str, id: &str| world.damaged.contains(&format!("{work}/{id}"));
        let is_waiting = |item: &crate::facts::Item| {
            matches!(item.state.as_str(), "ready" | "later" | "claimed") && !is_damaged(&item.work, &item.id)
        };
        let open_items = items.iter().filter(|item| is_waiting(item)).count();
        let missing = added.iter().filter(|added| !is_damaged(&added.work, &added.id)).count();
        let there = items.len() >= missing;
        let open_slots: usize = works
            .iter()
            .filter(|work| work.is_job() && !world.damaged.contains(&work.name))
            .filter_map(|work| {
                let until = if work.location == Location::Server { due_to.0 } else { due_to.1 };
                let known = slots.get(&work.name)?;
                let seen = known.seen.range(..=until);
                let latest = seen.clone().next_back().map_or(0, |(slot, _)| *slot);
                let missing = usize::from(latest + work.period_ms <= until);
                Some(missing + seen.filter(|(slot, seen)| known.is_open(**slot, seen)).count())
            })
            .sum();
        if open_items == 0 && open_slots == 0 && there && fleet.is_complete() {
            return;
        }
        // What is to wait waits.
        let wait = due.saturating_sub(world.server_ms().min(leasehold_system::clock::wall_ms()));
        let more = (4 * (pulse.stalled_ms() - before) + wait).min(MORE_MS);
        if now_ms() > begun + SETTLE_MS + more {
            println!("torture: not settled: {open_items} items and {open_slots} slots are open");
            return;
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Waits for the last processes, and ends those that do not end.
fn leave_nobody(site: &Site) {
    let begun = now_ms();
    loop {
        let left = processes::of(&site.at("bin"));
        let verbs = left.iter().all(|process| process.role == processes::Role::Verb);
        if verbs {
            return;
        }
        if now_ms() > begun + LAST_MS {
            println!("torture: these had to be killed: {left:?}");
            for process in left {
                processes::signal(process.pid, Signal::KILL);
            }
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn report(history: &History, verdicts: &[Verdict]) {
    let runs = history.runs();
    let stalled = history.stalls(0, u64::MAX) / 4;
    println!(
        "torture: {} runs of commands, {} items, {} slots, {} faults; the machine stalled for {stalled} ms",
        runs.len(),
        history.items.len(),
        history.slots.values().map(|slots| slots.seen.len()).sum::<usize>(),
        history.happened.len(),
    );
    for same in verdicts.chunk_by(|a, b| a.promise == b.promise) {
        same.iter().take(SHOWN).for_each(|verdict| println!("torture: {verdict}"));
        if same.len() > SHOWN {
            println!("torture: {:?}: and {} more", same[0].promise, same.len() - SHOWN);
        }
    }
    match verdicts.len() {
        0 => println!("torture: every promise was kept"),
        count => println!("torture: FAILED: {count} broken promises"),
    }
}
