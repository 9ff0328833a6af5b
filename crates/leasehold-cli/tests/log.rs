//! What goes to standard error: text for people, or one JSON object a line, as flags, environment and files say.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Done, Home, On};
use serde_json::Value;
use std::os::unix::fs::MetadataExt;

/// Every line of it, which must be JSON.
#[track_caller]
fn lines(text: &str) -> Vec<Value> {
    let parsed = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e} in `{line}` of\n{text}"));
    text.lines().map(parsed).collect()
}

#[test]
fn with_the_json_format_every_line_is_an_object() {
    let home = Home::new(On::Sqlite);
    home.done(&["acquire", "job"]).expect(0);
    let skipped = home.done(&["--log-format", "json", "run", "job", "--", "true"]).expect(0);
    let refused = home.done(&["show", "never", "--log-format=json"]).expect(64);
    let usage = home.done(&["run", "--log-format", "json", "--wrong"]).expect(64);
    let by_variable = Done::from(home.leasehold(&["sho"]).env("LEASEHOLD_LOG_FORMAT", "json").output().unwrap());
    for (done, level, says) in [
        (&skipped, "info", "skipped: "),
        (&refused, "error", "nobody has ever held a lease `never`"),
        (&usage, "error", "--wrong"),
        (&by_variable, "error", "sho"),
    ] {
        let said = lines(&done.stderr);
        assert_eq!(said.len(), 1, "{done:#?}");
        assert_eq!(said[0]["level"], level, "{done:#?}");
        assert!(said[0]["message"].as_str().unwrap().contains(says), "{done:#?}");
        let time: jiff::Timestamp = said[0]["time"].as_str().unwrap().parse().unwrap();
        assert!(time > jiff::Timestamp::UNIX_EPOCH, "{done:#?}");
    }
    assert_eq!(lines(&refused.stderr)[0]["exit_code"], 64);
    // What the command itself writes is its own.
    let own = home.done(&["--log-format", "json", "run", "other", "--", "sh", "-c", "echo mine >&2"]).expect(0);
    assert_eq!(own.stderr, "mine\n");
    // A `leasehold` in it writes as its parent does.
    let inner = ["--log-format", "json", "run", "other", "--", "leasehold", "show", "never"];
    assert_eq!(lines(&home.done(&inner).expect(64).stderr).len(), 1);
    let inner = ["--log-format", "text", "run", "other", "--", "leasehold", "show", "never"];
    let text = Done::from(home.leasehold(&inner).env("LEASEHOLD_LOG_FORMAT", "json").output().unwrap()).expect(64);
    assert!(text.stderr.starts_with("leasehold: nobody"), "{text:#?}");
}

#[test]
fn a_level_hides_what_is_below_it() {
    let home = Home::new(On::Sqlite);
    home.done(&["acquire", "job"]).expect(0);
    let run = |levels: &str| home.done(&["--log", levels, "run", "job", "--", "true"]).expect(0).stderr;
    assert!(run("info").starts_with("leasehold: skipped: "));
    assert_eq!(run("warn"), "");
    assert!(run("warn,leasehold::say=info").starts_with("leasehold: skipped: "));
    assert!(home.done(&["--log", "error", "show", "never"]).expect(64).stderr.contains("nobody"));
    assert_eq!(home.done(&["--log", "off", "show", "never"]).expect(64).stderr, "");
}

#[test]
fn text_lines_of_what_runs_for_long_have_a_time_unless_the_journal_has_it() {
    let home = Home::new(On::Sqlite);
    let logged = |words: &[&str], journal: Option<fn(&std::fs::Metadata) -> String>| {
        home.done(&["queue", "add", "mail"]).expect(0);
        let log = std::fs::File::create(home.path("log")).unwrap();
        let mut command = home.leasehold(words);
        let file = log.metadata().unwrap();
        command.envs(journal.map(|journal| ("JOURNAL_STREAM", journal(&file))));
        assert!(command.stderr(log).status().unwrap().success(), "{words:?}");
        home.read("log")
    };
    let work = ["work", "mail", "--until-idle", "--", "true"];
    let of_this = |file: &std::fs::Metadata| format!("{}:{}", file.dev(), file.ino());
    let of_another = |file: &std::fs::Metadata| format!("{}:{}", file.dev(), file.ino() + 1);
    for is_elsewhere in [false, true] {
        let log = logged(&work, is_elsewhere.then_some(of_another));
        assert!(log.lines().count() >= 2, "{log}");
        for line in log.lines() {
            let (time, rest) = line.split_once(' ').unwrap();
            assert!(time.parse::<jiff::Timestamp>().is_ok() && rest.starts_with("info leasehold: "), "{line}");
        }
    }
    let log = logged(&work, Some(of_this));
    assert!(log.lines().count() >= 2 && log.lines().all(|line| line.starts_with("leasehold: ")), "{log}");
    let log = logged(&["--log", "info", "run", "job", "--", "true"], None);
    assert!(log.lines().count() == 2 && log.lines().all(|line| line.starts_with("leasehold: ")), "{log}");
}

#[test]
fn files_say_how_to_log_unless_flags_or_variables_do() {
    let home = Home::new(On::Sqlite);
    home.done(&["acquire", "job"]).expect(0);
    std::fs::write(home.path("leasehold.toml"), "log = 'info'\nlog_format = 'json'\n").unwrap();
    let by_file = home.done(&["run", "job", "--", "true"]).expect(0);
    assert!(lines(&by_file.stderr)[0]["message"].as_str().unwrap().starts_with("skipped"), "{by_file:#?}");
    let by_flag = home.done(&["run", "job", "--log-format", "text", "--", "true"]).expect(0);
    assert!(by_flag.stderr.starts_with("leasehold: skipped"), "{by_flag:#?}");
    let mut by_variable = home.leasehold(&["run", "job", "--", "true"]);
    let by_variable = by_variable.env("LEASEHOLD_LOG_FORMAT", "text").env("LEASEHOLD_LOG", "warn").output().unwrap();
    assert_eq!(Done::from(by_variable).expect(0).stderr, "");
    let found: Value = serde_json::from_str(&home.done(&["config", "--json"]).expect(0).stdout).unwrap();
    assert_eq!(found["log_format"]["value"], "json");
    assert_eq!(found["log"]["value"], "info");
    assert!(found["log"]["source"].as_str().unwrap().ends_with("leasehold.toml"), "{found}");
}

#[test]
fn a_wrong_level_or_format_is_refused_by_name() {
    let home = Home::new(On::Sqlite);
    for (flag, value, says) in [
        ("--log", "inof", "invalid log level `inof`: use off, error, warn, info, debug or trace"),
        ("--log-format", "xml", "invalid log format `xml`: use `text` or `json`"),
    ] {
        let done = home.done(&[flag, value, "run", "job", "--", "touch", "ran"]).expect(64);
        assert!(done.stderr.contains(says) && done.stderr.contains(flag), "{done:#?}");
    }
    for (variable, field, value) in [("LEASEHOLD_LOG", "log", "loud"), ("LEASEHOLD_LOG_FORMAT", "log_format", "yaml")] {
        let mut run = home.leasehold(&["run", "job", "--", "touch", "ran"]);
        let done = Done::from(run.env(variable, value).output().unwrap()).expect(64);
        assert!(done.stderr.contains(variable) && done.stderr.contains(value), "{done:#?}");
        std::fs::write(home.path("leasehold.toml"), format!("{field} = '{value}'\n")).unwrap();
        let done = home.done(&["run", "job", "--", "touch", "ran"]).expect(64);
        assert!(done.stderr.contains(&format!("setting `{field}`, from file")), "{done:#?}");
        std::fs::remove_file(home.path("leasehold.toml")).unwrap();
    }
    assert!(!home.path("ran").exists());
}
