//! Races of real processes: stopped anywhere, resumed too late, and never once published.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../rig/mod.rs"]
mod rig;

use common::scratch;
use leasehold_guards::FileStep;
use leasehold_system::clock;
use rig::artifact::{author, read};
use rig::dice::{Dice, flag, play, seed};
use rig::{Fault, How, Order, Reply, Worker};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};

/// Rounds of zombie and successor, half of them with the zombie stopped.
const ROUNDS: u64 = 2400;
/// The longest head start that a zombie gets, in turns of a loop: about as long as a whole write takes.
const HEAD_START: u64 = 40_000;
const WRITERS: usize = 12;

/// Three folders, separated by `:`: two mounts of one network share, and the share itself on its server. The zombie is on
/// one mount, its successor on the other, and what the server has is what counts.
const MOUNTS: &str = "LEASEHOLD_TEST_MOUNTS";
/// Every round waits for a network file system.
const ROUNDS_ACROSS: u64 = 240;

fn across(mounts: &str, seed: u64) {
    let mut mounts = mounts.split(':').map(Path::new);
    let (Some(one), Some(other), Some(server)) = (mounts.next(), mounts.next(), mounts.next()) else {
        panic!("{MOUNTS} names three folders");
    };
    let paths = |name: &str| Paths { zombie: one.join(name), successor: other.join(name), judge: server.join(name) };
    play("a_stale_writer_never_lands_across_two_mounts", "races", seed, || {
        let result = rounds(How::File, &paths("permit"), seed, ROUNDS_ACROSS);
        println!("permit directory, two mounts: {result:?}");
        assert_eq!(result.stale, 0, "{result:?}");
        assert!(result.landed_stopped < result.stopped, "no zombie was ever stopped in time: {result:?}");
    });
    play("a_name_that_a_mount_remembers_is_no_permit", "races", seed, || remembered_name(&paths("remembered")));
    play("the_naive_fence_file_is_caught_across_two_mounts", "races", seed, || {
        let result = rounds(How::Naive, &paths("naive"), seed, ROUNDS_ACROSS);
        println!("naive fence file (control), two mounts: {result:?}");
        assert!(result.stale > 0, "the control passed, so this harness would not see a stale write: {result:?}");
    });
}

fn main() {
    if std::env::args().nth(1).as_deref() == Some("worker") {
        return rig::worker::main();
    }
    let seed = seed();
    if let Ok(mounts) = std::env::var(MOUNTS) {
        return across(&mounts, seed);
    }
    play("a_stale_writer_never_lands_wherever_it_was_stopped", "races", seed, || {
        let result = rounds(How::File, &Paths::local(&scratch()), seed, flag("--rounds").unwrap_or(ROUNDS));
        println!("permit directory, in memory: {result:?}");
        assert_eq!(result.stale, 0, "{result:?}");
        assert!(
            result.finished > 0 && result.landed_stopped < result.stopped,
            "no zombie was ever stopped before it published: {result:?}"
        );
    });
    play("on_disk_too", "races", seed, || {
        let result = rounds(How::File, &Paths::local(&tempfile::tempdir().unwrap()), seed, 100);
        println!("permit directory, on disk: {result:?}");
        assert_eq!(result.stale, 0, "{result:?}");
    });
    play("the_naive_fence_file_is_caught", "races", seed, || {
        let result = rounds(How::Naive, &Paths::local(&scratch()), seed, ROUNDS);
        println!("naive fence file (control): {result:?}");
        assert!(result.stale > 0, "the control passed, so this harness would not see a stale write: {result:?}");
    });
    play("two_processes_of_one_tenure_cannot_revive_its_permit", "races", seed, || two_of_one_tenure(How::File));
    play("two_publishers_of_one_tenure_cannot_revive_its_permit", "races", seed, || two_of_one_tenure(How::Folder));
    play("readers_never_see_the_epoch_go_back", "races", seed, || {
        let (reads, backward) = crowd(How::File, seed);
        println!("12 writers, permit directory: {reads} reads, {backward} steps back");
        assert_eq!(backward, 0);
    });
    play("readers_of_the_naive_fence_file_do", "races", seed, || {
        let (reads, backward) = crowd(How::Naive, seed);
        println!("12 writers, naive fence file (control): {reads} reads, {backward} steps back");
        assert!(backward > 0, "the control passed");
    });
    play("a_second_grant_of_an_epoch_is_regressed", "races", seed, second_grant);
    play("rival_grants_of_one_epoch_leave_a_fence_that_refuses_older_ones", "races", seed, rivals);
}

#[derive(Debug, Default)]
struct Rounds {
    finished: u64,
    stopped: u64,
    /// Stopped ones that had published already, or did so before the successor sealed.
    landed_stopped: u64,
    fenced: u64,
    stale: u64,
    worst_successor_us: u128,
}

/// The one file, as each side reaches it.
struct Paths {
    zombie: PathBuf,
    successor: PathBuf,
    judge: PathBuf,
}

impl Paths {
    fn local(folder: &tempfile::TempDir) -> Self {
        let path = folder.path().join("out");
        Paths { zombie: path.clone(), successor: path.clone(), judge: path }
    }
}

fn rounds(how: How, paths: &Paths, seed: u64, rounds: u64) -> Rounds {
    let mut dice = Dice::new(seed);
    let (mut zombie, mut successor) = (Worker::start(), Worker::start());
    let mut result = Rounds::default();
    for round in 0..rounds {
        let epoch = 2 * round + 1;
        let stop = round % 2 == 0;
        zombie.send(&Order::new(how, &paths.zombie, epoch).with(Fault::Dawdle, dice.below(1 << 40) as usize));
        dice.dawdle(HEAD_START);
        if stop {
            zombie.stop();
        }
        let sent = clock::now();
        let reply = successor.run(&Order::new(how, &paths.successor, epoch + 1));
        let took = clock::now().saturating_since(sent).as_micros();
        assert_eq!(reply, Reply::Written, "round {round}: the successor was refused");
        if stop {
            result.stopped += 1;
            result.worst_successor_us = result.worst_successor_us.max(took);
            zombie.resume();
        }
        match zombie.reply() {
            Reply::Written => result.landed_stopped += u64::from(stop),
            refused => {
                assert!(refused.is("fenced"), "round {round}: {refused}");
                result.fenced += 1;
            }
        }
        result.finished += 1;
        result.stale += u64::from(read(how, &paths.judge) != Some((epoch + 1, 0)));
    }
    result
}

/// One process of epoch 5 is stopped at every step, 6 writes, another process of 5 is stopped at every step, and both
/// are resumed in either order. The second may re-create the permit that the first believes in.
fn two_of_one_tenure(how: How) {
    let folder = scratch();
    let [mut first, mut second, mut newer] = [(); 3].map(|()| Worker::start());
    let steps = FileStep::ALL.len();
    let mut tried = 0;
    for (at, again, swapped) in (0..steps).flat_map(|a| (0..steps).flat_map(move |b| [(a, b, false), (a, b, true)])) {
        let path = folder.path().join(format!("out-{at}-{again}-{swapped}"));
        assert_eq!(newer.run(&Order::new(how, &path, 1)), Reply::Written);
        if first.run(&Order::new(how, &path, 5).with(Fault::Stop, at)) != Reply::At {
            continue;
        }
        first.wait_stopped();
        assert_eq!(newer.run(&Order::new(how, &path, 6)), Reply::Written);
        let stopped = second.run(&Order::new(how, &path, 5).with(Fault::Stop, again)) == Reply::At;
        if stopped {
            second.wait_stopped();
        }
        let resume = |worker: &mut Worker| {
            worker.resume();
            worker.reply();
            assert_eq!(read(how, &path), Some((6, 0)), "stale: stopped at {at}, then {again}, swapped {swapped}");
        };
        if swapped && stopped {
            resume(&mut second);
        }
        resume(&mut first);
        if !swapped && stopped {
            resume(&mut second);
        }
        tried += 1;
    }
    println!("{how:?}: {tried} pairs of steps, 0 stale");
    assert!(tried > 100);
}

/// Twelve writers at once with ever newer epochs, half of them stopped at times until the others are far ahead.
fn crowd(how: How, seed: u64) -> (u64, u64) {
    const EPOCHS: u64 = 2400;
    let folder = scratch();
    let path = folder.path().join("out");
    let (next, advanced) = (Mutex::new(0_u64), Condvar::new());
    let (mut reads, mut backward) = (0, 0);
    let busy = AtomicU64::new(WRITERS as u64);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (next, advanced, busy, path) = (&next, &advanced, &busy, &path);
            scope.spawn(move || {
                write_along(
                    how,
                    path,
                    Dice::new(seed ^ (writer as u64 + 1) << 20),
                    writer % 2 == 0,
                    next,
                    advanced,
                    EPOCHS,
                );
                busy.fetch_sub(1, Ordering::SeqCst);
            });
        }
        let mut last = 0;
        while busy.load(Ordering::SeqCst) > 0 {
            let Ok(text) = std::fs::read_to_string(&path) else { continue };
            let (epoch, _) = author(&text);
            backward += u64::from(epoch < last);
            last = epoch;
            reads += 1;
        }
    });
    (reads, backward)
}

fn write_along(how: How, path: &Path, mut dice: Dice, stops: bool, next: &Mutex<u64>, advanced: &Condvar, epochs: u64) {
    let mut worker = Worker::start();
    loop {
        let epoch = {
            let mut next = next.lock().unwrap();
            *next += 1;
            advanced.notify_all();
            *next
        };
        if epoch > epochs {
            return;
        }
        worker.send(&Order::new(how, path, epoch).with(Fault::Dawdle, dice.below(1 << 40) as usize));
        if stops && dice.below(3) == 0 {
            dice.dawdle(HEAD_START);
            worker.stop();
            let until = (epoch + 1 + dice.below(20)).min(epochs);
            drop(advanced.wait_while(next.lock().unwrap(), |next| *next < until).unwrap());
            worker.resume();
        }
        let reply = worker.reply();
        assert!(reply == Reply::Written || reply.is("fenced"), "{reply}");
    }
}

/// The store was rolled back and grants epoch 7 again. A fence of numbers alone lets both write; ours refuses.
fn second_grant() {
    let folder = scratch();
    let mut worker = Worker::start();
    for (how, expected) in [(How::Naive, (7, 1)), (How::File, (7, 0))] {
        let path = folder.path().join(format!("{how:?}"));
        assert_eq!(worker.run(&Order::new(how, &path, 7)), Reply::Written);
        let second = worker.run(&Order::new(how, &path, 7).rival(1));
        assert_eq!(second.is("regressed"), how == How::File, "{second}");
        assert_eq!(read(how, &path), Some(expected), "{how:?}: the control must be caught, ours must refuse");
    }
}

/// The zombie has sealed, and its mount still shows the mark when the successor has removed it: it is told *fenced*, not to
/// try again.
fn remembered_name(paths: &Paths) {
    const ROUNDS: u64 = 20;
    let anchor = FileStep::ALL.iter().position(|step| *step == FileStep::Anchor).unwrap();
    let (mut zombie, mut successor) = (Worker::start(), Worker::start());
    for epoch in (1..=2 * ROUNDS).step_by(2) {
        assert_eq!(zombie.run(&Order::new(How::Seal, &paths.zombie, epoch)), Reply::Written);
        assert_eq!(zombie.run(&Order::new(How::File, &paths.zombie, epoch).with(Fault::Stop, anchor)), Reply::At);
        zombie.wait_stopped();
        assert_eq!(successor.run(&Order::new(How::File, &paths.successor, epoch + 1)), Reply::Written);
        zombie.resume();
        let refused = zombie.reply();
        assert!(refused.is("fenced"), "epoch {epoch}: {refused}");
        assert_eq!(read(How::File, &paths.judge), Some((epoch + 1, 0)));
    }
}

/// Two grants of one epoch at once: at most one of them writes, and whatever they did to each other, an older epoch finds a
/// fence. Both have looked when they are let go together; that they surely meet is a test of its own, in file.rs.
fn rivals() {
    const ROUNDS: u64 = 500;
    let folder = scratch();
    let make = FileStep::ALL.iter().position(|step| *step == FileStep::MakePermit).unwrap();
    let [mut one, mut other, mut older] = [(); 3].map(|()| Worker::start());
    let mut both_refused = 0;
    for round in 0..ROUNDS {
        let path = folder.path().join(format!("out-{round}"));
        for (worker, rival) in [(&mut one, 1), (&mut other, 2)] {
            let order = Order::new(How::File, &path, 7).rival(rival).with(Fault::Stop, make);
            assert_eq!(worker.run(&order), Reply::At);
            worker.wait_stopped();
        }
        one.resume();
        other.resume();
        let replies = [one.reply(), other.reply()];
        for refused in replies.iter().filter(|reply| **reply != Reply::Written) {
            assert!(refused.is("regressed"), "round {round}: {refused}");
        }
        let written = replies.iter().filter(|reply| **reply == Reply::Written).count();
        assert!(written < 2, "round {round}: both have written");
        both_refused += u64::from(written == 0);
        let before = read(How::File, &path);
        let stale = older.run(&Order::new(How::File, &path, 6));
        assert!(stale.is("fenced"), "round {round}: {stale}");
        assert_eq!(read(How::File, &path), before, "round {round}");
    }
    println!("two grants of one epoch: {ROUNDS} rounds, both refused in {both_refused}, an older epoch refused in all");
}
