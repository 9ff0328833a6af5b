//! Requests to other services: pings, webhooks, and documents to fetch.
//!
//! Promise: one request, within the given time, and no redirect is followed. No error shows more of the URL than its host,
//! because the rest is often secret. Non-promise: nothing is retried; a request without an answer may have arrived. A build
//! without the feature `proxy` sends nothing, and says so.

#[cfg(any(feature = "proxy", feature = "server"))]
mod connector;
#[cfg(any(feature = "proxy", feature = "server"))]
mod request;

#[cfg(feature = "proxy")]
pub(crate) use connector::{connector, is_encrypted};
#[cfg(feature = "server")]
pub(crate) use request::fetch;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use leasehold_core::secret::WebUrl;
use leasehold_core::{Error, Kind, Result};
use std::time::Duration;

/// A request to another service.
#[derive(Debug)]
pub struct Letter {
    /// The URL to call, which may contain a secret.
    pub url: WebUrl,
    /// Further headers. Their values may be secrets.
    pub headers: Vec<(&'static str, String)>,
    /// The media type of the body.
    pub content_type: &'static str,
    /// The body of a POST; a GET if none.
    pub body: Option<Vec<u8>>,
}

/// The answer of the service, without its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status code.
    pub status: u16,
    /// How long the service asks to be left alone.
    pub retry_after: Option<Duration>,
}

impl Answer {
    /// Whether the service accepted the request.
    pub const fn is_success(self) -> bool {
        self.status >= 200 && self.status < 300
    }

    /// Whether the failure is temporary, so that the request may be repeated.
    pub const fn is_temporary(self) -> bool {
        self.status == 429 || self.status >= 500
    }
}

/// Sends a request, and returns the answer if it comes in that time.
#[cfg(feature = "proxy")]
pub async fn send(letter: Letter, limit: Duration) -> Result<Answer> {
    request::exchange(letter, limit).await
}

/// Always refuses. It is never called, because settings that need it are refused earlier.
#[cfg(not(feature = "proxy"))]
pub async fn send(letter: Letter, _: Duration) -> Result<Answer> {
    Err(Error::new(Kind::Unsupported, format!("this build cannot send anything to `{}`", letter.url)))
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
        headers.extend(secret.sign(&signed).map(|signature| ("webhook-signature", format!("v1,{signature}"))));
    }
    headers
}

/// The key that webhooks are signed with.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookSecret(#[cfg_attr(not(feature = "proxy"), allow(dead_code))] Vec<u8>);

impl WebhookSecret {
    #[cfg(feature = "proxy")]
    fn sign(&self, signed: &[u8]) -> Option<String> {
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &self.0);
        Some(STANDARD.encode(ring::hmac::sign(&key, signed).as_ref()))
    }

    #[cfg(not(feature = "proxy"))]
    fn sign(&self, _: &[u8]) -> Option<String> {
        None
    }
}

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
        let wrong = || Error::new(Kind::Invalid, format!("the webhook secret is not valid: {form}"));
        let bytes = text.trim().strip_prefix("whsec_").and_then(|text| STANDARD.decode(text).ok());
        bytes.filter(|bytes| (24..=64).contains(&bytes.len())).map(WebhookSecret).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "proxy")]
    #[test]
    fn a_webhook_is_signed_as_the_reference_libraries_do_it() {
        let secret: WebhookSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse().unwrap();
        let body = br#"{"test": 2432232314}"#;
        let headers = webhook_headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, Some(&secret), body);
        let signature = headers.iter().find(|(name, _)| *name == "webhook-signature").map(|(_, value)| value.as_str());
        assert_eq!(signature, Some("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="));
    }

    #[cfg(feature = "proxy")]
    #[tokio::test]
    async fn the_status_is_the_answer_though_what_follows_it_never_comes() {
        use std::io::{Read, Write};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let (done, is_done) = std::sync::mpsc::channel::<()>();
        let serving = std::thread::spawn(move || {
            let mut connection = listener.accept().unwrap().0;
            let _ = connection.read(&mut [0; 4096]).unwrap();
            connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n").unwrap();
            let _ = is_done.recv();
        });
        let letter = Letter { url: url.parse().unwrap(), headers: Vec::new(), content_type: "text/plain", body: None };
        let answer = send(letter, Duration::from_secs(30)).await.unwrap();
        assert!(answer.is_success());
        drop(done);
        serving.join().unwrap();
    }

    #[test]
    fn a_wrong_secret_is_refused_and_not_repeated() {
        for text in ["", "whsec_", "whsec_c2hvcnQ=", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_!!"] {
            let error = text.parse::<WebhookSecret>().unwrap_err().to_string();
            assert!(error.contains("24 to 64") && (text.len() < 8 || !error.contains(text)), "{error}");
        }
    }
}
