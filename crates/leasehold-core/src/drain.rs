//! Waiting for a holder that was asked to finish.

use crate::cell::Seen;
use crate::coordinator::{Coordinator, Inspection};
use crate::epoch::Epoch;
use crate::error::Result;
use crate::lease::record::Ownership;
use crate::name::{Key, LeaseName, Shelf};
use crate::store::Watch;
use crate::wait::passes;
use std::time::Duration;

/// How often it is looked, hints or not.
const POLL: Duration = Duration::from_secs(1);

impl Coordinator {
    /// Waits until the holder of this epoch has given the lease back, has run out of time or has lost it, and at most this
    /// long. Gives what was seen last. Woken by the store where it can push. A store that is away in between is waited for.
    ///
    /// The limit bounds the waiting, not a call to the store that hangs.
    pub async fn drained(&self, lease: &LeaseName, epoch: Epoch, limit: Duration) -> Result<Inspection> {
        let clock = self.clock();
        let give_up = clock.now() + limit;
        // Watch first, then look: a release in between is not missed.
        let key = Key::new(Shelf::Lease, lease);
        let mut watch = self.store().watch(&key).await.unwrap_or(Watch::silent());
        loop {
            let wake = match self.look(lease).await {
                Ok(seen) if is_over(&seen, epoch) || clock.now() >= give_up => {
                    return Ok(Inspection { lease: lease.clone(), record: seen.record, now: seen.anchor.now });
                }
                Ok(seen) => {
                    let runs_out = seen.record.tenure.map(|tenure| tenure.deadline.saturating_since(seen.anchor.now));
                    runs_out.map_or(POLL, |left| left.clamp(Duration::from_millis(1), POLL))
                }
                Err(error) if passes(error.kind()) && clock.now() < give_up => POLL,
                Err(error) => return Err(error),
            };
            tokio::select! {
                biased;
                () = clock.sleep_until((clock.now() + wake).min(give_up)) => {}
                () = watch.hint() => watch.forget(),
            }
        }
    }
}

fn is_over(seen: &Seen<Ownership>, epoch: Epoch) -> bool {
    let record = &seen.record;
    record.epoch != epoch || record.relocation.is_some() || record.live_tenure(seen.anchor.now).is_none()
}
