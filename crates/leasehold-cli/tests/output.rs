//! Output that is kept: what `run --keep-output`, `schedule` and `work` keep, and what `logs` shows of it.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Done, Home, On, Running, eventually, signal};
#[cfg(feature = "full")]
use leasehold_core::clock::{Clock, SystemClock};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
#[cfg(feature = "full")]
use std::time::Duration;

const BOTH: [On; 2] = [On::Sqlite, On::Dir];

/// Every file below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().is_dir() { found.extend(files(&entry.path())) } else { found.push(entry.path()) }
    }
    found
}

fn kept(home: &Home) -> Vec<PathBuf> {
    files(&home.path("kept"))
}

/// A home whose output is kept in a folder that the tests can look at.
fn home(on: On) -> Home {
    let home = Home::new(on);
    fs::write(home.path("leasehold.toml"), "output = \"kept\"\n").unwrap();
    home
}

fn json(done: Done) -> serde_json::Value {
    serde_json::from_str(&done.expect(0).stdout).unwrap()
}

fn item_of(home: &Home, words: &[&str]) -> String {
    home.done(words).expect(0).stdout.trim().to_owned()
}

const TALK: &str = "echo one; printf '10%%\\r50%%\\r100%%\\n'; echo two >&2; printf 'last\\377\\n'";

#[test]
fn a_kept_run_is_shown_again_and_was_passed_on_unchanged() {
    for on in BOTH {
        let home = home(on);
        let ran = home.leasehold(&["run", "team/a.b", "--keep-output", "--", "sh", "-c", TALK]).output().unwrap();
        assert_eq!(ran.stdout, b"one\n10%\r50%\r100%\nlast\xff\n", "{ran:?}");
        assert!(ran.stderr.ends_with(b"two\n"), "{ran:?}");
        let shown = home.leasehold(&["logs", "team/a.b"]).output().unwrap();
        let mut lines: Vec<&[u8]> = shown.stdout.split(|byte| *byte == b'\n').collect();
        // Two pipes have no order between them.
        lines.sort_unstable();
        assert_eq!(lines, [&b""[..], b"100%", b"last\xff", b"one", b"two"], "{shown:?}");
        let found = json(home.done(&["logs", "team/a.b", "--json"]));
        assert_eq!((&found["source"], &found["epoch"], &found["exit"]), (&"file".into(), &1.into(), &0.into()));
        assert!(found["peak_memory_bytes"].as_u64().unwrap() > 0 && found["is_cut"] == false, "{found}");
        let [file] = &kept(&home)[..] else { panic!("{:?}", kept(&home)) };
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
        for folder in file.ancestors().skip(1).take(2) {
            assert_eq!(fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o700, "{folder:?}");
        }
        assert!(!home.done(&["ls"]).expect(0).stdout.contains("output"));
        // An ordinary gzip file.
        let unpacked = Command::new("gzip").arg("-dc").arg(file).output().unwrap();
        assert!(unpacked.status.success() && unpacked.stdout == shown.stdout, "{unpacked:?}");
    }
}

#[test]
fn a_plain_run_has_no_pipe_and_leaves_nothing() {
    let home = home(On::Sqlite);
    let out = fs::File::create(home.path("out")).unwrap();
    let ran = home.leasehold(&["run", "x", "--", "readlink", "/proc/self/fd/1"]).stdout(out).status().unwrap();
    assert!(ran.success());
    assert_eq!(home.read("out").trim_end(), home.path("out").canonicalize().unwrap().display().to_string());
    assert!(kept(&home).is_empty());
    let none = home.done(&["logs", "x"]).expect(64);
    assert!(none.stderr.contains("no output of `x` is kept"), "{none:?}");
}

#[test]
fn a_hundred_megabytes_keep_their_beginning_and_their_end() {
    let home = home(On::Sqlite);
    let script =
        "echo the beginning; yes 0123456789012345678901234567890123456789012345678 | head -n 2000000; echo the end";
    let mut run = home.leasehold(&["run", "big", "--keep-output", "--", "sh", "-c", script]);
    assert!(run.env("LEASEHOLD_OUTPUT_SIZE", "64KB").stdout(Stdio::null()).status().unwrap().success());
    let sizes: u64 = kept(&home).iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    assert!(sizes > 0 && sizes < 66_000, "{sizes}");
    let shown = home.done(&["logs", "big"]).expect(0).stdout;
    assert!(shown.len() < 66_000 && shown.starts_with("the beginning\n") && shown.ends_with("\nthe end\n"));
    assert!(shown.contains("bytes of output are left out here]"));
    let found = json(home.done(&["logs", "big", "--json"]));
    assert_eq!((&found["bytes"], &found["is_cut"]), (&100_000_022_u64.into(), &true.into()));
    assert_eq!(home.done(&["logs", "big", "--tail", "1"]).expect(0).stdout, "the end\n");
}

#[test]
fn a_file_that_stands_for_more_than_may_be_kept_is_shown_up_to_that_and_said_to_be() {
    let home = home(On::Sqlite);
    home.done(&["run", "x", "--keep-output", "--", "echo", "short"]).expect(0);
    let [file] = &kept(&home)[..] else { panic!("{:?}", kept(&home)) };
    let compress = "import gzip, sys
open(sys.argv[1], 'wb').write(b'\\x1f\\x8b\\x08\\x10' + bytes(6) + b'0\\0' + gzip.compress(b'line\\n' * 4000000)[10:])";
    let made = Command::new("python3").args(["-c", compress]).arg(file).status().unwrap();
    assert!(made.success() && fs::metadata(file).unwrap().len() < 100_000);
    let shown = home.done(&["logs", "x"]).expect(0);
    assert_eq!(shown.stdout.len(), 8 << 20);
    assert!(shown.stderr.contains("has more than 8MB; only so much of it is shown"), "{}", shown.stderr);
    fs::write(home.path("leasehold.toml"), "output = \"kept\"\noutput_size = \"64MB\"\n").unwrap();
    let shown = home.done(&["logs", "x"]).expect(0);
    assert!(shown.stdout.len() == 20_000_000 && !shown.stderr.contains("has more than"), "{}", shown.stderr);
}

#[test]
fn what_never_falls_silent_is_seen_while_it_runs() {
    let home = home(On::Sqlite);
    let chatty = "while [ ! -e go ]; do echo line; sleep 0.02; done";
    let run = home.start(&["run", "chatty", "--keep-output", "--", "sh", "-c", chatty]);
    eventually("its lines are seen", || home.done(&["logs", "chatty"]).stdout.contains("line\n"));
    home.touch("go");
    run.end().expect(0);
}

#[test]
fn what_a_killed_run_printed_is_there() {
    for on in BOTH {
        let home = home(on);
        let mut run =
            home.start(&["run", "k", "--keep-output", "--ttl", "3s", "--", "sh", "-c", "echo begun; sleep 600"]);
        eventually("the line is flushed", || home.done(&["logs", "k"]).stdout == "begun\n");
        let found = json(home.done(&["logs", "k", "--json"]));
        assert_eq!((&found["running"], &found["exit"]), (&true.into(), &serde_json::Value::Null));
        signal(run.pid(), "KILL");
        eventually("it is gone", || run.is_over());
        eventually("the lease has expired", || json(home.done(&["logs", "k", "--json"]))["running"] == false);
        assert_eq!(home.done(&["logs", "k"]).expect(0).stdout, "begun\n");
    }
}

#[test]
fn a_run_is_followed_to_its_end() {
    let home = home(On::Sqlite);
    let script = "touch begun; until [ -e say ]; do sleep 0.05; done; echo first; \
                  until [ -e more ]; do sleep 0.05; done; echo second; printf third";
    let run = home.start(&["run", "f", "--keep-output", "--", "sh", "-c", script]);
    eventually("it runs", || home.path("begun").exists());
    // From before it has printed anything.
    let followed = fs::File::create(home.path("followed")).unwrap();
    let mut command = home.leasehold(&["logs", "f", "--follow"]);
    let follower = Running::from(command.stdout(followed).stderr(Stdio::piped()).spawn().unwrap());
    home.touch("say");
    eventually("the first line is shown", || home.read("followed") == "first\n");
    home.touch("more");
    run.end().expect(0);
    let end = follower.end().expect(0);
    assert_eq!((home.read("followed").as_str(), end.stderr.as_str()), ("first\nsecond\nthird\n", ""));
    // One that is over is printed, and that is all.
    assert_eq!(home.done(&["logs", "f", "--follow", "--tail", "2"]).expect(0).stdout, "second\nthird\n");
}

#[test]
fn a_run_whose_file_is_removed_as_it_ends_is_followed_to_its_end() {
    let home = home(On::Sqlite);
    let script = "echo first; until [ -e more ]; do sleep 0.05; done; echo second";
    let run = home.start(&["run", "f", "--keep-output", "--", "sh", "-c", script]);
    eventually("it runs", || !kept(&home).is_empty());
    let followed = fs::File::create(home.path("followed")).unwrap();
    let mut command = home.leasehold(&["logs", "f", "--follow"]);
    let follower = Running::from(command.stdout(followed).stderr(Stdio::piped()).spawn().unwrap());
    eventually("the first line is shown", || home.read("followed") == "first\n");
    // It does not look again before the file is gone.
    signal(follower.pid(), "STOP");
    home.touch("more");
    run.end().expect(0);
    let mut next = home.leasehold(&["run", "f", "--keep-output", "--", "echo", "next"]);
    assert!(next.env("LEASEHOLD_OUTPUT_RUNS", "1").stdout(Stdio::null()).status().unwrap().success());
    assert_eq!(kept(&home).len(), 1, "the first run's file is gone");
    signal(follower.pid(), "CONT");
    let end = follower.end().expect(0);
    assert_eq!((home.read("followed").as_str(), end.stderr.as_str()), ("first\nsecond\n", ""));
}

#[test]
fn the_last_lines_are_in_the_store_and_say_where_the_rest_is() {
    for on in BOTH {
        let home = home(on);
        let script = "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done";
        home.done(&["run", "t", "--keep-output", "--", "sh", "-c", script]).expect(0);
        fs::remove_dir_all(home.path("kept")).unwrap();
        let shown = home.done(&["logs", "t"]).expect(0);
        assert!(shown.stdout.starts_with("line ") && shown.stdout.ends_with("line 1999\n"), "{shown:?}");
        assert!(shown.stdout.len() <= 4_096 && shown.stdout.len() > 4_000);
        assert!(shown.stderr.contains("these are the last lines of 18890 bytes"), "{shown:?}");
        let found = json(home.done(&["logs", "t", "--json"]));
        assert_eq!((&found["source"], &found["is_cut"]), (&"record".into(), &true.into()));
    }
}

#[test]
fn only_so_many_runs_are_kept_here_and_in_the_store() {
    let home = home(On::Dir);
    for number in 1..=5 {
        let mut run = home.leasehold(&["run", "c", "--keep-output", "--", "echo", &number.to_string()]);
        assert!(run.env("LEASEHOLD_OUTPUT_RUNS", "2").stdout(Stdio::null()).status().unwrap().success());
    }
    assert_eq!(kept(&home).len(), 2);
    assert_eq!(home.done(&["logs", "c"]).expect(0).stdout, "5\n");
    assert_eq!(home.done(&["logs", "c", "4"]).expect(0).stdout, "4\n");
    home.done(&["logs", "c", "3"]).expect(64);
}

#[test]
fn what_was_kept_while_the_clock_was_ahead_is_removed_first() {
    let home = home(On::Dir);
    for number in 1..=5 {
        let mut run = home.leasehold(&["run", "c", "--keep-output", "--", "echo", &number.to_string()]);
        assert!(run.env("LEASEHOLD_OUTPUT_RUNS", "2").stdout(Stdio::null()).status().unwrap().success());
        let file = fs::File::options().append(true).open(&kept(&home)[0]).unwrap();
        let ahead =
            std::time::UNIX_EPOCH + std::time::Duration::from_millis(leasehold_system::clock::wall_ms() + 86_400_000);
        if number == 1 {
            file.set_modified(ahead).unwrap();
        }
    }
    assert_eq!(home.done(&["logs", "c", "4"]).expect(0).stdout, "4\n");
    assert_eq!(kept(&home).len(), 2);
}

#[test]
fn a_folder_that_cannot_be_used_costs_a_warning_and_nothing_else() {
    let home = home(On::Sqlite);
    home.touch("kept");
    let ran = home.done(&["run", "w", "--keep-output", "--", "sh", "-c", "echo said; exit 3"]).expect(3);
    assert_eq!(ran.stdout, "said\n");
    assert_eq!(ran.stderr.matches("the output of `w:1` is not kept in").count(), 1, "{ran:?}");
    assert_eq!(home.done(&["logs", "w"]).expect(0).stdout, "said\n");
}

#[test]
fn an_output_folder_that_somebody_else_prepared_is_not_used() {
    let home = home(On::Sqlite);
    home.done(&["run", "nightly", "--keep-output", "--", "echo", "one"]).expect(0);
    let job = kept(&home)[0].parent().unwrap().to_path_buf();
    let allow = |mode| fs::set_permissions(job.parent().unwrap(), PermissionsExt::from_mode(mode)).unwrap();
    allow(0o777);
    let told = home.done(&["run", "nightly", "--keep-output", "--", "echo", "two"]).expect(0);
    assert!(told.stderr.contains("may be written by other users") && told.stdout == "two\n", "{told:?}");
    assert_eq!(kept(&home).len(), 1);
    allow(0o755);
    // A link to a folder in which others keep their logs.
    let theirs = home.path("theirs");
    fs::create_dir(&theirs).unwrap();
    fs::write(theirs.join("app.log.gz"), "precious").unwrap();
    fs::rename(&job, home.path("moved")).unwrap();
    std::os::unix::fs::symlink(&theirs, &job).unwrap();
    let mut run = home.leasehold(&["run", "nightly", "--keep-output", "--", "echo", "three"]);
    let linked = run.env("LEASEHOLD_OUTPUT_RUNS", "1").output().unwrap();
    assert!(linked.status.success() && String::from_utf8_lossy(&linked.stderr).contains("is a link"), "{linked:?}");
    assert_eq!(fs::read_dir(&theirs).unwrap().count(), 1, "nothing is made and nothing is removed there");
    // Nor is what is named otherwise in one's own folder.
    fs::remove_file(&job).unwrap();
    fs::rename(home.path("moved"), &job).unwrap();
    fs::write(job.join("app.log.gz"), "precious").unwrap();
    let mut run = home.leasehold(&["run", "nightly", "--keep-output", "--", "echo", "four"]);
    assert!(run.env("LEASEHOLD_OUTPUT_RUNS", "1").status().unwrap().success());
    assert_eq!(kept(&home).len(), 2, "the last run's, and what is not ours: {:?}", kept(&home));
    assert_eq!(fs::read(job.join("app.log.gz")).unwrap(), b"precious");
}

#[test]
fn a_full_disk_costs_a_warning_and_nothing_else() {
    let home = home(On::Sqlite);
    fs::create_dir(home.path("kept")).unwrap();
    let mounted = rustix::mount::mount(
        "tmpfs",
        home.path("kept"),
        "tmpfs",
        rustix::mount::MountFlags::empty(),
        Some(c"size=64k"),
    );
    if let Err(e) = mounted {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "CI may mount: {e}");
        return println!("skipped: a small file system cannot be mounted here: {e}");
    }
    let script = "head -c 2000000 /dev/urandom | base64; echo the end";
    let ran = home.done(&["run", "d", "--keep-output", "--", "sh", "-c", script]);
    let tail = home.done(&["logs", "d", "--tail", "1"]);
    let _ = rustix::mount::unmount(home.path("kept"), rustix::mount::UnmountFlags::DETACH);
    assert_eq!((ran.code, ran.stderr.matches("is not kept in").count()), (0, 1), "{}", ran.stderr);
    assert!(ran.stdout.ends_with("\nthe end\n"));
    let tail = tail.expect(0);
    assert_eq!(tail.stdout, "the end\n", "{}", tail.stderr);
    assert!(tail.stderr.contains("its last lines are from the store"), "{}", tail.stderr);
    let found = json(home.done(&["logs", "d", "--json"]));
    assert!(found["text"].as_str().unwrap().ends_with("\nthe end\n") && found["source"] == "record", "{found}");
}

#[test]
fn output_that_is_off_is_kept_nowhere() {
    let home = home(On::Sqlite);
    fs::write(home.path("leasehold.toml"), "output = \"off\"\n").unwrap();
    let ran = home.done(&["run", "o", "--keep-output", "--", "echo", "secret"]).expect(0);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("secret\n", ""));
    let none = home.done(&["logs", "o"]).expect(64);
    assert!(none.stderr.contains("the setting `output` is off"), "{none:?}");
    assert!(files(&home.path(".local")).is_empty());
}

#[test]
fn tries_of_one_run_are_kept_together() {
    let home = home(On::Sqlite);
    let script = "echo try; [ -e tried ] || { touch tried; exit 1; }";
    let run = ["run", "r", "--keep-output", "--retries", "1", "--backoff", "10ms", "--", "sh", "-c", script];
    home.done(&run).expect(0);
    assert_eq!(home.done(&["logs", "r"]).expect(0).stdout, "try\n[leasehold: try 2 of 2]\ntry\n");
}

#[test]
fn a_scheduled_run_is_kept_named_by_its_journal_and_passed_on_with_its_name() {
    for on in BOTH {
        let home = home(on);
        let jobs = r#"output = 'kept'
            [[job]]
            name = 'alpha'
            every = '1s'
            command = "for i in 1 2 3 4 5 6 7 8 9; do echo aaaaaaaaaaaaaaa; done"
            [[job]]
            name = 'beta'
            every = '1s'
            command = "printf '1%%\\r2%%\\r3%%\\n'""#;
        fs::write(home.path("leasehold.toml"), jobs).unwrap();
        let scheduler = home.start(&["schedule", "--quiet"]);
        let both = || ["alpha", "beta"].iter().all(|job| home.done(&["logs", job]).code == 0);
        eventually("both have run", both);
        signal(scheduler.pid(), "TERM");
        let out = scheduler.end().expect(0).stdout;
        assert!(out.contains("beta | 3%\n") && out.contains("alpha | aaaaaaaaaaaaaaa\n"), "{out}");
        assert!(out.lines().all(|line| line == "beta | 3%" || line == "alpha | aaaaaaaaaaaaaaa"), "{out}");
        let runs = json(home.done(&["runs", "beta", "--json"]));
        let run = runs.as_array().unwrap().iter().find(|run| run["fate"] == "succeeded").unwrap();
        assert!(run["output"].is_string() && run["cpu_ms"].is_u64() && run["peak_memory_bytes"].is_u64(), "{run}");
        let slot = run["slot"].as_str().unwrap();
        assert_eq!(home.done(&["logs", "beta", slot]).expect(0).stdout, "3%\n");
        assert_eq!(home.done(&["logs", "beta", &slot[..10]]).expect(0).stdout, "3%\n", "by the date of its slot");
        let unknown = home.done(&["logs", "beta", "2020-02-29"]).expect(64).stderr;
        assert!(unknown.contains("for a slot from 2020-02-29T00:00:00Z to 2020-02-29T23:59:59"), "{unknown}");
        let table = home.done(&["runs", "beta"]).expect(0).stdout;
        let row = table.lines().find(|line| line.contains("succeeded")).unwrap();
        assert!(table.contains("MEMORY") && (row.contains("KB") || row.contains("MB")), "{table}");
    }
}

#[test]
fn an_items_attempt_is_kept_under_its_queue() {
    for on in BOTH {
        let home = home(on);
        for queue in ["mail".to_owned(), format!("spool:{}/a spool", home.folder.path().display())] {
            let one = item_of(&home, &["queue", "add", &queue, "--text", "first"]);
            let two = item_of(&home, &["queue", "add", &queue, "--text", "second"]);
            let worked = home.done(&["work", &queue, "--until-idle", "--", "sh", "-c", "cat; echo; exit 0"]).expect(0);
            let name = if queue == "mail" { "mail" } else { "spool" };
            assert_eq!(worked.stdout, format!("{name}/{one} | first\n{name}/{two} | second\n"));
            assert_eq!(home.done(&["logs", &queue, &one]).expect(0).stdout, "first\n");
            assert_eq!(home.done(&["logs", &queue]).expect(0).stdout, "second\n");
            home.done(&["logs", &queue, "k.unknown"]).expect(64);
        }
        fs::remove_dir_all(home.path("kept")).unwrap();
        let left = home.done(&["logs", "mail"]).expect(0);
        assert_eq!((left.stdout.as_str(), left.stderr.as_str()), ("second\n", ""), "the store has all of it");
    }
}

#[test]
fn a_worker_can_pass_output_on_as_it_is() {
    let home = home(On::Sqlite);
    home.done(&["queue", "add", "q", "--text", "x"]).expect(0);
    let worked = home.done(&["work", "q", "--until-idle", "--no-prefix", "--", "printf", "a\\rb"]).expect(0);
    assert_eq!(worked.stdout, "a\rb");
}

#[test]
fn two_stores_on_one_machine_keep_apart_what_has_one_name() {
    let (first, second) = (home(On::Sqlite), home(On::Sqlite));
    let shared = first.path("kept").display().to_string();
    for (home, word) in [(&first, "first"), (&second, "second")] {
        let mut run = home.leasehold(&["run", "same", "--keep-output", "--", "echo", word]);
        assert!(run.env("LEASEHOLD_OUTPUT", &shared).stdout(Stdio::null()).status().unwrap().success());
    }
    for (home, word) in [(&first, "first\n"), (&second, "second\n")] {
        let shown = home.leasehold(&["logs", "same"]).env("LEASEHOLD_OUTPUT", &shared).output().unwrap();
        assert_eq!(String::from_utf8(shown.stdout).unwrap(), word);
    }
    assert_eq!(kept(&first).len(), 2);
    let third = home(On::Sqlite);
    for (home, word) in [(&first, "first"), (&second, "second"), (&third, "third")] {
        item_of(home, &["queue", "add", "mail", "--key", "welcome", "--text", "x"]);
        let mut work = home.leasehold(&["work", "mail", "--until-idle", "--no-prefix", "--", "echo", word]);
        if word != "third" {
            assert!(work.env("LEASEHOLD_OUTPUT", &shared).stdout(Stdio::null()).status().unwrap().success());
        }
    }
    for (home, word) in [(&first, "first\n"), (&second, "second\n"), (&third, "")] {
        for words in [&["logs", "mail", "k.welcome"][..], &["logs", "mail"]] {
            let shown = home.leasehold(words).env("LEASEHOLD_OUTPUT", &shared).output().unwrap();
            assert_eq!(String::from_utf8(shown.stdout).unwrap(), word);
        }
    }
}

#[test]
fn a_migration_takes_the_last_lines_along() {
    let home = home(On::Sqlite);
    home.done(&["run", "m", "--keep-output", "--", "echo", "kept"]).expect(0);
    fs::remove_dir_all(home.path("kept")).unwrap();
    let to = format!("sqlite:{}", home.path("new.db").display());
    home.done(&["migrate", &home.store, &to]).expect(0);
    assert_eq!(home.done(&["logs", "m", "--store", &to]).expect(0).stdout, "kept\n");
}

#[test]
fn an_items_attempt_is_followed_to_its_end_even_before_it_has_printed_anything() {
    let home = home(On::Sqlite);
    let id = item_of(&home, &["queue", "add", "mail", "--text", "x"]);
    let quiet = item_of(&home, &["queue", "add", "mail", "--text", "x"]);
    let script = "touch begun; until [ -e say ]; do sleep 0.05; done; echo first; until [ -e more ]; do sleep 0.05; \
                  done; printf second; rm begun say more";
    let mut worker = home.start(&["work", "mail", "--items", "1", "--", "sh", "-c", script]);
    eventually("it runs", || home.path("begun").exists());
    let yet = home.done(&["logs", "mail", &id]).expect(64);
    assert!(yet.stderr.contains("is held here; nothing that its run printed is kept so far"), "{yet:?}");
    let follow = |id: &str, into: &str| {
        let into = fs::File::create(home.path(into)).unwrap();
        let mut command = home.leasehold(&["logs", "mail", id, "--follow"]);
        Running::from(command.stdout(into).stderr(Stdio::piped()).spawn().unwrap())
    };
    let follower = follow(&id, "followed");
    home.touch("say");
    eventually("the first line is shown", || home.read("followed") == "first\n");
    home.touch("more");
    eventually("the worker ends", || worker.is_over());
    assert_eq!(worker.end().expect(0).stdout, format!("mail/{id} | first\nmail/{id} | second\n"));
    assert_eq!((follower.end().expect(0).stderr.as_str(), home.read("followed").as_str()), ("", "first\nsecond\n"));
    // One that never prints anything is over, too.
    let mut worker = home.start(&[
        "work",
        "mail",
        "--items",
        "1",
        "--",
        "sh",
        "-c",
        "touch begun; until [ -e say ]; do sleep 0.05; done",
    ]);
    eventually("the next one runs", || home.path("begun").exists());
    let follower = follow(&quiet, "silence");
    home.touch("say");
    eventually("the worker ends", || worker.is_over());
    let end = follower.end();
    // It may have begun to look when the item was done already.
    let says = if end.code == 0 { "is over; nothing that it printed is kept" } else { "no output of `mail`, run" };
    assert!(end.stderr.contains(says) && home.read("silence").is_empty(), "{end:?}");
}

#[cfg(feature = "full")]
#[test]
fn a_bucket_that_does_not_answer_delays_neither_the_lease_nor_the_end_for_long() {
    // Takes connections, and never says anything.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let home = home(On::Sqlite);
    let mut command = home.leasehold(&["run", "b", "--keep-output", "--", "sh", "-c", "echo said; exit 5"]);
    command.env("LEASEHOLD_OUTPUT", format!("s3://id:secret@bucket/logs?endpoint=http://127.0.0.1:{port}"));
    let begun = SystemClock.now();
    let mut run = Running::from(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let is_free = || {
        let seen: Option<serde_json::Value> = serde_json::from_str(&home.done(&["show", "b", "--json"]).stdout).ok();
        seen.is_some_and(|seen| seen["state"] == "free")
    };
    eventually("its lease is released", is_free);
    assert!(!run.is_over(), "it is at its upload");
    let ended = run.end().expect(5);
    let took = SystemClock.now().saturating_since(begun);
    assert!(took < Duration::from_secs(40), "{took:?}");
    assert_eq!(ended.stderr.matches("until the next run uploads it").count(), 1, "{ended:?}");
    assert!(ended.stdout == "said\n" && !ended.stderr.contains("secret"), "{ended:?}");
    assert_eq!(home.done(&["logs", "b"]).expect(0).stdout, "said\n");
}

#[cfg(feature = "full")]
#[test]
fn a_bucket_keeps_what_this_machine_then_has_not() {
    let server = leasehold_testbed::moto();
    let bucket =
        format!("s3://id:secret@{}/logs?endpoint=http://127.0.0.1:{}", leasehold_testbed::BUCKET, server.port());
    let home = home(On::Sqlite);
    let run = |word: &str, bucket: &str| {
        let mut command = home.leasehold(&["run", "b", "--keep-output", "--", "echo", word]);
        command.env("LEASEHOLD_OUTPUT", bucket).env("LEASEHOLD_OUTPUT_RUNS", "2");
        Done::from(command.output().unwrap()).expect(0)
    };
    // While it is away the output stays here, and one warning says so.
    let away = run("first", "s3://id:secret@bucket/logs?endpoint=http://127.0.0.1:1");
    assert_eq!(away.stderr.matches("until the next run uploads it").count(), 1, "{away:?}");
    assert!(!away.stderr.contains("secret"), "{away:?}");
    let left = || files(&home.path(".local/state/leasehold/output")).len();
    assert_eq!(left(), 1);
    assert_eq!(run("second", &bucket).stderr, "");
    assert_eq!(left(), 0, "what was left is uploaded too");
    let logs = |epoch: &str| home.leasehold(&["logs", "b", epoch, "--json"]).env("LEASEHOLD_OUTPUT", &bucket).output();
    for (epoch, word) in [("1", "first\n"), ("2", "second\n")] {
        let shown: serde_json::Value = serde_json::from_slice(&logs(epoch).unwrap().stdout).unwrap();
        assert_eq!((&shown["source"], &shown["text"]), (&"bucket".into(), &word.into()), "{shown}");
        assert!(!shown.to_string().contains("secret"));
    }
    run("third", &bucket);
    let shown: serde_json::Value = serde_json::from_slice(&logs("2").unwrap().stdout).unwrap();
    assert_eq!(shown["source"], "bucket");
    assert!(!logs("1").unwrap().status.success(), "only two are kept");
}

#[test]
fn a_run_that_is_not_known_is_distinguished_from_one_of_which_nothing_is_kept() {
    let home = home(On::Sqlite);
    let says = |args: &[&str], what: &str| {
        let refused = home.done(args).expect(64);
        assert!(refused.stderr.contains(what), "{refused:?}");
        assert_eq!(refused.stderr.lines().count(), 1, "{refused:?}");
    };
    says(&["logs", "nightly"], "`nightly`");
    home.done(&["run", "nightly", "--", "echo", "not kept"]).expect(0);
    says(&["logs", "nightly"], "no output of `nightly` is kept");
    says(&["logs", "nightly", "1"], "no output of `nightly`, run `1`, is kept");
    says(&["logs", "nightly", "7"], "no run of `nightly` under epoch 7 is known");
    says(&["logs", "nightly", "2026-11-15T03:00:00Z"], "no run of `nightly` for slot 2026-11-15T03:00:00Z is known");
    // Of a run that an operator asked for, which claims no slot, the journal knows the slot that `runs` shows.
    let job = "output = \"kept\"\n[[job]]\nname = \"quiet\"\nevery = \"366d\"\ncommand = \"true\"\n";
    fs::write(home.path("leasehold.toml"), job).unwrap();
    home.done(&["schedule", "trigger", "quiet"]).expect(0);
    let runs = json(home.done(&["runs", "quiet", "--json"]));
    let slot = runs[0]["slot"].as_str().unwrap();
    says(&["logs", "quiet", slot], &format!("no output of `quiet`, run `{slot}`, is kept"));
    let id = item_of(&home, &["queue", "add", "mail", "--text", "x"]);
    says(&["logs", "mail", &id], "no output of `mail`, run");
    says(&["logs", "mail", "k.none"], "there is no item");
}
