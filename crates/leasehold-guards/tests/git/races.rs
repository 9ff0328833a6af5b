//! Random races of zombie and successor, of two grants of one epoch, and the controls that have to be caught.

use crate::dice::Dice;
use crate::faults::in_two_lanes;
use crate::field::{Backend, Field, Transport};
use crate::pusher::{Order, Pusher};
use crate::trap::{Point, Trap};
use leasehold_system::clock;
use std::sync::Mutex;
use std::time::Duration;

#[derive(Debug, Default)]
struct Tally {
    rounds: u64,
    stopped: u64,
    fenced: u64,
    /// Zombies that had landed before their successor.
    landed: u64,
    rivals: u64,
    stale: u64,
    worst_successor_ms: u128,
}

/// Every round a zombie pushes and is stopped anywhere (or not), a successor takes over, the zombie is resumed; in every
/// fifth, two grants of one epoch race each other.
pub fn zombies(backend: Backend, way: Transport, rounds: u64, seed: u64) {
    let tally = Mutex::new(Tally::default());
    in_two_lanes(&[0, 1], |lane| {
        let field = Field::new(backend, way);
        let mut dice = Dice::new(seed ^ (lane + 1) << 20);
        let (zombie, successor) = (field.repository("zombie"), field.repository("successor"));
        for round in 0..rounds / 2 {
            let epoch = 2 * round + 1;
            if round % 5 == 4 {
                rivals(&field, epoch, &tally);
                continue;
            }
            one_round(&field, way, round, (&zombie, &successor), &mut dice, &tally);
        }
        field.fsck();
    });
    // In the same harness, a push without a fence.
    let control = Mutex::new(Tally::default());
    let field = Field::new(backend, way);
    let mut dice = Dice::new(seed);
    let (zombie, successor) = (field.repository("zombie"), field.repository("successor"));
    // Where it is stopped is left to chance, so it is tried until a stale push lands.
    for round in 0..CONTROLS {
        plain_round(&field, way, round, (&zombie, &successor), &mut dice, &control);
        if round >= 9 && control.lock().unwrap().stale > 0 {
            break;
        }
    }
    let (tally, control) = (tally.into_inner().unwrap(), control.into_inner().unwrap());
    println!("{way:?} {backend:?}: {tally:?}");
    println!("{way:?} {backend:?}, plain push (control): {} stale of {}", control.stale, control.rounds);
    assert_eq!(tally.stale, 0, "{tally:?}");
    assert!(tally.fenced > 0 && tally.rivals > 0, "no zombie was ever in time: {tally:?}");
    assert!(control.stale > 0, "the control passed, so this harness would not see a stale push");
}

/// How often a push without a fence is tried at most.
const CONTROLS: u64 = 80;

/// About as long as a push takes.
const fn head_start(way: Transport) -> u64 {
    match way {
        Transport::File => 90,
        Transport::Ssh => 1_400,
        Transport::Http | Transport::Jgit => 300,
    }
}

type Pair<'a> = (&'a std::path::Path, &'a std::path::Path);

fn one_round(
    field: &Field,
    way: Transport,
    round: u64,
    (zombie, successor): Pair<'_>,
    dice: &mut Dice,
    tally: &Mutex<Tally>,
) {
    let epoch = 2 * round + 1;
    let stop = round.is_multiple_of(2);
    let late = Pusher::start(field, zombie, &Order::push(epoch));
    std::thread::sleep(Duration::from_millis(dice.below(head_start(way))));
    if stop {
        late.stop();
    }
    let sent = clock::now();
    let answer = Pusher::run(field, successor, &Order::push(epoch + 1));
    let took = clock::now().saturating_since(sent).as_millis();
    assert_eq!(answer, "pushed", "round {round}: the successor was refused");
    late.resume();
    let answer = late.line();
    let kind = answer.split(' ').next().unwrap();
    assert!(matches!(kind, "pushed" | "fenced"), "round {round}: {answer}");
    let mut tally = tally.lock().unwrap();
    tally.rounds += 1;
    tally.stopped += u64::from(stop);
    *if kind == "pushed" { &mut tally.landed } else { &mut tally.fenced } += 1;
    tally.stale += u64::from(field.author() != Some((epoch + 1, 0)));
    tally.worst_successor_ms = tally.worst_successor_ms.max(took);
}

/// A store that was rolled back has granted one epoch twice: at most one of the two lands.
fn rivals(field: &Field, epoch: u64, tally: &Mutex<Tally>) {
    let repositories = ["zombie", "successor"].map(|name| field.repository(name));
    let pushers = [0, 1].map(|at| Pusher::start(field, &repositories[at], &Order::push(epoch).rival(at as u64 + 1)));
    let answers = pushers.each_ref().map(|pusher| pusher.line());
    let winners: Vec<_> = (0..2).filter(|at| answers[*at] == "pushed").collect();
    assert_eq!(winners.len(), 1, "{answers:?}");
    assert!(answers[1 - winners[0]].starts_with("regressed "), "{answers:?}");
    assert_eq!(field.author(), Some((epoch, winners[0] as u64 + 1)));
    tally.lock().unwrap().rivals += 1;
}

/// The zombie is stopped before it has pushed.
fn plain_round(field: &Field, way: Transport, round: u64, pair: Pair<'_>, dice: &mut Dice, tally: &Mutex<Tally>) {
    let epoch = 2 * round + 1;
    let late = Pusher::start(field, pair.0, &Order::push(epoch).how("plain"));
    std::thread::sleep(Duration::from_millis(dice.below(head_start(way) / 4)));
    late.stop();
    // JGit may lose the folder of a ref to another push, and say so: nothing was applied.
    let mut answers = (0..3).map(|_| Pusher::run(field, pair.1, &Order::push(epoch + 1)));
    assert_eq!(answers.find(|answer| !answer.starts_with("unavailable ")).as_deref(), Some("pushed"));
    late.resume();
    late.line();
    let mut tally = tally.lock().unwrap();
    tally.rounds += 1;
    tally.stale += u64::from(field.author() != Some((epoch + 1, 0)));
}

/// The one race that the remote alone can decide: the zombie has sent everything, then the successor seals. Ours is
/// refused; each way of leaving a part out lands.
pub fn controls(backend: Backend) {
    for (how, is_stale) in [("push", false), ("once", false), ("plain", true), ("unmoved", true), ("apart", true)] {
        let field = Field::new(backend, Transport::File);
        let (zombie, successor) = (field.repository("zombie"), field.repository("successor"));
        assert_eq!(Pusher::run(&field, &zombie, &Order::push(4)), "pushed");
        let trap = Trap::set(&field, Point::Sent);
        let late = Pusher::start(&field, &zombie, &Order::push(5).how(how));
        let remote = trap.sprung();
        assert_eq!(Pusher::run(&field, &successor, &Order::seal(6)), "pushed");
        trap.open();
        let answer = late.line();
        trap.wait_gone(remote);
        let expected = if is_stale { (5, 0) } else { (4, 0) };
        assert_eq!(field.author(), Some(expected), "{how}: {answer}");
        assert!(is_stale || answer.starts_with("fenced "), "{how}: {answer}");
        println!(
            "{backend:?}, sealed after sending, {how}: {}",
            if is_stale { "stale (control, caught)" } else { "refused" }
        );
    }
    background_fetch(backend);
}

/// Without an explicit value git expects what was fetched last, and something in the background fetches.
fn background_fetch(backend: Backend) {
    let field = Field::new(backend, Transport::File);
    let (zombie, successor) = (field.repository("zombie"), field.repository("successor"));
    field.git(&zombie, &["config", "--add", "remote.origin.fetch", "+refs/fence/*:refs/fence-seen/*"]);
    assert_eq!(Pusher::run(&field, &zombie, &Order::push(5)), "pushed");
    let mut implicit = Pusher::start(&field, &zombie, &Order::push(5).mark(1).how("implicit"));
    assert_eq!(implicit.line(), "at");
    let ours = Pusher::start(&field, &zombie, &Order::push(5).mark(2).with("stop", 2));
    assert_eq!(ours.line(), "at");
    ours.wait_stopped();
    assert_eq!(Pusher::run(&field, &successor, &Order::push(6)), "pushed");
    field.git(&zombie, &["fetch", "-q", "origin"]);
    ours.resume();
    let answer = ours.line();
    assert!(answer.starts_with("fenced "), "{answer}");
    assert_eq!(field.author(), Some((6, 0)), "ours was defeated by a fetch");
    implicit.go();
    assert_eq!(implicit.line(), "pushed", "the control passed");
    assert_eq!(field.author(), Some((5, 1)), "the control passed");
}
