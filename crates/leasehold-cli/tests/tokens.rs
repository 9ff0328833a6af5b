//! Every verb that takes a token, with a token of a lease, of a queue's item and of a spool's item, in every state that it
//! can be in: one table. The real binary on sqlite.
#![allow(clippy::unwrap_used)]
#![cfg(feature = "http")]

mod common;
#[path = "http/peer.rs"]
#[allow(dead_code)]
mod peer;
#[path = "http/upstream.rs"]
#[allow(dead_code)]
mod upstream;

use common::{Done, Home, On, eventually};
use peer::{once, post};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use upstream::Upstream;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Lease,
    Item,
    SpoolFile,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Live,
    /// Ran out, and nobody has had it since.
    Expired,
    /// Released, or completed.
    Ended,
    /// Taken away by an operator.
    Evicted,
    /// Of the same name, and of another store or spool.
    OtherLineage,
    /// Of a name that this store does not have; of a spool's item, purged.
    OtherStore,
}

const STATES: [State; 6] =
    [State::Live, State::Expired, State::Ended, State::Evicted, State::OtherLineage, State::OtherStore];

/// What a verb answers in each of those states: its exit code, or the HTTP status, and words.
type Row = [(u16, &'static str); 6];

const GUARD: Row = [
    (0, ""),
    (0, "has expired, and nobody newer has come: epochs decide, so this write counts"),
    (12, "was not written"),
    (13, "stale epoch refused"),
    (64, "not this"),
    (64, "was never granted by"),
];
/// The same with --strict.
const STRICT: Row = [
    (0, ""),
    (12, "ran out before it was renewed"),
    (12, "was not written"),
    (13, "stale epoch refused"),
    (64, "not this"),
    (64, "was never granted by"),
];
const GATE: Row =
    [(0, "gate open"), (12, "ran out"), (12, "before"), (13, "stale epoch"), (64, "not this"), (64, "never granted")];
const RENEW: Row = [
    (0, ""),
    (12, "ran out before it was renewed"),
    (12, "before"),
    (12, "held=1 seen=2"),
    (64, "not this"),
    (64, "never granted"),
];
/// Counts by the epoch alone.
const PROGRESS: Row =
    [(0, ""), (0, ""), (12, "before"), (12, "held=1 seen=2"), (64, "not this"), (64, "never granted")];
const RELEASE: Row = [
    (0, ""),
    (0, ""),
    (0, "was already released"),
    (12, "no longer holds the lease"),
    (64, "not this"),
    (64, "never granted"),
];
const RELEASE_ITEM: Row = [
    (64, "leasehold queue complete"),
    (64, "leasehold queue fail"),
    (12, "before"),
    (12, "held=1 seen=2"),
    (64, "not this"),
    (64, "never granted"),
];
const PROXY: Row =
    [(200, ""), (200, ""), (412, "before"), (412, "held=1 seen=2"), (403, "not this"), (403, "never granted")];
/// 1 where the call was refused.
const MCP_GATE: Row =
    [(0, ""), (1, "ran out"), (1, "before"), (1, "held=1 seen=2"), (1, "not this"), (1, "never granted")];
const MCP_RENEW: Row = MCP_GATE;
const MCP_WRITE: Row =
    [(0, ""), (0, ""), (1, "was not written"), (1, "stale epoch"), (1, "not this"), (1, "never granted")];

/// A token, and what the verbs' environment has to say about it.
struct Proof {
    kind: Kind,
    state: State,
    token: String,
    queue: Option<String>,
}

impl Proof {
    fn name(&self) -> String {
        format!("{:?}-{:?}", self.kind, self.state)
    }

    fn command(&self, home: &Home, args: &[&str]) -> Command {
        let mut command = home.leasehold(args);
        command.env("LEASEHOLD_TOKEN", &self.token);
        command.envs(self.queue.as_ref().map(|queue| ("LEASEHOLD_QUEUE", queue)));
        command
    }

    fn done(&self, home: &Home, args: &[&str]) -> Done {
        Done::from(self.command(home, args).output().unwrap())
    }

    #[track_caller]
    fn check(&self, verb: &str, row: &Row, code: u16, said: &str) {
        let at = STATES.iter().position(|state| *state == self.state).unwrap();
        let (expected, words) = row[at];
        assert!(
            code == expected && said.contains(words),
            "{verb} with {}: {code}, want {expected} {words:?}: {said}",
            self.name()
        );
        for wrong in ["leasehold advance queue/", "leasehold advance spool/"] {
            assert!(!said.contains(wrong), "{verb} with {}: {said}", self.name());
        }
        if self.state == State::OtherLineage {
            let lineage = self.token.split(':').nth(2).unwrap();
            let both = said.match_indices("lineage ").count();
            assert!(said.contains(lineage) && both >= 2, "{verb} with {}: {said}", self.name());
        }
    }
}

/// Tokens of one kind, one in each state.
fn proofs(kind: Kind, home: &Home, other: &Home) -> Vec<Proof> {
    let made: Vec<Proof> = STATES.iter().map(|state| proof(kind, *state, home, other)).collect();
    for proof in made.iter().filter(|proof| proof.state == State::Expired) {
        eventually("it runs out", || proof.done(home, &["gate", "x", "--", "true"]).code == 12);
    }
    made
}

fn proof(kind: Kind, state: State, home: &Home, other: &Home) -> Proof {
    let ttl = if state == State::Expired { "1s" } else { "1h" };
    let name = format!("{state:?}").to_lowercase();
    if kind == Kind::Lease {
        let acquire = |home: &Home| home.done(&["acquire", &name, "--ttl", ttl]).expect(0).stdout.trim().to_owned();
        let token = match state {
            State::OtherLineage => {
                acquire(home);
                acquire(other)
            }
            State::OtherStore => acquire(other),
            _ => acquire(home),
        };
        match state {
            State::Ended => drop(home.done(&["release", "--token", &token]).expect(0)),
            State::Evicted => drop(home.done(&["revoke", &name, "--why", "drill"]).expect(0)),
            _ => {}
        }
        return Proof { kind, state, token, queue: None };
    }
    let is_spool = kind == Kind::SpoolFile;
    let queue = |home: &Home| if is_spool { format!("spool:{}", home.path(&name).display()) } else { name.clone() };
    let claim = |home: &Home| {
        home.done(&["queue", "add", &queue(home), "--text", "x", "--key", &name]).expect(0);
        home.done(&["queue", "claim", &queue(home), "--ttl", ttl]).expect(0).stdout.trim().to_owned()
    };
    let own = queue(home);
    let id = format!("k.{name}");
    let token = match state {
        State::OtherLineage => {
            claim(home);
            claim(other)
        }
        State::OtherStore if !is_spool => claim(other),
        _ => claim(home),
    };
    match state {
        State::Ended => drop(home.done(&["queue", "complete", &own, "--token", &token]).expect(0)),
        State::Evicted => drop(home.done(&["queue", "cancel", &own, &id, "--why", "drill"]).expect(0)),
        State::OtherStore if is_spool => {
            let claimed = home.path(&name).join("claimed");
            std::fs::remove_dir_all(&claimed).unwrap();
            std::fs::create_dir(claimed).unwrap();
        }
        _ => {}
    }
    Proof { kind, state, token, queue: is_spool.then_some(own) }
}

fn git(home: &Home, args: &[&str]) {
    let done = Command::new("git").args(args).current_dir(home.folder.path()).env("HOME", home.folder.path()).output();
    let done = done.unwrap();
    assert!(done.status.success(), "{args:?}: {done:?}");
}

/// What the guards are to write.
fn lay_out(home: &Home) {
    std::fs::create_dir(home.path("tree")).unwrap();
    std::fs::write(home.path("tree/page"), "page").unwrap();
    home.done(&["sql", "sqlite:app.db", "--init"]).expect(0);
    home.done(&["sql", "sqlite:app.db", "--init", "--print"]).expect(0);
    git(home, &["init", "-q", "-b", "main", "work"]);
    let author = ["-c", "user.name=t", "-c", "user.email=t@t"];
    git(home, &[&["-C", "work"][..], &author, &["commit", "-q", "--allow-empty", "-m", "one"]].concat());
}

fn guards(home: &Home, proof: &Proof) {
    let name = proof.name();
    let guard = |verb: &str, args: &[&str]| {
        // First as it is refused: nothing may have been written by then.
        let strict = proof.done(home, &[&args[..1], &["--strict"], &args[1..]].concat());
        proof.check(&format!("{verb} --strict"), &STRICT, strict.code as u16, &strict.stderr);
        let done = proof.done(home, args);
        proof.check(verb, &GUARD, done.code as u16, &done.stderr);
        if proof.state == State::Live {
            assert!(!strict.stderr.contains("expired") && !done.stderr.contains("expired"), "{verb}: {done:?}");
        }
    };
    let (file, folder, remote) = (format!("{name}.txt"), format!("{name}.d"), format!("{name}.git"));
    guard("write", &["write", &file, "--from", "tree/page"]);
    guard("publish", &["publish", "tree", &folder]);
    guard("sql", &["sql", "sqlite:app.db", "--resource", &name, "-c", "SELECT 1"]);
    git(home, &["init", "-q", "--bare", &remote]);
    guard("push", &["push", "--repo", "work", &home.path(&remote).display().to_string(), "main"]);
    let wrote = GUARD[STATES.iter().position(|state| *state == proof.state).unwrap()].0 == 0;
    assert_eq!(home.path(&file).exists(), wrote, "{name}");
    assert_eq!(home.path(&folder).exists(), wrote, "{name}");
}

fn verbs(home: &Home, proof: &Proof) {
    for (args, row) in [
        (&["gate", "deploy", "--", "true"][..], &GATE),
        (&["gate", "deploy", "--measure", "--", "true"], &GATE),
        (&["renew"], &RENEW),
        (&["renew", "--json"], &RENEW),
        (&["progress", "half", "--checkpoint", "7"], &PROGRESS),
    ] {
        let done = proof.done(home, args);
        proof.check(args[0], row, done.code as u16, &done.stderr);
        if proof.state == State::Live && args.contains(&"--json") {
            let told: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
            assert_eq!(told["epoch"], 1, "{told}");
        }
    }
}

/// What a client of an HTTP service behind a fence is told.
fn proxy(home: &Home, proof: &Proof) {
    let upstream = Upstream::start();
    let (name, url) = (proof.name(), upstream.url());
    let mut args = vec!["proxy", "--listen", "127.0.0.1:0", "--upstream", &url, "--resource", &name, "--json"];
    if let Some(queue) = &proof.queue {
        args.extend(["--spool", queue]);
    }
    let mut child = home.leasehold(&args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let running = common::Running::from(child);
    let told: serde_json::Value = serde_json::from_str(&line).unwrap();
    let address = told["listen"].as_str().unwrap().parse().unwrap();
    let health = b"GET /.well-known/leasehold/health HTTP/1.1\r\nHost: x\r\n\r\n";
    eventually("the proxy is active", || once(address, health).unwrap().status == 200);
    let answer = once(address, &post("/write", &proof.token, b"x")).unwrap();
    proof.check("proxy", &PROXY, answer.status, &answer.body);
    assert_eq!(upstream.applied().len(), usize::from(answer.status == 200));
    drop(running);
}

/// What an MCP client is told for each of these requests, by a server that ends with its input.
fn ask(mut command: Command, lines: &[serde_json::Value]) -> Vec<serde_json::Value> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    for line in lines {
        input.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
    drop(input);
    let output = child.wait_with_output().unwrap();
    let mut answers: Vec<serde_json::Value> =
        String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    answers.sort_by_key(|answer| answer["id"].as_u64());
    answers
}

fn call(id: u64, tool: &str, arguments: &serde_json::Value) -> serde_json::Value {
    let params = serde_json::json!({ "name": tool, "arguments": arguments });
    serde_json::json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params })
}

fn mcp(home: &Home, proof: &Proof) {
    let name = proof.name();
    let gate = proof.command(home, &["mcp-gate", "--guard", &name, "--", "cat"]);
    let answers = ask(gate, &[call(1, "write_file", &serde_json::json!({}))]);
    let refused = answers[0]["result"]["isError"] == true;
    assert!(refused || answers[0]["method"] == "tools/call", "{answers:?}");
    proof.check("mcp-gate", &MCP_GATE, refused.into(), &answers[0].to_string());

    let token = &proof.token;
    let arguments = serde_json::json!({ "token": token, "file": format!("{name}.mcp"), "content": "x" });
    let answers = ask(
        proof.command(home, &["mcp"]),
        &[call(1, "lease_renew", &serde_json::json!({ "token": token })), call(2, "fenced_write", &arguments)],
    );
    for (answer, (verb, row)) in answers.iter().zip([("lease_renew", &MCP_RENEW), ("fenced_write", &MCP_WRITE)]) {
        let refused = answer["result"]["isError"] == true;
        assert!(refused || answer["result"]["isError"] == false, "{answer}");
        proof.check(verb, row, refused.into(), &answer.to_string());
    }
}

/// Last, for it ends what it is given.
fn release(home: &Home, proof: &Proof) {
    let row = if proof.kind == Kind::Lease { &RELEASE } else { &RELEASE_ITEM };
    let done = proof.done(home, &["release"]);
    proof.check("release", row, done.code as u16, &done.stderr);
}

fn every_verb(kind: Kind) {
    let (home, other) = (Home::new(On::Sqlite), Home::new(On::Sqlite));
    lay_out(&home);
    for proof in proofs(kind, &home, &other) {
        guards(&home, &proof);
        verbs(&home, &proof);
        proxy(&home, &proof);
        mcp(&home, &proof);
        release(&home, &proof);
    }
}

#[test]
fn every_verb_knows_every_state_of_a_lease() {
    every_verb(Kind::Lease);
}

#[test]
fn every_verb_knows_every_state_of_a_queues_item() {
    every_verb(Kind::Item);
}

#[test]
fn every_verb_knows_every_state_of_a_spools_item() {
    every_verb(Kind::SpoolFile);
}

#[cfg(feature = "full")]
#[test]
fn put_knows_every_state_of_every_token() {
    let server = leasehold_testbed::moto();
    for kind in [Kind::Lease, Kind::Item, Kind::SpoolFile] {
        let (home, other) = (Home::new(On::Sqlite), Home::new(On::Sqlite));
        std::fs::write(home.path("report.json"), "{}").unwrap();
        for proof in proofs(kind, &home, &other) {
            let (bucket, name, port) = (leasehold_testbed::BUCKET, proof.name(), server.port());
            let url = format!("s3://id:secret@{bucket}/{name}.json?endpoint=http://127.0.0.1:{port}");
            let strict = proof.done(&home, &["put", "--strict", "report.json", &url]);
            proof.check("put --strict", &STRICT, strict.code as u16, &strict.stderr);
            let done = proof.done(&home, &["put", "report.json", &url]);
            proof.check("put", &GUARD, done.code as u16, &done.stderr);
        }
    }
}

#[test]
fn inside_work_every_verb_needs_no_flags() {
    for is_spool in [false, true] {
        let home = Home::new(On::Sqlite);
        lay_out(&home);
        git(&home, &["init", "-q", "--bare", "remote.git"]);
        let queue = if is_spool { format!("spool:{}", home.path("spool").display()) } else { "mail".to_owned() };
        home.done(&["queue", "add", &queue, "--text", "x"]).expect(0);
        let script = "set -e; leasehold renew; leasehold progress half --checkpoint 7; leasehold gate x -- true
            echo hi | leasehold write out; leasehold publish tree site
            leasehold sql sqlite:app.db -c 'CREATE TABLE done (n)'; leasehold push --repo work \"$PWD/remote.git\" main
            leasehold release && exit 9; test $? = 64; echo whole > end";
        let done = home.done(&["work", &queue, "--until-idle", "--", "sh", "-c", script]).expect(0);
        assert_eq!(home.read("end"), "whole\n", "{done:?}");
        assert_eq!(home.read("out"), "hi\n");
        let all: serde_json::Value =
            serde_json::from_str(&home.done(&["queue", "ls", &queue, "--state", "done", "--json"]).expect(0).stdout)
                .unwrap();
        assert_eq!(all[0]["state"], "done", "{all}");
    }
}

#[test]
fn a_spools_item_needs_to_know_its_spool() {
    let home = Home::new(On::Sqlite);
    let queue = format!("spool:{}", home.path("spool").display());
    home.done(&["queue", "add", &queue, "--text", "x"]).expect(0);
    let token = home.done(&["queue", "claim", &queue, "--ttl", "1h"]).expect(0).stdout.trim().to_owned();
    let lost = home.done(&["renew", "--token", &token]).expect(64);
    assert!(lost.stderr.contains("--store spool:/path"), "{lost:?}");
    home.done(&["renew", "--token", &token, "--store", &queue]).expect(0);
    home.done(&["gate", "x", "--token", &token, "--store", &queue, "--", "true"]).expect(0);
    home.done(&["renew", "--token", &token, "--store", "spool:/no/such/spool"]).expect(69);
    // A guard stands without any store.
    home.done(&["write", "out", "--from", "/etc/hostname", "--token", &token]).expect(0);
    // Unless it is to be sure of the time.
    home.done(&["write", "out", "--strict", "--from", "/etc/hostname", "--token", &token]).expect(64);
}
