//! The settings of a proxy, parsed once.

use super::problem::Problem;
use hyper::Uri;
use hyper::header::HeaderValue;
use hyper::http::uri::{Authority, PathAndQuery, Scheme};
use leasehold_core::guard::Policy;
use leasehold_core::{Error, Label, LeaseName, Result, Ttl};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Where requests go, and nowhere else.
#[derive(Debug, Clone)]
pub struct Upstream {
    scheme: Scheme,
    authority: Authority,
    base: String,
    pub(crate) host: HeaderValue,
}

impl Upstream {
    /// The URI of a request there: only path and query are the client's.
    pub(crate) fn target(&self, asked: &Uri) -> Result<Uri, Problem> {
        let path = asked.path_and_query().map_or("/", PathAndQuery::as_str);
        let path = if self.base.is_empty() {
            asked.path_and_query().cloned().ok_or_else(|| Problem::bad("request target refused: it has no path"))?
        } else {
            PathAndQuery::try_from(format!("{}{path}", self.base))
                .map_err(|_| Problem::bad("request target refused: it is not a path"))?
        };
        Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(path)
            .build()
            .map_err(|_| Problem::bad("request target refused: it is not a path"))
    }

    /// Whether the way there is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }
}

impl std::fmt::Display for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority, self.base)
    }
}

impl FromStr for Upstream {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        const FORM: &str = "use http://HOST[:PORT][/BASE] or https://..., without user, query or fragment";
        // The value is not shown: it may have a password in it.
        let refuse = |what: &str| Error::invalid("url", without_secrets(text), format!("{what}; {FORM}"));
        if text.contains('#') {
            return Err(refuse("it has a fragment"));
        }
        let uri: Uri = text.parse().map_err(|_| refuse("it is no url"))?;
        let scheme = match uri.scheme_str() {
            Some("http") => Scheme::HTTP,
            Some("https") => Scheme::HTTPS,
            _ => return Err(refuse("its scheme is neither http nor https")),
        };
        let authority = uri.authority().cloned().ok_or_else(|| refuse("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(refuse("it has a user"));
        }
        if authority.host().is_empty() || uri.query().is_some() {
            return Err(refuse("it has no host, or a query"));
        }
        let base = uri.path().trim_end_matches('/').to_owned();
        if base.split('/').any(|segment| matches!(segment, "." | "..")) {
            return Err(refuse("its path has a `.` or `..` segment"));
        }
        let host = HeaderValue::from_str(authority.as_str()).map_err(|_| refuse("its host is no name"))?;
        Ok(Upstream { scheme, authority, base, host })
    }
}

/// A URL as it may be shown: without user and password.
fn without_secrets(text: &str) -> String {
    match (text.find("://"), text.find('@')) {
        (Some(scheme), Some(at)) if at > scheme => format!("{}://…{}", &text[..scheme], &text[at..]),
        _ => text.to_owned(),
    }
}

/// Bounds on what clients may ask of the proxy.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The longest request body, in bytes.
    pub max_body: u64,
    /// The longest request head, in bytes.
    pub max_head: usize,
    /// How many requests may be under way at once.
    pub max_requests: usize,
    /// How many connections may be open at once.
    pub max_connections: usize,
    /// How long a client may take to send a request's head, or between two pieces of its body.
    pub client_timeout: Duration,
    /// How long the upstream may take to answer a complete request. After that it counts as no longer running there.
    pub upstream_timeout: Duration,
    /// How long a newer epoch waits for older requests in flight before they are cut.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_body: 64 * 1024 * 1024,
            max_head: 64 * 1024,
            max_requests: 1024,
            max_connections: 4096,
            client_timeout: Duration::from_secs(30),
            upstream_timeout: Duration::from_secs(30),
            drain: Duration::from_secs(5),
        }
    }
}

/// How many answers are kept for clients that ask again with the same `Idempotency-Key`, and for how long.
#[derive(Debug, Clone)]
pub struct Replay {
    /// The largest number of answers.
    pub entries: usize,
    /// The age at which an answer is dropped.
    pub age: Duration,
}

/// Everything that a proxy needs to know.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The resource, as the fence and messages name it.
    pub resource: LeaseName,
    /// The service behind the proxy.
    pub upstream: Upstream,
    /// The one lease that fences it; otherwise that of the first token that the store confirms.
    pub lease: Option<LeaseName>,
    /// Reentrant or once per epoch.
    pub policy: Policy,
    /// Whether GET, HEAD and OPTIONS pass without a token.
    pub allow_safe: bool,
    /// The replay cache, if there is to be one.
    pub replay: Option<Replay>,
    /// Bounds on requests, bodies and times.
    pub limits: Limits,
    /// How long the proxy's own lease lasts unless renewed. If it dies, another takes over after that time.
    pub ttl: Ttl,
    /// What the proxy calls itself in its lease.
    pub label: Option<Label>,
    /// The folder in which the proxy keeps a copy of its high water, in case the store is lost. Without one it relies
    /// on a store that never goes back (class A, and never restored from an old copy).
    pub state: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_a_scheme_a_host_and_a_base() {
        let upstream: Upstream = "http://127.0.0.1:8080/api/".parse().unwrap();
        assert_eq!(upstream.to_string(), "http://127.0.0.1:8080/api");
        let asked: Uri = "http://evil.example/x?y=1".parse().unwrap();
        assert_eq!(upstream.target(&asked).unwrap(), "http://127.0.0.1:8080/api/x?y=1");
        for bad in [
            "",
            "127.0.0.1:1",
            "ftp://h",
            "http://",
            "http://u:secret@h",
            "http://h/?q",
            "http://h/#f",
            "http://h/../x",
        ] {
            let error = bad.parse::<Upstream>().unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
