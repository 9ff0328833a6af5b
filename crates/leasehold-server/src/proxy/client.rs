//! A guard behind a proxy, as `run` seals it.
//!
//! Promise: a seal that returns is in the proxy's store. Non-promise: the high water has no nonce, because the proxy
//! tells it to nobody.

use super::config::Upstream;
use super::request::{OWN, TOKEN};
use crate::outbound::{connector, is_encrypted};
use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::HeaderValue;
use hyper::{Method, Request, StatusCode, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::guard::{Guard, HighWater, Strength};
use leasehold_core::{Epoch, Error, Kind, LeaseName, Lineage, Nonce, Result, Token};
use serde::Deserialize;
use std::fmt;
use std::time::Duration;

/// How long one exchange may take.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long to retry while the proxy is being replaced, or waits for older requests.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(250);
const MAX_ANSWER: usize = 64 * 1024;

/// The resource behind a proxy.
pub struct HttpGuard {
    proxy: Upstream,
    base: Uri,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl fmt::Debug for HttpGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpGuard").field("proxy", &self.base).finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct FenceAnswer {
    lease: Option<LeaseName>,
    lineage: Option<Lineage>,
    epoch: Option<Epoch>,
    seq: Option<u64>,
}

#[derive(Deserialize)]
struct Refused {
    kind: String,
    detail: String,
}

impl HttpGuard {
    /// The guard of the proxy at this URL. Nothing is sent yet.
    pub fn new(url: &str) -> Result<Self> {
        let proxy: Upstream = url.parse()?;
        let base: Uri = proxy.to_string().parse().map_err(|_| Error::invalid("url", &proxy, "it is no url"))?;
        let client = Client::builder(TokioExecutor::new()).build(connector(is_encrypted(&base), TIMEOUT)?);
        Ok(HttpGuard { proxy, base, client })
    }

    async fn call(&self, method: Method, page: &str, token: Option<&Token>) -> Result<Option<HighWater>> {
        let end = SystemClock.now() + PATIENCE;
        loop {
            match tokio::time::timeout(TIMEOUT, self.once(method.clone(), page, token)).await {
                Ok(Err((Some(StatusCode::SERVICE_UNAVAILABLE), _))) if SystemClock.now() < end => {
                    tokio::time::sleep(PAUSE).await;
                }
                Ok(answer) => return answer.map_err(|(_, error)| error),
                // A seal can be repeated, so there is no unknown outcome.
                Err(_) => {
                    let message = format!("proxy `{}` did not answer within {TIMEOUT:?}", self.proxy);
                    return Err(Error::new(Kind::Unavailable, message));
                }
            }
        }
    }

    async fn once(
        &self,
        method: Method,
        page: &str,
        token: Option<&Token>,
    ) -> std::result::Result<Option<HighWater>, (Option<StatusCode>, Error)> {
        let wrong = |what: String| (None, Error::new(Kind::Unavailable, what));
        let mut request = Request::builder().method(method).uri(format!("{}{OWN}{page}", self.proxy));
        if let Some(token) = token {
            let mut value = HeaderValue::from_str(&token.wire()).map_err(|e| wrong(e.to_string()))?;
            value.set_sensitive(true);
            request = request.header(TOKEN, value);
        }
        let request = request.body(Full::default()).map_err(|e| wrong(e.to_string()))?;
        let away = |e: hyper_util::client::legacy::Error| {
            (None, Error::unavailable(format!("cannot reach proxy `{}`", self.proxy), e))
        };
        let response = self.client.request(request).await.map_err(away)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
        let body =
            body.map_err(|e| (None, Error::unavailable(format!("proxy `{}` ended the connection", self.proxy), e)))?;
        let body = body.to_bytes();
        if status == StatusCode::OK
            && let Ok(told) = serde_json::from_slice::<FenceAnswer>(&body)
        {
            return Ok(told.lease.zip(told.lineage).zip(told.epoch).map(|((lease, lineage), epoch)| HighWater {
                lease,
                lineage,
                epoch,
                nonce: Nonce::from_u128(0),
                seq: told.seq.unwrap_or(0),
            }));
        }
        let Ok(refused) = serde_json::from_slice::<Refused>(&body) else {
            let message = format!("`{}` answered {status}, which is not a leasehold proxy's answer", self.proxy);
            return Err((None, Error::new(Kind::Unsupported, message)));
        };
        Err((Some(status), Error::new(kind(&refused.kind), one_line(&refused.detail))))
    }
}

fn kind(word: &str) -> Kind {
    const KINDS: [Kind; 10] = [
        Kind::Lost,
        Kind::Fenced,
        Kind::Contended,
        Kind::Unavailable,
        Kind::Indeterminate,
        Kind::Invalid,
        Kind::Unsupported,
        Kind::Corrupt,
        Kind::Regressed,
        Kind::Moved,
    ];
    KINDS.into_iter().find(|kind| kind.as_str() == word).unwrap_or(Kind::Unavailable)
}

#[async_trait]
impl Guard for HttpGuard {
    fn resource(&self) -> String {
        self.proxy.to_string()
    }

    fn strength(&self) -> Strength {
        Strength::Atomic
    }

    async fn seal(&self, token: &Token) -> Result<HighWater> {
        match self.call(Method::POST, "/seal", Some(token)).await? {
            Some(high) => Ok(HighWater { nonce: token.nonce, ..high }),
            None => Err(Error::new(Kind::Unsupported, format!("proxy `{}` did not say what it sealed", self.proxy))),
        }
    }

    async fn high_water(&self) -> Result<Option<HighWater>> {
        self.call(Method::GET, "/high-water", None).await
    }
}

/// A server's text in one line, without control characters.
fn one_line(text: &str) -> String {
    text.chars().take(600).map(|c| if c.is_control() { ' ' } else { c }).collect()
}
