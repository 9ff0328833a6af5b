//! The HTTP guard: a reverse proxy that lets a request pass only under the newest epoch.
//!
//! Promise: once a newer epoch was admitted or sealed, no complete request of an older one reaches the upstream
//! through the proxy, and none that did is still unanswered there. A client that is stopped in the middle of a request
//! delays the next holder by [`Limits::drain`] at most. Non-promise: requests that bypass the proxy, and what the
//! upstream does after its answer, or later than [`Limits::upstream_timeout`] after a request that it never answered.
//! Nor this: the *proxy* is stopped in the microseconds between its last check and the send, its lease expires,
//! another proxy takes over, and it is resumed. Then it sends what it was about to send. By `Leasehold-Epoch` an
//! upstream can refuse that too.

mod body;
mod client;
mod config;
mod fence;
mod flight;
mod forward;
mod horizon;
mod problem;
mod replay;
mod request;
mod tenure;
mod verdict;

pub use client::HttpGuard;
pub use config::{Limits, Replay, Settings, Upstream};

use crate::outbound::connector;
use body::Outgoing;
use fence::{Fence, State};
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use leasehold_core::clock::{Clock, Moment, SystemClock};
use leasehold_core::observe::Observed;
use leasehold_core::{Coordinator, Resolver, Result};
use leasehold_guards::stored::high_water::LocalCopy;
use leasehold_guards::stored::{FenceDocument, named};
use replay::Cache;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tenure::ProxyLease;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

/// A named step of an admitted request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProxyStep {
    /// Older requests are drained; the fence is about to be moved.
    Swap,
    /// The fence was moved in the store, and is about to be in the files of this machine.
    File,
    /// The fence was moved.
    Swapped,
    /// The request is about to be sent on.
    Upstream,
    /// A piece of its body is about to be handed on.
    Body,
    /// The upstream has answered, or failed to.
    Respond,
}

impl ProxyStep {
    /// Every step.
    pub const ALL: [ProxyStep; 6] = [
        ProxyStep::Swap,
        ProxyStep::File,
        ProxyStep::Swapped,
        ProxyStep::Upstream,
        ProxyStep::Body,
        ProxyStep::Respond,
    ];
}

/// What every connection shares.
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) fence: Arc<Fence>,
    pub(crate) client: Client<HttpsConnector<HttpConnector>, Outgoing>,
    pub(crate) replays: Option<Cache>,
    pub(crate) permits: Arc<Semaphore>,
}

/// A reverse proxy in front of one upstream.
pub struct Proxy {
    shared: Arc<Shared>,
    own_lease: ProxyLease,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("settings", &self.shared.settings).finish_non_exhaustive()
    }
}

impl Proxy {
    /// A proxy that keeps its fence in the coordinator's store, and its high water in [`Settings::state`] too. `tokens` finds
    /// the records that tokens are of; `say` is told what people should know.
    pub fn new(
        settings: Settings,
        coordinator: Coordinator,
        tokens: Arc<dyn Resolver>,
        steps: Observed<ProxyStep>,
        say: Arc<dyn Fn(&str) + Send + Sync>,
    ) -> Result<Self> {
        let name = named("http", &settings.resource)?;
        let lease = named(leasehold_core::PROXY_FOLDER, &settings.resource)?;
        let limits = &settings.limits;
        let standby = format!("resource=`http:{}` has no proxy that answers for it yet; try again", settings.resource);
        let fence = Arc::new(Fence {
            resource: format!("http:{}", settings.resource),
            document: FenceDocument::new(&coordinator, &name),
            files: LocalCopy::open(settings.state.as_deref(), &format!("http:{}", settings.resource))?,
            coordinator,
            tokens,
            policy: settings.policy,
            lease: settings.lease.clone(),
            drain: limits.drain,
            upstream_timeout: limits.upstream_timeout,
            steps,
            state: State::standing_by(standby).into(),
            turn: tokio::sync::Mutex::new(()),
            writing: tokio::sync::Mutex::new(()),
            settled: tokio::sync::Notify::new(),
            horizon_wanted: tokio::sync::Notify::new(),
            horizon_moved: tokio::sync::Notify::new(),
        });
        if let Some(folder) = fence.files.path() {
            say(&format!("keeping the high water of resource=`{}` in `{}` too", fence.resource, folder.display()));
        }
        let own_lease = ProxyLease {
            fence: fence.clone(),
            lease,
            ttl: settings.ttl,
            label: settings.label.clone(),
            upstream_timeout: limits.upstream_timeout,
            say,
        };
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(Duration::from_secs(30))
            .pool_timer(TokioTimer::new())
            .set_host(false)
            .build(connector(settings.upstream.is_encrypted(), limits.client_timeout)?);
        let permits = Arc::new(Semaphore::new(limits.max_requests));
        let replays = settings.replay.clone().map(Cache::new);
        Ok(Proxy { shared: Arc::new(Shared { settings, fence, client, replays, permits }), own_lease })
    }

    /// Sees that the store still knows what this machine's files say about the resource: the error of a store that was
    /// restored from an old copy, or lost. A store that is away is none: it is waited for later.
    pub async fn check(&self) -> Result<()> {
        let filed = self.shared.fence.files.high().await?;
        self.own_lease.check(filed.as_ref()).await.unwrap_or(Ok(()))
    }

    /// Serves connections until `stop` says true; then ends what is under way, and gives the proxy's lease back.
    pub async fn serve(self, listener: TcpListener, mut stop: watch::Receiver<bool>) -> Result<()> {
        let Proxy { shared, own_lease } = self;
        let limits = shared.settings.limits.clone();
        let connections = Arc::new(Semaphore::new(limits.max_connections));
        let own_lease = tokio::spawn(own_lease.run(stop.clone()));
        let server = Arc::new(server(&limits));
        loop {
            let accepted = tokio::select! {
                biased;
                _ = stop.changed() => break,
                accepted = listener.accept() => accepted,
            };
            let Ok((stream, _)) = accepted else {
                // Out of descriptors, most likely: others must end first.
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            let Ok(permit) = connections.clone().try_acquire_owned() else { continue };
            let _ = stream.set_nodelay(true);
            let (shared, server, stop) = (shared.clone(), server.clone(), stop.clone());
            tokio::spawn(async move {
                converse(shared, &server, stream, stop).await;
                drop(permit);
            });
        }
        drop(listener);
        let _ = own_lease.await;
        // Answers on their way to slow clients.
        let all = u32::try_from(limits.max_connections).unwrap_or(u32::MAX);
        let _ = tokio::time::timeout(limits.drain, connections.acquire_many(all)).await;
        Ok(())
    }
}

fn server(limits: &Limits) -> auto::Builder<TokioExecutor> {
    let mut server = auto::Builder::new(TokioExecutor::new());
    server
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.client_timeout)
        .max_buf_size(limits.max_head.max(8192));
    server
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(256)
        .max_header_list_size(u32::try_from(limits.max_head).unwrap_or(u32::MAX))
        .keep_alive_interval(limits.client_timeout);
    server
}

/// How busy a connection is.
struct Pulse {
    under_way: AtomicUsize,
    last: AtomicU64,
}

/// One connection, to its end: closed when nothing is under way on it for too long, whatever it sends meanwhile.
async fn converse(
    shared: Arc<Shared>,
    server: &auto::Builder<TokioExecutor>,
    stream: TcpStream,
    mut stop: watch::Receiver<bool>,
) {
    let pulse = Arc::new(Pulse { under_way: AtomicUsize::new(0), last: AtomicU64::new(SystemClock.now().as_nanos()) });
    let beat = pulse.clone();
    let idle_limit = shared.settings.limits.client_timeout;
    let service = service_fn(move |request: Request<Incoming>| {
        let (shared, pulse) = (shared.clone(), beat.clone());
        async move {
            pulse.under_way.fetch_add(1, Ordering::AcqRel);
            let response = shared.answer(request).await;
            pulse.last.store(SystemClock.now().as_nanos(), Ordering::Release);
            pulse.under_way.fetch_sub(1, Ordering::AcqRel);
            Ok::<_, Infallible>(response)
        }
    });
    let connection = server.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let mut stopping = false;
    loop {
        tokio::select! {
            _ = connection.as_mut() => return,
            _ = stop.changed(), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
            () = tokio::time::sleep(idle_limit) => {
                let last = Moment::from_nanos(pulse.last.load(Ordering::Acquire));
                let idle = SystemClock.now().saturating_since(last) >= idle_limit;
                if idle && pulse.under_way.load(Ordering::Acquire) == 0 {
                    // A response may still be on its way to a slow reader; a second limit ends that too.
                    connection.as_mut().graceful_shutdown();
                    let _ = tokio::time::timeout(idle_limit, connection.as_mut()).await;
                    return;
                }
            }
        }
    }
}
