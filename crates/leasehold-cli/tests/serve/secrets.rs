//! What a server may not write down, however much it is told to log.

use crate::common::{Home, On, eventually};
use crate::rig::{key, raw, serve};
use serde_json::Value;

/// A POST with a key; what is answered.
fn post(address: std::net::SocketAddr, key: &str, path: &str, body: &str) -> Value {
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    raw(address, request.as_bytes()).unwrap().json()
}

#[test]
fn neither_keys_nor_tokens_nor_payloads_are_in_the_log_at_any_level() {
    let home = Home::new(On::Sqlite);
    let mine = key(&home, &["--namespace", "team", "--allow", "read,hold,work,operate"]);
    let server = serve(&home, &["--log", "trace"]);
    let payload = "payload-that-nobody-else-may-read";
    let leases = "/v1/ns/team/leases/nightly";
    let held = post(server.address, &mine, &format!("{leases}/acquire"), r#"{"ttl":"60s"}"#);
    let token = held["token"].as_str().unwrap().to_owned();
    let body = format!(r#"{{"token":"{token}","checkpoint":"{payload}-1"}}"#);
    assert_eq!(post(server.address, &mine, &format!("{leases}/checkpoint"), &body)["epoch"], 1);
    assert!(
        post(server.address, &mine, &format!("{leases}/renew"), &format!(r#"{{"token":"{token}"}}"#))["token"]
            .is_string()
    );
    let queue = "/v1/ns/team/queues/mail";
    let added = post(
        server.address,
        &mine,
        &format!("{queue}/items"),
        &format!(r#"{{"items":[{{"payload":"{payload}-2"}}]}}"#),
    );
    assert!(added["status"].is_null(), "{added}");
    let claimed = post(server.address, &mine, &format!("{queue}/claim"), r#"{"ttl":"60s"}"#);
    let item = claimed["items"][0]["token"].as_str().unwrap_or_else(|| panic!("{claimed}")).to_owned();
    // What is refused is said too, and with errors more of it.
    let stale = format!(r#"{{"token":"{token}","marker":"{payload}-3","unknown":"{payload}-4"}}"#);
    assert_eq!(post(server.address, &mine, &format!("{leases}/renew"), &stale)["kind"], "invalid");
    let wrong = format!("{}x", &mine[..mine.len() - 1]);
    assert_eq!(post(server.address, &wrong, &format!("{leases}/renew"), "{}")["status"], 401);
    let cookie = format!("cookie: leasehold_session={wrong}");
    crate::rig::get(server.address, &format!("/ns/team/leases?next={payload}-5"), &[&cookie]);
    // Through the client of our own, too.
    let url = format!("leasehold+http://{}/team", server.address);
    let mut command = home.leasehold(&["renew", "--store", &url, "--token", &token]);
    command.env("LEASEHOLD_KEY", &mine);
    crate::common::Done::from(command.output().unwrap()).expect(0);
    // The last request is in the log, and so are those before it.
    eventually("the log has it", || home.read(&server.log).contains("records/"));
    let log = home.read(&server.log);
    assert!(log.lines().any(|line| line.contains(" debug ")), "each request is logged, also one that succeeds: {log}");
    // LEASE:EPOCH:LINEAGE:NONCE:SEQ
    let nonce = |token: &str| token.rsplit(':').nth(1).unwrap().to_owned();
    for secret in [&mine[13..], &wrong[13..], payload, &token, &item, &nonce(&token), &nonce(&item)] {
        assert!(secret.len() >= 8, "{secret}");
        assert!(!log.contains(secret), "`{secret}` is in the log");
    }
}
