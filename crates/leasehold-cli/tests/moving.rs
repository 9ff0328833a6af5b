//! A migration under way, broken off and given up: what others meet, and what they are told.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Done, Home, On, Running, eventually, is_alive, signal};
use serde_json::Value;
use std::process::Stdio;

/// Two homes: what is moved from, and what is moved to.
fn houses() -> (Home, Home) {
    (Home::new(On::Sqlite), Home::new(On::Dir))
}

fn migrate(from: &Home, to: &Home, flags: &[&str]) -> Done {
    from.done(&[&["migrate", &from.store, &to.store], flags].concat())
}

/// The commands that a migration is finished and given up with, as messages show them.
fn both_commands(from: &Home, to: &Home) -> [String; 2] {
    let finish = format!("leasehold migrate {} {}", from.store, to.store);
    [format!("`{finish}`"), format!("`{finish} --abort`")]
}

#[track_caller]
fn names_both_commands(done: &Done, from: &Home, to: &Home) {
    for command in both_commands(from, to) {
        assert!(done.stderr.contains(&command), "no {command} in {done:?}");
    }
}

/// A migration that was broken off while it copied: the new store's counters cannot be written.
fn broken_off() -> (Home, Home) {
    let (old, new) = houses();
    old.done(&["run", "job", "--", "true"]).expect(0);
    old.done(&["queue", "add", "mail", "--text", "one"]).expect(0);
    // A store that is there, with a lease of its own.
    new.done(&["run", "own", "--", "true"]).expect(0);
    let counters = new.path("leases/counters");
    std::fs::rename(&counters, new.path("counters")).unwrap();
    std::fs::write(&counters, "").unwrap();
    let broken = migrate(&old, &new, &[]).expect(64);
    assert!(broken.stderr.contains("was interrupted"), "{broken:?}");
    names_both_commands(&broken, &old, &new);
    std::fs::remove_file(&counters).unwrap();
    std::fs::rename(new.path("counters"), &counters).unwrap();
    assert_eq!(old.show("job")["state"], "moving");
    (old, new)
}

fn leases(home: &Home) -> Vec<String> {
    let listed: Value = serde_json::from_str(&home.done(&["ls", "--json"]).expect(0).stdout).unwrap();
    listed.as_array().unwrap().iter().map(|lease| lease["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn who_is_evicted_by_a_migration_is_stopped_as_by_a_revoke() {
    let (old, new) = houses();
    // Far longer than this test waits: only a keeper that hears of it ends the command in time.
    let script = "echo $$ > NAME; exec sleep 600";
    let run = old.start(&["run", "job", "--ttl", "10m", "--", "sh", "-c", &script.replace("NAME", "run")]);
    old.done(&["queue", "add", "mail", "--text", "one"]).expect(0);
    let work = old.start(&["work", "mail", "--ttl", "10m", "--", "sh", "-c", &script.replace("NAME", "work")]);
    let pids = ["run", "work"].map(|name| old.words(name)[0].parse::<i32>().unwrap());
    migrate(&old, &new, &["--revoke-held"]).expect(0);
    eventually("both commands are stopped", || !pids.iter().any(|pid| is_alive(*pid)));
    let run = run.end().expect(75);
    assert!(run.stderr.contains("lost `job:1`") && run.stderr.contains("moved to"), "{run:?}");
    let work = work.end().expect(78);
    assert!(work.stderr.contains("the command was stopped") && work.stderr.contains("has moved to"), "{work:?}");
    let worked = new.done(&["work", "mail", "--until-idle", "--no-prefix", "--", "cat"]).expect(0);
    assert_eq!(worked.stdout, "one");
}

/// What would be the first write of a name.
const BIRTHS: [&[&str]; 5] = [
    &["run", "other", "--", "true"],
    &["acquire", "other", "--ttl", "1h"],
    &["hand-off", "other", "--to", "me", "--ttl", "1h", "--why", "x"],
    &["pause", "other", "--why", "x"],
    &["advance", "other", "--past", "9", "--why", "x"],
];

#[test]
fn a_name_that_the_old_store_never_knew_leaves_no_trace_there() {
    let (old, new) = houses();
    old.done(&["run", "job", "--", "true"]).expect(0);
    migrate(&old, &new, &[]).expect(0);
    for birth in BIRTHS {
        let refused = old.done(birth).expect(78);
        assert!(refused.stderr.contains("nothing was changed"), "{birth:?}: {refused:?}");
        assert_eq!(leases(&old), ["job"], "{birth:?}");
    }
    // So that a lease of that name comes home.
    new.done(&["run", "other", "--", "true"]).expect(0);
    migrate(&new, &old, &[]).expect(0);
    assert_eq!(old.done(&["run", "other", "--", "echo", "ran"]).expect(0).stdout, "ran\n");
}

#[test]
fn a_name_that_comes_up_while_everything_leaves_is_free_when_that_is_given_up() {
    let (old, new) = broken_off();
    for birth in BIRTHS {
        let refused = old.done(birth).expect(69);
        names_both_commands(&refused, &old, &new);
        assert_eq!(leases(&old), ["job"], "{birth:?}");
    }
    let refused = old.done(&["run", "job", "--", "true"]).expect(69);
    names_both_commands(&refused, &old, &new);
    assert!(refused.stderr.contains("begun ") && refused.stderr.contains(" ago by "), "{refused:?}");
    let refused = old.done(&["queue", "add", "mail", "--text", "two"]).expect(69);
    names_both_commands(&refused, &old, &new);
    migrate(&old, &new, &["--abort"]).expect(0);
    for name in ["job", "other"] {
        assert_eq!(old.done(&["run", name, "--", "echo", "ran"]).expect(0).stdout, "ran\n", "{name}");
    }
    assert_eq!(old.done(&["work", "mail", "--until-idle", "--no-prefix", "--", "cat"]).expect(0).stdout, "one");
}

#[test]
fn nothing_comes_up_in_the_new_store_while_leases_arrive_there() {
    let (old, new) = broken_off();
    for verb in [
        &["run", "job", "--", "true"][..],
        &["run", "other", "--", "true"],
        &["queue", "add", "mail", "--text", "x"],
        &["queue", "claim", "mail"],
    ] {
        let refused = new.done(verb).expect(69);
        names_both_commands(&refused, &old, &new);
    }
    assert_eq!(leases(&new).iter().filter(|name| *name == "other").count(), 0);
    // Its own leases are nobody's business.
    assert_eq!(new.done(&["run", "own", "--", "echo", "ran"]).expect(0).stdout, "ran\n");
    // It can be finished, for nothing stands in its way.
    migrate(&old, &new, &[]).expect(0);
    assert_eq!(new.done(&["run", "job", "--", "echo", "ran"]).expect(0).stdout, "ran\n");
    assert_eq!(new.done(&["run", "other", "--", "echo", "ran"]).expect(0).stdout, "ran\n");
    let known = new.done(&["queue", "ls"]).expect(0).stdout;
    assert_eq!(
        known.lines().nth(1).and_then(|row| row.split_whitespace().next()),
        Some("mail"),
        "known at once: {known}"
    );
    assert_eq!(new.done(&["work", "mail", "--until-idle", "--no-prefix", "--", "cat"]).expect(0).stdout, "one");
}

/// Starts it in front of a disk that takes a moment for each new name: there is time to break it off while it copies.
fn slowly(home: &Home, args: &[&str]) -> Running {
    traced(home, &["-e", "inject=linkat:delay_enter=50000"], "linkat", args)
}

/// Starts it with a fault in a system call.
fn traced(home: &Home, fault: &[&str], call: &str, args: &[&str]) -> Running {
    let command = home.leasehold(args);
    let mut traced = std::process::Command::new("strace");
    // The tracer is not its parent, so signals go to the command itself.
    traced.args(["-DDD", "-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={call}")]).args(fault).arg("--");
    traced.arg(command.get_program()).args(command.get_args());
    traced.current_dir(home.folder.path()).env_clear();
    traced.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    traced.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::from(traced.spawn().unwrap())
}

#[test]
fn who_breaks_a_migration_off_is_told_how_far_it_came_and_what_ends_it() {
    for how in ["INT", "TERM", "timeout"] {
        let (old, new) = houses();
        let lines: Vec<String> = (0..100).map(|line| line.to_string()).collect();
        std::fs::write(old.path("lines"), lines.join("\n")).unwrap();
        let mut adding = old.leasehold(&["queue", "add", "mail", "--each-line"]);
        adding.stdin(std::fs::File::open(old.path("lines")).unwrap());
        Done::from(adding.output().unwrap()).expect(0);
        let broken = match how {
            "timeout" => {
                let broken = slowly(&old, &["migrate", &old.store, &new.store, "--timeout", "2s"]).end();
                if broken.code == 69 {
                    // So slow a machine that nothing was begun.
                    assert!(!broken.stderr.contains("was interrupted"), "{broken:?}");
                    continue;
                }
                broken.expect(70)
            }
            name => {
                let migrating = slowly(&old, &["migrate", &old.store, &new.store]);
                eventually("it is under way", || {
                    old.done(&["queue", "ls", "mail", "--json"]).stdout.contains("\"moving\"")
                });
                signal(migrating.pid(), name);
                migrating.end().expect(if name == "INT" { 130 } else { 143 })
            }
        };
        names_both_commands(&broken, &old, &new);
        assert!(broken.stderr.contains("frozen") && broken.stderr.contains(" so far"), "{broken:?}");
        let back = how == "TERM";
        migrate(&old, &new, if back { &["--abort"] } else { &[] }).expect(0);
        let home = if back { &old } else { &new };
        let listed: Value =
            serde_json::from_str(&home.done(&["queue", "ls", "mail", "--json"]).expect(0).stdout).unwrap();
        assert_eq!(listed.as_array().unwrap().len(), 100);
        assert!(listed.as_array().unwrap().iter().all(|item| item["state"] == "ready"), "{listed}");
    }
}

#[test]
fn a_rehearsal_looks_at_all_that_the_real_run_looks_at() {
    let (old, new) = houses();
    let rehearse = |code| {
        let before = (leases(&old), leases(&new));
        let dry = migrate(&old, &new, &["--dry-run"]).expect(code);
        assert_eq!((leases(&old), leases(&new)), before);
        dry
    };
    old.done(&["queue", "add", "mail", "--text", "one"]).expect(0);
    let claimed = old.done(&["queue", "claim", "mail", "--ttl", "1h", "--json"]).expect(0);
    let claimed: Value = serde_json::from_str(&claimed.stdout).unwrap();
    assert!(rehearse(11).stderr.contains("1 queue item held"));
    migrate(&old, &new, &[]).expect(11);
    old.done(&["queue", "complete", "mail", "--token", claimed["token"].as_str().unwrap()]).expect(0);

    old.done(&["run", "job", "--slot", "@daily", "--", "true"]).expect(0);
    new.done(&["run", "job", "--", "true"]).expect(0);
    let clash = rehearse(64);
    assert!(
        clash.stderr.contains("is another one") && clash.stderr.contains("add `?namespace=NAME` to TO"),
        "{clash:?}"
    );
    assert_eq!(migrate(&old, &new, &[]).expect(64).stderr, clash.stderr, "the same words");
    // The way out that the message names.
    let elsewhere = format!("{}?namespace=team", new.store);
    let dry = old.done(&["migrate", &old.store, &elsewhere, "--dry-run", "--json"]).expect(0);
    let dry: Value = serde_json::from_str(&dry.stdout).unwrap();
    let moved = old.done(&["migrate", &old.store, &elsewhere, "--json"]).expect(0);
    let moved: Value = serde_json::from_str(&moved.stdout).unwrap();
    assert_eq!((&dry["dry_run"], &moved["dry_run"]), (&true.into(), &false.into()));
    for count in ["leases", "journals", "items", "from", "to"] {
        assert_eq!(dry[count], moved[count], "{count}");
    }
}

#[test]
fn the_doctor_says_where_the_leases_are() {
    let row = |home: &Home, code| {
        let report: Value = serde_json::from_str(&home.done(&["doctor", "--json"]).expect(code).stdout).unwrap();
        let checks = report["checks"].as_array().unwrap().clone();
        checks
            .into_iter()
            .find(|check| check["check"] == "migration")
            .map(|check| (check["verdict"].as_str().unwrap().to_owned(), check["detail"].as_str().unwrap().to_owned()))
    };
    let (old, new) = broken_off();
    for home in [&old, &new] {
        let (verdict, detail) = row(home, 78).unwrap();
        assert_eq!(verdict, "bad");
        assert!(both_commands(&old, &new).iter().all(|command| detail.contains(command)), "{detail}");
    }
    migrate(&old, &new, &[]).expect(0);
    let (verdict, detail) = row(&old, 0).unwrap();
    assert!(verdict == "note" && detail.contains(&format!("moved to `{}`", new.store)), "{verdict} {detail}");
    assert_eq!(row(&new, 0), None);
}

#[test]
fn the_store_of_a_migration_is_named_by_from_and_to_only() {
    let (old, new) = houses();
    let refused = migrate(&old, &new, &["--store", "sqlite:"]).expect(64);
    assert!(refused.stderr.contains("--store"), "{refused:?}");
}

#[test]
fn an_order_that_was_decided_on_another_epoch_is_stale() {
    let home = Home::new(On::Sqlite);
    home.done(&["run", "job", "--", "true"]).expect(0);
    home.done(&["queue", "add", "mail", "--text", "one", "--key", "k"]).expect(0);
    let orders: [&[&str]; 6] = [
        &["revoke", "job"],
        &["pause", "job"],
        &["hand-off", "job", "--to", "me"],
        &["advance", "job", "--past", "9"],
        &["queue", "cancel", "mail", "k.k"],
        &["queue", "retry", "mail", "k.k"],
    ];
    for order in orders {
        let stale = home.done(&[order, &["--why", "x", "--if-epoch", "7"]].concat()).expect(13);
        assert!(stale.stderr.contains("epoch 7") && stale.stderr.contains("look again"), "{stale:?}");
        let typed = home.done(&[order, &["--why", "x", "--if-epoch", "seven"]].concat()).expect(64);
        assert!(typed.stderr.contains("--if-epoch"), "{typed:?}");
    }
    assert_eq!((&home.show("job")["epoch"], home.show("job")["paused"].is_null()), (&1.into(), true));
}

/// A migration that is slow in its copies, and somebody who gives it up meanwhile: whichever of the two has its way, one store
/// has every lease and the other grants nothing.
#[test]
fn a_migration_that_is_given_up_while_it_runs_leaves_one_store_that_grants() {
    for pause in [0, 200, 400, 800, 1_200] {
        let (old, new) = houses();
        let names: Vec<String> = (0..12).map(|number| format!("job-{number}")).collect();
        for name in &names {
            old.done(&["run", name, "--", "true"]).expect(0);
        }
        let migrating = slowly(&old, &["migrate", &old.store, &new.store]);
        eventually("it is under way", || old.done(&["ls"]).stdout.contains("moving"));
        std::thread::sleep(std::time::Duration::from_millis(pause));
        let given_up = slowly(&old, &["migrate", &old.store, &new.store, "--abort"]).end();
        let migrated = migrating.end();
        assert!(
            matches!((migrated.code, given_up.code), (0, 64 | 70) | (64 | 69, 0)),
            "one of them: {migrated:?} {given_up:?}"
        );
        for name in &names {
            let is_back = given_up.code == 0;
            // A migration that was given up before anything arrived leaves an empty store, in which every name is new.
            let is_known = !is_back || new.done(&["show", name]).code == 0;
            let granted = [&old, &new].map(|home| home.done(&["acquire", name]).code == 0);
            assert_eq!(granted[0], is_back, "{name}: {migrated:?} {given_up:?}");
            assert!(granted[1] != is_back || !is_known, "{name}: {granted:?} {migrated:?} {given_up:?}");
        }
    }
}

#[test]
fn a_scheduler_that_was_forgotten_in_the_old_store_ends() {
    let (old, new) = houses();
    let job = "[[job]]\nname = 'job'\nevery = '1s'\nttl = '10s'\ncommand = 'echo >> ran'\n";
    std::fs::write(old.path("leasehold.toml"), job).unwrap();
    let scheduler = old.start(&["schedule", "run"]);
    eventually("it runs", || old.path("ran").exists());
    eventually("it is moved between two runs", || migrate(&old, &new, &[]).code == 0);
    let ended = scheduler.end().expect(78);
    assert!(ended.stderr.contains(&new.store), "{ended:?}");
}

/// Whether the tracer holds a thread of this process up: it stops every call, but only the delayed one for several looks.
fn is_held_up(pid: i32) -> bool {
    let is_stopped = |stat: String| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('t'));
    (0..5).all(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok()).any(is_stopped)
    })
}

/// A process looks at both stores before a migration begins, and acts on that while it runs: that undoes none of it.
#[test]
fn a_look_from_before_a_migration_takes_none_of_it_back() {
    for verb in [&["--abort"][..], &[]] {
        let (old, new) = (Home::new(On::Dir), Home::new(On::Dir));
        old.done(&["run", "job", "--", "true"]).expect(0);
        new.done(&["run", "own", "--", "true"]).expect(0);
        let command = [&["migrate", &old.store, &new.store], verb].concat();
        let mark = new.path("leases/namespace/namespace");
        let mark = mark.to_str().unwrap();
        let late = traced(&old, &["-P", mark, "-e", "inject=openat:delay_exit=1500000:when=1"], "openat", &command);
        eventually("it is held up in its look", || is_held_up(late.pid()));
        let migrated = slowly(&old, &["migrate", &old.store, &new.store]).end();
        let late = late.end();
        assert!(migrated.code == 0 || late.code == 0, "{migrated:?} {late:?}");
        let granted = [&old, &new].map(|home| home.done(&["acquire", "job"]).code == 0);
        assert_eq!(granted, [false, true], "{migrated:?} {late:?}");
    }
}

/// A process that slept while its migration was given up has copied a lease after that.
#[test]
fn what_a_given_up_migration_left_behind_is_named_with_the_command_that_takes_it_back() {
    let (old, new) = (Home::new(On::Dir), Home::new(On::Dir));
    old.done(&["run", "job", "--", "true"]).expect(0);
    old.done(&["queue", "add", "mail", "--text", "one"]).expect(0);
    new.done(&["run", "own", "--", "true"]).expect(0);
    let migrate_slowly = ["migrate", &old.store, &new.store];
    let migrating = traced(&old, &["-e", "inject=linkat:delay_enter=400000"], "linkat", &migrate_slowly);
    eventually("it was copied", || new.done(&["ls"]).stdout.contains("arriving"));
    signal(migrating.pid(), "KILL");
    migrating.end();
    let (there, kept) = (new.path("leases/lease/job"), new.path("kept"));
    let copied = std::process::Command::new("cp").arg("-a").args([&there, &kept]).status().unwrap();
    assert!(copied.success());
    migrate(&old, &new, &["--abort"]).expect(0);
    std::fs::remove_dir_all(&there).unwrap();
    std::fs::rename(&kept, &there).unwrap();
    let refused = new.done(&["acquire", "job"]).expect(69);
    assert!(refused.stderr.contains(&format!("`leasehold migrate {} STORE --abort`", old.store)), "{refused:?}");
    let [_, give_up] = both_commands(&old, &new);
    let doctor = new.done(&["doctor"]).expect(78);
    assert!(doctor.stdout.contains(&give_up), "{doctor:?}");
    migrate(&old, &new, &["--abort"]).expect(0);
    assert!(!new.done(&["doctor"]).expect(0).stdout.contains(&give_up));
    old.done(&["run", "job", "--", "true"]).expect(0);
}

#[test]
fn a_group_that_was_paused_before_it_moved_is_not_skipped_in_the_old_store() {
    let (old, new) = houses();
    let run = ["run", "job", "--limit", "2", "--", "true"];
    old.done(&run).expect(0);
    old.done(&["pause", "job", "--why", "maintenance"]).expect(0);
    assert!(old.done(&run).expect(0).stderr.contains("paused"));
    migrate(&old, &new, &[]).expect(0);
    assert!(old.done(&run).expect(78).stderr.contains(&new.store));
    assert!(new.done(&run).expect(0).stderr.contains("paused"));
}
