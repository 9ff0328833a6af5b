//! The keys of a server, for a client whose own key allows `admin`.

use super::config;
use super::connection::Connection;
use crate::http::client::client;
use crate::open::StoreUrl;
use crate::phase::Phase;
use leasehold_core::Result;
use serde_json::Value;
use std::fmt;

/// Manages a server's keys. Requests and answers are those of the HTTP API, described in docs/api.md.
pub struct RemoteKeys {
    connection: Connection,
}

impl fmt::Debug for RemoteKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RemoteKeys")
    }
}

impl RemoteKeys {
    /// The keys of the server at this URL; none if it is the URL of a store.
    pub fn of(url: &StoreUrl) -> Result<Option<Self>> {
        let is_server = |scheme: &str| scheme == "leasehold" || scheme == "leasehold+http";
        let Some(address) = url.address().filter(|address| is_server(&address.scheme)) else { return Ok(None) };
        config::check(address)?;
        let key = config::KeySource::find(address, |name| std::env::var(name).ok())?;
        let endpoints = config::endpoints(address);
        Ok(Some(RemoteKeys {
            connection: Connection::new(client(address)?, Some(key), endpoints, "/v1/keys".to_owned()),
        }))
    }

    /// A page of keys, beginning after this cursor.
    pub async fn page(&self, cursor: Option<&str>) -> Result<Value> {
        let cursor = cursor.map(|cursor| format!("?cursor={cursor}")).unwrap_or_default();
        self.connection.get(&cursor).await
    }

    /// Requests a change. The path is empty for all keys, or names one, as in `/k3m7q2xa/revoke`.
    pub async fn change(&self, path: &str, body: &Value) -> Result<Value> {
        self.connection.post(path, body, Phase::Writing).await
    }
}
