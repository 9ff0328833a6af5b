//! A moment without threads and processes: the limit of a user is reached (EAGAIN).

#![allow(clippy::unwrap_used)]

mod common;

use common::{Done, Home, On, Running};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Stdio};

/// A user without other processes. Root has no limit, so tests that are run by root need another.
const USER: &str = "61243";

/// A program, by a user for whom the limit counts.
fn as_user(home: &Home, program: &str) -> Command {
    if std::fs::metadata(home.folder.path()).unwrap().uid() != 0 {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", USER, "--regid", USER, "--clear-groups", program]);
    command
}

/// The command, by that user, after the words of another program that starts it.
fn limited(home: &Home, before: &[&str], args: &[&str]) -> Command {
    let plain = home.leasehold(args);
    std::fs::set_permissions(home.folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let words = [before, &[plain.get_program().to_str().unwrap()], args].concat();
    let mut command = as_user(home, words[0]);
    command.args(&words[1..]).current_dir(home.folder.path()).env_clear();
    command.envs(plain.get_envs().filter_map(|(key, value)| Some((key, value?))));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn a_run_continues_while_the_system_has_no_thread_for_it() {
    let home = Home::new(On::Sqlite);
    // By the first renewal, after 12 s, tokio would have given its idle threads up.
    let job = "echo begun > begun; sleep 13; echo ended > ended";
    let run =
        Running::from(limited(&home, &[], &["run", "job", "--ttl", "36s", "--", "sh", "-c", job]).spawn().unwrap());
    home.words("begun");
    let limit = as_user(&home, "prlimit").args(["--nproc=1:1", "--pid", &run.pid().to_string()]).status().unwrap();
    assert!(limit.success());
    let done = run.end().expect(0);
    assert!(!done.stderr.contains("panicked"), "{done:?}");
    assert_eq!(home.words("ended"), ["ended"]);
}

#[test]
fn a_command_that_has_no_thread_to_begin_with_says_so_and_has_done_nothing() {
    let home = Home::new(On::Sqlite);
    let done = Done::from(limited(&home, &["prlimit", "--nproc=1:1"], &["acquire", "job"]).output().unwrap());
    assert!(done.stderr.contains("no thread"), "{done:?}");
    assert_eq!((done.code, home.path("leases.db").exists()), (69, false));
}
