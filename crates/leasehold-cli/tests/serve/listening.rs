//! Where it listens, whether it is well, and how it ends.

use crate::common::{Home, On, eventually, signal};
use crate::rig::{get, get_as, printed_key, serve};
use std::io::{Read, Write};
use std::net::TcpStream;

#[test]
fn nothing_listens_beyond_this_machine_without_tls_unless_told_by_name() {
    let home = Home::new(On::Sqlite);
    let refused = home.done(&["serve", "--listen", "0.0.0.0:0"]).expect(64);
    assert!(refused.stderr.contains("--tls-cert") && refused.stderr.contains("--insecure-listen"), "{refused:?}");
    assert!(!home.path("leases.db").exists(), "and nothing was made");
    let server = crate::rig::start(&home, &["--listen", "0.0.0.0:0", "--insecure-listen"], "a");
    let here = std::net::SocketAddr::from(([127, 0, 0, 1], server.address.port()));
    assert_eq!(get(here, "/livez", &[]).status, 200);
}

#[test]
fn ready_is_who_can_reach_the_store() {
    let home = Home::new(On::Dir);
    let server = serve(&home, &[]);
    let ready = || get(server.address, "/readyz", &[]).status;
    assert_eq!((get(server.address, "/livez", &[]).status, ready()), (200, 200));
    let first = printed_key(&home.read(&server.log)).unwrap();
    std::fs::rename(home.path("leases"), home.path("gone")).unwrap();
    std::fs::write(home.path("leases"), "no folder").unwrap();
    eventually("it is not ready", || ready() == 503);
    assert_eq!(get(server.address, "/livez", &[]).status, 200, "but alive");
    // Nobody is let in on what is no longer known.
    eventually("keys cannot be looked up", || get_as(server.address, "/v1/ns/ci", &first).status == 503);
    for answer in [get(server.address, "/readyz", &[]), get_as(server.address, "/v1/ns/ci", &first)] {
        assert_eq!((answer.kind().as_str(), answer.header("retry-after")), ("unavailable", Some("1")));
        assert!(!answer.body.contains("leases"), "no stranger is told where the store is: {answer:?}");
    }
    let page = get(server.address, "/", &[]);
    assert_eq!((page.status, page.body.contains(home.path("leases").to_str().unwrap())), (503, false), "{page:?}");
    assert!(home.read(&server.log).contains("the store cannot be used: "), "but the log is");
    std::fs::remove_file(home.path("leases")).unwrap();
    std::fs::rename(home.path("gone"), home.path("leases")).unwrap();
    eventually("it is ready again", || ready() == 200);
    assert_eq!(get_as(server.address, "/v1/ns/ci", &first).status, 200);
}

#[test]
fn a_store_that_was_moved_away_is_not_made_anew() {
    let home = Home::new(On::Sqlite);
    let server = serve(&home, &[]);
    let first = printed_key(&home.read(&server.log)).unwrap();
    assert_eq!(get_as(server.address, "/v1/ns/one", &first).status, 200);
    for end in ["", "-wal", "-shm"] {
        let _ = std::fs::rename(home.path(&format!("leases.db{end}")), home.path(&format!("moved.db{end}")));
    }
    let refused = get_as(server.address, "/v1/ns/two", &first);
    assert_eq!((refused.status, refused.kind().as_str()), (503, "unavailable"), "{refused:?}");
    assert!(!home.path("leases.db").exists());
}

#[test]
fn everything_is_below_a_prefix_and_health_also_above_it() {
    let home = Home::new(On::Sqlite);
    let server = serve(&home, &["--path-prefix", "/team/leases"]);
    let first = printed_key(&home.read(&server.log)).unwrap();
    assert_eq!(get_as(server.address, "/team/leases/v1/ns/ci", &first).status, 200);
    assert_eq!(get_as(server.address, "/v1/ns/ci", &first).status, 404);
    for path in ["/livez", "/readyz", "/team/leases/livez", "/team/leases/readyz"] {
        assert_eq!(get(server.address, path, &[]).status, 200, "{path}");
    }
    for (path, location) in
        [("/team/leases/", "/team/leases"), ("/team/leases/?next=/ns/ci", "/team/leases?next=/ns/ci")]
    {
        let sent = get(server.address, path, &[]);
        assert_eq!((sent.status, sent.header("location")), (308, Some(location)), "{path}");
    }
    assert_eq!(get(server.address, "/team/leases", &[]).status, 200);
    let wrong = home.done(&["serve", "--path-prefix", "team/"]).expect(64).stderr;
    assert!(wrong.contains("such as /leases"), "{wrong}");
}

#[test]
fn numbers_are_on_a_listener_of_their_own() {
    let home = Home::new(On::Sqlite);
    let server = serve(&home, &["--metrics", "127.0.0.1:0"]);
    let first = printed_key(&home.read(&server.log)).unwrap();
    assert_eq!(get_as(server.address, "/v1/ns/ci", &first).status, 200);
    assert_eq!(get(server.address, "/v1/ns/ci", &[]).status, 401);
    assert_eq!(get(server.address, "/metrics", &[]).status, 404);
    let log = home.read(&server.log);
    let address = log.split("metrics and health on http://").nth(1).unwrap().split("/metrics").next().unwrap();
    let page = get(address.parse().unwrap(), "/metrics", &[]).body;
    for status in ["200", "401"] {
        let series = format!(
            "leasehold_http_request_duration_seconds_count{{route=\"/v1/ns/{{namespace}}\",method=\"GET\",status=\"{status}\"}} 1"
        );
        assert!(page.contains(&series), "{page}");
    }
    assert!(page.contains("\nleasehold_http_waiters 0\n") && page.contains("\nleasehold_store_up 1\n"), "{page}");
    assert!(!page.contains(&first[13..]));
}

#[test]
fn numbers_that_other_machines_can_read_are_warned_of() {
    let home = Home::new(On::Sqlite);
    let said = "needs no key and has no TLS";
    for (address, is_warned) in [("127.0.0.1:0", false), ("0.0.0.0:0", true)] {
        let server = serve(&home, &["--metrics", address]);
        assert_eq!(home.read(&server.log).contains(said), is_warned, "{address}");
        signal(server.running.pid(), "TERM");
        server.running.end().expect(0);
    }
}

#[test]
fn sigterm_ends_it_with_0_and_idle_connections_are_closed() {
    let home = Home::new(On::Sqlite);
    let server = serve(&home, &[]);
    let mut idle = TcpStream::connect(server.address).unwrap();
    idle.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut first = [0; 4096];
    assert!(idle.read(&mut first).unwrap() > 0);
    signal(server.running.pid(), "TERM");
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).unwrap();
    assert_eq!(server.running.end().code, 0);
    let refused = TcpStream::connect(server.address).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused, "{refused}");
}
