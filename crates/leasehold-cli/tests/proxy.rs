//! `leasehold proxy` and `--guard http://`, with the real binary in front of a real server.
#![allow(clippy::unwrap_used)]
#![cfg(feature = "http")]

#[path = "http/command.rs"]
#[allow(dead_code)]
mod command;
mod common;
#[path = "http/peer.rs"]
#[allow(dead_code)]
mod peer;
#[path = "http/upstream.rs"]
#[allow(dead_code)]
mod upstream;

use command::{Proxy, acquire};
use common::{Home, On, eventually};
use leasehold_core::clock::{Clock, SystemClock};
use peer::{Peer, once, post};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;
use upstream::Upstream;

#[test]
fn a_newer_epoch_shuts_the_older_out() {
    for on in [On::Sqlite, On::Dir] {
        let (home, upstream) = (Home::new(on), Upstream::start());
        let proxy = Proxy::start(&home, &upstream, &[]).active();
        let old = acquire(&home);
        assert_eq!(proxy.write(&old, "one").status, 200);
        let new = acquire(&home);
        // The store knows of it, the fence not yet: the older goes on until the newer shows itself.
        assert_eq!(proxy.write(&old, "two").status, 200);
        assert_eq!(proxy.write(&new, "three").status, 200);
        let refused = proxy.write(&old, "four");
        assert_eq!(refused.status, 412, "{refused:?}");
        let numbers = refused.header("leasehold-fenced").unwrap();
        assert!(numbers.starts_with("held=") && numbers.contains(" seen="), "{numbers}");
        assert!(refused.body.contains("stale epoch refused: resource=`http:api`"), "{refused:?}");
        let bodies: Vec<_> = upstream.applied().into_iter().map(|a| String::from_utf8(a.body).unwrap()).collect();
        assert_eq!(bodies, ["one", "two", "three"]);
        eventually("the refusal is counted", || home.count("job", "fenced") == 1);
        // The fence outlives the proxy.
        drop(proxy);
        let again = Proxy::start(&home, &upstream, &["--ttl", "1s"]).active();
        assert_eq!(again.write(&old, "five").status, 412);
        assert_eq!(again.write(&new, "six").status, 200);
    }
}

#[test]
fn run_seals_through_the_proxy() {
    let (home, upstream) = (Home::new(On::Sqlite), Upstream::start());
    let proxy = Proxy::start(&home, &upstream, &[]).active();
    let old = acquire(&home);
    assert_eq!(proxy.write(&old, "old").status, 200);
    home.done(&["release", "--token", &old]).expect(0);
    let url = format!("http://{}", proxy.address);
    // Sealed before the command starts: the zombie is out, though nothing was written yet.
    let script = "printf '%s' \"$LEASEHOLD_TOKEN\" > token";
    home.done(&["run", "job", "--guard", &url, "--", "sh", "-c", script]).expect(0);
    assert_eq!(proxy.write(&old, "late").status, 412);
    assert_eq!(proxy.write(&home.read("token"), "new").status, 200);
    let high: serde_json::Value = serde_json::from_str(&proxy.get("/.well-known/leasehold/high-water").body).unwrap();
    assert_eq!((high["lease"].as_str(), high["epoch"].as_u64()), (Some("job"), Some(2)));
    let nonce = home.read("token").split(':').nth(3).unwrap().to_owned();
    assert!(!high.to_string().contains(&nonce), "the holder's secret is told: {high}");
    // Another lease's run is refused before it starts.
    let foreign = home.done(&["run", "other", "--guard", &url, "--", "touch", "ran"]).expect(64);
    assert!(foreign.stderr.contains("fenced by lease `job`"), "{foreign:?}");
    assert!(!home.path("ran").exists());
    let nobody = home.done(&["run", "job", "--guard", "http://127.0.0.1:9", "--", "touch", "ran"]).expect(69);
    assert!(nobody.stderr.contains("cannot reach proxy"), "{nobody:?}");
    home.done(&["run", "job", "--guard", &upstream.url(), "--", "touch", "ran"]).expect(78);
    for bad in ["http://", "http://u:secret@h", "http://h?x"] {
        let refused = home.done(&["run", "job", "--guard", bad, "--", "true"]).expect(64);
        assert!(!refused.stderr.contains("secret"), "{refused:?}");
    }
}

#[test]
fn what_is_refused_is_logged_without_secrets() {
    let (home, upstream) = (Home::new(On::Sqlite), Upstream::start());
    let proxy = Proxy::start(&home, &upstream, &["--log-format", "json"]).active();
    let old = acquire(&home);
    let new = acquire(&home);
    assert_eq!(proxy.write(&new, "one").status, 200);
    assert_eq!(proxy.write(&old, "two").status, 412);
    assert_eq!(proxy.write(&format!("{old}0x"), "three").status, 400);
    let log = || home.read("proxy.log");
    eventually("both are logged", || log().matches("was refused (4").count() == 2);
    let lines: Vec<serde_json::Value> = log().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let stale = lines.iter().find(|line| line["status"] == 412).unwrap();
    let held: u64 = old.split(':').nth(1).unwrap().parse().unwrap();
    assert_eq!((&stale["lease"], &stale["epoch"]), (&"job".into(), &held.into()), "{stale}");
    assert_eq!(
        (&stale["level"], &stale["outcome"], &stale["error"]),
        (&"warn".into(), &"refused".into(), &"fenced".into())
    );
    for token in [&old, &new] {
        assert!(!log().contains(token.split(':').nth(3).unwrap()), "{}", log());
    }
}

#[test]
fn safe_methods_pass_without_a_token_by_choice() {
    let (home, upstream) = (Home::new(On::Sqlite), Upstream::start());
    let strict = Proxy::start(&home, &upstream, &[]).active();
    assert_eq!(strict.get("/x").status, 428);
    let other = Home::new(On::Sqlite);
    let lax = Proxy::start(&other, &upstream, &["--allow-safe"]).active();
    assert_eq!(lax.get("/x?y").status, 200);
    assert_eq!(upstream.applied().pop().unwrap().target, "/x?y");
    let delete = once(lax.address, b"DELETE /x HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert_eq!(delete.status, 428);
}

#[test]
fn one_request_per_epoch() {
    let (home, upstream) = (Home::new(On::Sqlite), Upstream::start());
    let proxy = Proxy::start(&home, &upstream, &["--once-per-epoch"]).active();
    let first = acquire(&home);
    assert_eq!(proxy.write(&first, "1").status, 200);
    let spent = proxy.write(&first, "2");
    assert_eq!(spent.status, 409, "{spent:?}");
    assert!(spent.body.contains("one write per epoch"), "{spent:?}");
    // Many at once under the next: one passes.
    let second = acquire(&home);
    let passed: usize = std::thread::scope(|scope| {
        let asked: Vec<_> = (0..12).map(|_| scope.spawn(|| proxy.write(&second, "x").status)).collect();
        asked.into_iter().map(|asked| usize::from(asked.join().unwrap() == 200)).sum()
    });
    assert_eq!(passed, 1);
    assert_eq!(upstream.count(), 2);
}

#[test]
fn a_key_is_answered_again_and_applied_once() {
    let (home, upstream) = (Home::new(On::Sqlite), Upstream::start());
    let proxy = Proxy::start(&home, &upstream, &["--replay", "3", "--upstream-timeout", "5s"]).active();
    let token = acquire(&home);
    let first = proxy.keyed(&token, "k", "/write", "body");
    let again = proxy.keyed(&token, "k", "/write", "body");
    assert_eq!((first.status, again.status, again.body.as_str()), (200, 200, "body"), "{again:?}");
    assert_eq!(again.header("idempotent-replayed").as_deref(), Some("true"));
    assert_eq!(first.header("idempotent-replayed"), None);
    assert_eq!(upstream.count(), 1);
    assert_eq!(proxy.keyed(&token, "k", "/write", "other").status, 422);
    assert_eq!(proxy.keyed(&token, "k", "/elsewhere", "body").status, 422);
    assert_eq!(upstream.count(), 1);
    // A lost reply: applied, and not sent again, for nobody knows.
    assert_eq!(proxy.keyed(&token, "m", "/mute", "body").status, 502);
    assert_eq!(upstream.count(), 2);
    let unknown = proxy.keyed(&token, "m", "/mute", "body");
    assert_eq!(unknown.status, 409, "{unknown:?}");
    assert!(unknown.body.contains("indeterminate"), "{unknown:?}");
    assert_eq!(upstream.count(), 2);
    // A longer answer than is kept: applied once, and told so.
    let large = "x".repeat(300_000);
    let head = proxy.keyed(&token, "large", "/write", &large);
    assert_eq!(head.status, 200);
    assert_eq!(proxy.keyed(&token, "large", "/write", &large).status, 409);
    assert_eq!(upstream.count(), 3);
    // A newer holder's key is its own, and the older one hears nothing any more.
    let newer = acquire(&home);
    assert_eq!(proxy.keyed(&newer, "k", "/write", "body").header("idempotent-replayed"), None);
    assert_eq!(upstream.count(), 4);
    assert_eq!(proxy.keyed(&token, "k", "/write", "body").status, 412);
    // Only three are kept.
    for key in ["a", "b", "c", "d"] {
        proxy.keyed(&newer, key, "/write", "body");
    }
    assert_eq!(proxy.keyed(&newer, "k", "/write", "body").header("idempotent-replayed"), None);
}

#[test]
fn another_proxy_stands_by_and_takes_over() {
    let (home, upstream) = (Home::new(On::Sqlite), Upstream::start());
    let first = Proxy::start(&home, &upstream, &[]).active();
    let second = Proxy::start(&home, &upstream, &[]);
    let token = acquire(&home);
    assert_eq!(first.write(&token, "1").status, 200);
    let standby = second.write(&token, "2");
    assert_eq!(standby.status, 503, "{standby:?}");
    assert!(standby.header("retry-after").is_some());
    assert_eq!(upstream.count(), 1);
    // Told to end, the first gives its place back at once, long before its lease of ten seconds would run out.
    let begun = SystemClock.now();
    first.signal("-TERM");
    let second = second.active();
    assert!(SystemClock.now().saturating_since(begun) < Duration::from_secs(8));
    assert_eq!(second.write(&token, "3").status, 200);
    let newer = acquire(&home);
    assert_eq!(second.write(&newer, "4").status, 200);
}

#[test]
fn what_is_in_flight_is_answered_before_the_end() {
    let (home, upstream) = (Home::new(On::Sqlite), Upstream::start());
    let mut proxy = Proxy::start(&home, &upstream, &[]).active();
    let token = acquire(&home);
    let mut peer = Peer::connect(proxy.address);
    peer.send(&post("/slow", &token, b"x"));
    eventually("it is at the upstream", || upstream.count() == 1);
    proxy.signal("-TERM");
    assert_eq!(peer.answer().unwrap().status, 200);
    assert_eq!(proxy.child.wait().unwrap().code(), Some(0));
    assert_eq!(home.show("proxy/api")["state"], "free");
}

#[test]
fn the_leases_of_proxies_are_not_taken_by_hand() {
    let (home, upstream) = (Home::new(On::Sqlite), Upstream::start());
    let _proxy = Proxy::start(&home, &upstream, &[]).active();
    std::fs::write(
        home.path("leasehold.toml"),
        "[[job]]\nname = \"proxy/api\"\ncron = \"0 3 * * *\"\ncommand = \"true\"\n",
    )
    .unwrap();
    for words in [
        &["acquire", "proxy/api"][..],
        &["acquire", "proxy/other/deeper"],
        &["run", "proxy/api", "--", "true"],
        &["run", "free", "--or", "proxy/api", "--", "true"],
        &["hand-off", "proxy/api", "--to", "me", "--why", "x"],
        &["schedule", "check"],
    ] {
        let done = home.done(words);
        assert!([64, 78].contains(&done.code), "{words:?}: {done:?}");
        assert!(done.stderr.contains("the reverse proxy itself; use another name"), "{words:?}: {done:?}");
    }
    std::fs::remove_file(home.path("leasehold.toml")).unwrap();
    assert_eq!(home.show("proxy/api")["state"], "held");
    home.done(&["acquire", "proxy"]).expect(0);
    home.done(&["acquire", "proxies/api"]).expect(0);
    home.done(&["revoke", "proxy/api", "--why", "a proxy is deposed"]).expect(0);
}

#[test]
fn a_newer_epoch_waits_for_what_the_upstream_is_at() {
    let (home, upstream) = (Home::new(On::Sqlite), Upstream::start());
    let proxy = Proxy::start(&home, &upstream, &["--drain", "5s"]).active();
    let old = acquire(&home);
    let mut peer = Peer::connect(proxy.address);
    peer.send(&post("/slow", &old, b"old"));
    eventually("it is at the upstream", || upstream.count() == 1);
    let new = acquire(&home);
    // The client goes away: what it asked for is still at work, and still waited for.
    drop(peer);
    let begun = SystemClock.now();
    assert_eq!(proxy.write(&new, "new").status, 200);
    assert!(SystemClock.now().saturating_since(begun) > Duration::from_millis(100), "it did not wait");
}

#[test]
fn a_client_that_stops_in_the_middle_delays_the_next_by_the_drain_at_most() {
    let (home, upstream) = (Home::new(On::Sqlite), Upstream::start());
    let proxy = Proxy::start(&home, &upstream, &["--drain", "300ms"]).active();
    let old = acquire(&home);
    let mut stopped = Peer::connect(proxy.address);
    let request = post("/write", &old, &[b'x'; 5000]);
    stopped.send(&request[..3000]);
    let new = acquire(&home);
    let begun = SystemClock.now();
    assert_eq!(proxy.write(&new, "new").status, 200);
    let took = SystemClock.now().saturating_since(begun);
    assert!(took < Duration::from_secs(3), "blocked for {took:?}");
    stopped.send(&request[3000..]);
    assert!(stopped.answer().is_none_or(|answer| answer.status == 412));
    let bodies: Vec<_> = upstream.applied().into_iter().map(|a| a.body).collect();
    assert_eq!(bodies, [b"new".to_vec()]);
}

#[test]
fn limits_hold() {
    let (home, upstream) = (Home::new(On::Sqlite), Upstream::start());
    let limits = ["--max-body", "1000", "--client-timeout", "500ms", "--max-requests", "2"];
    let proxy = Proxy::start(&home, &upstream, &limits).active();
    let token = acquire(&home);
    assert_eq!(proxy.write(&token, &"x".repeat(1000)).status, 200);
    assert_eq!(proxy.write(&token, &"x".repeat(1001)).status, 413);
    // Without a stated length, too.
    let head =
        format!("POST /write HTTP/1.1\r\nHost: x\r\nLeasehold-Token: {token}\r\nTransfer-Encoding: chunked\r\n\r\n");
    let chunk = format!("1f4\r\n{}\r\n", "x".repeat(500));
    let long = once(proxy.address, format!("{head}{chunk}{chunk}{chunk}0\r\n\r\n").as_bytes());
    assert!(long.is_none_or(|answer| answer.status == 413));
    assert_eq!(once(proxy.address, format!("{head}{chunk}{chunk}0\r\n\r\n").as_bytes()).unwrap().status, 200);
    assert_eq!(upstream.count(), 2);
    // A head, or a body, that never comes to its end.
    for started in ["POST /write HTTP/1.1\r\nHost: x\r\nX-A: ", "", "PRI * HT", &format!("{head}1f4\r\nxxx")] {
        let mut slow = Peer::connect(proxy.address);
        slow.send(started.as_bytes());
        let begun = SystemClock.now();
        let answer = slow.answer();
        assert!(answer.as_ref().is_none_or(|a| a.status == 408), "{started:?}: {answer:?}");
        assert!(SystemClock.now().saturating_since(begun) < Duration::from_secs(5), "{started:?}");
    }
    assert_eq!(upstream.count(), 2);
    assert_eq!(proxy.write(&token, "still well").status, 200);
}

#[test]
fn http_2_by_prior_knowledge() {
    let (home, upstream) = (Home::new(On::Sqlite), Upstream::start());
    let proxy = Proxy::start(&home, &upstream, &[]).active();
    let token = acquire(&home);
    let url = format!("http://{}/two", proxy.address);
    let curl = |token: &str| {
        let header = format!("Leasehold-Token: {token}");
        let args =
            ["-s", "--http2-prior-knowledge", "-w", "%{http_version} %{http_code}", "-H", &header, "-H", "Cookie: a=1"];
        let done = Command::new("curl").args(args).args(["-d", "body", &url]).output().unwrap();
        String::from_utf8(done.stdout).unwrap()
    };
    assert_eq!(curl(&token), "body2 200");
    let seen = upstream.applied().pop().unwrap();
    assert_eq!((seen.header("leasehold-epoch"), seen.header("cookie")), (Some("1"), Some("a=1")));
    assert_eq!(seen.header("leasehold-token"), None);
    acquire(&home);
    let newest = acquire(&home);
    assert_eq!(proxy.write(&newest, "x").status, 200);
    let refused = curl(&token);
    assert!(refused.ends_with("2 412"), "{refused}");
}

#[test]
fn wrong_arguments_are_refused() {
    let home = Home::new(On::Sqlite);
    let good = ["proxy", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1", "--resource", "api"];
    for (flag, value) in [
        ("--listen", "nonsense"),
        ("--listen", "127.0.0.1"),
        ("--listen", "127.0.0.1:99999"),
        ("--upstream", "127.0.0.1:80"),
        ("--upstream", "ftp://h"),
        ("--upstream", "http://u:secret@h"),
        ("--upstream", "http://h/?x=1"),
        ("--upstream", "http://h/../x"),
        ("--resource", "a b"),
        ("--resource", "../x"),
        ("--lease", "a:b"),
        ("--drain", "never"),
        ("--drain", "0s"),
        ("--ttl", "1ms"),
        ("--max-requests", "0"),
        ("--max-head", "1"),
        ("--replay", "-1"),
    ] {
        let mut args: Vec<&str> = good.to_vec();
        match args.iter().position(|arg| *arg == flag) {
            Some(at) => args[at + 1] = value,
            None => args.extend([flag, value]),
        }
        let done = home.done(&args);
        assert_eq!(done.code, 64, "{flag} {value}: {done:?}");
        assert!(!done.stderr.contains("secret"), "{done:?}");
    }
}

/// The example of the documentation, on a free port.
#[test]
fn the_documented_proxy_works() {
    let (home, upstream) = (Home::new(On::Sqlite), Upstream::start());
    let page = format!("{}/../../docs/guards/http.md", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(page).unwrap();
    let script = text.split("```sh\n").nth(1).unwrap().split("```").next().unwrap();
    let port = leasehold_testbed::free_port().to_string();
    let script = format!("{}\nkill $!\nwait\n", script.replace("8080", &port));
    let leasehold = home.leasehold(&[]);
    let mut shell = Command::new("sh");
    for (name, value) in leasehold.get_envs() {
        shell.env(name, value.unwrap());
    }
    shell.env("UPSTREAM", upstream.url()).args(["-ec", &script]).current_dir(home.folder.path());
    let done = shell.stdin(Stdio::null()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let seen = upstream.applied().pop().unwrap();
    assert_eq!((seen.target.as_str(), seen.body.as_slice()), ("/invoices", &b"amount=7"[..]));
    assert_eq!(seen.header("leasehold-lease"), Some("invoices"));
}

const ENCRYPTED: &str = "
import http.server, ssl
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_POST(self):
        body = self.rfile.read(int(self.headers['content-length'])) + self.headers['leasehold-epoch'].encode()
        self.send_response(200)
        self.send_header('content-length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain('cert.pem', 'key.pem')
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
";

#[test]
fn an_encrypted_upstream_is_trusted_only_by_its_certificate() {
    let home = Home::new(On::Sqlite);
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem", "-days", "2"])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .current_dir(home.folder.path())
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let mut server = Command::new(leasehold_testbed::python_program("python"))
        .args(["-c", ENCRYPTED])
        .current_dir(home.folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut port = String::new();
    BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut port).unwrap();
    let url = format!("https://127.0.0.1:{}", port.trim());
    let token = acquire(&home);
    let cert = home.path("cert.pem").display().to_string();
    let trusting = Proxy::to(&home, &url, &[], Some(&cert)).active();
    let answer = trusting.write(&token, "epoch ");
    assert_eq!((answer.status, answer.body.as_str()), (200, "epoch 1"), "{answer:?}");
    drop(trusting);
    let other = Home::new(On::Sqlite);
    let token = acquire(&other);
    let strict = Proxy::to(&other, &url, &[], None).active();
    let answer = strict.write(&token, "x");
    assert_eq!(answer.status, 502, "{answer:?}");
    server.kill().unwrap();
    server.wait().unwrap();
}
