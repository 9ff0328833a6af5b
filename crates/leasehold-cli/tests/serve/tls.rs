//! Certificates: shown, replaced while the server runs, and refused when they are broken.

use crate::common::{Home, On, eventually, signal};
use crate::rig::{Served, printed_key, start};
use leasehold_testbed::program;
use std::process::Command;

/// Makes a certificate for this machine, by its own authority, under these names.
fn certificate(home: &Home, name: &str) {
    certificate_for(home, name, "IP:127.0.0.1");
}

/// The same for other addresses.
pub fn certificate_for(home: &Home, name: &str, addresses: &str) {
    let (key, cert) = (home.path(&format!("{name}.key")), home.path(&format!("{name}.pem")));
    let done = Command::new(program("openssl"))
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
        .args(["-subj", &format!("/CN={name}"), "-addext", &format!("subjectAltName={addresses}")])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(key)
        .arg("-out")
        .arg(cert)
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
}

/// Puts a pair where the server looks, each file in one step.
fn install(home: &Home, name: &str) {
    for end in ["pem", "key"] {
        std::fs::copy(home.path(&format!("{name}.{end}")), home.path(&format!("next.{end}"))).unwrap();
        std::fs::rename(home.path(&format!("next.{end}")), home.path(&format!("server.{end}"))).unwrap();
    }
}

fn serve_tls(home: &Home) -> Served {
    start(home, &["--listen", "0.0.0.0:0", "--tls-cert", "server.pem", "--tls-key", "server.key"], "a")
}

/// What curl prints of a path, if it trusts this certificate and nothing else.
fn fetch(home: &Home, server: &Served, trusted: &str, more: &[&str]) -> Option<String> {
    let url = format!("https://127.0.0.1:{}/livez", server.address.port());
    let mut command = Command::new(program("curl"));
    command.args(["-sS", "--max-time", "20", "--cacert"]).arg(home.path(&format!("{trusted}.pem"))).args(more).arg(url);
    let done = command.output().unwrap();
    done.status.success().then(|| String::from_utf8(done.stdout).unwrap())
}

#[test]
fn with_a_certificate_it_may_listen_everywhere_and_speaks_both_versions_of_http() {
    let home = Home::new(On::Sqlite);
    certificate(&home, "one");
    install(&home, "one");
    let server = serve_tls(&home);
    assert!(home.read("a.out").starts_with("listening on https://"));
    for version in ["--http1.1", "--http2"] {
        let shown = fetch(&home, &server, "one", &[version, "-w", "%{http_version}"]).unwrap();
        assert_eq!(shown, format!("alive\n{}", if version == "--http2" { "2" } else { "1.1" }));
    }
    let key = printed_key(&home.read(&server.log)).unwrap();
    let url = format!("https://127.0.0.1:{}/v1/ns/ci", server.address.port());
    let header = format!("Authorization: Bearer {key}");
    let shown = fetch(&home, &server, "one", &["-H", &header, &url]).unwrap();
    assert!(shown.contains("\"namespace\":\"ci\""), "{shown}");
    // Plain HTTP has no answer there.
    assert!(crate::rig::raw(([127, 0, 0, 1], server.address.port()).into(), b"GET /livez HTTP/1.1\r\n\r\n").is_none());
}

#[test]
fn a_new_certificate_is_used_without_a_restart_and_a_broken_one_is_not() {
    let home = Home::new(On::Sqlite);
    ["one", "two"].iter().for_each(|name| certificate(&home, name));
    install(&home, "one");
    let server = serve_tls(&home);
    assert!(fetch(&home, &server, "one", &[]).is_some() && fetch(&home, &server, "two", &[]).is_none());
    std::fs::copy(home.path("two.pem"), home.path("server.pem")).unwrap();
    eventually("a key that does not fit is told", || home.read(&server.log).contains("does not fit the certificate"));
    assert!(fetch(&home, &server, "one", &[]).is_some(), "the old pair stays in force");
    install(&home, "two");
    eventually("the new pair is used", || fetch(&home, &server, "two", &[]).is_some());
    assert!(fetch(&home, &server, "one", &[]).is_none());
    std::fs::write(home.path("server.key"), "nonsense").unwrap();
    eventually("a broken key is told", || home.read(&server.log).contains("it has no private key in PEM"));
    assert!(fetch(&home, &server, "two", &[]).is_some());
}

#[test]
fn a_pair_that_does_not_fit_keeps_the_server_from_starting() {
    let home = Home::new(On::Sqlite);
    ["one", "two"].iter().for_each(|name| certificate(&home, name));
    for (cert, key, says) in [
        ("one.pem", "two.key", "does not fit the certificate"),
        ("one.key", "one.key", "it has no certificate in PEM"),
        ("one.pem", "one.pem", "it has no private key in PEM"),
        ("missing.pem", "one.key", "it cannot be read"),
    ] {
        let refused = home.done(&["serve", "--listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key]).expect(64);
        assert!(refused.stderr.contains(says), "{refused:?}");
    }
}

#[test]
fn a_certificate_that_cannot_be_read_without_waiting_stops_nothing() {
    let home = Home::new(On::Sqlite);
    certificate(&home, "one");
    install(&home, "one");
    let server = serve_tls(&home);
    std::fs::remove_file(home.path("server.key")).unwrap();
    assert!(Command::new("mkfifo").arg(home.path("server.key")).status().unwrap().success());
    eventually("it is told", || home.read(&server.log).contains("it is not a regular file"));
    assert!(fetch(&home, &server, "one", &[]).is_some(), "the old pair stays in force");
    signal(server.running.pid(), "TERM");
    assert_eq!(server.running.end().code, 0);
    let again = ["serve", "--listen", "127.0.0.1:0", "--tls-cert", "server.pem", "--tls-key", "server.key"];
    let refused = home.done(&again).expect(64);
    assert!(refused.stderr.contains("it is not a regular file"), "{refused:?}");
}

#[test]
fn a_certificate_or_key_that_is_too_long_is_not_read() {
    let home = Home::new(On::Sqlite);
    certificate(&home, "one");
    std::fs::File::create(home.path("long")).unwrap().set_len(64 << 30).unwrap();
    for (cert, key) in [("long", "one.key"), ("one.pem", "long")] {
        let refused = home.done(&["serve", "--listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key]);
        assert!(refused.code != 0 && refused.stderr.contains("more than 1 MiB"), "{refused:?}");
    }
}
