//! One observed request to an object store: the server's answer and its time.
//!
//! Promise: a failed request is reported as it was seen on the wire, not as the driver reports it, which does not
//! distinguish 409 and 412. Concurrent requests do not mix, because each has its own [`Watcher`]. Non-promise: the
//! store decides what a status means for a record.

use crate::credentials::{Replaceable, are_refused, code_in};
use crate::phase::Phase;
use crate::utc::time_of;
use async_trait::async_trait;
use leasehold_core::{Error, Result, Timestamp};
use leasehold_system::sync::Mutex;
use object_store::client::{HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService};
use object_store::{ClientOptions, Extensions};
use std::sync::Arc;
use std::time::Duration;

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a call may take, including fetching credentials.
pub(super) const CALL: Duration = Duration::from_secs(10);
/// After this long, idle connections are dropped: many servers close them after 5 s. A write on a connection that is
/// being closed is unknown, which costs more than a new connection.
const IDLE: Duration = Duration::from_secs(4);

/// What was seen of one request.
#[derive(Debug, Default, Clone)]
pub(super) struct Exchange {
    /// Whether it was sent. Before that, credentials are fetched.
    pub(super) sent: bool,
    /// Whether no connection could be made, so that it certainly was not sent.
    pub(super) unconnected: bool,
    /// Why there was no answer.
    pub(super) why: String,
    pub(super) status: Option<u16>,
    /// The service's error code.
    pub(super) code: String,
    pub(super) date: Option<Timestamp>,
}

/// Returns to the caller what the connector saw of a request.
#[derive(Debug, Default, Clone)]
pub(super) struct Watcher(Arc<Mutex<Exchange>>);

impl Watcher {
    /// To be put into the options of a call.
    pub(super) fn extensions(&self) -> Extensions {
        let mut extensions = Extensions::new();
        extensions.insert(self.clone());
        extensions
    }

    pub(super) fn seen(&self) -> Exchange {
        self.0.lock().clone()
    }

    fn note(&self, note: impl FnOnce(&mut Exchange)) {
        note(&mut self.0.lock());
    }
}

/// Creates the driver's connections, and watches them.
#[derive(Debug)]
pub(super) struct Connector {
    client: reqwest::Client,
    /// Told when the service refuses them.
    credentials: Option<Arc<dyn Replaceable>>,
}

impl Connector {
    /// A connector that trusts these certificates and the system's. A server on
    /// this machine is never reached through a proxy.
    pub(super) fn new(certificates: Option<&[u8]>, is_local: bool) -> Result<Self, String> {
        crate::tls::install();
        // No redirects: a write that is sent again elsewhere may be applied twice.
        let mut builder = reqwest::Client::builder()
            .connect_timeout(CONNECT)
            .pool_idle_timeout(IDLE)
            .tcp_nodelay(true)
            .http1_only()
            .redirect(reqwest::redirect::Policy::none());
        if is_local {
            builder = builder.no_proxy();
        }
        if let Some(pem) = certificates {
            let bundle = reqwest::Certificate::from_pem_bundle(pem).map_err(|e| e.to_string())?;
            if bundle.is_empty() {
                return Err("there is no certificate in it".into());
            }
            builder = bundle.into_iter().fold(builder, reqwest::ClientBuilder::add_root_certificate);
        }
        Ok(Connector { client: builder.build().map_err(|e| e.to_string())?, credentials: None })
    }

    pub(super) fn with_credentials(self, credentials: Option<Arc<dyn Replaceable>>) -> Self {
        Connector { credentials, ..self }
    }

    /// The same client, unwatched, for fetching credentials.
    pub(super) fn client(&self) -> HttpClient {
        HttpClient::new(self.client.clone())
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = HttpClient::new(self.client.clone());
        Ok(HttpClient::new(Watched { client, credentials: self.credentials.clone() }))
    }
}

#[derive(Debug)]
struct Watched {
    client: HttpClient,
    credentials: Option<Arc<dyn Replaceable>>,
}

#[async_trait]
impl HttpService for Watched {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        // Requests of a guard, and those for Azure's credentials, are not watched.
        let Some(watcher) = request.extensions().get::<Watcher>().cloned() else {
            let response = self.client.execute(request).await?;
            if let Some(credentials) = self.credentials.as_ref().filter(|_| are_refused(response.status().as_u16(), ""))
            {
                credentials.refuse();
            }
            return Ok(response);
        };
        watcher.note(|seen| *seen = Exchange { sent: true, ..Exchange::default() });
        let response = self.client.execute(request).await.inspect_err(|e| watcher.note(|seen| seen.fail(e)))?;
        let (parts, body) = response.into_parts();
        let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
        watcher.note(|seen| {
            seen.status = Some(parts.status.as_u16());
            seen.date = header("date").and_then(time_of);
            seen.code = header("x-ms-error-code").unwrap_or_default().to_owned();
        });
        if parts.status.is_success() {
            return Ok(HttpResponse::from_parts(parts, body));
        }
        // The status is known, so a missing body does not matter.
        let body = body.bytes().await.unwrap_or_default();
        watcher.note(|seen| {
            if seen.code.is_empty() {
                seen.code = code_in(&body);
            }
        });
        Ok(HttpResponse::from_parts(parts, body.into()))
    }
}

impl Exchange {
    fn fail(&mut self, error: &HttpError) {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(error);
        while let Some(at) = cause {
            if let Some(error) = at.downcast_ref::<reqwest::Error>() {
                self.unconnected |= error.is_connect();
            }
            // The innermost cause: the most specific one, and without an address.
            self.why = leasehold_core::printable(&at.to_string());
            cause = at.source();
        }
    }

    /// Whether the service refused the credentials, and so did nothing.
    pub(super) fn is_refused(&self) -> bool {
        self.status.is_some_and(|status| are_refused(status, &self.code))
    }

    /// Whether the connection broke before the answer was complete.
    pub(super) fn is_broken_off(&self) -> bool {
        self.sent && !self.unconnected && self.status.is_none_or(|status| (200..300).contains(&status))
    }

    /// The server's time. A write whose answer has no time is unknown, because nobody can say when it was applied.
    pub(super) fn now(&self, phase: Phase, bucket: &str) -> Result<Timestamp> {
        self.date.ok_or_else(|| {
            let message = format!("{bucket} answered without a readable `Date` header, so its time is not known");
            Error::new(phase.unanswered(), message)
        })
    }
}

/// Waits for a call of the driver, within a limit. None if it took too long; [`Exchange`] says how far it got.
pub(super) async fn in_time<T>(call: impl Future<Output = object_store::Result<T>>) -> Option<object_store::Result<T>> {
    tokio::time::timeout(CALL, call).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read() {
        assert_eq!(time_of("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Timestamp::from_millis(784_111_777_000)));
        assert_eq!(time_of("yesterday"), None);
    }
}
