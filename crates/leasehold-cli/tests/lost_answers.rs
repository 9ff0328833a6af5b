//! Operators' orders whose answers are lost while others go on: what the order itself did is told, never what came after.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod common;

use common::{Done, Home, On, eventually, signal, traced};

/// The order, stopped after its write is visible and has failed to be made durable. Others have the lease, and one has it
/// still, when the order goes on.
fn overtaken(home: &Home, order: &[&str]) -> Done {
    home.done(&["run", "job", "--", "true"]).expect(0);
    let folder = home.path("leases/lease/job");
    let inject =
        ["-P", folder.to_str().unwrap(), "-e", "trace=fsync", "-e", "inject=fsync:error=EIO:signal=STOP:when=1"];
    let ordering = traced::start(home, order, "trace", &inject);
    eventually("the order is stopped", || home.read("trace").contains("stopped by SIGSTOP"));
    traced::untrace(&ordering);
    for _ in 0..3 {
        home.done(&["run", "job", "--ttl", "3s", "--wait", "2m", "--", "true"]).expect(0);
    }
    home.done(&["acquire", "job", "--ttl", "1h"]).expect(0);
    let held = home.show("job");
    signal(ordering.pid(), "CONT");
    let done = ordering.end();
    let now = home.show("job");
    assert_eq!((&now["epoch"], &now["holder"]), (&held["epoch"], &held["holder"]), "nobody is evicted: {done:?}");
    done
}

#[test]
fn an_order_whose_answer_was_lost_is_recognized_by_its_own_epoch() {
    let home = Home::new(On::Dir);
    let done = overtaken(&home, &["revoke", "job", "--why", "drill"]).expect(0);
    assert!(done.stderr.contains("revoked `job`") && done.stderr.contains("epoch 2"), "{done:?}");
    assert!(done.stderr.contains("is at epoch 6 now"), "{done:?}");

    let home = Home::new(On::Dir);
    let done = overtaken(&home, &["advance", "job", "--past", "20", "--why", "drill", "--json"]).expect(0);
    let value: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!((&value["ordered_epoch"], &value["epoch"]), (&21.into(), &25.into()), "{value}");
}

#[test]
fn a_hand_off_that_is_over_when_its_answer_is_known_was_not_refused() {
    let home = Home::new(On::Dir);
    let done = overtaken(&home, &["hand-off", "job", "--to", "bob", "--ttl", "3s", "--why", "drill"]).expect(12);
    assert_eq!(done.stdout, "", "its token would be another's");
    assert!(done.stderr.contains("was handed off to bob"), "{done:?}");
    assert!(done.stderr.contains("as ordered, under epoch 2") && done.stderr.contains("(expired)"), "{done:?}");
}
