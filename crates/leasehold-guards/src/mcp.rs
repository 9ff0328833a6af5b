//! The MCP gate: a tool call passes only while its caller holds the lease.
//!
//! What is believed is what the store last said, and only until the local deadline that follows from it, as a keeper does;
//! a call is judged without any exchange. Promise: no call passes at or after that deadline, nor after a look at the store
//! has shown that the lease has moved or that a newer epoch sealed the resource. Non-promise: it is check-then-act: a call
//! that has passed may still run when the lease is lost; and when an operator takes the lease away before its time, calls
//! pass until the gate hears of it: at once where the store can push, with the next heartbeat elsewhere.

mod judge;

pub use judge::{Judge, Verdict};

use crate::kept::{KeptFence, named};
use leasehold::clock::Moment;
use leasehold::guard::{self, HighWater, Rejection, Strength};
use leasehold::store::Watching;
use leasehold::{
    Coordinator, Epoch, Error, Kind, LeaseName, Live, Resolved, Resolver, Result, Store, Token, TokenState,
};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// The strength that the gate states.
pub const STRENGTH: Strength = Strength::CheckThenAct {
    window: "a call that has passed may still run when the lease is lost; after an operator's order, until the gate hears \
             of it",
};

const MAX_ATTEMPTS: u32 = 16;
/// How long lies between two looks, however many hints come.
const DEAF: Duration = Duration::from_millis(50);
const SHORTEST: Duration = Duration::from_millis(100);

/// Why calls are refused.
#[derive(Debug, Clone)]
pub struct Closed {
    /// What to do about it.
    pub kind: Kind,
    /// One line.
    pub message: String,
    /// The epoch of the caller's token.
    pub held: Epoch,
    /// The epoch that was seen, if one was.
    pub seen: Option<Epoch>,
}

#[derive(Debug, Clone)]
enum View {
    /// Nothing is known yet, or what was known has run out.
    Until(Option<Moment>, Option<String>),
    /// For good: a lease that was lost does not come back under its epoch.
    Closed(Closed),
}

/// The gate of one holder to one resource.
#[derive(Debug)]
pub struct Gate {
    coordinator: Coordinator,
    tokens: Arc<dyn Resolver>,
    token: Token,
    resource: String,
    fence: KeptFence,
    view: Mutex<View>,
    ttl: Mutex<Duration>,
}

impl Gate {
    /// A gate that is closed until the first look at the store. The fence is kept in the coordinator's store; `tokens`
    /// finds the record that the token is of.
    pub fn new(
        coordinator: Coordinator,
        tokens: Arc<dyn Resolver>,
        token: Token,
        resource: &LeaseName,
    ) -> Result<Self> {
        let fence = KeptFence::new(coordinator.store().clone(), &named("mcp", resource)?);
        Ok(Gate {
            coordinator,
            tokens,
            token,
            resource: format!("mcp:{resource}"),
            fence,
            view: Mutex::new(View::Until(None, None)),
            ttl: Mutex::new(Duration::from_secs(3)),
        })
    }

    /// The resource, as messages name it.
    pub fn resource(&self) -> &str {
        &self.resource
    }

    /// Whether a call may pass now. No exchange with the store.
    pub fn check(&self) -> Result<(), Closed> {
        let now = self.coordinator.clock().now();
        match &*self.view.lock().unwrap_or_else(PoisonError::into_inner) {
            View::Until(Some(until), _) if now < *until => Ok(()),
            View::Until(until, trouble) => Err(self.unconfirmed(until.is_some(), trouble.as_deref())),
            View::Closed(closed) => Err(closed.clone()),
        }
    }

    fn unconfirmed(&self, was: bool, trouble: Option<&str>) -> Closed {
        let what = if was { "its last confirmation has run out" } else { "the store has not confirmed it yet" };
        let trouble = trouble.map(|text| format!(": {text}")).unwrap_or_default();
        let Token { epoch, .. } = self.token;
        Closed {
            kind: Kind::Unavailable,
            message: format!(
                "tool call refused: resource=`{}` held={epoch} seen=unknown; lease `{}`: {what}{trouble}; try again",
                self.resource, self.token
            ),
            held: epoch,
            seen: None,
        }
    }

    /// Looks at the store: whether the lease is ours, until when that can be relied on, and that no newer epoch has sealed
    /// the resource; seals it if ours is the newest.
    pub async fn refresh(&self) {
        let view = match self.look().await {
            Ok(live) => {
                *self.ttl.lock().unwrap_or_else(PoisonError::into_inner) = live.ttl.get();
                View::Until(Some(live.trust_until), None)
            }
            Err(error) => match error {
                Trouble::Final(closed) => View::Closed(closed),
                // What was confirmed stays so until its time.
                Trouble::Passing(error) => match &*self.view.lock().unwrap_or_else(PoisonError::into_inner) {
                    View::Until(until, _) => View::Until(*until, Some(error.to_string())),
                    closed @ View::Closed(_) => closed.clone(),
                },
            },
        };
        let mut now = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        // Two looks may end in another order than they began.
        if !matches!(*now, View::Closed(_)) {
            *now = view;
        }
    }

    async fn look(&self) -> Result<Live, Trouble> {
        let found = self.tokens.resolve(&self.token).await.map_err(Trouble::Passing)?;
        let live = found.in_force(&self.token).map_err(|error| self.lost(&found, &error))?;
        for _ in 0..MAX_ATTEMPTS {
            let seen = self.fence.look().await.map_err(Trouble::Passing)?;
            let next = guard::seal(seen.high.as_ref(), &self.token).map_err(|rejection| self.refused(rejection))?;
            if seen.high.as_ref() == Some(&next) {
                return Ok(live);
            }
            if self.fence.put(&seen, Some(next), seen.by).await.map_err(Trouble::Passing)?.is_some() {
                return Ok(live);
            }
        }
        Err(Trouble::Passing(Error::new(Kind::Contended, format!("fence of `{}` keeps changing", self.resource))))
    }

    /// The record says that this token is not in force.
    fn lost(&self, found: &Resolved, error: &Error) -> Trouble {
        let (held, seen) = (self.token.epoch, found.epoch);
        let message = format!("tool call refused: resource=`{}` held={held} seen={seen}; {error}", self.resource);
        let kind = if matches!(found.state, TokenState::Superseded { .. }) { Kind::Fenced } else { error.kind() };
        Trouble::Final(Closed { kind, message, held, seen: Some(seen) })
    }

    /// The store says that the lease is ours, and the fence that it is not the newest: the store went back in time.
    fn refused(&self, rejection: Rejection) -> Trouble {
        let held = self.token.epoch;
        let (seen, error) = match rejection {
            Rejection::Stale { seen, .. } => (Some(seen), guard::regressed(&self.resource, &self.token.lease, seen)),
            Rejection::Regressed { seen, .. } => (Some(seen), rejection.into_error(&self.resource)),
            other => (None, other.into_error(&self.resource)),
        };
        let message = match seen {
            Some(seen) => format!("{error} (held={held} seen={seen})"),
            None => error.to_string(),
        };
        Trouble::Final(Closed { kind: error.kind(), message, held, seen })
    }

    /// The highest token that has sealed the resource.
    pub async fn high_water(&self) -> Result<Option<HighWater>> {
        Ok(self.fence.look().await?.high)
    }

    /// Looks every third of the TTL, and when the store hints, until dropped. `said` is told of every change for the worse.
    pub async fn keep(self: Arc<Self>, said: impl Fn(&Closed) + Send) {
        let hint = Arc::new(Notify::new());
        let fence = (self.coordinator.store().clone(), self.fence.key().clone());
        let watches = self.tokens.record(&self.token).into_iter().chain([fence]);
        let _listeners: Vec<_> = watches.map(|(store, key)| Listener::start(store, key, hint.clone())).collect();
        let mut told = false;
        loop {
            self.refresh().await;
            match self.check() {
                Err(closed) if !told => {
                    said(&closed);
                    told = true;
                }
                Ok(()) => told = false,
                Err(_) => {}
            }
            if matches!(*self.view.lock().unwrap_or_else(PoisonError::into_inner), View::Closed(_)) {
                return;
            }
            let period = (*self.ttl.lock().unwrap_or_else(PoisonError::into_inner) / 3).max(SHORTEST);
            let clock = self.coordinator.clock();
            let next = clock.now() + period;
            clock.sleep_until((clock.now() + DEAF).min(next)).await;
            tokio::select! {
                () = clock.sleep_until(next) => {}
                () = hint.notified() => {}
            }
        }
    }
}

enum Trouble {
    Final(Closed),
    Passing(Error),
}

/// Passes a store's hints on.
struct Listener(tokio::task::JoinHandle<()>);

impl Listener {
    fn start(store: Arc<dyn Store>, key: leasehold::Key, hint: Arc<Notify>) -> Self {
        Listener(tokio::spawn(async move {
            if store.capabilities().watch == Watching::None {
                return;
            }
            let Ok(mut watch) = store.watch(&key).await else { return };
            hint.notify_one();
            loop {
                watch.hint().await;
                hint.notify_one();
            }
        }))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.abort();
    }
}
