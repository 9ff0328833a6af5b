//! Who is let in, and how keys are made and ended.

use crate::common::{Home, On, eventually};
use crate::rig::{get, get_as, id, key, printed_key, raw, serve, start};
use serde_json::Value;
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

#[test]
fn the_first_start_prints_one_key_and_later_ones_none() {
    let home = Home::new(On::Sqlite);
    let server = serve(&home, &[]);
    let first = printed_key(&home.read(&server.log)).expect("it prints a key");
    let seen = get_as(server.address, "/v1/ns/anything", &first);
    assert_eq!(seen.status, 200, "{seen:?}");
    assert_eq!(seen.json()["key"]["allows"].as_array().unwrap().len(), 5);
    let second = start(&home, &["--listen", "127.0.0.1:0"], "b");
    assert_eq!(printed_key(&home.read(&second.log)), None);
    assert_eq!(get_as(second.address, "/v1/ns/anything", &first).status, 200, "every server knows it");
}

#[test]
fn the_command_that_the_page_names_for_a_key_makes_one_that_it_takes() {
    let home = Home::new(On::Sqlite);
    let server = serve(&home, &[]);
    let page = get(server.address, "/", &["Accept: text/html"]).body;
    let command = page.split("<code>leasehold ").nth(1).and_then(|rest| rest.split("</code>").next()).unwrap();
    let key = home.done(&command.split(' ').collect::<Vec<_>>()).expect(0).stdout;
    assert!(key.starts_with("lh_r_"), "`{command}` is for a key that only reads");
    assert_eq!(get_as(server.address, "/v1/ns/default", key.trim()).status, 200);
}

#[test]
fn of_three_servers_that_start_at_once_one_prints_a_key() {
    for on in [On::Sqlite, On::Dir] {
        let home = Home::new(on);
        let starts: Vec<_> = std::thread::scope(|scope| {
            let starts: Vec<_> = ["a", "b", "c"]
                .map(|name| {
                    let home = &home;
                    scope.spawn(move || start(home, &["--listen", "127.0.0.1:0"], name))
                })
                .into_iter()
                .collect();
            starts.into_iter().map(|start| start.join().unwrap()).collect()
        });
        let printed: Vec<_> = starts.iter().filter_map(|server| printed_key(&home.read(&server.log))).collect();
        assert_eq!(printed.len(), 1, "{on:?}");
        for server in &starts {
            assert_eq!(get_as(server.address, "/v1/ns/ci", &printed[0]).status, 200);
        }
    }
}

#[test]
fn the_first_key_can_go_to_a_file_that_only_its_owner_reads() {
    let home = Home::new(On::Sqlite);
    let server = serve(&home, &["--bootstrap-key-file", "first.key"]);
    let path = home.path("first.key");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let key = home.read("first.key");
    assert_eq!(get_as(server.address, "/v1/ns/ci", key.trim()).status, 200);
    assert_eq!(printed_key(&home.read(&server.log)), None, "and nowhere else");
}

#[test]
fn where_the_first_key_cannot_be_written_none_is_left_that_counts() {
    let home = Home::new(On::Sqlite);
    let listed = || home.done(&["key", "ls", "--json"]).expect(0).stdout;
    std::fs::write(home.path("taken"), "mine").unwrap();
    let start = ["serve", "--listen", "127.0.0.1:0", "--bootstrap-key-file"];
    for (path, says) in [("taken", "it must be a new one"), ("missing/key", "none was made")] {
        let refused = home.done(&[&start[..], &[path]].concat());
        assert!(refused.code != 0 && refused.code != 101 && refused.stderr.contains(says), "{refused:?}");
        assert_eq!(listed().trim(), "[]", "{path}");
    }
    assert_eq!(home.read("taken"), "mine");
    // Nobody can read what goes to a full disk.
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = home.leasehold(&["serve", "--listen", "127.0.0.1:0"]);
    let status = command.stdin(Stdio::null()).stdout(full()).stderr(full()).status().unwrap();
    assert!(status.code().is_some_and(|code| code != 0 && code != 101), "{status:?}");
    let keys: Value = serde_json::from_str(&listed()).unwrap();
    let states: Vec<_> = keys.as_array().unwrap().iter().map(|key| key["state"].clone()).collect();
    assert_eq!(states, ["revoked"]);
    // And with a key there, the file is nobody's business.
    let again = serve(&home, &["--bootstrap-key-file", "taken"]);
    assert_eq!(get(again.address, "/livez", &[]).status, 200);
}

#[test]
fn of_four_servers_that_start_at_once_with_one_file_all_start_and_one_key_is_in_it() {
    let home = Home::new(On::Sqlite);
    let starts: Vec<_> = std::thread::scope(|scope| {
        let starts: Vec<_> = ["a", "b", "c", "d"]
            .map(|name| {
                let home = &home;
                let arguments = ["--listen", "127.0.0.1:0", "--bootstrap-key-file", "first.key"];
                scope.spawn(move || start(home, &arguments, name))
            })
            .into_iter()
            .collect();
        starts.into_iter().map(|start| start.join().unwrap()).collect()
    });
    let key = home.read("first.key");
    for server in &starts {
        assert_eq!(get_as(server.address, "/v1/ns/ci", key.trim()).status, 200);
    }
    let left =
        std::fs::read_dir(home.path("")).unwrap().filter_map(|file| file.unwrap().file_name().into_string().ok());
    assert_eq!(left.filter(|name| name.starts_with("first.key")).collect::<Vec<_>>(), ["first.key"]);
}

#[test]
fn a_start_that_was_killed_while_it_made_the_first_key_can_be_repeated() {
    let (home, fresh) = (Home::new(On::Sqlite), Home::new(On::Sqlite));
    let arguments = ["--bootstrap-key-file", "first.key"];
    drop(serve(&home, &arguments));
    let key = home.read("first.key");
    // Killed when the key counted and its file had no name yet, and before the key counted.
    for at in [&home, &fresh] {
        std::fs::rename(home.path("first.key"), at.path("first.key.pending")).unwrap();
        let server = serve(at, &arguments);
        assert_eq!(at.read("first.key"), key);
        assert_eq!(get_as(server.address, "/v1/ns/ci", key.trim()).status, 200);
        assert!(!at.path("first.key.pending").exists());
    }
}

#[test]
fn a_key_opens_its_own_namespace_only() {
    let home = Home::new(On::Sqlite);
    let server = serve(&home, &[]);
    let mine = key(&home, &["--namespace", "ci", "--name", "deploy/*", "--allow", "read,hold"]);
    assert!(mine.starts_with("lh_w_") && mine.len() == 72, "{}", mine.len());
    let seen = get_as(server.address, "/v1/ns/ci", &mine).json();
    assert_eq!(seen["key"]["names"], serde_json::json!(["deploy/*"]));
    for other in ["default", "ci-2", "leasehold-server"] {
        let refused = get_as(server.address, &format!("/v1/ns/{other}"), &mine);
        assert_eq!((refused.status, refused.kind().as_str()), (403, "not_allowed"), "{other}");
    }
    let first = printed_key(&home.read(&server.log)).unwrap();
    assert_eq!(get_as(server.address, "/v1/ns/leasehold-server", &first).status, 403, "that is nobody's");
    for wrong in ["Team", "a%2Fb", "%00", "..%2f", "a%0d%0ab", &"x".repeat(41)] {
        let refused = get_as(server.address, &format!("/v1/ns/{wrong}"), &first);
        assert_eq!(refused.status, 400, "{wrong}: {refused:?}");
    }
}

#[test]
fn what_is_wrong_with_a_key_is_distinguished() {
    let home = Home::new(On::Sqlite);
    let server = serve(&home, &[]);
    let [good, revoked, brief] = ["1h", "1h", "1s"].map(|lasts| key(&home, &["--allow", "read", "--expires", lasts]));
    home.done(&["key", "revoke", id(&revoked), "--why", "a test"]).expect(0);
    let elsewhere = key(&Home::new(On::Sqlite), &["--allow", "read"]);
    let path = "/v1/ns/default";
    assert_eq!(get_as(server.address, path, &good).status, 200);
    let mistyped = format!("{}{}", &good[..71], if good.ends_with('a') { 'e' } else { 'a' });
    for (sent, kind) in [(&mistyped, "key_malformed"), (&elsewhere, "key_unknown"), (&revoked, "key_revoked")] {
        let refused = get_as(server.address, path, sent);
        assert_eq!((refused.status, refused.kind().as_str()), (401, kind));
        assert!(refused.header("www-authenticate").unwrap().contains("invalid_token"), "{refused:?}");
    }
    eventually("it expires", || get_as(server.address, path, &brief).status == 401);
    assert_eq!(get_as(server.address, path, &brief).kind(), "key_expired");
    let missing = get(server.address, path, &[]);
    assert_eq!((missing.status, missing.kind().as_str()), (401, "key_missing"));
    assert_eq!(missing.header("www-authenticate"), Some("Bearer realm=\"leasehold\""));
    for wrong in ["Basic eDp5", "Bearer", "lh_r_x", &format!("Token {good}")] {
        let refused = get(server.address, path, &[&format!("authorization: {wrong}")]);
        assert_eq!((refused.status, refused.kind().as_str()), (401, "key_malformed"), "{wrong}");
    }
    let twice = format!("authorization: Bearer {good}");
    assert_eq!(get(server.address, path, &[&twice, &twice]).kind(), "key_malformed");
}

#[test]
fn a_revocation_counts_on_every_server_within_seconds() {
    let home = Home::new(On::Sqlite);
    let servers = ["a", "b"].map(|name| start(&home, &["--listen", "127.0.0.1:0"], name));
    let mine = key(&home, &["--allow", "read"]);
    for server in &servers {
        assert_eq!(get_as(server.address, "/v1/ns/default", &mine).status, 200);
    }
    home.done(&["key", "revoke", id(&mine), "--why", "the laptop was stolen", "--by", "ann"]).expect(0);
    for server in &servers {
        let limit = std::time::Duration::from_secs(5);
        crate::common::within(limit, "it is refused", || get_as(server.address, "/v1/ns/default", &mine).status == 401);
    }
    let listed: Value = serde_json::from_str(&home.done(&["key", "ls", "--json"]).expect(0).stdout).unwrap();
    let listed = listed.as_array().unwrap().iter().find(|key| key["id"] == id(&mine)).unwrap().clone();
    assert_eq!((&listed["state"], &listed["revoked"]["by"]), (&"revoked".into(), &"ann".into()));
    assert_eq!(listed["revoked"]["why"], "the laptop was stolen");
}

#[test]
fn a_rotated_key_and_its_successor_count_both_for_a_while() {
    let home = Home::new(On::Dir);
    let server = serve(&home, &[]);
    let old = key(&home, &["--namespace", "ci", "--allow", "read"]);
    let new = home.done(&["key", "rotate", id(&old), "--overlap", "1h"]).expect(0).stdout.trim().to_owned();
    for key in [&old, &new] {
        assert_eq!(get_as(server.address, "/v1/ns/ci", key).status, 200);
    }
    let none = home.done(&["key", "rotate", id(&new), "--overlap", "0s"]).expect(0).stdout.trim().to_owned();
    eventually("without an overlap it is over", || get_as(server.address, "/v1/ns/ci", &new).kind() == "key_expired");
    assert_eq!(get_as(server.address, "/v1/ns/ci", &none).status, 200);
}

#[test]
fn keys_are_listed_with_their_last_use_and_never_their_text() {
    let home = Home::new(On::Sqlite);
    let server = serve(&home, &["--log", "trace"]);
    let mine = key(&home, &["--namespace", "ci", "--allow", "read", "--expires", "30d"]);
    let table = || home.done(&["key", "ls"]).expect(0).stdout;
    let row = |table: &str| table.lines().find(|line| line.starts_with(id(&mine))).unwrap().to_owned();
    assert!(row(&table()).ends_with("never"), "{}", table());
    assert_eq!(get_as(server.address, "/v1/ns/ci?secret=hunter2", &mine).status, 200);
    eventually("its use is recorded", || !row(&table()).ends_with("never"));
    let first = printed_key(&home.read(&server.log)).unwrap();
    let json = home.done(&["key", "ls", "--json"]).expect(0).stdout;
    for key in [&mine, &first] {
        assert!(!table().contains(&key[13..]) && !json.contains(&key[13..]));
    }
    eventually("the request is logged", || home.read(&server.log).contains("GET /v1/ns/{namespace} 200"));
    let log = home.read(&server.log);
    assert!(!log.contains(&mine[13..]) && !log.contains("hunter2") && !log.contains("/v1/ns/ci"), "{log}");
}

#[test]
fn wrong_words_about_keys_are_refused_and_change_nothing() {
    let home = Home::new(On::Sqlite);
    for (args, says) in [
        (&["--allow", "write"][..], "use read, hold, work, operate or admin"),
        (&["--allow", "read", "--namespace", "leasehold-server"], "managed with `leasehold key`"),
        (&["--allow", "read", "--name", "a b"], "`*` stands for any characters"),
        (&["--allow", "read", "--expires", "0s"], "use more than nothing"),
        (&["--allow", "read", "--expires", "soon"], "soon"),
    ] {
        let done = home.done(&[&["key", "create", "--label", "x"], args].concat()).expect(64);
        assert!(done.stderr.contains(says) && done.stdout.is_empty(), "{done:?}");
    }
    let mine = key(&home, &["--allow", "read"]);
    let pasted = home.done(&["key", "revoke", &mine, "--why", "x"]).expect(64).stderr;
    assert!(pasted.contains("that is a key itself") && !pasted.contains(&mine[13..]), "{pasted}");
    let missing = home.done(&["key", "revoke", "aaaaaaaa", "--why", "x"]).expect(64).stderr;
    assert!(missing.contains("there is no such key"), "{missing}");
    let namespace = format!("{}?namespace=leasehold-server", home.store);
    for verb in [&["ls"][..], &["key", "ls"], &["acquire", "x"]] {
        let refused = home.done(&[verb, &["--store", &namespace]].concat()).expect(64).stderr;
        assert!(refused.contains("managed with `leasehold key`"), "{refused}");
    }
    let listed: Value = serde_json::from_str(&home.done(&["key", "ls", "--json"]).expect(0).stdout).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 1);
}

#[test]
fn hostile_paths_and_methods_get_a_clear_refusal() {
    let home = Home::new(On::Sqlite);
    let server = serve(&home, &[]);
    for path in ["/v1", "/v1/ns", "/v1/ns/", "//v1/ns/ci", "/v1/../v1/ns/ci", "/V1/ns/ci", "/metrics", "/v1/ns/ci/"] {
        let refused = get(server.address, path, &[]);
        assert_eq!((refused.status, refused.kind().as_str()), (404, "not_found"), "{path}");
    }
    for method in ["POST", "DELETE", "TRACE", "BREW"] {
        let request = format!("{method} /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        let refused = raw(server.address, request.as_bytes()).unwrap();
        assert_eq!((refused.status, refused.kind().as_str()), (405, "method_not_allowed"), "{method}");
    }
    for nonsense in
        ["GET /livez\r\n\r\n", "nonsense\r\n\r\n", "GET /livez HTTP/9.9\r\n\r\n", "GET /li vez HTTP/1.1\r\n\r\n"]
    {
        let status = raw(server.address, nonsense.as_bytes()).map(|answer| answer.status);
        assert!(matches!(status, None | Some(400 | 505)), "{nonsense}: {status:?}");
    }
    // Two lengths, or a length and pieces: how much belongs to the request would be anybody's guess.
    for smuggled in [
        "POST /v1/ns/ci HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
        "POST /v1/ns/ci HTTP/1.1\r\nhost: x\r\ntransfer-encoding: xchunked\r\n\r\nabcdef",
    ] {
        let status = raw(server.address, smuggled.as_bytes()).map(|answer| answer.status);
        assert!(matches!(status, None | Some(400)), "{smuggled}: {status:?}");
    }
    assert_eq!(get(server.address, "/livez", &[]).status, 200, "it lives on");
}

#[test]
fn the_address_of_the_store_can_be_in_a_file() {
    let home = Home::new(On::Sqlite);
    std::fs::write(home.path("store"), format!("{}\n", home.store)).unwrap();
    let mine = key(&home, &["--allow", "read"]);
    let by_file = |path: &str| {
        let mut command = home.leasehold(&["key", "ls", "--json"]);
        crate::common::Done::from(
            command.env("LEASEHOLD_STORE", "").env("LEASEHOLD_STORE_FILE", path).output().unwrap(),
        )
    };
    assert!(by_file("store").expect(0).stdout.contains(id(&mine)));
    let missing = by_file("missing").expect(64).stderr;
    assert!(missing.contains("LEASEHOLD_STORE_FILE") && missing.contains("missing"), "{missing}");
}

#[test]
fn the_json_of_keys_has_the_documented_fields() {
    let home = Home::new(On::Sqlite);
    let page = include_str!("../../../../docs/server.md").split("## JSON of keys").nth(1).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let documented: BTreeSet<String> = rows.map(String::from).collect();
    let fields = |args: &[&str]| -> BTreeSet<String> {
        let shown: Value = serde_json::from_str(&home.done(&[args, &["--json"]].concat()).expect(0).stdout).unwrap();
        let shown = if let Value::Array(all) = shown { all[0].clone() } else { shown };
        shown.as_object().unwrap().keys().cloned().collect()
    };
    assert_eq!(fields(&["key", "create", "--allow", "read", "--label", "x"]), documented);
    let listed = documented.iter().filter(|field| *field != "key").cloned().collect();
    assert_eq!(fields(&["key", "ls"]), listed, "never the key itself");
}

#[test]
fn whoever_has_an_admin_key_and_not_the_store_manages_keys_through_the_server() {
    let home = Home::new(On::Sqlite);
    let server = serve(&home, &[]);
    let admin = key(&home, &["--namespace", "ci", "--name", "deploy/*", "--allow", "read,hold,admin"]);
    let outside = key(&home, &["--namespace", "ci", "--allow", "read"]);
    let store = format!("leasehold+http://{}/ci", server.address);
    let remote = |args: &[&str]| {
        let mut command = home.leasehold(args);
        crate::common::Done::from(command.env("LEASEHOLD_STORE", &store).env("LEASEHOLD_KEY", &admin).output().unwrap())
    };
    let create = ["key", "create", "--label", "CI runners", "--name", "deploy/web", "--expires", "30d", "--allow"];
    let made = remote(&[&create[..], &["hold"]].concat()).expect(0);
    let made = made.stdout.trim();
    assert!(made.starts_with("lh_w_"), "{made}");
    assert_eq!(get_as(server.address, "/v1/ns/ci", made).json()["key"]["label"], "CI runners");
    for (more, says) in [
        (&["hold,work"][..], "does not cover hold,work on deploy/web in ci"),
        (&["hold", "--namespace", "*"], "on deploy/web in *"),
        (&["hold", "--name", "other"], "other in ci"),
        (&["hold", "--by", "ann"], "a server names the key that asks"),
    ] {
        let refused = remote(&[&create[..], more].concat());
        assert!(refused.code != 0 && refused.stdout.is_empty() && refused.stderr.contains(says), "{refused:?}");
    }
    // The same as whoever has the store sees, but for keys that are for more.
    let listed = |shown: String| -> Vec<Value> { serde_json::from_str(&shown).unwrap() };
    let ours = listed(remote(&["key", "ls", "--json"]).expect(0).stdout);
    let all = listed(home.done(&["key", "ls", "--json"]).expect(0).stdout);
    assert_eq!(ours.iter().map(|key| key["id"].as_str().unwrap()).collect::<Vec<_>>(), [id(&admin), id(made)]);
    assert!(ours.iter().all(|key| all.contains(key)), "{ours:?} {all:?}");
    let table = remote(&["key", "ls"]).expect(0).stdout;
    assert!(table.contains("CI runners") && !table.contains(id(&outside)), "{table}");
    let rotated = remote(&["key", "rotate", id(made), "--overlap", "0s"]).expect(0);
    assert!(rotated.stdout.trim().starts_with("lh_w_") && rotated.stdout.trim() != made, "{rotated:?}");
    let new = rotated.stdout.trim();
    let ended = remote(&["key", "revoke", id(new), "--why", "enough", "--json"]).expect(0).stdout;
    let ended: Value = serde_json::from_str(&ended).unwrap();
    assert_eq!((&ended["state"], &ended["revoked"]["why"]), (&"revoked".into(), &"enough".into()));
    let refused = remote(&["key", "revoke", id(&outside), "--why", "enough"]);
    assert!(refused.code != 0 && refused.stderr.contains("there is no such key"), "{refused:?}");
}

#[test]
fn a_run_outlives_the_key_that_it_began_with() {
    let home = Home::new(On::Sqlite);
    let server = serve(&home, &[]);
    let old = key(&home, &["--namespace", "team", "--allow", "hold"]);
    std::fs::write(home.path("key"), &old).unwrap();
    let mut run =
        home.leasehold(&["run", "long", "--ttl", "3s", "--", "sh", "-c", "while [ ! -e go ]; do sleep 0.1; done"]);
    run.env("LEASEHOLD_STORE", format!("leasehold+http://{}/team", server.address)).env("LEASEHOLD_KEY_FILE", "key");
    let mut run = run.spawn().unwrap();
    let store = format!("{}?namespace=team", home.store);
    let show = || home.done(&["show", "long", "--json", "--store", &store]).stdout;
    eventually("it runs", || show().contains("\"held\""));
    let new = home.done(&["key", "rotate", id(&old), "--overlap", "0s"]).expect(0).stdout;
    std::fs::write(home.path("key"), new).unwrap();
    eventually("the old key is refused", || get_as(server.address, "/v1/ns/team", &old).status == 401);
    // Until it has been renewed for longer than the lease lasts without renewals.
    let deadline = || -> jiff::Timestamp {
        let lease: Value = serde_json::from_str(&show()).unwrap();
        assert_eq!(lease["state"], "held", "{lease}");
        lease["deadline"].as_str().unwrap().parse().unwrap()
    };
    let refused = deadline();
    eventually("it is renewed under the new key", || deadline() > refused + jiff::SignedDuration::from_secs(3));
    home.touch("go");
    assert_eq!(run.wait().unwrap().code(), Some(0));
}
