//! While something is down.

use crate::rig::*;

#[test]
fn while_it_is_down_there_are_reminders() {
    let receiver = receiver();
    let home = home(&webhook(&receiver, "on = [\"failed\"]\nremind = \"1s\""));
    run(&home, "nightly", "exit 1").expect(1);
    within(LONG, "a reminder", || {
        run(&home, "nightly", "exit 1").expect(1);
        receiver.heard().len() > 1
    });
    let told: Vec<Value> = receiver.heard().iter().map(event).collect();
    assert_eq!((told[0]["data"]["reminder"].as_u64(), told[1]["data"]["reminder"].as_u64()), (None, Some(1)));
    assert!(told[1]["text"].as_str().unwrap().starts_with("nightly is still down"), "{}", told[1]["text"]);
    all_taken(&receiver);
}

#[test]
fn a_reminder_of_a_scheduler_has_the_exit_code_and_the_last_lines_of_the_failure() {
    let receiver = receiver();
    // Its runs come faster than they are judged.
    let job = "[[job]]\nname = \"tick\"\nevery = \"1s\"\ncommand = \"echo disk full; exit 5\"\n";
    let home = home(&format!("{}{job}", webhook(&receiver, "on = [\"failed\"]\nremind = \"1s\"")));
    let scheduler = scheduler(&home, "leasehold.toml");
    within(LONG, "reminders", || receiver.heard().len() > 4);
    stop(scheduler);
    for told in receiver.heard().iter().map(event) {
        assert_eq!((&told["data"]["exit_code"], &told["data"]["tail"]), (&5.into(), &"disk full\n".into()), "{told}");
    }
    all_taken(&receiver);
}

#[test]
fn of_the_reminders_that_wait_for_a_receiver_that_is_away_the_newest_arrives() {
    let receiver = receiver();
    let home = home(&webhook(&receiver, "on = [\"failed\"]\nremind = \"1s\""));
    receiver.answer(503);
    let waiting = || -> Vec<Value> {
        let listed = home.done(&["queue", "ls", "leasehold.notify.ops", "--json"]).expect(0).stdout;
        serde_json::from_str(&listed).unwrap()
    };
    within(LONG, "several reminders were made", || {
        run(&home, "nightly", "exit 6").expect(6);
        waiting().iter().filter(|item| item["state"] == "cancelled").count() > 1
    });
    let left = waiting().iter().filter(|item| item["state"] != "cancelled").count();
    assert_eq!(left, 2, "the failure, and one reminder: {:?}", waiting());
    receiver.answer(200);
    within(LONG, "both are told", || {
        run(&home, "another", "true").expect(0);
        receiver.heard().len() > 1
    });
    let told: Vec<Value> = receiver.heard().iter().map(event).collect();
    assert!(told[0]["data"]["reminder"].is_null() && told[1]["data"]["reminder"].as_u64() > Some(2), "{told:?}");
    all_taken(&receiver);
}
