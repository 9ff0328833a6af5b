//! A server in this process, and keys for it.

use async_trait::async_trait;
use leasehold_core::{Coordinator, MemoryStore, NamePattern, Result, Retention, Store};
use leasehold_server::access::{KeyRing, Keys, Namespaces, NewKey, Scope, Secret, Verb, VerbSet};
use leasehold_server::oidc::Exchange;
use leasehold_server::serve::{Exposure, Limits, Opener, Server, Settings, Site};
use leasehold_stores::Namespace;
use reqwest::{Method, RequestBuilder};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;
use tokio::sync::watch;

/// Stores that are gone with the test, one for each namespace.
#[derive(Debug, Default)]
pub struct InMemory(Mutex<HashMap<String, Arc<dyn Store>>>);

#[async_trait]
impl Opener for InMemory {
    async fn open(&self, namespace: &Namespace) -> Result<Arc<dyn Store>> {
        let mut stores = self.0.lock().unwrap();
        let store = stores.entry(namespace.to_string()).or_insert_with(|| Arc::new(MemoryStore::default()));
        Ok(store.clone())
    }
}

/// One SQLite file for all namespaces.
#[derive(Debug)]
pub struct InSqlite(pub String);

#[async_trait]
impl Opener for InSqlite {
    async fn open(&self, namespace: &Namespace) -> Result<Arc<dyn Store>> {
        let url = format!("sqlite:{}?namespace={namespace}", self.0);
        leasehold_stores::open(&url.parse()?).await
    }
}

pub struct Rig {
    pub base: String,
    pub keys: Keys,
    pub site: Site,
    pub client: reqwest::Client,
    stop: watch::Sender<bool>,
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub status: u16,
    pub body: Value,
}

impl Answer {
    /// The body of a success.
    #[track_caller]
    pub fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.body
    }

    /// The body of a request that was taken on and is not carried out yet.
    #[track_caller]
    pub fn accepted(self) -> Value {
        assert_eq!(self.status, 202, "{}", self.body);
        self.body
    }

    /// The body of a refusal of this kind.
    #[track_caller]
    pub fn refused(self, status: u16, kind: &str) -> Value {
        assert_eq!((self.status, self.body["kind"].as_str()), (status, Some(kind)), "{}", self.body);
        assert_eq!(self.body["status"], status);
        self.body
    }
}

impl Rig {
    /// A server on stores in memory.
    pub async fn start() -> Self {
        Rig::on(Arc::new(InMemory::default())).await
    }

    /// A server on these stores. Its keys are in memory.
    pub async fn on(opener: Arc<dyn Opener>) -> Self {
        Rig::with(opener, Limits::default()).await
    }

    pub async fn with(opener: Arc<dyn Opener>, limits: Limits) -> Self {
        let keys = Keys::new(Arc::new(MemoryStore::default()));
        Rig::exchanging(opener, limits, keys, Exchange::default()).await
    }

    /// A server with these keys that exchanges tokens.
    pub async fn exchanging(opener: Arc<dyn Opener>, limits: Limits, keys: Keys, exchange: Exchange) -> Self {
        static TLS: Once = Once::new();
        TLS.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
        let ring = KeyRing::new(keys.clone());
        let site = Site::with_exchange(opener, Retention::default(), ring, limits.clone(), exchange);
        let listen = "127.0.0.1:0".parse().unwrap();
        let settings = Settings { listen, tls: None, exposure: Exposure::Secure, prefix: None, limits };
        let (stop, stopped) = watch::channel(false);
        let (tell, told) = tokio::sync::oneshot::channel();
        let served = site.clone();
        // A thread of its own, as the command has.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let server = Server::bind(&settings, served).await.unwrap();
                tell.send(server.address()).unwrap();
                server.serve(stopped).await;
            });
        });
        let base = format!("http://{}", told.await.unwrap());
        Rig { base, keys, site, client: reqwest::Client::new(), stop }
    }

    /// Waits until so many requests wait at the server.
    pub async fn until_waiting(&self, count: usize) {
        let reached = async {
            while self.site.waiters() != count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), reached).await.expect("so many wait at some time");
    }

    /// The store of namespace `team`, as the server has it.
    pub async fn leases(&self) -> Coordinator {
        self.site.coordinator(&"team".parse().unwrap()).await.unwrap()
    }

    /// A key for namespace `team` and these names.
    pub async fn key(&self, verbs: &str, names: &[&str]) -> String {
        self.key_in("team", verbs, names).await
    }

    pub async fn key_in(&self, namespace: &str, verbs: &str, names: &[&str]) -> String {
        self.secret(namespace, verbs, names).await.reveal().to_owned()
    }

    pub async fn secret(&self, namespace: &str, verbs: &str, names: &[&str]) -> Secret {
        let names = names.iter().map(|name| name.parse::<NamePattern>().unwrap()).collect();
        let verbs = VerbSet::of(verbs.split(',').map(|verb| verb.parse::<Verb>().unwrap()));
        let scope = Scope::new(namespace.parse::<Namespaces>().unwrap(), names, verbs).unwrap();
        let label = "tester".parse().unwrap();
        let wanted = NewKey { label, scope, lasts: None, not_after: None, by: "a test".parse().unwrap() };
        self.keys.create(wanted).await.unwrap().0
    }

    /// A key for everything in namespace `team`.
    pub async fn all(&self) -> String {
        self.key("read,hold,work,operate", &["*"]).await
    }

    pub fn request(&self, method: Method, key: &str, path: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("{}/v1/ns/team/{path}", self.base));
        if key.is_empty() { request } else { request.bearer_auth(key) }
    }

    pub async fn get(&self, key: &str, path: &str) -> Answer {
        answer(self.request(Method::GET, key, path)).await
    }

    pub async fn post(&self, key: &str, path: &str, body: Value) -> Answer {
        answer(self.request(Method::POST, key, path).body(body.to_string())).await
    }

    /// The same as one attempt at a request.
    pub async fn attempt(&self, key: &str, idempotency: &str, path: &str, body: Value) -> Answer {
        let request = self.request(Method::POST, key, path).header("Idempotency-Key", idempotency);
        answer(request.body(body.to_string())).await
    }
}

pub async fn answer(request: RequestBuilder) -> Answer {
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let kind = response.headers().get("content-type").map(|kind| kind.to_str().unwrap().to_owned());
    let text = response.text().await.unwrap();
    let body: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{status} {text}"));
    let expected = if matches!(status, 200 | 202) { "application/json" } else { "application/problem+json" };
    assert_eq!(kind.as_deref(), Some(expected), "{body}");
    Answer { status, body }
}

/// The text in a field.
#[track_caller]
pub fn text<'a>(body: &'a Value, field: &str) -> &'a str {
    body[field].as_str().unwrap_or_else(|| panic!("no text `{field}` in {body}"))
}
