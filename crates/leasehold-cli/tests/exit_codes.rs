//! What other programs rely on: exit codes and JSON keys. Each is documented, and as documented.

#![allow(clippy::unwrap_used)]

mod common;

use common::state::tamper;
use common::{Done, Home, On, signal, within};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

fn document(name: &str) -> String {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    std::fs::read_to_string(docs.join(name)).unwrap()
}

/// The rows of a Markdown table, without its head.
fn rows(text: &str) -> Vec<Vec<String>> {
    let rows = text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| code |"));
    rows.map(|row| row.trim_matches('|').splitn(2, " | ").map(|cell| cell.trim().to_owned()).collect())
        .filter(|row: &Vec<String>| row[0] != "key")
        .collect()
}

/// Code and meaning as the program has them: the manual is made from its table.
fn table(home: &Home) -> BTreeMap<i32, String> {
    let page = home.done(&["man"]).expect(0).stdout;
    let section = page.split(".SH \"EXIT STATUS\"\n").nth(1).or(page.split(".SH EXIT STATUS\n").nth(1)).unwrap();
    let section = section.split("\n.SH ").next().unwrap();
    let entries = section.split(".TP\n").skip(1).map(|entry| {
        let (code, meaning) = entry.trim().split_once('\n').unwrap();
        (code.parse().unwrap(), meaning.lines().next().unwrap().replace("\\-", "-"))
    });
    entries.collect()
}

#[test]
fn the_documented_exit_codes_are_the_programs() {
    let home = Home::new(On::Sqlite);
    let documented = rows(&document("exit-codes.md"));
    let documented: BTreeMap<i32, String> =
        documented.into_iter().map(|row| (row[0].parse().unwrap(), row[1].clone())).collect();
    assert_eq!(table(&home), documented);
}

/// The code of a command on a disk that takes one sync and fails every later one.
fn with_failing_syncs(home: &Home, args: &[&str]) -> i32 {
    let command = home.leasehold(args);
    let mut traced = Command::new("strace");
    traced.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync,fdatasync"]);
    traced.args(["-e", "inject=fsync,fdatasync:error=EIO:when=2+", "--"]).arg(command.get_program());
    traced.args(command.get_args()).current_dir(home.folder.path()).env_clear();
    traced.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    Done::from(traced.output().unwrap()).code
}

#[test]
fn every_exit_code_is_reached() {
    let home = Home::new(On::Dir);
    let reached = std::cell::RefCell::new(BTreeSet::from([74]));
    let reach = |code: i32, args: &[&str]| {
        home.done(args).expect(code);
        reached.borrow_mut().insert(code);
    };
    reach(0, &["run", "job", "--", "true"]);
    let old = home.done(&["acquire", "job", "--ttl", "24h"]).expect(0).stdout.trim().to_owned();
    reach(11, &["acquire", "job"]);
    reach(0, &["run", "job", "--quiet", "--", "false"]);
    std::fs::write(home.path("text"), "x").unwrap();
    reach(0, &["write", "out", "--from", "text", "--once", "--token", &old]);
    reach(13, &["write", "out", "--from", "text", "--once", "--token", &old]);
    reach(0, &["revoke", "job", "--why", "drill"]);
    for verb in ["renew", "release", "progress"] {
        reach(12, &[verb, "--token", &old]);
    }
    reach(13, &["gate", "deploy", "--token", &old, "--", "true"]);
    let new = home.done(&["acquire", "job", "--ttl", "24h"]).expect(0).stdout.trim().to_owned();
    reach(0, &["write", "out", "--from", "text", "--token", &new]);
    reach(13, &["write", "out", "--from", "text", "--token", &old]);
    reach(64, &["acquire", "a b"]);
    let elsewhere = format!("dir:{}", home.path("elsewhere").display());
    reach(69, &["renew", "--token", &new, "--store", &elsewhere]);
    reach(75, &["run", "lost", "--ttl", "2s", "--", "sh", "-c", "leasehold revoke lost --why drill; exec sleep 1000"]);
    // A store that takes the connection and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = (format!("redis://{}", silent.local_addr().unwrap()), silent);
    reach(69, &["migrate", &home.store, &silent.0, "--revoke-held", "--timeout", "1s"]);
    // Visible, and not synced.
    assert_eq!(with_failing_syncs(&home, &["pause", "job", "--why", "drill"]), 70);
    reached.borrow_mut().insert(70);
    home.done(&["acquire", "damaged"]).expect(0);
    tamper(&home, "damaged", |bytes| bytes.truncate(bytes.len() - 1));
    reach(65, &["show", "damaged"]);
    std::fs::write(home.path("leases/leasehold-store"), "leasehold directory store, format 2\n").unwrap();
    reach(78, &["ls"]);
    assert_eq!(*reached.borrow(), table(&home).into_keys().collect(), "a code is documented and never reached");
}

/// Whoever obeys "try again" would do it twice.
#[test]
fn what_was_done_and_could_not_be_told_has_a_code_of_its_own() {
    let home = Home::new(On::Dir);
    let token = home.done(&["acquire", "job", "--ttl", "24h"]).expect(0).stdout.trim().to_owned();
    std::fs::write(home.path("text"), "x").unwrap();
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let write = ["write", "out", "--from", "text", "--json", "--token", &token];
    let told = home.leasehold(&write).stdout(full()).output().unwrap();
    let said = String::from_utf8_lossy(&told.stderr);
    assert_eq!(told.status.code(), Some(74), "{said}");
    assert!(said.contains("everything else was done"), "{said}");
    assert_eq!(std::fs::read_to_string(home.path("out")).unwrap(), "x");
    // A lease is nothing without its token, and is given back.
    let told = home.leasehold(&["acquire", "other"]).stdout(full()).output().unwrap();
    assert_eq!(told.status.code(), Some(69), "{}", String::from_utf8_lossy(&told.stderr));
    assert!(home.show("other")["holder"].is_null(), "{}", home.show("other"));
}

/// Every key, with a dot into objects; a list stands for its elements.
fn keys(value: &Value, above: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Array(elements) => elements.iter().for_each(|element| keys(element, above, found)),
        Value::Object(fields) => {
            for (key, value) in fields {
                let path = if above.is_empty() { key.clone() } else { format!("{above}.{key}") };
                keys(value, &path, found);
                found.insert(path);
            }
        }
        _ => {}
    }
}

/// The keys that docs/json.md has, by section.
fn documented_keys() -> BTreeMap<String, BTreeSet<String>> {
    let text = document("json.md");
    let sections = text.split("\n## ").skip(1).map(|section| {
        let name = section.lines().next().unwrap().to_owned();
        (name, rows(section).into_iter().map(|row| row[0].trim_matches('`').to_owned()).collect())
    });
    sections.collect()
}

#[test]
fn the_json_has_the_documented_keys() {
    let home = Home::new(On::Sqlite);
    std::fs::create_dir(home.path("folder")).unwrap();
    std::fs::write(home.path("text"), "x").unwrap();
    let mut seen: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut look = |section: &str, args: &[&str], code: i32| -> Value {
        let done = home.done(&[args, &["--json"]].concat()).expect(code);
        assert_eq!(done.stdout.lines().count(), 1, "{args:?} prints not one document: {done:?}");
        let value = serde_json::from_str(&done.stdout).unwrap();
        keys(&value, "", seen.entry(section.into()).or_default());
        value
    };
    let granted = look("acquire", &["acquire", "job", "--ttl", "24h"], 0);
    let token = granted["token"].as_str().unwrap();
    assert_eq!((&granted["epoch"], &granted["ttl_ms"]), (&1.into(), &86_400_000.into()));
    home.done(&["progress", "half", "--checkpoint", "42", "--token", token]).expect(0);
    look("lease", &["renew", "--token", token], 0);
    look("lease", &["pause", "job", "--why", "drill"], 0);
    assert_eq!(look("lease", &["ls"], 0)[0]["paused"]["why"], "drill");
    look("lease", &["resume", "job", "--why", "over"], 0);
    look("lease", &["show", "job"], 0);
    look("write", &["write", "out", "--from", "text", "--token", token], 0);
    look("write", &["publish", "folder", "site", "--token", token], 0);
    look("adopt", &["adopt", "file:out", "--why", "drill", "--token", token], 0);
    look("sql --init", &["sql", "sqlite:app.db", "--init"], 0);
    look("sql --column", &["sql", "sqlite:app.db", "--column", "fence", "--token", token], 0);
    let ran = look("sql", &["sql", "sqlite:app.db", "-c", "SELECT 7 AS n", "--token", token], 0);
    assert_eq!(ran["rows"][0]["n"], "7");
    look("drill", &["drill", "file:drilled"], 0);
    look("advise", &["advise", "job"], 0);
    let handed = look("hand-off", &["hand-off", "job", "--to", "b", "--why", "drill"], 0);
    assert_eq!(look("release", &["release", "--token", token], 12)["result"], "lost");
    let token = handed["token"].as_str().unwrap();
    assert_eq!(look("release", &["release", "--token", token], 0)["result"], "released");
    assert_eq!(look("release", &["release", "--token", token], 0)["result"], "already_released");
    assert!(look("advise", &["advise", "job"], 0)["ttl_ms"].is_u64());
    look("lease", &["revoke", "job", "--why", "drill"], 0);
    look("lease", &["advance", "job", "--past", "9", "--why", "drill"], 0);
    home.done(&["write", "out", "--from", "text", "--token", token]).expect(13);
    assert_eq!(look("lease", &["show", "job"], 0)["fenced_writes"][0]["seen_epoch"], 10);
    let history = look("history", &["history", "job"], 0);
    let reasons: Vec<_> = history.as_array().unwrap().iter().map(|t| t["reason"].as_str().unwrap()).collect();
    assert_eq!(reasons, ["advanced", "revoked", "handed_off", "first"]);
    home.done(&["run", "scheduled", "--slot", "@hourly", "--keep-output", "--", "echo", "said"]).expect(0);
    look("runs", &["runs", "scheduled"], 0);
    assert_eq!(look("logs", &["logs", "scheduled"], 0)["text"], "said\n");
    std::fs::write(home.path("jobs.toml"), "[[job]]\nname = 'x'\nevery = '1h'\ncommand = 'true'\n").unwrap();
    look("schedule check", &["schedule", "check", "--file", "jobs.toml"], 0);
    look("schedule next", &["schedule", "next", "--file", "jobs.toml"], 0);
    home.done(&["queue", "add", "letters"]).expect(0);
    // A job that no machine runs, and somebody who is told.
    let lonely = "[[notify]]\non = ['missed']\ncommand = ['sh', '-c', 'cat >part; mv part event']\n\
                  [[job]]\nname = 'lonely'\nevery = '1s'\nlate_after = '1s'\non = 'nowhere'\ncommand = 'true'\n";
    std::fs::write(home.path("lonely.toml"), lonely).unwrap();
    let scheduler = home.start(&["schedule", "--file", "lonely.toml"]);
    within(Duration::from_secs(90), "it is noticed", || home.path("event").exists());
    look("check", &["check", "--missed"], 1);
    look("schedule plan", &["schedule", "plan", "--file", "lonely.toml"], 0);
    signal(scheduler.pid(), "TERM");
    scheduler.end().expect(0);
    look("schedule retire", &["schedule", "retire", "lonely"], 0);
    look("stats", &["stats"], 0);
    look("stats", &["stats", "nobody"], 0);
    look("doctor", &["doctor", "--folder", "."], 0);
    look("migrate", &["migrate", &home.store, "dir:elsewhere", "--revoke-held"], 0);
    let told = "[[notify]]\nname = 'ops'\non = ['failed']\ncommand = ['true']\n";
    std::fs::write(home.path("leasehold.toml"), told).unwrap();
    assert_eq!(look("notify test", &["notify", "test"], 0)[0]["delivered"], true);
    look("config", &["config"], 0);
    let event = serde_json::from_str(&home.read("event")).unwrap();
    keys(&event, "", seen.entry("notification".into()).or_default());
    assert_eq!(seen, documented_keys());
}

#[test]
fn what_fails_prints_no_data_with_json_either() {
    let home = Home::new(On::Sqlite);
    let held = home.done(&["acquire", "held", "--ttl", "24h", "--json"]).expect(0);
    let token: Value = serde_json::from_str(&held.stdout).unwrap();
    let token = token["token"].as_str().unwrap().replace("held:1:", "held:2:");
    for (line, code) in [
        (&["show", "nobody"][..], 64),
        (&["acquire", "held"], 11),
        (&["acquire", "a b"], 64),
        (&["renew", "--token", &token], 65),
        (&["write", "no/such", "--token", &token], 65),
        (&["ls", "--store", "ftp:/x"], 64),
        (&["ls", "--no-such-flag"], 64),
    ] {
        let done = home.done(&[line, &["--json"]].concat()).expect(code);
        assert_eq!(done.stdout, "", "{line:?}");
        assert_ne!(done.stderr, "", "{line:?}");
    }
}
