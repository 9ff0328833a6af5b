//! The HTTP client of stores that are web services: which authorities it trusts, and when it repeats a read.
//!
//! Promise: it follows no redirect, so a write goes only where it was sent;
//! only reads are repeated. Non-promise: authentication is each store's own.

use crate::http::{Answer, builder, exchange, undated};
use crate::phase::Phase;
use crate::url::Address;
use leasehold_core::{Error, Kind, Result, printable};
use leasehold_system::clock;
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, RequestBuilder};
use std::time::Duration;

/// The option that names a file with additional certificate authorities.
pub(crate) const CA: &str = "ca";
/// How much of a server's error text is quoted, in characters.
const MAX_QUOTED: usize = 200;
/// A failure sooner than this means that the server had already closed a pooled connection.
const AT_ONCE: Duration = Duration::from_secs(1);

/// A client that trusts the system's certificate authorities, and those in the file that the option `ca` names.
pub(crate) fn client(address: &Address) -> Result<Client> {
    let mut builder = builder().redirect(Policy::none());
    if let Some(path) = address.option(CA) {
        let refuse = |what: &str| {
            let message = format!("cannot use the certificate authorities in `{path}`: {what}; give a PEM file");
            Error::new(Kind::Unsupported, message)
        };
        let pem = std::fs::read(path).map_err(|e| refuse("it cannot be read").with_source(e))?;
        let certificates =
            Certificate::from_pem_bundle(&pem).map_err(|e| refuse("it is not well-formed").with_source(e))?;
        if certificates.is_empty() {
            return Err(refuse("it has none"));
        }
        builder = builder.tls_certs_merge(certificates);
    }
    builder.build().map_err(|e| {
        Error::new(Kind::Unsupported, "cannot set up TLS; check the system's certificate authorities").with_source(e)
    })
}

/// A server's error text, made safe to quote in a message.
#[allow(dead_code, reason = "not every store has such a service")]
pub(crate) fn quoted(text: &str) -> String {
    printable(text).chars().take(MAX_QUOTED).collect()
}

/// An answer from a service that sends its time in the body, or not at all.
#[allow(dead_code, reason = "not every store has such a service")]
pub(crate) struct Untimed {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// Sends a request to a service that sends its time in the body, or not at all.
#[allow(dead_code, reason = "not every store has such a service")]
pub(crate) async fn untimed(request: RequestBuilder, phase: Phase, endpoint: &str) -> Result<Untimed> {
    let (status, _, body) = match phase {
        Phase::Reading => twice(request, |request| undated(request, phase, endpoint)).await?,
        _ => undated(request, phase, endpoint).await?,
    };
    Ok(Untimed { status, body })
}

/// Sends a read to a service that sends its time in the `Date` header.
#[allow(dead_code, reason = "some services tell their time in the body")]
pub(crate) async fn reading(request: RequestBuilder, endpoint: &str) -> Result<Answer> {
    twice(request, |request| exchange(request, Phase::Reading, endpoint)).await
}

/// Sends a read, and again if a pooled connection turned out to be closed.
async fn twice<T, Sent>(request: RequestBuilder, send: impl Fn(RequestBuilder) -> Sent) -> Result<T>
where
    Sent: Future<Output = Result<T>>,
{
    let again = request.try_clone();
    let asked = clock::now();
    match (send(request).await, again) {
        (Err(_), Some(again)) if clock::now().saturating_since(asked) < AT_ONCE => send(again).await,
        (answer, _) => answer,
    }
}
