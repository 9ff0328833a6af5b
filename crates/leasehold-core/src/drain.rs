//! Waiting for a holder that was asked to finish.

use crate::clock::Clock;
use crate::coordinator::{Coordinator, Inspection};
use crate::epoch::Epoch;
use crate::error::Result;
use crate::name::{Key, LeaseName, Shelf};
use crate::store::Watch;
use crate::wait::is_temporary;
use std::time::Duration;

/// How often to look, even without a hint.
const POLL: Duration = Duration::from_secs(1);

/// Calls `look` until it says that the work is over, and at most for `limit`; returns what it saw last. `look` returns
/// how much time the holder has left, or none when the work is over. An unreachable store is retried. Open the watch
/// before the first call, so that no release in between is missed.
///
/// `limit` bounds the waiting, not a call to the store that hangs.
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
            Err(error) if is_temporary(error.kind()) && clock.now() < give_up => POLL,
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
    /// Waits until the holder of this epoch has released the lease, has run out of time or has lost it, and at most
    /// this long. Returns what it saw last. The store wakes it where it can push.
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
