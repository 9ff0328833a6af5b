//! The proxy's own lease on its resource: one proxy at a time answers for it, others stand by.
//!
//! Promise: a proxy lets nothing pass from the end of its trust window on, and its successor's tenure is in the fence
//! before that one lets anything pass; so the fence has one writer, and its copy in memory is true. What the files of
//! this machine know is in the fence by then, too, and what others have sent is known. Non-promise: a proxy
//! that was stopped between its last look at the clock and handing a piece to the network hands it on when it is resumed.

use super::fence::{Active, Fence};
use super::horizon::Inherited;
use leasehold_core::guard::HighWater;
use leasehold_core::{
    Acquired, Ask, Epoch, Error, Grant, HolderId, Keeper, KeeperState, Kind, Label, LeaseName, Nonce, Outcome, Result,
    TokenKind, Ttl,
};
use leasehold_guards::stored::{FenceRecord, FenceSnapshot, Merged, behind};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How long one wait for the lease is; then it is asked for under a fresh name.
const PATIENCE: Duration = Duration::from_secs(3600);
/// The pause after a store that is away.
const PAUSE: Duration = Duration::from_secs(1);
const MAX_ATTEMPTS: u32 = 16;

pub(crate) struct ProxyLease {
    pub(crate) fence: Arc<Fence>,
    pub(crate) lease: LeaseName,
    pub(crate) ttl: Ttl,
    pub(crate) label: Option<Label>,
    pub(crate) upstream_timeout: Duration,
    pub(crate) say: Arc<dyn Fn(&str) + Send + Sync>,
}

impl ProxyLease {
    /// Answers for the resource whenever nobody else does, until told to stop; then gives the lease back.
    pub(crate) async fn run(self, mut stop: watch::Receiver<bool>) {
        let mut said = None;
        while !*stop.borrow() {
            let ask = Ask::new(HolderId::new(self.label.clone()), self.ttl);
            let names = [self.lease.clone()];
            let taken = tokio::select! {
                biased;
                _ = stop.changed() => {
                    let _ = self.fence.coordinator.withdraw(&names, &ask).await;
                    return;
                }
                taken = self.fence.coordinator.acquire_within(&names, &ask, PATIENCE) => taken,
            };
            let failed = match taken {
                Ok(Acquired::Granted(grant)) => self.serve(*grant, &mut stop).await.err(),
                Ok(Acquired::Refused { .. }) => None,
                Err(error) => Some(error),
            };
            if let Some(error) = failed {
                self.fence.fail(&error);
                // Tried again every second, said once.
                let text = error.to_string();
                if said.as_ref() != Some(&text) {
                    (self.say)(&format!("standing by: {text}"));
                    said = Some(text);
                }
                tokio::select! {
                    () = tokio::time::sleep(PAUSE) => {}
                    _ = stop.changed() => {}
                }
            }
        }
    }

    async fn serve(&self, grant: Grant, stop: &mut watch::Receiver<bool>) -> Result<()> {
        let coordinator = &self.fence.coordinator;
        let claim = (grant.token().epoch, grant.token().nonce);
        let trust_until = grant.trust_until();
        let keeper = Keeper::start(coordinator.clone(), grant);
        let mut state = keeper.state();
        let signed = match self.sign(claim).await {
            Ok(signed) => signed,
            Err(error) => {
                let _ = coordinator.release(&keeper.stop().await, Outcome::Failed).await;
                return Err(error);
            }
        };
        let Signed { seen, filed, inherited } = signed;
        let high = seen.record.high.clone();
        let shown = high.as_ref().map_or_else(|| "none yet".into(), |high| format!("{}:{}", high.lease, high.epoch));
        // Nothing may be sent before the horizon is in the fence.
        let send_until = coordinator.clock().now();
        self.fence.state().active = Some(Active { claim, trust_until, seen, filed, send_until, inherited });
        (self.say)(&format!("answering for resource=`{}`, high water {shown}", self.fence.resource));
        if let Some(Err(error)) = self.check(high.as_ref()).await {
            (self.say)(&error.to_string());
        }
        let horizon = tokio::spawn(self.fence.clone().keep_horizon());
        let ended = self.watch(&mut state, stop).await;
        if ended {
            self.fence.empty(self.fence.drain + self.upstream_timeout).await;
            // Left as it is where it fails, or where something may be at work: whoever comes next waits for it.
            let _ = self.fence.withdraw_horizon().await;
            let why = if *stop.borrow() { "has a proxy that is shutting down" } else { "has no proxy yet" };
            self.fence.stand_down(&mut self.fence.state(), why);
        }
        horizon.abort();
        let grant = keeper.stop().await;
        if ended {
            coordinator.release(&grant, Outcome::Succeeded).await?;
        }
        Ok(())
    }

    /// Waits for the end of this proxy's say: true if it is to give its lease back, false if the lease was lost.
    async fn watch(&self, state: &mut watch::Receiver<KeeperState>, stop: &mut watch::Receiver<bool>) -> bool {
        loop {
            let now = state.borrow_and_update().clone();
            match now {
                KeeperState::Held { trust_until } => {
                    // Gone when the fence was found to be another proxy's.
                    match &mut self.fence.state().active {
                        Some(active) => active.trust_until = trust_until,
                        None => return true,
                    }
                }
                KeeperState::Lost(loss) => {
                    self.fence.stand_down(&mut self.fence.state(), "lost its proxy");
                    (self.say)(&format!("standing by: the proxy's lease was lost: {loss}"));
                    return false;
                }
            }
            tokio::select! {
                changed = state.changed() => if changed.is_err() { return true },
                _ = stop.changed() => return true,
                // Found to be another proxy's.
                () = self.deposed() => return true,
            }
        }
    }

    async fn deposed(&self) {
        loop {
            let moved = self.fence.horizon_moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if self.fence.state().active.is_none() {
                return;
            }
            moved.await;
        }
    }

    /// Whether the store still knows what the resource has seen; none if it does not answer.
    pub(crate) async fn check(&self, high: Option<&HighWater>) -> Option<Result<()>> {
        // An item of a queue ends with its work, and is erased one day: that the store has forgotten it says nothing.
        let high = high.filter(|high| TokenKind::of(&high.lease) == TokenKind::Lease)?;
        let record = self.fence.coordinator.inspect(&high.lease).await.ok()?.record;
        Some(behind(&self.fence.resource, high, &record).map_or(Ok(()), Err))
    }

    /// Puts this proxy's tenure into the fence, and whatever the files of this machine know and the store does not: from
    /// then on no earlier proxy can move it.
    async fn sign(&self, claim: (Epoch, Nonce)) -> Result<Signed> {
        let fence = &self.fence;
        for _ in 0..MAX_ATTEMPTS {
            let seen = fence.document.look().await?;
            if let Some((epoch, _)) = seen.record.by.filter(|by| by.0 > claim.0) {
                return Err(leasehold_core::guard::regressed(&fence.resource, &self.lease, epoch));
            }
            let filed = fence.files.high().await?;
            let Merged { high, is_behind, is_adopted } = seen.record.merged(&fence.resource, filed.as_ref())?;
            let inherited = match &high {
                Some(high) if is_behind => Some(fence.inherited_unknown(high)),
                _ => fence.inherited(&seen),
            };
            let record = FenceRecord { high: high.clone(), by: Some(claim), ..seen.record.clone() };
            if let Some(seen) = fence.document.put(&seen, record).await? {
                let filed = self.file(filed, high, is_adopted).await?;
                return Ok(Signed { seen, filed, inherited });
            }
        }
        Err(Error::new(Kind::Contended, format!("the fence of `{}` keeps changing", fence.resource)))
    }

    /// Takes the fence over into the files.
    async fn file(
        &self,
        filed: Option<HighWater>,
        high: Option<HighWater>,
        is_adopted: bool,
    ) -> Result<Option<HighWater>> {
        let Fence { files, resource, .. } = &*self.fence;
        let Some(high) = high.filter(|_| files.path().is_some()) else { return Ok(None) };
        if is_adopted {
            files.replace(filed, &high).await?;
        } else {
            files.raise(&high).await?.map_err(|rejection| rejection.into_error(resource))?;
        }
        Ok(Some(high))
    }
}

/// A fence that is this proxy's to move.
struct Signed {
    seen: FenceSnapshot,
    filed: Option<HighWater>,
    inherited: Option<Inherited>,
}
