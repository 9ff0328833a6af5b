//! `serve`: the store over HTTP, for those who must not hold its password.

use super::key::keys;
use crate::args::Serve as Args;
use crate::config::{blame_flag, duration_of};
use crate::context::{Context, open_store};
use crate::exit::Exit;
use crate::first_key;
use crate::metrics::{Monitor, Probed, Served};
use crate::service::ServiceManager;
use crate::supervise::Signals;
use crate::{listen, output};
use async_trait::async_trait;
use leasehold_core::measured::{Measured, Requests};
use leasehold_core::{Error, Kind, Result, Store};
use leasehold_server::access::KeyRing;
use leasehold_server::oidc::Exchange;
use leasehold_server::serve::{Exposure, Limits, OpenLimits, Opener, PathPrefix, Server, Settings, Site, TlsFiles};
use leasehold_stores::{Namespace, StoreUrl};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The files that a server has open besides its connections: the store, its listeners, TLS.
const OTHER_FILES: u64 = 256;
/// Between two signs of life, where nobody wants any.
const FOR_EVER: Duration = Duration::from_secs(u32::MAX as u64);

pub async fn serve(context: &Context, args: &Args) -> Result<Exit> {
    let settings = context.settings()?;
    if settings.store.value.scheme() == "remote" {
        let (store, source) = (&settings.store.value, &settings.store.source);
        let message = format!("`{store}` (from {source}) is another server; `serve` needs the URL of the store itself");
        return Err(Error::new(Kind::Unsupported, message));
    }
    let mut plan = plan(args)?;
    fit_open_files(&mut plan.limits);
    // Before the store is opened: a refusal makes nothing.
    plan.check()?;
    let exchange = Exchange::new(settings.oidc.read()?)?;
    for what in exchange.missing_files().await {
        output::warn(&what);
    }
    let store = Stores { url: settings.store.value.clone(), requests: context.requests.clone() };
    let keys = keys(context).await?;
    let (ring, limits) = (KeyRing::new(keys.clone()), plan.limits.clone());
    let site = Site::with_exchange(Arc::new(store), settings.retention(), ring, limits, exchange);
    let server = Server::bind(&plan, site.clone()).await?;
    let mut signals = Signals::listen_to_ending()?;
    first_key::make(&keys, args.bootstrap_key_file.as_deref()).await?;
    let probed = Probed::Store(site.coordinator(settings.store.value.namespace()).await?);
    if let Some(address) = settings.metrics.value.filter(|address| address.is_open()) {
        output::warn(&format!(
            "other machines can reach the metrics on {address}, which needs no key and has no TLS: they show the names of \
             jobs and queues; use 127.0.0.1 unless somebody else collects them"
        ));
    }
    let monitor = Monitor::start_with(context, probed, Some(Box::new(Served(site.clone())))).await?;
    let scheme = if plan.tls.is_some() { "https" } else { "http" };
    let prefix = plan.prefix.as_ref().map(PathPrefix::as_str).unwrap_or_default();
    let url = format!("{scheme}://{}{prefix}", server.address());
    context
        .print(|| json!({ "listen": server.address().to_string(), "url": url }), || format!("listening on {url}\n"))?;
    output::say(&format!(
        "the page: open {} in a browser, and sign in with a key",
        page(scheme, server.address(), prefix)
    ));
    let mut manager = ServiceManager::from_environment();
    manager.ready(&format!("listening on {url}"));
    let announced = site.announce();
    let (stop, stopped) = watch::channel(false);
    let serving = server.serve(stopped);
    tokio::pin!(serving);
    let tick = manager.interval().unwrap_or(FOR_EVER);
    loop {
        tokio::select! {
            () = &mut serving => {
                announced.end().await;
                return Ok(Exit::Done);
            }
            _ = signals.next_ending() => break,
            () = tokio::time::sleep(tick) => manager.tick(|| true),
        }
    }
    output::say("ending: no new connections; waiters are answered, and what is under way is finished");
    manager.stopping("finishing requests");
    monitor.iter().for_each(|monitor| monitor.drain());
    let _ = stop.send(true);
    let exit = tokio::select! {
        () = &mut serving => Exit::Done,
        // Asked twice: at once.
        number = signals.next_ending() => Exit::by_signal(number),
    };
    announced.end().await;
    Ok(exit)
}

/// Where people find the page. An address that means all of this machine's cannot be opened in a browser.
fn page(scheme: &str, address: SocketAddr, prefix: &str) -> String {
    let place = match address.ip().is_unspecified() {
        true => format!("{}:{}", leasehold_system::host::name(), address.port()),
        false => address.to_string(),
    };
    let path = if prefix.is_empty() { "/" } else { prefix };
    format!("{scheme}://{place}{path}")
}

/// Has as many files open as the system lets this process, and fewer connections than that: connections beyond the limit can be told
/// so, and make room for those with a key.
fn fit_open_files(limits: &mut Limits) {
    let before = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: before.maximum, maximum: before.maximum };
    let files = if setrlimit(Resource::Nofile, raised).is_ok() { before.maximum } else { before.current };
    let most = files.map_or(usize::MAX, |files| files.saturating_sub(OTHER_FILES).max(1) as usize);
    if limits.connections > most {
        let asked = limits.connections;
        limits.connections = most;
        output::warn(&format!(
            "at most {most} connections may be open at once, and not {asked} (--max-connections): this process may have {} files \
             open; raise that limit (systemd: LimitNOFILE=)",
            files.unwrap_or_default()
        ));
    }
}

fn plan(args: &Args) -> Result<Settings> {
    let duration = |flag: &str, text: &str| -> Result<Duration> {
        let found = duration_of(flag, Some(text))?.unwrap_or_default();
        if found.is_zero() {
            return Err(blame_flag(Error::invalid("duration", text, "use more than nothing, such as 500ms"), flag));
        }
        Ok(found)
    };
    let pair = args.tls_cert.clone().zip(args.tls_key.clone());
    let prefix = args.path_prefix.as_deref().map(str::parse).transpose().map_err(|e| blame_flag(e, "--path-prefix"))?;
    Ok(Settings {
        listen: listen::address("--listen", &args.listen, 7117)?,
        tls: pair.map(|(certificate, key)| TlsFiles { certificate, key }),
        exposure: if args.insecure_listen { Exposure::Insecure } else { Exposure::Secure },
        prefix,
        limits: Limits {
            body: args.max_body as usize,
            head: args.max_head as usize,
            connections: args.max_connections as usize,
            requests: args.max_requests as usize,
            holder_requests: args.max_holder_requests as usize,
            rate: args.max_rate,
            waiters: args.max_waiters as usize,
            client: duration("--client-timeout", &args.client_timeout)?,
            reader: duration("--write-timeout", &args.write_timeout)?,
            idle: duration("--idle-timeout", &args.idle_timeout)?,
            grace: duration("--grace", &args.grace)?,
            ..Limits::default()
        },
    })
}

/// The store that the settings name, in each namespace.
#[derive(Debug)]
struct Stores {
    url: StoreUrl,
    requests: Requests,
}

#[async_trait]
impl Opener for Stores {
    async fn open(&self, namespace: &Namespace) -> Result<Arc<dyn Store>> {
        // It was there when the server started. A new one in its place would grant what others hold.
        if self.url.is_missing() {
            return Err(Error::new(Kind::Unavailable, format!("the store `{}` is not there any more", self.url)));
        }
        let coordinator = open_store(&self.url.in_namespace(namespace.clone())).await?;
        Ok(Arc::new(Measured::new(coordinator.store().clone(), self.requests.clone())))
    }

    fn limits(&self) -> OpenLimits {
        match self.url.address().map(|address| address.scheme.as_str()) {
            None => OpenLimits::FILES,
            Some("postgres" | "postgresql" | "mysql" | "mariadb") => OpenLimits::NETWORK,
            Some(_) => OpenLimits::CONCURRENT,
        }
    }
}
