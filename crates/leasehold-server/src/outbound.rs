//! Requests of our own to somebody else's service: pings and webhooks.
//!
//! Promise: one request, no redirect followed, over by the time that was given; no error names more of the URL than its
//! host, because the rest is often a secret. Non-promise: nothing is tried twice; a request without an answer may have
//! arrived.

use crate::proxy::{connector, is_encrypted};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Method, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use leasehold_core::secret::WebUrl;
use leasehold_core::{Error, Kind, Result};
use std::time::Duration;

/// How much of an answer is read, so that its connection ends cleanly.
const MAX_ANSWER: usize = 64 * 1024;
/// What we call ourselves.
const AGENT: &str = concat!("leasehold/", env!("CARGO_PKG_VERSION"));

/// What is sent.
#[derive(Debug)]
pub struct Letter {
    /// Where it goes.
    pub url: WebUrl,
    /// Further headers. Their values may be secrets.
    pub headers: Vec<(&'static str, String)>,
    /// Of which type the body is.
    pub content_type: &'static str,
    /// What a POST carries; a GET if none.
    pub body: Option<Vec<u8>>,
}

/// What came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// How long the service asks to be left alone.
    pub retry_after: Option<Duration>,
}

impl Answer {
    /// Whether it was taken.
    pub const fn is_success(self) -> bool {
        self.status >= 200 && self.status < 300
    }

    /// Whether it was not taken, for a reason that passes.
    pub const fn passes(self) -> bool {
        self.status == 429 || self.status >= 500
    }
}

/// Sends it, and gives the answer, if one comes in that time.
pub async fn send(letter: Letter, limit: Duration) -> Result<Answer> {
    let url = letter.url.clone();
    match tokio::time::timeout(limit, exchange(letter, limit)).await {
        Ok(answer) => answer,
        Err(_) => {
            let limit = leasehold_core::format_duration(limit);
            Err(Error::new(Kind::Unavailable, format!("`{url}` did not answer within {limit}")))
        }
    }
}

async fn exchange(letter: Letter, limit: Duration) -> Result<Answer> {
    let Letter { url, headers, content_type, body } = letter;
    let unfit = || Error::new(Kind::Invalid, format!("the url `{url}` cannot be asked; check how it is spelled"));
    let uri: Uri = url.expose().parse().map_err(|_| unfit())?;
    let encrypted = is_encrypted(&uri);
    // Reading the certificate authorities takes its time, and a command may be waiting to be kept.
    let connector = tokio::task::spawn_blocking(move || connector(encrypted, limit)).await;
    let connector = connector.map_err(|e| Error::unavailable("cannot set up a connection", e))??;
    let method = if body.is_some() { Method::POST } else { Method::GET };
    let mut request = hyper::Request::builder().method(method).uri(uri).header(USER_AGENT, AGENT);
    if body.is_some() {
        request = request.header(CONTENT_TYPE, content_type);
    }
    for (name, value) in headers {
        let mut value = HeaderValue::from_str(&value).map_err(|_| unfit())?;
        value.set_sensitive(true);
        request = request.header(name, value);
    }
    let request = request.body(Full::new(Bytes::from(body.unwrap_or_default()))).map_err(|_| unfit())?;
    // A connection for one request: whoever sends pings sends two of them, hours apart.
    let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector);
    let response = client.request(request).await.map_err(|e| Error::unavailable(format!("cannot reach `{url}`"), e))?;
    let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let answer = Answer { status: response.status().as_u16(), retry_after: retry_after.map(Duration::from_secs) };
    let _ = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
    Ok(answer)
}

/// The headers of a Standard Webhooks request: what is sent is signed together with its id and the time of sending, if there
/// is something to sign with.
pub fn webhook_headers(
    id: &str,
    sent_at_secs: u64,
    secret: Option<&WebhookSecret>,
    body: &[u8],
) -> Vec<(&'static str, String)> {
    let mut headers = vec![("webhook-id", id.to_owned()), ("webhook-timestamp", sent_at_secs.to_string())];
    if let Some(secret) = secret {
        let mut signed = format!("{id}.{sent_at_secs}.").into_bytes();
        signed.extend_from_slice(body);
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &secret.0);
        let signature = STANDARD.encode(ring::hmac::sign(&key, &signed).as_ref());
        headers.push(("webhook-signature", format!("v1,{signature}")));
    }
    headers
}

/// The key that webhooks are signed with.
#[derive(Clone)]
pub struct WebhookSecret(Vec<u8>);

impl std::fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WebhookSecret")
    }
}

impl std::str::FromStr for WebhookSecret {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let form =
            "use `whsec_` and the base64 text of 24 to 64 random bytes, such as whsec_$(openssl rand -base64 32)";
        // Never the value: it is a secret.
        let wrong = || Error::new(Kind::Invalid, format!("the webhook secret has not the form of one: {form}"));
        let bytes = text.trim().strip_prefix("whsec_").and_then(|text| STANDARD.decode(text).ok());
        bytes.filter(|bytes| (24..=64).contains(&bytes.len())).map(WebhookSecret).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_is_signed_as_the_reference_libraries_do_it() {
        let secret: WebhookSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse().unwrap();
        let body = br#"{"test": 2432232314}"#;
        let headers = webhook_headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, Some(&secret), body);
        let signature = headers.iter().find(|(name, _)| *name == "webhook-signature").map(|(_, value)| value.as_str());
        assert_eq!(signature, Some("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="));
    }

    #[test]
    fn a_wrong_secret_is_refused_and_not_repeated() {
        for text in ["", "whsec_", "whsec_c2hvcnQ=", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_!!"] {
            let error = text.parse::<WebhookSecret>().unwrap_err().to_string();
            assert!(error.contains("24 to 64") && (text.len() < 8 || !error.contains(text)), "{error}");
        }
    }
}
