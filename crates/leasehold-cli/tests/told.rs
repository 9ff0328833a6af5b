//! What a newcomer is told when something is not as it should be: which store it is about, what became of the job, and what to
//! write instead.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Done, Home, On, Running, eventually, signal};
use std::process::Command;

/// The command without a store in its environment.
fn bare(home: &Home, args: &[&str]) -> Command {
    let mut command = home.leasehold(args);
    command.env_remove("LEASEHOLD_STORE");
    command
}

fn ended(mut command: Command) -> Done {
    Done::from(command.output().unwrap())
}

#[track_caller]
fn says(done: &Done, words: &str) {
    let said = format!("{}{}", done.stdout, done.stderr);
    assert!(said.contains(words), "no `{words}` in {done:#?}");
}

fn jobs(home: &Home, text: &str) {
    std::fs::write(home.path("leasehold.toml"), text).unwrap();
}

const JOB: &str = "[[job]]\nname = 'nightly'\nevery = '1h'\ncommand = 'true'\n";

#[test]
fn every_verb_that_would_answer_or_change_something_names_the_store_that_everything_moved_to() {
    let (old, new) = (Home::new(On::Sqlite), Home::new(On::Dir));
    jobs(&old, JOB);
    old.done(&["run", "nightly", "--slot", "@hourly", "--", "true"]).expect(0);
    old.done(&["queue", "add", "mail", "--text", "one"]).expect(0);
    old.done(&["migrate", &old.store, &new.store]).expect(0);
    let moved = format!("this store has moved to `{}`", new.store);
    let day = ["--from", "2026-01-01", "--to", "2026-01-01", "--yes"];
    for verb in [
        &["check", "--missed"][..],
        &["schedule", "plan"],
        &["schedule", "retire", "nightly"],
        &[&["schedule", "backfill", "nightly"][..], &day].concat(),
        &["run", "nightly", "--dry-run", "--", "true"],
        &["run", "other", "--dry-run", "--", "true"],
        &["queue", "janitor", "mail"],
        &["queue", "purge", "mail"],
        &["queue", "retry", "mail", "--all", "--why", "x"],
    ] {
        let refused = old.done(verb).expect(78);
        says(&refused, &moved);
        assert_eq!(refused.stdout, "", "{verb:?}");
    }
    says(&old.done(&["check", "--missed"]), "; check that one");
    says(&old.done(&["schedule", "check"]).expect(0), &moved);
    let queues = old.done(&["queue", "ls"]).expect(0);
    says(&queues, &format!("1 item of `mail` moved to `{}` with this store; look there", new.store));
    let doctor = old.done(&["doctor"]).expect(0);
    says(&doctor, &format!("{moved}; use that one"));
    assert!(!doctor.stdout.contains("fit for leases"), "{doctor:?}");
    // The job is still published where it is now.
    says(&new.done(&["check", "--missed"]).expect(0), "1 published job");
    assert!(!new.done(&["doctor"]).expect(0).stdout.contains("has moved"));
}

#[test]
fn what_is_a_warning_or_an_error_is_said_where_only_those_are_shown() {
    let home = Home::new(On::Dir);
    let warned = |args: &[&str]| home.done(&[&["--log", "warn"], args].concat());
    says(&warned(&["run", "job", "--", "true"]).expect(0), "made a new store at");
    says(&warned(&["run", "job", "--", "nosuch"]).expect(127), "cannot run `nosuch`");
    home.done(&["queue", "add", "mail", "--text", "one"]).expect(0);
    says(&warned(&["work", "mail", "--until-idle", "--", "nosuch"]).expect(127), "cannot run `nosuch`");
    let cut = warned(&["run", "job", "--max-runtime", "100ms", "--", "sleep", "600"]).expect(124);
    says(&cut, "`job` ran for longer than 100ms (--max-runtime) and was stopped");
    // What is no warning is not.
    assert_eq!(warned(&["run", "job", "--min-interval", "1h", "--", "true"]).expect(0).stderr, "");
}

#[test]
fn a_scheduler_warns_of_jobs_that_cannot_run_and_of_a_file_that_it_does_not_take_up() {
    let home = Home::new(On::Sqlite);
    jobs(&home, &format!("log = 'warn'\n{JOB}cwd = '/nonexistent/place'\n"));
    let log = std::fs::File::create(home.path("log")).unwrap();
    let scheduler = Running::from(home.leasehold(&["schedule"]).stderr(log).spawn().unwrap());
    eventually("it warns", || home.read("log").contains("warn leasehold: "));
    assert!(home.read("log").contains("its cwd `/nonexistent/place` is not a folder here"), "{}", home.read("log"));
    jobs(&home, "log = 'warn'\n[[job]]\n");
    eventually("it keeps the old jobs", || home.read("log").contains("warn leasehold: keeping the old jobs: "));
    signal(scheduler.pid(), "TERM");
    scheduler.end().expect(0);
}

#[test]
fn a_store_that_is_away_is_told_with_who_named_it_and_what_became_of_the_job() {
    let home = Home::new(On::Sqlite);
    jobs(&home, &format!("store = 'redis://127.0.0.1:1'\n{JOB}{}", JOB.replace("nightly", "weekly")));
    let named = format!("(store from file {}", home.path("leasehold.toml").canonicalize().unwrap().display());
    let run = ended(bare(&home, &["run", "nightly", "--", "touch", "ran"])).expect(69);
    assert!(run.stderr.starts_with("leasehold: `nightly` was not run: "), "{run:?}");
    says(&run, &named);
    assert!(!home.path("ran").exists());
    says(&ended(bare(&home, &["ls"])).expect(69), &named);
    let flag = ended(bare(&home, &["ls", "--store", "redis://127.0.0.1:1"])).expect(69);
    says(&flag, "(store from --store)");
    let mut variable = bare(&home, &["ls"]);
    variable.env("LEASEHOLD_STORE", "redis://127.0.0.1:1");
    says(&ended(variable).expect(69), "(store from environment LEASEHOLD_STORE)");
    let check = ended(bare(&home, &["schedule", "check"])).expect(69);
    says(&check, "leasehold: 2 jobs in `");
    says(&check, "are valid, but the store cannot be reached: ");
    let scheduler = ended(bare(&home, &["schedule"])).expect(69);
    assert!(!scheduler.stderr.contains("retrying"), "it ends: {scheduler:?}");
    let missing = format!("dir:{}/share", home.path("").display());
    let missing = ended(bare(&home, &["schedule", "check", "--store", &missing])).expect(0);
    says(&missing, "/share`, which does not exist yet (is the share mounted?)");
}

#[test]
fn a_secret_in_a_file_is_shown_with_the_variable_that_names_the_file() {
    let home = Home::new(On::Sqlite);
    let path = home.path("url");
    std::fs::write(&path, "redis://127.0.0.1:1\n").unwrap();
    let told = format!("environment LEASEHOLD_STORE_FILE ({})", path.display());
    for (verb, code) in [("config", 0), ("ls", 69)] {
        let mut command = bare(&home, &[verb]);
        command.env("LEASEHOLD_STORE_FILE", &path);
        says(&ended(command).expect(code), &told);
    }
}

#[test]
fn a_user_who_can_have_no_store_of_their_own_is_told_to_name_one() {
    let home = Home::new(On::Sqlite);
    for elsewhere in [None, Some("/proc/nobody/home")] {
        let mut command = bare(&home, &["run", "job", "--", "true"]);
        match elsewhere {
            Some(folder) => command.env("HOME", folder),
            None => command.env_remove("HOME"),
        };
        says(&ended(command).expect(78), "give --store or LEASEHOLD_STORE");
    }
}

#[test]
fn a_lease_that_expired_is_not_told_as_going_on() {
    let home = Home::new(On::Sqlite);
    home.done(&["acquire", "job", "--ttl", "1s"]).expect(0);
    says(&home.done(&["history", "job"]).expect(0), "not yet");
    eventually("it has expired", || home.show("job")["state"] == "expired");
    let history = home.done(&["history", "job"]).expect(0);
    says(&history, " ago, end not reported");
    assert!(!history.stdout.contains("not yet"), "{history:?}");
}

#[test]
fn a_slot_that_failed_is_not_told_as_one_that_ran() {
    let home = Home::new(On::Sqlite);
    let slot = ["run", "job", "--slot", "@every 366d", "--slot-max-age", "366d", "--", "sh", "-c", "exit 4"];
    home.done(&slot).expect(4);
    let again = home.done(&slot).expect(0);
    says(
        &again,
        "already ran, and failed with exit code 4 under epoch 1; a failed slot is not run again (see --retries, or",
    );
}

#[test]
fn a_skip_says_that_the_holder_was_asked_to_finish_and_how_a_pause_ends() {
    let home = Home::new(On::Sqlite);
    let job = "trap '' TERM; echo >> started; while [ ! -e go ]; do sleep 0.05; done";
    let run = home.start(&["run", "job", "--", "sh", "-c", job]);
    eventually("it has begun", || home.path("started").exists());
    let order = ["revoke", "job", "--drain", "--within", "10m", "--why", "upgrade", "--by", "ann"];
    let draining = home.start(&order);
    eventually("it was asked", || !home.show("job")["drain"].is_null());
    says(&home.done(&["run", "job", "--", "true"]).expect(0), "; asked to finish by ann: upgrade");
    home.touch("go");
    run.end();
    draining.end();
    home.done(&["pause", "job", "--why", "upgrade"]).expect(0);
    says(&home.done(&["run", "job", "--", "true"]).expect(0), "; `leasehold resume job --why '...'` lets it in");
}

#[test]
fn a_check_says_for_how_long_and_when_a_scheduler_was_last_heard_of() {
    let home = Home::new(On::Sqlite);
    home.done(&["run", "nightly", "--slot", "@every 1s", "--slot-max-age", "1s", "--", "true"]).expect(0);
    // Published like that, it is late only some minutes later; a scheduler's file says when.
    jobs(
        &home,
        "[[job]]\nname = 'tick'\nevery = '1s'\nlate_after = '1s'\ncatch_up_max_age = '1s'\ncommand = 'sleep 0'\n",
    );
    let scheduler = home.start(&["schedule"]);
    eventually("it has run", || home.done(&["show", "tick"]).code == 0);
    eventually("it is published", || home.done(&["schedule", "plan"]).stdout.contains("same"));
    signal(scheduler.pid(), "KILL");
    scheduler.end();
    eventually("slots are missed", || home.done(&["check", "--missed"]).stdout.contains("missed"));
    let found = home.done(&["check", "--missed"]).expect(1);
    says(&found, "WHEN");
    let rows: Vec<&str> = found.stdout.lines().filter(|line| line.starts_with("tick")).collect();
    assert!(rows.iter().all(|row| row.contains(" ago ")), "{rows:?}");
    let slots = rows.iter().flat_map(|row| row.split_whitespace()).filter(|word| word.ends_with('Z'));
    let slots: Vec<&str> = slots.collect();
    assert!((1..slots.len()).all(|at| slots[at] != slots[at - 1]), "one line for a slot: {found:?}");
    assert!(found.stderr.contains("scheduler"), "{found:?}");
}

#[test]
fn an_invalid_channel_is_not_told_as_unknown() {
    let home = Home::new(On::Sqlite);
    let table = |name: &str, more: &str| {
        format!("[[notify]]\nname = '{name}'\non = ['failed']\nwebhook = 'http://127.0.0.1:9/'\n{more}\n")
    };
    jobs(&home, &format!("{}{}", table("ops", "secret_file = '/nonexistent/secret'"), table("cmd", "")));
    let told = home.done(&["notify", "test", "ops"]);
    assert_ne!(told.code, 0, "{told:?}");
    says(&told, "leasehold: channel `ops` is invalid, see above");
    assert!(!told.stderr.contains("the settings have"), "{told:?}");
    says(&home.done(&["notify", "test", "nosuch"]).expect(64), "the settings have cmd");
}

#[test]
fn wrong_words_are_answered_with_the_right_ones() {
    let home = Home::new(On::Sqlite);
    let table: &[(&[&str], &str)] = &[
        (&["run", "x", "--wait", "--", "true"], "--wait needs a duration: --wait 10m"),
        (&["run", "x", "true"], "as in `leasehold run NAME -- COMMAND`"),
        (&["gate", "api", "true"], "as in `leasehold gate RESOURCE -- COMMAND`"),
        (&["work", "mail", "true"], "as in `leasehold work QUEUE -- COMMAND`"),
        (&["run", "x", "--wait", "15 sekunden", "--", "true"], "there are no spaces in it, such as 3s"),
        (&["ls", "--store", "spool:/p"], "a spool has items, not leases: `leasehold queue ls spool:/p`"),
    ];
    for (words, answer) in table {
        says(&home.done(words).expect(64), answer);
    }
    let extra = home.done(&["schedule", "run", "extra"]).expect(64);
    assert!(!extra.stderr.contains("leasehold run NAME"), "{extra:?}");
    home.done(&["init"]).expect(0);
    says(&home.done(&["schedule", "check"]).expect(64), "remove the `#` before the example that `init` wrote");
    home.done(&["queue", "add", "mail", "--text", "one", "--key", "k"]).expect(0);
    assert_eq!(home.done(&["queue", "janitor", "mail"]).expect(0).stdout, "nothing to do\n");
    let token = home.done(&["queue", "claim", "mail"]).expect(0).stdout.trim().to_owned();
    home.done(&["queue", "complete", "mail", "--token", &token]).expect(0);
    let late = home.done(&["queue", "fail", "mail", "--token", &token, "--why", "x"]);
    assert!(!late.stderr.contains("it is done now"), "{late:?}");
    home.done(&["run", "job", "--", "true"]).expect(0);
    let advice = home.done(&["advise", "job"]).expect(0);
    assert!(!advice.stdout.contains(" 1 healthy runs"), "{advice:?}");
}
