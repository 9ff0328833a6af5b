//! `run`: busy policies, limits, progress, guards, exit codes, terminal.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Home, On, Running, descendants, eventually, is_alive, signal};
use std::process::{Command, Stdio};

#[test]
fn the_exit_code_is_the_commands_own() {
    let home = Home::new(On::Sqlite);
    for (job, code) in [("exit 0", 0), ("exit 3", 3), ("exit 255", 255), ("kill -9 $$", 137), ("kill -15 $$", 143)] {
        home.done(&["run", "job", "--", "sh", "-c", job]).expect(code);
    }
    home.done(&["run", "job", "--", "no-such-command"]).expect(127);
    home.done(&["run", "job", "--", "/etc/hostname"]).expect(126);
    assert_eq!(home.count("job", "granted"), 7);
    assert_eq!(home.count("job", "failed"), 6);
}

#[test]
fn the_command_finds_its_token_in_its_environment() {
    let home = Home::new(On::Dir);
    let done = home.done(&["run", "team/job", "--", "env"]).expect(0);
    let value = |key: &str| {
        let line = done.stdout.lines().find(|l| l.starts_with(&format!("{key}="))).unwrap();
        line.split_once('=').unwrap().1.to_owned()
    };
    assert_eq!(value("LEASEHOLD_NAME"), "team/job");
    assert_eq!(value("LEASEHOLD_EPOCH"), "1");
    assert!(value("LEASEHOLD_TOKEN").starts_with("team/job:1:"));
    assert_eq!(value("LEASEHOLD_STORE"), home.store);
    assert_eq!(value("LEASEHOLD_IDEMPOTENCY_KEY"), "team/job@1");
}

#[test]
fn a_held_lease_is_skipped_quietly_with_exit_0() {
    let home = Home::new(On::Sqlite);
    home.done(&["acquire", "job", "--label", "first"]).expect(0);
    let skipped = home.done(&["run", "job", "--", "touch", "ran"]).expect(0);
    assert_eq!(skipped.stderr.lines().count(), 1, "{skipped:?}");
    assert!(skipped.stderr.starts_with("leasehold: skipped: `job` has been held by"), "{skipped:?}");
    assert!(skipped.stderr.contains("by first ("), "{skipped:?}");
    assert_eq!(home.done(&["run", "job", "--quiet", "--", "touch", "ran"]).expect(0).stderr, "");
    home.done(&["run", "job", "--held-exit-code", "9", "--", "touch", "ran"]).expect(9);
    home.done(&["acquire", "job"]).expect(11);
    assert!(!home.path("ran").exists());
    assert_eq!(home.count("job", "skipped_overlap"), 4);
    assert_eq!(home.count("job", "failed"), 0);
}

#[test]
fn waiting_ends_when_the_lease_is_released_or_the_limit_comes() {
    for on in [On::Sqlite, On::Dir] {
        let home = Home::new(on);
        let token = home.done(&["acquire", "job", "--ttl", "5m"]).expect(0).stdout.trim().to_owned();
        home.done(&["run", "job", "--wait", "50ms", "--held-exit-code", "9", "--", "true"]).expect(9);
        let waiting = home.start(&["run", "job", "--wait", "10m", "--", "true"]);
        home.done(&["release", "--token", &token]).expect(0);
        waiting.end().expect(0);
        assert_eq!(home.history("job")[0]["reason"], "released");
    }
}

#[test]
fn a_pause_that_is_ordered_during_the_wait_keeps_every_seat_free() {
    let home = Home::new(On::Sqlite);
    let hold = |name: &str| home.done(&["acquire", name, "--ttl", "5m"]).expect(0).stdout.trim().to_owned();
    let (_first, second) = (hold("gpu"), hold("gpu/seat-2"));
    let waiting =
        home.start(&["run", "gpu", "--limit", "2", "--wait", "3s", "--held-exit-code", "9", "--", "touch", "ran"]);
    home.done(&["pause", "gpu", "--why", "drain"]).expect(0);
    home.done(&["release", "--token", &second]).expect(0);
    let skipped = waiting.end().expect(9);
    assert!(skipped.stderr.contains("`gpu` was paused by"), "{skipped:?}");
    assert!(!home.path("ran").exists());
    home.done(&["resume", "gpu", "--why", "done"]).expect(0);
    home.done(&["run", "gpu", "--limit", "2", "--wait", "1m", "--", "touch", "ran"]).expect(0);
}

#[test]
fn a_second_try_comes_after_the_given_time() {
    let home = Home::new(On::Sqlite);
    home.done(&["acquire", "job", "--ttl", "3s"]).expect(0);
    home.done(&["run", "job", "--retry-after", "3500ms", "--held-exit-code", "9", "--", "true"]).expect(0);
    home.done(&["acquire", "job", "--ttl", "5m"]).expect(0);
    home.done(&["run", "job", "--retry-after", "10ms", "--held-exit-code", "9", "--", "true"]).expect(9);
}

#[test]
fn another_lease_is_taken_when_the_first_is_held() {
    let home = Home::new(On::Sqlite);
    home.done(&["acquire", "a", "--ttl", "5m"]).expect(0);
    let done = home.done(&["run", "a", "--or", "b", "--or", "c", "--", "sh", "-c", "echo $LEASEHOLD_NAME"]).expect(0);
    assert_eq!(done.stdout, "b\n");
}

#[test]
fn at_most_the_limit_run_at_once_each_with_its_own_lease() {
    let home = Home::new(On::Dir);
    let job = "echo $LEASEHOLD_NAME >> names; while [ ! -e go ]; do sleep 0.02; done";
    let args = ["run", "job", "--limit", "3", "--held-exit-code", "9", "--", "sh", "-c", job];
    let running: Vec<_> = (0..3).map(|_| home.start(&args)).collect();
    eventually("three run", || home.read("names").lines().count() == 3);
    home.done(&args).expect(9);
    let mut names: Vec<_> = home.read("names").lines().map(String::from).collect();
    names.sort();
    assert_eq!(names, ["job", "job/seat-2", "job/seat-3"]);
    home.touch("go");
    for run in running {
        run.end().expect(0);
    }
    home.done(&["pause", "job", "--why", "maintenance"]).expect(0);
    home.done(&args).expect(9);
    assert_eq!(home.count("job", "paused"), 1);
}

#[test]
fn progress_keeps_a_run_alive_and_its_absence_ends_it() {
    let home = Home::new(On::Sqlite);
    let job = "for i in 1 2 3 4 5 6; do sleep 0.9; leasehold progress \"step $i\"; done";
    home.done(&["run", "job", "--ttl", "20s", "--progress-timeout", "4s", "--", "sh", "-c", job]).expect(0);
    assert_eq!(home.show("job")["progress"]["marker"], "step 6");

    let prints = "for i in 1 2 3 4 5 6; do sleep 0.9; echo $i; done";
    let printing =
        ["run", "job", "--ttl", "20s", "--progress-timeout", "4s", "--progress-output", "--", "sh", "-c", prints];
    assert_eq!(home.done(&printing).expect(0).stdout, "1\n2\n3\n4\n5\n6\n");
    // A spinner is no progress unless output was said to count.
    home.done(&["run", "job", "--ttl", "20s", "--progress-timeout", "4s", "--", "sh", "-c", prints]).expect(75);

    let touches = "for i in 1 2 3 4 5 6; do sleep 0.9; echo $i > mark; done";
    let touching = [
        "run",
        "job",
        "--ttl",
        "20s",
        "--progress-timeout",
        "4s",
        "--progress-file",
        "mark",
        "--",
        "sh",
        "-c",
        touches,
    ];
    home.done(&touching).expect(0);

    let wedged =
        home.done(&["run", "job", "--ttl", "20s", "--progress-timeout", "4s", "--", "sleep", "1000"]).expect(75);
    assert!(wedged.stderr.contains("no progress was seen for"), "{wedged:?}");
    assert_eq!(home.show("job")["state"], "free");
}

/// Both pipes and the buffer between them hold what the command prints, so that it ends long before anybody reads.
fn printing_without_a_reader(home: &Home) -> std::process::Child {
    let prints = "head -c 130000 /dev/zero; echo > ended";
    let words = ["run", "job", "--progress-timeout", "10m", "--progress-output", "--", "sh", "-c", prints];
    let child = home.leasehold(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("the command has ended", || home.path("ended").exists());
    child
}

#[test]
fn a_slow_reader_gets_all_of_the_output() {
    let home = Home::new(On::Sqlite);
    let child = printing_without_a_reader(&home);
    // As slow as it takes for a pipe to count as silent, and slower: another run is over because its pipe does.
    let words = ["run", "other", "--progress-timeout", "10m", "--progress-output", "--", "sh", "-c"];
    let job = "echo $$ > other; while [ ! -e go ]; do sleep 0.02; done";
    let mut other = home.start(&[&words[..], &[job]].concat());
    let pipe = format!("/proc/{}/fd/1", home.words("other")[0]);
    let _held_open = std::fs::File::options().write(true).open(pipe).unwrap();
    home.touch("go");
    eventually("a silent pipe counts as ended", || other.is_over());
    other.end().expect(0);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 130_000), "{output:?}");
    assert_eq!(home.show("job")["state"], "free");
}

#[test]
fn a_signal_ends_the_wait_for_a_reader() {
    let home = Home::new(On::Sqlite);
    let mut run = Running::from(printing_without_a_reader(&home));
    eventually("nothing runs below it", || !descendants(run.pid()).into_iter().any(is_alive));
    signal(run.pid(), "TERM");
    eventually("it has ended", || run.is_over());
    let done = run.end().expect(143);
    assert!(done.stderr.contains("before all output of `job` was passed on"), "{}", done.stderr);
    assert_eq!(home.show("job")["state"], "free");
}

#[test]
fn a_run_is_stopped_at_its_longest_time() {
    let home = Home::new(On::Sqlite);
    let done = home.done(&["run", "job", "--ttl", "3s", "--max-runtime", "300ms", "--", "sleep", "1000"]).expect(124);
    assert!(done.stderr.contains("longer than 300ms (--max-runtime)"), "{done:?}");
    assert_eq!(home.history("job")[0]["outcome"], "failed");
}

#[test]
fn an_old_script_with_flock_and_a_new_run_exclude_each_other() {
    let home = Home::new(On::Sqlite);
    let path = home.path("old.flock");
    let lock = path.to_str().unwrap();
    let job = "flock -n old.flock true && echo free > seen || echo taken > seen";
    home.done(&["run", "job", "--also-flock", lock, "--", "sh", "-c", job]).expect(0);
    assert_eq!(home.read("seen"), "taken\n");
    assert!(Command::new("flock").args(["-n", lock, "true"]).status().unwrap().success());
    let mut old = Command::new("flock")
        .args([lock, "sh", "-c", "echo held; read line"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut held = [0; 5];
    std::io::Read::read_exact(old.stdout.as_mut().unwrap(), &mut held).unwrap();
    let skipped = home.done(&["run", "job", "--also-flock", lock, "--held-exit-code", "9", "--", "true"]).expect(9);
    assert!(skipped.stderr.contains("flocked by another process"), "{skipped:?}");
    assert_eq!(home.show("job")["state"], "free");
    let waited =
        home.done(&["run", "job", "--also-flock", lock, "--wait", "300ms", "--held-exit-code", "9", "--", "true"]);
    assert!(waited.expect(9).stderr.contains("after waiting for 300ms"));
    home.done(&["run", "job", "--also-flock", lock, "--retry-after", "10ms", "--held-exit-code", "9", "--", "true"])
        .expect(9);
    drop(old.stdin.take());
    old.wait().unwrap();
    home.done(&["run", "job", "--also-flock", lock, "--wait", "10s", "--", "true"]).expect(0);
}

#[test]
fn a_lease_that_was_handed_off_is_run_under_its_new_token() {
    let home = Home::new(On::Dir);
    let old = home.start(&["run", "job", "--ttl", "3s", "--", "sh", "-c", "echo $$ > started; exec sleep 1000"]);
    let pid: i32 = home.words("started")[0].parse().unwrap();
    let token =
        home.done(&["hand-off", "job", "--to", "night-shift", "--why", "drain", "--ttl", "30s"]).expect(0).stdout;
    old.end().expect(75);
    assert!(!is_alive(pid));
    let run = home.done(&["run", "job", "--token", token.trim(), "--", "sh", "-c", "echo $LEASEHOLD_EPOCH"]).expect(0);
    assert_eq!(run.stdout, "2\n");
    let history = home.history("job");
    assert_eq!(history[0]["reason"], "handed_off");
    assert_eq!(history[0]["why"], "drain");
    assert_eq!(history[0]["outcome"], "succeeded");
    home.done(&["run", "job", "--token", token.trim(), "--", "true"]).expect(12);
}

#[test]
fn a_nested_run_works_under_its_own_token() {
    let home = Home::new(On::Sqlite);
    let inner = "leasehold run inner -- sh -c 'echo $LEASEHOLD_NAME'; echo $LEASEHOLD_NAME";
    assert_eq!(home.done(&["run", "outer", "--", "sh", "-c", inner]).expect(0).stdout, "inner\nouter\n");
}

#[test]
fn standard_input_goes_to_the_command() {
    let home = Home::new(On::Sqlite);
    let mut child =
        home.leasehold(&["run", "job", "--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"hello\n").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"hello\n");
}

#[test]
fn two_runs_with_one_label_are_distinguished() {
    let home = Home::new(On::Sqlite);
    let old = home.done(&["acquire", "job", "--ttl", "3s", "--label", "worker-1"]).expect(0).stdout;
    let new = home.done(&["acquire", "job", "--ttl", "5m", "--label", "worker-1", "--wait", "20s"]).expect(0).stdout;
    home.done(&["renew", "--token", old.trim()]).expect(12);
    home.done(&["release", "--token", old.trim()]).expect(12);
    home.done(&["renew", "--token", new.trim()]).expect(0);
    assert_eq!(home.show("job")["epoch"], 2);
}

#[test]
fn a_gate_says_that_it_is_check_then_act_and_closes_for_stale_tokens() {
    let home = Home::new(On::Sqlite);
    let open = home.done(&["run", "job", "--", "leasehold", "gate", "deploy", "--", "sh", "-c", "exit 6"]).expect(6);
    assert!(open.stderr.contains("check-then-act"), "{open:?}");
    let old = home.done(&["acquire", "job", "--ttl", "5m"]).expect(0).stdout;
    home.done(&["revoke", "job", "--why", "drill"]).expect(0);
    let closed = home.done(&["gate", "deploy", "--token", old.trim(), "--", "touch", "ran"]).expect(13);
    assert!(closed.stderr.contains("resource=`deploy` held=2 seen=3"), "{closed:?}");
    assert!(!home.path("ran").exists());
}

#[test]
fn suspending_from_the_terminal_lets_the_lease_go_in_time() {
    let home = Home::new(On::Sqlite);
    let run = home.start(&["run", "job", "--ttl", "1s", "--", "sh", "-c", "echo $$ > started; exec sleep 1000"]);
    let pid: i32 = home.words("started")[0].parse().unwrap();
    signal(pid, "STOP");
    signal(run.pid(), "STOP");
    eventually("a stopped command is dead", || !is_alive(pid));
    signal(run.pid(), "CONT");
    run.end().expect(75);
}

#[test]
fn a_token_that_waited_for_most_of_its_time_is_taken_up_whole() {
    let home = Home::new(On::Sqlite);
    let token = home.done(&["acquire", "job", "--ttl", "4s"]).expect(0).stdout.trim().to_owned();
    // Less is left than the command takes.
    let time = |text: &serde_json::Value| text.as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    eventually("most of its time is over", || {
        let shown = home.show("job");
        time(&shown["deadline"]).as_millisecond() - time(&shown["now"]).as_millisecond() < 1_500
    });
    home.done(&["run", "job", "--token", &token, "--", "sleep", "2"]).expect(0);
}

#[test]
fn a_command_that_was_cut_off_has_not_succeeded() {
    let home = Home::new(On::Sqlite);
    let job = "trap 'exit 0' TERM; while :; do sleep 0.02; done";
    home.done(&["run", "job", "--ttl", "3s", "--max-runtime", "300ms", "--", "sh", "-c", job]).expect(124);
    assert_eq!(home.history("job")[0]["outcome"], "failed");
}

#[test]
fn the_evicted_are_told_who_and_why() {
    let home = Home::new(On::Sqlite);
    let run = home.start(&["run", "job", "--ttl", "1m", "--", "sh", "-c", "echo $$ > started; exec sleep 1000"]);
    home.words("started");
    home.done(&["pause", "job", "--why", "maintenance"]).expect(0);
    let listed = home.done(&["ls"]).expect(0);
    assert!(listed.stdout.contains("held, paused"), "{listed:?}");
    let told = home.done(&["revoke", "job", "--by", "ann", "--why", "it hangs"]).expect(0);
    assert!(told.stderr.contains("has lost it"), "{told:?}");
    let ended = run.end().expect(75);
    assert!(ended.stderr.contains("revoked by ann (it hangs)"), "{ended:?}");
    // What an operator wanted is nothing to be woken for.
    assert_eq!((home.count("job", "evicted"), home.count("job", "lost")), (1, 0));
    let again = home.done(&["revoke", "job", "--by", "ann", "--why", "to be sure"]).expect(0);
    assert!(again.stderr.contains("nobody held it"), "{again:?}");
}
