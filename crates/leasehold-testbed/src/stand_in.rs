//! A small object store of our own, strict or deliberately flawed.
//!
//! Promise: without a flaw it does what the services' documentation says about conditional writes: `If-None-Match: *` and
//! `If-Match` as S3 does them, `x-goog-if-generation-match` as Google's XML interface does it. With a flaw it is a negative
//! control that a store must refuse. Non-promise: it checks no signature, and knows only what the store asks of it.

use crate::loopback::Loopback;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Between looking and acting, in the flaw that loses races.
const DITHER: Duration = Duration::from_millis(5);
const MODIFIED: &str = "Thu, 01 Jan 2026 00:00:00 GMT";

/// What is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing: it is sound.
    None,
    /// It takes every write.
    IgnoresConditions,
    /// It creates what exists, but replaces only what is as expected.
    IgnoresAbsence,
    /// It replaces what has changed, but creates only what is absent.
    IgnoresChanges,
    /// Right one by one: it looks, dithers, and then acts.
    LosesRaces,
    /// It refuses in a race, and writes all the same.
    WritesWhatItRefused,
    /// It tells no time.
    HasNoClock,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    S3,
    Google,
}

/// A stand-in on a port of its own. It has every bucket that it is asked for.
#[derive(Debug)]
pub struct StandIn {
    state: Arc<Shared>,
    serving: Loopback,
}

#[derive(Debug)]
struct Shared {
    dialect: Dialect,
    flaw: Flaw,
    objects: Mutex<BTreeMap<String, Object>>,
    generations: AtomicU64,
    is_locked_out: AtomicBool,
    is_full: AtomicBool,
    conflicts: AtomicUsize,
    authorization: Mutex<String>,
    refused: Mutex<Option<String>>,
}

#[derive(Debug, Clone)]
struct Object {
    body: Bytes,
    generation: u64,
    /// What its writer said about it.
    metadata: HeaderMap,
}

impl StandIn {
    /// One that speaks as S3 does.
    pub fn s3(flaw: Flaw) -> Self {
        StandIn::start(Dialect::S3, flaw)
    }

    /// One that speaks as Google's XML interface does.
    pub fn google(flaw: Flaw) -> Self {
        StandIn::start(Dialect::Google, flaw)
    }

    fn start(dialect: Dialect, flaw: Flaw) -> Self {
        let state = Arc::new(Shared {
            dialect,
            flaw,
            objects: Mutex::default(),
            generations: AtomicU64::new(1_700_000_000_000_000),
            is_locked_out: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            conflicts: AtomicUsize::new(0),
            authorization: Mutex::default(),
            refused: Mutex::default(),
        });
        let app = Router::new().fallback(answer).with_state(state.clone());
        let serving = Loopback::start(async move |listener| axum::serve(listener, app).await.unwrap());
        StandIn { state, serving }
    }

    /// The port to connect to.
    pub const fn port(&self) -> u16 {
        self.serving.port()
    }

    /// From now on every request is denied, as after credentials were revoked; or no more.
    pub fn lock_out(&self, is_locked_out: bool) {
        self.state.is_locked_out.store(is_locked_out, Ordering::SeqCst);
    }

    /// From now on a request whose `Authorization` has this in it is refused, as after a key was replaced by another.
    pub fn refuse(&self, key: &str) {
        *self.state.refused.lock().unwrap() = Some(key.to_owned());
    }

    /// From now on nothing can be written, as on a server whose disk is full; or no more.
    pub fn fill(&self, is_full: bool) {
        self.state.is_full.store(is_full, Ordering::SeqCst);
    }

    /// The next conditional writes are answered 409, undecided: nothing is written.
    pub fn conflict(&self, times: usize) {
        self.state.conflicts.store(times, Ordering::SeqCst);
    }

    /// The `Authorization` of the last request.
    pub fn authorization(&self) -> String {
        self.state.authorization.lock().unwrap().clone()
    }

    /// Replaces the content of an object with something that nobody wrote.
    pub fn damage(&self, key: &str) {
        self.state.objects().get_mut(key).unwrap().body = Bytes::from_static(b"nothing that leasehold has written");
    }

    /// The keys that it has, in order.
    pub fn keys(&self) -> Vec<String> {
        self.state.objects().keys().cloned().collect()
    }
}

async fn answer(
    State(state): State<Arc<Shared>>,
    method: Method,
    uri: Uri,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let mut response = state.answer(&method, &uri, query.as_deref().unwrap_or_default(), &headers, body).await;
    if state.flaw == Flaw::HasNoClock {
        // What is there already is not replaced.
        response.headers_mut().insert("date", axum::http::HeaderValue::from_static("soon"));
    }
    response
}

impl Shared {
    fn objects(&self) -> MutexGuard<'_, BTreeMap<String, Object>> {
        self.objects.lock().unwrap()
    }

    async fn answer(&self, method: &Method, uri: &Uri, query: &str, headers: &HeaderMap, body: Bytes) -> Response {
        let given = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
        given.clone_into(&mut self.authorization.lock().unwrap());
        if self.is_locked_out.load(Ordering::SeqCst) {
            return refusal(StatusCode::FORBIDDEN, "AccessDenied");
        }
        if self.refused.lock().unwrap().as_ref().is_some_and(|key| given.contains(key)) {
            return match self.dialect {
                Dialect::S3 => refusal(StatusCode::FORBIDDEN, "InvalidAccessKeyId"),
                Dialect::Google => refusal(StatusCode::UNAUTHORIZED, "AuthenticationRequired"),
            };
        }
        // `/bucket/key`; Google's client escapes the `/` within the key, which only decoding shows.
        let path = unescape(uri.path());
        let key = path.trim_start_matches('/').split_once('/').map_or("", |(_, key)| key);
        match *method {
            Method::PUT if self.is_full.load(Ordering::SeqCst) => {
                refusal(StatusCode::INSUFFICIENT_STORAGE, "InsufficientStorage")
            }
            Method::GET if key.is_empty() => self.list(query),
            Method::GET | Method::HEAD => self.get(key),
            Method::PUT => self.put(key, headers, body).await,
            Method::DELETE => {
                self.objects().remove(key);
                StatusCode::NO_CONTENT.into_response()
            }
            _ => refusal(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed"),
        }
    }

    fn get(&self, key: &str) -> Response {
        match self.objects().get(key) {
            Some(object) => (self.tags(object), object.body.clone()).into_response(),
            None => refusal(StatusCode::NOT_FOUND, "NoSuchKey"),
        }
    }

    fn tags(&self, object: &Object) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("etag", etag(&object.body).parse().unwrap());
        headers.insert("last-modified", MODIFIED.parse().unwrap());
        headers.extend(object.metadata.clone());
        if self.dialect == Dialect::Google {
            headers.insert("x-goog-generation", object.generation.into());
        }
        headers
    }

    async fn put(&self, key: &str, headers: &HeaderMap, body: Bytes) -> Response {
        let condition = match self.condition(headers) {
            Ok(condition) => condition,
            Err(refused) => return *refused,
        };
        if condition != Condition::None && take_one(&self.conflicts) {
            return refusal(StatusCode::CONFLICT, "ConditionalRequestConflict");
        }
        let dithers = matches!(self.flaw, Flaw::LosesRaces | Flaw::WritesWhatItRefused);
        if dithers {
            let held = self.verdict(&condition, self.objects().get(key));
            tokio::time::sleep(DITHER).await;
            if let Err(refused) = held {
                return *refused;
            }
        }
        let mut objects = self.objects();
        let verdict = self.verdict(&condition, objects.get(key));
        if let (Err(refused), false) = (verdict, self.flaw == Flaw::LosesRaces) {
            if self.flaw == Flaw::WritesWhatItRefused {
                objects.insert(key.to_owned(), self.object(body, headers));
            }
            return *refused;
        }
        let object = self.object(body, headers);
        let tags = self.tags(&object);
        objects.insert(key.to_owned(), object);
        tags.into_response()
    }

    fn object(&self, body: Bytes, headers: &HeaderMap) -> Object {
        let is_about_it =
            |name: &str| name.starts_with("x-amz-meta-") || name.starts_with("x-goog-meta-") || name == "content-type";
        let about = headers.iter().filter(|(name, _)| is_about_it(name.as_str()));
        let metadata = about.map(|(name, value)| (name.clone(), value.clone())).collect();
        Object { body, generation: self.generations.fetch_add(1, Ordering::SeqCst), metadata }
    }

    /// The condition of a write. One in the other's dialect, or one that makes no sense, is not passed over.
    fn condition(&self, headers: &HeaderMap) -> Result<Condition, Box<Response>> {
        let header = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default().to_owned());
        let unknown = || Box::new(refusal(StatusCode::NOT_IMPLEMENTED, "NotImplemented"));
        match (self.dialect, header("if-none-match"), header("if-match"), header("x-goog-if-generation-match")) {
            (_, None, None, None) => Ok(Condition::None),
            (Dialect::S3, Some(any), None, None) if any == "*" => Ok(Condition::Absent),
            (Dialect::S3, None, Some(tag), None) if tag.starts_with('"') && tag.len() > 2 => Ok(Condition::Tag(tag)),
            (Dialect::Google, None, None, Some(number)) => match number.parse::<u64>() {
                Ok(0) => Ok(Condition::Absent),
                Ok(number) => Ok(Condition::Generation(number)),
                Err(_) => Err(unknown()),
            },
            _ => Err(unknown()),
        }
    }

    fn verdict(&self, condition: &Condition, found: Option<&Object>) -> Result<(), Box<Response>> {
        let is_met = match (condition, found) {
            (Condition::None, _) => true,
            (Condition::Absent, found) => {
                found.is_none() || matches!(self.flaw, Flaw::IgnoresConditions | Flaw::IgnoresAbsence)
            }
            (_, _) if matches!(self.flaw, Flaw::IgnoresConditions | Flaw::IgnoresChanges) => true,
            (Condition::Tag(_), None) => return Err(Box::new(refusal(StatusCode::NOT_FOUND, "NoSuchKey"))),
            (Condition::Tag(tag), Some(found)) => *tag == etag(&found.body),
            (Condition::Generation(number), found) => found.is_some_and(|found| found.generation == *number),
        };
        if is_met { Ok(()) } else { Err(Box::new(refusal(StatusCode::PRECONDITION_FAILED, "PreconditionFailed"))) }
    }

    /// A listing with `list-type=2`, `prefix`, `delimiter`, `start-after`, `max-keys` and `continuation-token`.
    fn list(&self, query: &str) -> Response {
        let field = |name: &str| {
            let found = query.split('&').filter_map(|field| field.split_once('=')).find(|(known, _)| *known == name);
            found.map(|(_, value)| unescape(&value.replace('+', " ")))
        };
        let prefix = field("prefix").unwrap_or_default();
        let after = field("continuation-token").or_else(|| field("start-after")).unwrap_or_default();
        let most = field("max-keys").and_then(|most| most.parse().ok()).unwrap_or(1_000).min(1_000);
        let is_deeper =
            |key: &str| field("delimiter").is_some_and(|delimiter| key[prefix.len()..].contains(&delimiter));
        let objects = self.objects();
        let mut found = objects
            .iter()
            .filter(|(key, _)| key.starts_with(&prefix) && key.as_str() > after.as_str() && !is_deeper(key))
            .peekable();
        let (mut entries, mut last) = (String::new(), String::new());
        for (key, object) in found.by_ref().take(most) {
            let tag = etag(&object.body).replace('"', "&quot;");
            let _ = write!(
                entries,
                "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>{tag}</ETag>\
                 <Size>{}</Size></Contents>",
                object.body.len()
            );
            last.clone_from(key);
        }
        let token = match found.peek() {
            Some(_) => format!("<NextContinuationToken>{last}</NextContinuationToken>"),
            None => String::new(),
        };
        let truncated = !token.is_empty();
        xml(format!("<ListBucketResult><IsTruncated>{truncated}</IsTruncated>{token}{entries}</ListBucketResult>"))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Condition {
    None,
    Absent,
    Tag(String),
    Generation(u64),
}

fn take_one(count: &AtomicUsize) -> bool {
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

/// Equal bodies have equal tags, as with S3's MD5.
fn etag(body: &[u8]) -> String {
    let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    for byte in body {
        hash = (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    }
    format!("\"{hash:032x}\"")
}

fn xml(text: String) -> Response {
    ([("content-type", "application/xml")], format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{text}"))
        .into_response()
}

fn refusal(status: StatusCode, code: &str) -> Response {
    let mut response = xml(format!("<Error><Code>{code}</Code><Message>as documented</Message></Error>"));
    *response.status_mut() = status;
    response
}

/// Undoes percent-escapes.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, more @ ..] = rest {
        let escaped = match (first, more) {
            (b'%', [high, low, ..]) => {
                std::str::from_utf8(&[*high, *low]).ok().and_then(|digits| u8::from_str_radix(digits, 16).ok())
            }
            _ => None,
        };
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &more[2..] } else { more };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
