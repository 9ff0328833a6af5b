//! The MCP gate: a tool call passes only while its caller holds the lease.
//!
//! The gate trusts the store's last answer until the local deadline that follows from it, as a keeper does. A call is
//! checked without asking the store. Promise: no call passes at or after that deadline, nor after the store has shown
//! that the lease has moved or that a newer epoch has sealed the resource. Non-promise: it is check-then-act: a call
//! that has passed may still run when the lease is lost. If an operator takes the lease away early, calls pass until
//! the gate hears of it: at once where the store can push, with the next heartbeat elsewhere.

mod judge;

pub use judge::{Judge, Verdict};

use crate::stored::high_water::LocalCopy;
use crate::stored::{FenceDocument, FenceRecord, Merged, named};
use leasehold_core::clock::Moment;
use leasehold_core::guard::{self, HighWater, Rejection, Strength};
use leasehold_core::hints::{self, Hints};
use leasehold_core::{
    Coordinator, Epoch, Error, Kind, LeaseName, Lineage, Live, Resolved, Resolver, Result, Token, TokenState,
};
use leasehold_system::sync::Mutex;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// The strength that the gate states.
pub const STRENGTH: Strength = Strength::CheckThenAct {
    window: "a call that has passed may still run when the lease is lost; after an operator's order, until the gate hears \
             of it",
};

const MAX_ATTEMPTS: u32 = 16;
/// The shortest time between two reads of the store, however many hints come.
const HINT_COOLDOWN: Duration = Duration::from_millis(50);
const SHORTEST: Duration = Duration::from_millis(100);

/// Why calls are refused.
#[derive(Debug, Clone)]
pub struct Closed {
    /// What the caller can do about it.
    pub kind: Kind,
    /// The reason, in one line.
    pub message: String,
    /// The epoch of the caller's token.
    pub held: Epoch,
    /// The epoch that was seen, if one was.
    pub seen: Option<Epoch>,
}

#[derive(Debug, Clone)]
enum View {
    /// Trusted until then; none before the first answer. With the last error of the store.
    Until(Option<Moment>, Option<String>),
    /// Final: a lost lease does not come back under the same epoch.
    Closed(Closed),
}

/// The gate of one holder to one resource.
#[derive(Debug)]
pub struct Gate {
    coordinator: Coordinator,
    tokens: Arc<dyn Resolver>,
    token: Token,
    resource: String,
    fence: FenceDocument,
    /// The gate's own memory.
    files: LocalCopy,
    /// What is surely in there.
    filed: Mutex<Option<HighWater>>,
    view: Mutex<View>,
    ttl: Mutex<Duration>,
}

impl Gate {
    /// A gate that is closed until it has first read the store. The fence is in the coordinator's store; `tokens`
    /// finds the token's record. The high water is also kept in the folder `state`, in case the store is lost or
    /// restored from an old copy; without that folder the gate relies on a store that never goes back.
    pub fn new(
        coordinator: Coordinator,
        tokens: Arc<dyn Resolver>,
        token: Token,
        resource: &LeaseName,
        state: Option<&Path>,
    ) -> Result<Self> {
        let fence = FenceDocument::new(&coordinator, &named("mcp", resource)?);
        let resource = format!("mcp:{resource}");
        let files = LocalCopy::open(state, &resource)?;
        Ok(Gate {
            coordinator,
            tokens,
            token,
            resource,
            fence,
            files,
            filed: Mutex::new(None),
            view: Mutex::new(View::Until(None, None)),
            ttl: Mutex::new(Duration::from_secs(3)),
        })
    }

    /// The resource, as messages name it.
    pub fn resource(&self) -> &str {
        &self.resource
    }

    /// Where the gate keeps its high water, unless it goes without.
    pub fn state(&self) -> Option<&Path> {
        self.files.path()
    }

    /// Whether a call may pass now. No exchange with the store.
    pub fn check(&self) -> Result<(), Closed> {
        let now = self.coordinator.clock().now();
        match &*self.view.lock() {
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

    /// Reads the store: whether the lease is ours, until when that can be trusted, and whether a newer epoch has
    /// sealed the resource. Seals it if ours is the newest.
    pub async fn refresh(&self) {
        let view = match self.look().await {
            Ok(live) => {
                *self.ttl.lock() = live.ttl.get();
                View::Until(Some(live.trust_until), None)
            }
            Err(error) => match error {
                Failure::Final(closed) => View::Closed(closed),
                // What was confirmed stays trusted until its deadline.
                Failure::Passing(error) => match &*self.view.lock() {
                    View::Until(until, _) => View::Until(*until, Some(error.to_string())),
                    closed @ View::Closed(_) => closed.clone(),
                },
            },
        };
        let mut now = self.view.lock();
        // Two reads may end in another order than they began.
        if !matches!(*now, View::Closed(_)) {
            *now = view;
        }
    }

    async fn look(&self) -> Result<Live, Failure> {
        let found = self.tokens.resolve(&self.token).await.map_err(Failure::Passing)?;
        let live = found.in_force(&self.token).map_err(|error| self.lost(&found, &error))?;
        for _ in 0..MAX_ATTEMPTS {
            let seen = self.fence.look().await.map_err(Failure::Passing)?;
            let filed = self.files.high().await.map_err(Failure::Passing)?;
            let merged = seen.record.merged(&self.resource, filed.as_ref());
            let Merged { high, is_adopted, .. } = merged.map_err(|error| self.closed(&error, None))?;
            let next = guard::seal(high.as_ref(), &self.token).map_err(|rejection| self.refused(rejection))?;
            if seen.record.high.as_ref() != Some(&next) {
                let record = FenceRecord { high: Some(next.clone()), ..seen.record.clone() };
                if self.fence.put(&seen, record).await.map_err(Failure::Passing)?.is_none() {
                    continue;
                }
            }
            self.file(next, is_adopted).await?;
            return Ok(live);
        }
        Err(Failure::Passing(Error::new(Kind::Contended, format!("fence of `{}` keeps changing", self.resource))))
    }

    /// Writes what was sealed to the files, once.
    async fn file(&self, next: HighWater, is_adopted: bool) -> Result<(), Failure> {
        if self.filed.lock().as_ref() == Some(&next) {
            return Ok(());
        }
        if is_adopted {
            let former = self.files.high().await.map_err(Failure::Passing)?;
            self.files.replace(former, &next).await.map_err(Failure::Passing)?;
        }
        let raised = self.files.raise(&next).await.map_err(Failure::Passing)?;
        raised.map_err(|rejection| self.refused(rejection))?;
        *self.filed.lock() = Some(next);
        Ok(())
    }

    /// The record says that this token is not in force.
    fn lost(&self, found: &Resolved, error: &Error) -> Failure {
        if let TokenState::OtherLineage { seen } = found.state {
            return self.not_this_lease(seen);
        }
        let (held, seen) = (self.token.epoch, found.epoch);
        let message = format!("tool call refused: resource=`{}` held={held} seen={seen}; {error}", self.resource);
        let kind = if matches!(found.state, TokenState::Superseded { .. }) { Kind::Fenced } else { error.kind() };
        Failure::Final(Closed { kind, message, held, seen: Some(seen) })
    }

    fn not_this_lease(&self, lineage: Lineage) -> Failure {
        let message = format!(
            "not this lease: resource=`{}` the token is of a lease `{}` of lineage {}, and the store's is of lineage \
             {lineage}; use the store that the token came from",
            self.resource, self.token.lease, self.token.lineage
        );
        self.closed(&Error::new(Kind::Invalid, message), None)
    }

    /// The store says that the lease is ours, and the fence that it is not the newest: the store went back in time.
    fn refused(&self, rejection: Rejection) -> Failure {
        let (seen, error) = match rejection {
            Rejection::Stale { seen, .. } => (Some(seen), guard::regressed(&self.resource, &self.token.lease, seen)),
            Rejection::Regressed { seen, .. } => (Some(seen), rejection.into_error(&self.resource)),
            other => (None, other.into_error(&self.resource)),
        };
        self.closed(&error, seen)
    }

    fn closed(&self, error: &Error, seen: Option<Epoch>) -> Failure {
        let held = self.token.epoch;
        let message = match seen {
            Some(seen) => format!("{error} (held={held} seen={seen})"),
            None => error.to_string(),
        };
        Failure::Final(Closed { kind: error.kind(), message, held, seen })
    }

    /// The highest token that has sealed the resource.
    pub async fn high_water(&self) -> Result<Option<HighWater>> {
        Ok(self.fence.look().await?.record.high)
    }

    /// Reads the store every third of the TTL, and when the store hints, until dropped. `said` is called whenever the
    /// gate closes.
    pub async fn keep(self: Arc<Self>, said: impl Fn(&Closed) + Send) {
        let hint = Arc::new(Notify::new());
        let fence = hints::watch(self.coordinator.store().clone(), self.fence.key().clone());
        let _hints = [self.tokens.watch(&self.token), fence].map(|watch| Hints::pass_on(watch, hint.clone()));
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
            if matches!(*self.view.lock(), View::Closed(_)) {
                return;
            }
            let period = (*self.ttl.lock() / 3).max(SHORTEST);
            let clock = self.coordinator.clock();
            let next = clock.now() + period;
            clock.sleep_until((clock.now() + HINT_COOLDOWN).min(next)).await;
            tokio::select! {
                () = clock.sleep_until(next) => {}
                () = hint.notified() => {}
            }
        }
    }
}

enum Failure {
    Final(Closed),
    Passing(Error),
}
