//! The MySQL store on a real MariaDB server: every promise, faults, credentials, TLS, odd defaults, time zones.

#![allow(clippy::unwrap_used)]

use leasehold_conformance::{Bench, Effort, exercise};
use leasehold_core::store::{Class, Range, Revision, Store, Survey, Swap};
use leasehold_core::{Acquired, Ask, Coordinator, Error, Grant, HolderId, Key, Kind, LeaseName, Outcome, Shelf, Ttl};
use leasehold_stores::{StoreUrl, open};
use leasehold_testbed::{
    FakeTime, Opener, Server, mariadb, mariadb_run, mariadb_with, namespaces_are_apart, program, suite, wait_until,
};
use mysql_async::prelude::Queryable;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const PASSWORD: &str = "hunter2";

async fn store(url: &str) -> Arc<dyn Store> {
    open(&url.parse::<StoreUrl>().unwrap()).await.unwrap()
}

fn at(server: &Server, user: &str, database: &str) -> String {
    format!("mysql://{user}@127.0.0.1:{}/{database}", server.port())
}

fn key(name: &str) -> Key {
    Key::new(Shelf::Probe, &name.parse().unwrap())
}

fn is_done(swap: &Swap) -> bool {
    matches!(swap, Swap::Done { .. })
}

async fn write(store: &Arc<dyn Store>, name: &str, value: &[u8]) -> Result<Revision, Error> {
    let found = store.read(&key(name)).await?.value.map(|value| value.revision);
    match store.swap(&key(name), found.as_ref(), value).await? {
        Swap::Done { revision, .. } => Ok(revision),
        Swap::Mismatch => panic!("nobody else writes `{name}`"),
    }
}

/// What is refused as a fault of the set-up, in words that hold no password.
fn refused_for_set_up(error: &Error, says: &str) {
    let message = error.to_string();
    assert!(error.kind() == Kind::Unsupported && message.contains(says), "{:?}: {message}", error.kind());
    assert!(!message.contains(PASSWORD) && !message.contains('\n'), "{message}");
}

fn tables(server: &Server) -> String {
    mariadb_run(server, "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'leases'")
        .trim()
        .to_owned()
}

fn advised(survey: &Survey) -> Vec<&str> {
    survey.remarks.iter().filter(|remark| remark.advice.is_some()).map(|remark| remark.setting.as_str()).collect()
}

async fn acquire(leases: &Coordinator, lease: &LeaseName) -> Result<Grant, Error> {
    match leases.acquire(lease, &Ask::new(HolderId::new(None), Ttl::MAX)).await? {
        Acquired::Granted(grant) => Ok(*grant),
        Acquired::Refused { refusal, .. } => panic!("refused: {refusal:?}"),
    }
}

/// What confirms a write without an answer: InnoDB may show a commit before it has flushed it, and an update that changes
/// nothing is no commit at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_bytes_are_a_new_commit_that_is_flushed() {
    let server = mariadb();
    let leases = store(&at(&server, "root", "leases")).await;
    write(&leases, "equal", b"same").await.unwrap();
    let log = |name: &str| -> u64 {
        let told = mariadb_run(&server, &format!("SHOW GLOBAL STATUS LIKE '{name}'"));
        told.split_whitespace().last().unwrap().parse().unwrap()
    };
    for _ in 0..5 {
        let written = log("Innodb_lsn_current");
        write(&leases, "equal", b"same").await.unwrap();
        let flushed = log("Innodb_lsn_flushed");
        assert!(flushed > written, "the log was written up to {written} before, and is flushed up to {flushed}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_keeps_every_promise() {
    let server = mariadb();
    let url = at(&server, "root", "leases");
    // Looking makes nothing.
    let looking = store(&url).await;
    assert_eq!(looking.read(&key("nothing")).await.unwrap().value, None);
    let page = looking.list(Shelf::Probe, Range::new(None, 10)).await.unwrap();
    assert!(page.entries.is_empty() && !page.more);
    let survey = looking.survey().await.unwrap();
    assert_eq!((survey.class, advised(&survey)), (Class::A, vec![]));
    assert_eq!(tables(&server), "0");

    let opened: StoreUrl = url.parse().unwrap();
    let bench = Bench::new(Effort::LIGHT, move || {
        let url = opened.clone();
        async move { open(&url).await }
    });
    exercise(&bench).await.assert_kept();
    let socket = format!("mariadb://root@/leases?namespace=team&socket={}/socket", server.folder().display());
    namespaces_are_apart(store(&url).await, store(&socket).await).await;
    assert_eq!(tables(&server), "1");
    let save = || {
        drop(mariadb_run(
            &server,
            "CREATE DATABASE saved; CREATE TABLE saved.saved AS SELECT * FROM leases.leasehold_record",
        ))
    };
    let back = "REPLACE INTO leases.leasehold_record SELECT * FROM saved.saved";
    suite::a_forgotten_swap_does_not_come_again(&*looking, save, || drop(mariadb_run(&server, back))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_do_no_harm() {
    let mut server = mariadb();
    let opener =
        Opener::new(
            |port| async move { open(&format!("mysql://root@127.0.0.1:{port}/leases").parse::<StoreUrl>()?).await },
        );
    suite::withstands_faults(&mut server, &opener).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_get_what_they_are_granted_and_no_more() {
    let server = mariadb();
    mariadb_run(&server, &format!("CREATE USER worker@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'"));
    mariadb_run(&server, "GRANT SELECT, INSERT, UPDATE, DELETE ON leases.* TO worker@'127.0.0.1'");
    let worker = store(&at(&server, &format!("worker:{PASSWORD}"), "leases")).await;
    assert!(!format!("{worker:?}").contains(PASSWORD), "{worker:?}");
    may_not_make_the_table(&server, &worker).await;
    many_make_the_table_at_once(&server).await;
    wrong_credentials_are_named(&server).await;
    every_kind_of_login_works(&server).await;
    revoked_credentials_grant_nothing(&server).await;
    a_server_that_takes_no_writes_says_so(&server, &worker).await;
    a_record_in_anothers_transaction_is_not_waited_for_long(&server, &worker).await;
}

async fn may_not_make_the_table(server: &Server, worker: &Arc<dyn Store>) {
    assert_eq!(worker.read(&key("a")).await.unwrap().value, None);
    let error = worker.swap(&key("a"), None, b"x").await.unwrap_err();
    refused_for_set_up(&error, "let one who may run: CREATE TABLE IF NOT EXISTS leasehold_record (");
    assert_eq!(tables(server), "0");
    let message = error.to_string();
    let from = message.find("CREATE TABLE").unwrap();
    let until = message.find("ENGINE=InnoDB").unwrap() + "ENGINE=InnoDB".len();
    mariadb_run(server, &format!("USE leases; {}", &message[from..until]));
    assert!(is_done(&worker.swap(&key("a"), None, b"x").await.unwrap()));
}

async fn many_make_the_table_at_once(server: &Server) {
    mariadb_run(server, "CREATE DATABASE race");
    let mut racers = Vec::new();
    for number in 0..12 {
        let store = store(&at(server, "root", "race")).await;
        racers.push(tokio::spawn(async move {
            assert!(is_done(&store.swap(&key(&format!("own-{number}")), None, b"x").await.unwrap()));
            is_done(&store.swap(&key("shared"), None, b"x").await.unwrap())
        }));
    }
    let mut winners = 0;
    for racer in racers {
        winners += usize::from(racer.await.unwrap());
    }
    assert_eq!(winners, 1);
}

async fn wrong_credentials_are_named(server: &Server) {
    for (user, database, says) in [
        (format!("worker:{PASSWORD}x"), "leases", "check user, password"),
        ("nobody".to_owned(), "leases", "check user, password"),
        (format!("worker:{PASSWORD}"), "race", "denied"),
        ("root".to_owned(), "nowhere", "CREATE DATABASE"),
    ] {
        let store = store(&at(server, &user, database)).await;
        refused_for_set_up(&store.read(&key("a")).await.unwrap_err(), says);
        refused_for_set_up(&store.swap(&key("a"), None, b"x").await.unwrap_err(), says);
    }
    let error = store(&format!("{}?ssl-mode=REQUIRED", at(server, "root", "leases"))).await.read(&key("a")).await;
    refused_for_set_up(&error.unwrap_err(), "has no TLS");
}

async fn every_kind_of_login_works(server: &Server) {
    mariadb_run(server, "INSTALL SONAME 'auth_ed25519'");
    for plugin in ["mysql_native_password", "ed25519"] {
        let user = plugin.split('_').next_back().unwrap();
        let password = format!("VIA {plugin} USING PASSWORD('{PASSWORD}')");
        mariadb_run(server, &format!("CREATE USER {user}@'127.0.0.1' IDENTIFIED {password}"));
        mariadb_run(server, &format!("GRANT SELECT ON leases.* TO {user}@'127.0.0.1'"));
        let store = store(&at(server, &format!("{user}:{PASSWORD}"), "leases")).await;
        assert_eq!(store.read(&key("a")).await.unwrap().value.unwrap().bytes, b"x", "{plugin}");
    }
    // The driver fails at one of 256 by itself.
    for login in 0..400 {
        let store = store(&at(server, &format!("ed25519:{PASSWORD}"), "leases")).await;
        assert!(store.read(&key("a")).await.is_ok(), "login {login}");
    }
}

async fn revoked_credentials_grant_nothing(server: &Server) {
    let make = format!(
        "CREATE USER temp@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'; \
        GRANT SELECT, INSERT, UPDATE, DELETE ON leases.leasehold_record TO temp@'127.0.0.1'"
    );
    mariadb_run(server, &make);
    let leases = Coordinator::new(store(&at(server, &format!("temp:{PASSWORD}"), "leases")).await);
    let (held, other): (LeaseName, LeaseName) = ("revoked/held".parse().unwrap(), "revoked/other".parse().unwrap());
    let mut grant = acquire(&leases, &held).await.unwrap();

    mariadb_run(server, "REVOKE INSERT, UPDATE ON leases.leasehold_record FROM temp@'127.0.0.1'");
    refused_for_set_up(&leases.renew(&mut grant, None).await.unwrap_err(), "denied");
    refused_for_set_up(&acquire(&leases, &other).await.unwrap_err(), "denied");
    assert_eq!(leases.inspect(&held).await.unwrap().record.epoch, grant.record().epoch);

    mariadb_run(server, "DROP USER temp@'127.0.0.1'; KILL USER temp");
    refused_for_set_up(&leases.inspect(&held).await.unwrap_err(), "check user, password");
    refused_for_set_up(&acquire(&leases, &other).await.unwrap_err(), "check user, password");

    // Given back, they work again, in the same process.
    mariadb_run(server, &make);
    leases.renew(&mut grant, None).await.unwrap();
    leases.release(&grant, Outcome::Succeeded).await.unwrap();
    assert!(acquire(&leases, &held).await.unwrap().record().epoch > grant.record().epoch);
}

async fn a_server_that_takes_no_writes_says_so(server: &Server, worker: &Arc<dyn Store>) {
    let revision = write(worker, "read-only", b"before").await.unwrap();
    mariadb_run(server, "SET GLOBAL read_only = 1");
    let error = worker.swap(&key("read-only"), Some(&revision), b"after").await.unwrap_err();
    assert!(error.kind() == Kind::Unavailable && error.to_string().contains("takes no writes"), "{error}");
    // It may have been demoted, and its name lead elsewhere by now: no connection to it is kept.
    let connections = "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'worker'";
    wait_until("every connection is closed", || mariadb_run(server, connections).trim() == "0");
    let value = worker.read(&key("read-only")).await.unwrap().value.unwrap();
    assert_eq!((value.bytes.as_slice(), &value.revision), (b"before".as_slice(), &revision));
    assert_eq!(worker.survey().await.unwrap().class, Class::B);
    mariadb_run(server, "SET GLOBAL read_only = 0");
    assert!(is_done(&worker.swap(&key("read-only"), Some(&revision), b"after").await.unwrap()));
}

async fn a_record_in_anothers_transaction_is_not_waited_for_long(server: &Server, worker: &Arc<dyn Store>) {
    let revision = write(worker, "busy", b"before").await.unwrap();
    let options = mysql_async::OptsBuilder::default().ip_or_hostname("127.0.0.1").tcp_port(server.port());
    let options = options.user(Some("root")).db_name(Some("leases")).prefer_socket(false);
    let mut other = mysql_async::Conn::new(options).await.unwrap();
    other.query_drop("BEGIN; UPDATE leasehold_record SET value = 'dirty' WHERE name = 'busy'").await.unwrap();
    let error = worker.swap(&key("busy"), Some(&revision), b"after").await.unwrap_err();
    assert!(error.kind() == Kind::Unavailable && error.to_string().contains("busy"), "{error}");
    assert_eq!(worker.read(&key("busy")).await.unwrap().value.unwrap().bytes, b"before", "readers do not wait");
    other.query_drop("ROLLBACK").await.unwrap();
    other.disconnect().await.unwrap();
    assert!(is_done(&worker.swap(&key("busy"), Some(&revision), b"after").await.unwrap()));
}

fn openssl(folder: &Path, args: &str) {
    let output = Command::new("openssl").current_dir(folder).args(args.split(' ')).output().unwrap();
    assert!(output.status.success(), "openssl {args}: {}", String::from_utf8_lossy(&output.stderr));
}

/// An authority, and a server's certificate for the name `localhost` that it signed.
fn certificates(folder: &Path) {
    for authority in ["ca", "other"] {
        let subject = format!("-subj /CN={authority} -keyout {authority}.key -out {authority}.pem");
        openssl(folder, &format!("req -x509 -newkey rsa:2048 -nodes -days 2 {subject}"));
    }
    openssl(folder, "req -newkey rsa:2048 -nodes -subj /CN=server -keyout server.key -out server.csr");
    std::fs::write(folder.join("names"), "subjectAltName=DNS:localhost").unwrap();
    let signed = "-CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.pem";
    openssl(folder, &format!("x509 -req -in server.csr {signed}"));
    // The server runs as another user.
    let done = Command::new("chmod").arg("0644").arg(folder.join("server.key")).status().unwrap();
    assert!(done.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_as_strict_as_asked_for() {
    let folder = Server::folder_for("mysql");
    certificates(folder.path());
    let here = folder.path().display();
    let arguments = [
        format!("--ssl-ca={here}/ca.pem"),
        format!("--ssl-cert={here}/server.pem"),
        format!("--ssl-key={here}/server.key"),
    ];
    let server = mariadb_with(&arguments.each_ref().map(String::as_str), &[]);
    let make =
        format!("CREATE USER safe@'%' IDENTIFIED BY '{PASSWORD}' REQUIRE SSL; GRANT ALL ON leases.* TO safe@'%'");
    mariadb_run(&server, &make);
    let with = |host: &str, options: &str| format!("mysql://safe:{PASSWORD}@{host}:{}/leases?{options}", server.port());
    for url in [
        with("127.0.0.1", ""),
        with("127.0.0.1", "ssl-mode=REQUIRED"),
        with("localhost", &format!("ssl-ca={here}/ca.pem")),
        with("localhost", &format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={here}/ca.pem")),
    ] {
        let store = store(&url).await;
        // Twice: the second goes over the connection that the first left.
        write(&store, "tls", b"x").await.unwrap();
        write(&store, "tls", b"y").await.unwrap();
    }
    for (url, says) in [
        (with("localhost", &format!("ssl-mode=VERIFY_CA&ssl-ca={here}/other.pem")), "is not trusted"),
        (with("localhost", "ssl-mode=VERIFY_IDENTITY"), "is not trusted"),
        (with("127.0.0.1", &format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={here}/ca.pem")), "is not trusted"),
        (with("localhost", "ssl-mode=DISABLED"), "check user, password"),
    ] {
        let error = store(&url).await.read(&key("tls")).await.unwrap_err();
        refused_for_set_up(&error, says);
    }
}

/// A server in Berlin, in the hour that comes twice, whose defaults are all unfortunate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_defaults_and_folded_hours_change_nothing() {
    // Half past midnight in UTC on the day on which summer time ends: 2:30 there, for the first time of two.
    const FIRST_FOLD: u64 = 1_792_888_200;
    let folder = Server::folder_for("mysql");
    let file = folder.path().join("faketime");
    let set_clock = |seconds: u64| {
        let offset = seconds.cast_signed() - (leasehold_system::clock::wall_ms() / 1000).cast_signed();
        std::fs::write(&file, format!("{offset:+}\n")).unwrap();
    };
    set_clock(FIRST_FOLD);
    let clock = FakeTime::file(&file);
    let server = mariadb_with(
        &[
            "--autocommit=0",
            "--transaction-isolation=READ-UNCOMMITTED",
            "--default-storage-engine=MyISAM",
            "--sql-mode=ANSI_QUOTES,NO_BACKSLASH_ESCAPES",
            "--innodb-flush-log-at-trx-commit=2",
            "--log-bin=log",
            "--sync-binlog=0",
        ],
        &[&clock.env()[..], &[("TZ", "Europe/Berlin")]].concat(),
    );
    let store = store(&at(&server, "root", "leases")).await;
    let mut local_times_wrong = 0;
    for fold in [FIRST_FOLD, FIRST_FOLD + 3600] {
        set_clock(fold);
        let before = store.read(&key("fold")).await.unwrap().now.as_millis();
        let expected = fold * 1000..(fold + 60) * 1000;
        let next = store.swap(&key(&format!("fold-{fold}")), None, b"x").await.unwrap();
        let Swap::Done { now, .. } = next else { panic!("mismatch") };
        assert!(expected.contains(&before), "{before} is not in {expected:?}");
        assert!(expected.contains(&now.as_millis()) && now.as_millis() >= before, "{now:?} is not in {expected:?}");
        let naive: f64 = mariadb_run(&server, "SELECT UNIX_TIMESTAMP(NOW(3))").trim().parse().unwrap();
        local_times_wrong += u8::from(!expected.contains(&((naive * 1000.0) as u64)));
    }
    assert_eq!(local_times_wrong, 1, "this server has no hour that comes twice, so nothing was tried");

    // Written means committed, for every other connection.
    let revision = write(&store, "odd", b"x").await.unwrap();
    let seen =
        mariadb_run(&server, "SET autocommit = 1; SELECT revision FROM leases.leasehold_record WHERE name = 'odd'");
    assert_eq!(seen.trim(), revision.0);
    let survey = store.survey().await.unwrap();
    assert_eq!(survey.class, Class::B);
    let named = ["innodb_flush_log_at_trx_commit", "sync_binlog", "transaction_isolation"];
    assert_eq!(advised(&survey), named);
    a_replica_is_noticed(&server, &store).await;
}

/// Whoever is fed the log may be made the primary, without the last of it.
async fn a_replica_is_noticed(server: &Server, store: &Arc<dyn Store>) {
    let mut reader = Command::new(program("mariadb-binlog"))
        .args(["--no-defaults", "--user=root", "--host=127.0.0.1", &format!("--port={}", server.port())])
        .args(["--read-from-remote-server", "--stop-never", "log.000001"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut survey = store.survey().await.unwrap();
    for _ in 0..400 {
        if advised(&survey).contains(&"replicas") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        survey = store.survey().await.unwrap();
    }
    reader.kill().unwrap();
    reader.wait().unwrap();
    let found = survey.remarks.iter().find(|remark| remark.setting == "replicas").map(|remark| remark.found.as_str());
    assert_eq!((survey.class, found), (Class::B, Some("1, asynchronous")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_tablespace_changes_nothing() {
    let small = "--innodb-data-file-path=ibdata1:12M:autoextend:max:18M";
    let server = mariadb_with(&["--innodb-file-per-table=0", small], &[]);
    let store = store(&at(&server, "root", "leases")).await;
    let mut stored = Vec::new();
    let error = loop {
        let name = format!("full-{}", stored.len());
        match store.swap(&key(&name), None, &vec![b'x'; 512 * 1024]).await {
            Ok(Swap::Done { revision, .. }) => stored.push((name, revision)),
            Ok(Swap::Mismatch) => panic!("nobody else writes here"),
            Err(error) => break error,
        }
        assert!(stored.len() < 100, "it never got full");
    };
    assert!(error.kind() == Kind::Unavailable && error.to_string().contains("no space left"), "{error}");
    assert_eq!(store.read(&key(&format!("full-{}", stored.len()))).await.unwrap().value, None);
    assert!(!stored.is_empty());
    for (name, revision) in &stored {
        let value = store.read(&key(name)).await.unwrap().value.unwrap();
        assert!(value.revision == *revision && value.bytes.len() == 512 * 1024, "{name}");
    }
}
