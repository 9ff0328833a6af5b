//! Which tokens count.

use crate::scene::{AUDIENCE, NOW, Scene, claims, rule};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use leasehold_testbed::{Issuer, OldKeys};
use serde_json::{Value, json};

fn part(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

#[tokio::test]
async fn a_token_that_a_rule_is_for_is_exchanged_for_a_key() {
    let issuer = Issuer::start();
    let scene = Scene::start(&issuer).await;
    let answer = scene.exchange(&issuer.token(&claims(json!({})))).await.ok();
    assert!(answer["key"].as_str().unwrap().starts_with("lh_w_"), "{answer}");
    let expected = json!({
        "label": "repo:acme/site:ref:refs/heads/main",
        "namespace": "team",
        "names": ["deploy/*"],
        "allows": ["read", "hold"],
    });
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(answer[field], *value, "{field}");
    }
    let lasts = answer["expires"]["ms"].as_u64().unwrap() - answer["now"]["ms"].as_u64().unwrap();
    assert_eq!(lasts, 15 * 60 * 1000);
    let several = claims(json!({ "aud": ["other", AUDIENCE] }));
    scene.exchange(&issuer.token(&several)).await.ok();
}

#[tokio::test]
async fn every_asymmetric_algorithm_counts() {
    let issuer = Issuer::start();
    let scene = Scene::start(&issuer).await;
    for algorithm in ["RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA", "RS256"] {
        issuer.rotate(algorithm, OldKeys::Kept);
        // More often than the issuer is asked at once.
        scene.pass(61);
        let token = issuer.token(&claims(json!({ "exp": NOW + 3600 })));
        let head = URL_SAFE_NO_PAD.decode(token.split('.').next().unwrap()).unwrap();
        let head: Value = serde_json::from_slice(&head).unwrap();
        assert_eq!(head["alg"], algorithm);
        scene.exchange(&token).await.ok();
    }
}

#[tokio::test]
async fn a_token_that_is_not_signed_by_the_issuers_private_key_is_refused() {
    let issuer = Issuer::start();
    let scene = Scene::start(&issuer).await;
    let good = issuer.token(&claims(json!({})));
    let parts: Vec<&str> = good.split('.').collect();
    let (head, said, signature) = (parts[0], parts[1], parts[2]);
    // Another's claims under the same signature, and the same under another.
    let richer = part(&claims(json!({ "iss": issuer.url(), "repository": "acme/site", "admin": true })));
    let other = URL_SAFE_NO_PAD.encode([7; 256]);
    let short = URL_SAFE_NO_PAD.encode(&URL_SAFE_NO_PAD.decode(signature).unwrap()[..255]);
    for forged in [
        format!("{head}.{richer}.{signature}"),
        format!("{head}.{said}.{other}"),
        format!("{head}.{said}."),
        format!("{head}.{said}.{short}"),
    ] {
        scene.refused(&forged, 401, "token_untrusted").await;
    }
    // No signature at all, in every spelling.
    for none in ["none", "None", "NONE", "nOnE", ""] {
        let head = part(&json!({ "alg": none, "typ": "JWT" }));
        for signature in ["", signature] {
            let detail = scene.refused(&format!("{head}.{said}.{signature}"), 401, "token_untrusted").await;
            assert!(detail.contains("RS256"), "{detail}");
        }
    }
    // The public key as the secret of an HMAC.
    scene.refused(&issuer.token_by_public_key(&claims(json!({}))), 401, "token_untrusted").await;
    // An algorithm that the key is not for, by the header alone.
    let kid = serde_json::from_slice::<Value>(&URL_SAFE_NO_PAD.decode(head).unwrap()).unwrap()["kid"].clone();
    for algorithm in ["RS384", "PS256", "ES256", "ES384", "EdDSA"] {
        let head = part(&json!({ "alg": algorithm, "kid": kid }));
        scene.refused(&format!("{head}.{said}.{signature}"), 401, "token_untrusted").await;
    }
    // What says that it must not be accepted without an extension, or that it is something else.
    for header in [json!({ "crit": ["x"], "x": 1 }), json!({ "typ": "logout+jwt" })] {
        let head = part(
            &json!({ "alg": "RS256", "kid": kid, "typ": header["typ"].as_str().unwrap_or("JWT"), "crit": header["crit"] }),
        );
        let head = if header["crit"].is_null() {
            issuer.token_by(0, &header, &claims(json!({})))
        } else {
            format!("{head}.{said}.{signature}")
        };
        scene.refused(&head, 401, "token_untrusted").await;
    }
    // Another issuer's signature under this one's name.
    let stranger = Issuer::start();
    let token = stranger.token(&claims(json!({ "iss": issuer.url() })));
    scene.refused(&token, 401, "token_untrusted").await;
    assert_eq!(scene.count().await, 0, "nothing was made");
    scene.exchange(&good).await.ok();
}

#[tokio::test]
async fn a_token_of_another_issuer_or_for_another_audience_is_refused() {
    let issuer = Issuer::start();
    let scene = Scene::start(&issuer).await;
    let stranger = Issuer::start();
    scene.refused(&stranger.token(&claims(json!({}))), 401, "token_untrusted").await;
    assert_eq!(stranger.fetches(), 0, "nobody asks an issuer that no rule names");
    for wrong in [format!("{}/", issuer.url()), issuer.url().to_uppercase(), "https://accounts.google.com".into()] {
        let detail = scene.refused(&issuer.token(&claims(json!({ "iss": wrong }))), 401, "token_untrusted").await;
        assert!(detail.contains("issuer"), "{detail}");
    }
    for wrong in [json!("other"), json!(format!("{AUDIENCE}/")), json!(["a", "b"]), json!([]), json!({}), Value::Null] {
        let detail = scene.refused(&issuer.token(&claims(json!({ "aud": wrong }))), 401, "token_untrusted").await;
        assert!(detail.contains("audience"), "{detail}");
    }
    assert_eq!(scene.count().await, 0);
}

#[tokio::test]
async fn the_stores_clock_says_whether_the_time_of_a_token_has_come_and_is_over() {
    let issuer = Issuer::start();
    let scene = Scene::start(&issuer).await;
    let with = |more: Value| issuer.token(&claims(more));
    scene.refused(&with(json!({ "exp": NOW - 1 })), 401, "token_expired").await;
    // By this machine's clock these would be right: the store's is years behind.
    let wall = leasehold_system::clock::wall_ms() / 1000;
    scene.refused(&with(json!({ "exp": wall + 300, "iat": wall, "nbf": wall })), 401, "token_early").await;
    scene.refused(&with(json!({ "nbf": NOW + 70 })), 401, "token_early").await;
    scene.refused(&with(json!({ "iat": NOW + 70 })), 401, "token_early").await;
    // The issuer's clock may be a minute ahead.
    scene.exchange(&with(json!({ "iat": NOW + 50, "nbf": NOW + 50 }))).await.ok();
    scene.exchange(&with(json!({ "iat": null, "nbf": null, "exp": NOW as f64 + 10.5 }))).await.ok();
    for wrong in [json!({ "exp": null }), json!({ "exp": "soon" }), json!({ "exp": -5 }), json!({ "exp": 1e300 })] {
        scene.refused(&with(wrong), 401, "token_malformed").await;
    }
    scene.refused(&with(json!({ "nbf": "now" })), 401, "token_malformed").await;
    let token = with(json!({}));
    scene.exchange(&token).await.ok();
    scene.pass(300);
    scene.refused(&token, 401, "token_expired").await;
}

#[tokio::test]
async fn the_first_rule_that_a_token_fits_decides() {
    let issuer = Issuer::start();
    let rules = vec![
        rule(&issuer.url(), ("ref", "refs/heads/main"), "deploy/*", "read,hold"),
        rule(&issuer.url(), ("repository", "acme/*"), "test/*", "read"),
    ];
    let scene = Scene::with(rules).await;
    let names = async |more: Value| {
        let answer = scene.exchange(&issuer.token(&claims(more))).await.ok();
        (answer["names"][0].clone(), answer["allows"].clone())
    };
    assert_eq!(names(json!({})).await, (json!("deploy/*"), json!(["read", "hold"])));
    assert_eq!(names(json!({ "ref": "refs/heads/x" })).await, (json!("test/*"), json!(["read"])));
    let none = issuer.token(&claims(json!({ "ref": "refs/heads/x", "repository": "evil/acme" })));
    let detail = scene.refused(&none, 403, "no_rule").await;
    assert!(detail.contains("repo:acme/site:ref:refs/heads/main") && !detail.contains("acme/*"), "{detail}");
    for missing in
        [json!({ "sub": null }), json!({ "sub": "" }), json!({ "sub": 7 }), json!({ "sub": "x".repeat(513) })]
    {
        scene.refused(&issuer.token(&claims(missing)), 401, "token_malformed").await;
    }
}

#[tokio::test]
async fn what_is_not_a_token_is_refused_as_such_and_never_repeated() {
    let issuer = Issuer::start();
    let scene = Scene::start(&issuer).await;
    let head = part(&json!({ "alg": "RS256" }));
    for wrong in [
        "",
        "x",
        "a.b",
        "a.b.c",
        "a.b.c.d",
        "....",
        &format!("{head}.e30"),
        &format!("{head}.W10.x"),
        &format!("{head}.e30.!"),
    ] {
        scene.refused(wrong, 401, "token_malformed").await;
    }
    scene.refused(&format!("{head}.{}.x", "x".repeat(17_000)), 401, "token_malformed").await;
    scene.send("{}").await.refused(400, "invalid");
    scene.send("{\"token\": 7}").await.refused(400, "invalid");
    scene.send("{\"token\": \"a\", \"audience\": \"b\"}").await.refused(400, "invalid");
    scene.send(&"x".repeat(40_000)).await.refused(413, "too_large");
    assert_eq!(issuer.fetches(), 0, "the issuer is not asked for what cannot be its own");
}

#[tokio::test]
async fn a_server_without_rules_exchanges_nothing() {
    let issuer = Issuer::start();
    let scene = Scene::with(Vec::new()).await;
    let detail = scene.refused(&issuer.token(&claims(json!({}))), 404, "not_found").await;
    assert!(detail.contains("[[oidc]]"), "{detail}");
}
