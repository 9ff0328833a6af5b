//! Every named step of an admitted request, with every fault, and the transfer before it or after it.

use crate::peer::{Answer, Peer, post};
use crate::rig::{PATIENCE, Proxied, Store, author, payload};
use crate::upstream::Upstream;
use leasehold_core::{Key, LeaseName, Shelf, Token};
use leasehold_server::proxy::ProxyStep;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Stop,
    Kill,
    UpstreamError,
    LostReply,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transfer {
    Before,
    After,
}

pub fn every_case() {
    let mut cases = Vec::new();
    for step in ProxyStep::ALL {
        for fault in [Fault::Stop, Fault::Kill, Fault::UpstreamError, Fault::LostReply] {
            for transfer in [Transfer::Before, Transfer::After] {
                cases.push((step, fault, transfer));
            }
        }
    }
    let total = cases.len();
    // Most of a case is waiting for a dead proxy's lease to expire: several at once.
    let queue = std::sync::Mutex::new(cases);
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                loop {
                    let Some((step, fault, transfer)) = queue.lock().unwrap().pop() else { return };
                    case(step, fault, transfer);
                }
            });
        }
    });
    println!("{total} cases, 0 stale, no new holder blocked");
    assert_eq!(total, 48);
}

fn case(step: ProxyStep, fault: Fault, transfer: Transfer) {
    let what = format!("{step:?}/{fault:?}/{transfer:?}");
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = Store::open_in(folder.path());
    let upstream = Upstream::start();
    let mut struck = Proxied::start(&store, &upstream.url(), "api");
    struck.wait_active();
    let other = Proxied::start(&store, &upstream.url(), "api");
    let lease: LeaseName = "job".parse().unwrap();
    let old = store.transfer(&lease);
    // With the transfer before, the fence stands at the old epoch, so that its next request passes; the fence's own
    // steps are then the new holder's.
    let moves = matches!(step, ProxyStep::Swap | ProxyStep::File | ProxyStep::Swapped);
    let mut new = None;
    if transfer == Transfer::Before {
        assert_eq!(struck.write(&old, "/write").unwrap().status, 200, "{what}");
        new = Some(store.transfer(&lease));
    }
    let faulted = if moves { new.clone().unwrap_or_else(|| old.clone()) } else { old.clone() };
    let target = match fault {
        Fault::UpstreamError => "/fail",
        Fault::LostReply => "/mute",
        Fault::Stop | Fault::Kill => "/write",
    };
    struck.arm(step, fault == Fault::Kill);
    let mut client = Peer::connect(struck.address);
    let request = post(target, &faulted.wire(), &payload(&faulted));
    // The head and a part of the body, then the rest: there is a middle of it.
    client.send(&request[..request.len() - 1000]);
    client.send(&request[request.len() - 1000..]);
    struck.wait_at();
    if fault != Fault::Kill {
        struck.wait_stopped();
    }
    let new = new.unwrap_or_else(|| store.transfer(&lease));
    let gone = matches!(fault, Fault::Stop | Fault::Kill);
    if !gone {
        struck.resume();
        let answer = client.answer().unwrap_or_else(|| panic!("{what}: no answer"));
        assert!(matches!(answer.status, 502 | 412), "{what}: {answer:?}");
    }
    let writer = if gone { &other } else { &struck };
    let (answer, took) = writer.write_until(&new);
    assert_eq!(answer.status, 200, "{what}: {answer:?}");
    assert!(took < Duration::from_secs(15), "{what}: a new holder was blocked for {took:?}");
    if fault == Fault::Stop {
        struck.resume();
        // Answered or cut off; either way it is over.
        let _ = client.answer();
    }
    assert_refused(&what, writer.write(&old, "/write"));
    check(&what, &upstream, &old, &new, fault == Fault::LostReply || gone);
}

fn assert_refused(what: &str, answer: Option<Answer>) {
    let answer = answer.unwrap_or_else(|| panic!("{what}: no answer"));
    assert_eq!(answer.status, 412, "{what}: {answer:?}");
    assert_eq!(answer.header("leasehold-fenced").as_deref(), Some("held=1 seen=3"), "{what}: {answer:?}");
}

fn check(what: &str, upstream: &Upstream, old: &Token, new: &Token, may_repeat: bool) {
    let log: Vec<String> = upstream.applied().iter().map(crate::upstream::Applied::author).collect();
    let first = log.iter().position(|who| *who == author(new)).unwrap_or_else(|| panic!("{what}: {log:?}"));
    assert!(!log[first..].contains(&author(old)), "{what}: a stale write was applied: {log:?}");
    let news = log.iter().filter(|who| **who == author(new)).count();
    assert!(news == 1 || may_repeat, "{what}: {log:?}");
}

/// The same epoch granted twice, by a store that was set back: the second grant is not stale, it is a store regressed.
pub fn a_rolled_back_store() {
    for (kind, caught) in [("proxy", true), ("naive", false)] {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let store = Store::open_in(folder.path());
        let upstream = Upstream::start();
        let proxy = Proxied::start_as(kind, &store, &upstream.url(), "api");
        proxy.wait_active();
        let lease: LeaseName = "job".parse().unwrap();
        let key = Key::new(Shelf::Lease, &lease);
        let before = store.transfer(&lease);
        store.release(&before);
        let backup = store.run(store.leases.store().read(&key)).unwrap().value.unwrap();
        let first = store.transfer(&lease);
        assert_eq!(proxy.write(&first, "/write").unwrap().status, 200);
        let now = store.run(store.leases.store().read(&key)).unwrap().value.unwrap();
        store.run(store.leases.store().swap(&key, Some(&now.revision), &backup.bytes)).unwrap();
        let second = store.transfer(&lease);
        assert_eq!(first.epoch, second.epoch);
        let answer = proxy.write(&second, "/write").unwrap();
        let log: Vec<String> = upstream.applied().iter().map(crate::upstream::Applied::author).collect();
        if caught {
            assert_eq!(answer.status, 409, "{answer:?}");
            assert!(answer.body.contains("has seen epoch 2 of lease `job`"), "{answer:?}");
            assert_eq!(log, [author(&first)]);
            // And one that is below: the store says it is the holder's, the fence has seen more.
            let now = store.run(store.leases.store().read(&key)).unwrap().value.unwrap();
            let lineage = Some(first.lineage);
            let empty = leasehold_core::Ownership { lineage, ..leasehold_core::Ownership::default() };
            let empty = leasehold_core::codec::encode("ownership", &empty).unwrap();
            store.run(store.leases.store().swap(&key, Some(&now.revision), &empty)).unwrap();
            let third = store.transfer(&lease);
            assert_eq!(third.epoch.get(), 1);
            let answer = proxy.write(&third, "/write").unwrap();
            assert_eq!(answer.status, 409, "{answer:?}");
            assert!(answer.body.contains("store regressed"), "{answer:?}");
            // And one that has begun anew: the store says that it is held, but it is another lease.
            let now = store.run(store.leases.store().read(&key)).unwrap().value.unwrap();
            let empty = leasehold_core::codec::encode("ownership", &leasehold_core::Ownership::default()).unwrap();
            store.run(store.leases.store().swap(&key, Some(&now.revision), &empty)).unwrap();
            let fourth = store.transfer(&lease);
            assert_ne!(fourth.lineage, first.lineage);
            let answer = proxy.write(&fourth, "/write").unwrap();
            assert_eq!(answer.status, 403, "{answer:?}");
            assert!(answer.body.contains("not this lease"), "{answer:?}");
            assert_eq!(upstream.count(), 1);
        } else {
            assert_eq!(log, [author(&first), author(&second)], "the epoch-only control passed");
        }
    }
    let _ = PATIENCE;
}
