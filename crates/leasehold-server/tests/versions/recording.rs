//! What a client and a server said to each other, as a text file: for each exchange a line with the address, one with what was
//! asked and one with what was answered.

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use leasehold_core::store::Store;
use serde_json::Value;
use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Once};
use tokio::net::TcpListener;

/// A client of no particular make.
pub fn http() -> reqwest::Client {
    static TLS: Once = Once::new();
    TLS.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
    reqwest::Client::new()
}

#[derive(Debug, Clone)]
pub struct Exchange {
    pub method: String,
    pub path: String,
    /// Null if nothing was sent.
    pub asked: Value,
    pub status: u16,
    pub answered: Value,
}

#[derive(Debug, Clone, Default)]
pub struct Recording(pub Vec<Exchange>);

fn file(protocol: u32) -> PathBuf {
    PathBuf::from(format!("{}/tests/versions/v{protocol}.txt", env!("CARGO_MANIFEST_DIR")))
}

impl Recording {
    pub fn read(protocol: u32) -> Self {
        let text =
            std::fs::read_to_string(file(protocol)).expect("a version has a recording: LEASEHOLD_RECORD=1 makes it");
        let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        let exchanges = lines.chunks(3).map(|lines| {
            let [address, asked, answered] = lines else { panic!("{lines:?} is no exchange") };
            let (method, path) = address.split_once(' ').unwrap();
            let (status, answered) = answered.strip_prefix("< ").unwrap().split_once(' ').unwrap();
            Exchange {
                method: method.into(),
                path: path.into(),
                asked: serde_json::from_str(asked.strip_prefix("> ").unwrap()).unwrap(),
                status: status.parse().unwrap(),
                answered: serde_json::from_str(answered).unwrap(),
            }
        });
        Recording(exchanges.collect())
    }

    /// Keeps it. What was recorded of a version before stays as it is.
    pub fn write(&self, protocol: u32) {
        let mut text = String::new();
        for Exchange { method, path, asked, status, answered } in &self.0 {
            write!(text, "{method} {path}\n> {asked}\n< {status} {answered}\n\n").unwrap();
        }
        let path = file(protocol);
        assert!(!path.exists(), "{} is kept: remove it first if that version was never released", path.display());
        std::fs::write(path, text).unwrap();
    }
}

/// Stands where a client looks for a server.
pub struct Stand {
    address: SocketAddr,
    said: Arc<Mutex<Recording>>,
}

#[derive(Clone)]
enum Answers {
    /// Of the server at this address.
    Of(SocketAddr),
    /// Of a server that was recorded, in that order.
    Recorded(Arc<Mutex<VecDeque<Exchange>>>),
}

impl Stand {
    pub async fn passing_on(to: SocketAddr) -> Self {
        Stand::start(Answers::Of(to)).await
    }

    pub async fn answering(recording: Recording) -> Self {
        Stand::start(Answers::Recorded(Arc::new(Mutex::new(recording.0.into())))).await
    }

    async fn start(answers: Answers) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, said) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Recording::default())));
        let noted = said.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (answers, noted) = (answers.clone(), noted.clone());
                let service = hyper::service::service_fn(move |request| {
                    let (answers, noted) = (answers.clone(), noted.clone());
                    async move { Ok::<_, Infallible>(answer(request, answers, noted).await) }
                });
                let connection =
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                tokio::spawn(connection);
            }
        });
        Stand { address, said }
    }

    pub async fn client(&self, key: &str) -> leasehold_core::Result<Arc<dyn Store>> {
        let url = format!("leasehold+http://:{key}@{}/team", self.address);
        leasehold_stores::open(&url.parse().unwrap()).await
    }

    /// What was said so far.
    pub fn said(&self) -> Recording {
        self.said.lock().unwrap().clone()
    }
}

async fn answer(request: Request<Incoming>, answers: Answers, noted: Arc<Mutex<Recording>>) -> Response<Full<Bytes>> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let (method, path) = (parts.method.to_string(), parts.uri.path().to_owned());
    let asked = if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).unwrap() };
    let (status, answered) = match answers {
        Answers::Of(server) => {
            let passed_on = http().request(parts.method, format!("http://{server}{path}"));
            let answer = passed_on.headers(parts.headers).body(body).send().await.unwrap();
            (answer.status().as_u16(), answer.json().await.unwrap())
        }
        Answers::Recorded(left) => {
            let next = left.lock().unwrap().pop_front();
            match next.filter(|next| (&next.method, &next.path) == (&method, &path)) {
                Some(next) => (next.status, next.answered),
                None => (404, format!("nobody asked for {method} {path} at this point").into()),
            }
        }
    };
    let text = answered.to_string();
    noted.lock().unwrap().0.push(Exchange { method, path, asked, status, answered });
    let response = Response::builder().status(status).header("content-type", "application/json");
    response.body(Full::new(text.into())).unwrap()
}

/// Whether a client that understood the one answer understands the other: it has every field, of the same type, and as many
/// entries; its records are of the same format. Learns what versions of records are called now.
pub fn understood(then: &Value, now: &Value, revisions: &mut HashMap<String, Value>) -> Result<(), String> {
    match (then, now) {
        (Value::Object(then), Value::Object(fields)) => then.iter().try_for_each(|(name, then)| {
            let now = fields.get(name).ok_or_else(|| format!("`{name}` is missing"))?;
            match (name.as_str(), then.as_str(), now.as_str()) {
                ("revision", Some(then), Some(_)) => drop(revisions.insert(then.to_owned(), now.clone())),
                ("text", Some(then), Some(now)) if then.starts_with("leasehold ") => {
                    return same_record(then, now, revisions);
                }
                _ => {}
            }
            understood(then, now, revisions).map_err(|e| format!("{name}: {e}"))
        }),
        (Value::Array(then), Value::Array(now)) if then.len() == now.len() => {
            then.iter().zip(now).try_for_each(|(then, now)| understood(then, now, revisions))
        }
        _ if std::mem::discriminant(then) == std::mem::discriminant(now) && !then.is_array() => Ok(()),
        _ => Err(format!("{now} is not what {then} was")),
    }
}

/// A record is a line with its kind and format, and JSON.
fn same_record(then: &str, now: &str, revisions: &mut HashMap<String, Value>) -> Result<(), String> {
    let read = |text: &str| -> (Vec<String>, Value) {
        let (head, body) = text.split_once('\n').unwrap();
        (head.split(' ').take(3).map(ToOwned::to_owned).collect(), serde_json::from_str(body).unwrap())
    };
    let ((head_then, then), (head_now, now)) = (read(then), read(now));
    if head_then != head_now {
        return Err(format!("{head_now:?} is not of the format {head_then:?}"));
    }
    understood(&then, &now, revisions)
}
