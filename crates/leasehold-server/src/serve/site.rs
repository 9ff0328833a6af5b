//! What handlers share: the store of each namespace, the keys, and what the server is doing.

use super::admission::{Admission, Claimed};
use super::body_budget::BodyBudget;
use super::detached::Ongoing;
use super::health::Readiness;
use super::namespaces::{IDLE, Namespaces, OpenLimits, Opened, Who};
use super::settings::Limits;
use super::traffic::{Answered, Traffic};
use crate::access::seal::{Seal, Sealing};
use crate::access::{Caller, KeyRing};
use crate::api::tally::Tally;
use crate::discreet::{Discreet, unopened};
use crate::oidc::Exchange;
use crate::outage::Outage;
use crate::remote::Tended;
use async_trait::async_trait;
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::store::Store;
use leasehold_core::{Coordinator, Distribution, Result, Retention};
use leasehold_stores::Namespace;
use leasehold_work::presence::{self, Announced, Presence, Processes, Role};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::watch;

/// How the server opens the store of a namespace.
#[async_trait]
pub trait Opener: fmt::Debug + Send + Sync {
    /// Opens the store of this namespace. A failure is tried again by the next request.
    async fn open(&self, namespace: &Namespace) -> Result<Arc<dyn Store>>;

    /// How many it may have open at once.
    fn limits(&self) -> OpenLimits {
        OpenLimits::FILES
    }
}

/// What handlers share. Cloning it is cheap.
#[derive(Debug, Clone)]
pub struct Site(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    opener: Arc<dyn Opener>,
    retention: Retention,
    keys: KeyRing,
    open: Namespaces,
    /// Failures to open the store of any namespace, for the log.
    outage: Outage,
    limits: Limits,
    admission: Arc<Admission>,
    bodies: BodyBudget,
    traffic: Traffic,
    connections: AtomicUsize,
    ending: watch::Sender<bool>,
    tended: Tended,
    tally: Tally,
    sealing: Sealing,
    exchange: Exchange,
    readiness: Readiness,
    ongoing: Ongoing,
}

impl Site {
    /// A site whose stores are opened by this opener. It exchanges no tokens.
    pub fn new(opener: Arc<dyn Opener>, retention: Retention, keys: KeyRing, limits: Limits) -> Self {
        Site::with_exchange(opener, retention, keys, limits, Exchange::default())
    }

    /// The same, with an exchange for tokens.
    pub fn with_exchange(
        opener: Arc<dyn Opener>,
        retention: Retention,
        keys: KeyRing,
        limits: Limits,
        exchange: Exchange,
    ) -> Self {
        let admission = Arc::new(Admission::new(&limits));
        let bodies = BodyBudget::new(&limits);
        let open = Namespaces::new(opener.limits());
        let (traffic, ending) = (Traffic::default(), watch::Sender::new(false));
        let connections = AtomicUsize::new(0);
        let tended = Tended::default();
        Site(Arc::new(Shared {
            opener,
            retention,
            keys,
            open,
            outage: Outage::default(),
            limits,
            admission,
            bodies,
            traffic,
            connections,
            ending,
            tended,
            tally: Tally::default(),
            sealing: Sealing::default(),
            exchange,
            readiness: Readiness::default(),
            ongoing: Ongoing::default(),
        }))
    }

    /// The coordinator on the store of a namespace. The store is opened once and kept while it is used; a failure is tried again.
    pub async fn coordinator(&self, namespace: &Namespace) -> Result<Coordinator> {
        self.opened(namespace, Who::Other).await
    }

    /// The same for a holder that renews or ends what it was granted.
    pub(crate) async fn coordinator_of_holder(&self, namespace: &Namespace) -> Result<Coordinator> {
        self.opened(namespace, Who::Holder).await
    }

    /// The same for a caller that was refused and waits.
    pub(crate) async fn coordinator_of_waiter(&self, namespace: &Namespace) -> Result<Coordinator> {
        self.opened(namespace, Who::Waiter).await
    }

    async fn opened(&self, namespace: &Namespace, who: Who) -> Result<Coordinator> {
        let cell = self.0.open.cell(&namespace.clone().to_use()?, SystemClock.now(), who)?;
        let opening = || async {
            let store = self.0.opener.open(namespace).await.map_err(|error| unopened(error, &self.0.outage))?;
            self.0.outage.over();
            Ok(Opened::new(Arc::new(Discreet::new(store)), self.0.retention, self.0.opener.limits().calls))
        };
        cell.get_or_try_init(opening).await.map(|opened| opened.coordinator(who))
    }

    /// Whether the store of a namespace is open.
    pub(super) fn is_open(&self, namespace: &Namespace) -> bool {
        self.0.open.is_open(namespace)
    }

    /// Closes unused namespaces, and forgets leases that were not renewed, while it is polled.
    pub(super) async fn close_idle(&self) {
        loop {
            tokio::time::sleep(IDLE / 4).await;
            self.0.open.close_idle(SystemClock.now());
            self.0.tended.drop_expired(SystemClock.now());
        }
    }

    /// What is remembered about the records that clients use.
    pub(crate) fn tended(&self) -> &Tended {
        &self.0.tended
    }

    /// The counts of leases that are held over the API.
    pub(crate) fn tally(&self) -> &Tally {
        &self.0.tally
    }

    /// The seal of cursors, confirmations and session cookies.
    pub(crate) async fn seal(&self) -> Result<&Seal> {
        self.0.sealing.seal(self.0.keys.keys()).await
    }

    /// Puts this server on record, in the server's own namespace.
    pub fn announce(&self) -> Announced {
        Announced::start(self.0.keys.keys().store().clone(), Presence::own(Role::Server, None))
    }

    /// The servers that have reported within the last day.
    pub(crate) async fn servers(&self, limit: usize) -> Result<Processes> {
        presence::processes(self.0.keys.keys().store().as_ref(), limit).await
    }

    /// The keys that this server has seen recently.
    pub fn keys(&self) -> &KeyRing {
        &self.0.keys
    }

    /// The exchange of tokens for keys.
    pub fn exchange(&self) -> &Exchange {
        &self.0.exchange
    }

    /// The requests that the server is serving.
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// How long answers took, by route.
    pub fn durations(&self) -> Vec<(Answered, Distribution)> {
        self.0.traffic.durations()
    }

    /// How many requests wait, and streams are open.
    pub fn waiters(&self) -> usize {
        self.0.admission.waiters()
    }

    /// How many connections are open.
    pub fn connections(&self) -> usize {
        self.0.connections.load(Ordering::Relaxed)
    }

    pub(super) fn count_connections(&self, count: usize) {
        self.0.connections.store(count, Ordering::Relaxed);
    }

    /// Becomes true when the server begins to shut down.
    pub fn ending(&self) -> watch::Receiver<bool> {
        self.0.ending.subscribe()
    }

    pub(super) fn end(&self) {
        self.0.ending.send_replace(true);
    }

    /// The work that continues without a connection.
    pub(crate) fn ongoing(&self) -> &Ongoing {
        &self.0.ongoing
    }

    pub(super) fn readiness(&self) -> &Readiness {
        &self.0.readiness
    }

    /// Counts a request in which the caller falsely claimed to hold something. Refusals are counted before they are sent; this is
    /// for answers that say so without a refusal.
    pub(crate) fn claimed_nothing(&self, caller: &Caller, claimed: Claimed) {
        self.0.admission.count_unfounded(caller.account(), claimed);
    }

    pub(super) fn admission(&self) -> &Arc<Admission> {
        &self.0.admission
    }

    pub(super) fn bodies(&self) -> &BodyBudget {
        &self.0.bodies
    }

    pub(super) fn traffic(&self) -> &Traffic {
        &self.0.traffic
    }
}
