//! One HTTP exchange with a store's server: what its failure means, and the server's time.
//!
//! Promise: an error is `Unavailable` only where the server certainly did not receive a write; no message contains a
//! secret from a URL or a header. Non-promise: each store decides what a status means.

#[cfg(any(feature = "durable", feature = "dynamodb", feature = "firestore", feature = "remote"))]
pub(crate) mod client;

use crate::phase::Phase;
use crate::utc::time_of;
use leasehold_core::{Error, Kind, Result, Timestamp};
use reqwest::header::DATE;
use reqwest::{Client, ClientBuilder, RequestBuilder};
use rustls::AlertDescription;
use std::time::Duration;

/// How long one exchange may take.
const EXCHANGE: Duration = Duration::from_secs(10);
/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(5);
/// After this long, idle connections are dropped, before servers and load balancers do so.
const IDLE: Duration = Duration::from_secs(50);

/// TLS alerts of a server that rejects the client's certificate, or requires one.
const DISTRUST: &[AlertDescription] = &[
    AlertDescription::AccessDenied,
    AlertDescription::BadCertificate,
    AlertDescription::CertificateExpired,
    AlertDescription::CertificateRequired,
    AlertDescription::CertificateRevoked,
    AlertDescription::CertificateUnknown,
    AlertDescription::HandshakeFailure,
    AlertDescription::UnknownCA,
    AlertDescription::UnsupportedCertificate,
];

/// An answer, whatever its status.
#[derive(Debug)]
#[allow(dead_code, reason = "some services tell their time in the body")]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The server's clock, in whole seconds.
    pub(crate) now: Timestamp,
    pub(crate) body: Vec<u8>,
}

/// Client settings that all stores share.
pub(crate) fn builder() -> ClientBuilder {
    crate::tls::install();
    Client::builder().connect_timeout(CONNECT).pool_idle_timeout(IDLE).tcp_nodelay(true).no_proxy()
}

/// Sends a request and reads the whole answer. `endpoint` names the server in messages, without secrets.
#[allow(dead_code, reason = "some services tell their time in the body")]
pub(crate) async fn exchange(request: RequestBuilder, phase: Phase, endpoint: &str) -> Result<Answer> {
    let (status, date, body) = undated(request, phase, endpoint).await?;
    let now = date.as_deref().and_then(time_of).ok_or_else(|| {
        let message =
            format!("{endpoint} answered {status} without a readable `Date` header, so its time is not known");
        Error::new(phase.unanswered(), message)
    })?;
    Ok(Answer { status, now, body })
}

/// The same for a server without a required `Date` header: its status, the header if there is one, and its body.
pub(crate) async fn undated(
    request: RequestBuilder,
    phase: Phase,
    endpoint: &str,
) -> Result<(u16, Option<String>, Vec<u8>)> {
    let exchange = async {
        let response = request.send().await?;
        let status = response.status().as_u16();
        let date = response.headers().get(DATE).and_then(|date| date.to_str().ok()).map(str::to_owned);
        let body = response.bytes().await?;
        Ok((status, date, body.to_vec()))
    };
    match tokio::time::timeout(EXCHANGE, exchange).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(failed(error, phase, endpoint)),
        Err(_) => {
            let message = format!("{endpoint} did not answer within {} s", EXCHANGE.as_secs());
            Err(Error::new(phase.unanswered(), message))
        }
    }
}

fn failed(error: reqwest::Error, phase: Phase, endpoint: &str) -> Error {
    if distrusts(&error) {
        let message =
            format!("cannot make a TLS connection to {endpoint}; check the certificate authority and the certificates");
        return Error::new(Kind::Unsupported, message).with_source(error.without_url());
    }
    // Without a connection nothing was sent.
    let kind = if error.is_connect() || error.is_builder() { Kind::Unavailable } else { phase.unanswered() };
    Error::new(kind, format!("cannot reach {endpoint}")).with_source(error.without_url())
}

/// Whether one side rejects the other's certificate. That happens before a request is read, and retrying does not help.
fn distrusts(error: &reqwest::Error) -> bool {
    let told = causes(error).find_map(|cause| match cause.downcast_ref::<rustls::Error>() {
        Some(rustls::Error::InvalidCertificate(_)) => Some(true),
        Some(rustls::Error::AlertReceived(alert)) => Some(DISTRUST.contains(alert)),
        _ => None,
    });
    told.unwrap_or(false)
}

/// An error and what caused it, one after the other.
pub(crate) fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    // An I/O error does not report the error that it wraps as its source.
    std::iter::successors(Some(error), |&error| {
        match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(inner) => Some(inner as &(dyn std::error::Error + 'static)),
            None => error.source(),
        }
    })
}
