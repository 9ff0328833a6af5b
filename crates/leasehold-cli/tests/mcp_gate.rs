//! The MCP gate, as a real process, spoken to line by line.
#![allow(clippy::unwrap_used)]

mod common;

use common::mcp::{Client, alone};
use common::{Home, On, PATIENCE, eventually};
use serde_json::{Value, json};
use std::process::Stdio;
use std::time::Duration;

/// A server that answers every line with the line, so that what passed can be seen byte for byte.
const ECHO: [&str; 4] = ["--", "sh", "-c", "while IFS= read -r line; do printf '%s\\n' \"$line\"; done"];

fn gate<'a>(extra: &[&'a str]) -> Vec<&'a str> {
    [&["mcp-gate", "--guard", "tools"], extra, &ECHO[..]].concat()
}

fn call(id: &Value, tool: &str) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": tool, "arguments": {} } })
        .to_string()
}

#[track_caller]
fn refused(answer: &Value, id: &Value, numbers: &str) {
    assert_eq!(&answer["id"], id, "{answer}");
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    let text = answer["result"]["content"][0]["text"].as_str().unwrap();
    assert!(text.contains(numbers), "{text}");
}

#[test]
fn a_call_passes_while_the_lease_is_held_and_not_after() {
    for on in [On::Sqlite, On::Dir] {
        let home = Home::new(on);
        let token = home.done(&["acquire", "agent", "--ttl", "10m"]).expect(0).stdout.trim().to_owned();
        // Asks the store at every call: what an operator does counts at once.
        let mut client = Client::start(&home, &gate(&["--every-call"]), Some(&token));
        let line = call(&json!(1), "write");
        client.send(format!("{line}\n").as_bytes());
        assert_eq!(client.line().to_string(), serde_json::from_str::<Value>(&line).unwrap().to_string());
        home.done(&["revoke", "agent", "--why", "test"]).expect(0);
        for id in [json!(2), json!("two"), json!(-7), json!(1.5), json!(u64::MAX), json!("")] {
            client.send(format!("{}\n", call(&id, "write")).as_bytes());
            refused(&client.line(), &id, "held=1 seen=2");
        }
        // A notification is refused without an answer, and everything else passes.
        client.send(b"{\"jsonrpc\":\"2.0\",\"method\":\"tools/call\",\"params\":{\"name\":\"write\"}}\n");
        for other in [
            "{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"tools/list\"}",
            "{\"jsonrpc\":\"2.0\",\"id\":6,\"method\":\"ping\"}",
        ] {
            client.send(format!("{other}\n").as_bytes());
            assert_eq!(client.line()["id"], serde_json::from_str::<Value>(other).unwrap()["id"]);
        }
        assert_eq!(client.end(), Some(0));
        eventually("the refusal is counted", || home.count("agent", "fenced") == 1);
        let shown = home.show("agent")["fenced_writes"][0].clone();
        assert!(shown["resource"].as_str().unwrap().starts_with("mcp:"), "{shown}");
        assert_eq!((&shown["held_epoch"], &shown["seen_epoch"]), (&json!(1), &json!(2)));
    }
}

#[test]
fn the_gate_refuses_in_the_generation_of_the_call() {
    let home = Home::new(On::Sqlite);
    let token = home.done(&["acquire", "agent"]).expect(0).stdout.trim().to_owned();
    let mut client = Client::start(&home, &gate(&["--every-call"]), Some(&token));
    let lines = [("server/discover", json!({})), ("tools/list", json!({})), ("tools/call", json!({ "name": "write" }))]
        .map(|(method, params)| {
            json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": alone(params) }).to_string()
        });
    for line in &lines {
        client.send(format!("{line}\n").as_bytes());
        assert_eq!(&client.lines.recv_timeout(PATIENCE).unwrap(), line);
    }
    home.done(&["revoke", "agent", "--why", "test"]).expect(0);
    for line in &lines[..2] {
        client.send(format!("{line}\n").as_bytes());
        assert_eq!(&client.lines.recv_timeout(PATIENCE).unwrap(), line);
    }
    client.send(format!("{}\n", lines[2]).as_bytes());
    let answer = client.line();
    refused(&answer, &json!(1), "held=1 seen=2");
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
    for meta in ["{}", "[]", "null", "7", r#"{"progressToken":1}"#] {
        let params = format!(r#"{{"_meta":{meta},"name":"write"}}"#);
        client.send(
            format!("{{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"tools/call\",\"params\":{params}}}\n").as_bytes(),
        );
        let answer = client.line();
        refused(&answer, &json!(2), "held=1 seen=2");
        assert!(answer["result"].get("resultType").is_none(), "{answer}");
    }
}

#[test]
fn the_gate_hears_of_a_loss_by_itself() {
    for on in [On::Sqlite, On::Dir] {
        let home = Home::new(on);
        let token = home.done(&["acquire", "agent", "--ttl", "3s"]).expect(0).stdout.trim().to_owned();
        let mut client = Client::start(&home, &gate(&[]), Some(&token));
        client.send(format!("{}\n", call(&json!(1), "write")).as_bytes());
        assert_eq!(client.line()["method"], "tools/call");
        home.done(&["hand-off", "agent", "--to", "other", "--why", "test", "--ttl", "10m"]).expect(0);
        // By a hint or with the next heartbeat, a third of the TTL later at most.
        for id in 2.. {
            client.send(format!("{}\n", call(&json!(id), "write")).as_bytes());
            let answer = client.line();
            if answer.get("result").is_some() {
                refused(&answer, &json!(id), "held=1 seen=2");
                break;
            }
            assert!(id < 400, "the gate never heard");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn nothing_passes_after_the_deadline_even_if_the_store_is_gone() {
    let home = Home::new(On::Sqlite);
    let token = home.done(&["acquire", "agent", "--ttl", "2s"]).expect(0).stdout.trim().to_owned();
    let begun = leasehold_system::clock::now();
    let mut client = Client::start(&home, &gate(&[]), Some(&token));
    client.send(format!("{}\n", call(&json!(0), "write")).as_bytes());
    assert_eq!(client.line()["method"], "tools/call");
    // Nobody renews and nobody else acquires; the store itself goes away.
    std::fs::rename(home.path("leases.db"), home.path("gone.db")).unwrap();
    let mut last = begun;
    for id in 1.. {
        let asked = leasehold_system::clock::now();
        client.send(format!("{}\n", call(&json!(id), "write")).as_bytes());
        if client.line().get("result").is_some() {
            break;
        }
        last = asked;
        assert!(id < 4000, "it was served for ever");
        std::thread::sleep(Duration::from_millis(2));
    }
    let served = last.saturating_since(begun);
    assert!(served < Duration::from_secs(2), "served {served:?} after a lease of 2s was granted");
}

#[test]
fn only_named_tools_are_gated() {
    let home = Home::new(On::Sqlite);
    let token = home.done(&["acquire", "agent"]).expect(0).stdout.trim().to_owned();
    home.done(&["revoke", "agent", "--why", "test"]).expect(0);
    let mut client = Client::start(&home, &gate(&["--tool", "write", "--tool", "delete"]), Some(&token));
    client.send(format!("{}\n", call(&json!(1), "read")).as_bytes());
    assert_eq!(client.line()["method"], "tools/call");
    for tool in ["write", "delete"] {
        client.send(format!("{}\n", call(&json!(2), tool)).as_bytes());
        refused(&client.line(), &json!(2), "held=1 seen=2");
    }
    // The same name, spelled with an escape, and one that is not a text.
    for line in [
        r#"{"jsonrpc":"2.0","id":3,"method":"tools\/call","params":{"name":"wr\u0069te"}}"#,
        r#"{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":["write"]}}"#,
        r#"{"jsonrpc":"2.0","id":3,"method":"tools/call"}"#,
        r#"{"params":{"arguments":{"name":"read"},"name":"write"},"method":"tools/call","id":3,"jsonrpc":"2.0"}"#,
    ] {
        client.send(format!("{line}\n").as_bytes());
        refused(&client.line(), &json!(3), "held=1 seen=2");
    }
}

/// Lines that two readers could read differently do not reach the server; valid ones reach it as they came.
#[test]
fn hostile_lines_do_not_slip_through_the_gate() {
    let home = Home::new(On::Sqlite);
    let token = home.done(&["acquire", "agent"]).expect(0).stdout.trim().to_owned();
    home.done(&["revoke", "agent", "--why", "test"]).expect(0);
    let mut client = Client::start(&home, &gate(&["--max-line", "4096"]), Some(&token));
    let inner = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"w"}}"#;
    let bad: Vec<Vec<u8>> = [
        "nonsense".into(),
        "{".into(),
        "[".into(),
        format!("{inner}{inner}"),
        format!("{inner},"),
        format!("x{inner}"),
        format!("\u{feff}{inner}"),
        format!("{{\"method\":\"ping\",\"id\":1,\"params\":{{\"x\":\r{inner}\r}}}}"),
        format!("[1,\r{inner}\r]"),
        "\r{}".into(),
        "{\"method\":\"ping\",\"method\":\"tools/call\",\"id\":1}".into(),
        "{\"method\":\"tools/call\",\"method\":\"ping\",\"id\":1}".into(),
        "{\"id\":1,\"id\":2,\"method\":\"ping\"}".into(),
        "{\"id\":1,\"method\":\"ping\",\"params\":{},\"params\":{}}".into(),
        "{\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"a\",\"name\":\"b\"}}".into(),
        "{\"id\":1,\"method\":\"tools/call\",\"params\":\"x\"}".into(),
        "{\"id\":{},\"method\":\"ping\"}".into(),
        "{\"id\":[1],\"method\":\"ping\"}".into(),
        "{\"id\":true,\"method\":\"ping\"}".into(),
        "{\"id\":NaN,\"method\":\"ping\"}".into(),
        "{\"id\":Infinity,\"method\":\"ping\"}".into(),
        "{'id':1,'method':'ping'}".into(),
        "{\"id\":1,\"method\":\"ping\",}".into(),
        "{\"id\":01,\"method\":\"ping\"}".into(),
        "1".into(),
        "\"tools/call\"".into(),
        "null".into(),
        format!("[[{inner}]]"),
        format!("[\"x\",{inner}]"),
        format!("{}{}", "[".repeat(500), "]".repeat(500)),
        format!("{{\"id\":1,\"method\":\"ping\",\"params\":{{\"x\":\"{}\"}}}}", "a".repeat(5000)),
        "a".repeat(100_000),
    ]
    .iter()
    .map(|text: &String| text.as_bytes().to_vec())
    .chain([b"\xff\xfe{\x00}\x00".to_vec(), b"{\"id\":1,\"method\":\"pi\xffng\"}".to_vec(), b"{\"id\":1\0}".to_vec()])
    .collect();
    assert!(bad.len() >= 30, "{}", bad.len());
    for line in &bad {
        client.send(&[line, &b"\n"[..]].concat());
        let answer = client.line();
        let shown = String::from_utf8_lossy(&line[..line.len().min(80)]).into_owned();
        assert!(answer["error"]["code"].is_i64() && answer["id"].is_null(), "{shown}: {answer}");
    }
    // A batch with a refused call in it goes nowhere; each of its requests is answered.
    client.send(format!("[{inner},{{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"ping\"}}]\n").as_bytes());
    let answers = client.line();
    refused(&answers[0], &json!(1), "held=1 seen=2");
    assert_eq!((&answers[1]["id"], answers[1]["error"]["code"].is_i64()), (&json!(2), true), "{answers}");
    for good in [
        "[{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"ping\"}]",
        "{ \"id\" : 12345678901234567 ,\t\"method\":\"ping\", \"x\":[1,2,{}] }",
        "{\"method\":\"notifications/progress\",\"params\":{\"name\":\"w\",\"text\":\"tools/call\"}}",
        "{\"id\":1,\"result\":{\"method\":\"tools/call\"}}",
    ] {
        client.send(format!("{good}\n").as_bytes());
        assert_eq!(client.lines.recv_timeout(PATIENCE).unwrap(), good);
    }
}

#[test]
fn the_gate_ends_as_its_server_does() {
    let home = Home::new(On::Sqlite);
    let token = home.done(&["acquire", "agent"]).expect(0).stdout.trim().to_owned();
    let run = |script: &str| {
        let args = ["mcp-gate", "--guard", "tools", "--", "sh", "-c", script];
        home.leasehold(&args).env("LEASEHOLD_TOKEN", &token).stdin(Stdio::piped()).output().unwrap()
    };
    assert_eq!(run("exit 7").status.code(), Some(7));
    assert_eq!(run("kill -9 $$").status.code(), Some(137));
    assert_eq!(run("printf 'last words'; exit 3").stdout, b"last words");
    // The server sees the end of the client's input.
    assert_eq!(run("cat >/dev/null; echo over").stdout, b"over\n");
    let missing = ["mcp-gate", "--guard", "tools", "--", "no-such-program"];
    assert_eq!(home.leasehold(&missing).env("LEASEHOLD_TOKEN", &token).output().unwrap().status.code(), Some(127));
    assert_eq!(home.done(&["mcp-gate", "--guard", "tools", "--", "true"]).code, 64, "without a token");
    let mut client = Client::start(
        &home,
        &[
            "mcp-gate",
            "--guard",
            "tools",
            "--",
            "sh",
            "-c",
            "trap 'echo \"{}\"; exit 5' TERM; echo '{}'; while :; do sleep 0.05; done",
        ],
        Some(&token),
    );
    assert_eq!(client.line(), json!({}));
    let pid = rustix::process::Pid::from_raw(client.child.id().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(client.line(), json!({}));
    assert_eq!(client.child.wait().unwrap().code(), Some(5));
}

/// The gate's fence in the store: a newer gate seals it, and an older token is told so even if the store went back.
#[test]
fn a_store_that_went_back_is_distinguished() {
    let home = Home::new(On::Dir);
    let old = home.done(&["acquire", "agent"]).expect(0).stdout.trim().to_owned();
    std::process::Command::new("cp")
        .args(["-r", "leases/lease", "backup"])
        .current_dir(home.folder.path())
        .status()
        .unwrap();
    home.done(&["revoke", "agent", "--why", "test"]).expect(0);
    let new = home.done(&["acquire", "agent"]).expect(0).stdout.trim().to_owned();
    let mut newer = Client::start(&home, &gate(&[]), Some(&new));
    newer.send(format!("{}\n", call(&json!(1), "write")).as_bytes());
    assert_eq!(newer.line()["method"], "tools/call");
    drop(newer);
    std::fs::remove_dir_all(home.path("leases/lease")).unwrap();
    std::fs::rename(home.path("backup"), home.path("leases/lease")).unwrap();
    let mut older = Client::start(&home, &gate(&[]), Some(&old));
    older.send(format!("{}\n", call(&json!(1), "write")).as_bytes());
    let answer = older.line();
    refused(&answer, &json!(1), "store regressed");
    refused(&answer, &json!(1), "leasehold advance agent --past 3");
}

/// The whole store is set back, with the gate's fence in it, and then lost.
#[test]
fn a_gate_remembers_though_its_store_was_restored() {
    let home = Home::new(On::Dir);
    let copy = |from: &str, to: &str| {
        let _ = std::fs::remove_dir_all(home.path(to));
        let mut copy = std::process::Command::new("cp");
        assert!(copy.args(["-a", from, to]).current_dir(home.folder.path()).status().unwrap().success());
    };
    let answer = |token: &str, extra: &[&str]| {
        let mut client = Client::start(&home, &gate(extra), Some(token));
        client.send(format!("{}\n", call(&json!(1), "write")).as_bytes());
        client.line()
    };
    let old = home.done(&["acquire", "agent"]).expect(0).stdout.trim().to_owned();
    copy("leases", "backup");
    home.done(&["revoke", "agent", "--why", "test"]).expect(0);
    let new = home.done(&["acquire", "agent"]).expect(0).stdout.trim().to_owned();
    assert_eq!(answer(&new, &[])["method"], "tools/call");
    copy("backup", "leases");
    let told = answer(&old, &[]);
    refused(&told, &json!(1), "store regressed");
    refused(&told, &json!(1), "leasehold advance agent --past 3");
    // Whoever goes without is not told.
    assert_eq!(answer(&old, &["--no-state"])["method"], "tools/call");
    let other = Home::new(On::Dir);
    for _ in 0..3 {
        other.done(&["acquire", "agent"]).expect(0);
        other.done(&["revoke", "agent", "--why", "test"]).expect(0);
    }
    let foreign = other.done(&["acquire", "agent"]).expect(0).stdout.trim().to_owned();
    refused(&answer(&foreign, &[]), &json!(1), "not this lease");
    std::fs::remove_dir_all(home.path("leases")).unwrap();
    let again = home.done(&["acquire", "agent"]).expect(0).stdout.trim().to_owned();
    let told = answer(&again, &[]);
    refused(&told, &json!(1), "not this lease");
    refused(&told, &json!(1), "leasehold advance agent --past 3 --lineage ");
}

/// The example of the documentation.
#[test]
fn the_documented_gates_work() {
    for (page, shows) in [("mcp", "\"id\":1"), ("command", "started")] {
        let home = Home::new(On::Sqlite);
        let text =
            std::fs::read_to_string(format!("{}/../../docs/guards/{page}.md", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let script = text.split("```sh\n").nth(1).unwrap().split("```").next().unwrap();
        let leasehold = home.leasehold(&[]);
        let mut shell = std::process::Command::new("sh");
        for (name, value) in leasehold.get_envs() {
            shell.env(name, value.unwrap());
        }
        let done = shell.args(["-c", script]).current_dir(home.folder.path()).stdin(Stdio::null()).output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success() && out.contains(shows), "{page}: {out}\n{err}");
        assert!(err.contains("strength=check-then-act"), "{page}: {err}");
        if page == "command" {
            assert!(err.contains("the window was ") && err.contains("held all the while"), "{err}");
        }
    }
}

#[test]
fn a_measured_gate_says_that_the_lease_was_lost_in_its_window() {
    let home = Home::new(On::Sqlite);
    let token = home.done(&["acquire", "job"]).expect(0).stdout.trim().to_owned();
    let script = "leasehold revoke job --why test; exit 9";
    let done = home.done(&["gate", "api", "--measure", "--token", &token, "--", "sh", "-c", script]).expect(9);
    assert!(done.stderr.contains("from the check to the start of the command"), "{done:?}");
    assert!(done.stderr.contains("LOST in it: lease `job` was lost: held=1 seen=2"), "{done:?}");
}
