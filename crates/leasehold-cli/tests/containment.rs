//! `run` and programs that would outlive it, ended both ways: by a control group and by walking the process table.

#![allow(clippy::unwrap_used)]

mod common;

use common::state::{changes, state};
use common::{Done, Home, On, Running, Way, descendants, eventually, is_alive, signal};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Builds a program of `tests/programs` into a home.
fn build(home: &Home, program: &str) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{program}.c"));
    let built = Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(home.path(program)).arg(source).status();
    assert!(built.unwrap().success(), "{program}");
}

/// Whether a test that needs the rights of an administrator can run here. CI must let it.
fn may(what: &str, command: &[&str]) -> bool {
    let tried = Command::new(command[0]).args(&command[1..]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let may = tried.is_ok_and(|status| status.success());
    if !may {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{what} is not possible here");
        eprintln!("skipped: {what} is not possible here");
    }
    may
}

/// The control group below which those of commands are made. Asked once: asking removes what was left behind.
fn cgroups() -> Option<&'static Path> {
    static BELOW: OnceLock<Option<PathBuf>> = OnceLock::new();
    let below = BELOW.get_or_init(|| {
        let said = Command::new(env!("CARGO_BIN_EXE_leasehold")).arg("__try-cgroup").output().unwrap().stdout;
        let said = String::from_utf8(said).unwrap();
        let below = said.trim().strip_prefix("below ").map(PathBuf::from);
        if below.is_none() {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "no control group here: {said}");
            eprintln!("skipped: no control group here: {said}");
        }
        below
    });
    below.as_deref()
}

/// The groups that this dead-man has made.
fn groups_of(dead_man: i32) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(cgroups().unwrap()).unwrap().flatten().map(|entry| entry.path());
    let begin = format!("leasehold-{dead_man}-");
    entries.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(&begin)).collect()
}

/// A run whose command has started a daemon without a first thread, and the numbers of the daemon and its child.
fn leaderless(way: Way, then: &str) -> (Home, Running, Vec<i32>) {
    let home = Home::new(On::Sqlite).ending_by(way);
    build(&home, "leaderless");
    let job = format!("./leaderless daemon; while [ ! -s daemon ]; do sleep 0.01; done; {then}");
    let run = home.start(&["run", "job", "--ttl", "2s", "--", "sh", "-c", &job]);
    let pids: Vec<i32> = home.words("daemon").iter().map(|word| word.parse().unwrap()).collect();
    assert_eq!(pids.len(), 2);
    (home, run, pids)
}

#[track_caller]
fn assert_dead(pids: &[i32]) {
    let alive: Vec<_> = pids.iter().filter(|pid| is_alive(**pid)).collect();
    for pid in &alive {
        signal(**pid, "KILL");
    }
    assert!(alive.is_empty(), "still alive: {alive:?} of {pids:?}");
}

#[test]
fn a_daemon_without_its_first_thread_is_dead_before_the_next_grant() {
    for way in Way::BOTH {
        let (home, run, pids) = leaderless(way, "exec sleep 1000");
        assert!(pids.iter().all(|pid| is_alive(*pid)), "{pids:?}");
        signal(run.pid(), "KILL");
        home.done(&["run", "job", "--wait", "20s", "--", "true"]).expect(0);
        assert_dead(&pids);
    }
}

#[test]
fn a_daemon_without_its_first_thread_does_not_outlive_the_dead_man() {
    for way in Way::BOTH {
        let (_home, run, pids) = leaderless(way, "exec sleep 1000");
        signal(descendants(run.pid())[0], "KILL");
        run.end().expect(75);
        assert_dead(&pids);
    }
}

#[test]
fn a_daemon_without_its_first_thread_is_stopped_before_the_release() {
    for way in Way::BOTH {
        let (_home, run, pids) = leaderless(way, "exit 4");
        let done = run.end().expect(4);
        assert_dead(&pids);
        assert!(done.stderr.contains("2 background processes of `job` were still there"), "{done:?}");
    }
}

#[test]
fn a_process_whose_name_is_not_text_is_seen_and_ended() {
    for way in Way::BOTH {
        let home = Home::new(On::Sqlite).ending_by(way);
        let job = "name=$(printf 'a\\377b'); cp \"$(command -v sleep)\" \"$name\"; setsid \"./$name\" 1000 & \
                   echo $! > left; until grep -q '^a' /proc/$!/comm; do sleep 0.01; done; exit 4";
        let done = home.done(&["run", "job", "--", "bash", "-c", job]).expect(4);
        assert_dead(&[home.words("left")[0].parse().unwrap()]);
        assert!(done.stderr.contains("1 background process of `job` was still there"), "{done:?}");
    }
}

/// Whether any generation still writes its number. Each lives for 50 microseconds.
fn is_restless(home: &Home) -> bool {
    let seen = home.read("generation");
    for _ in 0..20 {
        std::thread::sleep(std::time::Duration::from_millis(5));
        if home.read("generation") != seen {
            return true;
        }
    }
    false
}

#[test]
fn a_program_that_forks_faster_than_the_table_can_be_walked_is_ended() {
    for way in Way::BOTH {
        let home = Home::new(On::Sqlite).ending_by(way);
        build(&home, "restless");
        let run = home.start(&["run", "job", "--ttl", "3s", "--grace", "100ms", "--", "./restless", "generation"]);
        let done = run.end().expect(0);
        assert!(!is_restless(&home), "{way:?} {done:?}");
        assert!(done.stderr.contains("still there when the command ended"), "{done:?}");
    }
}

#[test]
fn a_restless_program_in_a_control_group_is_dead_before_the_next_grant() {
    if cgroups().is_none() {
        return;
    }
    let home = Home::new(On::Sqlite);
    build(&home, "restless");
    let run = home.start(&["run", "job", "--ttl", "2s", "--", "sh", "-c", "./restless generation; exec sleep 1000"]);
    home.words("generation");
    signal(run.pid(), "KILL");
    home.done(&["run", "job", "--wait", "20s", "--", "cp", "generation", "at-start"]).expect(0);
    assert!(!is_restless(&home));
    assert_eq!(home.read("generation"), home.read("at-start"));
}

#[test]
fn a_command_has_a_control_group_of_its_own_which_goes_with_it() {
    let Some(below) = cgroups() else { return };
    let home = Home::new(On::Sqlite);
    let run = home.start(&["run", "job", "--", "sh", "-c", "cat /proc/self/cgroup > inside; exec cat fifo"]);
    let made = Command::new("mkfifo").arg(home.path("fifo")).status();
    assert!(made.unwrap().success());
    home.words("inside");
    let dead_man = descendants(run.pid())[0];
    let groups = groups_of(dead_man);
    assert_eq!(groups.len(), 1, "{groups:?}");
    let own = |text: &str| text.lines().find_map(|line| line.strip_prefix("0::").map(String::from)).unwrap();
    let name = groups[0].file_name().unwrap().to_string_lossy().into_owned();
    assert!(own(&home.read("inside")).ends_with(&format!("/{name}")), "{}", home.read("inside"));
    // Supervisor and dead-man stay where they were started.
    for pid in [run.pid(), dead_man] {
        let at = own(&std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap());
        assert!(below.to_string_lossy().ends_with(at.trim_end_matches('/')), "{at} is not {below:?}");
    }
    std::fs::write(home.path("fifo"), "").unwrap();
    run.end().expect(0);
    assert_eq!(groups_of(dead_man), [] as [PathBuf; 0]);
}

#[test]
fn without_a_control_group_a_command_stays_in_its_callers() {
    let home = Home::new(On::Sqlite).ending_by(Way::Walk);
    home.done(&["run", "job", "--", "sh", "-c", "cat /proc/self/cgroup > inside"]).expect(0);
    assert_eq!(home.read("inside"), std::fs::read_to_string("/proc/self/cgroup").unwrap());
    let word = home.leasehold(&["run", "job", "--", "true"]).env("LEASEHOLD_CGROUP", "on").output().unwrap();
    let refused = Done::from(word).expect(64);
    assert!(refused.stderr.contains("invalid LEASEHOLD_CGROUP `on`: it is `auto` or `off`"), "{refused:?}");
}

#[test]
fn a_run_inside_a_run_leaves_no_group_when_both_are_ended() {
    if cgroups().is_none() {
        return;
    }
    let home = Home::new(On::Sqlite);
    let inner = "exec leasehold run inner --ttl 1m -- sh -c 'echo $$ > started; exec sleep 1000'";
    let run = home.start(&["run", "outer", "--ttl", "3s", "--grace", "0s", "--", "sh", "-c", inner]);
    let pid: i32 = home.words("started")[0].parse().unwrap();
    let dead_man = descendants(run.pid())[0];
    assert_eq!(groups_of(dead_man).len(), 1);
    home.done(&["revoke", "outer", "--why", "drill"]).expect(0);
    run.end().expect(75);
    assert_dead(&[pid]);
    assert_eq!(groups_of(dead_man), [] as [PathBuf; 0]);
}

#[test]
fn the_group_goes_too_when_one_of_the_pair_is_killed() {
    if cgroups().is_none() {
        return;
    }
    for killed in 0..2 {
        let home = Home::new(On::Sqlite);
        let run = home.start(&["run", "job", "--ttl", "2s", "--", "sh", "-c", "echo $$ > started; exec sleep 1000"]);
        let pid: i32 = home.words("started")[0].parse().unwrap();
        let pair = [run.pid(), descendants(run.pid())[0]];
        assert_eq!(groups_of(pair[1]).len(), 1);
        signal(pair[killed], "KILL");
        run.end();
        eventually("the group is gone", || groups_of(pair[1]).is_empty());
        assert_dead(&[pid]);
    }
}

#[test]
fn what_a_killed_pair_left_goes_with_the_next_run() {
    if cgroups().is_none() {
        return;
    }
    let home = Home::new(On::Sqlite);
    let run = home.start(&["run", "job", "--ttl", "1m", "--", "sh", "-c", "echo $$ > started; exec sleep 1000"]);
    let pid: i32 = home.words("started")[0].parse().unwrap();
    let (supervisor, dead_man) = (run.pid(), descendants(run.pid())[0]);
    // Stopped first, so that neither sees the other die.
    for (pid, name) in [(supervisor, "STOP"), (dead_man, "STOP"), (dead_man, "KILL"), (supervisor, "KILL")] {
        signal(pid, name);
    }
    eventually("both are gone", || !is_alive(supervisor) && !is_alive(dead_man));
    drop(run);
    assert!(is_alive(pid));
    home.done(&["run", "other", "--", "true"]).expect(0);
    assert_eq!(groups_of(dead_man).len(), 1, "a group with a living process stays");
    signal(pid, "KILL");
    eventually("the group is removed", || {
        home.done(&["run", "other", "--", "true"]).expect(0);
        groups_of(dead_man).is_empty()
    });
}

/// Runs the real binary in a mount namespace of its own, after what the script does there.
fn in_mounts(home: &Home, script: &str, args: &[&str]) -> Done {
    let plain = home.leasehold(args);
    let mut command = Command::new("unshare");
    command.args(["--mount", "--", "sh", "-ec", &format!("{script}; exec \"$@\"; "), "sh"]);
    command.arg(plain.get_program()).args(plain.get_args()).current_dir(home.folder.path()).env_clear();
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Done::from(command.output().unwrap())
}

/// The line of `doctor` about processes.
fn diagnosis(done: &Done) -> String {
    let line = done.stdout.lines().find(|line| line.split_whitespace().nth(1) == Some("processes"));
    line.unwrap_or_default().to_owned()
}

#[test]
fn doctor_says_how_commands_are_ended() {
    let home = Home::new(On::Sqlite).ending_by(Way::Walk);
    let done = home.done(&["doctor"]).expect(0);
    let line = diagnosis(&done);
    assert!(line.starts_with("note") && line.contains("walking the process table"), "{done:?}");
    assert!(line.ends_with("LEASEHOLD_CGROUP is `off`"), "{done:?}");
    let verdict = done.stdout.lines().last().unwrap_or_default();
    let fit = "fit for leases between processes of this machine: every check passed, with ";
    assert!(verdict.starts_with(fit), "{done:?}");
    let Some(below) = cgroups() else { return };
    let home = home.ending_by(Way::Cgroup);
    let done = home.done(&["doctor"]).expect(0);
    let line = diagnosis(&done);
    assert!(line.starts_with("ok") && line.ends_with(&format!("below {}", below.display())), "{done:?}");
}

#[test]
fn a_control_group_is_found_wherever_it_is_mounted_and_not_missed_where_it_is_not() {
    let Some(below) = cgroups() else { return };
    if !may("a mount namespace", &["unshare", "--mount", "true"]) {
        return;
    }
    let home = Home::new(On::Sqlite);
    let unmount = format!("umount -l '{}'", mount_point(below).display());
    // Nowhere.
    let done = in_mounts(&home, &unmount, &["doctor"]).expect(0);
    assert!(diagnosis(&done).starts_with("note"), "{done:?}");
    in_mounts(&home, &unmount, &["run", "job", "--", "touch", "ran"]).expect(0);
    assert!(home.path("ran").exists());
    // Elsewhere, under a name with a space.
    std::fs::create_dir(home.path("c g")).unwrap();
    let elsewhere = format!("{unmount}; mount -t cgroup2 none 'c g'");
    let done = in_mounts(&home, &elsewhere, &["doctor"]).expect(0);
    assert!(diagnosis(&done).starts_with("ok") && diagnosis(&done).contains("/c g"), "{done:?}");
    // There, but not ours to write to.
    let read_only = format!("{unmount}; mount -t cgroup2 none 'c g'; mount -o remount,bind,ro 'c g'");
    let done = in_mounts(&home, &read_only, &["doctor"]).expect(0);
    assert!(diagnosis(&done).starts_with("note") && diagnosis(&done).contains("Read-only"), "{done:?}");
    in_mounts(&home, &read_only, &["run", "job", "--", "sh", "-c", "exit 3"]).expect(3);
}

/// Where the file system is mounted that a folder is in.
fn mount_point(folder: &Path) -> PathBuf {
    let said = Command::new("stat").args(["-c", "%m"]).arg(folder).output().unwrap().stdout;
    String::from_utf8(said).unwrap().trim().into()
}

/// Runs the real binary in a PID namespace of its own.
fn in_namespace(home: &Home, flags: &[&str], args: &[&str]) -> Done {
    let plain = home.leasehold(args);
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child"]).args(flags).arg("--").arg(plain.get_program());
    command.args(plain.get_args()).current_dir(home.folder.path()).env_clear();
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Done::from(command.stdin(Stdio::null()).output().unwrap())
}

#[test]
fn nothing_is_run_where_the_process_table_is_another_namespaces() {
    if !may("a PID namespace", &["unshare", "--pid", "--fork", "true"]) {
        return;
    }
    let home = Home::new(On::Sqlite);
    home.done(&["queue", "add", "letters"]).expect(0);
    std::fs::write(home.path("leasehold.toml"), "[[job]]\nname = 'tick'\nevery = '1s'\ncommand = 'touch ran'\n")
        .unwrap();
    let runs: [&[&str]; 4] = [
        &["run", "job", "--", "touch", "ran"],
        &["run", "job", "--wait", "1s", "--", "touch", "ran"],
        &["work", "letters", "--until-idle", "--", "touch", "ran"],
        &["schedule"],
    ];
    let before = state(home.folder.path());
    for args in runs {
        let refused = in_namespace(&home, &[], args).expect(78);
        assert!(refused.stderr.contains("/proc shows the processes of another PID namespace"), "{refused:?}");
        assert!(refused.stderr.contains("--mount-proc"), "{refused:?}");
        assert_eq!(changes(&before, &state(home.folder.path())), [] as [String; 0]);
    }
    let sick = in_namespace(&home, &[], &["doctor"]).expect(78);
    let row = diagnosis(&sick);
    assert!(row.starts_with("bad") && row.contains("/proc shows the processes of another PID namespace"), "{sick:?}");
    assert!(sick.stdout.contains("  promises"), "the rest is looked at all the same: {sick:?}");
    in_namespace(&home, &["--mount-proc"], &["run", "job", "--", "touch", "ran"]).expect(0);
    assert!(home.path("ran").exists());
}
