//! Services that are told of runs, written from their documentation, and stricter than they are.
//!
//! Promise: what they would not take, or would take for something else, is answered with an error and is not counted as heard.
//! *Healthchecks* ([pinging API]): `/UUID`, `/UUID/start`, `/UUID/log`, `/UUID/CODE` with a code from 0 to 255, `rid` in the
//! canonical form of a UUID, at most 100 kB. *Sentry Crons* ([check-ins over HTTP]): `/api/PROJECT/cron/SLUG/KEY/` with `status`
//! and `check_in_id`. *Webhooks* ([Standard Webhooks]): a POST of JSON whose signature is right and whose time is now.
//!
//! [pinging API]: https://healthchecks.io/docs/http_api/
//! [check-ins over HTTP]: https://docs.sentry.io/product/crons/getting-started/http/
//! [Standard Webhooks]: https://www.standardwebhooks.com

use crate::loopback::Loopback;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

const MAX_BODY: usize = 100_000;
/// How old a webhook may be.
const MAX_AGE_SECS: u64 = 300;
/// Answered by never answering.
const SILENT: u16 = 0;

/// Which service it is.
#[derive(Debug, Clone)]
pub enum Service {
    /// With a check of this path, which begins with `/`.
    Healthchecks(String),
    /// With a monitor of this path.
    Sentry(String),
    /// With this secret, `whsec_` and all.
    Webhooks(String),
}

/// A request that was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    /// What it means: `start`, `success`, `log`, a code; a status; the type of a webhook's event.
    pub signal: String,
    /// Which run or which event it is about.
    pub id: String,
    /// The body of the request, as text.
    pub body: String,
}

#[derive(Debug)]
struct Shared {
    service: Service,
    /// What is answered in place of success.
    answer: AtomicU16,
    heard: Mutex<Vec<Heard>>,
    refused: Mutex<Vec<String>>,
    asked: Mutex<Vec<String>>,
}

/// A service on a port of its own.
#[derive(Debug)]
pub struct Receiver {
    shared: Arc<Shared>,
    serving: Loopback,
}

impl Receiver {
    /// Starts one that answers as this service does.
    pub fn start(service: Service) -> Self {
        let shared = Arc::new(Shared {
            service,
            answer: AtomicU16::new(200),
            heard: Mutex::default(),
            refused: Mutex::default(),
            asked: Mutex::default(),
        });
        let router = Router::new().fallback(take).with_state(shared.clone());
        let serving = Loopback::start(async |listener| axum::serve(listener, router).await.unwrap());
        Receiver { shared, serving }
    }

    /// Its address, with this path.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.serving.port())
    }

    /// What it has taken, oldest first.
    pub fn heard(&self) -> Vec<Heard> {
        self.shared.heard.lock().unwrap().clone()
    }

    /// What it would not take, and why.
    pub fn refused(&self) -> Vec<String> {
        self.shared.refused.lock().unwrap().clone()
    }

    /// What came, whatever was answered: the `webhook-id` of each, or its path.
    pub fn asked(&self) -> Vec<String> {
        self.shared.asked.lock().unwrap().clone()
    }

    /// Answers this from now on; 200 is success. What is not taken is not heard.
    pub fn answer(&self, status: u16) {
        self.shared.answer.store(status, Ordering::SeqCst);
    }

    /// Takes requests and answers none.
    pub fn hang(&self) {
        self.answer(SILENT);
    }
}

async fn take(State(shared): State<Arc<Shared>>, request: Request) -> (StatusCode, String) {
    let (head, body) = request.into_parts();
    let id = head.headers.get("webhook-id").and_then(|id| id.to_str().ok()).unwrap_or(head.uri.path());
    shared.asked.lock().unwrap().push(id.to_owned());
    let Ok(body) = axum::body::to_bytes(body, MAX_BODY + 1).await else {
        return (StatusCode::PAYLOAD_TOO_LARGE, "too large".into());
    };
    let answer = shared.answer.load(Ordering::SeqCst);
    if answer == SILENT {
        std::future::pending::<()>().await;
    }
    let judged = match &shared.service {
        Service::Healthchecks(check) => healthchecks(check, &head.method, &head.uri, &body),
        Service::Sentry(monitor) => sentry(monitor, &head.method, &head.uri),
        Service::Webhooks(secret) => webhook(secret, &head.method, &head.headers, &body),
    };
    let (signal, id) = match judged {
        Ok(judged) => judged,
        Err(why) => {
            shared.refused.lock().unwrap().push(why.clone());
            return (StatusCode::BAD_REQUEST, why);
        }
    };
    let status = StatusCode::from_u16(answer).unwrap_or(StatusCode::OK);
    if status.is_success() {
        let body = String::from_utf8_lossy(&body).into_owned();
        shared.heard.lock().unwrap().push(Heard { signal, id, body });
    }
    (status, "OK".into())
}

type Judged = Result<(String, String), String>;

fn fields(uri: &Uri) -> BTreeMap<String, String> {
    let pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Eight, four, four, four and twelve hexadecimal digits in lower case.
fn is_uuid(text: &str) -> bool {
    let groups: Vec<&str> = text.split('-').collect();
    let is_hex = |group: &&str| group.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12]) && groups.iter().all(is_hex)
}

fn healthchecks(check: &str, method: &Method, uri: &Uri, body: &[u8]) -> Judged {
    if ![Method::GET, Method::HEAD, Method::POST].contains(method) {
        return Err(format!("{method} is not taken"));
    }
    if body.len() > MAX_BODY {
        return Err(format!("{} bytes", body.len()));
    }
    let rid = fields(uri).remove("rid").filter(|rid| is_uuid(rid)).ok_or("rid is missing, or is no UUID")?;
    let signal = match uri.path().strip_prefix(check).ok_or_else(|| format!("there is no check at {}", uri.path()))? {
        "" => "success".to_owned(),
        "/start" => "start".to_owned(),
        "/log" => "log".to_owned(),
        rest => {
            let code = rest.strip_prefix('/').unwrap_or_default();
            let is_code = code.parse::<u8>().is_ok_and(|number| number.to_string() == code);
            if is_code { code.to_owned() } else { return Err(format!("there is no endpoint {rest}")) }
        }
    };
    Ok((signal, rid))
}

fn sentry(monitor: &str, method: &Method, uri: &Uri) -> Judged {
    if ![Method::GET, Method::POST].contains(method) || uri.path() != monitor {
        return Err(format!("there is no monitor for {method} {}", uri.path()));
    }
    let mut fields = fields(uri);
    let status = fields.remove("status").unwrap_or_default();
    if !["in_progress", "ok", "error"].contains(&status.as_str()) {
        return Err(format!("status `{status}`"));
    }
    let id = fields.remove("check_in_id").filter(|id| is_uuid(id)).ok_or("check_in_id is missing, or is no UUID")?;
    Ok((status, id))
}

fn webhook(secret: &str, method: &Method, headers: &HeaderMap, body: &Bytes) -> Judged {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if method != Method::POST || !header("content-type").starts_with("application/json") {
        return Err(format!("{method} of {}", header("content-type")));
    }
    let (id, at) = (header("webhook-id"), header("webhook-timestamp"));
    let now = leasehold_system::clock::wall_ms() / 1000;
    if id.is_empty() || id.contains('.') || at.parse::<u64>().ok().is_none_or(|at| at.abs_diff(now) > MAX_AGE_SECS) {
        return Err(format!("id `{id}`, timestamp `{at}`"));
    }
    let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap_or_default()).map_err(|e| e.to_string())?;
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &key);
    let signed = [id.as_bytes(), b".", at.as_bytes(), b".", body].concat();
    let is_right = |signature: &str| {
        let bytes = signature.strip_prefix("v1,").and_then(|text| STANDARD.decode(text).ok());
        bytes.is_some_and(|bytes| ring::hmac::verify(&key, &signed, &bytes).is_ok())
    };
    if !header("webhook-signature").split(' ').any(is_right) {
        return Err("the signature is wrong".into());
    }
    let event: serde_json::Value = serde_json::from_slice(body).map_err(|e| e.to_string())?;
    match (event["type"].as_str(), event["text"].as_str()) {
        (Some(kind), Some(text)) if !text.is_empty() => Ok((kind.to_owned(), id.to_owned())),
        _ => Err("it has no type, or no text".into()),
    }
}
