//! What every networked store must do beside the conformance suite, tried on its real server through the proxy.
//!
//! Promise: each function is one demand, and panics with what was seen instead. Non-promise: what only one store has
//! (credentials, failover) is for that store's own tests.

mod apart;
mod faults;
mod outages;
mod rewound;
mod trips;

pub use apart::namespaces_are_apart;
pub use faults::cut_connections_do_no_harm;
pub use outages::{a_dead_server_is_waited_out, a_frozen_server_is_given_up_on, a_paused_server_loses_the_lease};
pub use outages::{a_killed_server_never_reissues_an_epoch, a_server_that_is_away_is_an_error};
pub use rewound::a_forgotten_swap_does_not_come_again;
pub use trips::{a_release_wakes_the_waiter, round_trips_are_few};

use crate::Server;
use leasehold_core::store::Store;
use leasehold_core::{Acquired, Ask, Coordinator, Grant, HolderId, Kind, LeaseName, Nonce, Outcome, Result, Ttl};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// How long the suite waits for a client to recover by itself.
const RECOVERY: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(50);

type Opening = Pin<Box<dyn Future<Output = Result<Arc<dyn Store>>> + Send>>;

/// Opens handles to one store, through any port that leads to its server.
#[derive(Clone)]
pub struct Opener(Arc<dyn Fn(u16) -> Opening + Send + Sync>);

impl std::fmt::Debug for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Opener")
    }
}

impl Opener {
    /// An opener from a function of the port.
    pub fn new<F, Opened>(open: F) -> Self
    where
        F: Fn(u16) -> Opened + Send + Sync + 'static,
        Opened: Future<Output = Result<Arc<dyn Store>>> + Send + 'static,
    {
        Opener(Arc::new(move |port| Box::pin(open(port))))
    }

    /// A new handle through this port.
    pub async fn store(&self, port: u16) -> Result<Arc<dyn Store>> {
        (self.0)(port).await
    }

    /// A coordinator on a new handle through this port.
    ///
    /// # Panics
    /// If the store cannot be opened.
    pub async fn leases(&self, port: u16) -> Coordinator {
        Coordinator::new(self.store(port).await.unwrap())
    }
}

/// Every demand on a store whose server runs, may be killed, and keeps what it answered.
///
/// # Panics
/// If one is not met.
pub async fn withstands_faults(server: &mut Server, opener: &Opener) {
    round_trips_are_few(server.port(), opener).await;
    cut_connections_do_no_harm(server.port(), opener).await;
    a_server_that_is_away_is_an_error(server, opener).await;
    a_dead_server_is_waited_out(server, opener).await;
    a_killed_server_never_reissues_an_epoch(server, opener).await;
    a_paused_server_loses_the_lease(server, opener).await;
    a_frozen_server_is_given_up_on(server.port(), opener).await;
}

fn fresh_lease(topic: &str) -> LeaseName {
    LeaseName::new(format!("suite/{topic}/{}", Nonce::random())).unwrap()
}

fn ask(ttl: Ttl) -> Ask {
    Ask::new(HolderId::new(None), ttl)
}

fn ttl(seconds: u64) -> Ttl {
    Ttl::new(Duration::from_secs(seconds)).unwrap()
}

/// The errors that a cut or an outage may give.
fn is_outage(kind: Kind) -> bool {
    matches!(kind, Kind::Unavailable | Kind::Indeterminate | Kind::Contended)
}

fn granted(acquired: Acquired) -> Option<Grant> {
    match acquired {
        Acquired::Granted(grant) => Some(*grant),
        Acquired::Refused { .. } => None,
    }
}

/// One whole tenure, which makes the connections and whatever the first write makes.
async fn warm_up(leases: &Coordinator) {
    let lease = fresh_lease("warm-up");
    let grant = granted(leases.acquire(&lease, &ask(Ttl::MAX)).await.unwrap()).expect("a fresh lease is free");
    leases.release(&grant, Outcome::Succeeded).await.unwrap();
}

/// Acquires as soon as the client has recovered and the lease is free.
async fn acquire_in_the_end(leases: &Coordinator, lease: &LeaseName) -> Grant {
    let mut last = String::new();
    for _ in 0..RECOVERY.as_millis() / PAUSE.as_millis() {
        match leases.acquire(lease, &ask(ttl(30))).await {
            Ok(Acquired::Granted(grant)) => return *grant,
            Ok(Acquired::Refused { refusal, .. }) => last = format!("{refusal:?}"),
            Err(error) => {
                assert!(is_outage(error.kind()), "an outage must not look like {}: {error}", error.kind().as_str());
                last = error.to_string();
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
    panic!("`{lease}` could not be acquired again within {RECOVERY:?}: {last}");
}
