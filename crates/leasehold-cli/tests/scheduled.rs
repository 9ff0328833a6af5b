//! Two hundred slots of a schedule that fires on two machines at once, with runs that outlast their slot, are killed or
//! are stopped and wake up late.
//!
//! Checked: the runs that came through (exit code 0) never overlap, from the first line of the job to its last; what a
//! reader sees in the guarded file never goes back to an older epoch; a run that was skipped is counted,
//! once, and never as failed. Replayed from its printed seed, up to what the machine's own timing decides.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Done, Home, On, Running, descendants, eventually, signal};
use leasehold_core::Nonce;
use leasehold_core::clock::{Clock, SystemClock};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SLOTS: u64 = 200;
const INTERVAL: Duration = Duration::from_millis(110);
/// How many slots a stopped run sleeps: well over the TTL of a second.
const ASLEEP_SLOTS: u64 = 13;

/// Begins, does its work, writes what it is under the fence, ends. The private log has one line for each end of it.
const JOB: &str = "echo $LEASEHOLD_EPOCH
    echo begin $LEASEHOLD_EPOCH $(date +%s%N) >> log
    sleep $1
    echo $LEASEHOLD_EPOCH | leasehold write \"$2\" || exit 13
    echo end $LEASEHOLD_EPOCH $(date +%s%N) >> log";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// kill -9 of the supervisor.
    Killed,
    /// The supervisor stands still, the job does not.
    SupervisorStopped,
    /// Everything stands still, and the job wakes first.
    AllStopped,
}

/// Splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn fault(&mut self) -> Option<Fault> {
        match self.below(45) {
            0 => Some(Fault::Killed),
            1 => Some(Fault::SupervisorStopped),
            2 => Some(Fault::AllStopped),
            _ => None,
        }
    }

    /// In seconds, as sleep(1) has it: mostly short, one in eight longer than a slot.
    fn runtime(&mut self) -> String {
        let ms = if self.below(8) == 0 { 150 + self.below(450) } else { self.below(40) };
        format!("{}.{:03}", ms / 1000, ms % 1000)
    }
}

struct Machine {
    home: Home,
    runs: Vec<Running>,
}

impl Machine {
    fn new(store: &str) -> Self {
        let mut home = Home::new(On::Dir);
        home.store = store.to_owned();
        Machine { home, runs: Vec::new() }
    }

    fn fire(&mut self, runtime: &str, out: &str) {
        let guard = format!("file:{out}");
        let run = ["run", "job", "--ttl", "1s", "--guard", &guard, "--", "sh", "-c", JOB, "job", runtime, out];
        self.runs.push(self.home.start(&run));
    }

    fn begun(&self) -> usize {
        self.home.read("log").lines().filter(|line| line.starts_with("begin")).count()
    }
}

/// Reads the guarded file until told to stop. Gives how often it saw a new epoch, and the first step back.
fn read_on(out: &Path, stop: &AtomicBool) -> (u64, Option<(u64, u64)>) {
    let (mut highest, mut rises) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        if let Ok(text) = std::fs::read_to_string(out) {
            // A file that is replaced in one step is never seen empty or half written.
            let epoch: u64 = text.trim().parse().unwrap_or_else(|_| panic!("the reader saw {text:?}"));
            if epoch < highest {
                return (rises, Some((highest, epoch)));
            }
            rises += u64::from(epoch > highest);
            highest = epoch;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    (rises, None)
}

fn strike(run: &Running, fault: Fault) -> Vec<i32> {
    let tree = match fault {
        Fault::Killed => {
            signal(run.pid(), "KILL");
            return Vec::new();
        }
        Fault::SupervisorStopped => vec![run.pid()],
        // The supervisor last, when they stop and when they wake: a job that sleeps through its loss tries to write.
        Fault::AllStopped => descendants(run.pid()).into_iter().rev().chain([run.pid()]).collect(),
    };
    tree.iter().for_each(|pid| signal(*pid, "STOP"));
    tree
}

/// Begin and end, in nanoseconds, of every epoch that both machines logged.
fn intervals(machines: &[Machine]) -> BTreeMap<u64, (u128, Option<u128>)> {
    let mut found = BTreeMap::new();
    for line in machines.iter().flat_map(|m| m.home.read("log").lines().map(String::from).collect::<Vec<_>>()) {
        let words: Vec<&str> = line.split(' ').collect();
        let (epoch, at) = (words[1].parse().unwrap(), words[2].parse().unwrap());
        match words[0] {
            "begin" => assert_eq!(found.insert(epoch, (at, None)), None, "epoch {epoch} began twice"),
            _ => found.get_mut(&epoch).unwrap().1 = Some(at),
        }
    }
    found
}

#[test]
fn two_machines_share_a_schedule() {
    let seed = std::env::var("LEASEHOLD_TEST_SEED").ok().and_then(|s| s.parse().ok());
    let seed = seed.unwrap_or_else(|| Nonce::random().as_u128() as u64);
    println!("replay: LEASEHOLD_TEST_SEED={seed} cargo test -p leasehold-cli --test scheduled");
    let mut random = Random(seed);
    let shared = tempfile::tempdir().unwrap();
    let store = format!("dir:{}/leases", shared.path().display());
    let out = shared.path().join("out").display().to_string();
    let mut machines = [Machine::new(&store), Machine::new(&store)];

    let stop = Arc::new(AtomicBool::new(false));
    let reader = std::thread::spawn({
        let (out, stop) = (out.clone(), stop.clone());
        move || read_on(Path::new(&out), &stop)
    });
    let mut asleep: Vec<(u64, Vec<i32>)> = Vec::new();
    let mut faults = Vec::new();
    let first = SystemClock.now();
    for slot in 0..SLOTS {
        asleep.retain(|(until, tree)| {
            if *until <= slot {
                tree.iter().for_each(|pid| signal(*pid, "CONT"));
            }
            *until > slot
        });
        let mut fault = random.fault();
        let before: Vec<usize> = machines.iter().map(Machine::begun).collect();
        for machine in &mut machines {
            let runtime = if fault.is_some() { "0.300".into() } else { random.runtime() };
            machine.fire(&runtime, &out);
        }
        // The rest of the slot: strike the run that begins in it, if one does.
        let next = first + INTERVAL * u32::try_from(slot + 1).unwrap();
        while SystemClock.now() < next {
            let struck = fault.and_then(|_| machines.iter().zip(&before).find(|(m, before)| m.begun() > **before));
            if let (Some((machine, _)), Some(kind)) = (struck, fault.take_if(|_| struck.is_some())) {
                faults.push(kind);
                asleep.push((slot + ASLEEP_SLOTS, strike(machine.runs.last().unwrap(), kind)));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    for (_, tree) in asleep {
        tree.iter().for_each(|pid| signal(*pid, "CONT"));
    }
    let ended: Vec<Done> = machines.iter_mut().flat_map(|m| std::mem::take(&mut m.runs)).map(Running::end).collect();
    stop.store(true, Ordering::Relaxed);
    let (rises, back) = reader.join().unwrap();
    assert_eq!(back, None, "a zombie wrote: the reader saw the second epoch after the first");

    let logged = intervals(&machines);
    let with_code = |code| ended.iter().filter(|done| !is_skip(done) && done.code == code).count() as u64;
    let mut through: Vec<(u64, u128, u128)> = ended
        .iter()
        .filter(|done| !is_skip(done) && done.code == 0)
        .map(|done| {
            let epoch = done.stdout.trim().parse().unwrap();
            let (begin, end) = logged[&epoch];
            (epoch, begin, end.expect("a run that came through logged its end"))
        })
        .collect();
    through.sort_unstable();
    for pair in through.windows(2) {
        assert!(pair[0].2 <= pair[1].1, "two runs at once: {pair:?}");
    }
    let skips = ended.iter().filter(|done| is_skip(done)).count() as u64;
    let others = ended.iter().filter(|d| !is_skip(d) && ![0, 13, 75, 137].contains(&d.code)).collect::<Vec<_>>();
    assert!(others.is_empty(), "{others:#?}");
    println!("{faults:?}, {} came through, {skips} skipped, {rises} epochs read", through.len());

    // What the story needs to be one: work was done, runs met, and some were struck.
    assert!(through.len() > 20 && skips > 100 && rises > 20, "{} {skips} {rises}", through.len());
    assert!(!faults.is_empty());
    let home = &machines[0].home;
    // Counting is best effort: with so many at it, one may give up, but nothing is counted twice.
    let counted = home.count("job", "skipped_overlap");
    assert!(counted <= skips && counted * 100 >= skips * 95, "{counted} of {skips} runs that were skipped are counted");
    assert_eq!(home.count("job", "failed"), with_code(13), "a skip is no failure");
    assert_eq!(home.count("job", "lost"), with_code(75));
    assert!(home.show("job")["epoch"].as_u64() >= logged.keys().copied().max(), "an epoch was run and not granted");
    eventually("no process is left behind", || home.show("job")["state"] != "held");
}

fn is_skip(done: &Done) -> bool {
    done.stderr.contains("skipped: ")
}
