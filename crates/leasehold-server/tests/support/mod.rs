//! A server on a loopback port, in this process, over a store of the test's choice.

#![allow(clippy::unwrap_used, dead_code, reason = "a test helper, of which not every test uses all")]

use async_trait::async_trait;
use leasehold_core::MemoryStore;
use leasehold_core::store::Store;
use leasehold_core::{Result, Retention};
use leasehold_server::access::{KeyRing, Keys, NewKey, Scope};
use leasehold_server::serve::{Exposure, Limits, Opener, Server, Settings, TlsFiles};
use leasehold_stores::Namespace;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The keys of every server of this process.
static KEYS: LazyLock<Keys> = LazyLock::new(|| Keys::new(Arc::new(MemoryStore::default())));

/// A server, and the store behind it.
pub struct Site {
    pub address: SocketAddr,
    pub behind: Arc<dyn Store>,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

#[derive(Debug)]
struct Always(Arc<dyn Store>);

#[async_trait]
impl Opener for Always {
    async fn open(&self, _: &Namespace) -> Result<Arc<dyn Store>> {
        Ok(self.0.clone())
    }
}

impl Site {
    pub async fn start(behind: Arc<dyn Store>) -> Self {
        Site::start_with(behind, None).await
    }

    /// The same with this certificate.
    pub async fn start_with(behind: Arc<dyn Store>, tls: Option<TlsFiles>) -> Self {
        Site::start_limited(behind, tls, Limits { rate: 100_000, ..Limits::default() }).await
    }

    /// The same with these limits.
    pub async fn start_limited(behind: Arc<dyn Store>, tls: Option<TlsFiles>, limits: Limits) -> Self {
        let ring = KeyRing::new(KEYS.clone());
        let site = leasehold_server::serve::Site::new(
            Arc::new(Always(behind.clone())),
            Retention::default(),
            ring,
            limits.clone(),
        );
        let listen = "127.0.0.1:0".parse().unwrap();
        let settings = Settings { listen, tls, exposure: Exposure::Secure, prefix: None, limits };
        let server = Server::bind(&settings, site).await.unwrap();
        let address = server.address();
        let (stop, stopped) = watch::channel(false);
        let serving = tokio::spawn(async move {
            let _ = server.serve(stopped).await;
        });
        Site { address, behind, stop, serving }
    }

    /// A key for these names in the namespace `team`.
    pub async fn key(&self, names: &str, verbs: &str) -> String {
        let names = names.split(',').map(|name| name.parse().unwrap()).collect();
        let scope = Scope::new("team".parse().unwrap(), names, verbs.parse().unwrap()).unwrap();
        let (label, by) = ("test".parse().unwrap(), "test".parse().unwrap());
        let (secret, _) = KEYS.create(NewKey { label, scope, lasts: None, not_after: None, by }).await.unwrap();
        secret.reveal().to_owned()
    }

    /// The client with this key.
    pub async fn store(&self, key: &str) -> Arc<dyn Store> {
        let url = format!("leasehold+http://:{key}@{}/team", self.address);
        leasehold_stores::open(&url.parse().unwrap()).await.unwrap()
    }

    /// The status of what a client sends that is not ours.
    pub async fn post(&self, key: &str, operation: &str, body: &str) -> u16 {
        self.answer(key, operation, body).await.0
    }

    /// The same, and what came back.
    pub async fn answer(&self, key: &str, operation: &str, body: &str) -> (u16, String) {
        let url = format!("http://{}/v1/ns/team/{operation}", self.address);
        let request = reqwest::Client::new().post(url).bearer_auth(key).header("content-type", "application/json");
        let answer = request.body(body.to_owned()).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    /// What is answered at an address of the API.
    pub async fn get(&self, key: &str, path: &str) -> (u16, String) {
        let url = format!("http://{}/v1/ns/team/{path}", self.address);
        let answer = reqwest::Client::new().get(url).bearer_auth(key).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    pub async fn stop(self) {
        let _ = self.stop.send(true);
        let _ = self.serving.await;
    }
}
