//! The examples of docs/server.md: nginx in front of three servers, and the systemd unit. They are read out of the page, and
//! nothing of them is changed but ports, paths and certificates.

use crate::common::{Done, Home, On, Running, eventually};
use crate::rig::{Served, get, key, raw, start};
use crate::tls::certificate_for;
use leasehold_testbed::{free_port, program};
use std::fs::File;
use std::process::{Command, Stdio};

const PAGE: &str = include_str!("../../../../docs/server.md");

/// The first block of a section of the page, without its indentation.
fn example(section: &str) -> String {
    let section = PAGE.split(&format!("\n## {section}\n")).nth(1).unwrap_or_else(|| panic!("no section {section}"));
    let lines = section.lines().skip_while(|line| !line.starts_with("    "));
    let lines = lines.take_while(|line| line.is_empty() || line.starts_with("    "));
    lines.map(|line| line.get(4..).unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Puts this machine's words in the place of the page's; each must be there.
fn adapted(example: String, words: &[(&str, String)]) -> String {
    words.iter().fold(example, |text, (theirs, ours)| {
        assert!(text.contains(theirs), "the example has {theirs}");
        text.replace(theirs, ours)
    })
}

/// Three servers on one store, behind nginx as the page has it.
struct Fleet {
    home: Home,
    servers: Vec<Served>,
    metrics: Vec<u16>,
    nginx: Running,
    port: u16,
    key: String,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // Asked, not killed: its master would leave its workers behind.
        crate::common::signal(self.nginx.pid(), "TERM");
        eventually("nginx ends", || self.nginx.is_over());
    }
}

impl Fleet {
    fn start() -> Self {
        let home = Home::new(On::Sqlite);
        certificate_for(&home, "leases", "DNS:leases.example.com,IP:127.0.0.1");
        certificate_for(&home, "internal", "DNS:leases.internal");
        let key = key(&home, &["--namespace", "team", "--allow", "read,hold"]);
        let ports = [free_port(), free_port(), free_port()];
        let metrics: Vec<u16> = ports.iter().map(|_| free_port()).collect();
        let servers = ports.iter().zip(&metrics).zip(["a", "b", "c"]).map(|((port, metrics), name)| {
            let (listen, metrics) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{metrics}"));
            let tls = ["--tls-cert", "internal.pem", "--tls-key", "internal.key"];
            start(&home, &[&["--listen", &listen, "--metrics", &metrics], &tls[..]].concat(), name)
        });
        let servers = servers.collect();
        let port = free_port();
        let nginx = nginx(&home, &ports, port);
        Fleet { home, servers, metrics, nginx, port, key }
    }

    /// The real command, with nothing but a URL and a key.
    fn client(&self, args: &[&str]) -> Command {
        let mut command = self.home.leasehold(args);
        let ca = self.home.path("leases.pem");
        let store = format!("leasehold://127.0.0.1:{}/team?ca={}", self.port, ca.display());
        command.env("LEASEHOLD_STORE", store).env("LEASEHOLD_KEY", &self.key);
        command
    }

    #[track_caller]
    fn acquire(&self) -> String {
        let mut command = self.client(&["acquire", "nightly", "--ttl", "60s"]);
        Done::from(command.output().unwrap()).expect(0).stdout.trim().to_owned()
    }

    /// What a holder does.
    #[track_caller]
    fn held(&self, verb: &str, token: &str) {
        Done::from(self.client(&[verb]).env("LEASEHOLD_TOKEN", token).output().unwrap()).expect(0);
    }

    /// A request of curl's, whose answer goes to a file.
    fn curl(&self, path: &str, more: &[&str], answer: &str) -> Running {
        let mut command = Command::new(program("curl"));
        command
            .args(["-sSN", "--max-time", "120", "--cacert"])
            .arg(self.home.path("leases.pem"))
            .args(["--resolve", &format!("leases.example.com:{}:127.0.0.1", self.port)])
            .args(["-H", &format!("Authorization: Bearer {}", self.key)])
            .args(more)
            .arg(format!("https://leases.example.com:{}/v1/ns/team/{path}", self.port));
        let file = File::create(self.home.path(answer)).unwrap();
        Running::from(command.stdin(Stdio::null()).stdout(file).stderr(Stdio::inherit()).spawn().unwrap())
    }

    /// How many requests wait at all servers.
    fn waiters(&self) -> u64 {
        let waiters = self.metrics.iter().map(|port| {
            let page = get(([127, 0, 0, 1], *port).into(), "/metrics", &[]).body;
            let line = page.lines().find_map(|line| line.strip_prefix("leasehold_http_waiters "));
            line.expect("it is counted").parse::<u64>().unwrap()
        });
        waiters.sum()
    }
}

fn nginx(home: &Home, servers: &[u16; 3], port: u16) -> Running {
    let path = |name: &str| home.path(name).display().to_string();
    let mut words = vec![
        ("listen 443 ssl", format!("listen 127.0.0.1:{port} ssl")),
        ("/etc/nginx/leases.pem", path("leases.pem")),
        ("/etc/nginx/leases.key", path("leases.key")),
        ("/etc/nginx/leasehold-ca.pem", path("internal.pem")),
    ];
    let theirs = ["10.0.0.5:7117", "10.0.0.6:7117", "10.0.0.7:7117"];
    words.extend(theirs.iter().zip(servers).map(|(theirs, ours)| (*theirs, format!("127.0.0.1:{ours}"))));
    let site = adapted(example("Three servers behind nginx"), &words);
    // What Debian has around it; its files go where this test's are.
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("{kind}_temp_path {};\n", path(&format!("nginx-{kind}"))))
        .collect();
    let config = format!(
        "user root root;\ndaemon off;\npid {};\nerror_log {} warn;\nevents {{}}\nhttp {{\naccess_log off;\n{temporary}{site}\n}}\n",
        path("nginx.pid"),
        path("nginx.log")
    );
    std::fs::write(home.path("nginx.conf"), config).unwrap();
    let log = File::create(home.path("nginx.out")).unwrap();
    let mut command = Command::new(program("nginx"));
    command.arg("-c").arg(home.path("nginx.conf")).args(["-e", &path("nginx.log"), "-p", &path("")]);
    let mut running = Running::from(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap());
    eventually("nginx listens", || {
        assert!(!running.is_over(), "{}{}", home.read("nginx.out"), home.read("nginx.log"));
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    running
}

#[test]
fn three_servers_behind_the_nginx_of_the_page_are_one_and_one_may_be_killed() {
    let mut fleet = Fleet::start();
    let token = fleet.acquire();
    fleet.held("renew", &token);
    let events = fleet.curl("events?name=night*", &[], "events");
    eventually("the stream begins", || fleet.home.read("events").contains("event: ready"));
    let waiter = fleet.curl("leases/nightly/acquire", &["-d", r#"{"ttl":"60s","wait":"90s"}"#], "granted");
    eventually("it waits", || fleet.waiters() == 2);
    fleet.held("release", &token);
    assert_eq!(waiter.end().code, 0);
    let granted: serde_json::Value = serde_json::from_str(&fleet.home.read("granted")).unwrap();
    assert_eq!(granted["epoch"], 2, "{granted}");
    eventually("the stream tells of it", || {
        let told = fleet.home.read("events");
        told.contains("event: released") && told.matches("event: acquired").count() >= 1
    });
    drop(events);
    let token = granted["token"].as_str().unwrap().to_owned();
    // nginx asks one after the other: each of the three would have had its turn.
    drop(fleet.servers.remove(1));
    for _ in 0..6 {
        fleet.held("renew", &token);
    }
    let log = fleet.home.read("nginx.log");
    assert!(log.contains("while connecting to upstream"), "the dead one had its turn: {log}");
    fleet.held("release", &token);
    let next = fleet.acquire();
    assert!(next.starts_with("nightly:3:"), "{next}");
}

/// The lines of a unit, with those that are continued in one.
fn settings(unit: &str) -> Vec<(String, String)> {
    let whole = unit.replace("\\\n", " ");
    let settings = whole.lines().filter_map(|line| line.split_once('='));
    settings.map(|(name, value)| (name.to_owned(), value.split_whitespace().collect::<Vec<_>>().join(" "))).collect()
}

#[test]
fn systemd_understands_the_unit_of_the_page_and_what_it_starts_serves() {
    let home = Home::new(On::Sqlite);
    certificate_for(&home, "server", "IP:127.0.0.1");
    std::fs::write(home.path("store"), &home.store).unwrap();
    let path = |name: &str| home.path(name).display().to_string();
    let unit = example("systemd");
    // A program that is there: systemd looks.
    let named = adapted(unit.clone(), &[("/usr/local/bin/leasehold", env!("CARGO_BIN_EXE_leasehold").to_owned())]);
    std::fs::write(home.path("leasehold.service"), named).unwrap();
    let mut command = Command::new(program("systemd-analyze"));
    let done = command.args(["verify", "--man=no"]).arg(home.path("leasehold.service")).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    // It names what it does not know, and does not fail for that.
    let ours: Vec<&str> = said.lines().filter(|line| line.contains("leasehold.service")).collect();
    assert!(done.status.success() && ours.is_empty(), "{said}");

    let settings = settings(&unit);
    let value = |name: &str| &settings.iter().find(|(known, _)| known == name).unwrap_or_else(|| panic!("{name}")).1;
    let (port, metrics) = (free_port(), free_port());
    let line = adapted(
        value("ExecStart").clone(),
        &[
            ("0.0.0.0:7117", format!("0.0.0.0:{port}")),
            ("/etc/leasehold/cert.pem", path("server.pem")),
            ("%d/key.pem", path("server.key")),
            ("%S/leasehold/first-key", path("first-key")),
            ("127.0.0.1:9464", format!("127.0.0.1:{metrics}")),
        ],
    );
    let words: Vec<&str> = line.split(' ').skip(1).collect();
    assert_eq!(value("LoadCredential"), "store:/etc/leasehold/store");
    let (variable, file) = value("Environment").split_once('=').unwrap();
    let mut command = home.leasehold(&words);
    command.env_remove("LEASEHOLD_STORE").env(variable, file.replace("%d", &path("")));
    let log = File::create(home.path("log")).unwrap();
    let mut running = Running::from(command.stdout(Stdio::null()).stderr(log).spawn().unwrap());
    eventually("it is ready", || {
        assert!(!running.is_over(), "{}", home.read("log"));
        let request = b"GET /readyz HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n";
        raw(([127, 0, 0, 1], metrics).into(), request).is_some_and(|answer| answer.status == 200)
    });
    let mut curl = Command::new(program("curl"));
    curl.args(["-sS", "--max-time", "20", "--cacert"]).arg(home.path("server.pem"));
    let done = curl.arg(format!("https://127.0.0.1:{port}/livez")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stdout), "alive\n", "{done:?}");
}
