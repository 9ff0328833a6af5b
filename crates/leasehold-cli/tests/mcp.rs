//! The MCP server, as a real process, spoken to line by line.
#![allow(clippy::unwrap_used)]

mod common;

use common::mcp::{CAPABILITIES, Client, VERSION, alone};
use common::{Home, On};
use serde_json::{Value, json};

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
fn releasing_twice_is_not_an_error() {
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

#[test]
fn a_spool_outside_the_root_is_neither_made_nor_claimed_from() {
    let home = Home::new(On::Sqlite);
    std::fs::create_dir(home.path("root")).unwrap();
    let outside = home.path("outside");
    std::os::unix::fs::symlink(home.folder.path(), home.path("root/link")).unwrap();
    let mut client = Client::start(&home, &["mcp", "--root", home.path("root").to_str().unwrap()], None);
    client.shake_hands();
    for spool in [format!("spool:{}", outside.display()), "spool:../outside".into(), "spool:link/outside".into()] {
        for (tool, arguments) in
            [("queue_add", json!({ "queue": spool, "payload": "x" })), ("queue_claim", json!({ "queue": spool }))]
        {
            let answer = client.call(tool, arguments);
            assert_eq!(answer["isError"], json!(true), "{tool} {spool}: {answer}");
            assert!(answer.to_string().contains("below the server's root folder"), "{answer}");
        }
        assert!(!outside.exists(), "{spool}");
    }
    let inside =
        format!("spool:{}", home.path("root/inside").canonicalize().unwrap_or(home.path("root/inside")).display());
    for spool in ["spool:inside", &inside] {
        let added = client.call("queue_add", json!({ "queue": spool, "payload": "x" }));
        assert_eq!(added["structuredContent"]["status"], "done", "{added}");
    }
    assert!(home.path("root/inside/ready").is_dir());
}
