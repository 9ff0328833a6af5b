//! Exchanges a token of an OIDC issuer for a key of the server.

use super::config;
use super::connection::Connection;
use crate::http::client::client;
use crate::open::StoreUrl;
use crate::phase::Phase;
use leasehold_core::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A key that a server has created for a token.
#[derive(Clone, Serialize, Deserialize)]
pub struct ExchangedKey {
    /// The key itself.
    pub key: String,
    /// Its public name, by which it is listed and revoked.
    pub id: String,
    /// The key's label for people: the subject of the token.
    pub label: String,
    /// The namespace that it is for; `*` means all.
    pub namespace: String,
    /// The name patterns that it is for.
    pub names: Vec<String>,
    /// What it allows, such as `hold`.
    pub allows: Vec<String>,
    /// When it expires, by the store's clock.
    pub expires: Instant,
}

/// A time by the store's clock.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Instant {
    /// In RFC 3339.
    pub at: String,
    /// In milliseconds since 1970.
    pub ms: u64,
}

impl fmt::Debug for ExchangedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExchangedKey({})", self.id)
    }
}

/// Requests a key from a server for the bearer of this token. Each request creates another key.
pub async fn exchange(url: &StoreUrl, token: &str) -> Result<ExchangedKey> {
    #[derive(Serialize)]
    struct Exchanging<'a> {
        token: &'a str,
    }
    let is_server = |scheme: &str| scheme == "leasehold" || scheme == "leasehold+http";
    let Some(address) = url.address().filter(|address| is_server(&address.scheme)) else {
        let message =
            format!("`{url}` is a store and not a server; use the address of a server, leasehold://HOST/NAMESPACE");
        return Err(Error::new(Kind::Unsupported, message));
    };
    config::check(address)?;
    let connection = Connection::new(client(address)?, None, config::endpoints(address), "/v1".to_owned());
    // A key that was never received expires by itself, so asking another server is safe.
    connection.post("/exchange", &Exchanging { token }, Phase::Reading).await
}
