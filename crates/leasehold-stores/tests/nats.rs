//! The NATS store on real servers: every promise, faults, credentials, TLS, settings, and a cluster that loses its leader.

#![allow(clippy::unwrap_used)]

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use leasehold_conformance::{Bench, Effort, exercise};
use leasehold_core::store::{Class, Range, Store, Swap};
use leasehold_core::{
    Acquired, Ask, Coordinator, Epoch, HolderId, Key, Kind, LeaseName, Outcome, Revision, Shelf, Ttl,
};
use leasehold_stores::{StoreUrl, open};
use leasehold_testbed::{Opener, Proxy, Server, nats, nats_cluster, nats_with, suite};
use nkeys::KeyPair;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// How long a client may take to find its way back.
const RECOVERY: Duration = Duration::from_secs(30);

async fn store(url: &str) -> leasehold_core::Result<Arc<dyn Store>> {
    let url: StoreUrl = url.parse()?;
    open(&url).await
}

fn opener() -> Opener {
    Opener::new(|port| async move { store(&format!("nats://127.0.0.1:{port}")).await })
}

fn url(server: &Server) -> String {
    format!("nats://127.0.0.1:{}", server.port())
}

fn key(name: &str) -> Key {
    Key::new(Shelf::Probe, &LeaseName::new(name).unwrap())
}

fn done(swap: Swap) -> Revision {
    match swap {
        Swap::Done { revision, .. } => revision,
        Swap::Mismatch => panic!("a swap that nobody contends was refused"),
    }
}

/// Asks the server in its own words.
async fn ask(server: &Server, subject: &str, payload: &Value) -> Value {
    let client = async_nats::connect(url(server)).await.unwrap();
    let answer = client.request(subject.to_owned(), payload.to_string().into()).await.unwrap();
    serde_json::from_slice(&answer.payload).unwrap()
}

async fn streams(server: &Server) -> Value {
    ask(server, "$JS.API.STREAM.NAMES", &json!({})).await["streams"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nats_keeps_every_promise() {
    let server = nats();
    let url = url(&server);
    let bench = Bench::new(Effort::LIGHT, move || {
        let url = url.clone();
        async move { store(&url).await }
    });
    exercise(&bench).await.assert_kept();
}

// On one thread the two halves of an exchange leave together, as the count of exchanges wants it.
#[tokio::test]
async fn faults_do_no_harm() {
    let mut server = nats();
    suite::withstands_faults(&mut server, &opener()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_wakes_the_waiter() {
    let server = nats();
    suite::a_release_wakes_the_waiter(server.port(), &opener()).await;
}

#[tokio::test]
async fn namespaces_are_apart() {
    let server = nats();
    let (plain, team) =
        (store(&url(&server)).await.unwrap(), store(&(url(&server) + "?namespace=team")).await.unwrap());
    leasehold_testbed::namespaces_are_apart(plain, team).await;
    assert_eq!(streams(&server).await, json!(["KV_leasehold-default", "KV_leasehold-team"]));
}

#[tokio::test]
async fn only_a_write_makes_the_bucket() {
    let server = nats();
    let store = store(&url(&server)).await.unwrap();
    let reading = store.read(&key("a")).await.unwrap();
    assert_eq!(reading.value, None);
    assert!(reading.now.as_millis() > 1_700_000_000_000, "{:?}", reading.now);
    let page = store.list(Shelf::Probe, Range::new(None, 10)).await.unwrap();
    assert!(page.entries.is_empty() && !page.more && page.now >= reading.now);
    let survey = store.survey().await.unwrap();
    assert!(survey.remarks.iter().any(|remark| remark.found.contains("not made yet")), "{survey:?}");
    let mut watch = store.watch(&key("a")).await.unwrap();
    let nothing = Revision("7".into());
    assert_eq!(store.swap(&key("a"), Some(&nothing), b"x").await.unwrap(), Swap::Mismatch);
    assert_eq!(store.erase(&key("a"), &nothing).await.unwrap(), Swap::Mismatch);
    assert_eq!(streams(&server).await, Value::Null);
    done(store.swap(&key("a"), None, b"x").await.unwrap());
    timeout(Duration::from_secs(5), watch.hint()).await.expect("a watch that came before the bucket hints");
    let config = ask(&server, "$JS.API.STREAM.INFO.KV_leasehold-default", &json!({})).await["config"].clone();
    assert_eq!(config["max_msgs_per_subject"], 1);
    assert_eq!((&config["max_age"], &config["storage"]), (&json!(0), &json!("file")));
    assert_eq!((&config["allow_direct"], &config["discard"]), (&json!(false), &json!("new")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_first_writers_make_one_bucket() {
    let server = nats();
    let mut writers = Vec::new();
    for at in 0..12 {
        let url = format!("{}?replicas=1&namespace=crowd", url(&server));
        writers.push(tokio::spawn(async move {
            let store = store(&url).await.unwrap();
            let own = key(&format!("own/{at}"));
            let won = matches!(store.swap(&key("shared"), None, b"x").await.unwrap(), Swap::Done { .. });
            done(store.swap(&own, None, b"y").await.unwrap());
            won
        }));
    }
    let mut winners = 0;
    for writer in writers {
        winners += u32::from(writer.await.unwrap());
    }
    assert_eq!(winners, 1);
    let store = store(&(url(&server) + "?namespace=crowd")).await.unwrap();
    assert_eq!(store.list(Shelf::Probe, Range::new(None, 100)).await.unwrap().entries.len(), 13);
}

#[tokio::test]
async fn a_marker_that_was_left_behind_is_written_over() {
    let server = nats();
    let store = store(&url(&server)).await.unwrap();
    let (erased, kept) = (key("a.b"), key("kept"));
    let old = done(store.swap(&erased, None, b"x").await.unwrap());
    done(store.swap(&kept, None, b"").await.unwrap());
    // As if the eraser had died after its first step.
    let client = async_nats::connect(url(&server)).await.unwrap();
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("KV-Operation", "DEL");
    client.request_with_headers("$KV.leasehold-default.probe.a=2Eb", headers, "".into()).await.unwrap();
    assert_eq!(store.read(&erased).await.unwrap().value, None);
    let page = store.list(Shelf::Probe, Range::new(None, 1)).await.unwrap();
    assert_eq!(page.entries.len(), 1);
    assert_eq!(page.entries[0].0, kept.name);
    assert_eq!(store.swap(&erased, Some(&old), b"zombie").await.unwrap(), Swap::Mismatch);
    let new = done(store.swap(&erased, None, b"y").await.unwrap());
    assert_eq!(store.swap(&erased, None, b"z").await.unwrap(), Swap::Mismatch);
    let gone = done(store.erase(&erased, &new).await.unwrap());
    assert_eq!(store.swap(&erased, Some(&gone), b"zombie").await.unwrap(), Swap::Mismatch);
    let info = json!({"subjects_filter": "$KV.leasehold-default.>"});
    let info = ask(&server, "$JS.API.STREAM.INFO.KV_leasehold-default", &info).await;
    assert_eq!(
        info["state"]["subjects"],
        json!({"$KV.leasehold-default.probe.kept": 1}),
        "an erased key leaves nothing"
    );
}

#[tokio::test]
async fn a_bucket_that_forgets_is_refused() {
    let server = nats();
    for (namespace, setting, says) in [
        ("ttl", json!({"max_age": 60_000_000_000_u64}), "ttl"),
        ("full", json!({"max_bytes": 1_000_000, "discard": "old"}), "discards old records"),
        ("queue", json!({"retention": "workqueue"}), "drops what was consumed"),
    ] {
        let stream = format!("KV_leasehold-{namespace}");
        let mut config = json!({"name": stream, "subjects": [format!("$KV.leasehold-{namespace}.>")]});
        config.as_object_mut().unwrap().extend(setting.as_object().unwrap().clone());
        let made = ask(&server, &format!("$JS.API.STREAM.CREATE.{stream}"), &config).await;
        assert_eq!(made["error"], Value::Null);
        let store = store(&format!("{}?namespace={namespace}", url(&server))).await.unwrap();
        let refused = [
            store.swap(&key("a"), None, b"x").await.unwrap_err(),
            store.read(&key("a")).await.unwrap_err(),
            store.list(Shelf::Probe, Range::new(None, 1)).await.unwrap_err(),
        ];
        for error in refused {
            assert_eq!(error.kind(), Kind::Unsupported, "{error}");
            assert!(error.to_string().contains(says) && error.to_string().contains(&stream), "{error}");
        }
        let state = ask(&server, &format!("$JS.API.STREAM.INFO.{stream}"), &json!({})).await["state"].clone();
        assert_eq!(state["last_seq"], 0, "nothing was written");
    }
}

#[tokio::test]
async fn a_survey_says_what_to_change() {
    let server = nats();
    let config = json!({
        "name": "KV_leasehold-weak", "subjects": ["$KV.leasehold-weak.>"], "storage": "memory", "allow_direct": true,
        "max_msgs_per_subject": 5,
    });
    ask(&server, "$JS.API.STREAM.CREATE.KV_leasehold-weak", &config).await;
    let store = store(&(url(&server) + "?namespace=weak")).await.unwrap();
    let revision = done(store.swap(&key("a"), None, b"1").await.unwrap());
    done(store.swap(&key("a"), Some(&revision), b"2").await.unwrap());
    assert_eq!(store.read(&key("a")).await.unwrap().value.unwrap().bytes, b"2");
    let survey = store.survey().await.unwrap();
    assert_eq!(survey.class, Class::B);
    for setting in ["storage", "replicas", "sync_interval"] {
        let remark = survey.remarks.iter().find(|remark| remark.setting == setting).expect(setting);
        assert!(remark.advice.is_some(), "{remark:?}");
    }
}

#[tokio::test]
async fn without_jetstream_the_error_says_how_to_get_it() {
    let server = nats_with("", &[]);
    let store = store(&url(&server)).await.unwrap();
    for error in [store.read(&key("a")).await.unwrap_err(), store.swap(&key("a"), None, b"x").await.unwrap_err()] {
        assert_eq!(error.kind(), Kind::Unsupported);
        assert!(error.to_string().contains("`-js`"), "{error}");
    }
}

#[tokio::test]
async fn a_watch_survives_a_cut() {
    let server = nats();
    let proxy = Proxy::start(server.port());
    let writer = store(&url(&server)).await.unwrap();
    let watcher = store(&format!("nats://127.0.0.1:{}", proxy.port())).await.unwrap();
    let first = done(writer.swap(&key("a"), None, b"1").await.unwrap());
    let mut watch = watcher.watch(&key("a")).await.unwrap();
    let made = proxy.connections();
    proxy.cut();
    timeout(RECOVERY, watch.hint()).await.expect("a watch that lost its connection hints when it is back");
    assert_eq!(proxy.connections(), made + 1);
    let second = done(writer.swap(&key("a"), Some(&first), b"2").await.unwrap());
    timeout(Duration::from_secs(2), watch.hint()).await.expect("it hints again");
    drop(watch);
    // The consumer goes with its watcher.
    let gone = async {
        while ask(&server, "$JS.API.CONSUMER.NAMES.KV_leasehold-default", &json!({})).await["total"] != 0 {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(RECOVERY, gone).await.expect("nothing is left on the server");
    assert_eq!(watcher.read(&key("a")).await.unwrap().value.unwrap().revision, second);
}

#[tokio::test]
async fn a_write_that_was_given_up_on_is_not_sent_later() {
    let server = nats();
    let proxy = Proxy::start(server.port());
    let cut = store(&format!("nats://127.0.0.1:{}", proxy.port())).await.unwrap();
    let revision = done(cut.swap(&key("a"), None, b"1").await.unwrap());
    proxy.sever();
    let noticed = async {
        while cut.read(&key("a")).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    timeout(RECOVERY, noticed).await.expect("a severed connection is noticed");
    let mut kinds = Vec::new();
    for _ in 0..5 {
        kinds.push(cut.swap(&key("a"), Some(&revision), b"late").await.unwrap_err().kind());
    }
    assert!(kinds.iter().all(|kind| matches!(kind, Kind::Unavailable | Kind::Indeterminate)), "{kinds:?}");
    assert_eq!(kinds.last(), Some(&Kind::Unavailable), "what could not be sent was surely not done");
    proxy.heal();
    // Whatever the driver had kept would be sent on its new connection, before or among these.
    for _ in 0..50 {
        assert_eq!(cut.read(&key("a")).await.unwrap().value.unwrap().bytes, b"1");
    }
    done(cut.swap(&key("a"), Some(&revision), b"2").await.unwrap());
}

const USERS: &str = r#"
jetstream: enabled
authorization { users: [
  { user: "worker", password: "hunter2" }
  { user: "reader", password: "hunter3", permissions: { publish: {
      deny: ["$JS.API.STREAM.CREATE.>", "$KV.leasehold-default.>"] } } }
  { user: "blind", password: "hunter4", permissions: { publish: { deny: "$SYS.>" } } }
] }
"#;

fn reload(server: &Server) {
    let pid = server.pid().unwrap().to_string();
    assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
}

#[tokio::test]
async fn revoked_credentials_are_a_clear_error_and_never_a_grant() {
    let server = nats_with(USERS, &[]);
    let at = format!("127.0.0.1:{}", server.port());
    for wrong in [format!("nats://worker:hunter9@{at}"), format!("nats://{at}"), format!("nats://hunter9@{at}")] {
        let error = store(&wrong).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported, "{error}");
        assert!(error.to_string().contains("credentials") && !error.to_string().contains("hunter"), "{error}");
    }
    let store = store(&format!("nats://worker:hunter2@{at}")).await.unwrap();
    assert!(!format!("{store:?}").contains("hunter2"));
    let leases = Coordinator::new(store);
    let lease = LeaseName::new("revoked").unwrap();
    let ask = || Ask::new(HolderId::new(None), Ttl::MAX);
    let Acquired::Granted(mut grant) = leases.acquire(&lease, &ask()).await.unwrap() else { panic!("a fresh lease") };
    let config = server.folder().join("nats.conf");
    std::fs::write(&config, USERS.replace("hunter2", "changed")).unwrap();
    reload(&server);
    let refused = async {
        loop {
            match leases.renew(&mut grant, None).await {
                Err(error) if error.kind() == Kind::Unsupported => return error,
                // Until the server has read its file again.
                Ok(()) => sleep(Duration::from_millis(20)).await,
                Err(error) => assert!(matches!(error.kind(), Kind::Unavailable | Kind::Indeterminate), "{error}"),
            }
        }
    };
    let error = timeout(RECOVERY, refused).await.expect("a revoked user is told so");
    assert!(error.to_string().contains("credentials") && !error.to_string().contains("hunter2"), "{error}");
    let other = LeaseName::new("another").unwrap();
    assert_eq!(leases.acquire(&other, &ask()).await.unwrap_err().kind(), Kind::Unsupported);
    std::fs::write(&config, USERS).unwrap();
    reload(&server);
    let again = async {
        while leases.renew(&mut grant, None).await.is_err() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(RECOVERY, again).await.expect("the same client goes on when it is let in again");
}

#[tokio::test]
async fn a_missing_permission_is_reported_at_once_with_what_to_run() {
    let server = nats_with(USERS, &[]);
    let at = format!("127.0.0.1:{}", server.port());
    let reader = store(&format!("nats://reader:hunter3@{at}")).await.unwrap();
    let told = timeout(Duration::from_secs(3), reader.swap(&key("a"), None, b"x")).await.expect("at once");
    let error = told.unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported, "{error}");
    assert!(error.to_string().contains("`nats kv add leasehold-default --history=1"), "{error}");
    let blind = store(&format!("nats://blind:hunter4@{at}")).await.unwrap();
    let told = timeout(Duration::from_secs(3), blind.read(&key("a"))).await.expect("at once");
    let error = told.unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported, "{error}");
    assert!(error.to_string().contains("allow `$SYS.REQ.USER.INFO`"), "{error}");
    let worker = store(&format!("nats://worker:hunter2@{at}")).await.unwrap();
    done(worker.swap(&key("a"), None, b"x").await.unwrap());
    assert_eq!(reader.read(&key("a")).await.unwrap().value.unwrap().bytes, b"x");
    let told = timeout(Duration::from_secs(3), reader.swap(&key("b"), None, b"x")).await.expect("at once");
    assert_eq!(told.unwrap_err().kind(), Kind::Unsupported);
}

/// A JWT as NATS makes them: signed by one key about another.
fn jwt(by: &KeyPair, about: &KeyPair, name: &str, claims: Value) -> String {
    let body = json!({
        "jti": name, "iat": 1_700_000_000, "iss": by.public_key(), "sub": about.public_key(), "name": name,
        "nats": claims,
    });
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", part(json!({"typ": "JWT", "alg": "ed25519-nkey"})), part(body));
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(by.sign(signed.as_bytes()).unwrap()))
}

#[tokio::test]
async fn a_token_an_nkey_and_a_credentials_file_let_in() {
    let server = nats_with("jetstream: enabled\nauthorization { token: \"s3cret\" }", &[]);
    let token = store(&format!("nats://s3cret@127.0.0.1:{}", server.port())).await.unwrap();
    done(token.swap(&key("a"), None, b"x").await.unwrap());

    let user = KeyPair::new_user();
    let config = format!("jetstream: enabled\nauthorization {{ users: [{{ nkey: {} }}] }}", user.public_key());
    let seed = format!("{}\n", user.seed().unwrap());
    let server = nats_with(&config, &[("user.nk", &seed)]);
    let file = server.folder().join("user.nk");
    let by_nkey = store(&format!("{}?nkey={}", url(&server), file.display())).await.unwrap();
    done(by_nkey.swap(&key("a"), None, b"x").await.unwrap());
    assert_eq!(store(&url(&server)).await.unwrap_err().kind(), Kind::Unsupported);

    let (operator, account, system) = (KeyPair::new_operator(), KeyPair::new_account(), KeyPair::new_account());
    let limits = json!({"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true,
        "conn": -1, "leaf": -1, "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1});
    let no_disk = json!({"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true,
        "conn": -1, "leaf": -1});
    let claims = |limits: Value| json!({"type": "account", "version": 2, "limits": limits});
    let about_operator = jwt(&operator, &operator, "op", json!({"type": "operator", "version": 2}));
    let about_account = jwt(&operator, &account, "team", claims(limits));
    let about_system = jwt(&operator, &system, "SYS", claims(no_disk));
    let may = json!({"type": "user", "version": 2, "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1});
    let about_user = jwt(&account, &user, "worker", may);
    let config = format!(
        "jetstream: enabled\noperator: {about_operator}\nsystem_account: {}\nresolver: MEMORY\n\
         resolver_preload: {{ {}: {about_account}, {}: {about_system} }}",
        system.public_key(),
        account.public_key(),
        system.public_key(),
    );
    let creds = format!(
        "-----BEGIN NATS USER JWT-----\n{about_user}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}------END USER NKEY SEED------\n"
    );
    let server = nats_with(&config, &[("user.creds", &creds)]);
    let file = server.folder().join("user.creds");
    let by_file = store(&format!("{}?creds={}", url(&server), file.display())).await.unwrap();
    done(by_file.swap(&key("a"), None, b"x").await.unwrap());
    let error = store(&format!("{}?creds=/no/such.creds", url(&server))).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.to_string().contains("`/no/such.creds`"), "{error}");
}

fn openssl(folder: &Path, words: &str) {
    let output = Command::new("openssl").args(words.split_whitespace()).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "openssl {words}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A throw-away authority, and certificates of it for a server and a client.
fn certificates(folder: &Path) {
    let ec = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(folder, &format!("req -x509 {ec} -keyout ca.key -out ca.pem -days 2 -subj /CN=leasehold-test-ca"));
    std::fs::write(folder.join("san"), "subjectAltName=DNS:localhost,IP:127.0.0.1").unwrap();
    for name in ["server", "client"] {
        openssl(folder, &format!("req -new {ec} -keyout {name}.key -out {name}.csr -subj /CN={name}"));
        let sign = "-CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile san";
        openssl(folder, &format!("x509 -req -in {name}.csr {sign} -out {name}.pem"));
    }
}

#[tokio::test]
async fn tls_needs_the_right_authority_and_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().display();
    certificates(folder.path());
    let tls = |verify: &str| {
        format!(
            "jetstream: enabled\ntls {{ cert_file: \"{here}/server.pem\", key_file: \"{here}/server.key\", \
             ca_file: \"{here}/ca.pem\", verify: {verify} }}"
        )
    };
    let server = nats_with(&tls("false"), &[]);
    let at = format!("127.0.0.1:{}", server.port());
    for (turn, scheme) in ["nats", "tls", "nats+tls"].into_iter().enumerate() {
        let store = store(&format!("{scheme}://{at}?ca={here}/ca.pem")).await.unwrap();
        done(store.swap(&key(&turn.to_string()), None, b"x").await.unwrap());
    }
    let error = store(&format!("tls://{at}")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported, "{error}");
    assert!(error.to_string().contains("`?ca=/path`"), "{error}");

    let server = nats_with(&tls("true"), &[]);
    let at = format!("127.0.0.1:{}", server.port());
    let with = format!("tls://{at}?ca={here}/ca.pem&cert={here}/client.pem&key={here}/client.key");
    done(store(&with).await.unwrap().swap(&key("a"), None, b"x").await.unwrap());
    let error = store(&format!("tls://{at}?ca={here}/ca.pem")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported, "without a certificate of its own: {error}");
    assert!(error.to_string().contains("certificate"), "{error}");

    let plain = nats();
    let error = store(&format!("{}?ca={here}/ca.pem", url(&plain))).await.unwrap_err();
    let is_refused = matches!(error.kind(), Kind::Unavailable | Kind::Unsupported);
    assert!(is_refused, "whoever names an authority is not led to a server without tls: {error}");
}

#[tokio::test]
async fn of_several_servers_one_is_enough() {
    let server = nats();
    let dead = leasehold_testbed::free_port();
    let store = store(&format!("nats://127.0.0.1:{dead},127.0.0.1:{}", server.port())).await.unwrap();
    done(store.swap(&key("a"), None, b"x").await.unwrap());
}

/// Takes and releases until told to stop; every epoch is noted.
async fn contend(leases: Coordinator, lease: LeaseName, epochs: Arc<Mutex<BTreeSet<Epoch>>>, until: Arc<Mutex<usize>>) {
    let ttl = Ttl::new(Duration::from_secs(3)).unwrap();
    while epochs.lock().unwrap().len() < *until.lock().unwrap() {
        match leases.acquire(&lease, &Ask::new(HolderId::new(None), ttl)).await {
            Ok(Acquired::Granted(grant)) => {
                let epoch = grant.token().epoch;
                let is_new = epochs.lock().unwrap().insert(epoch);
                assert!(is_new, "epoch {epoch} was granted twice");
                let _ = leases.release(&grant, Outcome::Succeeded).await;
            }
            Ok(Acquired::Refused { .. }) => sleep(Duration::from_millis(5)).await,
            Err(error) => {
                let is_outage = matches!(error.kind(), Kind::Unavailable | Kind::Indeterminate | Kind::Contended);
                assert!(is_outage || error.kind() == Kind::Lost, "{error}");
                sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_loses_its_leader_continues_and_reissues_no_epoch() {
    let mut servers = nats_cluster();
    let hosts: Vec<String> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    let url = format!("nats://{}?replicas=3", hosts.join(","));
    let first = store(&url).await.unwrap();
    // The three need a moment to find each other.
    let ready = async {
        while first.swap(&key("ready"), None, b"x").await.is_err() {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(Duration::from_secs(60), ready).await.expect("a cluster comes up");
    let survey = first.survey().await.unwrap();
    let found = |setting: &str| survey.remarks.iter().find(|remark| remark.setting == setting).unwrap().found.clone();
    assert_eq!(found("replicas"), "3");
    let lease = LeaseName::new("contended").unwrap();
    let (epochs, until) = (Arc::new(Mutex::new(BTreeSet::new())), Arc::new(Mutex::new(usize::MAX)));
    let mut clients = Vec::new();
    for _ in 0..4 {
        let leases = Coordinator::new(store(&url).await.unwrap());
        clients.push(tokio::spawn(contend(leases, lease.clone(), epochs.clone(), until.clone())));
    }
    let count = || epochs.lock().unwrap().len();
    let some = async {
        while count() < 30 {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(RECOVERY, some).await.expect("the cluster grants");
    let leader: usize = found("leader").strip_prefix("node-").unwrap().parse().unwrap();
    servers[leader].kill();
    *until.lock().unwrap() = count() + 30;
    for client in clients {
        timeout(Duration::from_secs(60), client).await.expect("the others go on").unwrap();
    }
    let highest = *epochs.lock().unwrap().last().unwrap();
    let record = Coordinator::new(store(&url).await.unwrap()).inspect(&lease).await.unwrap().record;
    assert!(record.epoch >= highest, "the record has epoch {}, {highest} was granted", record.epoch);
}
