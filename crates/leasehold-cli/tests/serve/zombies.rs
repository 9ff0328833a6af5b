//! `run` through a server that goes away: the command is dead before anybody else may have its lease.

use crate::common::{Done, Home, On, Running, is_alive, signal, within};
use crate::rig::{Served, key, serve};
use leasehold_core::clock::{Clock, SystemClock};
use std::process::Stdio;
use std::time::Duration;

const TTL: Duration = Duration::from_secs(3);

/// A command that runs under a lease of 3 s by this server.
fn run(home: &Home, server: &Served, key: &str) -> (Running, i32) {
    let url = format!("leasehold+http://{}/team", server.address);
    let job = "echo $$ > started; exec sleep 1000";
    let mut command = home.leasehold(&["run", "job", "--store", &url, "--ttl", "3s", "--", "sh", "-c", job]);
    command.env("LEASEHOLD_KEY", key).stdout(Stdio::piped()).stderr(Stdio::piped());
    let run = Running::from(command.spawn().unwrap());
    (run, home.words("started")[0].parse().unwrap())
}

/// That the command ends within a TTL of now, by the local clock, after the server got this signal.
fn ends_in_time(how: &str) {
    let home = Home::new(On::Sqlite);
    let mine = key(&home, &["--namespace", "team", "--allow", "read,hold"]);
    let server = serve(&home, &[]);
    let (run, command) = run(&home, &server, &mine);
    signal(server.running.pid(), how);
    let cut = SystemClock.now();
    within(TTL * 3, "the command is dead", || !is_alive(command));
    // The last renewal was sent before the server was gone, so trust ended a TTL after it at the latest.
    let took = SystemClock.now().saturating_since(cut);
    assert!(took <= TTL, "it lived on for {took:?}");
    // And its lease is still not anybody else's: the record says so, by the store's own clock, or its time was over just now.
    let done: Done = run.end();
    assert_eq!(done.code, 75, "{done:?}");
    assert!(done.stderr.contains("could not be renewed in time"), "{done:?}");
    signal(server.running.pid(), "CONT");
    drop(server);
    let team = format!("{}?namespace=team", home.store);
    let next = home.done(&["run", "job", "--store", &team, "--wait", "20s", "--", "sh", "-c", "echo $LEASEHOLD_EPOCH"]);
    assert_eq!(next.expect(0).stdout.trim(), "2", "the next holder has a newer epoch");
}

#[test]
fn a_command_is_dead_before_its_deadline_if_its_server_is_killed() {
    ends_in_time("KILL");
}

#[test]
fn a_command_is_dead_before_its_deadline_if_its_server_stands_still() {
    ends_in_time("STOP");
}
