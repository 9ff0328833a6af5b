//! etcd's own primitives through the same gateway: a lease with a TTL, and a key that is created under it.

use super::{Client, Engine, ours};
use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use leasehold_testbed::Server;
use serde_json::{Value, json};
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(2);

pub struct Etcd(Server);

pub fn start() -> Result<Box<dyn Engine>> {
    Ok(Box::new(Etcd(leasehold_testbed::etcd())))
}

#[async_trait]
impl Engine for Etcd {
    fn name(&self) -> &'static str {
        "etcd"
    }

    fn peer_is(&self) -> &'static str {
        "lease + create"
    }

    fn wakes(&self) -> bool {
        true
    }

    async fn ours(&self) -> Result<Box<dyn Client>> {
        ours::open(&format!("etcd://127.0.0.1:{}", self.0.port())).await
    }

    async fn peer(&self) -> Result<Box<dyn Client>> {
        peer(self.0.port())
    }
}

/// One more client of the gateway at this port.
pub fn peer(port: u16) -> Result<Box<dyn Client>> {
    let http = reqwest::Client::builder().tcp_nodelay(true).no_proxy().build()?;
    Ok(Box::new(Peer { http, url: format!("http://127.0.0.1:{port}"), held: None }))
}

struct Peer {
    http: reqwest::Client,
    url: String,
    held: Option<String>,
}

impl Peer {
    async fn ask(&self, path: &str, body: Value) -> Result<Value> {
        let answer = self.http.post(format!("{}/v3/{path}", self.url)).json(&body).send().await?;
        Ok(answer.error_for_status()?.json().await?)
    }
}

#[async_trait]
impl Client for Peer {
    async fn acquire(&mut self, lease: &str) -> Result<bool> {
        let granted = self.ask("lease/grant", json!({ "TTL": "90" })).await?;
        let id = granted["ID"].as_str().context("no lease")?.to_owned();
        let key = BASE64_STANDARD.encode(format!("peer/{lease}"));
        let created = self
            .ask(
                "kv/txn",
                json!({
                    "compare": [{ "key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0" }],
                    "success": [{ "request_put": { "key": key, "value": "", "lease": id } }],
                }),
            )
            .await?;
        if created["succeeded"] == true {
            self.held = Some(id);
            return Ok(true);
        }
        self.ask("lease/revoke", json!({ "ID": id })).await?;
        Ok(false)
    }

    async fn acquire_waiting(&mut self, lease: &str) -> Result<()> {
        while !self.acquire(lease).await? {
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    async fn renew(&mut self) -> Result<()> {
        let id = self.held.as_ref().context("nothing to renew")?;
        let kept = self.ask("lease/keepalive", json!({ "ID": id })).await?;
        ensure!(kept["result"]["TTL"].is_string(), "it was lost");
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        // With the lease goes the key.
        let id = self.held.take().context("nothing to release")?;
        self.ask("lease/revoke", json!({ "ID": id })).await?;
        Ok(())
    }
}
