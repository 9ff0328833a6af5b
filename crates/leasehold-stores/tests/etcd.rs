//! The etcd store on real members: every promise, faults, round trips, TLS, users, and a cluster that loses its leader.

#![allow(clippy::unwrap_used)]

use leasehold_conformance::{Bench, Effort, exercise};
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::store::{Class, Range, Store, Survey, Swap};
use leasehold_core::{Acquired, Ask, Coordinator, Epoch, HolderId, Key, Kind, LeaseName, Outcome, Shelf, Ttl};
use leasehold_stores::{StoreUrl, open};
use leasehold_testbed::suite::{self, Opener};
use leasehold_testbed::{Proxy, Server, etcd, etcd_cluster, etcd_is_healthy, etcd_with};
use leasehold_testbed::{namespaces_are_apart, program, wait_until};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::timeout;

/// How long anything may take on a busy machine.
const SLACK: Duration = Duration::from_secs(30);

async fn opened(url: &str) -> leasehold_core::Result<Arc<dyn Store>> {
    open(&url.parse::<StoreUrl>()?).await
}

fn url(server: &Server) -> String {
    format!("etcd://127.0.0.1:{}", server.port())
}

fn opener() -> Opener {
    Opener::new(|port| async move { opened(&format!("etcd://127.0.0.1:{port}")).await })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_keeps_every_promise() {
    let server = etcd();
    let url = url(&server);
    let bench = Bench::new(Effort::LIGHT, {
        let url = url.clone();
        move || {
            let url = url.clone();
            async move { opened(&url).await }
        }
    });
    looking_leaves_no_trace(&server).await;
    exercise(&bench).await.assert_kept();
    let team = opened(&format!("{url}?namespace=team")).await.unwrap();
    namespaces_are_apart(opened(&url).await.unwrap(), team).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_withstands_faults() {
    let mut server = etcd();
    suite::a_release_wakes_the_waiter(server.port(), &opener()).await;
    suite::withstands_faults(&mut server, &opener()).await;
}

/// Opening, reading, listing, watching and surveying write nothing.
async fn looking_leaves_no_trace(server: &Server) {
    let store = opened(&url(server)).await.unwrap();
    let key = Key::new(Shelf::Lease, &name("nothing"));
    assert_eq!(store.read(&key).await.unwrap().value, None);
    let page = store.list(Shelf::Lease, Range::new(None, 10)).await.unwrap();
    assert!(page.entries.is_empty() && !page.more);
    let _watch = store.watch(&key).await.unwrap();
    let survey = store.survey().await.unwrap();
    assert_eq!((survey.class, advice(&survey, "voting members").is_some()), (Class::A, true));
    assert_eq!((advice(&survey, "alarms"), found(&survey, "version").is_empty()), (None, false));
    let status = etcdctl(&[server], &["endpoint", "status", "--write-out=json"]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status[0]["Status"]["header"]["revision"], 1, "{status}");
}

fn name(text: &str) -> LeaseName {
    LeaseName::new(text).unwrap()
}

fn ask(seconds: u64) -> Ask {
    Ask::new(HolderId::new(None), Ttl::new(Duration::from_secs(seconds)).unwrap())
}

fn found(survey: &Survey, setting: &str) -> String {
    survey.remarks.iter().find(|remark| remark.setting == setting).unwrap().found.clone()
}

fn advice(survey: &Survey, setting: &str) -> Option<String> {
    survey.remarks.iter().find(|remark| remark.setting == setting).unwrap().advice.clone()
}

/// Runs etcdctl on these members; its words, or its complaint.
fn try_etcdctl(members: &[&Server], args: &[&str]) -> Result<String, String> {
    let endpoints: Vec<String> = members.iter().map(|member| format!("127.0.0.1:{}", member.port())).collect();
    let output = Command::new(program("etcdctl"))
        .env("ETCDCTL_API", "3")
        .arg(format!("--endpoints={}", endpoints.join(",")))
        .args(args)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

fn etcdctl(members: &[&Server], args: &[&str]) -> String {
    try_etcdctl(members, args).unwrap_or_else(|error| panic!("etcdctl {args:?}: {error}"))
}

/// A whole tenure; its epoch.
async fn tenure(leases: &Coordinator, lease: &str) -> leasehold_core::Result<Epoch> {
    match leases.acquire(&name(lease), &ask(30)).await? {
        Acquired::Granted(mut grant) => {
            leases.renew(&mut grant, None).await?;
            leases.release(&grant, Outcome::Succeeded).await?;
            Ok(grant.token().epoch)
        }
        Acquired::Refused { refusal, .. } => panic!("`{lease}` is free, and was refused: {refusal:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_large_records_comes_whole() {
    let server = etcd();
    let store = opened(&url(&server)).await.unwrap();
    let large = vec![0xa5; 64 * 1024];
    for number in 0..80 {
        let key = Key::new(Shelf::Probe, &name(&format!("large/{number:02}")));
        assert!(matches!(store.swap(&key, None, &large).await.unwrap(), Swap::Done { .. }));
    }
    let page = store.list(Shelf::Probe, Range::new(None, 100)).await.unwrap();
    assert_eq!((page.entries.len(), page.more), (80, false));
    assert!(page.entries.iter().all(|(_, value)| value.bytes == large));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_is_made_anew_after_a_cut_and_ends_with_its_receiver() {
    let server = etcd();
    let proxy = Proxy::start(server.port());
    let (cut, direct) =
        (opened(&format!("etcd://127.0.0.1:{}", proxy.port())).await.unwrap(), opened(&url(&server)).await);
    let (direct, key) = (direct.unwrap(), Key::new(Shelf::Probe, &name("watched")));
    let mut watch = cut.watch(&key).await.unwrap();
    let Swap::Done { revision, .. } = direct.swap(&key, None, b"1").await.unwrap() else { panic!("a fresh key") };
    timeout(SLACK, watch.hint()).await.expect("a change is hinted at");
    proxy.cut();
    // Once for what it may have missed, as soon as it stands again.
    timeout(SLACK, watch.hint()).await.expect("the watch is made anew");
    direct.swap(&key, Some(&revision), b"2").await.unwrap();
    timeout(SLACK, watch.hint()).await.expect("a change after the cut is hinted at");
    assert_eq!(watchers(&server), 1);
    drop(watch);
    wait_until("the server has nobody left to tell", || watchers(&server) == 0);
}

/// How many keys etcd watches.
fn watchers(server: &Server) -> usize {
    let output = Command::new("curl").args(["-s", &format!("http://127.0.0.1:{}/metrics", server.port())]).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("etcd_debugging_mvcc_watcher_total "));
    line.unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_database_grants_nothing_and_says_what_to_do() {
    let server = etcd_with(&["--quota-backend-bytes", "4194304"]);
    wait_until("etcd serves", || etcd_is_healthy(server.port()));
    let store = opened(&url(&server)).await.unwrap();
    let leases = Coordinator::new(store.clone());
    let before = tenure(&leases, "full").await.unwrap();
    // Several at once: the write that fills the quota passes the first check, is applied, and is still refused.
    let writers: Vec<_> = (0..6).map(|number| tokio::spawn(fill(store.clone(), number))).collect();
    for writer in writers {
        writer.await.unwrap();
    }
    let error = tenure(&leases, "full").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert!(error.to_string().contains("etcdctl compact"), "{error}");
    let survey = store.survey().await.unwrap();
    assert_eq!(found(&survey, "alarms"), "NOSPACE");
    assert!(advice(&survey, "alarms").unwrap().contains("etcdctl defrag"));
    let record = leases.inspect(&name("full")).await.unwrap().record;
    assert_eq!((record.epoch, record.tenure.is_some()), (before, false));
    let status = etcdctl(&[&server], &["endpoint", "status", "--write-out=json"]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    etcdctl(&[&server], &["compact", &status[0]["Status"]["header"]["revision"].to_string()]);
    etcdctl(&[&server], &["defrag"]);
    etcdctl(&[&server], &["alarm", "disarm"]);
    assert!(tenure(&leases, "full").await.unwrap() > before);
}

/// Writes until there is no room. What is said to be surely not written is not there.
async fn fill(store: Arc<dyn Store>, number: usize) {
    let key = Key::new(Shelf::Probe, &name(&format!("fill/{number}")));
    let mut revision = None;
    for round in 0u32..1000 {
        let mut bytes = vec![number as u8; 60_000];
        bytes.extend(round.to_be_bytes());
        match store.swap(&key, revision.as_ref(), &bytes).await {
            Ok(Swap::Done { revision: next, .. }) => revision = Some(next),
            Ok(Swap::Mismatch) => panic!("nobody else writes `{key}`"),
            Err(error) => {
                let there = store.read(&key).await.unwrap().value;
                match error.kind() {
                    Kind::Unavailable => assert_eq!(there.map(|value| value.revision), revision, "{error}"),
                    Kind::Indeterminate => {}
                    other => panic!("a full database looked like {}: {error}", other.as_str()),
                }
                return;
            }
        }
    }
    panic!("the database never filled up");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_log_in_and_those_who_may_not_are_told_what_to_fix() {
    let mut server = etcd();
    let with = |user: &str| format!("etcd://{user}@127.0.0.1:{}", server.port());
    let (anonymous, known, wrong) = (with("").replace("//@", "//"), with("worker:pass-1"), with("worker:pass-2"));
    let opener = Opener::new(|port| async move { opened(&format!("etcd://worker:pass-1@127.0.0.1:{port}")).await });
    let leases = Coordinator::new(opened(&known).await.unwrap());
    // A user is given, and nobody asks for one yet.
    let mut last = tenure(&leases, "users").await.unwrap();
    let mut rises = |epoch: Epoch| assert!(std::mem::replace(&mut last, epoch) < epoch);
    for command in [
        "user add root:root-pass",
        "user grant-role root root",
        "role add leases",
        "role grant-permission leases readwrite --prefix=true /leasehold/",
        "user add worker:pass-1",
        "user grant-role worker leases",
        "auth enable",
    ] {
        etcdctl(&[&server], &command.split(' ').collect::<Vec<_>>());
    }
    let operate = |server: &Server, command: &str| {
        let args: Vec<&str> = ["--user=root:root-pass"].into_iter().chain(command.split(' ')).collect();
        etcdctl(&[server], &args)
    };
    rises(tenure(&leases, "users").await.unwrap());
    for (url, says) in [(&anonymous, "ETCDCTL_USER"), (&wrong, "check the user and the password")] {
        let store = opened(url).await.unwrap();
        let key = Key::new(Shelf::Lease, &name("users"));
        let errors = [store.read(&key).await.unwrap_err(), store.swap(&key, None, b"x").await.unwrap_err()];
        for error in errors {
            assert_eq!(error.kind(), Kind::Unsupported, "{error}");
            let text = error.to_string();
            assert!(text.contains(says) && !text.contains("pass-2") && !text.contains('\n'), "{text}");
        }
        assert!(!format!("{store:?}").contains("pass-2"));
    }
    suite::a_release_wakes_the_waiter(server.port(), &opener).await;
    suite::round_trips_are_few(server.port(), &opener).await;
    // What a token is worth is forgotten by a restart.
    server.restart();
    wait_until("etcd serves", || etcd_is_healthy(server.port()));
    rises(tenure(&leases, "users").await.unwrap());
    for (revoke, says, restore) in [
        ("user revoke-role worker leases", "grant-permission", "user grant-role worker leases"),
        ("user delete worker", "check the user", "user add worker:pass-1"),
    ] {
        operate(&server, revoke);
        let error = tenure(&leases, "users").await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported, "{revoke}: {error}");
        assert!(error.to_string().contains(says) && !error.to_string().contains("pass-1"), "{error}");
        operate(&server, restore);
        if restore.starts_with("user add") {
            operate(&server, "user grant-role worker leases");
        }
        rises(tenure(&leases, "users").await.unwrap());
    }
    let survey = leases.store().survey().await.unwrap();
    assert_eq!(survey.class, Class::A);
    operate(&server, "auth disable");
    rises(tenure(&leases, "users").await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_needs_the_right_authority_and_the_right_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    for authority in ["ca", "other"] {
        let subject = format!("-subj /CN={authority} -keyout {authority}.key -out {authority}.pem");
        openssl(
            folder.path(),
            &format!("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 {subject}"),
        );
    }
    // The gateway is a client of its own server, with the server's certificate.
    std::fs::write(file("server.ext"), "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
        .unwrap();
    std::fs::write(file("client.ext"), "extendedKeyUsage=clientAuth\n").unwrap();
    for (who, authority) in [("server", "ca"), ("client", "ca"), ("stranger", "other")] {
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
        openssl(folder.path(), &format!("req {key} -subj /CN={who} -keyout {who}.key -out {who}.csr"));
        let extensions = if who == "server" { "server.ext" } else { "client.ext" };
        let sign = format!("-CA {authority}.pem -CAkey {authority}.key -CAcreateserial -days 2 -extfile {extensions}");
        openssl(folder.path(), &format!("x509 -req -in {who}.csr -out {who}.pem {sign}"));
    }
    let (cert, key, ca) = (file("server.pem"), file("server.key"), file("ca.pem"));
    let server = etcd_with(&["--cert-file", &cert, "--key-file", &key, "--trusted-ca-file", &ca, "--client-cert-auth"]);
    let with = |query: &str| format!("etcds://127.0.0.1:{}{}", server.port(), query.replace('@', &file("")));
    let right = with("?cacert=@ca.pem&cert=@client.pem&key=@client.key");
    let leases = Coordinator::new(opened(&right).await.unwrap());
    let first = tenure(&leases, "tls").await.unwrap();
    for (query, says) in [
        ("", "check the certificate authority"),
        ("?cacert=@other.pem&cert=@client.pem&key=@client.key", "UnknownIssuer"),
        ("?cacert=@ca.pem", "received fatal alert"),
        ("?cacert=@ca.pem&cert=@stranger.pem&key=@stranger.key", "check the certificate authority"),
    ] {
        let refused = Coordinator::new(opened(&with(query)).await.unwrap());
        let mut error = tenure(&refused, "tls").await.unwrap_err();
        // A server that hangs up before the request was begun leaves no time to hear why.
        for _ in 0..50 {
            if error.kind() != Kind::Unavailable {
                break;
            }
            error = tenure(&refused, "tls").await.unwrap_err();
        }
        assert_eq!(error.kind(), Kind::Unsupported, "{query}: {error}");
        assert!(error.to_string().contains(says), "{query}: {error}");
    }
    let plain = Coordinator::new(opened(&url(&server)).await.unwrap());
    let error = tenure(&plain, "tls").await.unwrap_err();
    assert!(error.to_string().contains("etcd at 127.0.0.1"), "{error}");
    let mut watch = leases.store().watch(&Key::new(Shelf::Lease, &name("tls"))).await.unwrap();
    assert!(tenure(&leases, "tls").await.unwrap() > first);
    timeout(SLACK, watch.hint()).await.expect("a change is hinted at through TLS too");
}

fn openssl(folder: &Path, args: &str) {
    let output = Command::new(program("openssl")).current_dir(folder).args(args.split(' ')).output().unwrap();
    assert!(output.status.success(), "openssl {args}: {}", String::from_utf8_lossy(&output.stderr));
}

#[derive(Default)]
struct Contest {
    epochs: Mutex<BTreeSet<Epoch>>,
    over: AtomicBool,
}

impl Contest {
    fn grants(&self) -> usize {
        self.epochs.lock().unwrap().len()
    }
}

/// Contends until it is over. Every epoch must be new, and higher than the client's last one.
async fn contend(leases: Coordinator, lease: LeaseName, contest: Arc<Contest>) {
    let mut last = None;
    while !contest.over.load(Ordering::SeqCst) {
        match leases.acquire(&lease, &ask(3)).await {
            Ok(Acquired::Granted(grant)) => {
                let epoch = grant.token().epoch;
                assert!(contest.epochs.lock().unwrap().insert(epoch), "epoch {epoch} was granted twice");
                assert!(last.replace(epoch) < Some(epoch), "epoch {epoch} after {last:?}");
                let _ = leases.release(&grant, Outcome::Succeeded).await;
            }
            Ok(Acquired::Refused { .. }) => tokio::time::sleep(Duration::from_millis(5)).await,
            Err(error) => {
                // Lost: granted, but the answer came when the lease had run out.
                let kinds = [Kind::Unavailable, Kind::Indeterminate, Kind::Contended, Kind::Lost];
                assert!(kinds.contains(&error.kind()), "a lost leader looked like {}: {error}", error.kind().as_str());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

fn leader(members: &[&Server]) -> u16 {
    let mut port = None;
    wait_until("a leader is known", || {
        let Ok(text) = try_etcdctl(members, &["endpoint", "status", "--write-out=json"]) else { return false };
        let status: serde_json::Value = serde_json::from_str(&text).unwrap();
        let found = status.as_array().unwrap().iter().find(|each| {
            let status = &each["Status"];
            status["leader"] == status["header"]["member_id"]
        });
        port = found.and_then(|each| each["Endpoint"].as_str()?.rsplit(':').next()?.parse().ok());
        port.is_some()
    });
    port.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_loses_its_leader_continues_and_never_reissues_an_epoch() {
    let mut members = etcd_cluster(3);
    let first = leader(&members.iter().collect::<Vec<_>>());
    // Everybody talks to the leader that will be killed, and knows the others.
    members.sort_by_key(|member| member.port() != first);
    let hosts: Vec<String> = members.iter().map(|member| format!("127.0.0.1:{}", member.port())).collect();
    let url = format!("etcd://{}", hosts.join(","));
    let survey = opened(&url).await.unwrap().survey().await.unwrap();
    assert!(survey.remarks.iter().all(|remark| remark.advice.is_none()), "{survey:?}");
    assert_eq!((survey.class, found(&survey, "voting members").as_str()), (Class::A, "3"));
    let (contest, lease) = (Arc::new(Contest::default()), name("cluster"));
    let mut clients = Vec::new();
    for _ in 0..4 {
        let leases = Coordinator::new(opened(&url).await.unwrap());
        clients.push(tokio::spawn(contend(leases, lease.clone(), contest.clone())));
    }
    wait_until("the lease went round", || contest.grants() >= 30);
    members[0].kill();
    let before = contest.grants();
    wait_until("the lease goes round without the leader", || contest.grants() >= before + 30);
    let second = leader(&members[1..].iter().collect::<Vec<_>>());
    members[0].restart();
    // A member that is there and does not answer is passed over as well.
    let paused = members.iter().find(|member| member.port() == second).unwrap();
    paused.pause();
    let before = contest.grants();
    wait_until("the lease goes round without the second leader", || contest.grants() >= before + 30);
    contest.over.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.unwrap();
    }
    paused.resume();
    let leases = Coordinator::new(opened(&url).await.unwrap());
    let highest = contest.epochs.lock().unwrap().iter().next_back().copied().unwrap();
    let record = leases.inspect(&lease).await.unwrap().record;
    assert!(record.epoch >= highest, "the record has epoch {}, {highest} was granted", record.epoch);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_are_away_are_skipped() {
    let server = etcd();
    let gone = leasehold_testbed::free_port();
    let url = format!("etcd://127.0.0.1:{gone},127.0.0.1:{}", server.port());
    let leases = Coordinator::new(opened(&url).await.unwrap());
    // Its first exchange is a write: a connection that was refused carried nothing.
    let key = Key::new(Shelf::Probe, &name("passed-over"));
    assert!(matches!(leases.store().swap(&key, None, b"x").await.unwrap(), Swap::Done { .. }));
    let began = SystemClock.now();
    tenure(&leases, "passed-over").await.unwrap();
    assert!(SystemClock.now().saturating_since(began) < Duration::from_secs(5), "the good one is remembered");
    let survey = leases.store().survey().await.unwrap();
    assert!(found(&survey, "members' clocks").starts_with("1 of 2"), "{survey:?}");
    assert!(advice(&survey, "members' clocks").is_some());
}
