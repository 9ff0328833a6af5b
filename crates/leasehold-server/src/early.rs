//! Which scheduled slots may be claimed: those that have come due.
//!
//! Promise: a slot that is later than the store's time, by more than the margin of a trigger that fires early, is refused. A lease
//! that had claimed one would refuse every slot before it, for years perhaps. Non-promise: a slot of the past is not compared with
//! any schedule, which the server does not know.

use leasehold_core::{Coordinator, Error, Kind, LeaseName, Result, Slot};
use leasehold_work::schedule::slot_text;
use std::time::Duration;

/// How much earlier than its slot a trigger may come: as much as `leasehold run --slot` allows at most.
const MARGIN: Duration = Duration::from_secs(300);

/// Refuses a slot that has not come due by the store's clock.
pub(crate) async fn check_is_due(leases: &Coordinator, name: &LeaseName, slot: Slot) -> Result<()> {
    let now = leases.inspect(name).await?.now;
    if slot.0 <= now.plus(MARGIN) {
        return Ok(());
    }
    let (slot, now) = (slot_text(slot), slot_text(Slot(now)));
    Err(Error::new(Kind::Invalid, format!("slot {slot} is in the future; it is {now} now. Nothing was done")))
}
