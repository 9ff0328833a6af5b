//! Signals that come before the command is begun: nothing is run, nothing stays held, and the slot stays open.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod common;

use common::slots::{rare_slot, runs};
use common::{Home, On, eventually, signal, traced};
use leasehold_core::lease::protocol::{AfterFailure, SlotClaim};
use leasehold_core::{Acquired, Ask, Coordinator, HolderId, LeaseName, Slot, Timestamp};

/// Nothing was run for the slot, and the next one who asks runs it.
fn is_open_and_free(home: &Home, log: &str) {
    assert!(!home.path("ran").exists(), "it was begun: {log}");
    let found = runs(home, "job");
    assert_eq!(found[0]["fate"], "not_started", "{found:?} {log}");
    assert!(home.show("job")["holder"].is_null(), "{} {log}", home.show("job"));
    assert_eq!(home.history("job")[0]["outcome"], "not_started", "{log}");
}

/// The slot is claimed, and the dead-man is just being started.
#[test]
fn a_signal_between_the_claim_of_a_slot_and_its_command_leaves_the_slot_open() {
    let home = Home::new(On::Dir);
    let line = rare_slot();
    let trigger = ["run", "job", "--slot", &line, "--slot-max-age", "100d", "--", "sh", "-c", "echo >> ran"];
    // The first two are the runtime's own.
    let inject = ["-e", "trace=socketpair,linkat,execve", "-e", "inject=socketpair:signal=TERM:when=3"];
    traced::start(&home, &trigger, "trace", &inject).end().expect(143);
    let log = home.read("trace");
    let at = |what: &str| log.find(what).unwrap_or_else(|| panic!("no {what}: {log}"));
    assert!(at("/lease/job/") < at("SIGTERM") && at("SIGTERM") < at("__dead-man"), "not where it was meant: {log}");
    is_open_and_free(&home, &log);
    home.done(&trigger).expect(0);
    assert_eq!((home.read("ran").as_str(), runs(&home, "job")[0]["fate"].as_str()), ("\n", Some("succeeded")));
}

/// A grant with this slot, as a scheduler hands it to the run that it starts.
fn granted(home: &Home, slot: Slot) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let leases = Coordinator::new(leasehold_stores::open(&home.store.parse().unwrap()).await.unwrap());
        let claim = SlotClaim::new(slot, AfterFailure::Leave);
        let ask = Ask { slot: Some(claim), ..Ask::new(HolderId::new(None), "1h".parse().unwrap()) };
        let name: LeaseName = "job".parse().unwrap();
        let Acquired::Granted(grant) = leases.acquire(&name, &ask).await.unwrap() else { panic!("it is free") };
        grant.token().wire()
    })
}

/// `schedule` has claimed the slot, and the run that it started is taking the grant up.
#[test]
fn a_signal_while_a_scheduled_run_takes_its_grant_up_gives_it_back() {
    let home = Home::new(On::Dir);
    let slot = leasehold_system::clock::wall_ms() / 60_000 * 60_000;
    let token = granted(&home, Slot(Timestamp::from_millis(slot)));
    let at = format!("--slot-at={}", jiff::Timestamp::from_millisecond(slot as i64).unwrap());
    let mut run = home.leasehold(&["run", "job", "--adopt", &at, "--", "sh", "-c", "echo >> ran"]);
    run.env("LEASEHOLD_TOKEN", &token);
    // The write is visible, and its answer takes a while: the signal is there before it.
    let inject = [
        "-e",
        "trace=linkat,fsync,execve",
        "-e",
        "inject=linkat:signal=TERM:when=1",
        "-e",
        "inject=fsync:delay_enter=200000",
    ];
    let run = traced::traced(&run, &home.path("trace"), &inject).spawn().unwrap();
    common::Running::from(run).end().expect(143);
    is_open_and_free(&home, &home.read("trace"));
}

/// Without a slot it was so before.
#[test]
fn a_run_for_a_slot_on_a_store_that_does_not_answer_ends_by_the_signal() {
    let home = Home::new(On::Dir);
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let store = format!("etcd://{}", silent.local_addr().unwrap());
    silent.set_nonblocking(true).unwrap();
    for slot in [&["--slot", "@every 1h"][..], &[]] {
        let run = home.start(&[&["--store", &store, "run", "job"], slot, &["--", "sh", "-c", "echo >> ran"]].concat());
        let mut asked = None;
        eventually("the store is asked", || {
            asked = asked.take().or_else(|| silent.accept().ok());
            asked.is_some()
        });
        signal(run.pid(), "TERM");
        run.end().expect(143);
    }
    assert!(!home.path("ran").exists());
}
