//! What no client should send: each refused with a clear status, and nothing of it reaches the upstream.

use crate::peer::{Peer, once};
use crate::rig::{Proxied, Store, author, payload};
use crate::upstream::Upstream;
use leasehold_core::{LeaseName, Token};

/// A request's bytes and the statuses that refuse it; 0 is a closed connection.
type Case = (String, Vec<u8>, Vec<u16>);

fn request(head: &str, body: &str) -> Vec<u8> {
    format!("{}\r\n\r\n{body}", head.replace('\n', "\r\n")).into_bytes()
}

fn framing(token: &str) -> Vec<Case> {
    let base = format!("POST /x HTTP/1.1\nHost: a\nLeasehold-Token: {token}");
    let heads = [
        ("two lengths", "\nContent-Length: 4\nContent-Length: 5"),
        ("two lengths in one", "\nContent-Length: 4, 5"),
        ("length and chunked", "\nContent-Length: 4\nTransfer-Encoding: chunked"),
        ("chunked and length", "\nTransfer-Encoding: chunked\nContent-Length: 4"),
        ("length is negative", "\nContent-Length: -1"),
        ("length has a plus", "\nContent-Length: +4"),
        ("length is hex", "\nContent-Length: 0x4"),
        ("length is text", "\nContent-Length: four"),
        ("length is huge", "\nContent-Length: 99999999999999999999999"),
        ("length is too large", "\nContent-Length: 999999999999"),
        ("length is empty", "\nContent-Length: "),
        ("coding is gzip", "\nTransfer-Encoding: gzip"),
        ("coding is gzip, chunked", "\nTransfer-Encoding: gzip, chunked"),
        ("coding is chunked twice", "\nTransfer-Encoding: chunked\nTransfer-Encoding: chunked"),
        ("coding is chunked, identity", "\nTransfer-Encoding: chunked, identity"),
        ("coding is identity", "\nTransfer-Encoding: identity\nContent-Length: 4"),
        ("coding is xchunked", "\nTransfer-Encoding: xchunked"),
        ("coding has a tab", "\nTransfer-Encoding:\tchunked, x"),
        ("a space before the colon", "\nTransfer-Encoding : chunked"),
        ("obs-fold", "\nX-A: 1\n folded: 2"),
        ("obs-fold of the length", "\nContent-Length:\n 4"),
        ("a header without a name", "\n: 1"),
        ("a header without a colon", "\nnonsense"),
        ("a header with a null", "\nX-A: a\0b"),
        ("a header name with a space", "\nX A: 1"),
        ("a bare carriage return in a value", "\nX-A: a\rLeasehold-Token: b"),
        ("a bare carriage return in a name", "\nX\rA: a"),
        ("a vertical tab in a name", "\nX\x0bA: a"),
        ("two hosts", "\nHost: b\nContent-Length: 0"),
        ("an upgrade", "\nConnection: Upgrade\nUpgrade: websocket\nContent-Length: 0"),
        ("an upgrade to what is not", "\nUpgrade: foo\nContent-Length: 0"),
    ];
    let all = vec![400, 408, 413, 431, 501, 0];
    heads.iter().map(|(name, head)| ((*name).into(), request(&format!("{base}{head}"), "1234"), all.clone())).collect()
}

fn chunks(token: &str) -> Vec<Case> {
    let head = format!("POST /x HTTP/1.1\nHost: a\nLeasehold-Token: {token}\nTransfer-Encoding: chunked");
    let bodies = [
        ("a chunk size that is no number", "zz\r\nabcd\r\n0\r\n\r\n"),
        ("a negative chunk size", "-4\r\nabcd\r\n0\r\n\r\n"),
        ("a chunk size that overflows", "fffffffffffffffff\r\nabcd\r\n0\r\n\r\n"),
        ("a chunk that is longer than it says", "2\r\nabcd\r\n0\r\n\r\n"),
        ("a chunk without its end", "4\r\nabcdXX0\r\n\r\n"),
        ("a bare line feed as a chunk's end", "4\nabcd\n0\n\n"),
    ];
    bodies.iter().map(|(name, body)| ((*name).into(), request(&head, body), vec![400, 408, 0])).collect()
}

fn tokens(good: &Token) -> Vec<Case> {
    let nonce = "00000000000000000000000000000007";
    let bad: Vec<(&str, String, Vec<u16>)> = vec![
        ("no token", String::new(), vec![428]),
        ("an empty token", "\nLeasehold-Token: ".into(), vec![400]),
        ("a short token", "\nLeasehold-Token: job:1".into(), vec![400]),
        ("a token of words", "\nLeasehold-Token: please".into(), vec![400]),
        ("epoch 0", format!("\nLeasehold-Token: job:0:{nonce}:{nonce}:0"), vec![400]),
        ("a negative epoch", format!("\nLeasehold-Token: job:-1:{nonce}:{nonce}:0"), vec![400]),
        ("an epoch with a plus", format!("\nLeasehold-Token: job:+1:{nonce}:{nonce}:0"), vec![400]),
        (
            "an epoch that overflows",
            format!("\nLeasehold-Token: job:99999999999999999999:{nonce}:{nonce}:0"),
            vec![400],
        ),
        ("a short nonce", "\nLeasehold-Token: job:1:{nonce}:07:0".into(), vec![400]),
        ("a lease that climbs", format!("\nLeasehold-Token: ../x:1:{nonce}:{nonce}:0"), vec![400]),
        ("a lease with a space", format!("\nLeasehold-Token: a b:1:{nonce}:{nonce}:0"), vec![400]),
        ("a fifth part", format!("\nLeasehold-Token: {}:9", good.wire()), vec![400]),
        ("a sequence that is text", format!("\nLeasehold-Token: job:1:{nonce}:x"), vec![400]),
        ("bytes that are no text", "\nLeasehold-Token: \u{e9}\u{e9}".into(), vec![400]),
        ("two tokens", format!("\nLeasehold-Token: {0}\nLeasehold-Token: {0}", good.wire()), vec![400]),
        (
            "two different tokens",
            format!("\nLeasehold-Token: {}\nleasehold-token: job:9:{nonce}:{nonce}:0", good.wire()),
            vec![400],
        ),
        ("two tokens in one", format!("\nLeasehold-Token: {0}, {0}", good.wire()), vec![400]),
        ("a token in quotes", format!("\nLeasehold-Token: \"{}\"", good.wire()), vec![400]),
        ("a future epoch that nobody granted", format!("\nLeasehold-Token: job:99:{nonce}:{nonce}:0"), vec![403]),
        ("another grant of this epoch", format!("\nLeasehold-Token: job:1:{nonce}:{nonce}:0"), vec![403]),
        ("another lease", format!("\nLeasehold-Token: other:1:{nonce}:{nonce}:0"), vec![403]),
        ("only the epoch header", "\nLeasehold-Epoch: 99".into(), vec![428]),
        ("a token under another name", format!("\nLeasehold_Token: {}", good.wire()), vec![428]),
        ("a huge key", format!("\nLeasehold-Token: {}\nIdempotency-Key: {}", good.wire(), "k".repeat(300)), vec![400]),
        ("two keys", format!("\nLeasehold-Token: {}\nIdempotency-Key: a\nIdempotency-Key: b", good.wire()), vec![400]),
    ];
    bad.into_iter()
        .map(|(name, header, statuses)| {
            (name.into(), request(&format!("POST /x HTTP/1.1\nHost: a{header}\nContent-Length: 4"), "1234"), statuses)
        })
        .collect()
}

fn targets(token: &str) -> Vec<Case> {
    let lines = [
        "POST /../admin HTTP/1.1",
        "POST /a/../../admin HTTP/1.1",
        "POST /./x HTTP/1.1",
        "POST /a/.. HTTP/1.1",
        "POST /%2e%2e/admin HTTP/1.1",
        "POST /%2E%2e/admin HTTP/1.1",
        "POST /.%2e/admin HTTP/1.1",
        "POST /a/..;x=1/admin HTTP/1.1",
        "POST /a%2f..%2fadmin HTTP/1.1",
        "POST /a%5c..%5cadmin HTTP/1.1",
        "POST /a\\..\\admin HTTP/1.1",
        "POST /a%00b HTTP/1.1",
        "POST http://evil.example/../x HTTP/1.1",
        "POST * HTTP/1.1",
        "POST x HTTP/1.1",
        "POST //evil.example/%2e%2e HTTP/1.1",
        "CONNECT evil.example:443 HTTP/1.1",
        "CONNECT 127.0.0.1:22 HTTP/1.1",
        "TRACE /x HTTP/1.1",
        "POST /x y HTTP/1.1",
        "POST  /x HTTP/1.1",
        "POST /x HTTP/3.0",
        "POST /x HTTP/1.1 extra",
        "POST /x",
        "POST /x FTP/1.1",
        "GET /.well-known/leasehold HTTP/1.1",
        "GET /.well-known/leasehold/../x HTTP/1.1",
        "GET /.well-known/leasehold/seal HTTP/1.1",
        "POST /.well-known/leasehold/high-water HTTP/1.1",
        "PO\x01ST /x HTTP/1.1",
        "\u{7f}ELF /x HTTP/1.1",
    ];
    lines
        .iter()
        .map(|line| {
            let bytes = request(&format!("{line}\nHost: a\nLeasehold-Token: {token}\nContent-Length: 4"), "1234");
            ((*line).into(), bytes, vec![400, 404, 405, 505, 0])
        })
        .collect()
}

fn sizes(token: &str) -> Vec<Case> {
    let head = format!("POST /x HTTP/1.1\nHost: a\nLeasehold-Token: {token}");
    let many: String = (0..300).map(|n| format!("\nX-{n}: 1")).collect();
    vec![
        (
            "a header of 100 KiB".into(),
            request(&format!("{head}\nX-A: {}\nContent-Length: 0", "a".repeat(102_400)), ""),
            vec![431, 0],
        ),
        ("300 headers".into(), request(&format!("{head}{many}\nContent-Length: 0"), ""), vec![431, 0]),
        (
            "a target of 100 KiB".into(),
            request(&format!("POST /{} HTTP/1.1\nHost: a\nLeasehold-Token: {token}", "a".repeat(102_400)), ""),
            vec![414, 431, 400, 0],
        ),
        ("no HTTP at all".into(), b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n".to_vec(), vec![400, 0]),
        (
            "an HTTP/2 preface that breaks off".into(),
            b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\nxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx".to_vec(),
            vec![400, 0],
        ),
    ]
}

pub fn all() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = Store::open_in(folder.path());
    let upstream = Upstream::start();
    let proxy = Proxied::start(&store, &upstream.url(), "api");
    proxy.wait_active();
    let lease: LeaseName = "job".parse().unwrap();
    let token = store.transfer(&lease);
    assert_eq!(proxy.write(&token, "/write").unwrap().status, 200);
    let wire = token.wire();
    let cases: Vec<Case> = [framing(&wire), chunks(&wire), tokens(&token), targets(&wire), sizes(&wire)].concat();
    assert!(cases.len() >= 80, "{}", cases.len());
    for (name, bytes, statuses) in &cases {
        let mut peer = Peer::connect(proxy.address);
        peer.send(bytes);
        let status = peer.answer().map_or(0, |answer| {
            assert!(!answer.head.contains(&wire) && !answer.body.contains(&wire), "{name}: the token is shown");
            answer.status
        });
        assert!(statuses.contains(&status), "{name}: {status}, expected one of {statuses:?}");
        assert_eq!(upstream.count(), 1, "{name}: something reached the upstream: {:?}", upstream.applied().last());
    }
    println!("{} hostile requests refused", cases.len());
    still_well(&proxy, &upstream, &token);
}

/// The proxy goes on, and what it lets pass is clean.
fn still_well(proxy: &Proxied, upstream: &Upstream, token: &Token) {
    let (host, wire) = (upstream.address, token.wire());
    let head = format!(
        "POST http://169.254.169.254/meta?a=%2e%2e/b HTTP/1.1\nHost: evil.example\nLeasehold-Token: {wire}\n\
         Leasehold-Epoch: 99\nLeasehold-Lease: other\nConnection: close, X-Secret\nX-Secret: 1\nKeep-Alive: 5\n\
         Proxy-Authorization: x\nTE: trailers\nExpect: 100-continue\nContent-Length: 4"
    );
    let answer = once(proxy.address, &request(&head, "1234")).unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.header("leasehold-epoch").is_none() && answer.header("x-drop").is_none(), "{answer:?}");
    let seen = upstream.applied().pop().unwrap();
    assert_eq!(seen.target, "/meta?a=%2e%2e/b");
    assert_eq!(seen.header("host"), Some(host.to_string().as_str()));
    assert_eq!(seen.header("leasehold-epoch"), Some("1"));
    assert_eq!(seen.header("leasehold-lease"), Some("job"));
    for gone in ["leasehold-token", "x-secret", "keep-alive", "proxy-authorization", "te", "expect", "connection"] {
        assert_eq!(seen.header(gone), None, "{gone}");
    }
    let redirect = once(proxy.address, &crate::peer::post("/redirect", &wire, &payload(token))).unwrap();
    assert_eq!(redirect.status, 302, "a redirect is the client's to follow");
    assert_eq!(upstream.applied().pop().unwrap().author(), author(token));
    // A second request hidden in the body of the first stays a body.
    let hidden = format!("POST /hidden HTTP/1.1\r\nHost: a\r\nLeasehold-Token: {wire}\r\nContent-Length: 0\r\n\r\n");
    let before = upstream.count();
    assert_eq!(once(proxy.address, &crate::peer::post("/outer", &wire, hidden.as_bytes())).unwrap().status, 200);
    assert_eq!(upstream.count(), before + 1);
}
