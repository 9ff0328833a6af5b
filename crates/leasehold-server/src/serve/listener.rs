//! The listener: connections, TLS, and shutting down.

use super::bodies::{self, Ended};
use super::gate;
use super::newcomers::{Newcomer, Newcomers};
use super::problem::{self, Problem};
use super::router::router;
use super::settings::Settings;
use super::site::Site;
use super::slow_clients::{Impatient, Pulse};
use super::tls::Certificate;
use axum::Router;
use axum::body::Body;
use axum::http::header::{CONNECTION, HOST, TRANSFER_ENCODING};
use axum::http::{HeaderValue, StatusCode, Version};
use axum::response::{IntoResponse, Response};
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use leasehold_core::{Error, Kind, Result};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

/// How many connections beyond the limit get the answer that there are too many.
const TURNED_AWAY: usize = 128;
/// How long those may take to send their request.
const TOLD: Duration = Duration::from_secs(1);
/// How long closing one connection may take before another gets the answer that there are too many.
const UNTIL_CLOSED: Duration = Duration::from_secs(1);
/// How long to pause when no connection can be accepted.
const OUT_OF_DESCRIPTORS: Duration = Duration::from_millis(50);
/// How many requests one connection of HTTP/2 may have under way.
const STREAMS: u32 = 256;
/// How much one connection of HTTP/2 may send before any of it is read: the least that the protocol allows. More would be memory
/// that no bound of bodies counts, once for each connection.
const WINDOW: u32 = 65_535;
/// How much of the answers is buffered for a connection of HTTP/2 that does not read.
const UNREAD: usize = 64 * 1024;
/// How many headers a request may have.
const HEADERS: usize = 64;
const H2: &[u8] = b"h2";

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    tcp: TcpListener,
    address: SocketAddr,
    router: Router,
    site: Site,
    certificate: Option<Arc<Certificate>>,
}

impl Server {
    /// Listens, if the settings are safe.
    pub async fn bind(settings: &Settings, site: Site) -> Result<Self> {
        settings.check()?;
        let certificate = settings.tls.as_ref().map(Certificate::read).transpose()?.map(Arc::new);
        let cannot = |e: std::io::Error| {
            let taken = "; another process listens there";
            let why = if e.kind() == std::io::ErrorKind::AddrInUse { taken } else { "" };
            Error::new(Kind::Unavailable, format!("cannot listen on {}{why}", settings.listen)).with_source(e)
        };
        let tcp = TcpListener::bind(settings.listen).await.map_err(cannot)?;
        let address = tcp.local_addr().map_err(cannot)?;
        let router = router(&site, settings.prefix.as_ref());
        Ok(Server { tcp, address, router, site, certificate })
    }

    /// The address that is listened on, with the port that the system chose.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is true. Then it answers waiters, and gives requests under way some time to end.
    pub async fn serve(self, mut stop: watch::Receiver<bool>) {
        let Server { tcp, router, site, certificate, .. } = self;
        let limits = site.limits().clone();
        let (permits, turned_away) =
            (Arc::new(Semaphore::new(limits.connections)), Arc::new(Semaphore::new(TURNED_AWAY)));
        let (mut connections, newcomers) = (JoinSet::new(), Newcomers::default());
        let keys = site.keys().clone();
        let background = async {
            let certificate = certificate.clone();
            let renewing = async {
                if let Some(certificate) = &certificate {
                    certificate.follow().await
                }
            };
            tokio::join!(keys.follow(), site.close_idle(), renewing);
            std::future::pending::<()>().await;
        };
        tokio::pin!(background);
        loop {
            site.count_connections(connections.len());
            let stream = tokio::select! {
                accepted = tcp.accept() => match accepted {
                    Ok((stream, _)) => stream,
                    Err(_) => {
                        newcomers.turn_one_out();
                        tokio::time::sleep(OUT_OF_DESCRIPTORS).await;
                        continue;
                    }
                },
                _ = connections.join_next(), if !connections.is_empty() => continue,
                () = &mut background => continue,
                () = is_set(&mut stop) => break,
            };
            let place = match permits.clone().try_acquire_owned() {
                Ok(permit) => Place::Free(permit),
                Err(_) => {
                    let Ok(extra) = turned_away.clone().try_acquire_owned() else { continue };
                    if newcomers.turn_one_out() { Place::Soon(permits.clone(), extra) } else { Place::None(extra) }
                }
            };
            let is_crowded = !matches!(place, Place::Free(_));
            let tls = certificate.as_ref().map(|certificate| TlsAcceptor::from(certificate.config()));
            let (site, router, newcomers) = (site.clone(), router.clone(), newcomers.clone());
            connections.spawn(async move {
                let (_permit, is_full) = place.take().await;
                let (newcomer, told) = newcomers.join();
                if is_full {
                    newcomer.takes_no_place();
                }
                let connection = Connection { site, router, newcomer, is_full };
                tokio::select! {
                    () = connection.converse(stream, tls) => {}
                    Ok(()) = told => {}
                }
            });
            if is_crowded {
                // However many come at once: whoever was turned out leaves, and whoever takes its place can be turned out in turn.
                tokio::task::yield_now().await;
            }
        }
        drop(tcp);
        site.end();
        let ended = async {
            while connections.join_next().await.is_some() {}
            site.ongoing().ended().await;
        };
        if tokio::time::timeout(limits.grace, ended).await.is_err() {
            tracing::warn!("requests that were still under way after {} s were cut off", limits.grace.as_secs());
        }
    }
}

/// How a connection finds room.
enum Place {
    Free(OwnedSemaphorePermit),
    /// Another connection is closed for it.
    Soon(Arc<Semaphore>, OwnedSemaphorePermit),
    /// There is only room to say that there are too many.
    None(OwnedSemaphorePermit),
}

impl Place {
    /// The permit, and whether the connection only gets the answer that there are too many.
    async fn take(self) -> (OwnedSemaphorePermit, bool) {
        match self {
            Place::Free(permit) => (permit, false),
            Place::None(extra) => (extra, true),
            Place::Soon(permits, extra) => match tokio::time::timeout(UNTIL_CLOSED, permits.acquire_owned()).await {
                Ok(Ok(permit)) => (permit, false),
                _ => (extra, true),
            },
        }
    }
}

/// Waits until it is true, or nobody can set it any more.
async fn is_set(flag: &mut watch::Receiver<bool>) {
    let _ = flag.wait_for(|is_set| *is_set).await;
}

/// What hyper does by itself for HTTP/1.
fn has_too_many_headers(request: &Request<Incoming>) -> Option<Problem> {
    let detail = format!("a request may have {HEADERS} headers");
    (request.headers().len() > HEADERS)
        .then(|| Problem::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "too_large", detail))
}

/// Whether a body comes in pieces, and what is wrong with how the request is framed. A `Content-Length` beside pieces cannot be
/// seen here: hyper drops it, and the pieces count.
fn framing(request: &Request<Incoming>) -> (bool, Option<Problem>) {
    let headers = request.headers();
    let in_pieces = headers.contains_key(TRANSFER_ENCODING);
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let is_chunked = |coding: &HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"chunked");
    let is_plain = codings.next().is_none_or(is_chunked) && codings.next().is_none();
    let wrong = if !is_plain {
        Some("the only `Transfer-Encoding` is `chunked`")
    } else if request.version() == Version::HTTP_11 && headers.get_all(HOST).iter().count() != 1 {
        Some("a request has one `Host`")
    } else {
        None
    };
    (in_pieces, wrong.map(Problem::invalid))
}

/// The same request, and whether its body was read.
fn follow(request: Request<Incoming>) -> (Request<Body>, Ended) {
    let (parts, body) = request.into_parts();
    let (body, ended) = bodies::followed(Body::new(body));
    (Request::from_parts(parts, body), ended)
}

/// One connection.
pub(super) struct Connection {
    pub(super) site: Site,
    pub(super) router: Router,
    pub(super) newcomer: Newcomer,
    /// Whether there are too many: then it gets that answer and nothing else.
    pub(super) is_full: bool,
}

impl Connection {
    async fn converse(self, stream: TcpStream, tls: Option<TlsAcceptor>) {
        let _ = stream.set_nodelay(true);
        let mut limits = self.site.limits().clone();
        if self.is_full {
            // Others are to get that answer too.
            limits.client = limits.client.min(TOLD);
        }
        let pulse = Pulse::default();
        match tls {
            None => {
                let stream = Impatient::new(stream, pulse.clone(), Some(limits.client), limits.reader);
                self.http1(stream, pulse).await;
            }
            Some(tls) => {
                let Ok(Ok(stream)) = tokio::time::timeout(limits.client, tls.accept(stream)).await else { return };
                let is_http2 = stream.get_ref().1.alpn_protocol() == Some(H2);
                let head_limit = (!is_http2).then_some(limits.client);
                let stream = Impatient::new(stream, pulse.clone(), head_limit, limits.reader);
                if is_http2 { self.http2(stream).await } else { self.http1(stream, pulse).await }
            }
        }
    }

    async fn http1(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, pulse: Pulse) {
        let limits = self.site.limits();
        let mut server = hyper::server::conn::http1::Builder::new();
        server
            .timer(TokioTimer::new())
            .header_read_timeout(limits.idle)
            .max_buf_size(limits.head)
            .max_headers(HEADERS)
            .keep_alive(!self.is_full);
        let mut ending = self.site.ending();
        let service = service_fn(|request: Request<Incoming>| {
            let beat = pulse.beat();
            let (in_pieces, wrong) = framing(&request);
            let (request, ended) = follow(request);
            let answering = async {
                match wrong {
                    Some(problem) => Ok(problem.into_response()),
                    None => self.answer(request).await,
                }
            };
            async move {
                let mut response = answering.await?;
                if in_pieces || !ended.get() {
                    // The rest of the body is in the way of the next request, and hyper closes such a connection. Where pieces
                    // end, somebody in between may have seen another end, and the next request would be theirs to choose.
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                drop(beat);
                Ok::<_, Infallible>(response)
            }
        });
        let connection = server.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        tokio::select! {
            _ = connection.as_mut() => return,
            _ = ending.wait_for(|ending| *ending) => connection.as_mut().graceful_shutdown(),
        }
        let _ = connection.await;
    }

    pub(super) async fn http2(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let limits = self.site.limits();
        let mut server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        server
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_send_buf_size(UNREAD)
            .max_header_list_size(u32::try_from(limits.head).unwrap_or(u32::MAX))
            .keep_alive_interval(limits.idle / 3)
            .keep_alive_timeout(limits.client);
        let mut ending = self.site.ending();
        let (idle, client, reader, pulse) = (limits.idle, limits.client, limits.reader, Pulse::default());
        let (this, begun) = (Arc::new(self), pulse.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let (this, beat) = (this.clone(), begun.beat());
            async move {
                let response = match has_too_many_headers(&request) {
                    Some(problem) => problem.into_response(),
                    None => this.answer(request.map(Body::new)).await?,
                };
                Ok::<_, Infallible>(response.map(|body| bodies::during(body, beat)))
            }
        });
        let connection = server.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let is_idle = tokio::select! {
            _ = connection.as_mut() => return,
            _ = ending.wait_for(|ending| *ending) => false,
            () = pulse.idle_for(idle) => true,
            () = pulse.unread_for(reader) => return,
        };
        connection.as_mut().graceful_shutdown();
        // A request that was sent before the client learned of it is still answered.
        let given_up = async {
            tokio::time::sleep(client).await;
            pulse.idle_for(client).await;
        };
        tokio::select! {
            _ = connection => {}
            () = given_up, if is_idle => {}
            () = pulse.unread_for(reader) => {}
        }
    }

    async fn answer(&self, mut request: Request<Body>) -> Result<Response, Infallible> {
        request.extensions_mut().insert(self.newcomer.clone());
        if self.is_full {
            let problem = Problem::overloaded("the server has too many connections");
            return Ok(problem.into_response());
        }
        if *self.site.ending().borrow() {
            return Ok(gate::ending(self.site.limits().spread).into_response());
        }
        let method = request.method().clone();
        Ok(problem::naming_methods(&method, self.router.clone().oneshot(request).await?))
    }
}
