//! The proxy's own lease on its resource: one proxy at a time answers for it, others stand by.
//!
//! Promise: a proxy lets nothing pass from the end of its trust window on, and its successor's tenure is in the fence
//! before that one lets anything pass; so the fence has one writer, and its copy in memory is true. Non-promise: a proxy
//! that was stopped between its last look at the clock and handing a piece to the network hands it on when it is resumed.

use super::fence::{Active, Fence};
use crate::kept::Kept;
use leasehold::{
    Acquired, Ask, Error, Grant, HolderId, Keeper, Kind, Label, LeaseName, Outcome, Reason, Result, Standing, Ttl,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How long one wait for the lease is; then it is asked for under a fresh name.
const PATIENCE: Duration = Duration::from_secs(3600);
/// The pause after a store that is away.
const PAUSE: Duration = Duration::from_secs(1);
const MAX_ATTEMPTS: u32 = 16;

pub(crate) struct Station {
    pub(crate) fence: Arc<Fence>,
    pub(crate) lease: LeaseName,
    pub(crate) ttl: Ttl,
    pub(crate) label: Option<Label>,
    pub(crate) upstream_timeout: Duration,
    pub(crate) say: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Station {
    /// Answers for the resource whenever nobody else does, until told to stop; then gives the lease back, if nothing is
    /// in flight.
    pub(crate) async fn run(self, mut stop: watch::Receiver<bool>) {
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
                (self.say)(&format!("standing by: {error}"));
                self.fence.stand_down(&mut self.fence.state(), &format!("has no proxy: {error}"));
                tokio::select! {
                    () = tokio::time::sleep(PAUSE) => {}
                    _ = stop.changed() => {}
                }
            }
        }
    }

    async fn serve(&self, grant: Grant, stop: &mut watch::Receiver<bool>) -> Result<()> {
        let coordinator = &self.fence.coordinator;
        let claim = grant.token().claim();
        // A proxy that released had nothing in flight; of any other nobody knows.
        let reason = grant.record().transfers.last().map(|transfer| transfer.reason);
        let clean = matches!(reason, Some(Reason::First | Reason::Released));
        let trust_until = grant.trust_until();
        let keeper = Keeper::start(coordinator.clone(), grant);
        let mut standing = keeper.standing();
        let kept = match self.sign(claim).await {
            Ok(kept) => kept,
            Err(error) => {
                let _ = coordinator.release(&keeper.stop().await, Outcome::Failed).await;
                return Err(error);
            }
        };
        let haunted_until = (!clean).then(|| coordinator.clock().now() + self.upstream_timeout);
        let seen =
            kept.high.as_ref().map_or_else(|| "none yet".into(), |high| format!("{}:{}", high.lease, high.epoch));
        self.fence.state().active = Some(Active { claim, trust_until, kept, haunted_until });
        (self.say)(&format!("answering for resource=`{}`, high water {seen}", self.fence.resource));
        loop {
            let now = standing.borrow_and_update().clone();
            match now {
                Standing::Held { trust_until } => {
                    // Gone when the fence was found to be another proxy's.
                    match &mut self.fence.state().active {
                        Some(active) => active.trust_until = trust_until,
                        None => break,
                    }
                }
                Standing::Lost(loss) => {
                    self.fence.stand_down(&mut self.fence.state(), "lost its proxy");
                    (self.say)(&format!("standing by: the proxy's lease was lost: {loss}"));
                    return Ok(());
                }
            }
            tokio::select! {
                changed = standing.changed() => if changed.is_err() { break },
                _ = stop.changed() => break,
            }
        }
        let limit = self.fence.drain + self.upstream_timeout;
        let empty = self.fence.empty(limit).await;
        self.fence.stand_down(&mut self.fence.state(), "has a proxy that is shutting down");
        let grant = keeper.stop().await;
        if empty {
            coordinator.release(&grant, Outcome::Succeeded).await?;
        } else {
            (self.say)("requests were still in flight: the proxy's lease is left to expire");
        }
        Ok(())
    }

    /// Puts this proxy's tenure into the fence: from then on no earlier one can move it.
    async fn sign(&self, claim: leasehold::Claim) -> Result<Kept> {
        for _ in 0..MAX_ATTEMPTS {
            let seen = self.fence.kept.look().await?;
            if seen.by.is_some_and(|by| by.epoch > claim.epoch) {
                let epoch = seen.by.map_or(claim.epoch, |by| by.epoch);
                return Err(leasehold::guard::regressed(&self.fence.resource, &self.lease, epoch));
            }
            if let Some(kept) = self.fence.kept.put(&seen, seen.high.clone(), Some(claim)).await? {
                return Ok(kept);
            }
        }
        Err(Error::new(Kind::Contended, format!("fence of `{}` keeps changing", self.fence.resource)))
    }
}
