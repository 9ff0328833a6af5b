//! A small listener for machines that ask a running process for its metrics and its health.
//!
//! Promise: bounded. A client has [`PATIENCE`] to send its request and to read the answer. [`CONNECTIONS`] clients are served at
//! once; one more is told that there are too many. An unknown path, or another method than GET and HEAD, has a plain answer.
//! Nothing is logged. Non-promise: there is no encryption and no password; use a private address.

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use leasehold_core::{Error, Kind, Result};
use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// How many clients are answered at once.
pub const CONNECTIONS: usize = 128;
/// How long one may take, from its connection to the end of its answer.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// How long one may take to send its request.
const ASKING: Duration = Duration::from_secs(5);
/// The longest head of a request.
const MAX_HEAD: usize = 16 * 1024;
/// How long to pause when no connection can be accepted.
const OUT_OF_DESCRIPTORS: Duration = Duration::from_millis(50);
const BUSY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n\
                      content-length: 36\r\n\r\ntoo many connections; try again soon";

/// An address to listen on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address(SocketAddr);

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let form = "use an IP address and a port, not a name, such as 127.0.0.1:9464 or [::1]:9464; 0.0.0.0:9464 is open to other machines, and with \
                    port 0 the system chooses one";
        text.parse().map(Address).map_err(|_| Error::invalid("address", text, form))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Address {
    /// Whether other machines may reach it.
    pub const fn is_open(self) -> bool {
        !self.0.ip().is_loopback()
    }

    /// Starts to listen on this address.
    pub async fn listen(self) -> Result<Listener> {
        let cannot = |e: std::io::Error| {
            let taken = "; another process listens there: give each process an address of its own";
            let why = if e.kind() == std::io::ErrorKind::AddrInUse { taken } else { "" };
            Error::new(Kind::Unavailable, format!("cannot listen on {self}{why}")).with_source(e)
        };
        let tcp = TcpListener::bind(self.0).await.map_err(cannot)?;
        let address = tcp.local_addr().map_err(cannot)?;
        Ok(Listener { tcp, address })
    }
}

/// The answer to one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Whether all is well: 200, or 503.
    pub is_well: bool,
    /// The media type of the text.
    pub kind: &'static str,
    /// The body of the answer.
    pub text: String,
}

impl Page {
    /// An answer in plain text.
    pub fn plain(is_well: bool, text: impl Into<String>) -> Self {
        Page { is_well, kind: "text/plain; charset=utf-8", text: text.into() }
    }
}

/// The pages of a listener.
#[async_trait]
pub trait Pages: fmt::Debug + Send + Sync + 'static {
    /// The paths of the pages.
    fn paths(&self) -> &'static [&'static str];

    /// The page at one of these paths.
    async fn page(&self, path: &'static str) -> Page;
}

/// A listener on an address.
#[derive(Debug)]
pub struct Listener {
    tcp: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// The address that is listened on, with the port that the system chose.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves while it is polled.
    pub async fn serve(self, pages: Arc<dyn Pages>) {
        let (permits, turned_away) = (Arc::new(Semaphore::new(CONNECTIONS)), Arc::new(Semaphore::new(CONNECTIONS)));
        loop {
            let Ok((stream, _)) = self.tcp.accept().await else {
                tokio::time::sleep(OUT_OF_DESCRIPTORS).await;
                continue;
            };
            if let Ok(permit) = permits.clone().try_acquire_owned() {
                let pages = pages.clone();
                tokio::spawn(async move {
                    let _ = tokio::time::timeout(PATIENCE, converse(stream, pages)).await;
                    drop(permit);
                });
            } else if let Ok(permit) = turned_away.clone().try_acquire_owned() {
                tokio::spawn(async move {
                    let _ = tokio::time::timeout(ASKING, turn_away(stream)).await;
                    drop(permit);
                });
            }
        }
    }
}

/// One connection, one request.
async fn converse(stream: TcpStream, pages: Arc<dyn Pages>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let pages = pages.clone();
        async move { Ok::<_, Infallible>(answer(&request, pages.as_ref()).await) }
    });
    let mut server = hyper::server::conn::http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(ASKING).max_buf_size(MAX_HEAD).keep_alive(false);
    let _ = server.serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(request: &Request<Incoming>, pages: &dyn Pages) -> Response<Full<Bytes>> {
    let known = pages.paths().iter().find(|path| **path == request.uri().path());
    let (status, page) = match known {
        None => {
            let text = format!("there is nothing here; ask for {}\n", pages.paths().join(", "));
            (StatusCode::NOT_FOUND, Page::plain(false, text))
        }
        Some(_) if !matches!(*request.method(), Method::GET | Method::HEAD) => {
            (StatusCode::METHOD_NOT_ALLOWED, Page::plain(false, "use GET\n"))
        }
        Some(path) => {
            let page = pages.page(path).await;
            (if page.is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, page)
        }
    };
    let mut response = Response::new(Full::new(Bytes::from(page.text)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(page.kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}

/// Answers that there are too many. The request is read first, because closing a connection with unread bytes loses the answer.
async fn turn_away(mut stream: TcpStream) {
    let mut head = [0; 4096];
    let _ = stream.read(&mut head).await;
    let _ = stream.write_all(BUSY).await;
    let _ = stream.shutdown().await;
}
