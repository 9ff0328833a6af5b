//! `work` and one item's, one file's or one lane's trouble: it stays its own, and the rest is done.
#![allow(clippy::unwrap_used)]

mod common;

use common::state::tamper_with;
use common::{Done, Home, On, Running, eventually, signal};
use std::process::Stdio;

/// In one write, for there are several lanes.
const SEE: &str = "echo \"$(cat)\" >> seen";

impl Home {
    fn add(&self, queue: &str, words: &[&str]) -> String {
        self.done(&[&["queue", "add", queue], words].concat()).expect(0).stdout.trim().to_owned()
    }

    fn item(&self, queue: &str, id: &str) -> serde_json::Value {
        serde_json::from_str(&self.done(&["queue", "show", queue, id, "--json"]).expect(0).stdout).unwrap()
    }

    fn pool(&self, queue: &str, script: &str) -> Running {
        let log = std::fs::File::create(self.path("log")).unwrap();
        let words = ["work", queue, "-j", "3", "--ttl", "5s", "--", "sh", "-c", script];
        Running::from(self.leasehold(&words).stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }

    fn seen(&self) -> Vec<String> {
        let mut seen: Vec<String> = self.read("seen").lines().map(String::from).collect();
        seen.sort();
        seen
    }
}

fn drained(worker: Running) -> Done {
    signal(worker.pid(), "TERM");
    worker.end()
}

/// The largest payload, result, checkpoint and reasons, each in the encoding that it grows most in, live together through
/// everything that can be done to an item, and the others are worked on beside it.
#[test]
fn items_of_the_largest_parts_are_worked_on_and_cancelled() {
    let home = Home::new(On::Sqlite);
    std::fs::write(home.path("payload"), vec![0xff_u8; 48 * 1024]).unwrap();
    std::fs::write(home.path("result"), vec![0xfe_u8; 16 * 1024]).unwrap();
    let why = "\"".repeat(500);
    let checkpoint = "\u{1}".repeat(4096);
    let poison = home.add("mail", &["--from", "payload", "--priority", "9", "--attempts", "1000"]);
    for _ in 0..12 {
        let token = home.done(&["queue", "claim", "mail"]).expect(0).stdout;
        let held = ["--token", token.trim()];
        home.done(&[&["queue", "progress", "mail", "--checkpoint", &checkpoint], &held[..]].concat()).expect(0);
        home.done(&[&["queue", "fail", "mail", "--why", &why, "--retry-in", "0s"], &held[..]].concat()).expect(0);
        home.done(&["queue", "retry", "mail", &poison, "--why", &why, "--by", &"\\".repeat(100)]).expect(0);
    }
    // A second one is completed with all that, by a worker, beside others.
    let other = home.add("mail", &["--from", "payload"]);
    for n in 0..6 {
        home.add("mail", &["--text", &n.to_string()]);
    }
    home.done(&["queue", "cancel", "mail", &poison, "--why", &why]).expect(0);
    assert_eq!(home.item("mail", &poison)["state"], "cancelled");
    home.done(&["queue", "retry", "mail", &poison, "--why", &why]).expect(0);
    let script = "case $LEASEHOLD_ITEM in \
                  $1|$2) cat > copy-$LEASEHOLD_ITEM && cp result $LEASEHOLD_RESULT && \
                     leasehold queue progress mail --checkpoint \"$(head -c 4096 /dev/zero | tr '\\0' '\\1')\";; \
                  *) echo \"$(cat)\" >> seen;; esac";
    let words = ["work", "mail", "-j", "3", "--until-idle", "--", "sh", "-c", script, "sh", &poison, &other];
    let done = home.done(&words).expect(0);
    for id in [&poison, &other] {
        let item = home.item("mail", id);
        assert_eq!(item["state"], "done", "{}: {item}", done.stderr);
        assert_eq!(item["checkpoint"], *checkpoint);
        assert_eq!(std::fs::read(home.path(&format!("copy-{id}"))).unwrap(), [0xff; 48 * 1024]);
        let result = item["result"]["base64"].as_str().unwrap_or_default();
        assert!(result.len() == 21_848 && result.starts_with("/v7+"), "{}", result.len());
    }
    assert_eq!(home.seen(), ["0", "1", "2", "3", "4", "5"]);
    home.done(&["queue", "janitor", "mail"]).expect(0);
}

/// A record that cannot be read is named by everybody who lists, and the others are worked on.
#[test]
fn a_damaged_item_is_named_and_stops_nobody() {
    for on in [On::Sqlite, On::Dir] {
        let home = Home::new(on);
        // So large that its place in line has no copy of it, by which it could be claimed all the same.
        let bad = home.add("mail", &["--text", &"bad".repeat(1000), "--priority", "9"]);
        for n in 0..6 {
            home.add("mail", &["--text", &n.to_string()]);
        }
        let record = if on == On::Dir { format!("mail+{bad}") } else { format!("mail/{bad}") };
        tamper_with(&home, "item", &record, |bytes| {
            let at = bytes.len() - 10;
            bytes[at] ^= 1;
        });
        let mut worker = home.pool("mail", SEE);
        eventually("the others are done", || home.seen() == ["0", "1", "2", "3", "4", "5"]);
        eventually("it is named", || home.read("log").contains(&bad));
        assert!(!worker.is_over());
        // And what comes later is done too.
        home.add("mail", &["--text", "6"]);
        eventually("it is done", || home.seen().len() == 7);
        drained(worker).expect(0);
        for words in [&["queue", "ls", "mail"][..], &["queue", "janitor", "mail"], &["queue", "show", "mail", &bad]] {
            let done = home.done(words).expect(65);
            assert!(done.stderr.contains(&bad), "{words:?}: {done:?}");
        }
        let listed: serde_json::Value =
            serde_json::from_str(&home.done(&["queue", "ls", "mail", "--json"]).expect(65).stdout).unwrap();
        let listed = listed.as_array().unwrap();
        assert_eq!(listed.len(), 8);
        assert!(listed.iter().any(|item| item["id"] == *bad && item["state"] == "damaged"), "{listed:?}");
        home.done(&["work", "mail", "--until-idle", "--", "true"]).expect(0);
    }
}

/// Cleaners of temporary files remove what is old, also below a worker that waits.
#[test]
fn a_payload_folder_that_is_removed_is_made_anew() {
    let home = Home::new(On::Sqlite);
    std::fs::create_dir(home.path("tmp")).unwrap();
    let log = std::fs::File::create(home.path("log")).unwrap();
    let script =
        "echo \"$(cat)\" >> seen; echo ok > \"$LEASEHOLD_RESULT\"; rm -rf \"$(dirname \"$LEASEHOLD_RESULT\")\"";
    let words = ["work", "mail", "-j", "3", "--", "sh", "-c", script];
    let mut command = home.leasehold(&words);
    let mut worker = Running::from(command.env("TMPDIR", home.path("tmp")).stderr(log).spawn().unwrap());
    for n in 0..9 {
        home.add("mail", &["--text", &n.to_string()]);
    }
    eventually("all are done", || home.seen().len() == 9 || worker.is_over());
    assert!(!worker.is_over(), "{}", home.read("log"));
    // Without even the folder for temporary files nothing can be begun: the items wait, and so does the worker.
    std::fs::rename(home.path("tmp"), home.path("away")).unwrap();
    home.add("mail", &["--text", "later"]);
    let is_told = |line: &str| line.contains("cannot start") && line.contains("retrying until it works");
    eventually("it is told", || home.read("log").lines().any(is_told));
    std::fs::rename(home.path("away"), home.path("tmp")).unwrap();
    eventually("it is done", || home.seen().contains(&"later".to_owned()));
    eventually("and recorded", || {
        home.done(&["queue", "ls", "mail", "--state", "done"]).expect(0).stdout.lines().count() == 11
    });
    assert!(!worker.is_over());
    drained(worker).expect(0);
    let listed = home.done(&["queue", "ls", "mail", "--json"]).expect(0).stdout;
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert!(listed.as_array().unwrap().iter().all(|item| item["tried"] == 1), "an attempt was used up: {listed}");
}

/// A note that is no text is one item's trouble.
#[test]
fn a_checkpoint_that_is_not_text_ends_no_lane() {
    let home = Home::new(On::Sqlite);
    let spool = format!("spool:{}/spool", home.folder.path().display());
    let bad = home.add(&spool, &["--text", "bad"]);
    let token = home.done(&["queue", "claim", &spool]).expect(0).stdout;
    home.done(&["queue", "progress", &spool, "--token", token.trim(), "--checkpoint", "page 3"]).expect(0);
    home.done(&["queue", "fail", &spool, "--token", token.trim(), "--why", "once", "--retry-in", "0s"]).expect(0);
    let notes = std::fs::read_dir(home.path("spool/notes")).unwrap().map(|entry| entry.unwrap().path());
    let note = notes.into_iter().find(|path| path.to_string_lossy().ends_with("checkpoint")).unwrap();
    std::fs::write(note, b"\xff\xfe").unwrap();
    let mut worker = home.pool(&spool, SEE);
    for n in 0..6 {
        home.add(&spool, &["--text", &n.to_string()]);
    }
    eventually("the others are done", || (0..6).all(|n| home.seen().contains(&n.to_string())) || worker.is_over());
    assert!(!worker.is_over(), "{}", home.read("log"));
    eventually("the bad one has an end, or is tried again", || {
        let shown = home.item(&spool, &bad);
        shown["state"] != "claimed" && shown["tried"] != 0
    });
    drained(worker).expect(0);
}

/// What can never work ends the pool, with the code that says so.
#[test]
fn a_command_that_is_not_there_ends_the_pool() {
    let home = Home::new(On::Sqlite);
    for n in 0..6 {
        home.add("mail", &["--text", &n.to_string()]);
    }
    home.done(&["work", "mail", "-j", "3", "--", "./no-such-command"]).expect(127);
}

/// The examples of `queue` and `work`, as a reader would type them.
#[test]
fn the_examples_in_the_help_of_queues_can_be_run() {
    let home = Home::new(On::Sqlite);
    for (file, text) in
        [("list.txt", "a\nb\n"), ("letter.txt", "x"), ("result.json", "{}"), ("a.wav", ""), ("send.sh", "#!/bin/sh\n")]
    {
        std::fs::write(home.path(file), text).unwrap();
    }
    std::fs::set_permissions(home.path("send.sh"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut helps =
        vec![home.done(&["queue", "--help"]).expect(0).stdout, home.done(&["work", "--help"]).expect(0).stdout];
    for verb in [
        "add", "ls", "show", "claim", "progress", "complete", "fail", "retry", "cancel", "hand-off", "janitor", "purge",
    ] {
        helps.push(home.done(&["queue", verb, "--help"]).expect(0).stdout);
    }
    let mut run = 0;
    for line in helps.iter().flat_map(|help| help.lines()) {
        let Some(example) =
            line.strip_prefix("  ").filter(|line| line.contains("leasehold ") && !line.starts_with(' '))
        else {
            continue;
        };
        // What it does stands behind it, a few spaces further on.
        let example = example.split("   ").next().unwrap();
        let id = home.add("pages", &["--text", "x", "--priority", "9"]);
        let mail = home.add("mail", &["--text", "x", "--priority", "9"]);
        let queue = if example.contains(" mail") { "mail" } else { "pages" };
        let id = if queue == "mail" { mail } else { id };
        let token = home.done(&["queue", "claim", queue]).expect(0).stdout;
        let line = example
            .replace(" ID", &format!(" {id}"))
            .replace("/srv", &home.folder.path().display().to_string())
            // One item stays claimed here, which `--until-done` would wait for.
            .replace("--until-done", "--until-idle")
            .replace(" -- ./send.sh", " --until-idle -- ./send.sh")
            .replace("--until-idle --until-idle", "--until-idle");
        let command = home.leasehold(&[]);
        let shell = std::process::Command::new("sh")
            .args(["-c", &line])
            .envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))))
            .env("token", token.trim())
            .current_dir(home.folder.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let done = Done::from(shell);
        assert_eq!(done.code, 0, "{example}: {done:?}");
        run += 1;
    }
    assert!(run >= 20, "only {run} examples were found");
}

/// Whoever finds that a worker died logs it once: as lost if the item is tried again, and as a dead letter if it was its last try.
#[test]
fn a_worker_that_died_with_an_item_is_logged_by_the_one_that_finds_it() {
    for queue in ["mail", "spool:mail"] {
        let home = Home::new(On::Sqlite);
        let (last, again) = (home.add(queue, &["--text", "a", "--attempts", "1"]), home.add(queue, &["--text", "b"]));
        for _ in 0..2 {
            home.done(&["queue", "claim", queue, "--ttl", "1s"]).expect(0);
        }
        let words = ["work", queue, "--until-done", "--log-format", "json", "--", "sh", "-c", SEE];
        let done = home.done(&words).expect(0);
        let lines: Vec<serde_json::Value> =
            done.stderr.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        for (item, outcome) in [(&last, "dead_letter"), (&again, "lost")] {
            let is_told = |line: &&serde_json::Value| line["item"] == **item && line["outcome"] == outcome;
            let told: Vec<_> = lines.iter().filter(is_told).collect();
            assert_eq!(told.len(), 1, "{queue} {outcome}: {}", done.stderr);
            assert_eq!((&told[0]["level"], &told[0]["epoch"]), (&"warn".into(), &1.into()), "{}", told[0]);
            assert!(told[0]["queue"].as_str().unwrap().ends_with("mail"), "{}", told[0]);
        }
        assert_eq!(home.seen(), ["b"]);
    }
}
