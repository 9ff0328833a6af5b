//! The MCP server and the MCP gate, as real processes, spoken to line by line.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Home, On, PATIENCE, eventually};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// A client of a server on standard input and output.
struct Client {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    next: u64,
}

impl Client {
    fn start(home: &Home, args: &[&str], token: Option<&str>) -> Self {
        let mut command = home.leasehold(args);
        if let Some(token) = token {
            command.env("LEASEHOLD_TOKEN", token);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (sender, lines) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let input = child.stdin.take();
        Client { child, input, lines, next: 1 }
    }

    fn send(&mut self, bytes: &[u8]) {
        let input = self.input.as_mut().unwrap();
        input.write_all(bytes).unwrap();
        input.flush().unwrap();
    }

    #[track_caller]
    fn line(&self) -> Value {
        let line = self.lines.recv_timeout(PATIENCE).expect("an answer");
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("not JSON: {e}: {line:?}"))
    }

    #[track_caller]
    fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.next;
        self.next += 1;
        let line = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.send(format!("{line}\n").as_bytes());
        let answer = self.line();
        assert_eq!(answer["id"], json!(id), "{answer}");
        assert_eq!(answer["jsonrpc"], "2.0");
        answer
    }

    #[track_caller]
    fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({ "name": tool, "arguments": arguments }))["result"].clone()
    }

    fn shake_hands(&mut self) {
        let answer = self.ask(
            "initialize",
            json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } }),
        );
        assert_eq!(answer["result"]["protocolVersion"], "2025-06-18", "{answer}");
        assert!(answer["result"]["capabilities"]["tools"].is_object(), "{answer}");
        self.send(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n");
    }

    /// A call as a client of 2026-07-28 makes it.
    #[track_caller]
    fn call_alone(&mut self, tool: &str, arguments: Value) -> Value {
        let answer = self.ask("tools/call", alone(json!({ "name": tool, "arguments": arguments })))["result"].clone();
        assert_eq!(answer["resultType"], "complete", "{answer}");
        answer
    }

    /// Ends the input, and gives the exit code.
    fn end(&mut self) -> Option<i32> {
        self.input = None;
        self.child.wait().unwrap().code()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// Parameters as a client of 2026-07-28 sends them, without a handshake.
fn alone(mut params: Value) -> Value {
    params["_meta"] = json!({ VERSION: "2026-07-28", CAPABILITIES: {} });
    params
}

#[test]
fn a_server_within_a_run_works_under_its_lease() {
    let home = Home::new(On::Sqlite);
    let bare = "exec env -u LEASEHOLD_TOKEN -u LEASEHOLD_STORE leasehold mcp";
    let mut client = Client::start(&home, &["run", "task", "--", "sh", "-c", bare], None);
    client.shake_hands();
    for named in [json!({}), json!({ "lease": "task" })] {
        let renewed = client.call("lease_renew", named.clone());
        assert_eq!(renewed["structuredContent"]["status"], "held", "{renewed}");
        let mut arguments = named;
        arguments["file"] = json!("out");
        arguments["content"] = json!("new");
        let written = client.call("fenced_write", arguments);
        assert_eq!(written["structuredContent"]["status"], "written", "{written}");
    }
    for tool in ["lease_acquire", "lease_release"] {
        let refused = client.call(tool, json!({ "lease": "task" }));
        assert_eq!(refused["structuredContent"]["kind"], "invalid", "{refused}");
        assert!(refused.to_string().contains("`leasehold run`"), "{refused}");
    }
    // Another lease is not lost because it was not acquired here.
    let other = client.call("lease_renew", json!({ "lease": "other" }));
    assert_eq!(other["structuredContent"]["kind"], "invalid", "{other}");
    assert_eq!(client.end(), Some(0));
    assert_eq!(home.show("task")["state"], "free");
}

#[test]
fn a_client_acquires_writes_and_releases() {
    let home = Home::new(On::Sqlite);
    let mut client = Client::start(&home, &["mcp"], None);
    client.shake_hands();
    let tools = client.ask("tools/list", json!({}))["result"]["tools"].clone();
    let names: Vec<&str> = tools.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    for name in ["lease_acquire", "lease_renew", "lease_release", "lease_list", "lease_show", "fenced_write"] {
        assert!(names.contains(&name), "{names:?}");
    }
    for tool in tools.as_array().unwrap() {
        assert_eq!(tool["inputSchema"]["type"], "object", "{tool}");
        assert!(tool["description"].as_str().is_some_and(|text| text.len() > 20), "{tool}");
    }
    let granted = client.call("lease_acquire", json!({ "lease": "job", "ttl": "60s", "label": "agent" }));
    assert_eq!(granted["isError"], false, "{granted}");
    assert_eq!(granted["structuredContent"]["status"], "granted", "{granted}");
    assert_eq!(granted["structuredContent"]["epoch"], 1);
    assert_eq!(home.show("job")["holder"]["label"], "agent");
    let mut rival = Client::start(&home, &["mcp"], None);
    rival.shake_hands();
    let held = rival.call("lease_acquire", json!({ "lease": "job" }));
    assert_eq!((&held["isError"], &held["structuredContent"]["status"]), (&json!(false), &json!("held")), "{held}");
    let written = client.call("fenced_write", json!({ "file": "out.json", "content": "by 1", "lease": "job" }));
    assert_eq!(written["structuredContent"]["status"], "written", "{written}");
    assert_eq!(home.read("out.json"), "by 1");
    assert_eq!(client.call("lease_renew", json!({ "lease": "job" }))["structuredContent"]["status"], "held");
    assert_eq!(client.call("lease_show", json!({ "lease": "job" }))["structuredContent"]["state"], "held");
    home.done(&["revoke", "job", "--why", "test"]).expect(0);
    let stolen = rival.call("lease_acquire", json!({ "lease": "job" }));
    assert_eq!(stolen["structuredContent"]["epoch"], 3, "{stolen}");
    assert_eq!(
        rival.call("fenced_write", json!({ "file": "out.json", "content": "by 3", "lease": "job" }))["isError"],
        false
    );
    let token = granted["structuredContent"]["token"].as_str().unwrap();
    let stale = client.call("fenced_write", json!({ "file": "out.json", "content": "late", "token": token }));
    assert_eq!((&stale["isError"], &stale["structuredContent"]["kind"]), (&json!(true), &json!("fenced")), "{stale}");
    assert!(stale["content"][0]["text"].as_str().unwrap().contains("held=1 seen=3"), "{stale}");
    assert_eq!(home.read("out.json"), "by 3");
    let lost = client.call("lease_renew", json!({ "token": token }));
    assert_eq!(lost["structuredContent"]["kind"], "lost", "{lost}");
    let released = rival.call("lease_release", json!({ "lease": "job" }));
    assert_eq!(released["structuredContent"]["status"], "released", "{released}");
    assert_eq!(home.show("job")["state"], "free");
}

#[test]
fn what_is_held_is_given_back_when_the_input_ends() {
    let home = Home::new(On::Sqlite);
    let mut client = Client::start(&home, &["mcp"], None);
    client.shake_hands();
    client.call("lease_acquire", json!({ "lease": "a" }));
    client.call("lease_acquire", json!({ "lease": "b" }));
    assert_eq!(client.end(), Some(0));
    for lease in ["a", "b"] {
        assert_eq!(home.show(lease)["state"], "free", "{lease}");
    }
}

#[test]
fn items_that_were_claimed_are_given_back_untried_at_the_end() {
    let home = Home::new(On::Sqlite);
    for (at, (queue, by_signal)) in [("mail", false), ("mail", true), ("spool:mail", false)].into_iter().enumerate() {
        if at != 1 {
            home.done(&["queue", "add", queue, "--text", "x"]).expect(0);
            home.done(&["queue", "add", queue, "--text", "y"]).expect(0);
        }
        let mut client = Client::start(&home, &["mcp"], None);
        client.shake_hands();
        let claimed = client.call("queue_claim", json!({ "queue": queue, "ttl": "10m" }));
        assert_eq!(claimed["structuredContent"]["status"], "done", "{claimed}");
        let id = claimed["structuredContent"]["output"]["id"].as_str().unwrap().to_owned();
        let show = || -> Value {
            serde_json::from_str(&home.done(&["queue", "show", queue, &id, "--json"]).expect(0).stdout).unwrap()
        };
        assert_eq!(show()["state"], "claimed", "{}", show());
        if by_signal {
            common::signal(client.child.id() as i32, "TERM");
            assert_eq!(client.child.wait().unwrap().code(), Some(143));
        } else {
            assert_eq!(client.end(), Some(0));
        }
        assert_eq!((&show()["state"], &show()["tried"]), (&json!("ready"), &json!(0)), "{}", show());
    }
    // What was completed stays so.
    let mut client = Client::start(&home, &["mcp"], None);
    client.shake_hands();
    let claimed = client.call("queue_claim", json!({ "queue": "mail" }))["structuredContent"]["output"].clone();
    let done = client.call("queue_complete", json!({ "queue": "mail", "token": claimed["token"] }));
    assert_eq!(done["isError"], false, "{done}");
    assert_eq!(client.end(), Some(0));
    let shown = home.done(&["queue", "show", "mail", claimed["id"].as_str().unwrap(), "--json"]).expect(0);
    assert!(shown.stdout.contains("\"state\":\"done\""), "{}", shown.stdout);
}

#[test]
fn each_request_is_answered_in_its_own_generation() {
    let home = Home::new(On::Sqlite);
    let mut client = Client::start(&home, &["mcp"], None);
    let found = client.ask("server/discover", alone(json!({})))["result"].clone();
    assert_eq!(found["supportedVersions"][0], "2026-07-28", "{found}");
    assert!(found["supportedVersions"].as_array().unwrap().contains(&json!("2025-11-25")), "{found}");
    assert_eq!(found["capabilities"]["tools"]["listChanged"], false, "{found}");
    assert_eq!(found["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "leasehold", "{found}");
    let listed = client.ask("tools/list", alone(json!({})))["result"].clone();
    for result in [&found, &listed] {
        assert_eq!((&result["resultType"], &result["cacheScope"]), (&json!("complete"), &json!("public")), "{result}");
        assert!(result["ttlMs"].as_u64().is_some_and(|ms| ms > 0), "{result}");
    }
    // Whoever asks without naming a version is told which there are.
    assert_eq!(client.ask("server/discover", json!({}))["result"], found);
    let code = |answer: &Value| answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("{answer}"));
    for gone in ["ping", "logging/setLevel", "subscriptions/listen", "notifications/initialized"] {
        assert_eq!(code(&client.ask(gone, alone(json!({})))), -32601, "{gone}");
    }
    for version in ["2031-01-01", "2025-11-25", ""] {
        for method in ["server/discover", "tools/list", "tools/call", "nothing"] {
            let answer = client.ask(method, json!({ "_meta": { VERSION: version, CAPABILITIES: {} } }));
            assert_eq!(code(&answer), -32022, "{answer}");
            assert_eq!(answer["error"]["data"]["supported"], found["supportedVersions"], "{answer}");
            assert_eq!(answer["error"]["data"]["requested"], version, "{answer}");
        }
    }
    for meta in [
        json!({ VERSION: 7, CAPABILITIES: {} }),
        json!({ VERSION: null, CAPABILITIES: {} }),
        json!({ VERSION: "2026-07-28" }),
        json!({ VERSION: "2026-07-28", CAPABILITIES: [] }),
    ] {
        let answer = client.ask("tools/list", json!({ "_meta": meta }));
        assert_eq!(code(&answer), -32602, "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains("io.modelcontextprotocol/"), "{answer}");
    }
    // A handshake is one of the older versions, whatever is asked for, and its answers have nothing of the newer.
    let hello = client.ask("initialize", alone(json!({ "protocolVersion": "2026-07-28", "capabilities": {} })));
    assert_eq!(hello["result"]["protocolVersion"], "2025-11-25", "{hello}");
    let tools = client.ask("tools/list", json!({ "_meta": { "progressToken": 1 } }))["result"].clone();
    assert_eq!(tools.as_object().unwrap().keys().collect::<Vec<_>>(), ["tools"], "{tools}");
    let called = client.call("lease_list", json!({}));
    assert!(called.get("resultType").is_none() && called.get("_meta").is_none(), "{called}");
    assert_eq!(client.ask("ping", json!({}))["result"], json!({}));
}

#[test]
fn without_a_session_a_lease_lives_by_its_token_alone() {
    let home = Home::new(On::Sqlite);
    let mut client = Client::start(&home, &["mcp"], None);
    let tools = client.ask("tools/list", alone(json!({})))["result"]["tools"].clone();
    let find = |name: &str| tools.as_array().unwrap().iter().find(|tool| tool["name"] == name).unwrap().clone();
    assert!(find("lease_acquire")["description"].as_str().unwrap().contains("NOT renewed"), "{tools}");
    assert_eq!(find("lease_renew")["inputSchema"]["required"], json!(["token"]), "{tools}");
    assert!(find("lease_renew")["inputSchema"]["properties"].get("lease").is_none(), "{tools}");
    let short = client.call_alone("lease_acquire", json!({ "lease": "short", "ttl": "3s" }));
    assert_eq!(short["structuredContent"]["renewed"], false, "{short}");
    // The server lives on and does not renew: somebody else gets it.
    let mut rival = Client::start(&home, &["mcp"], None);
    let taken = rival.call_alone("lease_acquire", json!({ "lease": "short", "ttl": "1m", "wait": "60s" }));
    assert_eq!(taken["structuredContent"]["status"], "granted", "{taken}");
    let late = client.call_alone("lease_renew", json!({ "token": short["structuredContent"]["token"] }));
    assert_eq!((&late["isError"], &late["structuredContent"]["kind"]), (&json!(true), &json!("lost")), "{late}");
    assert!(late["content"][0]["text"].as_str().unwrap().contains("stop the work"), "{late}");
    // A server that ends takes nothing with it: neither leases nor items.
    home.done(&["queue", "add", "mail", "--text", "x"]).expect(0);
    let long = client.call_alone("lease_acquire", json!({ "lease": "long", "ttl": "10m" }));
    let claimed = client.call_alone("queue_claim", json!({ "queue": "mail", "ttl": "10m" }));
    // What was acquired in a session on the same connection does end with it.
    client.shake_hands();
    client.call("lease_acquire", json!({ "lease": "kept", "ttl": "10m" }));
    let by_name = client.call_alone("lease_renew", json!({ "lease": "kept" }));
    assert!(by_name["content"][0]["text"].as_str().unwrap().contains("`token` (needed)"), "{by_name}");
    assert_eq!(client.end(), Some(0));
    assert_eq!((&home.show("long")["state"], &home.show("kept")["state"]), (&json!("held"), &json!("free")));
    let item = claimed["structuredContent"]["output"].clone();
    let shown = home.done(&["queue", "show", "mail", item["id"].as_str().unwrap(), "--json"]).expect(0);
    assert!(shown.stdout.contains("\"state\":\"claimed\""), "{}", shown.stdout);
    // The next server goes on with the tokens.
    let mut next = Client::start(&home, &["mcp"], None);
    let token = long["structuredContent"]["token"].clone();
    let renewed = next.call_alone("lease_renew", json!({ "token": token }));
    assert_eq!(renewed["structuredContent"]["status"], "held", "{renewed}");
    for status in ["released", "already_released"] {
        let released = next.call_alone("lease_release", json!({ "token": token }));
        assert_eq!(released["structuredContent"]["status"], status, "{released}");
    }
    let done = next.call_alone("queue_complete", json!({ "queue": "mail", "token": item["token"] }));
    assert_eq!(done["isError"], false, "{done}");
}

#[test]
fn releasing_twice_is_no_error() {
    let home = Home::new(On::Sqlite);
    let mut client = Client::start(&home, &["mcp"], None);
    client.shake_hands();
    let token = client.call("lease_acquire", json!({ "lease": "job" }))["structuredContent"]["token"].clone();
    let release = |client: &mut Client, arguments: Value| {
        let answer = client.call("lease_release", arguments);
        assert_eq!(answer["isError"], false, "{answer}");
        answer["structuredContent"]["status"].as_str().unwrap().to_owned()
    };
    assert_eq!(release(&mut client, json!({ "lease": "job" })), "released");
    assert_eq!(release(&mut client, json!({ "lease": "job" })), "already_released");
    assert_eq!(release(&mut client, json!({ "token": token })), "already_released");
    // Also when somebody else has it since.
    home.done(&["acquire", "job"]).expect(0);
    assert_eq!(release(&mut client, json!({ "lease": "job" })), "already_released");
    assert_eq!(release(&mut client, json!({ "token": token })), "already_released");
    assert_eq!(home.show("job")["state"], "held");
}

#[test]
fn unknown_arguments_are_answered_with_the_known_ones() {
    let home = Home::new(On::Sqlite);
    let mut client = Client::start(&home, &["mcp"], None);
    client.shake_hands();
    let mut told = |tool: &str, arguments: Value| {
        let answer = client.call(tool, arguments);
        assert_eq!(answer["isError"], true, "{answer}");
        answer["content"][0]["text"].as_str().unwrap().to_owned()
    };
    let known = "it takes `lease` (needed), `ttl`, `label`, `wait`";
    for arguments in [json!({ "name": "x" }), json!({ "lease": "x", "timeout": "5s" }), json!({})] {
        let text = told("lease_acquire", arguments);
        assert!(text.contains(known), "{text}");
    }
    let text = told("queue_claim", json!({ "queue": "mail", "wait": "2h" }));
    assert!(text.contains("at most 90s"), "{text}");
    assert_eq!(home.done(&["ls", "--json", "--all"]).expect(0).stdout.trim(), "[]", "nothing was acquired");
}

#[test]
fn calls_of_one_lease_are_carried_out_in_order() {
    let home = Home::new(On::Sqlite);
    let mut client = Client::start(&home, &["mcp"], None);
    client.shake_hands();
    let (mut lines, mut id) = (String::new(), 100);
    for lease in ["a", "b", "c", "d", "e", "f"] {
        for (tool, arguments) in [
            ("lease_acquire", json!({ "lease": lease })),
            ("fenced_write", json!({ "lease": lease, "file": lease, "content": "x" })),
            ("lease_release", json!({ "lease": lease })),
        ] {
            let params = json!({ "name": tool, "arguments": arguments });
            lines += &format!("{}\n", json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params }));
            id += 1;
        }
    }
    client.send(lines.as_bytes());
    for _ in 100..id {
        let answer = client.line();
        assert_eq!(answer["result"]["isError"], false, "{answer}");
    }
}

#[test]
fn a_lease_outlives_its_ttl_while_the_server_runs() {
    let home = Home::new(On::Sqlite);
    let mut client = Client::start(&home, &["mcp"], None);
    client.shake_hands();
    client.call("lease_acquire", json!({ "lease": "short", "ttl": "1s" }));
    let mut rival = Client::start(&home, &["mcp"], None);
    rival.shake_hands();
    // Waits for two TTLs, and is refused: it was renewed.
    let held = rival.call("lease_acquire", json!({ "lease": "short", "wait": "2s" }));
    assert_eq!(held["structuredContent"]["status"], "held", "{held}");
}

#[test]
fn wrong_arguments_are_results_that_say_what_is_wrong() {
    let home = Home::new(On::Sqlite);
    std::fs::create_dir(home.path("inside")).unwrap();
    std::os::unix::fs::symlink("/etc", home.path("inside/etc")).unwrap();
    std::os::unix::fs::symlink("/tmp/outside", home.path("inside/link")).unwrap();
    let mut client = Client::start(&home, &["mcp", "--root", "inside"], None);
    client.shake_hands();
    client.call("lease_acquire", json!({ "lease": "job" }));
    let write = |file: &str| json!({ "file": file, "content": "x", "lease": "job" });
    let cases = [
        ("lease_acquire", json!({})),
        ("lease_acquire", json!({ "lease": "" })),
        ("lease_acquire", json!({ "lease": "a b" })),
        ("lease_acquire", json!({ "lease": "../x" })),
        ("lease_acquire", json!({ "lease": 7 })),
        ("lease_acquire", json!({ "lease": ["x"] })),
        ("lease_acquire", json!({ "lease": "x", "ttl": "never" })),
        ("lease_acquire", json!({ "lease": "x", "ttl": "1ms" })),
        ("lease_acquire", json!({ "lease": "x", "wait": "91s" })),
        ("lease_acquire", json!({ "lease": "x", "label": "a\nb" })),
        ("lease_acquire", json!({ "lease": "x", "unknown": 1 })),
        ("lease_acquire", json!({ "lease": "job" })),
        ("lease_acquire", json!([])),
        ("lease_acquire", json!("x")),
        ("lease_renew", json!({})),
        ("lease_renew", json!({ "token": "job:1" })),
        ("lease_release", json!({ "lease": "never-held" })),
        ("lease_release", json!({ "lease": "job", "failed": "yes" })),
        ("lease_show", json!({ "lease": "a:b" })),
        ("lease_list", json!({ "limit": -1 })),
        ("fenced_write", write("/etc/passwd")),
        ("fenced_write", write("../out")),
        ("fenced_write", write("a/../../out")),
        ("fenced_write", write("etc/passwd")),
        ("fenced_write", write("link")),
        ("fenced_write", write("")),
        ("fenced_write", write("a\u{0}b")),
        ("fenced_write", write("missing/out")),
        ("fenced_write", json!({ "file": "out", "lease": "job" })),
        ("fenced_write", json!({ "file": "out", "content": "x" })),
        ("fenced_write", json!({ "file": "out", "content": "x", "token": "nonsense" })),
    ];
    for (tool, arguments) in &cases {
        let answer = client.call(tool, arguments.clone());
        assert_eq!(answer["isError"], true, "{tool} {arguments}: {answer}");
        let text = answer["content"][0]["text"].as_str().unwrap();
        assert!(!text.contains('\n') && text.len() > 15, "{tool} {arguments}: {text}");
    }
    assert!(!std::path::Path::new("/tmp/outside").exists());
    assert!(!home.path("out").exists());
}

/// Lines that are no requests; each gets an error reply, or none if none is due, and the server goes on.
#[test]
fn hostile_lines_are_answered_and_survived() {
    let home = Home::new(On::Sqlite);
    let mut client = Client::start(&home, &["mcp"], None);
    client.shake_hands();
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    let bad: Vec<Vec<u8>> = [
        "nonsense",
        "{",
        "}",
        "[]",
        "[1]",
        "1",
        "null",
        "true",
        "\"x\"",
        "{}",
        "{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"ping\"}",
        "{\"jsonrpc\":\"2.0\",\"id\":1}",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":7}",
        "{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"ping\"}",
        "{\"jsonrpc\":\"2.0\",\"id\":[1],\"method\":\"ping\"}",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"nothing\"}",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\"}",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":[]}",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":7}}",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"no-such\"}}",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"} trailing",
        "{\"jsonrpc\":\"2.0\",\"id\":NaN,\"method\":\"ping\"}",
        "\u{feff}{}",
        &deep,
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .chain([b"\xff\xfe{}".to_vec(), b"{\"a\":\"\xff\"}".to_vec(), b"\0\0\0".to_vec(), vec![b'x'; 5 * 1024 * 1024]])
    .collect();
    for line in &bad {
        client.send(&[line, &b"\n"[..]].concat());
        let answer = client.line();
        assert!(answer["error"]["code"].is_i64(), "{}: {answer}", String::from_utf8_lossy(&line[..line.len().min(80)]));
    }
    // No answer is due to any of these.
    for line in
        ["", "   ", "{\"jsonrpc\":\"2.0\",\"method\":\"nothing\"}", "{\"jsonrpc\":\"2.0\",\"id\":9,\"result\":{}}"]
    {
        client.send(format!("{line}\n").as_bytes());
    }
    assert_eq!(client.ask("ping", json!({}))["result"], json!({}));
    client.send(b"{\"jsonrpc\":\"2.0\",\"id\":\"text\",\"method\":\"ping\"}\r\n");
    assert_eq!(client.line()["id"], "text");
}

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
fn a_store_that_went_back_is_told_apart() {
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
