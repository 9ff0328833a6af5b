//! The SQLite store under what people do to files and processes: second names, killed creation, processes that are stopped
//! in the middle of a commit.
//!
//! `strace` sends the signals, at the very system call: no test here waits for the right moment.

#![allow(clippy::unwrap_used)]

mod common;

use common::traced::{traced, untrace};
use common::{Done, Home, On, Running, eventually, is_alive, signal};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// The same command, which gets a signal at its first call of one of these. What happens is written to a log.
fn signalled(command: &Command, calls: &str, name: &str, log: &Path) -> Command {
    let inject = format!("inject={calls}:signal={name}:when=1");
    traced(command, log, &["-e", &format!("trace={calls}"), "-e", &inject])
}

/// The same, stopped by a signal at its first fsync, and without a tracer from then on. A signal that waits for the commit
/// may find the process at its end: then there is nothing to stop, and another one is tried.
fn stopped_in_commit(home: &Home, command: &Command, name: &str) -> Running {
    (0..20).find_map(|_| stopped(home, command, name)).expect("one of twenty is stopped")
}

fn stopped(home: &Home, command: &Command, name: &str) -> Option<Running> {
    let log = home.path(&format!("{name}.strace"));
    let _ = std::fs::remove_file(&log);
    let writer = Running::from(signalled(command, "fsync,fdatasync", name, &log).spawn().unwrap());
    let logged = |says: &str| std::fs::read_to_string(&log).is_ok_and(|log| log.contains(says));
    let ended = format!("{} +++ exited with", writer.pid());
    eventually("the writer is stopped, or has ended", || logged("stopped by") || logged(&ended));
    if !logged("stopped by") {
        return None;
    }
    untrace(&writer);
    Some(writer)
}

fn refused(done: Done, says: &str) {
    let done = done.expect(78);
    assert!(done.stderr.contains(says), "{done:#?}");
}

#[test]
fn a_file_with_a_second_name_is_refused_under_both() {
    let home = Home::new(On::Sqlite);
    let token = home.done(&["acquire", "job"]).expect(0).stdout;
    std::fs::hard_link(home.path("leases.db"), home.path("other.db")).unwrap();
    let other = format!("sqlite:{}", home.path("other.db").display());
    for store in [&home.store, &other] {
        for args in [&["acquire", "second"][..], &["doctor"], &["ls"], &["run", "job", "--", "touch", "ran"]] {
            // Which of the two to remove: what was written last is in the log of the other.
            let keep = if *store == home.store { "keep this one" } else { "remove this one" };
            refused(home.done(&[&["--store", store], args].concat()), keep);
        }
    }
    refused(home.done(&["renew", "--token", token.trim()]), "hard link");
    assert!(!home.path("ran").exists());
    std::fs::remove_file(home.path("other.db")).unwrap();
    home.done(&["renew", "--token", token.trim()]).expect(0);
}

#[test]
fn a_holder_stops_when_its_file_gets_a_second_name() {
    let home = Home::new(On::Sqlite);
    let args = ["run", "job", "--ttl", "3s", "--", "sh", "-c", "echo > running; exec sleep 60"];
    let run = home.start(&args);
    eventually("it runs", || home.path("running").exists());
    std::fs::hard_link(home.path("leases.db"), home.path("other.db")).unwrap();
    let done = run.end().expect(75);
    assert!(done.stderr.contains("hard link"), "{done:#?}");
}

#[test]
fn a_file_that_is_mounted_by_itself_is_refused() {
    let home = Home::new(On::Sqlite);
    home.done(&["acquire", "job"]).expect(0);
    std::fs::create_dir(home.path("inside")).unwrap();
    home.touch("inside/lh.db");
    let binary = env!("CARGO_BIN_EXE_leasehold");
    let inside = |mount: &str, store: &str, verb: &str| {
        let script = format!("{mount} && exec {binary} --store sqlite:{store} {verb}");
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]).current_dir(home.folder.path());
        Done::from(command.output().unwrap())
    };
    let probe = inside("true", "leases.db", "ls");
    if probe.code != 0 {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "cannot mount: {probe:#?}");
        println!("skipped: cannot mount: {}", probe.stderr);
        return;
    }
    let file = "mount --bind leases.db inside/lh.db";
    refused(inside(file, "inside/lh.db", "acquire job"), "mount");
    refused(inside(file, "inside/lh.db", "doctor"), "mount");
    std::os::unix::fs::symlink("inside/lh.db", home.path("link.db")).unwrap();
    refused(inside(file, "link.db", "acquire job"), "mount");
    // A folder that is mounted elsewhere has the log beside the file there too.
    inside("mount --bind . inside", "inside/leases.db", "acquire job").expect(11);
    std::os::unix::fs::symlink("leases.db", home.path("good.db")).unwrap();
    inside("true", "good.db", "acquire job").expect(11);
}

#[test]
fn a_store_whose_creation_was_killed_is_created_by_the_next() {
    let mut killed = 0;
    for call in ["openat", "?link", "linkat", "?unlink", "unlinkat", "?rename", "renameat2", "?fchmodat,?chmod"] {
        let home = Home::new(On::Sqlite);
        let creator = home.leasehold(&["acquire", "job"]);
        let done = Done::from(signalled(&creator, call, "KILL", &home.path("strace")).output().unwrap());
        killed += u32::from(done.code == 137);
        if let Ok(file) = std::fs::metadata(home.path("leases.db")) {
            assert_eq!(file.nlink(), 1, "killed at {call}");
        }
        assert!(home.done(&["acquire", "other"]).expect(0).stdout.starts_with("other:1"));
    }
    assert!(killed >= 2, "only {killed} of the calls are made");
}

#[test]
fn the_suspend_key_waits_for_the_commit() {
    let home = Home::new(On::Sqlite);
    home.done(&["acquire", "job"]).expect(0);
    for name in ["TSTP", "TTIN", "TTOU"] {
        // `add` can be done again; `acquire` would be refused by the lease of the one that ended.
        let writer = stopped_in_commit(&home, &home.leasehold(&["queue", "add", "suspended", "--text", "x"]), name);
        home.done(&["acquire", &format!("other-{name}")]).expect(0);
        signal(writer.pid(), "CONT");
        let done = writer.end().expect(0);
        assert_eq!(done.stdout.lines().count(), 1, "{done:#?}");
    }
}

#[test]
fn a_process_that_is_stopped_in_its_commit_is_named() {
    let home = Home::new(On::Sqlite);
    home.done(&["acquire", "job"]).expect(0);
    let writer = stopped_in_commit(&home, &home.leasehold(&["acquire", "stopped"]), "STOP");
    let done = home.done(&["acquire", "other"]).expect(69);
    let pid = writer.pid();
    for says in [format!("process {pid}"), "leasehold".into(), "is stopped".into(), format!("kill -CONT {pid}")] {
        assert!(done.stderr.contains(&says), "{says}: {done:#?}");
    }
    signal(pid, "CONT");
    writer.end().expect(0);
    home.done(&["acquire", "other"]).expect(0);
}

#[test]
fn a_run_ends_a_writer_that_was_stopped_in_its_commit_and_continues() {
    let home = Home::new(On::Sqlite);
    let script = "echo > running; while [ ! -e go ]; do sleep 0.1; done";
    let run = home.start(&["run", "job", "--ttl", "12s", "--", "sh", "-c", script]);
    eventually("it runs", || home.path("running").exists());
    let writer = stopped_in_commit(&home, &home.leasehold(&["acquire", "stopped"]), "STOP");
    let pid = writer.pid();
    assert_eq!(writer.end().code, 137);
    home.touch("go");
    let done = run.end().expect(0);
    assert!(done.stderr.contains(&format!("process {pid}")), "{done:#?}");
    assert_eq!(home.history("job")[0]["outcome"], "succeeded");
}

#[test]
fn a_run_ends_no_stopped_process_of_another_program() {
    let home = Home::new(On::Sqlite);
    std::fs::copy(env!("CARGO_BIN_EXE_leasehold"), home.path("copy")).unwrap();
    let run = home.start(&["run", "job", "--ttl", "3s", "--", "sh", "-c", "echo > running; exec sleep 60"]);
    eventually("it runs", || home.path("running").exists());
    let mut copy = Command::new(home.path("copy"));
    copy.args(["acquire", "stopped"]).current_dir(home.folder.path());
    copy.envs(home.leasehold(&[]).get_envs().filter_map(|(key, value)| Some((key, value?))));
    let writer = stopped_in_commit(&home, &copy, "STOP");
    let done = run.end().expect(75);
    assert!(done.stderr.contains(&format!("process {}", writer.pid())), "{done:#?}");
    assert!(is_alive(writer.pid()));
}

#[test]
fn a_writer_in_another_pid_namespace_is_said_to_be_there() {
    let home = Home::new(On::Sqlite);
    home.done(&["acquire", "job"]).expect(0);
    let mut inside = Command::new("unshare");
    let binary = env!("CARGO_BIN_EXE_leasehold");
    inside.args(["--pid", "--fork", "--mount-proc", binary, "run", "inside", "--ttl", "3s", "--"]);
    inside.args(["sh", "-c", "echo > running; exec sleep 60"]).current_dir(home.folder.path());
    inside.env("LEASEHOLD_STORE", &home.store).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut inside = Running::from(inside.spawn().unwrap());
    eventually("it runs, or cannot", || home.path("running").exists() || inside.is_over());
    if inside.is_over() {
        let done = inside.end();
        assert!(std::env::var("CI").as_deref() != Ok("true"), "no PID namespaces: {done:#?}");
        println!("skipped: no PID namespaces: {}", done.stderr);
        return;
    }
    let writer = stopped_in_commit(&home, &home.leasehold(&["acquire", "stopped"]), "STOP");
    let done = inside.end().expect(75);
    assert!(done.stderr.contains("another PID namespace"), "{done:#?}");
    assert!(is_alive(writer.pid()));
}

#[test]
fn a_guarded_database_with_a_second_name_takes_no_write() {
    let home = Home::new(On::Sqlite);
    home.done(&["sql", "sqlite:app.db", "--init"]).expect(0);
    let token = home.done(&["acquire", "job"]).expect(0).stdout;
    let write = ["sql", "sqlite:app.db", "--token", token.trim(), "-c", "CREATE TABLE t (x)"];
    std::fs::hard_link(home.path("app.db"), home.path("other.db")).unwrap();
    refused(home.done(&write), "hard link");
    std::fs::remove_file(home.path("other.db")).unwrap();
    home.done(&write).expect(0);
}
