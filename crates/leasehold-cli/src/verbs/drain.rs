//! `revoke --drain`, `hand-off --drain`: the holder is asked to finish before its lease is taken.
//!
//! Promise: nothing is taken here. The request expires by itself, so a command that is killed while waiting leaves the lease as it
//! would have been; the holder was asked all the same.

use super::operate::refused;
use crate::args::Draining;
use crate::config::blame_flag;
use crate::output;
use leasehold_core::lease::protocol::{Order, Refusal};
use leasehold_core::{Coordinator, Epoch, Inspection, Operated, Result, Ttl, Who, Why};

const DEFAULT: &str = "5m";

/// How long the holder has to finish, if it is to be asked.
pub fn within(args: &Draining) -> Result<Option<Ttl>> {
    let text = args.within.as_deref().unwrap_or(DEFAULT);
    args.drain.then(|| text.parse().map_err(|e| blame_flag(e, "--within"))).transpose()
}

/// What is asked of the holder, and on which epoch that was decided.
pub struct Asking {
    pub by: Who,
    pub why: Why,
    pub expected: Option<Epoch>,
    pub within: Ttl,
}

/// Asks the holder to finish, and waits for it. Returns the lease as it was seen last: free, or still held.
pub async fn drain(coordinator: &Coordinator, seen: Inspection, asking: Asking) -> Result<Inspection> {
    let Inspection { lease, now, .. } = &seen;
    let Asking { by, why, expected, within } = asking;
    let record = match coordinator.operate_if(lease, by, why, expected, Order::Drain { within }).await? {
        Operated::Done(carried) => carried.record,
        Operated::Refused(refusal) if *refusal == Refusal::NotHeld => return Ok(seen),
        Operated::Refused(refusal) => return Err(refused(lease, &refusal, *now)),
        Operated::HandedOff(_) => return Ok(seen),
    };
    let holder = record.tenure.as_ref().map_or_else(String::new, |tenure| tenure.holder.to_string());
    output::say(&format!("asked {holder} to finish `{lease}`; waiting for up to {within}"));
    let seen = coordinator.drained(lease, record.epoch, within.get()).await?;
    if seen.record.epoch == record.epoch {
        output::say(&match seen.record.live_tenure(seen.now) {
            Some(_) => format!("{holder} has not finished `{lease}` within {within}"),
            None => format!("{holder} no longer holds `{lease}`"),
        });
    }
    Ok(seen)
}
