//! People are told when it matters: once, under one id, whichever machines die, and never at the cost of the job.

#![cfg(feature = "http")]
#![allow(clippy::unwrap_used)]

mod channels;
#[path = "../common/mod.rs"]
mod common;
mod died;
mod reminders;
mod rig;

use rig::*;
use std::collections::BTreeSet;

#[test]
fn after_so_many_failures_there_is_one_signed_webhook_and_one_for_the_recovery() {
    let receiver = receiver();
    let home = home(&webhook(&receiver, "on = [\"failed\", \"recovered\"]\nafter = 2\nnames = [\"night*\"]"));
    run(&home, "nightly", "exit 3").expect(3);
    run(&home, "other", "exit 3").expect(3);
    run(&home, "other", "exit 3").expect(3);
    assert!(receiver.heard().is_empty());
    run(&home, "nightly", "echo disk full; exit 4").expect(4);
    let heard = receiver.heard();
    assert_eq!(types(&heard), ["lease.failed"]);
    let told = event(&heard[0]);
    let data = &told["data"];
    assert_eq!(
        (data["name"].as_str(), data["failures"].as_u64(), data["exit_code"].as_u64()),
        (Some("nightly"), Some(2), Some(4))
    );
    let text = told["text"].as_str().unwrap();
    assert!(text.starts_with("nightly failed with exit code 4; 2 failures in a row"), "{text}");
    // The store is a file, so it is there only, and a plain run keeps no output.
    let (host, store) = (leasehold_system::host::name(), &home.store);
    let look = format!("look on {host}: leasehold history nightly --store {store}");
    assert!(text.ends_with(&format!("\n```\ndisk full\n```\n{look}")), "{text}");
    assert_eq!(data["tail"], "disk full\n");
    run(&home, "nightly", "exit 4").expect(4);
    run(&home, "nightly", "true").expect(0);
    run(&home, "nightly", "true").expect(0);
    assert_eq!(types(&receiver.heard()), ["lease.failed", "lease.recovered"]);
    all_taken(&receiver);
}

#[test]
fn a_flock_is_free_while_the_end_of_the_run_is_reported() {
    let tell = r#"command = ["sh", "-c", "flock -n old.flock true && echo free >seen || echo taken >seen"]"#;
    let home = home(&format!("[[notify]]\non = [\"failed\"]\n{tell}\n"));
    home.done(&["run", "nightly", "--also-flock", "old.flock", "--", "sh", "-c", "exit 9"]).expect(9);
    assert_eq!(home.read("seen"), "free\n");
}

#[test]
fn a_command_gets_the_event_on_its_input_and_in_its_environment() {
    let tell = r#"command = ["sh", "-c", "cat >>events; echo >>events; env | grep ^LEASEHOLD_ >environment"]"#;
    let home = home(&format!("[[notify]]\non = [\"failed\"]\n{tell}\n"));
    run(&home, "nightly", "exit 9").expect(9);
    let told: Value = serde_json::from_str(home.read("events").trim()).unwrap();
    assert_eq!((told["type"].as_str(), told["data"]["exit_code"].as_u64()), (Some("lease.failed"), Some(9)));
    let environment = home.read("environment");
    for line in ["LEASEHOLD_EVENT_TYPE=lease.failed", "LEASEHOLD_EVENT_NAME=nightly", "LEASEHOLD_EVENT_ID=evt_"] {
        assert!(environment.contains(line), "{environment}");
    }
    assert!(!environment.contains("LEASEHOLD_STORE"), "{environment}");
    let ours: Value =
        environment.lines().find_map(|l| serde_json::from_str(l.strip_prefix("LEASEHOLD_EVENT=")?).ok()).unwrap();
    assert_eq!(ours, told);
}

#[test]
fn what_a_killed_run_had_not_delivered_the_next_run_delivers_under_the_same_id() {
    let receiver = receiver();
    let home = home(&webhook(&receiver, "on = [\"failed\"]"));
    receiver.hang();
    let killed = home.start(&["run", "nightly", "--", "false"]);
    eventually("it is at its delivery", || !receiver.asked().is_empty());
    signal(killed.pid(), "KILL");
    assert_eq!(killed.end().code, 137);
    let id = receiver.asked()[0].clone();
    receiver.answer(200);
    within(LONG, "the next run delivers it", || {
        run(&home, "another", "true").expect(0);
        !receiver.heard().is_empty()
    });
    let heard = receiver.heard();
    assert_eq!((types(&heard), &heard[0].id), (vec!["lease.failed"], &id));
    assert_eq!(event(&heard[0])["data"]["name"], "nightly");
    all_taken(&receiver);
}

#[test]
fn a_receiver_that_is_away_costs_the_job_nothing_and_is_notified_when_it_is_back() {
    let receiver = receiver();
    let home = home(&webhook(&receiver, "on = [\"failed\"]"));
    receiver.answer(503);
    let done = run(&home, "nightly", "exit 6").expect(6);
    assert!(done.stderr.contains("answered 503") && done.stderr.contains("will be retried"), "{done:?}");
    assert!(done.stderr.contains(" about `nightly` was not delivered to channel `ops`"), "{done:?}");
    hides_the_url(&done);
    assert!(receiver.heard().is_empty());
    receiver.answer(200);
    within(LONG, "it is told", || {
        run(&home, "another", "true").expect(0);
        !receiver.heard().is_empty()
    });
    let asked: BTreeSet<String> = receiver.asked().into_iter().collect();
    assert_eq!((asked.len(), receiver.heard().len()), (1, 1), "one event has one id");
    all_taken(&receiver);
}

#[test]
fn a_receiver_that_is_gone_is_not_asked_again_and_a_redirect_is_not_followed() {
    let receiver = receiver();
    let home = home(&webhook(&receiver, "on = [\"failed\"]"));
    receiver.answer(410);
    let done = run(&home, "nightly", "exit 1").expect(1);
    assert!(done.stderr.contains("answered 410") && done.stderr.contains("given up"), "{done:?}");
    run(&home, "another", "true").expect(0);
    assert_eq!(receiver.asked().len(), 1);
    let listed = home.done(&["queue", "ls", "leasehold.notify.ops", "--json"]).expect(0);
    assert!(listed.stdout.contains("\"dead\""), "{listed:?}");
    receiver.answer(302);
    let done = run(&home, "third", "exit 1").expect(1);
    assert!(done.stderr.contains("answered 302"), "{done:?}");
    let none = home.done(&["queue", "ls", "leasehold.notify.none"]).expect(0).stderr;
    assert!(none.contains("no notification waits in `leasehold.notify.none`") && !none.contains("queue add"), "{none}");
    for words in
        [&["queue", "add", "leasehold.notify.ops", "--text", "x"][..], &["queue", "claim", "leasehold.notify.ops"]]
    {
        assert!(home.done(words).expect(64).stderr.contains("leasehold's own notifications"));
    }
}

#[test]
fn two_machines_tell_of_a_failing_job_once() {
    let receiver = receiver();
    let job = "[[job]]\nname = \"tick\"\nevery = \"1s\"\ncommand = \"echo disk full; exit 5\"\n";
    let home = home(&format!("{}{job}", webhook(&receiver, "on = [\"failed\"]\njobs = [\"*\"]")));
    let machines = [scheduler(&home, "leasehold.toml"), scheduler(&home, "leasehold.toml")];
    within(LONG, "it has failed several times", || {
        let runs = home.done(&["runs", "tick", "--json"]).stdout;
        runs.matches("\"failed\"").count() >= 5 && !receiver.heard().is_empty()
    });
    machines.into_iter().for_each(|machine| drop(stop(machine)));
    let heard = receiver.heard();
    assert_eq!(types(&heard), ["job.failed"], "{heard:?}");
    let told = event(&heard[0]);
    assert_eq!((&told["data"]["exit_code"], &told["data"]["tail"]), (&5.into(), &"disk full\n".into()), "{told}");
    let slot = told["data"]["slot"].as_str().unwrap();
    assert!(told["text"].as_str().unwrap().contains(&format!(": leasehold logs tick {slot} --store ")), "{told}");
    all_taken(&receiver);
}

#[test]
fn a_job_that_nobody_runs_is_noticed_by_check_and_by_a_scheduler_that_does_not_know_it() {
    let receiver = receiver();
    let home = home("");
    let asked = home.done(&["check", "--missed"]).expect(78);
    assert!(asked.stderr.contains("there is no such store; is this the right store?"), "{asked:?}");
    home.done(&["run", "unscheduled", "--", "true"]).expect(0);
    let asked = home.done(&["check", "--missed"]).expect(78);
    assert!(asked.stderr.contains("no job is published there; is this the right store?"), "{asked:?}");
    assert_eq!(home.done(&["check", "--missed", "--json"]).expect(78).stdout, "[]\n");
    // No machine has this label, so nobody runs it.
    let job = "[[job]]\nname = \"lonely\"\nevery = \"1s\"\nlate_after = \"1s\"\non = \"nowhere\"\ncommand = \"true\"\n";
    let fine = "[[job]]\nname = \"fine\"\nevery = \"1h\"\ncommand = \"true\"\n";
    std::fs::write(home.path("a.toml"), format!("{job}{fine}")).unwrap();
    let first = scheduler(&home, "a.toml");
    within(LONG, "check notices", || home.done(&["check", "--missed"]).code == 1);
    stop(first);
    let found = home.done(&["check", "--missed", "--json"]).expect(1);
    let found: Value = serde_json::from_str(&found.stdout).unwrap();
    assert_eq!((found.as_array().unwrap().len(), found[0]["name"].as_str()), (1, Some("lonely")));
    assert!(found[0]["missed"].as_u64().unwrap() > 0 && found[0]["late"].is_string(), "{found}");
    let tables =
        webhook(&receiver, "on = [\"missed\"]") + &webhook(&receiver, "on = [\"late\"]").replace("\"ops\"", "\"late\"");
    let other = format!("{tables}[[job]]\nname = \"other\"\nevery = \"1h\"\ncommand = \"true\"\n");
    std::fs::write(home.path("b.toml"), other).unwrap();
    let second = scheduler(&home, "b.toml");
    within(LONG, "the other scheduler tells", || receiver.heard().len() >= 2);
    stop(second);
    let kinds: BTreeSet<String> = receiver.heard().iter().map(|heard| heard.signal.clone()).collect();
    assert_eq!(kinds, ["job.late", "job.missed"].map(String::from).into());
    assert_eq!(event(&receiver.heard()[0])["data"]["name"], "lonely");
    home.done(&["schedule", "retire", "lonely"]).expect(0);
    home.done(&["check", "--missed"]).expect(0);
    assert!(home.done(&["schedule", "retire", "lonely"]).expect(64).stderr.contains("no scheduler has published"));
    all_taken(&receiver);
}

#[test]
fn of_two_files_the_newer_stands_and_a_plan_shows_the_difference() {
    let home = home("");
    let job = |every: &str| format!("[[job]]\nname = \"tick\"\nevery = \"{every}\"\ncommand = \"true\"\n");
    let write = |name: &str, head: &str, text: &str| {
        std::fs::write(home.path(name), format!("owner = \"team\"\n{head}{text}")).unwrap()
    };
    let plan = |file: &str| -> Vec<(String, String)> {
        let rows: Value =
            serde_json::from_str(&home.done(&["schedule", "--file", file, "plan", "--json"]).expect(0).stdout).unwrap();
        let word = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
        rows.as_array().unwrap().iter().map(|row| (word(row, "name"), word(row, "change"))).collect()
    };
    let is = |name: &str, change: &str| (name.to_owned(), change.to_owned());
    write("old.toml", "revision = 1\n", &format!("{}{}", job("1h"), job("3h").replace("tick", "gone")));
    write("new.toml", "revision = 2\n", &job("2h"));
    assert_eq!(plan("old.toml"), [is("gone", "new"), is("tick", "new")]);
    let old = scheduler(&home, "old.toml");
    eventually("the old file is published", || plan("old.toml") == [is("gone", "same"), is("tick", "same")]);
    assert_eq!(plan("new.toml"), [is("gone", "retired"), is("tick", "changed")]);
    let new = scheduler(&home, "new.toml");
    eventually("the new file is published", || plan("new.toml") == [is("tick", "same")]);
    let text = home.done(&["schedule", "--file", "old.toml", "plan"]).expect(0);
    assert!(text.stdout.contains("schedule: every 2h -> every 1h"), "{text:?}");
    // Another start with the old file changes nothing, not even what the new one has retired.
    stop(old);
    let log = home.path("again.log");
    let mut again = home.leasehold(&["schedule", "--file", "old.toml"]);
    let again = Running::from(again.stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap());
    let said = || std::fs::read_to_string(&log).unwrap();
    eventually("it has said so", || said().contains("job `tick` differently") && said().contains("without job `gone`"));
    assert_eq!(plan("old.toml"), [is("gone", "outdated"), is("tick", "outdated")]);
    stop(again);
    let said = said();
    assert!(said.contains("a newer file defines job `tick` differently (team on"), "{said}");
    assert!(said.contains("a newer file is without job `gone` (team, revision 2, written "), "{said}");
    assert_eq!(plan("new.toml"), [is("tick", "same")]);
    stop(new);
}

/// A checkout in somebody's home directory, while the deployed file is elsewhere.
#[test]
fn a_plan_of_the_same_file_at_another_path_compares_it_with_the_deployed_one() {
    let home = home("");
    let job =
        |name: &str, every: &str| format!("[[job]]\nname = \"{name}\"\nevery = \"{every}\"\ncommand = \"true\"\n");
    let deployed = job("tick", "1h") + &job("gone", "3h") + &job("kept", "2h");
    std::fs::write(home.path("deployed.toml"), &deployed).unwrap();
    let running = scheduler(&home, "deployed.toml");
    let plan = |file: &str| home.done(&["schedule", "--file", file, "plan"]).expect(0);
    eventually("the file is published", || plan("deployed.toml").stderr.contains("0 of 3 jobs differ"));
    stop(running);
    let changes = |file: &str| -> Vec<String> {
        let table = plan(file).stdout;
        table.lines().skip(1).map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")).collect()
    };
    let checkout = job("tick", "2h") + &job("kept", "2h") + &job("more", "1h");
    std::fs::create_dir(home.path("checkout")).unwrap();
    std::fs::write(home.path("checkout/jobs.toml"), &checkout).unwrap();
    assert_eq!(changes("checkout/jobs.toml"), ["gone retired", "kept same", "more new", "tick changed"]);
    let said = plan("checkout/jobs.toml").stderr;
    let owner = home.path("deployed.toml").display().to_string();
    assert!(said.contains(&format!("its jobs are published by owner `{owner}`")), "{said}");
    assert!(said.contains("write owner = ") || said.contains("write the same owner = "), "{said}");
    // What it says is what to do: then nothing is left to be said.
    std::fs::write(home.path("checkout/jobs.toml"), format!("owner = \"team\"\n{checkout}")).unwrap();
    let said = plan("checkout/jobs.toml");
    assert!(!said.stderr.contains("compared as if") && said.stdout.contains("-> team"), "{said:?}");
    // One with jobs of two other files replaces neither.
    std::fs::write(home.path("other.toml"), job("more", "1h")).unwrap();
    let running = scheduler(&home, "other.toml");
    eventually("the other is published", || plan("other.toml").stderr.contains("0 of 1 jobs differ"));
    stop(running);
    std::fs::write(home.path("checkout/jobs.toml"), &checkout).unwrap();
    assert!(!plan("checkout/jobs.toml").stderr.contains("compared as if"));
}

#[test]
fn who_judges_what_another_machine_left_has_its_last_lines_from_the_store() {
    let receiver = receiver();
    let home = home("");
    // The machine that ran it tells nobody.
    run_kept(&home, "nightly", "echo disk full; exit 5").expect(5);
    std::fs::write(home.path("leasehold.toml"), webhook(&receiver, "on = [\"failed\"]\nnames = [\"*\"]")).unwrap();
    within(LONG, "somebody looks and tells", || {
        // No job is published, and what failed is told all the same.
        home.done(&["check", "--missed"]).expect(78);
        !receiver.heard().is_empty()
    });
    let told = event(&receiver.heard()[0]);
    assert_eq!((&told["data"]["exit_code"], &told["data"]["tail"]), (&5.into(), &"disk full\n".into()), "{told}");
    std::fs::write(
        home.path("leasehold.toml"),
        format!("output = \"off\"\n{}", webhook(&receiver, "on = [\"failed\"]")),
    )
    .unwrap();
    run_kept(&home, "secret", "echo password; exit 1").expect(1);
    let told = event(&receiver.heard()[1]);
    assert_eq!((&told["data"]["name"], &told["data"]["tail"]), (&"secret".into(), &Value::Null), "{told}");
    all_taken(&receiver);
}

#[test]
fn dead_letters_and_refused_writes_are_reported() {
    let receiver = receiver();
    let home = home(&webhook(&receiver, "on = [\"dead_letter\", \"fenced\"]"));
    home.done(&["queue", "add", "mail", "--attempts", "1", "--text", "to: ada"]).expect(0);
    home.done(&["work", "mail", "--until-idle", "--", "sh", "-c", "echo no such address >&2; exit 1"]).expect(0);
    assert_eq!(types(&receiver.heard()), ["queue.dead_letter"]);
    let told = event(&receiver.heard()[0]);
    assert_eq!(told["data"]["tail"], "no such address\n", "{told}");
    assert!(told["text"].as_str().unwrap().contains(": leasehold logs mail"), "{told}");
    assert!(told["text"].as_str().unwrap().contains(": leasehold queue show mail"), "{told}");
    let token = home.done(&["acquire", "site"]).expect(0).stdout.trim().to_owned();
    home.done(&["write", "out", "--token", &token, "--from", "leasehold.toml"]).expect(0);
    home.done(&["revoke", "site", "--why", "test"]).expect(0);
    let newer = home.done(&["acquire", "site"]).expect(0).stdout.trim().to_owned();
    home.done(&["write", "out", "--token", &newer, "--from", "leasehold.toml"]).expect(0);
    home.done(&["write", "out", "--token", &token, "--from", "leasehold.toml"]).expect(13);
    run(&home, "another", "true").expect(0);
    assert_eq!(types(&receiver.heard()), ["queue.dead_letter", "lease.fenced"]);
    all_taken(&receiver);
}

#[test]
fn a_notification_about_a_queue_that_is_not_delivered_is_logged_as_one_about_a_queue() {
    let receiver = receiver();
    let home = home(&webhook(&receiver, "on = [\"dead_letter\", \"failed\"]"));
    receiver.answer(503);
    let spool = format!("spool:{}", home.path("letters").display());
    let undelivered = |words: &[&str], field: &str, name: &str| {
        let said = home.done(words).stderr;
        let lines = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let lines: Vec<Value> = lines.filter(|line| line["notification"].is_string()).collect();
        let named = |line: &&Value| line[field] == name && line["item"].is_null();
        assert!(lines.iter().any(|line| named(&line)), "{said}");
        let other = if field == "queue" { "lease" } else { "queue" };
        assert!(lines.iter().all(|line| line[other] != name), "{said}");
    };
    for target in ["mail", &spool] {
        home.done(&["queue", "add", target, "--attempts", "1", "--text", "to: ada"]).expect(0);
        let work = ["work", target, "--log-format", "json", "--until-idle", "--", "false"];
        undelivered(&work, "queue", target);
    }
    undelivered(&["run", "nightly", "--log-format", "json", "--", "false"], "lease", "nightly");
}

#[test]
fn dead_letters_of_a_spool_are_reported_too_by_one_lane_and_by_several() {
    let receiver = receiver();
    let home = home(&webhook(&receiver, "on = [\"dead_letter\"]\nqueues = [\"spool:*/letters?\"]"));
    let spool = format!("spool:{}", home.path("letters1").display());
    let other = format!("spool:{}", home.path("other").display());
    for (target, lanes) in [(&other, "1"), (&spool, "1")] {
        home.done(&["queue", "add", target, "--attempts", "1", "--text", "to: ada"]).expect(0);
        home.done(&["work", target, "--until-idle", "-j", lanes, "--", "sh", "-c", "exit 7"]).expect(0);
    }
    let heard = receiver.heard();
    assert_eq!(types(&heard), ["queue.dead_letter"], "the other one is not asked for");
    let told = event(&heard[0]);
    assert_eq!((&told["data"]["name"], &told["data"]["subject"]), (&spool.as_str().into(), &"queue".into()), "{told}");
    assert!(told["data"]["why"].as_str().unwrap().contains("code 7"), "{told}");
    let id = told["data"]["item"].as_str().unwrap();
    assert!(told["text"].as_str().unwrap().ends_with(&format!(": leasehold queue show {spool} {id}")), "{told}");
    // What is told once is not told again, by whoever looks at it next.
    home.done(&["work", &spool, "--until-idle", "-j", "2", "--", "true"]).expect(0);
    let third = format!("spool:{}", home.path("letters3").display());
    home.done(&["queue", "add", &third, "--attempts", "1", "--text", "to: bob"]).expect(0);
    home.done(&["work", &third, "--until-idle", "-j", "2", "--", "false"]).expect(0);
    assert_eq!(types(&receiver.heard()), ["queue.dead_letter"; 2]);
    assert_eq!(event(&receiver.heard()[1])["data"]["name"], third.as_str());
    all_taken(&receiver);
}

#[test]
fn what_is_wrong_in_a_table_is_reported_by_a_run_that_continues_and_refused_by_a_check() {
    let home = home("");
    std::fs::write(home.path("short"), "whsec_c2hvcnQ=").unwrap();
    let hook = "webhook = \"https://h/hunter2\"";
    let job = "[[job]]\nname = \"nightly\"\nevery = \"1h\"\ncommand = \"true\"\n";
    for (table, code, says) in [
        ("on = [\"failed\"]".to_owned(), 64, "field `command`: give either"),
        (format!("on = [\"failed\"]\ncommand = [\"x\"]\n{hook}"), 64, "field `command`: give either"),
        (format!("on = []\n{hook}"), 64, "field `on`: give a list of events"),
        (format!("on = [\"fails\"]\n{hook}"), 64, "invalid event `fails`: use one of failed, lost"),
        (format!("on = [\"recovered\"]\n{hook}"), 64, "goes with what it recovers from"),
        (format!("on = [\"failed\"]\nafter = 0\n{hook}"), 64, "invalid after `0`: use 1 to 1000"),
        (format!("on = [\"failed\"]\nremind = \"soon\"\n{hook}"), 64, "field `remind`"),
        (format!("on = [\"failed\"]\njobs = [\"a b\"]\n{hook}"), 64, "invalid name pattern `a b`"),
        (format!("on = [\"failed\"]\nname = \"a b\"\n{hook}"), 64, "invalid name `a b`"),
        ("on = [\"failed\"]\ncommand = []".to_owned(), 64, "field `command`: give a list"),
        ("on = [\"failed\"]\nwebhook = \"hunter2\"".to_owned(), 64, "field `webhook`"),
        (format!("on = [\"failed\"]\nsecret_file = \"none\"\n{hook}"), 78, "field `secret_file`: cannot read"),
        (format!("on = [\"failed\"]\nsecret_file = \"short\"\n{hook}"), 64, "use `whsec_` and the base64 text"),
        (format!("on = [\"failed\"]\nsecret_env = \"NOT_SET\"\n{hook}"), 78, "no variable `NOT_SET`"),
        (
            format!("on = [\"failed\"]\nsecret_env = \"A\"\nsecret_file = \"b\"\n{hook}"),
            64,
            "give either `secret_file`",
        ),
        (format!("on = [\"failed\"]\nunknown = 1\n{hook}"), 64, "unknown field `unknown`"),
        (format!("on = \"failed\"\n{hook}"), 64, "`on` is a list; write it in square brackets: on = [\"failed\"]"),
        ("on = [\"failed\"]\ncommand = \"curl https://h/hunter2\"".to_owned(), 64, "`command` is a list"),
        (format!("on = [\"failed\"]\nafter = \"2\"\n{hook}"), 64, "without quotes: after = 2"),
    ] {
        std::fs::write(home.path("leasehold.toml"), format!("{job}[[notify]]\n{table}\n")).unwrap();
        let ran = run(&home, "nightly", "echo ran >>ran").expect(0);
        assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
        let checked = [&["schedule", "check"][..], &["config"]].map(|args| home.done(args).expect(code));
        for done in checked.iter().chain([&ran]) {
            assert!(done.stderr.contains(says), "{table}\n{done:?}");
            assert!(!done.stderr.contains("hunter2") && !done.stderr.contains("c2hvcnQ"), "{done:?}");
        }
    }
    assert_eq!(home.words("ran").len(), 19);
    let twice = format!("{job}[[notify]]\non = [\"failed\"]\n{hook}\n[[notify]]\non = [\"lost\"]\n{hook}\n");
    std::fs::write(home.path("leasehold.toml"), twice).unwrap();
    assert!(home.done(&["schedule", "check"]).expect(64).stderr.contains("notify 2 (webhook to h): there is another"));
    std::fs::write(home.path("leasehold.toml"), "notify = 3\n").unwrap();
    assert!(run(&home, "nightly", "true").expect(0).stderr.contains("`notify` is a list of tables"));
    // Whoever only looks is not kept from it.
    home.done(&["ls"]).expect(0);
    // The tables that are right are told by.
    let right = "[[notify]]\non = [\"failed\"]\ncommand = [\"touch\", \"told\"]\n";
    std::fs::write(home.path("leasehold.toml"), format!("[[notify]]\non = [\"failed\"]\n{right}")).unwrap();
    run(&home, "nightly", "exit 3").expect(3);
    assert!(home.path("told").exists());
}

#[test]
fn a_scheduler_runs_its_jobs_though_nobody_can_be_told() {
    let home = home("");
    let job = "[[job]]\nname = \"tick\"\nevery = \"1s\"\ncommand = \"touch ran\"\n";
    let table = "[[notify]]\non = [\"failed\"]\nwebhook = \"https://h/x\"\nsecret_file = \"none\"\n";
    std::fs::write(home.path("a.toml"), format!("{job}{table}")).unwrap();
    let scheduler = scheduler(&home, "a.toml");
    eventually("it runs its job", || home.path("ran").exists());
    assert!(stop(scheduler).stderr.contains("field `secret_file`: cannot read"));
}

#[test]
fn a_recovery_arrives_after_its_failure_though_the_receiver_was_away() {
    let receiver = receiver();
    let home = home(&webhook(&receiver, "on = [\"failed\", \"recovered\"]"));
    receiver.answer(503);
    run(&home, "nightly", "exit 6").expect(6);
    receiver.answer(200);
    // By now the failure waits for its second attempt.
    run(&home, "nightly", "true").expect(0);
    assert!(receiver.heard().is_empty(), "{:?}", types(&receiver.heard()));
    within(LONG, "both are told", || {
        run(&home, "another", "true").expect(0);
        receiver.heard().len() > 1
    });
    assert_eq!(types(&receiver.heard()), ["lease.failed", "lease.recovered"]);
    all_taken(&receiver);
}

#[test]
fn a_command_that_takes_too_long_is_ended_with_all_that_it_started() {
    let script = "echo $$ >shell; setsid sh -c 'echo $$ >escaped; exec sleep 1000' & exec sleep 1001";
    let home = home(&format!("[[notify]]\non = [\"failed\"]\ncommand = [\"sh\", \"-c\", \"{script}\"]\n"));
    let done = run(&home, "nightly", "exit 1").expect(1);
    assert!(done.stderr.contains("`sh` had not ended after") && done.stderr.contains("will be retried"), "{done:?}");
    let left: Vec<i32> = ["shell", "escaped"].iter().map(|file| home.words(file)[0].parse().unwrap()).collect();
    eventually("nothing is left of it", || !left.iter().any(|pid| is_alive(*pid)));
}
