//! Passwords: taken from where each engine's users keep them, and never shown.

use crate::at;
use crate::common::{Done, Home, PATIENCE, Running, descendants};
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_testbed::{Postgres, Server, free_port, nats_with, postgres, program, redis_with, wait_until};
use std::collections::BTreeSet;
use std::process::Command;

/// Part of every password here, right or wrong.
const SECRET: &str = "hunter2";

fn guarded_redis() -> Server {
    redis_with(&["--requirepass", "hunter22"])
}

fn guarded_postgres() -> Postgres {
    let server = postgres();
    server.sql("CREATE ROLE app LOGIN PASSWORD 'hunter22'; GRANT ALL ON SCHEMA public TO app");
    let rules = "local all all trust\nhost all app 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n";
    std::fs::write(server.data().join("pg_hba.conf"), rules).unwrap();
    server.sql("SELECT pg_reload_conf()");
    let line = format!("host=127.0.0.1 port={} user=app dbname=postgres", server.port());
    let is_let_in =
        || Command::new(program("psql")).args(["-X", "-w", "-c", "", &line]).output().unwrap().status.success();
    wait_until("the rules are in force", || !is_let_in());
    server
}

#[track_caller]
fn keeps_quiet(done: &Done) {
    assert!(!done.stdout.contains(SECRET) && !done.stderr.contains(SECRET), "{done:#?}");
    assert!(!done.stderr.contains("panicked"), "{done:#?}");
}

/// Everything that is said about a store whose URL, a function of password and port, has a password.
fn nothing_shows_it(port: u16, url: impl Fn(&str, u16) -> String) {
    let home = at(url("hunter22", port));
    home.done(&["run", "job", "--", "true"]).expect(0);
    let token = home.done(&["acquire", "held", "--ttl", "10m"]).expect(0).stdout;
    let elsewhere = format!("sqlite:{}/elsewhere.db", home.folder.path().display());
    for (line, code) in [
        (&["config"][..], 0),
        (&["config", "--json"], 0),
        (&["doctor"], 0),
        (&["doctor", "--json"], 0),
        (&["ls"], 0),
        (&["ls", "--json"], 0),
        (&["show", "job"], 0),
        (&["show", "job", "--json"], 0),
        (&["show", "nobody"], 64),
        (&["acquire", "held"], 11),
        (&["renew", "--token", token.trim()], 0),
        (&["release", "--token", token.trim()], 0),
        (&["release", "--token", token.trim()], 0),
        (&["migrate", &home.store, &elsewhere, "--dry-run"], 0),
        (&["migrate", &home.store, &elsewhere, "--json"], 0),
        (&["acquire", "job"], 78),
        (&["history", "job", "--json"], 0),
        (&["show", "job", "--json", "--store", &elsewhere], 0),
        (&["history", "job", "--store", &elsewhere], 0),
        (&["migrate", &home.store, &home.store], 64),
        (&["ls", "--store", &format!("{}?x=y", home.store)], 64),
    ] {
        let done = home.done(line);
        keeps_quiet(&done);
        assert_eq!(done.code, code, "{line:?}: {done:#?}");
    }
    assert!(home.done(&["config"]).expect(0).stdout.contains("***@127.0.0.1"));
    // Nobody listens there; and a password that is not the right one.
    for (url, code) in [(url("hunter22", free_port()), 69), (url("hunter23", port), 78)] {
        for verb in [&["ls"][..], &["run", "job", "--", "true"], &["doctor"], &["acquire", "job", "--json"]] {
            let done = at(&*url).done(verb);
            keeps_quiet(&done);
            assert_eq!(done.code, code, "{verb:?}: {done:#?}");
            assert!(done.stderr.contains("127.0.0.1"), "it does not say where: {done:#?}");
        }
    }
}

fn redis_url(password: &str, port: u16) -> String {
    format!("redis://:{password}@127.0.0.1:{port}")
}

fn postgres_url(password: &str, port: u16) -> String {
    format!("postgres://app:{password}@127.0.0.1:{port}/postgres")
}

#[test]
fn the_password_of_redis_is_used_and_never_shown() {
    let server = guarded_redis();
    variables_are_respected(&at(format!("redis://127.0.0.1:{}", server.port())), "REDISCLI_AUTH");
    process_lists_do_not_show_it(&redis_url("hunter22", server.port()));
    nothing_shows_it(server.port(), redis_url);
}

#[test]
fn the_password_of_postgres_is_used_and_never_shown() {
    let server = guarded_postgres();
    variables_are_respected(&at(format!("postgres://app@127.0.0.1:{}/postgres", server.port())), "PGPASSWORD");
    process_lists_do_not_show_it(&postgres_url("hunter22", server.port()));
    nothing_shows_it(server.port(), postgres_url);
}

#[test]
fn a_token_that_stands_alone_is_a_password_too() {
    let server = nats_with("jetstream {}\nauthorization { token: \"hunter22\" }\n", &[]);
    let url = |token: &str| format!("nats://{token}@127.0.0.1:{}", server.port());
    let home = at(url("hunter22"));
    for line in [&["run", "job", "--", "true"][..], &["config"], &["config", "--json"], &["ls"]] {
        keeps_quiet(&home.done(line).expect(0));
    }
    keeps_quiet(&at(url("hunter23")).done(&["ls"]).expect(78));
    keeps_quiet(&home.done(&["ls", "--store", &format!("{}?x=y", home.store)]).expect(64));
    keeps_quiet(&home.done(&["doctor"]).expect(0));
}

#[test]
fn a_password_that_was_not_escaped_is_not_shown_either() {
    let home = at("sqlite:");
    for url in [
        "postgres://app:hun/hunter22@127.0.0.1/db",
        "postgres://app:/hunter22@127.0.0.1/db",
        "redis://:hun?hunter22@127.0.0.1",
        "redis://:hunter22/@127.0.0.1",
        "redis://:hunter22@127.0.0.1:x",
        "redis://:hunter22@127.0.0.1/%ff",
        "redis://:%ffhunter22@127.0.0.1",
        "redis://127.0.0.1?auth=hunter22&x",
        "redis:app:hunter22@127.0.0.1",
        "redis:/:hunter22@127.0.0.1",
        "mongodb://app:hunter22@127.0.0.1/db",
        "nats://hunter22@127.0.0.1:x",
        "mysql://app:hunter22@127.0.0.1,b/db",
        "s3://id:hunter22@/prefix",
    ] {
        let done = home.done(&["ls", "--store", url]);
        keeps_quiet(&done);
        assert_eq!(done.code, 64, "{url}: {done:#?}");
        keeps_quiet(&at(url).done(&["config"]).expect(64));
    }
}

/// The arguments of a process, or nothing if it is gone.
fn arguments(pid: i32) -> String {
    String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()).replace('\0', " ")
}

/// What the process and all below it are called while it runs.
fn called(running: &mut Running, mut is_enough: impl FnMut(&BTreeSet<String>) -> bool) -> BTreeSet<String> {
    let (mut seen, start) = (BTreeSet::new(), SystemClock.now());
    while !running.is_over() && !is_enough(&seen) {
        assert!(SystemClock.now().saturating_since(start) < PATIENCE, "{seen:?}");
        let pids = [vec![running.pid()], descendants(running.pid())].concat();
        seen.extend(pids.into_iter().map(arguments));
    }
    seen
}

/// Not even those of the processes that the run and the doctor start; the command gets it in its environment.
fn process_lists_do_not_show_it(url: &str) {
    let home = at(url);
    let job = "echo $LEASEHOLD_STORE > started; while [ ! -e go ]; do sleep 0.02; done";
    let mut run = home.start(&["run", "listed", "--", "sh", "-c", job]);
    assert_eq!(home.words("started"), [url]);
    let is_command = |text: &String| text.contains("sleep");
    let seen = called(&mut run, |seen| seen.iter().any(is_command));
    assert!(seen.len() > 2 && !seen.iter().any(|text| text.contains(SECRET)), "{seen:#?}");
    home.touch("go");
    run.end().expect(0);

    let mut doctor = home.start(&["doctor"]);
    let seen = called(&mut doctor, |_| false);
    doctor.end().expect(0);
    assert!(seen.iter().any(|text| text.contains("__contend")), "the race was not seen: {seen:#?}");
    assert!(!seen.iter().any(|text| text.contains(SECRET)), "{seen:#?}");

    // Given as an argument it is in that one process's, and in none below.
    let mut doctor = home.start(&["doctor", url]);
    let seen = called(&mut doctor, |_| false);
    doctor.end().expect(0);
    // A list may be read while it is cut short, so one process may be seen under more than one text.
    let mut own = seen.iter().filter(|text| text.contains(SECRET)).peekable();
    assert!(
        own.peek().is_some() && own.all(|text| text.contains(" doctor redis") || text.contains(" doctor postgres"))
    );
    assert!(seen.iter().any(|text| text.contains("__contend")), "the race was not seen: {seen:#?}");
    assert!(!seen.iter().any(|text| text.contains("__contend") && text.contains(SECRET)), "{seen:#?}");
}

/// The variable that the engine's users know, with the URL of a home without a password.
fn variables_are_respected(home: &Home, variable: &str) {
    let with = |value: &str, args: &[&str]| {
        let done = Done::from(home.leasehold(args).env(variable, value).output().unwrap());
        keeps_quiet(&done);
        done
    };
    home.done(&["ls"]).expect(78);
    with("hunter23", &["ls"]).expect(78);
    // The command of a run inherits it, so what it calls works too.
    with("hunter22", &["run", "mine", "--", "leasehold", "progress", "half"]).expect(0);
    assert!(with("hunter22", &["show", "mine"]).expect(0).stdout.contains("half"));
}
