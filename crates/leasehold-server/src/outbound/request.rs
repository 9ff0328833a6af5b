//! One request over a connection of its own.

#[cfg(feature = "proxy")]
use super::Answer;
use super::Letter;
use super::connector::{connector, is_encrypted};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
#[cfg(feature = "proxy")]
use hyper::header::RETRY_AFTER;
use hyper::header::{CONTENT_TYPE, HeaderValue, USER_AGENT};
use hyper::{Method, Response, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
#[cfg(feature = "proxy")]
use leasehold_core::format_duration;
#[cfg(feature = "server")]
use leasehold_core::secret::WebUrl;
use leasehold_core::{Error, Kind, Result};
use std::time::Duration;

/// How much of an answer is read, and for how long, so that its connection ends cleanly.
#[cfg(feature = "proxy")]
const MAX_ANSWER: usize = 64 * 1024;
#[cfg(feature = "proxy")]
const READ_FOR: Duration = Duration::from_millis(500);
/// What we call ourselves.
const AGENT: &str = concat!("leasehold/", env!("CARGO_PKG_VERSION"));

/// Sends a request, and returns how it was answered.
#[cfg(feature = "proxy")]
pub async fn exchange(letter: Letter, limit: Duration) -> Result<Answer> {
    let url = letter.url.clone();
    let asked = tokio::time::timeout(limit, ask(letter, limit)).await;
    let response = asked.map_err(|_| {
        Error::new(Kind::Unavailable, format!("`{url}` did not answer within {}", format_duration(limit)))
    })??;
    let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let answer = Answer { status: response.status().as_u16(), retry_after: retry_after.map(Duration::from_secs) };
    // The status alone is the answer, whatever follows it.
    let _ = tokio::time::timeout(READ_FOR, Limited::new(response.into_body(), MAX_ANSWER).collect()).await;
    Ok(answer)
}

/// A whole JSON document of at most this many bytes.
#[cfg(feature = "server")]
pub async fn fetch(url: &WebUrl, limit: Duration, most: usize) -> Result<Vec<u8>> {
    let headers = vec![("accept", "application/json".to_owned())];
    let response = ask(Letter { url: url.clone(), headers, content_type: "", body: None }, limit).await?;
    let status = response.status().as_u16();
    if status != 200 {
        return Err(Error::new(Kind::Unavailable, format!("`{url}` answered {status}")));
    }
    let cut = |e| Error::unavailable(format!("`{url}` sent more than {most} bytes, or ended the connection"), e);
    Ok(Limited::new(response.into_body(), most).collect().await.map_err(cut)?.to_bytes().to_vec())
}

async fn ask(letter: Letter, limit: Duration) -> Result<Response<Incoming>> {
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
    client.request(request).await.map_err(|e| Error::unavailable(format!("cannot reach `{url}`"), e))
}
