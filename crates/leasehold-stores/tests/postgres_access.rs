//! Getting at PostgreSQL: roles, passwords, rights, TLS and sockets.

#![allow(clippy::unwrap_used)]

use leasehold_core::store::{Store, Swap};
use leasehold_core::{Error, Key, Kind, Shelf};
use leasehold_stores::open;
use leasehold_testbed::{Postgres, postgres, program, wait_until};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

const PASSWORD: &str = "hunter2";

async fn store(url: &str) -> Arc<dyn Store> {
    open(&url.parse().unwrap()).await.unwrap()
}

fn probe(name: &str) -> Key {
    Key::new(Shelf::Probe, &name.parse().unwrap())
}

/// A server that asks the role `app` for a password, and wants TLS of `tls`.
fn guarded_server() -> Postgres {
    let server = postgres();
    server.sql(&format!(
        "CREATE ROLE app LOGIN PASSWORD '{PASSWORD}'; CREATE ROLE tls LOGIN; GRANT CREATE ON SCHEMA public TO app, tls"
    ));
    let rules = "local all all trust\nhost all app 127.0.0.1/32 scram-sha-256\nhostssl all tls 127.0.0.1/32 trust\n\
                 host all postgres 127.0.0.1/32 trust\n";
    std::fs::write(server.data().join("pg_hba.conf"), rules).unwrap();
    server.sql("SELECT pg_reload_conf()");
    wait_until("the rules are in force", || refused(&server, "postgres://app:wrong@127.0.0.1"));
    server
}

fn refused(server: &Postgres, url: &str) -> bool {
    let url = format!("{url}:{}/postgres", server.port());
    !Command::new(program("psql")).args(["-X", "-w", "-c", "SELECT 1", &url]).output().unwrap().status.success()
}

/// What a call says whose connection may have to be found gone first.
async fn settled_error(store: &dyn Store) -> Error {
    for _ in 0..20 {
        match store.swap(&probe("revoked"), None, b"never").await {
            Err(error) if error.kind() == Kind::Indeterminate => {}
            Err(error) => return error,
            Ok(swap) => panic!("{swap:?} without the right to"),
        }
    }
    panic!("no clear error");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_credentials_are_a_clear_error_and_work_again_when_restored() {
    let server = guarded_server();
    let store = store(&format!("postgres://app:{PASSWORD}@127.0.0.1:{}/postgres", server.port())).await;
    assert!(matches!(store.swap(&probe("before"), None, b"x").await.unwrap(), Swap::Done { .. }));
    let terminate = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'app'";
    for (revoke, restore) in [
        ("ALTER ROLE app PASSWORD 'another'".to_owned(), format!("ALTER ROLE app PASSWORD '{PASSWORD}'")),
        ("ALTER ROLE app NOLOGIN".to_owned(), "ALTER ROLE app LOGIN".to_owned()),
    ] {
        server.sql(&revoke);
        server.sql(terminate);
        let error = settled_error(&*store).await;
        assert_eq!(error.kind(), Kind::Unsupported, "{error}");
        let text = error.to_string();
        assert!(text.contains("refused role `app`") && text.contains("check the password"), "{text}");
        assert!(
            !text.contains(PASSWORD) && !text.contains('\n') && !format!("{error:?} {store:?}").contains(PASSWORD),
            "{text}"
        );
        server.sql(&restore);
        assert!(store.read(&probe("before")).await.unwrap().value.is_some(), "the same handle works again");
        assert_eq!(store.read(&probe("revoked")).await.unwrap().value, None);
    }
    server.sql("REVOKE ALL ON leasehold_record FROM app; ALTER TABLE leasehold_record OWNER TO postgres");
    let error = settled_error(&*store).await;
    assert_eq!(error.kind(), Kind::Unsupported, "{error}");
    server.sql(error.to_string().split("run: ").nth(1).unwrap());
    assert!(matches!(store.swap(&probe("revoked"), None, b"x").await.unwrap(), Swap::Done { .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passwords_are_asked_for_by_name_and_found_in_the_password_file() {
    let server = guarded_server();
    let port = server.port();
    let error = store(&format!("postgres://app@127.0.0.1:{port}/postgres?passfile=/dev/null"))
        .await
        .read(&probe("x"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported, "{error}");
    assert!(error.to_string().contains("give a password"), "{error}");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("127.0.0.1:{port}:*:app:{PASSWORD}\n")).unwrap();
    let url = format!("postgres://app@127.0.0.1:{port}/postgres?passfile={}", file.path().display());
    assert_eq!(store(&url).await.read(&probe("x")).await.unwrap().value, None);
    let error =
        store(&format!("postgres://127.0.0.1:{port}/nowhere?user=postgres")).await.read(&probe("x")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.to_string().contains("no such database"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_may_not_make_the_table_is_told_what_to_run() {
    let server = postgres();
    server.sql("CREATE ROLE app LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC");
    let url = |table: &str| format!("postgres://app@127.0.0.1:{}/postgres?table={table}", server.port());
    for table in ["leases", "ops.leases"] {
        let store = store(&url(table)).await;
        assert_eq!(store.read(&probe("x")).await.unwrap().value, None, "there is nothing to see yet");
        let error = store.swap(&probe("x"), None, b"x").await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported, "{error}");
        let text = error.to_string();
        assert!(text.contains("let an administrator run: ") && !text.contains('\n'), "{text}");
        server.sql(text.split("let an administrator run: ").nth(1).unwrap());
        assert!(matches!(store.swap(&probe("x"), None, b"x").await.unwrap(), Swap::Done { .. }));
        assert!(store.read(&probe("x")).await.unwrap().value.is_some());
    }
    server.sql("CREATE TABLE public.other (n int); GRANT ALL ON public.other TO app");
    let error = store(&url("other")).await.read(&probe("x")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.to_string().contains("is not a leasehold table"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_socket_is_a_path() {
    let server = postgres();
    let url = format!("postgres:///postgres?host={}&port={}&user=postgres", server.folder().display(), server.port());
    let store = store(&url).await;
    assert!(matches!(store.swap(&probe("x"), None, b"x").await.unwrap(), Swap::Done { .. }));
    assert!(store.read(&probe("x")).await.unwrap().value.is_some());
}

fn openssl(folder: &Path, args: &str) {
    let output = Command::new(program("openssl")).args(args.split(' ')).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "openssl {args}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Authorities `ca` and `other`, a certificate of `ca` for a server called `localhost`, and one for the role `tls`.
fn certificates(folder: &Path) {
    const KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    for name in ["ca", "other"] {
        openssl(folder, &format!("req -x509 {KEY} -keyout {name}.key -out {name}.crt -subj /CN={name} -days 2"));
    }
    for (name, subject) in [("server", "/CN=localhost"), ("client", "/CN=tls")] {
        openssl(folder, &format!("req {KEY} -keyout {name}.key -out {name}.csr -subj {subject}"));
        std::fs::write(folder.join("names"), "subjectAltName=DNS:localhost").unwrap();
        openssl(
            folder,
            &format!(
                "x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile names -out {name}.crt"
            ),
        );
    }
}

/// Puts the certificates where the server wants them, and turns TLS on.
fn turn_tls_on(server: &Postgres, folder: &Path) {
    for file in ["server.key", "server.crt", "ca.crt"] {
        let to = server.data().join(file);
        std::fs::copy(folder.join(file), &to).unwrap();
        for (command, how) in [("chmod", "600"), ("chown", "--reference=PG_VERSION")] {
            let done = Command::new(command).arg(how).arg(&to).current_dir(server.data()).status().unwrap();
            assert!(done.success());
        }
    }
    server.sql("ALTER SYSTEM SET ssl_ca_file = 'ca.crt'");
    server.sql("ALTER SYSTEM SET ssl = on");
    server.sql("SELECT pg_reload_conf()");
    wait_until("the server speaks TLS", || !refused(server, "postgres://tls@127.0.0.1"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_checked_as_far_as_sslmode_says() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let server = guarded_server();
    let at = |host: &str, options: &str| format!("postgres://tls@{host}:{}/postgres?{options}", server.port());
    let read = async |url: String| store(&url).await.read(&probe("x")).await;
    let error = read(at("127.0.0.1", "sslmode=require")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.to_string().contains("server does not support TLS"), "{error}");
    turn_tls_on(&server, folder.path());
    let here = folder.path().display();
    let (ours, other) = (format!("sslrootcert={here}/ca.crt"), format!("sslrootcert={here}/other.crt"));
    for (host, options) in [
        ("127.0.0.1", "sslmode=prefer".to_owned()),
        ("127.0.0.1", "sslmode=require".to_owned()),
        ("127.0.0.1", format!("sslmode=verify-ca&{ours}")),
        ("localhost", format!("sslmode=verify-full&{ours}")),
    ] {
        assert_eq!(read(at(host, &options)).await.unwrap().value, None, "{options}");
    }
    for (host, options, says) in [
        ("127.0.0.1", "sslmode=disable".to_owned(), "pg_hba.conf"),
        ("127.0.0.1", format!("sslmode=require&{other}"), "check sslmode and sslrootcert"),
        ("127.0.0.1", format!("sslmode=verify-ca&{other}"), "check sslmode and sslrootcert"),
        ("127.0.0.1", format!("sslmode=verify-full&{ours}"), "check sslmode and sslrootcert"),
        ("localhost", format!("sslmode=verify-full&{other}"), "check sslmode and sslrootcert"),
        ("localhost", "sslmode=verify-full&sslrootcert=system".to_owned(), "check sslmode and sslrootcert"),
    ] {
        let error = read(at(host, &options)).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported, "{options}: {error}");
        assert!(error.to_string().contains(says), "{options}: {error}");
    }
    // Hints come through TLS too.
    let store = store(&at("localhost", &format!("sslmode=verify-full&{ours}"))).await;
    let mut watch = store.watch(&probe("x")).await.unwrap();
    assert!(matches!(store.swap(&probe("x"), None, b"x").await.unwrap(), Swap::Done { .. }));
    tokio::time::timeout(Duration::from_secs(5), watch.hint()).await.expect("a hint");
    // A server that asks for the client's certificate gets it.
    std::fs::write(
        server.data().join("pg_hba.conf"),
        "hostssl all tls 127.0.0.1/32 cert\nhost all postgres 127.0.0.1/32 trust\n",
    )
    .unwrap();
    server.sql("SELECT pg_reload_conf()");
    wait_until("the rules are in force", || refused(&server, "postgres://tls@127.0.0.1"));
    let own = format!("sslmode=verify-ca&{ours}&sslcert={here}/client.crt&sslkey={here}/client.key");
    assert!(read(at("127.0.0.1", &own)).await.unwrap().value.is_some());
    let error = read(at("127.0.0.1", &format!("sslmode=verify-ca&{ours}"))).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported, "{error}");
}
