//! What issuers do: they change their keys, they go away, they misbehave.

use crate::scene::{NOW, Scene, claims, rule, site_rule};
use leasehold_testbed::{Issuer, OldKeys};
use serde_json::{Value, json};
use std::time::Duration;

#[tokio::test]
async fn a_new_key_counts_at_once_and_a_withdrawn_one_no_more() {
    let issuer = Issuer::start();
    let scene = Scene::start(&issuer).await;
    let by = |generation: usize| issuer.token_by(generation, &json!({}), &claims(json!({})));
    scene.exchange(&by(0)).await.ok();
    issuer.rotate("ES256", OldKeys::Kept);
    scene.exchange(&by(1)).await.ok();
    scene.exchange(&by(0)).await.ok();
    assert_eq!(issuer.fetches(), 2, "keys that are known are not fetched again");
    issuer.rotate("RS256", OldKeys::Withdrawn);
    scene.exchange(&by(2)).await.ok();
    let detail = scene.refused(&by(0), 401, "token_untrusted").await;
    assert!(detail.contains("publishes no key"), "{detail}");
}

#[tokio::test]
async fn a_withdrawn_key_stops_counting_though_nobody_uses_a_new_one() {
    let issuer = Issuer::start();
    let scene = Scene::start(&issuer).await;
    let old = issuer.token(&claims(json!({ "exp": NOW + 7200 })));
    scene.exchange(&old).await.ok();
    issuer.rotate("RS256", OldKeys::Withdrawn);
    scene.exchange(&old).await.ok();
    scene.pass(61);
    scene.refused(&old, 401, "token_untrusted").await;
}

#[tokio::test]
async fn tokens_without_a_key_id_are_checked_with_every_key() {
    let issuer = Issuer::start();
    let scene = Scene::start(&issuer).await;
    let bare = |generation: usize| issuer.token_by(generation, &json!({ "kid": null }), &claims(json!({})));
    scene.exchange(&bare(0)).await.ok();
    issuer.rotate("RS256", OldKeys::Kept);
    scene.exchange(&bare(1)).await.ok();
    scene.exchange(&bare(0)).await.ok();
}

#[tokio::test]
async fn a_flood_of_made_up_keys_asks_the_issuer_a_bounded_number_of_times() {
    let issuer = Issuer::start();
    let scene = Scene::start(&issuer).await;
    let good = issuer.token(&claims(json!({})));
    scene.exchange(&good).await.ok();
    for number in 0..40 {
        let token = issuer.token_by(0, &json!({ "kid": format!("made-up-{number}") }), &claims(json!({})));
        let answer = scene.exchange(&token).await;
        assert!(answer.status == 401 || answer.status == 503, "{answer:?}");
    }
    assert!(issuer.fetches() <= 4, "{}", issuer.fetches());
    scene.exchange(&good).await.ok();
    // What is new while that goes on counts as soon as the issuer may be asked again.
    issuer.rotate("RS256", OldKeys::Kept);
    let new = issuer.token(&claims(json!({})));
    let answer = scene.exchange(&new).await.refused(503, "issuer_unavailable");
    assert!(answer["retry_after_seconds"].as_u64().unwrap() <= 10, "{answer}");
    scene.pass(10);
    scene.exchange(&new).await.ok();
}

#[tokio::test]
async fn an_issuer_that_is_away_delays_nobody_else_and_its_keys_count_for_a_while() {
    let (mut away, well) = (Issuer::start(), Issuer::start());
    let scene = Scene::with(vec![site_rule(&away), rule(&well.url(), ("repository", "acme/site"), "*", "read")]).await;
    let late = json!({ "exp": NOW + 7200 });
    let (known, other) = (away.token(&claims(late.clone())), well.token(&claims(late)));
    scene.exchange(&known).await.ok();
    away.server().kill();
    scene.pass(61);
    scene.exchange(&known).await.ok();
    scene.pass(600);
    let detail = scene.refused(&known, 503, "issuer_unavailable").await;
    assert!(detail.contains("cannot reach"), "{detail}");
    scene.exchange(&other).await.ok();
    away.server().restart();
    scene.pass(61);
    scene.exchange(&away.token(&claims(json!({ "exp": NOW + 7200 })))).await.ok();
}

#[tokio::test]
async fn an_issuer_that_hangs_delays_nobody_else() {
    let (hangs, well) = (Issuer::start(), Issuer::start());
    let scene = Scene::with(vec![site_rule(&hangs), rule(&well.url(), ("repository", "acme/site"), "*", "read")]).await;
    let (stuck, other) = (hangs.token(&claims(json!({}))), well.token(&claims(json!({}))));
    hangs.behave("hang");
    let waiting = async {
        // Far more than may be under way at once, were they among the others.
        let all = (0..300).map(|_| scene.exchange(&stuck));
        futures_util::future::join_all(all).await
    };
    let meanwhile = async {
        let key = scene.key(&other).await;
        for _ in 0..20 {
            scene.rig.get(&key, "leases").await.ok();
        }
    };
    let (answers, ()) = tokio::join!(waiting, async {
        tokio::time::timeout(Duration::from_secs(4), meanwhile).await.expect("they wait for nobody");
    });
    for answer in answers {
        assert!(answer.status == 503, "{answer:?}");
    }
    hangs.behave("well");
    scene.pass(61);
    scene.exchange(&stuck).await.ok();
}

#[tokio::test]
async fn what_an_issuer_should_not_send_is_not_taken() {
    for (mode, says) in [
        ("broken", "answered 500"),
        ("moved", "answered 302"),
        ("other", "says that it is of"),
        ("elsewhere", "not at https://"),
        ("huge", "more than 262144 bytes"),
        ("nonsense", "are no keys"),
    ] {
        let issuer = Issuer::start();
        let scene = Scene::start(&issuer).await;
        let token = issuer.token(&claims(json!({})));
        issuer.behave(mode);
        let detail = scene.refused(&token, 503, "issuer_unavailable").await;
        assert!(detail.contains(says), "{mode}: {detail}");
        issuer.behave("well");
        scene.exchange(&token).await.ok();
    }
}

#[tokio::test]
async fn where_a_file_of_keys_is_nobody_is_told_without_a_key() {
    let issuer = Issuer::start();
    let mut rule = site_rule(&issuer);
    rule.jwks_file = Some("/nowhere/of/ours/cluster.jwks".into());
    let scene = Scene::with(vec![rule]).await;
    scene.pass(NOW);
    let told = scene.refused(&issuer.token(&claims(json!({}))), 503, "issuer_unavailable").await;
    assert!(told.contains("its log says more") && !told.contains("nowhere"), "{told}");
}

#[tokio::test]
async fn keys_in_a_file_are_read_again_when_they_change() {
    let issuer = Issuer::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jwks.json");
    let publish = async || {
        let keys = reqwest::get(format!("{}/jwks", issuer.url())).await.unwrap().text().await.unwrap();
        std::fs::write(&file, keys).unwrap();
    };
    // An issuer that this machine does not reach.
    let cluster = "https://kubernetes.default.svc.cluster.local";
    let mut rule = rule(cluster, ("sub", "system:serviceaccount:ci:*"), "*", "hold");
    rule.jwks_file = Some(file.clone());
    let token = || {
        let pod: Value = json!({ "iss": cluster, "sub": "system:serviceaccount:ci:runner" });
        issuer.token(&claims(pod))
    };
    // A server with its own key store, so that TLS is set up before the first request.
    let scene = Scene::with(vec![rule]).await;
    let detail = scene.refused(&token(), 503, "issuer_unavailable").await;
    assert!(detail.contains("cannot read its keys of"), "{detail}");
    publish().await;
    scene.exchange(&token()).await.ok();
    issuer.rotate("RS256", OldKeys::Withdrawn);
    publish().await;
    scene.exchange(&token()).await.ok();
}
