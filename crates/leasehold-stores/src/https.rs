//! The client of stores that are web services: whom it trusts, and a read that is asked twice.
//!
//! Promise: it follows no redirect, so a write goes where it was sent and nowhere else; only reads are repeated.
//! Non-promise: authentication is each store's own.

use crate::address::Address;
use crate::http::{Answer, Doing, builder, exchange};
use leasehold::{Error, Kind, Result};
use leasehold_system::clock;
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, RequestBuilder};
use std::time::Duration;

/// The option that names a file with further certificate authorities.
pub(crate) const CA: &str = "ca";
/// A failure that comes sooner than this was that of a kept connection that the server had closed.
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

/// Sends a request that changes nothing, and once more where a kept connection turned out to be closed.
pub(crate) async fn reading(request: RequestBuilder, place: &str) -> Result<Answer> {
    let again = request.try_clone();
    let asked = clock::now();
    match (exchange(request, Doing::Reading, place).await, again) {
        (Err(_), Some(again)) if clock::now().saturating_since(asked) < AT_ONCE => {
            exchange(again, Doing::Reading, place).await
        }
        (answer, _) => answer,
    }
}
