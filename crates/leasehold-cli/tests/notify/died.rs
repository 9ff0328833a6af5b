//! Machines that die before they have told.

use crate::common;
use crate::rig::*;

#[test]
fn the_run_after_a_machine_died_tells_of_it_though_it_succeeds() {
    let receiver = receiver();
    let home = home(&webhook(&receiver, "on = [\"lost\"]"));
    run(&home, "nightly", "true").expect(0);
    let died = home.start(&["run", "nightly", "--ttl", "2s", "--", "sh", "-c", "echo $$ > started; sleep 600"]);
    home.words("started");
    // The supervisor first, which would otherwise tell how it ended.
    let below = common::descendants(died.pid());
    [died.pid()].into_iter().chain(below).for_each(|pid| signal(pid, "KILL"));
    eventually("its lease runs out", || home.show("nightly")["state"] != "held");
    run(&home, "nightly", "true").expect(0);
    eventually("somebody is told", || {
        // The next run delivers what the last one could not.
        run(&home, "other", "true");
        !receiver.heard().is_empty()
    });
    assert_eq!(types(&receiver.heard()), ["lease.lost"]);
    assert_eq!(event(&receiver.heard()[0])["data"]["epoch"], 2);
}

#[test]
fn a_failure_that_was_recorded_and_not_reported_is_reported_by_the_next_run_though_that_succeeds() {
    let tell = r#"command = ["sh", "-c", "echo $LEASEHOLD_EVENT_NAME $LEASEHOLD_EVENT_TYPE >>told"]"#;
    let home = home(&format!("[[notify]]\non = [\"failed\", \"lost\", \"recovered\"]\n{tell}\n"));
    // Killed at each of its writes in turn: some come after its end is recorded, and before anybody is told.
    let mut recorded = Vec::new();
    for number in 1..=8 {
        let (name, inject) = (format!("nightly-{number}"), format!("inject=fsync:signal=KILL:when={number}"));
        run(&home, &name, "true").expect(0);
        let options = ["-e", "trace=fsync", "-e", &inject];
        let died = common::traced::start(&home, &["run", &name, "--", "sh", "-c", "exit 3"], "trace", &options).end();
        let is_recorded = home.history(&name).iter().any(|transfer| transfer["outcome"] == "failed");
        if died.code == 137 && is_recorded && !home.read("told").contains(&name) {
            run(&home, &name, "true").expect(0);
            recorded.push(name);
        }
    }
    assert!(!recorded.is_empty(), "no write came between the record and the message");
    let told = |name: &str| {
        let told = home.read("told");
        let mut kinds: Vec<String> = told.lines().filter_map(|line| Some(line.strip_prefix(name)?.into())).collect();
        // One that was killed when it had told is told again.
        kinds.dedup();
        kinds
    };
    within(LONG, "both are told of each", || {
        run(&home, "other", "true");
        recorded.iter().all(|name| told(name).len() > 1)
    });
    for name in &recorded {
        assert_eq!(told(name), [" lease.failed", " lease.recovered"], "{name}");
    }
}

#[test]
fn a_slot_whose_machine_died_is_reported_though_it_is_run_again_and_succeeds() {
    let tell = r#"command = ["sh", "-c", "echo $LEASEHOLD_EVENT_TYPE >>told"]"#;
    let home = home(&format!("[[notify]]\non = [\"lost\", \"recovered\"]\n{tell}\n"));
    let slot = |command: &str| {
        let words = ["run", "nightly", "--ttl", "2s", "--slot", "@daily", "--", "sh", "-c"];
        words.iter().map(ToString::to_string).chain([command.to_owned()]).collect::<Vec<_>>()
    };
    let words = slot("echo $$ > started; sleep 600");
    let died = home.start(&words.iter().map(String::as_str).collect::<Vec<_>>());
    home.words("started");
    let below = common::descendants(died.pid());
    [died.pid()].into_iter().chain(below).for_each(|pid| signal(pid, "KILL"));
    eventually("its lease runs out", || home.show("nightly")["state"] != "held");
    let words = slot("true");
    home.done(&words.iter().map(String::as_str).collect::<Vec<_>>()).expect(0);
    eventually("both are told", || {
        run(&home, "other", "true");
        home.words("told").len() > 1
    });
    assert_eq!(home.words("told"), ["job.lost", "job.recovered"]);
}
