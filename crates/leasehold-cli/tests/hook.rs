//! `hook` and the context of a run: an agent that lost its task is stopped at its next tool call.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Done, Home, On, Running, eventually};
use leasehold_core::clock::{Clock, SystemClock};
use serde_json::{Value, json};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// What hosts are promised.
const LIMIT: Duration = Duration::from_secs(2);
const HOSTS: [(&str, &str, &str); 3] = [
    ("claude", "PreToolUse", "PostToolUse"),
    ("codex", "PreToolUse", "PostToolUse"),
    ("gemini", "BeforeTool", "AfterTool"),
];

/// A job that lives until it is told to end, and the context that it was given.
fn held(home: &Home, name: &str) -> (Running, PathBuf) {
    let run = home.start(&[
        "run",
        name,
        "--ttl",
        "30s",
        "--",
        "sh",
        "-c",
        "echo $LEASEHOLD_CONTEXT >at; while [ ! -e end ]; do sleep 0.05; done",
    ]);
    let context = PathBuf::from(home.words("at").remove(0));
    (run, context)
}

fn event(name: &str) -> String {
    json!({ "session_id": "s", "hook_event_name": name, "tool_name": "Bash", "tool_input": { "command": "ls" } })
        .to_string()
}

/// What is given to a hook on its standard input.
enum Input<'a> {
    Text(&'a str),
    Nothing,
    /// It never ends.
    Open,
}

/// What it is about, the context, the event, flags, and a part of the reason if it is denied.
type Row<'a> = (&'a str, Option<&'a Path>, Input<'a>, &'a [&'a str], Option<&'a str>);

struct Answer {
    done: Done,
    took: Duration,
}

fn ask_once(home: &Home, args: &[&str], context: Option<&Path>, input: &Input<'_>) -> Answer {
    let mut command = home.leasehold(args);
    command.env_remove("LEASEHOLD_STORE");
    context.map(|path| command.env("LEASEHOLD_CONTEXT", path));
    command.stdin(if matches!(input, Input::Nothing) { Stdio::null() } else { Stdio::piped() });
    let begun = SystemClock.now();
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut kept = child.stdin.take();
    if let Input::Text(text) = input {
        let _ = kept.take().unwrap().write_all(text.as_bytes());
    }
    let output = child.wait_with_output().unwrap();
    drop(kept);
    Answer { done: output.into(), took: SystemClock.now().saturating_since(begun) }
}

/// A machine that is busy with something else for a moment says nothing about the hook: a second try counts then.
fn ask(home: &Home, args: &[&str], context: Option<&Path>, input: &Input<'_>) -> Done {
    let first = ask_once(home, args, context, input);
    let answer = if first.took < LIMIT { first } else { ask_once(home, args, context, input) };
    assert!(answer.took < LIMIT, "{:?}: {:#?}", answer.took, answer.done);
    assert!([0, 2].contains(&answer.done.code), "{:#?}", answer.done);
    answer.done
}

/// The reason for which a host takes this for a refusal; none if it lets the call pass.
#[track_caller]
fn denied(host: &str, done: &Done) -> Option<String> {
    if done.code == 2 {
        assert!(!done.stderr.trim().is_empty(), "{done:#?}");
        return Some(done.stderr.clone());
    }
    let answer: Value = serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done:#?}"));
    if answer == json!({}) {
        return None;
    }
    let (decision, reason) = match host {
        "gemini" => (&answer["decision"], &answer["reason"]),
        _ => {
            let own = &answer["hookSpecificOutput"];
            assert_eq!(own["hookEventName"], "PreToolUse");
            (&own["permissionDecision"], &own["permissionDecisionReason"])
        }
    };
    assert_eq!(decision, "deny", "{answer}");
    Some(reason.as_str().unwrap().to_owned())
}

/// A context as a run writes it, with other contents.
fn written(home: &Home, name: &str, from: &Path, change: impl FnOnce(&mut Value)) -> PathBuf {
    let mut context: Value = serde_json::from_str(&std::fs::read_to_string(from).unwrap()).unwrap();
    change(&mut context);
    file(home, name, &context.to_string())
}

fn file(home: &Home, name: &str, text: &str) -> PathBuf {
    let path = home.path(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

#[test]
fn each_host_is_answered_in_its_own_words_whatever_happens() {
    let home = Home::new(On::Sqlite);
    let (run, context) = held(&home, "task");
    let copy = written(&home, "copy", &context, |_| {});
    let now = json!(SystemClock.now().as_nanos());
    let later = json!(now.as_u64().unwrap() + 600_000_000_000);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let away = |name: &str, port: u16, until: &Value| {
        written(&home, name, &context, |context| {
            context["store"] = json!(format!("redis://127.0.0.1:{port}"));
            context["trusted"]["until_ns"] = until.clone();
        })
    };
    let (silent_port, past) = (silent.local_addr().unwrap().port(), json!(1));
    let down_within = away("down-within", nobody, &later);
    let down_past = away("down-past", nobody, &past);
    let silent_within = away("silent-within", silent_port, &later);
    let silent_past = away("silent-past", silent_port, &past);
    let other_boot =
        written(&home, "other-boot", &down_within, |context| context["trusted"]["boot"] = json!("another"));
    let damaged = file(&home, "damaged", "{\"version\": 1,");
    let future = written(&home, "future", &context, |context| context["version"] = json!(2));
    let foreign = written(&home, "foreign", &context, |context| context["lease"] = json!("other"));
    let large =
        json!({ "hook_event_name": "PRE", "tool_name": "Write", "tool_input": { "content": "x".repeat(10 << 20) } });

    let rows = |when: &str, rows: &[Row<'_>]| {
        for (host, before, _) in HOSTS {
            for (what, context, input, flags, reason) in rows {
                let text = match input {
                    Input::Text("pre") => event(before),
                    Input::Text("large") => large.to_string().replace("PRE", before),
                    Input::Text(text) => (*text).to_owned(),
                    _ => String::new(),
                };
                let input = if let Input::Text(_) = input { &Input::Text(&text) } else { input };
                let done = ask(&home, &[&["hook", host], *flags].concat(), *context, input);
                let found = denied(host, &done);
                match (reason, &found) {
                    (None, None) => {}
                    (Some(wanted), Some(found)) => assert!(found.contains(wanted), "{when}: {host}, {what}: {found}"),
                    _ => panic!("{when}: {host}, {what}: {reason:?} wanted, and this came: {found:?}"),
                }
            }
        }
    };
    let pre = || Input::Text("pre");
    let unleased: &[&str] = &["--allow-unleased"];
    rows(
        "live",
        &[
            ("live", Some(&context), pre(), &[], None),
            ("a large event", Some(&context), Input::Text("large"), &[], None),
            ("down within the window", Some(&down_within), pre(), &[], None),
            ("silent within the window", Some(&silent_within), pre(), &[], None),
            ("down past the window", Some(&down_past), pre(), &[], Some("can no longer be trusted")),
            ("silent past the window", Some(&silent_past), pre(), &[], Some("can no longer be trusted")),
            ("the window of another boot", Some(&other_boot), pre(), &[], Some("can no longer be trusted")),
            ("no context", None, pre(), &[], Some("holds no lease")),
            ("no context, and that is fine", None, pre(), unleased, None),
            ("a damaged context", Some(&damaged), pre(), unleased, Some("it is damaged")),
            ("a context of another version", Some(&future), pre(), &[], Some("version 2")),
            ("a context of two leases", Some(&foreign), pre(), &[], Some("another lease")),
            (
                "a context that is gone",
                Some(Path::new("/nowhere/context")),
                pre(),
                unleased,
                Some("has its run ended?"),
            ),
            ("garbage", Some(&context), Input::Text("ls -l"), &[], Some("does not understand")),
            ("another event", Some(&context), Input::Text(r#"{"hook_event_name":"Nonsense"}"#), &[], Some("no event")),
            ("no tool", Some(&context), Input::Text(r#"{"tool_name":"Bash"}"#), &[], Some("does not understand")),
            ("closed input", Some(&context), Input::Nothing, &[], Some("does not understand")),
            ("a session that begins", Some(&context), Input::Text(r#"{"hook_event_name":"SessionStart"}"#), &[], None),
            ("a tool that is not guarded", Some(&damaged), pre(), &["--tools", "Wri*", "--tools", "mcp__*"], None),
            ("a tool that is guarded", Some(&damaged), pre(), &["--tools", "Ba*"], Some("it is damaged")),
            ("a wrong flag", Some(&context), pre(), &["--nonsense"], Some("refuses")),
            ("a wrong pattern", Some(&context), pre(), &["--tools", ""], Some("refuses")),
        ],
    );
    // Nobody closes it.
    assert!(denied("claude", &ask(&home, &["hook", "claude"], None, &Input::Open)).is_some());

    home.done(&["hand-off", "task", "--to", "runner-2", "--why", "drain the box"]).expect(0);
    run.end().expect(75);
    assert!(!context.exists(), "the context outlived its run");
    rows("handed off", &[("lost", Some(&copy), pre(), &[], Some("drain the box"))]);
    home.done(&["revoke", "task", "--why", "over"]).expect(0);
    home.done(&["acquire", "task"]).expect(0);
    rows("held by another", &[("fenced", Some(&copy), pre(), &[], Some("held=1 seen=4"))]);

    let token = home.done(&["acquire", "short", "--ttl", "1s"]).expect(0).stdout;
    eventually("it expires", || home.show("short")["state"] != "held");
    let expired = written(&home, "expired", &copy, |context| {
        context["lease"] = json!("short");
        context["token"] = json!(token.trim());
    });
    rows("expired", &[("expired", Some(&expired), pre(), &[], Some("ran out"))]);
}

#[test]
fn what_goes_wrong_with_the_hook_itself_is_a_refusal_too() {
    let home = Home::new(On::Sqlite);
    let deny = |change: &dyn Fn(&mut std::process::Command)| {
        let mut command = home.leasehold(&["hook", "codex"]);
        change(&mut command);
        let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let _ = child.stdin.take().unwrap().write_all(event("PreToolUse").as_bytes());
        Done::from(child.wait_with_output().unwrap())
    };
    let full = deny(&|command| {
        command.stdout(std::fs::File::options().write(true).open("/dev/full").unwrap());
    });
    assert!(full.expect(2).stderr.contains("holds no lease"));
    let wrong = deny(&|command| {
        command.env("LEASEHOLD_LOG", "loud").stdout(Stdio::piped());
    });
    assert!(wrong.expect(2).stderr.contains("refuses"));
    // Codex takes the code for a failure, which lets the call pass, if nothing is on standard error.
    let mute = deny(&|command| {
        command.env("LEASEHOLD_LOG", "off").arg("--nonsense").stdout(Stdio::piped());
    });
    assert!(!mute.expect(2).stderr.trim().is_empty());
}

#[test]
fn the_folder_of_a_session_has_no_say() {
    let home = Home::new(On::Sqlite);
    let (run, context) = held(&home, "task");
    let copy = written(&home, "copy", &context, |_| {});
    // Its store's password is in a file of settings that names another store by now.
    let secret = written(&home, "secret", &context, |context| {
        context["secret"] = json!({ "file": home.path("other.toml") });
    });
    std::fs::write(home.path("other.toml"), "store = \"redis://127.0.0.1:1\"\n").unwrap();
    let ask = |context: &Path| ask(&home, &["hook", "claude"], Some(context), &Input::Text(&event("PreToolUse")));
    assert!(denied("claude", &ask(&secret)).unwrap().contains("names another store"));

    home.done(&["revoke", "task", "--why", "over"]).expect(0);
    run.end().expect(75);
    // Settings that take long to read, and settings that are wrong.
    for text in [format!("x = [{}]\n", "1,".repeat(4 << 20)), "store = 7\n".to_owned()] {
        std::fs::write(home.path("leasehold.toml"), text).unwrap();
        assert!(denied("claude", &ask(&copy)).unwrap().contains("over"));
    }
    let refused = home.done(&["ls"]);
    assert!(refused.code == 64, "{refused:?}");
}

#[test]
fn a_run_whose_context_did_not_come_through_is_not_unleased() {
    let home = Home::new(On::Sqlite);
    let mut command = home.leasehold(&["hook", "gemini", "--allow-unleased"]);
    command.env("LEASEHOLD_EPOCH", "3").env("LEASEHOLD_CONTEXT", "").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(event("BeforeTool").as_bytes()).unwrap();
    let done = Done::from(child.wait_with_output().unwrap());
    assert!(denied("gemini", &done).unwrap().contains("runs under a lease"));
    // A host leaves its own word for a variable that it does not have.
    for unset in ["$LEASEHOLD_CONTEXT", "${LEASEHOLD_CONTEXT}", "${env:LEASEHOLD_CONTEXT}", "${LEASEHOLD_CONTEXT:-}"] {
        let done = ask(&home, &["hook", "gemini"], Some(Path::new(unset)), &Input::Text(&event("BeforeTool")));
        assert!(denied("gemini", &done).unwrap().contains("holds no lease"), "{unset}");
    }
}

#[test]
fn a_tool_call_is_progress() {
    let home = Home::new(On::Sqlite);
    let (run, context) = held(&home, "task");
    for (host, _, after) in HOSTS {
        home.done(&["progress", "before", "--context", context.to_str().unwrap()]).expect(0);
        let done = ask(&home, &["hook", host], Some(&context), &Input::Text(&event(after)));
        assert_eq!(done.expect(0).stdout, "{}\n");
        assert_eq!(home.show("task")["progress"]["marker"], "tool Bash", "{}", home.show("task"));
    }
    // It never denies: the call was made.
    let done = ask(&home, &["hook", "claude"], Some(Path::new("/nowhere")), &Input::Text(&event("PostToolUse")));
    assert_eq!(done.expect(0).stdout, "{}\n");
    home.touch("end");
    run.end().expect(0);
}

#[test]
fn the_context_of_a_run_has_its_lease_and_goes_with_it() {
    let home = Home::new(On::Sqlite);
    let (run, path) = held(&home, "task");
    let read = || serde_json::from_str::<Value>(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let context = read();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::metadata(path.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!((&context["lease"], &context["epoch"]), (&json!("task"), &json!(1)));
    assert_eq!(context["idempotency_key"], "task@1");
    assert_eq!(context["store"], json!(home.store));
    assert!(context["token"].as_str().unwrap().starts_with("task:1:"));
    // Each renewal moves the end of trust.
    eventually("it is renewed", || read()["trusted"]["until_ns"].as_u64() > context["trusted"]["until_ns"].as_u64());

    // Every verb takes it, by the variable or by the flag, and needs nothing else.
    let bare = |args: &[&str], variable: Option<&Path>| {
        let mut command = home.leasehold(args);
        command.env_remove("LEASEHOLD_STORE");
        variable.map(|path| command.env("LEASEHOLD_CONTEXT", path));
        Done::from(command.output().unwrap())
    };
    let flag = path.to_str().unwrap();
    home.touch("new");
    bare(&["write", "out", "--from", "new"], Some(&path)).expect(0);
    bare(&["write", "out", "--from", "new", "--context", flag], None).expect(0);
    bare(&["renew"], Some(&path)).expect(0);
    assert!(bare(&["ls"], Some(&path)).expect(0).stdout.contains("task"));
    let config: Value = serde_json::from_str(&bare(&["config", "--json"], Some(&path)).expect(0).stdout).unwrap();
    assert_eq!(config["store"]["source"], "the context of a run", "{config}");
    // It is not looked for.
    std::fs::copy(&path, home.path("context.json")).unwrap();
    assert!(bare(&["renew"], None).expect(64).stderr.contains("no token"));

    // Nor is it believed if somebody else could have written it.
    let loose = written(&home, "loose", &path, |_| {});
    std::fs::set_permissions(&loose, std::fs::Permissions::from_mode(0o666)).unwrap();
    assert!(bare(&["renew"], Some(&loose)).expect(64).stderr.contains("somebody else"));
    symlink(&path, home.path("link")).unwrap();
    bare(&["renew"], Some(&home.path("link"))).expect(64);

    home.touch("end");
    run.end().expect(0);
    assert!(!path.exists() && !path.parent().unwrap().exists());
}

#[test]
fn the_context_of_a_run_whose_supervisor_was_killed_goes_too() {
    let home = Home::new(On::Sqlite);
    let (run, path) = held(&home, "task");
    common::signal(run.pid(), "KILL");
    eventually("it is gone", || !path.parent().unwrap().exists());
    drop(run);
}

#[test]
fn a_run_within_a_run_has_a_context_of_its_own_and_so_has_an_item() {
    let home = Home::new(On::Sqlite);
    let inner = "leasehold run inner -- sh -c 'cat $LEASEHOLD_CONTEXT >inner'; cat $LEASEHOLD_CONTEXT >outer";
    home.done(&["run", "outer", "--", "sh", "-c", inner]).expect(0);
    let lease = |name: &str| serde_json::from_str::<Value>(&home.read(name)).unwrap()["lease"].clone();
    assert_eq!((lease("inner"), lease("outer")), (json!("inner"), json!("outer")));

    home.done(&["queue", "add", "mail", "--text", "x"]).expect(0);
    let work = "cat $LEASEHOLD_CONTEXT >item; env -u LEASEHOLD_TOKEN -u LEASEHOLD_STORE -u LEASEHOLD_QUEUE leasehold progress half";
    home.done(&["work", "mail", "--items", "1", "--", "sh", "-c", work]).expect(0);
    let item: Value = serde_json::from_str(&home.read("item")).unwrap();
    assert_eq!(item["queue"], "mail", "{item}");
    assert_eq!(item["idempotency_key"], item["lease"]);
}
