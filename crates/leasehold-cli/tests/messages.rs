//! What people read: the messages of common outcomes and errors, and the help of every verb, as they are committed in
//! `tests/messages/`. After a change of words, write them again with
//! `LEASEHOLD_UPDATE_MESSAGES=1 cargo test -p leasehold-cli --all-features --test messages`, and read the difference.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Done, Home, On};
use std::path::Path;

/// Set, the committed texts are written again.
const UPDATE: &str = "LEASEHOLD_UPDATE_MESSAGES";

#[track_caller]
fn compare(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/messages").join(name);
    if std::env::var_os(UPDATE).is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        return;
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let lines = text.lines().zip(committed.lines());
    if let Some((number, (now, before))) = lines.enumerate().find(|(_, (now, before))| now != before) {
        panic!("{}:{}: now\n{now}\nbefore\n{before}\n{UPDATE}=1 writes it again", path.display(), number + 1);
    }
    assert_eq!(text.lines().count(), committed.lines().count(), "{}: {UPDATE}=1 writes it again", path.display());
}

/// What commands print, one after the other, with what differs from run to run replaced.
struct Transcript {
    home: Home,
    text: String,
}

impl Transcript {
    fn new() -> Self {
        Transcript { home: Home::new(On::Sqlite), text: String::new() }
    }

    fn heading(&mut self, title: &str) {
        self.text.push_str(&format!("\n# {title}\n"));
    }

    /// Runs it, and gives what it printed.
    fn run(&mut self, args: &[&str]) -> Done {
        self.run_with(args, &[])
    }

    fn run_with(&mut self, args: &[&str], environment: &[(&str, &str)]) -> Done {
        let mut command = self.home.leasehold(args);
        command.envs(environment.iter().copied());
        let done = Done::from(command.output().unwrap());
        let quoted = |word: &&str| match word.contains([' ', '*', ';', '&', '>']) || word.is_empty() {
            true => format!("'{word}'"),
            false => (*word).to_owned(),
        };
        let words: Vec<String> = args.iter().map(quoted).collect();
        let set: String = environment.iter().map(|(name, value)| format!("{name}={value} ")).collect();
        let mut block = format!("\n$ {set}leasehold {}\n", words.join(" "));
        block.push_str(&done.stdout);
        block.push_str(&done.stderr);
        block.push_str(&format!("exit {}\n", done.code));
        self.text.push_str(&self.normal(&block));
        done
    }

    /// Paths, hosts, process numbers, nonces and times replaced.
    fn normal(&self, text: &str) -> String {
        let folder = self.home.folder.path();
        let mut text = text.replace(&folder.canonicalize().unwrap().display().to_string(), "/home/ann");
        text = text.replace(&folder.display().to_string(), "/home/ann");
        text = text.replace(&leasehold_system::host::name(), "HOST");
        let lines = text.split('\n').map(|line| {
            let mut words: Vec<String> = line.split(' ').map(plain).collect();
            for at in 1..words.len() {
                let is_time = is_duration(&words[at])
                    && (["after", "for", "in"].contains(&words[at - 1].as_str())
                        || words.get(at + 1).is_some_and(|next| next.starts_with("ago")));
                if is_time {
                    let end = words[at].trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '.');
                    words[at] = format!("TIME{end}");
                }
                if words[at - 1].ends_with("pid") {
                    words[at] = words[at].replace(|c: char| c.is_ascii_digit(), "").replacen("", "PID", 1);
                }
                // A pause that was made in this very moment.
                if words[at].trim_end_matches(':') == "now" && words[at - 1] == "ann" {
                    words[at] = words[at].replace("now", "TIME ago");
                }
            }
            words.join(" ")
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}

fn is_duration(word: &str) -> bool {
    let word = word.trim_end_matches([',', ';', ':', ')', '.']);
    word.starts_with(|c: char| c.is_ascii_digit()) && word.ends_with(['s', 'm', 'h', 'd'])
}

/// A word without what is random or a time: runs of hexadecimal digits, instants.
fn plain(word: &str) -> String {
    let mut plain = String::new();
    for part in word.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
        let (core, end) = match part.char_indices().last() {
            Some((at, last)) if !last.is_ascii_alphanumeric() => part.split_at(at),
            _ => (part, ""),
        };
        let is_hex = core.len() >= 16 && core.chars().all(|c| c.is_ascii_hexdigit());
        let is_number = !core.is_empty() && core.chars().all(|c| c.is_ascii_digit());
        match core {
            _ if is_hex => plain.push_str("HEX"),
            _ if is_number
                && ["HOST#", "HOST:", "HOST/", "HOST.", "HOST-"].iter().any(|host| plain.ends_with(host)) =>
            {
                plain.push_str("PID");
            }
            core => plain.push_str(core),
        }
        plain.push_str(end);
    }
    let is_instant = |text: &str| {
        let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        shape.starts_with("0000-00-00T00:00:00") && shape.contains('Z')
    };
    match plain.find(|c: char| c.is_ascii_digit()) {
        Some(at) if is_instant(&plain[at..]) => {
            let end = at + plain[at..].find('Z').unwrap() + 1;
            format!("{}INSTANT{}", &plain[..at], &plain[end..])
        }
        _ => plain,
    }
}

#[test]
fn what_people_read_of_common_outcomes_and_errors_is_as_committed() {
    let mut t = Transcript::new();
    nothing_there(&mut t);
    wrong_input(&mut t);
    runs(&mut t);
    operators(&mut t);
    stale_writers(&mut t);
    queues(&mut t);
    schedules(&mut t);
    compare("outcomes.txt", &t.text);
}

fn nothing_there(t: &mut Transcript) {
    t.heading("no store yet");
    t.run(&["ls"]);
    t.run(&["show", "nightly"]);
    t.run(&["history", "nightly"]);
    t.run(&["advise", "nightly"]);
    t.run(&["runs", "nightly"]);
    t.run(&["logs", "nightly"]);
    t.run(&["stats", "nightly"]);
    t.run(&["queue", "ls"]);
    t.run(&["renew"]);
    let token = "nightly:1:00000000000000000000000000000001:00000000000000000000000000000002:0";
    t.run(&["renew", "--token", token]);
    t.run(&["--store", "dir:missing", "renew", "--token", token]);
}

fn wrong_input(t: &mut Transcript) {
    t.heading("wrong input");
    t.run(&["frobnicate"]);
    t.run(&["rnu", "nightly", "--", "true"]);
    t.run(&["list"]);
    t.run(&["lock", "nightly"]);
    t.run(&["unlock", "nightly"]);
    t.run(&["queue", "rm", "mail", "1"]);
    t.run(&["run", "nightly", "true"]);
    t.run(&["run", "nightly", "--frobnicate", "--", "true"]);
    t.run(&["run", "nightly"]);
    t.run(&["run", "two words", "--", "true"]);
    t.run(&["run", "queue/mail/1", "--", "true"]);
    t.run(&["run", "nightly", "--ttl", "5", "--", "true"]);
    t.run(&["run", "nightly", "--ttl", "100ms", "--", "true"]);
    t.run(&["run", "nightly", "--wait", "soon", "--", "true"]);
    t.run(&["run", "nightly", "--grace", "60s", "--", "true"]);
    t.run(&["run", "nightly", "--held-exit-code", "999", "--", "true"]);
    t.run(&["run", "nightly", "--limit", "0", "--", "true"]);
    t.run(&["run", "nightly", "--guard", "floppy:a", "--", "true"]);
    t.run(&["run", "nightly", "--slot", "every day", "--", "true"]);
    t.run(&["--store", "carrier-pigeon://coop", "ls"]);
    t.run(&["--store", "dir:", "ls"]);
    t.run_with(&["ls"], &[("LEASEHOLD_STORE", "nonsense")]);
    t.run_with(&["run", "nightly", "--", "true"], &[("LEASEHOLD_TTL", "forever")]);
    t.run(&["renew", "--token", "not-a-token"]);
    t.run(&["pause", "nightly"]);
    t.run(&["pause", "nightly", "--why", ""]);
    t.run(&["doctor", "--folder", "missing"]);
    t.run(&["drill", "http://localhost"]);
    std::fs::write(t.home.path("leasehold.toml"), "ttl = 90\n").unwrap();
    t.run(&["config"]);
    std::fs::write(t.home.path("leasehold.toml"), "speed = 'high'\n").unwrap();
    t.run(&["config"]);
    std::fs::remove_file(t.home.path("leasehold.toml")).unwrap();
}

fn runs(t: &mut Transcript) {
    t.heading("run");
    t.run(&["run", "nightly", "--", "true"]);
    t.run(&["run", "nightly", "--", "sh", "-c", "exit 3"]);
    t.run(&["run", "nightly", "--", "./missing"]);
    std::fs::write(t.home.path("plain"), "").unwrap();
    t.run(&["run", "nightly", "--", "./plain"]);
    t.run(&["run", "nightly", "--max-runtime", "100ms", "--", "sleep", "60"]);
    t.run(&["run", "nightly", "--retries", "1", "--backoff", "1ms", "--", "false"]);
    t.run(&[
        "run",
        "nightly",
        "--ttl",
        "3s",
        "--",
        "sh",
        "-c",
        "leasehold revoke nightly --why drain --by ann && sleep 60",
    ]);
    t.run(&["acquire", "nightly", "--ttl", "1h", "--label", "box-1"]).expect(0);
    t.run(&["run", "nightly", "--", "true"]);
    t.run(&["run", "nightly", "--held-exit-code", "7", "--", "true"]);
    t.run(&["run", "nightly", "--quiet", "--", "true"]);
    t.run(&["run", "nightly", "--wait", "10ms", "--", "true"]);
    t.run(&["acquire", "nightly"]);
}

fn operators(t: &mut Transcript) {
    t.heading("operators");
    let order = |t: &mut Transcript, verb: &str, lease: &str| {
        t.run(&[verb, lease, "--why", "upgrade", "--by", "ann"]);
    };
    order(t, "revoke", "unknown");
    order(t, "pause", "weekly");
    order(t, "pause", "weekly");
    t.run(&["run", "weekly", "--", "true"]);
    t.run(&["acquire", "weekly"]);
    order(t, "resume", "weekly");
    order(t, "resume", "weekly");
    order(t, "rewind", "weekly");
    t.run(&["run", "weekly", "--", "true"]);
    order(t, "revoke", "weekly");
    t.run(&["revoke", "weekly", "--why", "upgrade", "--by", "ann", "--if-epoch", "1"]);
    t.run(&["advance", "weekly", "--past", "9000000", "--why", "restored", "--by", "ann"]);
    t.run(&["advance", "weekly", "--past", "9", "--why", "restored", "--by", "ann"]);
    t.run(&["hand-off", "weekly", "--to", "box-2", "--why", "by hand", "--by", "ann"]);
}

fn stale_writers(t: &mut Transcript) {
    t.heading("a holder that lost its lease");
    let old = t.run(&["acquire", "report", "--ttl", "1h", "--label", "box-1"]).expect(0).stdout.trim().to_owned();
    std::fs::write(t.home.path("new"), "1").unwrap();
    let inside = [("LEASEHOLD_TOKEN", old.as_str())];
    t.run_with(&["write", "out.json", "--from", "new"], &inside);
    t.run_with(&["write", "out.json", "--from", "missing"], &inside);
    t.run_with(&["publish", "new", "site"], &inside);
    t.run_with(&["adopt", "file:other.json", "--why", "moved", "--by", "ann"], &inside);
    t.run_with(&["sql", "sqlite:app.db", "-c", "SELECT 1"], &inside);
    t.run(&["revoke", "report", "--why", "it hangs", "--by", "ann"]);
    for stale in [
        &["renew"][..],
        &["progress", "row 5"],
        &["write", "out.json", "--from", "new"],
        &["gate", "api", "--", "true"],
        &["run", "report", "--token", &old, "--", "true"],
        &["release"],
    ] {
        t.run_with(stale, &inside);
    }
    t.run(&["acquire", "other", "--ttl", "1h", "--label", "box-1"]).expect(0);
    t.run(&["run", "other-too", "--guard", "file:out.json", "--", "true"]);
}

fn queues(t: &mut Transcript) {
    t.heading("queues");
    t.run(&["queue", "ls", "mail"]);
    t.run(&["queue", "claim", "mail"]);
    t.run(&["queue", "show", "mail", "k.nothing"]);
    t.run(&["queue", "ls", "two words"]);
    t.run(&["queue", "ls", "spool:missing"]);
    t.run(&["queue", "show", "spool:missing", "k.x"]);
    t.run(&["queue", "add", "mail", "--text", "hello", "--key", "welcome"]).expect(0);
    t.run(&["queue", "add", "mail", "--text", "hello", "--key", "welcome"]);
    t.run(&["queue", "ls", "mail", "--state", "lost"]);
    let token = t.run(&["queue", "claim", "mail", "--ttl", "1h"]).expect(0).stdout.trim().to_owned();
    let inside = [("LEASEHOLD_TOKEN", token.as_str())];
    t.run_with(&["queue", "complete", "letters"], &inside);
    t.run_with(&["release"], &inside);
    t.run(&["queue", "retry", "mail", "k.welcome", "--why", "stuck", "--by", "ann"]);
    t.run_with(&["queue", "complete", "mail"], &inside);
    t.run(&["work", "mail", "--until-idle", "--", "true"]);
    t.run(&["queue", "add", "mail", "--text", "bad", "--key", "bad", "--attempts", "1"]);
    t.run(&["work", "mail", "--until-idle", "--", "sh", "-c", "exit 3"]);
    t.run(&["queue", "add", "mail", "--text", "last", "--key", "last"]);
    t.run(&["work", "mail", "--until-idle", "--", "./missing"]);
    t.run(&["work", "empty", "--until-idle", "--", "true"]);
    t.run(&["queue", "cancel", "mail", "k.welcome", "--why", "done", "--by", "ann"]);
    t.run(&["queue", "janitor", "mail"]);
}

fn schedules(t: &mut Transcript) {
    t.heading("schedules");
    t.run(&["schedule", "check"]);
    let slot = ["--slot", "@every 366d", "--slot-max-age", "366d", "--", "true"];
    t.run(&[&["run", "yearly"][..], &slot].concat());
    t.run(&[&["run", "yearly"][..], &slot].concat());
    t.run(&["run", "yearly", "--slot", "@every 366d", "--slot-max-age", "1s", "--", "true"]);
    let table = |t: &Transcript, text: &str| std::fs::write(t.home.path("leasehold.toml"), text).unwrap();
    for wrong in [
        "ttl = '90s'\n",
        "[[job]]\nname = 'a'\n",
        "[[job]]\nname = 'a'\ncron = 'never'\ncommand = 'true'\n",
        "[[job]]\nname = 'a'\nevery = '1h'\ncommand = 'true'\n[[job]]\nname = 'a'\nevery = '2h'\ncommand = 'true'\n",
    ] {
        table(t, wrong);
        t.run(&["schedule", "check"]);
    }
    table(t, "[[job]]\nname = 'a'\nevery = '1h'\ncommand = 'true'\n");
    t.run(&["schedule", "trigger", "b"]);
    t.run(&["schedule", "backfill", "a", "--from", "2026-01-02", "--to", "2026-01-01"]);
    t.run(&["schedule", "backfill", "a", "--from", "2126-01-01", "--to", "2126-01-02"]);
    t.run(&["schedule", "backfill", "a", "--from", "2026-01-01", "--to", "2026-01-02"]);
    t.run(&["schedule", "pause", "a", "--why", "upgrade", "--by", "ann"]);
    t.run(&["schedule", "trigger", "a"]);
}

#[cfg(feature = "full")]
fn help(home: &Home, path: &[&str], pages: &mut String) {
    for flag in ["-h", "--help"] {
        let words = [path, &[flag]].concat();
        let page = home.done(&words).expect(0).stdout;
        pages.push_str(&format!("\n$ leasehold {}\n{page}", words.join(" ")));
    }
    for verb in common::verbs(home, path) {
        help(home, &[path, &[&verb]].concat(), pages);
    }
}

#[cfg(feature = "full")]
#[test]
fn the_help_of_every_verb_is_as_committed() {
    let mut pages = String::new();
    help(&Home::new(On::Sqlite), &[], &mut pages);
    compare("help.txt", &pages);
}
