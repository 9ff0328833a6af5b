//! A request as it came, checked once: what it may ask for, and in what form it goes on.
//!
//! Promise: the upstream never depends on the request: an absolute target, a `Host` or a `..` changes nothing about where
//! it goes; what a client says in `Leasehold-*` headers is checked or dropped, never passed on. Non-promise: paths are
//! passed on as they came, neither decoded nor cleaned; what could be meant to climb is refused.

use super::Settings;
use super::problem::Problem;
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE, VIA,
};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode, Uri, Version};
use leasehold_core::{Kind, Token};

/// The header with the token.
pub(crate) const TOKEN: HeaderName = HeaderName::from_static("leasehold-token");
/// The header that tells the upstream under which epoch a request was let in.
const EPOCH: HeaderName = HeaderName::from_static("leasehold-epoch");
const LEASE: HeaderName = HeaderName::from_static("leasehold-lease");
/// The header by which a client names one operation.
pub(crate) const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const OURS: &str = "leasehold-";
/// The proxy's own pages.
pub(crate) const OWN: &str = "/.well-known/leasehold";
/// The longest idempotency key.
const MAX_KEY: usize = 255;

/// Headers that are about one connection only.
const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-authenticate"),
    HeaderName::from_static("proxy-authorization"),
    HeaderName::from_static("proxy-connection"),
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// What a request asks for.
#[derive(Debug)]
pub(crate) enum RequestKind {
    /// To pass, with a token.
    Fenced(Token, Option<HeaderValue>),
    /// To pass without one, for it changes nothing.
    Safe,
    /// A page of the proxy's own.
    Own(Page),
}

/// A page of the proxy's own.
#[derive(Debug)]
pub(crate) enum Page {
    Seal(Token),
    HighWater,
    Health,
}

/// Checks a request's head.
pub(crate) fn ask(head: &Parts, settings: &Settings) -> Result<RequestKind, Problem> {
    let method = &head.method;
    if *method == Method::CONNECT || *method == Method::TRACE {
        let detail = format!("method {method} is not passed on");
        return Err(Problem::new(StatusCode::METHOD_NOT_ALLOWED, Kind::Unsupported, detail));
    }
    check_target(&head.uri)?;
    check_framing(head)?;
    if let Some(page) = head.uri.path().strip_prefix(OWN).filter(|rest| rest.is_empty() || rest.starts_with('/')) {
        return own_page(page, head).map(RequestKind::Own);
    }
    check_length(head, settings.limits.max_body)?;
    let safe = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    if !head.headers.contains_key(TOKEN) && safe && settings.allow_safe {
        return Ok(RequestKind::Safe);
    }
    Ok(RequestKind::Fenced(token(&head.headers)?, key(&head.headers)?))
}

fn check_target(uri: &Uri) -> Result<(), Problem> {
    if !uri.path().starts_with('/') {
        return Err(Problem::bad("request target refused: use a path that begins with `/`"));
    }
    for segment in uri.path().split(['/', '\\']) {
        let plain = segment.to_ascii_lowercase().replace("%2e", ".");
        // A parameter after `;` hides a climb from some servers and not from others.
        let plain = plain.split(';').next().unwrap_or_default();
        if plain == "." || plain == ".." {
            return Err(Problem::bad("request target refused: it has a `.` or `..` segment; name the path itself"));
        }
    }
    let lower = uri.path().to_ascii_lowercase();
    if ["%2f", "%5c", "%00"].iter().any(|code| lower.contains(code)) || lower.contains('\\') {
        return Err(Problem::bad("request target refused: it has an encoded separator or a null byte"));
    }
    Ok(())
}

/// What two servers could read differently is read by neither.
fn check_framing(head: &Parts) -> Result<(), Problem> {
    let headers = &head.headers;
    if headers.get_all(CONTENT_LENGTH).iter().count() > 1 {
        return Err(Problem::bad("request refused: it has more than one Content-Length"));
    }
    if let Some(coding) = headers.get(TRANSFER_ENCODING) {
        if headers.contains_key(CONTENT_LENGTH) {
            return Err(Problem::bad("request refused: it has both Content-Length and Transfer-Encoding"));
        }
        let single = headers.get_all(TRANSFER_ENCODING).iter().count() == 1;
        if !single || !coding.as_bytes().eq_ignore_ascii_case(b"chunked") || head.version < Version::HTTP_11 {
            return Err(Problem::bad("request refused: the only Transfer-Encoding is `chunked`, once, in HTTP/1.1"));
        }
    }
    if headers.get_all(HOST).iter().count() > 1 {
        return Err(Problem::bad("request refused: it has more than one Host"));
    }
    if let Some(upgrade) = headers.get(UPGRADE)
        && !upgrade.as_bytes().eq_ignore_ascii_case(b"h2c")
    {
        let detail = "an upgraded connection cannot be fenced, and is not passed on";
        return Err(Problem::new(StatusCode::NOT_IMPLEMENTED, Kind::Unsupported, detail));
    }
    Ok(())
}

fn check_length(head: &Parts, max: u64) -> Result<(), Problem> {
    let Some(length) = head.headers.get(CONTENT_LENGTH) else { return Ok(()) };
    let length = length.to_str().ok().and_then(|text| text.parse::<u64>().ok());
    match length {
        Some(length) if length <= max => Ok(()),
        Some(_) => Err(too_large(max)),
        None => Err(Problem::bad("request refused: Content-Length is not a number")),
    }
}

pub(crate) fn too_large(max: u64) -> Problem {
    let detail = format!("request refused: its body has more than {max} bytes (--max-body)");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, Kind::Invalid, detail)
}

fn own_page(page: &str, head: &Parts) -> Result<Page, Problem> {
    match (page, &head.method) {
        ("/seal", &Method::POST) => Ok(Page::Seal(token(&head.headers)?)),
        ("/high-water", &Method::GET) => Ok(Page::HighWater),
        ("/health", &Method::GET) => Ok(Page::Health),
        ("/seal" | "/high-water" | "/health", method) => {
            let detail = format!("method {method} is not for this page");
            Err(Problem::new(StatusCode::METHOD_NOT_ALLOWED, Kind::Invalid, detail))
        }
        _ => {
            let detail = format!("there is no such page; {OWN} has seal, high-water and health");
            Err(Problem::new(StatusCode::NOT_FOUND, Kind::Invalid, detail))
        }
    }
}

fn token(headers: &HeaderMap) -> Result<Token, Problem> {
    let mut values = headers.get_all(TOKEN).iter();
    let Some(value) = values.next() else {
        let detail = "no token: send `Leasehold-Token` with what LEASEHOLD_TOKEN has inside `leasehold run`";
        return Err(Problem::new(StatusCode::PRECONDITION_REQUIRED, Kind::Invalid, detail));
    };
    if values.next().is_some() {
        return Err(Problem::bad("request refused: it has more than one Leasehold-Token"));
    }
    let text = value.to_str().map_err(|_| Problem::bad("invalid token: it is not plain text"))?;
    // Not the value: it is a secret, even if it is not quite right.
    text.parse()
        .map_err(|_| Problem::bad("invalid token: use LEASE:EPOCH:LINEAGE:NONCE:SEQ as `leasehold acquire` prints it"))
}

fn key(headers: &HeaderMap) -> Result<Option<HeaderValue>, Problem> {
    let mut values = headers.get_all(KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() || value.is_empty() || value.len() > MAX_KEY {
        let detail = format!("request refused: use one Idempotency-Key of 1 to {MAX_KEY} bytes");
        return Err(Problem::bad(detail));
    }
    Ok(Some(value.clone()))
}

/// Makes the head ready to go on to the upstream.
pub(crate) fn onward(head: &mut Parts, settings: &Settings, token: Option<&Token>) -> Result<(), Problem> {
    head.uri = settings.upstream.target(&head.uri)?;
    strip(&mut head.headers);
    join_cookies(&mut head.headers, head.version);
    head.headers.remove(EXPECT);
    head.headers.remove(TRAILER);
    head.headers.insert(HOST, settings.upstream.host.clone());
    head.headers.append(VIA, HeaderValue::from_static("1.1 leasehold"));
    if let Some(token) = token {
        head.headers.insert(EPOCH, HeaderValue::from(token.epoch.get()));
        if let Ok(lease) = HeaderValue::from_str(token.lease.as_str()) {
            head.headers.insert(LEASE, lease);
        }
    }
    head.version = Version::HTTP_11;
    Ok(())
}

/// Removes what is about one connection, and what only the proxy may say.
pub(crate) fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        // Nobody may have these dropped on the way: they say where a message ends and what it is about.
        .filter(|name| *name != CONTENT_LENGTH && *name != HOST)
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    let ours: Vec<HeaderName> = headers.keys().filter(|name| name.as_str().starts_with(OURS)).cloned().collect();
    for name in ours {
        headers.remove(name);
    }
}

/// HTTP/2 may split cookies into several headers; HTTP/1.1 must not.
fn join_cookies(headers: &mut HeaderMap, version: Version) {
    if version != Version::HTTP_2 || headers.get_all(COOKIE).iter().count() < 2 {
        return;
    }
    let all: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&all.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}
