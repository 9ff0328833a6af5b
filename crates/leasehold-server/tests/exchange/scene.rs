//! A server that exchanges tokens, an issuer, and a clock for all of it.

use crate::rig::{Answer, InMemory, Rig, answer};
use leasehold_core::MemoryStore;
use leasehold_core::clock::ManualClock;
use leasehold_server::access::{Keys, Scope};
use leasehold_server::oidc::{Claims, Exchange, Lasts, Rule, Wanted};
use leasehold_server::serve::Limits;
use leasehold_testbed::Issuer;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

pub const AUDIENCE: &str = "https://leases.example.org";
/// The store's time when a scene begins, in seconds.
pub const NOW: u64 = 1_700_000_001;

pub struct Scene {
    pub rig: Rig,
    pub clock: ManualClock,
    client: reqwest::Client,
}

/// What tokens say unless a test says otherwise: they count for five minutes.
pub fn claims(more: Value) -> Value {
    let mut claims = json!({
        "aud": AUDIENCE,
        "sub": "repo:acme/site:ref:refs/heads/main",
        "repository": "acme/site",
        "ref": "refs/heads/main",
        "iat": NOW,
        "nbf": NOW - 10,
        "exp": NOW + 300,
    });
    for (name, value) in more.as_object().unwrap() {
        claims[name] = value.clone();
    }
    claims
}

/// A rule for tokens with this claim.
pub fn rule(issuer: &str, (claim, text): (&str, &str), names: &str, verbs: &str) -> Rule {
    let names = vec![names.parse().unwrap()];
    Rule {
        issuer: issuer.parse().unwrap(),
        jwks_file: None,
        audience: AUDIENCE.parse().unwrap(),
        claims: Claims::new([(claim.to_owned(), Wanted::text(text).unwrap())].into()).unwrap(),
        scope: Scope::new("team".parse().unwrap(), names, verbs.parse().unwrap()).unwrap(),
        lasts: Lasts::default(),
    }
}

/// The rule of most tests.
pub fn site_rule(issuer: &Issuer) -> Rule {
    rule(&issuer.url(), ("repository", "acme/site"), "deploy/*", "read,hold")
}

impl Scene {
    /// With the rule of most tests.
    pub async fn start(issuer: &Issuer) -> Self {
        Scene::with(vec![site_rule(issuer)]).await
    }

    pub async fn with(rules: Vec<Rule>) -> Self {
        let clock = ManualClock::default();
        let shared = Arc::new(clock.clone());
        let keys = Keys::new(Arc::new(MemoryStore::with_clock(shared.clone()))).with_clock(shared.clone());
        let exchange = Exchange::with_clock(rules, shared).unwrap();
        let rig = Rig::exchanging(Arc::new(InMemory::default()), Limits::default(), keys, exchange).await;
        Scene { rig, clock, client: reqwest::Client::new() }
    }

    pub fn pass(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }

    pub async fn exchange(&self, token: &str) -> Answer {
        self.send(&json!({ "token": token }).to_string()).await
    }

    pub async fn send(&self, body: &str) -> Answer {
        answer(self.client.post(format!("{}/v1/exchange", self.rig.base)).body(body.to_owned())).await
    }

    /// Whether it is exchanged, and if not, what is said; the token is in no answer.
    pub async fn refused(&self, token: &str, status: u16, kind: &str) -> String {
        let body = self.exchange(token).await.refused(status, kind);
        let parts = token.split('.').filter(|part| part.len() > 20);
        parts.for_each(|part| assert!(!body.to_string().contains(part), "{body}"));
        body["detail"].as_str().unwrap().to_owned()
    }

    /// The key that a token is exchanged for.
    pub async fn key(&self, token: &str) -> String {
        self.exchange(token).await.ok()["key"].as_str().unwrap().to_owned()
    }

    /// How many keys there are.
    pub async fn count(&self) -> usize {
        self.rig.keys.list().await.unwrap().0.len()
    }
}
