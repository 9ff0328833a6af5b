//! Passwords, permissions and certificates of Redis.

#![allow(clippy::unwrap_used)]

use leasehold_core::store::{Class, Store, Swap};
use leasehold_core::{Error, Key, Kind, LeaseName, Shelf};
use leasehold_stores::{StoreUrl, open};
use leasehold_testbed::{Opener, Server, free_port, redis_cli, redis_with, suite};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// What a user needs: as docs/guarantees.md has it.
const RIGHTS: &str = "~leasehold:* &leasehold:* +eval +evalsha +hget +hset +hdel +zadd +zrem +zrangebylex +time \
                      +publish +subscribe +unsubscribe +wait";

async fn store(url: &str) -> Arc<dyn Store> {
    open(&url.parse::<StoreUrl>().unwrap()).await.unwrap()
}

fn key() -> Key {
    Key::new(Shelf::Lease, &LeaseName::new("daily").unwrap())
}

async fn refusal(url: &str) -> Error {
    let error = store(url).await.swap(&key(), None, b"1").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported, "{error}");
    assert!(!error.to_string().contains("hunter2"), "{error}");
    error
}

#[tokio::test]
async fn a_wrong_password_is_named_and_never_shown() {
    let server = redis_with(&["--requirepass", "hunter22"]);
    let at = format!("127.0.0.1:{}", server.port());
    assert!(refusal(&format!("redis://{at}")).await.to_string().contains("wants a password"));
    let error = refusal(&format!("redis://:hunter23@{at}")).await.to_string();
    assert!(error.contains("does not know this user and password"), "{error}");
    let handle = store(&format!("redis://:hunter22@{at}")).await;
    assert!(matches!(handle.swap(&key(), None, b"1").await.unwrap(), Swap::Done { .. }));
    assert!(!format!("{handle:?}").contains("hunter2"));
    let other = store(&format!("redis://:hunter22@{at}/1")).await;
    assert_eq!(other.read(&key()).await.unwrap().value, None, "another database is another store");
    assert!(refusal(&format!("redis://:hunter22@{at}/99")).await.to_string().contains("does not have this database"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_with_the_documented_rights_can_do_everything_but_survey() {
    let server = redis_with(&[]);
    let words = format!("acl setuser worker on >hunter22 {RIGHTS}");
    let grant: Vec<&str> = words.split_whitespace().collect();
    assert_eq!(redis_cli(server.port(), &grant).trim(), "OK");
    let opener = Opener::new(|port| async move {
        open(&format!("redis://worker:hunter22@127.0.0.1:{port}").parse::<StoreUrl>()?).await
    });
    suite::round_trips_are_few(server.port(), &opener).await;
    suite::a_release_wakes_the_waiter(server.port(), &opener).await;
    let handle = opener.store(server.port()).await.unwrap();
    let survey = handle.survey().await.unwrap();
    assert_eq!(survey.class, Class::B, "what cannot be read is not claimed");
    let hidden = survey.remarks.iter().find(|remark| remark.setting == "appendfsync").unwrap();
    assert_eq!(hidden.found, "cannot be read");

    // A user is never taken for the default one, which needs no password here.
    let error = refusal(&format!("redis://worker@127.0.0.1:{}", server.port())).await.to_string();
    assert!(error.contains("does not know this user and password"), "{error}");

    // Revoked: its connections are cut, and it is told why. Nothing is granted.
    let revision = match handle.swap(&key(), None, b"1").await.unwrap() {
        Swap::Done { revision, .. } => revision,
        Swap::Mismatch => panic!("a fresh key"),
    };
    assert_eq!(redis_cli(server.port(), &["acl", "deluser", "worker"]).trim(), "1");
    let mut error = handle.swap(&key(), Some(&revision), b"2").await.unwrap_err();
    if error.kind() == Kind::Indeterminate {
        // The cut was noticed only by this call.
        error = handle.swap(&key(), Some(&revision), b"2").await.unwrap_err();
    }
    assert_eq!(error.kind(), Kind::Unsupported, "{error}");
    assert!(!error.to_string().contains("hunter2"), "{error}");
    // And once it is let in again, the same handle goes on.
    assert_eq!(redis_cli(server.port(), &grant).trim(), "OK");
    assert_eq!(handle.read(&key()).await.unwrap().value.unwrap().bytes, b"1");
    assert_eq!(redis_cli(server.port(), &["acl", "setuser", "worker", "-hset"]).trim(), "OK");
    let error = handle.swap(&key(), Some(&revision), b"3").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported, "{error}");
    assert!(error.to_string().contains("ACL SETUSER"), "{error}");
    assert_eq!(handle.read(&key()).await.unwrap().value.unwrap().bytes, b"1");
}

fn openssl(folder: &Path, words: &str) {
    let output = Command::new("openssl").current_dir(folder).args(words.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "openssl {words}: {}", String::from_utf8_lossy(&output.stderr));
}

/// An authority, and certificates of the server and of a client that it signed.
fn certificates(folder: &Path) {
    let file = folder.join("names");
    std::fs::write(file, "subjectAltName=IP:127.0.0.1,DNS:localhost\n").unwrap();
    openssl(folder, "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.pem");
    for name in ["server", "client"] {
        openssl(folder, &format!("req -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr"));
        let sign = "x509 -req -days 2 -CA ca.pem -CAkey ca.key -CAcreateserial -extfile names";
        openssl(folder, &format!("{sign} -in {name}.csr -out {name}.pem"));
    }
}

fn tls_server(folder: &Path, auth_clients: &str) -> Server {
    let port = free_port();
    let file = |name: &str| folder.join(name).display().to_string();
    leasehold_testbed::redis_tls(
        port,
        &[
            "--tls-cert-file",
            &file("server.pem"),
            "--tls-key-file",
            &file("server.key"),
            "--tls-ca-cert-file",
            &file("ca.pem"),
            "--tls-auth-clients",
            auth_clients,
        ],
    )
}

#[tokio::test]
async fn tls_works_with_an_authority_of_ones_own_and_with_client_certificates() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let here = folder.path().display();
    let open_server = tls_server(folder.path(), "no");
    let at = format!("rediss://127.0.0.1:{}", open_server.port());
    let trusted = format!("{at}?cacert={here}/ca.pem");
    assert!(matches!(store(&trusted).await.swap(&key(), None, b"1").await.unwrap(), Swap::Done { .. }));
    assert_eq!(store(&trusted).await.read(&key()).await.unwrap().value.unwrap().bytes, b"1");
    assert!(refusal(&at).await.to_string().contains("name its authority's file with `cacert=`"));
    let plain = store(&at.replace("rediss", "redis")).await.read(&key()).await.unwrap_err();
    assert_eq!(plain.kind(), Kind::Unavailable, "{plain}");
    for bad in ["no-such.pem", "ca.key"] {
        let url: StoreUrl = format!("{at}?cacert={here}/{bad}").parse().unwrap();
        let refused = match open(&url).await {
            Err(error) => error,
            Ok(store) => store.read(&key()).await.unwrap_err(),
        };
        assert_eq!(refused.kind(), Kind::Unsupported, "{bad}: {refused}");
    }

    let strict = tls_server(folder.path(), "yes");
    let at = format!("rediss://localhost:{}?cacert={here}/ca.pem", strict.port());
    let known = format!("{at}&cert={here}/client.pem&key={here}/client.key");
    assert!(matches!(store(&known).await.swap(&key(), None, b"1").await.unwrap(), Swap::Done { .. }));
    let error = refusal(&at).await;
    assert!(
        error.to_string().contains("wants a certificate of the client"),
        "a client without a certificate is not let in: {error}"
    );
}
