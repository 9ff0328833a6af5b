//! `sql` and `put` as people use them: the examples of docs/guards, and wrong input that changes nothing.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Home, On};
use std::path::Path;

fn document(name: &str) -> String {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guards");
    std::fs::read_to_string(docs.join(name)).unwrap()
}

/// The indented lines after this heading.
fn example(page: &str, heading: &str) -> String {
    let section = page.split(heading).nth(1).unwrap_or_else(|| panic!("no {heading}"));
    let section = section.split("\n## ").next().unwrap();
    section.lines().filter_map(|line| line.strip_prefix("    ")).collect::<Vec<_>>().join("\n")
}

fn value(home: &Home, sql: &str) -> String {
    let db = rusqlite::Connection::open(home.path("app.db")).unwrap();
    db.query_row(sql, [], |row| row.get::<_, i64>(0)).map_or_else(|e| e.to_string(), |n| n.to_string())
}

#[test]
fn the_example_of_the_sql_page_runs_as_it_stands() {
    let home = Home::new(On::Sqlite);
    rusqlite::Connection::open(home.path("app.db"))
        .unwrap()
        .execute_batch("CREATE TABLE totals (id INTEGER PRIMARY KEY, n INTEGER); INSERT INTO totals VALUES (1, 0)")
        .unwrap();
    std::fs::write(home.path("daily.sql"), "UPDATE totals SET n = n + 1 WHERE id = 1;\n").unwrap();
    let script = example(&document("sql.md"), "## In two minutes");
    assert!(script.contains("leasehold sql") && script.contains("--protect"), "{script}");
    let shell = |script: &str| {
        let mut command = home.leasehold(&[]);
        let path = command.get_envs().find(|(name, _)| *name == "PATH").unwrap().1.unwrap().to_owned();
        let mut shell = std::process::Command::new("sh");
        shell.args(["-e", "-c", script]).current_dir(home.folder.path()).env_clear().env("PATH", path);
        shell.env("HOME", home.folder.path()).env("LEASEHOLD_STORE", &home.store);
        command.env_clear();
        shell.output().unwrap()
    };
    let done = shell(&script);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(value(&home, "SELECT n FROM totals"), "1");
    let by_hand = rusqlite::Connection::open(home.path("app.db")).unwrap().execute("UPDATE totals SET n = 99", []);
    assert!(by_hand.unwrap_err().to_string().contains("was not admitted"));
}

#[test]
fn a_stale_token_changes_nothing_and_exits_as_fenced() {
    let home = Home::new(On::Sqlite);
    home.done(&["sql", "sqlite:app.db", "--init"]).expect(0);
    let first = home.done(&["acquire", "job", "--ttl", "24h"]).expect(0).stdout.trim().to_owned();
    let create = "CREATE TABLE t (n INTEGER); INSERT INTO t VALUES (1)";
    home.done(&["sql", "sqlite:app.db", "-c", create, "--token", &first]).expect(0);
    let next = home.done(&["hand-off", "job", "--to", "b", "--why", "drill"]).expect(0).stdout.trim().to_owned();
    let late = home.done(&["sql", "sqlite:app.db", "-c", "UPDATE t SET n = 2", "--token", &first]).expect(13);
    assert!(late.stderr.contains("stale epoch refused") && late.stderr.contains("held=1 seen=2"), "{late:?}");
    let told = home.done(&["sql", "sqlite:app.db", "-c", "UPDATE t SET n = 3; SELECT n, 'x' FROM t", "--token", &next]);
    assert_eq!(told.expect(0).stdout, "3\tx\n");
    let once = ["sql", "sqlite:app.db", "--once", "-c", "UPDATE t SET n = 4", "--token", &next];
    assert!(home.done(&once).expect(13).stderr.contains("admits one write per epoch"));
    let ordered =
        |seq: &str| home.done(&["sql", "sqlite:app.db", "--seq", seq, "-c", "UPDATE t SET n = 5", "--token", &next]);
    ordered("7").expect(0);
    assert!(ordered("7").expect(13).stderr.contains("replayed write refused"));
    assert_eq!(value(&home, "SELECT n FROM t"), "5");
    // Where writes were refused is shown, the latest first: the second and the replayed one are of the same epoch.
    let shown = home.show("job")["fenced_writes"].clone();
    let told: Vec<_> =
        shown.as_array().unwrap().iter().map(|it| [&it["held_epoch"], &it["seen_epoch"], &it["times"]]).collect();
    assert_eq!(told, [[2, 2, 2], [1, 2, 1]]);
    let (resource, by) = (shown[1]["resource"].as_str().unwrap(), shown[1]["by"].as_str().unwrap());
    assert!(resource.starts_with("sqlite:") && resource.contains("app.db#") && by.contains('@'), "{shown}");
    let page = home.done(&["show", "job"]).expect(0).stdout;
    let lines: Vec<&str> = page.lines().filter(|line| line.starts_with("refused ")).collect();
    let last = format!("ago: {resource}, epoch 1 where 2 was there, by {by}");
    assert!(lines.len() == 2 && lines[0].contains("(2 times)") && lines[1].ends_with(&last), "{page}");
    let sealed = home.done(&["run", "other", "--guard", "sqlite:app.db", "--", "true"]).expect(64);
    assert!(sealed.stderr.contains("fenced by lease `job`"), "{sealed:?}");
    home.done(&["run", "other", "--guard", "sqlite:app.db#theirs", "--", "true"]).expect(0);
}

#[test]
fn wrong_words_change_nothing() {
    let home = Home::new(On::Sqlite);
    home.done(&["sql", "sqlite:app.db", "--init"]).expect(0);
    let token = home.done(&["acquire", "job", "--ttl", "24h"]).expect(0).stdout.trim().to_owned();
    let before = std::fs::read(home.path("app.db")).unwrap();
    let long = "x".repeat(300);
    for (line, code) in [
        (&["sql", "app.db", "-c", "SELECT 1"][..], 64),
        (&["sql", "sqlite:", "-c", "SELECT 1"], 64),
        (&["sql", "dir:/x", "-c", "SELECT 1"], 64),
        (&["sql", "postgres:/x", "-c", "SELECT 1"], 64),
        (&["sql", "mysql://u:hunter2@h", "-c", "SELECT 1"], 64),
        (&["sql", "postgres://u:hunter2@h:x/db", "-c", "SELECT 1"], 64),
        (&["sql", "sqlite:app.db"], 64),
        (&["sql", "sqlite:app.db", "-c", ""], 64),
        (&["sql", "sqlite:app.db", "-c", "COMMIT"], 64),
        (&["sql", "sqlite:app.db", "-c", "SELECT 1; /* */ ROLLBACK"], 64),
        (&["sql", "sqlite:app.db", "-c", "SELEC 1"], 64),
        (&["sql", "sqlite:app.db", "-f", "no-such-file"], 64),
        (&["sql", "sqlite:app.db", "-c", "SELECT 1", "--resource", " "], 64),
        (&["sql", "sqlite:app.db", "-c", "SELECT 1", "--resource", &long], 64),
        (&["sql", "sqlite:app.db", "-c", "SELECT 1", "--seq", "-1"], 64),
        (&["sql", "sqlite:app.db", "-c", "SELECT 1", "--seq", "18446744073709551615"], 64),
        (&["sql", "sqlite:app.db", "--protect", "t", "-c", "SELECT 1"], 64),
        (&["sql", "sqlite:app.db", "--init", "--protect", "a.b.c"], 64),
        (&["sql", "sqlite:app.db", "--init", "--protect", ""], 64),
        (&["sql", "sqlite:app.db", "--init", "--protect", "no_such_table"], 78),
        (&["sql", "sqlite:no/such/folder.db", "-c", "SELECT 1"], 78),
        (&["sql", "sqlite:missing.db", "-c", "SELECT 1"], 78),
        (&["put", "x", "ftp://b/k"], 64),
        (&["run", "job2", "--guard", "sqlite:", "--", "true"], 64),
        (&["run", "job2", "--guard", "mysql://h", "--", "true"], 64),
    ] {
        let full = if line[0] == "run" || line.contains(&"--init") {
            line.to_vec()
        } else {
            [line, &["--token", &token]].concat()
        };
        // A lean build has no buckets at all.
        let code = if line[0] == "put" && !cfg!(feature = "full") { 78 } else { code };
        let done = home.done(&full).expect(code);
        assert_eq!(done.stdout, "", "{line:?}");
        assert!(!done.stderr.contains("hunter2"), "{line:?}: {done:?}");
    }
    assert_eq!(std::fs::read(home.path("app.db")).unwrap(), before);
    assert!(!home.path("missing.db").exists());
}

#[cfg(feature = "full")]
#[test]
fn wrong_objects_are_refused_before_anything_is_asked() {
    let home = Home::new(On::Sqlite);
    let token = home.done(&["acquire", "job", "--ttl", "24h"]).expect(0).stdout.trim().to_owned();
    std::fs::write(home.path("out.json"), "{}").unwrap();
    let at = |key: &str| format!("s3://id:hunter2@bucket/{key}?endpoint=http://127.0.0.1:1");
    for (key, says) in [
        ("", "key"),
        ("../x.json", ".."),
        ("a/../x.json", ".."),
        ("%2e%2e/x.json", ".."),
        ("a//x.json", ""),
        ("/x.json", ""),
        ("a/./x.json", ""),
        ("a/x.json/", ""),
        ("a%0ax.json", ""),
        ("a%00x.json", ""),
        ("out.bin", "needs a choice"),
        ("out.json&salt=pepper", ""),
    ] {
        let done = home.done(&["put", "out.json", &at(key), "--token", &token]).expect(64);
        assert!(done.stderr.contains(says) && !done.stderr.contains("hunter2"), "{key}: {done:?}");
    }
    for url in [
        "s3://",
        "s3:bucket/x.json",
        "s3://a,b/x.json",
        "s3://b:1/x.json",
        "s3://b/x.json?endpoint=file:///etc",
        "s3://b/x.json?endpoint=http://u@h",
        "s3://b/x.json?region=a%20b",
        "s3://b/x.json?acl=public",
    ] {
        let done = home.done(&["put", "out.json", url, "--token", &token]).expect(64);
        assert_eq!(done.stdout, "");
    }
    let kind =
        home.done(&["put", "out.json", &at("x.json"), "--content-type", "a\nb: c", "--token", &token]).expect(64);
    assert!(kind.stderr.contains("content type"), "{kind:?}");
    home.done(&["put", "no-such", &at("x.json"), "--token", &token]).expect(64);
    home.done(&["put", "out.json", &at("x.json"), "--token", &token]).expect(69);
}

#[cfg(feature = "full")]
#[test]
fn the_example_of_the_object_page_runs_on_a_real_server() {
    let home = Home::new(On::Sqlite);
    let server = leasehold_testbed::moto();
    std::fs::write(home.path("report.json"), "{\"n\": 1}").unwrap();
    let url =
        format!("s3://id:secret@{}/report.json?endpoint=http://127.0.0.1:{}", leasehold_testbed::BUCKET, server.port());
    let script = example(&document("object.md"), "## In two minutes").replace("s3://bucket/report.json", &url);
    let words: Vec<&str> = script.split_whitespace().filter(|word| *word != "\\").collect();
    assert_eq!(words[0], "leasehold");
    home.done(&words[1..]).expect(0);
    let old = home.done(&["acquire", "report", "--ttl", "24h"]).expect(0).stdout.trim().to_owned();
    let told = home.done(&["put", "report.json", &url, "--json", "--token", &old]).expect(0).stdout;
    assert!(told.contains("\"strength\":\"atomic\""), "{told}");
    home.done(&["hand-off", "report", "--to", "b", "--why", "drill"]).expect(0);
    let late = home.done(&["put", "report.json", &url, "--token", &old]).expect(13);
    assert!(late.stderr.contains("stale epoch refused"), "{late:?}");
}

#[cfg(feature = "full")]
#[test]
fn a_missing_bucket_is_called_so() {
    let home = Home::new(On::Sqlite);
    let server = leasehold_testbed::moto();
    std::fs::write(home.path("report.json"), "{}").unwrap();
    let token = home.done(&["acquire", "report", "--ttl", "24h"]).expect(0).stdout.trim().to_owned();
    let url = format!("s3://id:secret@nowhere/report.json?endpoint=http://127.0.0.1:{}", server.port());
    let refused = home.done(&["put", "report.json", &url, "--token", &token]).expect(78);
    assert!(refused.stderr.contains("there is no such bucket; create it first"), "{refused:?}");
}

#[test]
fn a_token_that_the_store_never_granted_moves_no_fence() {
    let home = Home::new(On::Sqlite);
    home.done(&["sql", "sqlite:app.db", "--init"]).expect(0);
    let granted = home.done(&["acquire", "job", "--ttl", "24h"]).expect(0).stdout.trim().to_owned();
    let (other, nobody) = ("5".repeat(32), "0".repeat(32));
    let lineage = granted.split(':').nth(2).unwrap();
    for (forged, code, says) in [
        (format!("job:99:{lineage}:{nobody}:0"), 65, "was never granted by"),
        (format!("job:1:{lineage}:{nobody}:0"), 65, "was never granted by"),
        (format!("job:99:{other}:{nobody}:0"), 64, "not this lease"),
        (format!("neverwas:9:{lineage}:{nobody}:0"), 64, "was never granted by"),
    ] {
        let refused = home.done(&["write", "out.txt", "--from", "app.db", "--token", &forged]).expect(code);
        assert!(refused.stderr.contains(says), "{refused:?}");
        assert!(!refused.stderr.contains(&nobody), "{refused:?}");
        home.done(&["sql", "sqlite:app.db", "-c", "CREATE TABLE t (n)", "--token", &forged]).expect(code);
    }
    home.done(&["write", "out.txt", "--from", "app.db", "--token", &granted]).expect(0);
    home.done(&["sql", "sqlite:app.db", "-c", "CREATE TABLE t (n)", "--token", &granted]).expect(0);
}

#[test]
fn what_guards_keep_is_not_written_through_them() {
    let home = Home::new(On::Sqlite);
    let token = home.done(&["acquire", "job", "--ttl", "24h"]).expect(0).stdout.trim().to_owned();
    std::fs::create_dir(home.path("src")).unwrap();
    std::fs::write(home.path("src/page"), "one").unwrap();
    home.done(&["write", "a.txt", "--from", "src/page", "--token", &token]).expect(0);
    home.done(&["publish", "src", "site", "--token", &token]).expect(0);
    for own in [".a.txt.fence/lease", "site/page", ".site.generations/x", ".b.fence"] {
        let refused = home.done(&["write", own, "--from", "src/page", "--token", &token]).expect(64);
        assert!(refused.stderr.contains("a guard keeps its records there"), "{own}: {refused:?}");
    }
    home.done(&["publish", "src", ".site.fence", "--token", &token]).expect(64);
    home.done(&["sql", "sqlite:app.db", "--init"]).expect(0);
    for statement in
        ["UPDATE leasehold_fence SET epoch = 0", "DELETE FROM \"Leasehold_Fence\"", "DROP TABLE [leasehold_fence]"]
    {
        let refused = home.done(&["sql", "sqlite:app.db", "-c", statement, "--token", &token]).expect(64);
        assert!(refused.stderr.contains("the guard's own table"), "{statement}: {refused:?}");
    }
    home.done(&["write", "a.txt", "--from", "src/page", "--token", &token]).expect(0);
}

#[test]
fn rows_come_whole_whatever_is_in_them() {
    let home = Home::new(On::Sqlite);
    let url = format!("sqlite:{}", home.path("app.db").display());
    home.done(&["sql", &url, "--init"]).expect(0);
    let token = home.done(&["acquire", "job", "--ttl", "1h"]).expect(0).stdout;
    let ask = |more: &[&str]| {
        let sql = "SELECT 'a\tb\nc' AS n, x'00ff' AS n, NULL AS n";
        let words = [&["sql", &url, "-c", sql, "--token", token.trim()], more].concat();
        home.done(&words).expect(0).stdout
    };
    assert_eq!(ask(&[]), "a\\tb\\nc\t\\x00ff\t\\N\n");
    let told: serde_json::Value = serde_json::from_str(&ask(&["--json"])).unwrap();
    assert_eq!(told["rows"], serde_json::json!([{ "n": "a\tb\nc", "n_2": "\\x00ff", "n_3": null }]));
}

/// Two stores have a lease of this name: the database belongs to one of them, and then to the other.
#[test]
fn a_database_is_given_to_the_lease_of_another_store() {
    let home = Home::new(On::Sqlite);
    home.done(&["sql", "sqlite:app.db", "--init"]).expect(0);
    let elsewhere = ["--store", "dir:elsewhere"];
    let acquire = ["acquire", "job", "--ttl", "24h"];
    let first = home.done(&acquire).expect(0).stdout.trim().to_owned();
    let second = home.done(&[&acquire[..], &elsewhere].concat()).expect(0).stdout.trim().to_owned();
    let sql = |script: &str, token: &str, store: &[&str]| {
        home.done(&[&["sql", "sqlite:app.db", "-c", script, "--token", token], store].concat())
    };
    sql("CREATE TABLE t (n INTEGER); INSERT INTO t VALUES (1)", &first, &[]).expect(0);
    let refused = sql("UPDATE t SET n = 2", &second, &elsewhere).expect(64);
    assert!(refused.stderr.contains("not this lease"), "{}", refused.stderr);
    let adopt = ["adopt", "sqlite:app.db", "--token", &second, "--why", "the old store goes away", "--by", "ops"];
    home.done(&[&adopt[..], &elsewhere].concat()).expect(0);
    let refused = sql("UPDATE t SET n = 3", &first, &[]).expect(64);
    assert!(refused.stderr.contains("not this lease"), "{}", refused.stderr);
    assert_eq!(value(&home, "SELECT n FROM t"), "1");
    sql("UPDATE t SET n = 4", &second, &elsewhere).expect(0);
    assert_eq!(value(&home, "SELECT n FROM t"), "4");
    let told = "SELECT adopted LIKE '%by ops: the old store goes away' FROM leasehold_fence";
    assert_eq!(value(&home, told), "1");
}
