//! From a token of an OIDC issuer to a key of the server.

use super::config;
use super::connection::Connection;
use crate::http::client::client;
use crate::open::StoreUrl;
use crate::phase::Phase;
use leasehold_core::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A key that a server has made for a token.
#[derive(Clone, Serialize, Deserialize)]
pub struct ExchangedKey {
    /// The key itself.
    pub key: String,
    /// Its public name.
    pub id: String,
    /// What people call it: the subject of the token.
    pub label: String,
    /// The namespace that it is for; `*` is every one.
    pub namespace: String,
    /// The patterns of names that it is for.
    pub names: Vec<String>,
    /// What it allows.
    pub allows: Vec<String>,
    /// From when on it counts no more, by the store's clock.
    pub expires: Instant,
}

/// A time of the store's clock.
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

/// Has a server make a key for whoever bears this token. Asked twice, it makes two.
pub async fn exchange(url: &StoreUrl, token: &str) -> Result<ExchangedKey> {
    #[derive(Serialize)]
    struct Exchanging<'a> {
        token: &'a str,
    }
    let is_server = |scheme: &str| scheme == "leasehold" || scheme == "leasehold+http";
    let Some(address) = url.address().filter(|address| is_server(&address.scheme)) else {
        let message = format!("`{url}` is no server: name one with --store leasehold://HOST/NAMESPACE");
        return Err(Error::new(Kind::Unsupported, message));
    };
    config::check(address)?;
    let connection = Connection::new(client(address)?, None, config::endpoints(address), "/v1".to_owned());
    // A key that nobody was shown ends by itself, so asking another server is safe.
    connection.post("/exchange", &Exchanging { token }, Phase::Reading).await
}
