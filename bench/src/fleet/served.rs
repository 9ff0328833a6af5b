//! The API of a `leasehold serve` before etcd, beside etcd's own gateway: both are JSON over HTTP, and both are one hop from
//! the same etcd.

use super::{Client, Engine, etcd};
use crate::report::Demand;
use crate::server::Server;
use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use serde_json::{Value, json};
use std::path::Path;

pub struct Served {
    etcd: leasehold_testbed::Server,
    server: Server,
    _folder: tempfile::TempDir,
}

pub fn start(leasehold: &Path) -> Result<Box<dyn Engine>> {
    let (etcd, folder) = (leasehold_testbed::etcd(), tempfile::tempdir()?);
    let server = Server::start(leasehold, folder.path(), &format!("etcd://127.0.0.1:{}", etcd.port()))?;
    Ok(Box::new(Served { etcd, server, _folder: folder }))
}

#[async_trait]
impl Engine for Served {
    fn name(&self) -> &'static str {
        "server on etcd"
    }

    fn peer_is(&self) -> &'static str {
        "etcd's gateway"
    }

    fn wakes(&self) -> bool {
        true
    }

    /// A renewal of the gateway's is not written to a disk.
    fn renewing(&self) -> Demand {
        Demand::None
    }

    async fn ours(&self) -> Result<Box<dyn Client>> {
        let http = reqwest::Client::builder().tcp_nodelay(true).no_proxy().build()?;
        Ok(Box::new(Api { http, api: self.server.api(), key: self.server.key().to_owned(), held: None }))
    }

    async fn peer(&self) -> Result<Box<dyn Client>> {
        etcd::peer(self.etcd.port())
    }
}

struct Api {
    http: reqwest::Client,
    api: String,
    key: String,
    /// The lease and the token.
    held: Option<(String, String)>,
}

impl Api {
    async fn ask(&self, lease: &str, verb: &str, body: Value) -> Result<reqwest::Response> {
        let address = format!("{}/leases/{lease}/{verb}", self.api);
        Ok(self.http.post(address).bearer_auth(&self.key).json(&body).send().await?)
    }

    async fn take(&mut self, lease: &str, body: Value) -> Result<bool> {
        let answer = self.ask(lease, "acquire", body).await?;
        if answer.status() == reqwest::StatusCode::CONFLICT {
            answer.bytes().await?;
            return Ok(false);
        }
        let granted: Value = answer.error_for_status()?.json().await?;
        let token = granted["token"].as_str().context("no token")?.to_owned();
        self.held = Some((lease.to_owned(), token));
        Ok(true)
    }

    async fn tell(&self, verb: &str) -> Result<()> {
        let (lease, token) = self.held.as_ref().context("nothing is held")?;
        self.ask(lease, verb, json!({ "token": token })).await?.error_for_status()?.bytes().await?;
        Ok(())
    }
}

#[async_trait]
impl Client for Api {
    async fn acquire(&mut self, lease: &str) -> Result<bool> {
        self.take(lease, json!({ "ttl": "90s" })).await
    }

    async fn acquire_waiting(&mut self, lease: &str) -> Result<()> {
        ensure!(self.take(lease, json!({ "ttl": "90s", "wait": "2m" })).await?, "the wait failed");
        Ok(())
    }

    async fn renew(&mut self) -> Result<()> {
        self.tell("renew").await
    }

    async fn release(&mut self) -> Result<()> {
        self.tell("release").await?;
        self.held = None;
        Ok(())
    }
}
