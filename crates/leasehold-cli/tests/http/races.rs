//! Zombies stopped at random in the middle of a request, and their successors.

use crate::peer::{Peer, post};
use crate::rig::{Proxied, Store, Zombie, author, payload};
use crate::upstream::Upstream;
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::{LeaseName, Nonce};
use std::time::Duration;

const ROUNDS: u64 = 1100;
const CONTROL_ROUNDS: u64 = 150;

#[derive(Debug, Default)]
struct Tally {
    rounds: u64,
    stopped: u64,
    finished: u64,
    fenced: u64,
    cut: u64,
    stale: u64,
    slowest: Duration,
}

fn race(kind: &str, rounds: u64) -> Tally {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = Store::open_in(folder.path());
    let upstream = Upstream::start();
    let proxy = Proxied::start_as(kind, &store, &upstream.url(), "api");
    proxy.wait_active();
    let lease: LeaseName = "job".parse().unwrap();
    let mut zombie = Zombie::start(proxy.address);
    let mut successor = Peer::connect(proxy.address);
    let mut dice = Nonce::random().as_u128() as u64 | 1;
    println!("seed {dice}");
    let mut below = |bound: u64| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        (dice >> 11) % bound
    };
    let mut tally = Tally::default();
    for round in 0..rounds {
        let old = store.transfer(&lease);
        zombie.order(&old);
        for _ in 0..below(120_000) {
            std::hint::spin_loop();
        }
        let stop = round % 4 != 0;
        if stop {
            zombie.stop();
            tally.stopped += 1;
        }
        let new = store.transfer(&lease);
        let begun = SystemClock.now();
        assert!(successor.send(&post("/write", &new.wire(), &payload(&new))), "round {round}");
        let answer = successor.answer().unwrap_or_else(|| panic!("round {round}: the successor got no answer"));
        assert_eq!(answer.status, 200, "round {round}: {answer:?}");
        tally.slowest = tally.slowest.max(SystemClock.now().saturating_since(begun));
        if stop {
            zombie.resume();
        }
        match zombie.status() {
            200 => tally.finished += 1,
            412 => tally.fenced += 1,
            0 => tally.cut += 1,
            other => panic!("round {round}: the zombie got {other}"),
        }
        // What the zombie was answered it was answered after the upstream had it: nothing more can come.
        let log: Vec<String> = upstream.applied().iter().map(crate::upstream::Applied::author).collect();
        let at = log.iter().position(|who| *who == author(&new)).unwrap();
        tally.stale += log[at..].iter().filter(|who| **who == author(&old)).count() as u64;
        upstream.log.lock().unwrap().clear();
        tally.rounds += 1;
    }
    tally
}

pub fn no_stale_write_lands() {
    let tally = race("proxy", ROUNDS);
    println!("proxy: {tally:?}");
    assert_eq!(tally.stale, 0, "{tally:?}");
    assert!(tally.fenced + tally.cut > tally.rounds / 10, "too few zombies were caught on the way: {tally:?}");
    assert!(tally.finished > 0, "no zombie ever finished in time: {tally:?}");
    assert!(tally.slowest < Duration::from_secs(5), "a new holder was blocked: {tally:?}");
}

pub fn the_naive_proxy_is_caught() {
    let tally = race("naive", CONTROL_ROUNDS);
    println!("naive proxy (control): {tally:?}");
    assert!(tally.stale > 0, "the control passed, so this harness would not see a stale write: {tally:?}");
}
