//! Requests that nobody sends by mistake: each gets a clear refusal, nothing of it is carried out or sent back, and the server
//! lives on.

use crate::common::{Home, On};
use crate::rig::{Answer, get, key, raw, serve};
use std::net::SocketAddr;

/// Who sends them, and where to.
struct Attacker {
    address: SocketAddr,
    key: String,
}

impl Attacker {
    /// A request with a key. `None` if the connection was closed without an answer.
    fn send(&self, method: &str, path: &str, headers: &[Vec<u8>], body: &[u8]) -> Option<Answer> {
        let mut request = format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n").into_bytes();
        let names: Vec<String> = headers
            .iter()
            .map(|header| String::from_utf8_lossy(header).split(':').next().unwrap().to_ascii_lowercase())
            .collect();
        let mut with = |name: &str, value: String| {
            if !names.iter().any(|named| named == name) {
                request.extend(format!("{name}: {value}\r\n").into_bytes());
            }
        };
        with("authorization", format!("Bearer {}", self.key));
        if method == "POST" {
            with("content-type", "application/json".into());
            if !names.iter().any(|named| named == "transfer-encoding") {
                with("content-length", body.len().to_string());
            }
        }
        for header in headers {
            request.extend(header);
            request.extend(b"\r\n");
        }
        request.extend(b"\r\n");
        request.extend(body);
        raw(self.address, &request)
    }

    /// That such a request is refused with one of these, in a form that says why; or, where `0` is among them, that the connection
    /// is closed without a word.
    #[track_caller]
    fn is_refused(&self, what: &str, answer: Option<Answer>, with: &[u16]) {
        let status = answer.as_ref().map_or(0, |answer| answer.status);
        assert!(with.contains(&status), "{what}: {status}, and not {with:?}: {answer:?}");
        let Some(answer) = answer else { return };
        assert_eq!(answer.header("x-injected"), None, "{what}: {answer:?}");
        assert!(!answer.body.contains("HTTP/1.1"), "{what}: a second answer: {answer:?}");
        // What hyper refuses before it is a request has no body.
        if !answer.body.is_empty() && answer.header("content-type") == Some("application/problem+json") {
            assert_eq!(answer.json()["status"], status, "{what}");
            assert!(!answer.kind().is_empty(), "{what}");
        }
    }
}

fn attacked() -> (Home, crate::rig::Served, Attacker) {
    let home = Home::new(On::Sqlite);
    let key = key(&home, &["--namespace", "team", "--allow", "read,hold,work,operate"]);
    let server = serve(&home, &[]);
    let attacker = Attacker { address: server.address, key };
    (home, server, attacker)
}

/// Nothing was done, and the server lives on.
fn is_unharmed(home: &Home, server: &crate::rig::Served) {
    assert_eq!(get(server.address, "/livez", &[]).status, 200, "it lives on");
    let team = format!("{}?namespace=team", home.store);
    let listed = home.done(&["ls", "--store", &team, "--json"]).expect(0).stdout;
    assert_eq!(listed.trim(), "[]", "nothing was acquired");
    assert!(!home.read(&server.log).contains("panicked"), "{}", home.read(&server.log));
}

const ACQUIRE: &str = "/v1/ns/team/leases/x/acquire";

/// What it is, its headers, and the statuses that it may get; 0 is a closed connection.
type Case<'a> = (&'a str, Vec<Vec<u8>>, &'a [u16]);

#[test]
fn a_request_that_ends_in_two_places_is_refused_and_its_rest_is_no_request() {
    let (home, server, attacker) = attacked();
    let hidden = format!(
        "POST {ACQUIRE} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-length: 13\r\n\r\n{{\"ttl\":\"60s\"}}",
        attacker.key
    );
    let chunked = |body: &str| format!("{:x}\r\n{body}\r\n0\r\n\r\n{hidden}", body.len()).into_bytes();
    let length = |bytes: usize| format!("content-length: {bytes}").into_bytes();
    let pieces = || b"transfer-encoding: chunked".to_vec();
    let one = chunked("{}").len();
    // The key of the request that is seen is none, so that only the hidden one could do anything.
    let nobody = || b"authorization: Bearer lh_w_x".to_vec();
    let cases: &[Case<'_>] = &[
        // As RFC 9112 has it: the pieces count, and the connection ends with the answer.
        ("a length before pieces", vec![nobody(), length(one), pieces()], &[401]),
        ("a length of none before pieces", vec![nobody(), length(0), pieces()], &[401]),
        ("pieces before a length", vec![nobody(), pieces(), length(4)], &[401]),
        ("two lengths", vec![nobody(), length(4), length(9)], &[400, 0]),
        ("a list of lengths", vec![nobody(), b"content-length: 4, 9".to_vec()], &[400, 0]),
        ("a negative length", vec![nobody(), b"content-length: -1".to_vec()], &[400, 0]),
        ("a signed length", vec![nobody(), b"content-length: +4".to_vec()], &[400, 0]),
        ("pieces of another kind", vec![nobody(), b"transfer-encoding: xchunked".to_vec()], &[400, 0]),
        ("pieces that are not last", vec![nobody(), b"transfer-encoding: chunked, gzip".to_vec()], &[400, 0]),
        ("pieces with a space before the colon", vec![nobody(), b"transfer-encoding : chunked".to_vec()], &[400, 0]),
        ("a folded header", vec![nobody(), b"x: a\r\n transfer-encoding: chunked".to_vec()], &[400, 0]),
    ];
    for (what, headers, with) in cases {
        let answer = attacker.send("POST", ACQUIRE, headers, &chunked("{}"));
        attacker.is_refused(what, answer, with);
    }
    // Without `connection: close` of the client: the server itself ends the connection after a request in pieces.
    for framing in
        ["transfer-encoding: chunked\r\ncontent-length: 4", "content-length: 4\r\ntransfer-encoding: chunked"]
    {
        let request = format!(
            "POST {ACQUIRE} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer lh_w_x\r\n{framing}\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n{hidden}"
        );
        let answer = raw(server.address, request.as_bytes());
        let connection = answer.as_ref().and_then(|answer| answer.header("connection"));
        assert_eq!(connection, Some("close"), "{framing:?}: {answer:?}");
        attacker.is_refused("a request behind pieces", answer, &[401]);
    }
    is_unharmed(&home, &server);
}

#[test]
fn a_request_is_framed_in_one_way_and_names_its_host() {
    let (home, server, attacker) = attacked();
    let send = |headers: &str| {
        let head =
            format!("POST {ACQUIRE} HTTP/1.1\r\nauthorization: Bearer {}\r\nconnection: close\r\n", attacker.key);
        raw(server.address, format!("{head}{headers}\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n").as_bytes())
    };
    for headers in [
        "host: x\r\ntransfer-encoding: gzip, chunked",
        "host: x\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked",
        "host: x\r\nhost: y\r\ntransfer-encoding: chunked",
    ] {
        let answer = send(headers).unwrap();
        assert!(answer.status == 400 && !answer.body.contains("ttl"), "{headers}: {answer:?}");
    }
    // What is wrong with this one is what it says.
    let answer = send("host: x\r\ntransfer-encoding: Chunked").unwrap();
    assert!(answer.status != 200 && !answer.body.contains("Transfer-Encoding"), "{answer:?}");
    is_unharmed(&home, &server);
}

#[test]
fn what_is_nested_deeply_is_refused_before_it_is_read() {
    let (home, server, attacker) = attacked();
    let deep = |open: &str, close: &str| format!("{}1{}", open.repeat(5_000), close.repeat(5_000));
    let (array, object) = (deep("[", "]"), deep("{\"a\":", "}"));
    for (path, field) in [
        ("leases/x/acquire", "ttl"),
        ("leases/x/acquire", "unknown"),
        ("leases/x/pause", "why"),
        ("queues/q/items", "items"),
        ("queues/q/items", "payload"),
        ("queues/q/claim", "count"),
        ("queues/q/bulk/retry", "items"),
        ("records/read", "name"),
        ("records/list", "after"),
        ("records/change", "verb"),
        ("records/hold", "verb"),
        ("records/recall", "claim"),
    ] {
        for nested in [&array, &object] {
            let body = format!("{{\"{field}\":{nested}}}");
            let answer = attacker.send("POST", &format!("/v1/ns/team/{path}"), &[], body.as_bytes());
            attacker.is_refused(&format!("{path} {field}"), answer, &[400]);
        }
    }
    is_unharmed(&home, &server);
}

#[test]
fn no_header_and_no_part_of_an_address_reaches_the_answer_or_begins_another_header() {
    let (home, server, attacker) = attacked();
    let injected = "a%0d%0ax-injected:%20yes";
    for path in [
        "/v1/ns/INJECTED",
        "/v1/ns/INJECTED/leases",
        "/v1/ns/team/leases/INJECTED",
        "/v1/ns/team/leases/INJECTED/history",
        "/v1/ns/team/leases?cursor=INJECTED",
        "/v1/ns/team/leases?state=INJECTED",
        "/v1/ns/team/leases?INJECTED=1",
        "/v1/ns/team/queues/INJECTED",
        "/v1/ns/team/queues/q/items/INJECTED",
        "/v1/ns/team/jobs/INJECTED",
        "/v1/ns/team/fences/INJECTED",
        "/v1/INJECTED",
        "/assets/INJECTED/INJECTED",
    ] {
        let answer = attacker.send("GET", &path.replace("INJECTED", injected), &[], b"");
        attacker.is_refused(path, answer, &[400, 404]);
    }
    // The page sends a visitor to the way in, and says where to go on from there: in one header, escaped.
    for path in ["/ns/INJECTED/leases", "/ns/team/lease/INJECTED", "/ns/team/item/q/INJECTED"] {
        let answer = attacker.send("GET", &path.replace("INJECTED", injected), &[], b"");
        attacker.is_refused(path, answer, &[303]);
    }
    let values: [&[u8]; 5] = [b"a\rx-injected: yes", b"a\0b", b"\xff\xfe", b"\x7f", b"a\x08"];
    for (header, may_be) in [
        ("authorization", &[400, 401, 0][..]),
        ("idempotency-key", &[400, 0]),
        ("content-type", &[400, 415, 0]),
        ("leasehold-protocol", &[400, 0]),
        ("content-length", &[400, 0]),
        ("host", &[400, 0]),
        ("x-other", &[400, 0]),
        ("cookie", &[400, 0]),
    ] {
        for value in values {
            let line = [header.as_bytes(), b": ", value].concat();
            let path = if header == "idempotency-key" { ACQUIRE } else { "/v1/ns/team/records/read" };
            let answer = attacker.send("POST", path, &[line], b"{}");
            attacker.is_refused(&format!("{header} {value:?}"), answer, may_be);
        }
    }
    for value in values {
        let line = [b"last-event-id: ", value].concat();
        let answer = attacker.send("GET", "/v1/ns/team/events", &[line], b"");
        attacker.is_refused(&format!("last-event-id {value:?}"), answer, &[400, 0]);
    }
    is_unharmed(&home, &server);
}

#[test]
fn text_that_is_none_or_hides_what_it_is_is_refused() {
    let (home, server, attacker) = attacked();
    let spelled = [
        ("an overlong slash", "%c0%af"),
        ("an overlong NUL", "%c0%80"),
        ("half of a surrogate pair", "%ed%a0%80"),
        ("beyond the last character", "%f5%80%80%80"),
        ("a part of a character", "%e2%80"),
        ("NUL", "%00"),
        ("another direction", "%e2%80%ae"),
        ("nothing that is seen", "%e2%80%8b"),
        ("a letter with a mark", "e%cc%81"),
        ("half of an escape", "%2"),
        ("a backslash", "%5c"),
    ];
    for (what, text) in spelled {
        for path in [
            "/v1/ns/TEXT/leases",
            "/v1/ns/team/leases/aTEXTb",
            "/v1/ns/team/queues/aTEXTb",
            "/v1/ns/team/queues/q/items/k.TEXT",
        ] {
            let answer = attacker.send("GET", &path.replace("TEXT", text), &[], b"");
            attacker.is_refused(&format!("{what} in {path}"), answer, &[400, 403, 404]);
        }
    }
    // Dots are letters of names like others, except alone.
    for path in
        ["/v1/ns/TEXT/leases", "/v1/ns/team/leases/TEXT", "/v1/ns/team/leases/a%2fTEXT%2fb", "/v1/ns/team/queues/TEXT"]
    {
        let answer = attacker.send("GET", &path.replace("TEXT", "%2e%2e"), &[], b"");
        attacker.is_refused(&format!("dots in {path}"), answer, &[400, 403, 404]);
    }
    let bodies: [(&str, &[u8]); 9] = [
        ("half of a surrogate pair", br#"{"ttl":"60s","label":"\ud800"}"#),
        ("the other half", br#"{"ttl":"60s","label":"\udc00x"}"#),
        ("an escaped NUL", br#"{"ttl":"60s","label":"a\u0000b"}"#),
        ("an escaped end of line", br#"{"ttl":"60s","label":"a\r\nb"}"#),
        ("another direction", "{\"ttl\":\"60s\",\"label\":\"a\u{202e}b\"}".as_bytes()),
        ("an escaped one", br#"{"ttl":"60s","label":"a\u202eb"}"#),
        ("bytes that are no text", b"{\"ttl\":\"60s\",\"label\":\"\xff\"}"),
        ("an overlong slash", b"{\"ttl\":\"60s\",\"label\":\"\xc0\xaf\"}"),
        ("a name that is twice there", br#"{"ttl":"60s","ttl":"1h"}"#),
    ];
    for (what, body) in bodies {
        attacker.is_refused(what, attacker.send("POST", ACQUIRE, &[], body), &[400]);
    }
    is_unharmed(&home, &server);
}

#[test]
fn what_is_too_long_is_refused_with_how_long_it_may_be() {
    let (home, server, attacker) = attacked();
    let long = |bytes: usize| "a".repeat(bytes);
    let get = |path: String| attacker.send("GET", &path, &[], b"");
    attacker.is_refused("a name", get(format!("/v1/ns/team/leases/{}", long(300))), &[400]);
    attacker.is_refused("a namespace", get(format!("/v1/ns/{}/leases", long(300))), &[400]);
    attacker.is_refused("a queue", get(format!("/v1/ns/team/queues/{}", long(300))), &[400]);
    attacker.is_refused("an item", get(format!("/v1/ns/team/queues/q/items/k.{}", long(300))), &[400]);
    attacker.is_refused("an address", get(format!("/v1/ns/team/leases?cursor={}", long(20_000))), &[414, 431, 400]);
    attacker.is_refused(
        "a header",
        attacker.send("GET", "/livez", &[format!("x: {}", long(20_000)).into()], b""),
        &[431],
    );
    let many: Vec<Vec<u8>> = (0..70).map(|number| format!("x{number}: y").into_bytes()).collect();
    attacker.is_refused("headers", attacker.send("GET", "/livez", &many, b""), &[431]);
    let posts = [
        ("a label", ACQUIRE, format!("{{\"ttl\":\"60s\",\"label\":\"{}\"}}", long(5_000)), 400),
        ("a body", ACQUIRE, format!("{{\"ttl\":\"{}\"}}", long(70_000)), 413),
        ("a body of a payload", "/v1/ns/team/queues/q/items", format!("{{\"payload\":\"{}\"}}", long(1 << 20)), 413),
        ("a token for a stranger", "/v1/exchange", format!("{{\"token\":\"{}\"}}", long(40_000)), 413),
        ("a number", "/v1/ns/team/queues/q/claim", format!("{{\"ttl\":\"60s\",\"count\":{}}}", "9".repeat(400)), 400),
    ];
    for (what, path, body, status) in posts {
        attacker.is_refused(what, attacker.send("POST", path, &[], body.as_bytes()), &[status]);
    }
    is_unharmed(&home, &server);
}
