//! Tokens of a real OIDC server, exchanged by the real binary.

use crate::common::{Home, On};
use crate::rig::{get_as, id, serve};
use leasehold_testbed::Issuer;
use serde_json::{Value, json};

const AUDIENCE: &str = "https://leases.example.org";

fn rule(issuer: &str) -> String {
    format!(
        "[[oidc]]\nissuer = \"{issuer}\"\naudience = \"{AUDIENCE}\"\nclaims = {{ repository = \"acme/site\" }}\n\
         namespace = \"ci\"\nnames = [\"deploy/*\"]\nallow = [\"read\", \"hold\"]\nlasts = \"5m\"\n"
    )
}

#[test]
fn a_runner_with_a_token_runs_under_a_lease_without_a_key_of_its_own() {
    let issuer = Issuer::start();
    let home = Home::new(On::Sqlite);
    let settings = home.read("leasehold.toml");
    std::fs::write(home.path("leasehold.toml"), format!("{settings}\n{}", rule(&issuer.url()))).unwrap();
    let shown = home.done(&["config"]).expect(0).stdout;
    assert!(shown.contains("repository=acme/site: read,hold on deploy/* in ci for 5m"), "{shown}");
    let server = serve(&home, &[]);
    let token = issuer.token(&json!({ "aud": AUDIENCE, "sub": "runner-7", "repository": "acme/site" }));
    std::fs::write(home.path("token"), format!("{token}\n")).unwrap();
    let store = format!("leasehold+http://{}/ci", server.address);
    let exchange = ["key", "exchange", "--store", &store, "--token-file", "token"];
    let done = home.done(&exchange).expect(0);
    let key = done.stdout.trim();
    assert!(key.starts_with("lh_w_") && done.stderr.contains(id(key)), "{done:?}");
    assert_eq!(get_as(server.address, "/v1/ns/ci", key).json()["key"]["label"], "runner-7");
    let mut run = home.leasehold(&["run", "--store", &store, "deploy/web", "--", "true"]);
    assert!(run.env("LEASEHOLD_KEY", key).status().unwrap().success());
    // Whoever lists keys sees whose token it was.
    let listed: Value = serde_json::from_str(&home.done(&["key", "ls", "--json"]).expect(0).stdout).unwrap();
    let made = listed.as_array().unwrap().iter().find(|made| made["id"] == id(key)).unwrap();
    assert_eq!(made["origin"], json!({ "issuer": issuer.url(), "subject": "runner-7" }));
    // Another's token is no use, and is in no message and no log.
    let other = issuer.token(&json!({ "aud": AUDIENCE, "sub": "x", "repository": "evil/site" }));
    std::fs::write(home.path("token"), &other).unwrap();
    let refused = home.done(&exchange);
    assert!(refused.code == 78 && refused.stderr.contains("no rule"), "{refused:?}");
    let log = home.read(&server.log);
    for token in [token, other] {
        assert!(token.split('.').all(|part| !log.contains(part) && !refused.stderr.contains(part)), "{log}");
    }
}

#[test]
fn a_rule_that_is_wrong_is_named_before_anything_is_served() {
    let home = Home::new(On::Sqlite);
    let settings = home.read("leasehold.toml");
    let right = rule("https://token.actions.githubusercontent.com");
    for (from, to, says) in [
        ("https://token", "http://token", "field `issuer`"),
        ("{ repository = \"acme/site\" }", "{}", "field `claims`"),
        ("\"read\", ", "\"admin\", ", "cannot make others"),
        ("\"read\", ", "\"write\", ", "use read, hold, work, operate or admin"),
        ("\"5m\"", "\"2h\"", "use 1s to 1h"),
        ("deploy/*", "deploy *", "field `names`"),
        ("namespace = \"ci\"", "namespace = \"leasehold-server\"", "field `namespace`"),
        ("audience", "audiense", "unknown field `audiense`"),
    ] {
        let wrong = right.replace(from, to);
        assert_ne!(wrong, right);
        std::fs::write(home.path("leasehold.toml"), format!("{settings}\n{right}\n{wrong}")).unwrap();
        for verb in [&["serve", "--listen", "127.0.0.1:0"][..], &["config"]] {
            let refused = home.done(verb);
            let is_named = refused.stderr.contains("oidc 2") && refused.stderr.contains(says);
            assert!(refused.code == 64 && is_named, "{to}: {refused:?}");
        }
        // Nobody else minds.
        home.done(&["ls"]).expect(0);
    }
}
