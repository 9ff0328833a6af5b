//! Workers and producers that are killed at every named step of an item's life, and stopped past their deadline.
//!
//! On sqlite, dir, Postgres, Redis and a spool: every item ends with exactly one accepted completion, epochs rise,
//! nothing is lost, nothing is stuck. A naive queue runs beside them, and the same judge must catch it.
#![allow(clippy::unwrap_used)]

mod mortal;
mod naive;
mod worker;

use leasehold_core::clock::{Clock, SystemClock};
use leasehold_stores::open;
use leasehold_testbed::{Postgres, postgres, redis};
use leasehold_work::queue::{Queue, State, What};
use leasehold_work::spool::{Spool, SpoolFolder, SpoolStep};
use mortal::{STORE_STEPS, spool_step};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// The queue that everybody works on.
pub const QUEUE: &str = "work";
/// How many worker processes there are at a time.
const WORKERS: usize = 3;
/// Every fifth item adds another when it is completed.
pub const PARENTS: u64 = 5;
/// How many items there are at least for those who are to die at their work.
const STOCK: usize = 60;
/// Nothing takes longer than this: a TTL of one second, a poll of one, and a machine that others use.
const PATIENCE: Duration = Duration::from_secs(100);

/// Where a queue is.
#[derive(Clone)]
#[allow(missing_docs)]
pub enum QueueLocation {
    Store(String),
    Spool(PathBuf),
}

impl QueueLocation {
    /// The place that an argument names.
    pub fn parse(text: &str) -> Self {
        match text.strip_prefix("spool:") {
            Some(path) => QueueLocation::Spool(path.into()),
            None => QueueLocation::Store(text.into()),
        }
    }

    fn text(&self) -> String {
        match self {
            QueueLocation::Store(url) => url.clone(),
            QueueLocation::Spool(path) => format!("spool:{}", path.display()),
        }
    }

    fn steps(&self) -> Vec<String> {
        match self {
            // Where an item and its place in line change in one step, there is no other to die at.
            QueueLocation::Store(url) if url.starts_with("sqlite:") || url.starts_with("postgres:") => {
                STORE_STEPS.iter().filter(|step| !step.ends_with("swap line")).map(|step| (*step).to_owned()).collect()
            }
            QueueLocation::Store(_) => STORE_STEPS.iter().map(|step| (*step).to_owned()).collect(),
            QueueLocation::Spool(_) => SpoolStep::ALL.iter().map(|step| spool_step(*step)).collect(),
        }
    }
}

/// Those who are sent to die at each step, with enough to do until they have.
#[derive(Default)]
struct Deaths {
    left: Vec<(String, u64)>,
    alive: Vec<Process>,
    bait: Option<Process>,
    /// Whether everybody will. Where the line is not filled up, some find nothing to die at.
    certain: bool,
}

impl Deaths {
    fn of(backlog: &QueueLocation) -> Self {
        let QueueLocation::Spool(_) = backlog else { return Deaths::default() };
        // Workers take no keys; producers die at that.
        let steps = SpoolStep::ALL.iter().filter(|step| **step != SpoolStep::LinkKey);
        let twice = |step: &SpoolStep| [(spool_step(*step), 3), (spool_step(*step), 1)];
        Deaths { left: steps.flat_map(twice).collect(), certain: true, ..Deaths::default() }
    }

    /// Sends the next ones. The last are given what others would leave: a claim that runs out.
    fn appoint(&mut self, start: &mut dyn FnMut(&str, u64) -> Process) {
        self.alive.retain_mut(|worker| !worker.is_over());
        while self.alive.len() < WORKERS {
            let Some((step, nth)) = self.left.pop() else { break };
            self.alive.push(start(&step, nth));
        }
        self.certain = !self.alive.is_empty();
        if self.alive.len() < WORKERS && self.certain && self.bait.as_mut().is_none_or(Process::is_over) {
            self.bait = Some(start(&spool_step(SpoolStep::SyncClaimed), 1));
        }
        if !self.certain {
            self.bait = None;
        }
    }
}

/// What the workers said, and what the records say.
#[derive(Default)]
pub struct Findings {
    /// Epochs under which each item was claimed, as its workers said.
    pub claims: BTreeMap<String, Vec<u64>>,
    /// Completions that were said to have been accepted.
    pub accepted: BTreeMap<String, Vec<u64>>,
    /// Items that are done, and under which epoch.
    pub done: BTreeMap<String, u64>,
    /// Items that are anything else.
    pub open: Vec<String>,
}

impl Findings {
    fn hear(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["claimed", id, epoch] => self.claims.entry(id.into()).or_default().push(epoch.parse().unwrap()),
            ["accepted", id, epoch] => self.accepted.entry(id.into()).or_default().push(epoch.parse().unwrap()),
            _ => {}
        }
    }

    /// What is wrong. Nothing may be.
    pub fn judge(&self, expected: usize) -> Vec<String> {
        let mut wrong = Vec::new();
        if !self.open.is_empty() || self.done.len() != expected {
            wrong.push(format!("{} of {expected} are done, not done: {:?}", self.done.len(), self.open));
        }
        for (id, epochs) in &self.claims {
            let distinct: BTreeSet<_> = epochs.iter().collect();
            if distinct.len() != epochs.len() {
                wrong.push(format!("{id} was claimed twice under one epoch: {epochs:?}"));
            }
        }
        for (id, epochs) in &self.accepted {
            if epochs.len() > 1 || self.done.get(id) != epochs.first() {
                wrong.push(format!(
                    "{id}: completions under {epochs:?} were accepted, the record says {:?}",
                    self.done.get(id)
                ));
            }
        }
        wrong
    }
}

/// A process of ours, whose lines come over a channel.
struct Process(Child);

impl Process {
    fn start(words: &[&str], to: Option<&Sender<String>>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        if let Some(to) = to.cloned() {
            let lines = BufReader::new(child.stdout.take().unwrap()).lines();
            std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| drop(to.send(line))));
        }
        Process(child)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    fn is_over(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.first().map(String::as_str) {
        Some("worker" | "adder" | "zombie") => return worker::main(&words),
        Some("naive") if words.len() == 2 => return naive::main(&words[1]),
        _ => {}
    }
    let only = words.into_iter().find(|word| !word.starts_with('-')).unwrap_or_default();
    let long = if std::env::var_os("LEASEHOLD_LONG").is_some() { 20 } else { 1 };
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, items: u64, backlog: &dyn Fn() -> QueueLocation| {
        if name.contains(&only) {
            let began = SystemClock.now();
            let backlog = backlog();
            stopped(&backlog);
            killed(name, &backlog, items * long);
            println!("test {name} ... ok ({:?})", SystemClock.now().saturating_since(began));
        }
    };
    let here = folder.path();
    run("spool", 300, &|| QueueLocation::Spool(here.join("spool")));
    run("sqlite", 1_500, &|| QueueLocation::Store(format!("sqlite:{}", here.join("x.db").display())));
    run("dir", 400, &|| QueueLocation::Store(format!("dir:{}", here.join("dir").display())));
    let redis = redis();
    run("redis", 1_500, &|| QueueLocation::Store(format!("redis://127.0.0.1:{}", redis.port())));
    let postgres = postgres();
    run("postgres", 1_500, &|| QueueLocation::Store(Postgres::url(postgres.port())));
    if "naive".contains(&only) {
        naive_is_caught(here.join("naive"));
    }
}

/// Producers and workers die at every step, one after the other, until each was reached; then everything gets done.
fn killed(name: &str, backlog: &QueueLocation, items: u64) {
    let at = backlog.text();
    let (sender, lines) = channel();
    let mut findings = Findings::default();
    let mut reached: BTreeMap<String, usize> = BTreeMap::new();
    let steps = backlog.steps();
    // Producers: each adds its share by key, and does so again until it was not killed.
    let share = (items / steps.len() as u64).max(1);
    let mut from = 0;
    for step in steps.iter().cycle() {
        let until = (from + share).min(items);
        let (first, last) = (from.to_string(), until.to_string());
        let mut adder = Process::start(&["adder", &at, &first, &last, step, "3"], Some(&sender));
        if !adder.0.wait().unwrap().success() {
            let mut again = Process::start(&["adder", &at, &first, &last, "", "0"], Some(&sender));
            assert!(again.0.wait().unwrap().success(), "{name}: adding again failed");
        }
        from = until;
        if from == items {
            break;
        }
    }
    let mut items = items;
    let mut to_die = Deaths::of(backlog);
    let mut workers: Vec<Process> = Vec::new();
    let (mut deaths, mut next) = (0_usize, 0_usize);
    let end = SystemClock.now() + PATIENCE * if items > 5_000 { 10 } else { 1 };
    loop {
        hear(&lines, &mut findings, &mut reached);
        workers.retain_mut(|worker| !worker.is_over());
        if to_die.certain {
            let mut start = |step: &str, nth: u64| {
                (deaths, next) = (deaths + 1, next + 1);
                Process::start(&["worker", &at, step, &nth.to_string(), &next.to_string()], Some(&sender))
            };
            to_die.appoint(&mut start);
            if findings.open.len() < STOCK {
                let (first, last) = (items.to_string(), (items + STOCK as u64).to_string());
                let mut adder = Process::start(&["adder", &at, &first, &last, "", "0"], Some(&sender));
                assert!(adder.0.wait().unwrap().success(), "{name}: filling up failed");
                items += STOCK as u64;
            }
        }
        let expected = (items + items.div_ceil(PARENTS)) as usize;
        while !to_die.certain && workers.len() < WORKERS {
            // In stores each step three times, early and late; then where nobody was killed yet; then nobody dies any more.
            let is_spool = matches!(backlog, QueueLocation::Spool(_));
            let missed = steps.iter().find(|step| !reached.contains_key(*step)).filter(|_| next < 9 * steps.len());
            let (step, nth) = match steps.get(next % steps.len()).filter(|_| next < 3 * steps.len() && !is_spool) {
                Some(step) => (step.as_str(), [1, 3, 9][next / steps.len()].to_string()),
                None => missed.map_or(("", "0".to_owned()), |step| (step.as_str(), "1".to_owned())),
            };
            workers.push(Process::start(&["worker", &at, step, &nth, &next.to_string()], Some(&sender)));
            deaths += usize::from(!step.is_empty());
            next += 1;
        }
        look(backlog, &mut findings);
        if findings.done.len() >= expected && findings.open.is_empty() && !to_die.certain {
            break;
        }
        let judged = findings.judge(expected);
        assert!(SystemClock.now() < end, "{name}: stuck: {:?}", judged);
        std::thread::sleep(Duration::from_millis(if matches!(backlog, QueueLocation::Spool(_)) { 50 } else { 200 }));
    }
    workers.clear();
    drop(sender);
    let expected = (items + items.div_ceil(PARENTS)) as usize;
    while let Ok(line) = lines.recv_timeout(Duration::from_secs(5)) {
        findings.hear(&line);
        note(&line, &mut reached);
    }
    look(backlog, &mut findings);
    let wrong = findings.judge(expected);
    assert!(wrong.is_empty(), "{name}: {wrong:#?}");
    let taken: BTreeSet<_> = reached.keys().cloned().collect();
    let missed: Vec<_> = steps.iter().filter(|step| !taken.contains(*step)).collect();
    assert!(missed.is_empty(), "{name}: steps that nobody was killed at: {missed:?}");
    let claims: usize = findings.claims.values().map(Vec::len).sum();
    println!(
        "{name}: {expected} items done once, {claims} claims, {deaths} workers sent to die, killed {} times at {} steps",
        reached.values().sum::<usize>(),
        reached.len()
    );
}

fn hear(lines: &Receiver<String>, findings: &mut Findings, reached: &mut BTreeMap<String, usize>) {
    for line in lines.try_iter() {
        findings.hear(&line);
        note(&line, reached);
    }
}

fn note(line: &str, reached: &mut BTreeMap<String, usize>) {
    if let Some(step) = line.strip_prefix("dying at ") {
        *reached.entry(step.to_owned()).or_default() += 1;
    }
}

/// What the records say.
fn look(backlog: &QueueLocation, findings: &mut Findings) {
    findings.done.clear();
    findings.open.clear();
    match backlog {
        QueueLocation::Spool(path) => {
            for item in Spool::open(path).unwrap().everything().unwrap() {
                let id = item.name.id.to_string();
                if item.folder == SpoolFolder::Done {
                    let twice = findings.done.insert(id.clone(), item.name.epoch.get());
                    assert!(twice.is_none(), "{id} is done twice");
                } else {
                    findings.open.push(id);
                }
            }
        }
        QueueLocation::Store(url) => runtime().block_on(async {
            let store = open(&url.parse().unwrap()).await.unwrap();
            let queue = Queue::new(store, QUEUE.parse().unwrap());
            let mut after = None;
            loop {
                let page = queue.list(after.as_ref(), 500).await.unwrap();
                for (name, item) in page.entries {
                    let item = item.unwrap();
                    let completions = item.history.iter().filter(|event| event.what == What::Completed).count();
                    let rising = item.history.windows(2).all(|pair| pair[0].epoch <= pair[1].epoch);
                    assert!(rising && completions <= 1, "{name}: {:?}", item.history);
                    match item.state {
                        State::Done { .. } if item.outbox.is_empty() => {
                            findings.done.insert(name.id.to_string(), item.epoch.get());
                        }
                        _ => findings.open.push(format!("{} {}", name.id, item.state.as_str())),
                    }
                }
                match page.next {
                    Some(next) => after = Some(next),
                    None => return,
                }
            }
        }),
    }
}

/// A runtime for one process.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A worker is stopped with an item in its hands, another claims and completes it, and the first wakes up.
fn stopped(backlog: &QueueLocation) {
    let at = backlog.text();
    let mut adder = Process::start(&["adder", &at, "900001", "900002", "", "0"], None);
    assert!(adder.0.wait().unwrap().success());
    let mut zombie = Process::start(&["zombie", &at], None);
    let mut lines = BufReader::new(zombie.0.stdout.take().unwrap()).lines();
    let mut line = || lines.next().unwrap().unwrap();
    assert!(line().starts_with("claimed k.n900001 1"));
    zombie.signal(Signal::STOP);
    let (sender, others) = channel();
    let healthy = Process::start(&["worker", &at, "", "0", "7"], Some(&sender));
    let second = loop {
        let said = others.recv_timeout(PATIENCE).unwrap();
        if let Some(epoch) = said.strip_prefix("accepted k.n900001 ") {
            break epoch.parse::<u64>().unwrap();
        }
    };
    drop(healthy);
    assert!(second > 1);
    zombie.signal(Signal::CONT);
    writeln!(zombie.0.stdin.take().unwrap(), "go on").unwrap();
    assert_eq!(line(), "renewal lost");
    assert_eq!(line(), "completion fenced");
    match backlog {
        QueueLocation::Store(url) => runtime().block_on(async {
            let store = open(&url.parse().unwrap()).await.unwrap();
            let queue = Queue::new(store.clone(), QUEUE.parse().unwrap());
            let item = queue.inspect(&"k.n900001".parse().unwrap()).await.unwrap().item;
            assert_eq!(item.result.unwrap().text(), Some("by a worker"));
            // What it would have added is nowhere.
            let missing = queue.inspect(&"k.from-a-zombie".parse().unwrap()).await.unwrap_err();
            assert!(missing.to_string().contains("there is no item"), "{missing}");
            // Out of the way of what comes next.
            let key = queue.item("k.n900001".parse().unwrap()).key().unwrap();
            let found = store.read(&key).await.unwrap().value.unwrap();
            store.erase(&key, &found.revision).await.unwrap();
        }),
        QueueLocation::Spool(path) => {
            let spool = Spool::open(path).unwrap();
            spool.clean().unwrap();
            let all = spool.everything().unwrap();
            assert_eq!(all.len(), 1, "what a zombie would have added is there: {all:?}");
            std::fs::remove_file(path.join("done").join(all[0].name.to_string())).unwrap();
            std::fs::remove_file(path.join("keys/n900001")).unwrap();
        }
    }
}

/// A queue that checks and then acts must be caught by the same judge.
fn naive_is_caught(folder: PathBuf) {
    const ITEMS: usize = 300;
    for round in 0..20 {
        let folder = folder.join(round.to_string());
        naive::fill(&folder, ITEMS);
        let (sender, lines) = channel();
        let workers: Vec<Process> =
            (0..4).map(|_| Process::start(&["naive", folder.to_str().unwrap()], Some(&sender))).collect();
        drop(sender);
        let mut findings = Findings::default();
        lines.iter().for_each(|line| findings.hear(&line));
        drop(workers);
        for id in findings.accepted.keys() {
            findings.done.insert(id.clone(), 1);
        }
        let wrong = findings.judge(ITEMS);
        if !wrong.is_empty() {
            println!("test naive_is_caught ... ok (round {round}: {})", wrong[0]);
            return;
        }
    }
    panic!("the naive queue was not caught: the judge is blind");
}
