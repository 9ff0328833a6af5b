//! Requests that are too long, too many or too slow.

use crate::common::{Home, On, Running, eventually};
use crate::rig::{get, get_as, printed_key, raw, read, serve};
use std::fs::File;
use std::io::Write;
use std::net::TcpStream;
use std::process::Command;

#[test]
fn a_body_or_a_head_that_is_too_long_is_refused() {
    let home = Home::new(On::Sqlite);
    let server = serve(&home, &["--max-body", "1024"]);
    let key = printed_key(&home.read(&server.log)).unwrap();
    let head =
        format!("GET /v1/ns/ci/leases HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {key}\r\n");
    let announced = raw(server.address, format!("{head}content-length: 1025\r\n\r\n").as_bytes()).unwrap();
    assert_eq!((announced.status, announced.kind().as_str()), (413, "too_large"));
    let pieces = format!("{head}transfer-encoding: chunked\r\n\r\n401\r\n{}\r\n0\r\n\r\n", "x".repeat(1025));
    let found = raw(server.address, pieces.as_bytes()).unwrap();
    assert_eq!((found.status, found.kind().as_str()), (413, "too_large"));
    let fits = format!("{head}content-length: 1024\r\n\r\n{}", "x".repeat(1024));
    assert_eq!(raw(server.address, fits.as_bytes()).unwrap().status, 200);
    let long = format!("{head}x: {}\r\n\r\n", "x".repeat(20_000));
    assert_eq!(raw(server.address, long.as_bytes()).unwrap().status, 431);
    let many: String = (0..70).map(|number| format!("x{number}: y\r\n")).collect();
    assert_eq!(raw(server.address, format!("{head}{many}\r\n").as_bytes()).unwrap().status, 431);
}

#[test]
fn a_stranger_is_refused_before_its_body_is_read() {
    let home = Home::new(On::Sqlite);
    let server = serve(&home, &[]);
    let request = "GET /v1/ns/ci HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 1000\r\n\r\n";
    assert_eq!(raw(server.address, request.as_bytes()).unwrap().status, 401);
}

#[test]
fn whoever_is_answered_before_its_body_is_read_is_told_that_the_connection_ends() {
    let home = Home::new(On::Sqlite);
    let server = serve(&home, &["--max-body", "1024"]);
    let key = printed_key(&home.read(&server.log)).unwrap();
    let bearer = format!("authorization: Bearer {key}\r\n");
    let acquire = "/v1/ns/ci/leases/a/acquire";
    for (path, header, length, status) in [
        (acquire, "", 1000, 401),
        (acquire, bearer.as_str(), 2000, 413),
        ("/v1/ns/ci", "", 1000, 405),
        ("/nowhere", "", 1000, 404),
    ] {
        let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\n{header}content-length: {length}\r\n\r\n");
        let answer = raw(server.address, head.as_bytes()).unwrap();
        assert_eq!((answer.status, answer.header("connection")), (status, Some("close")), "{answer:?}");
    }
    // What has no body is answered, and the connection is used again.
    let ask = "GET /v1/ns/ci HTTP/1.1\r\nhost: x\r\n";
    let twice = raw(server.address, format!("{ask}\r\n{ask}connection: close\r\n\r\n").as_bytes()).unwrap();
    assert_eq!((twice.status, twice.header("connection")), (401, None));
    assert!(twice.body.contains("HTTP/1.1 401"), "{twice:?}");
}

#[test]
fn a_key_that_asks_too_often_is_told_when_to_come_back() {
    let home = Home::new(On::Sqlite);
    let server = serve(&home, &["--max-rate", "1"]);
    let key = printed_key(&home.read(&server.log)).unwrap();
    let mut refused = None;
    eventually("it is refused", || {
        refused = Some(get_as(server.address, "/v1/ns/ci", &key)).filter(|answer| answer.status != 200);
        refused.is_some()
    });
    let refused = refused.unwrap();
    assert_eq!((refused.status, refused.kind().as_str()), (429, "too_many_requests"));
    assert_eq!(refused.header("retry-after"), Some("1"));
    let other = crate::rig::key(&home, &["--namespace", "ci", "--allow", "read"]);
    assert_eq!(get_as(server.address, "/v1/ns/ci", &other).status, 200, "others are not its problem");
    eventually("it is let in again", || get_as(server.address, "/v1/ns/ci", &key).status == 200);
}

#[test]
fn clients_that_are_too_slow_are_cut_off() {
    let home = Home::new(On::Sqlite);
    let server = serve(&home, &["--client-timeout", "300ms"]);
    let key = printed_key(&home.read(&server.log)).unwrap();
    let open = || TcpStream::connect(server.address).unwrap();
    let (mut silent, mut head, mut body) = (open(), open(), open());
    head.write_all(b"GET /livez HTTP/1.1\r\nho").unwrap();
    let begun = format!(
        "GET /v1/ns/ci/leases HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-length: 9\r\n\r\nabc"
    );
    body.write_all(begun.as_bytes()).unwrap();
    assert!(read(&mut silent).is_none());
    assert!(read(&mut head).is_none_or(|answer| answer.status == 408));
    let slow = read(&mut body).unwrap();
    assert_eq!((slow.status, slow.kind().as_str()), (408, "too_slow"));
    // A connection that was used and is idle stays open for longer.
    let mut kept = open();
    kept.set_read_timeout(Some(std::time::Duration::from_secs(1))).unwrap();
    kept.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut answer = [0; 4096];
    assert!(std::io::Read::read(&mut kept, &mut answer).unwrap() > 0);
    let waited = std::io::Read::read(&mut kept, &mut answer).unwrap_err();
    assert_eq!(waited.kind(), std::io::ErrorKind::WouldBlock, "nothing came, not even the end");
}

#[test]
fn too_many_connections_are_told_so() {
    let home = Home::new(On::Sqlite);
    let server = serve(&home, &["--max-connections", "2"]);
    let key = printed_key(&home.read(&server.log)).unwrap();
    // Those that have shown no key would be closed for others.
    let shown = |_| {
        let mut stream = TcpStream::connect(server.address).unwrap();
        let head = format!("GET /v1/ns/default HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        assert!(std::io::Read::read(&mut stream, &mut [0; 4096]).unwrap() > 0);
        stream
    };
    let held: Vec<TcpStream> = (0..2).map(shown).collect();
    eventually("it is full", || get(server.address, "/livez", &[]).status == 503);
    let refused = get(server.address, "/livez", &[]);
    assert_eq!((refused.kind().as_str(), refused.header("retry-after")), ("overloaded", Some("1")));
    drop(held);
    eventually("there is room again", || get(server.address, "/livez", &[]).status == 200);
}

#[cfg(target_os = "linux")]
#[test]
fn out_of_file_descriptors_a_namespace_can_be_opened_later() {
    let home = Home::new(On::Sqlite);
    let server = serve(&home, &[]);
    let key = printed_key(&home.read(&server.log)).unwrap();
    let mut kept = TcpStream::connect(server.address).unwrap();
    let mut status = |namespace: &str| {
        let head = format!("GET /v1/ns/{namespace} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n\r\n");
        kept.write_all(head.as_bytes()).unwrap();
        let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
        while !answer.ends_with(b"}\n") && !answer.ends_with(b"}") {
            let length = std::io::Read::read(&mut kept, &mut piece).unwrap();
            assert!(length > 0, "it stays open");
            answer.extend(&piece[..length]);
        }
        String::from_utf8(answer).unwrap().split(' ').nth(1).unwrap().to_owned()
    };
    assert_eq!(status("one"), "200");
    // From now on the first free number is one too many.
    let pid = server.running.pid();
    let is_open = |number: u32| std::path::Path::new(&format!("/proc/{pid}/fd/{number}")).symlink_metadata().is_ok();
    let free = (0..).find(|number| !is_open(*number)).unwrap();
    let limit = |number: u32| {
        let limits = format!("--nofile={number}:");
        let done = std::process::Command::new("prlimit").args(["--pid", &pid.to_string(), &limits]).status().unwrap();
        assert!(done.success());
    };
    limit(free);
    assert_eq!(status("two"), "503");
    limit(1024);
    assert_eq!(status("two"), "200");
}

#[test]
fn a_server_accepts_no_more_connections_than_it_can_have_files_open() {
    let home = Home::new(On::Sqlite);
    let server = home.leasehold(&["serve", "--listen", "127.0.0.1:0"]);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 300 && exec \"$@\"", "sh"]).arg(server.get_program()).args(server.get_args());
    for (name, value) in server.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    let log = File::create(home.path("log")).unwrap();
    let _running = Running::from(limited.current_dir(home.folder.path()).stderr(log).spawn().unwrap());
    eventually("it says so", || home.read("log").contains("at most 44 connections may be open at once, and not 16384"));
}
