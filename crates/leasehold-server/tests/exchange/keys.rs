//! What an exchanged key is good for, and how it ends.

use crate::blocks::{Shell, run_all};
use crate::scene::{NOW, Scene, claims, rule, site_rule};
use leasehold_server::oidc::Lasts;
use leasehold_testbed::Issuer;
use serde_json::json;
use std::time::Duration;

#[tokio::test]
async fn a_key_does_what_its_rule_says_until_it_expires() {
    let issuer = Issuer::start();
    let mut short = site_rule(&issuer);
    short.lasts = Lasts::new(Duration::from_secs(120)).unwrap();
    let scene = Scene::with(vec![short]).await;
    let key = scene.key(&issuer.token(&claims(json!({})))).await;
    let body = || json!({ "ttl": "60s" });
    scene.rig.post(&key, "leases/deploy~web/acquire", body()).await.ok();
    scene.rig.post(&key, "leases/other/acquire", body()).await.refused(403, "not_allowed");
    scene.rig.post(&key, "leases/deploy~web/revoke", json!({ "why": "x" })).await.refused(403, "not_allowed");
    scene.rig.post(&key, "queues/deploy/items", json!({ "items": [{}] })).await.refused(403, "not_allowed");
    let elsewhere = format!("{}/v1/ns/other/leases", scene.rig.base);
    let answer = crate::rig::answer(reqwest::Client::new().get(elsewhere).bearer_auth(&key)).await;
    answer.refused(403, "not_allowed");
    scene.pass(119);
    scene.rig.get(&key, "leases/deploy~web").await.ok();
    scene.pass(1);
    scene.rig.get(&key, "leases/deploy~web").await.refused(401, "key_expired");
}

#[tokio::test]
async fn a_key_says_whose_token_it_came_from_and_can_be_revoked() {
    let issuer = Issuer::start();
    let scene = Scene::start(&issuer).await;
    let key = scene.key(&issuer.token(&claims(json!({})))).await;
    scene.rig.get(&key, "leases").await.ok();
    let listed = scene.rig.keys.list().await.unwrap().0.remove(0).unwrap();
    let origin = listed.record.origin.clone().unwrap();
    assert_eq!((origin.issuer, origin.subject.as_str()), (issuer.url(), "repo:acme/site:ref:refs/heads/main"));
    assert_eq!(listed.record.label.as_str(), "repo:acme/site:ref:refs/heads/main");
    assert!(listed.record.created.by.as_str().starts_with("a token of 127.0.0.1:"), "{}", listed.record.created.by);
    let (by, why) = ("ann".parse().unwrap(), "the runner was taken over".parse().unwrap());
    scene.rig.keys.revoke(&listed.record.id, &by, &why).await.unwrap();
    // What was read of a key counts for 2 s at most.
    scene.pass(3);
    scene.rig.get(&key, "leases").await.refused(401, "key_revoked");
    // That was the key. Whoever may have another is the rules' to say.
    scene.exchange(&issuer.token(&claims(json!({})))).await.ok();
}

#[tokio::test]
async fn a_subject_that_asks_too_often_is_told_to_wait_and_others_are_not() {
    let issuer = Issuer::start();
    let scene = Scene::start(&issuer).await;
    let token = issuer.token(&claims(json!({})));
    let mut made = 0;
    let refused = loop {
        let answer = scene.exchange(&token).await;
        if answer.status != 200 {
            break answer;
        }
        made += 1;
        assert!(made <= 101, "there is a bound");
    };
    refused.refused(429, "too_many_requests");
    scene.exchange(&issuer.token(&claims(json!({ "sub": "another" })))).await.ok();
    scene.pass(1);
    scene.exchange(&token).await.ok();
}

#[tokio::test]
async fn expired_keys_are_removed_and_those_that_people_made_are_not() {
    let issuer = Issuer::start();
    let mut short = rule(&issuer.url(), ("repository", "acme/site"), "*", "read");
    short.lasts = Lasts::new(Duration::from_secs(1)).unwrap();
    let scene = Scene::with(vec![short]).await;
    let by_hand = scene.rig.secret("team", "read", &["*"]).await;
    let late = json!({ "exp": NOW + 100_000 });
    for _ in 0..100 {
        scene.key(&issuer.token(&claims(late.clone()))).await;
    }
    // Old ones are listed for an hour.
    scene.pass(3_600);
    scene.key(&issuer.token(&claims(late.clone()))).await;
    assert_eq!(scene.count().await, 102);
    scene.pass(10);
    let mut last = String::new();
    // Each new one removes a bounded number of old ones, in the background.
    let removed = async {
        while scene.count().await > 10 {
            scene.pass(1);
            last = scene.key(&issuer.token(&claims(late.clone()))).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), removed).await.expect("they are removed");
    let left = scene.rig.keys.list().await.unwrap().0;
    assert!(left.iter().any(|key| key.as_ref().unwrap().record.id == by_hand.id()));
    scene.rig.get(by_hand.reveal(), "leases").await.ok();
    assert!(left.iter().any(|key| key.as_ref().unwrap().record.id.as_str() == &last[5..13]));
}

#[tokio::test]
async fn the_example_of_the_page_is_as_it_says() {
    let issuer = Issuer::start();
    let scene = Scene::start(&issuer).await;
    let token = issuer.token(&claims(json!({})));
    let folder = tempfile::tempdir().unwrap();
    let mut shell = Shell::start(&[("URL", &scene.rig.base), ("OIDC_TOKEN", &token)], folder.path());
    let run = run_all(&mut shell, "no key", |language| language.ends_with(" exchange")).await;
    assert_eq!(run, 2, "docs/api.md shows an exchange, and what the key is good for");
}

#[tokio::test]
async fn a_subject_turns_no_line_around_where_it_is_shown() {
    let issuer = Issuer::start();
    let scene = Scene::start(&issuer).await;
    let turned = format!("repo{}acme{}", '\u{202e}', '\u{2028}');
    scene.exchange(&issuer.token(&claims(json!({ "sub": turned })))).await.ok();
    let made = scene.rig.keys.list().await.unwrap().0.remove(0).unwrap();
    assert_eq!(made.record.origin.unwrap().subject, "repoacme");
}
