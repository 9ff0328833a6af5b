//! Waiting for a holder that was asked to finish.

use crate::clock::Clock;
use crate::coordinator::{Coordinator, Inspection};
use crate::epoch::Epoch;
use crate::error::Result;
use crate::name::{Key, LeaseName, Shelf};
use crate::store::Watch;
use crate::wait::passes;
use std::time::Duration;

/// How often it is looked, hints or not.
const POLL: Duration = Duration::from_secs(1);

/// Looks until it is over, and at most this long; gives what was seen last. A look gives in how much time what is held runs out,
/// and none when it is over. A store that is away in between is waited for. Open the watch before the first look, so that a
/// release in between is not missed.
///
/// The limit bounds the waiting, not a call to the store that hangs.
pub async fn until_over<T, F>(clock: &dyn Clock, mut watch: Watch, limit: Duration, look: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<(T, Option<Duration>)>>,
{
    let give_up = clock.now() + limit;
    loop {
        let wake = match look().await {
            Ok((seen, left)) => match left.filter(|_| clock.now() < give_up) {
                Some(left) => left.clamp(Duration::from_millis(1), POLL),
                None => return Ok(seen),
            },
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

impl Coordinator {
    /// Waits until the holder of this epoch has given the lease back, has run out of time or has lost it, and at most this
    /// long. Gives what was seen last. Woken by the store where it can push.
    pub async fn drained(&self, lease: &LeaseName, epoch: Epoch, limit: Duration) -> Result<Inspection> {
        let key = Key::new(Shelf::Lease, lease);
        let watch = self.store().watch(&key).await.unwrap_or(Watch::silent());
        until_over(self.clock().as_ref(), watch, limit, || async {
            let seen = self.look(lease).await?;
            let (record, now) = (seen.record, seen.anchor.now);
            let tenure = record.live_tenure(now).filter(|_| record.epoch == epoch && record.relocation.is_none());
            let left = tenure.map(|tenure| tenure.deadline.saturating_since(now));
            Ok((Inspection { lease: lease.clone(), record, now }, left))
        })
        .await
    }
}
