//! `rewind`: set a job's slots back to the store's time, after its clock was ahead.
//!
//! Promise: only what is still to come is set back, so no slot up to the store's time can run again; the lease gets a new
//! epoch, with who and why. Non-promise: it does not know whether the clock is right now; `doctor` compares.

use super::operate::{Asked, order};
use super::{coordinator, known};
use crate::args::{Common, Operate as Args};
use crate::config::Settings;
use crate::exit::Exit;
use leasehold_core::migration;
use leasehold_core::{Error, Kind, LeaseName, Result, Slot, Why};
use leasehold_work::schedule::{Journals, slot_text};

pub async fn rewind(common: &Common, args: &Args) -> Result<Exit> {
    let settings = Settings::gather(common)?;
    let job = LeaseName::new(&args.name)?.of_a_lease()?;
    Why::named("--why", &args.why)?;
    let record = known(&settings, &job).await?.record;
    let coordinator = coordinator(&settings).await?;
    if let Some(state) = &record.relocation {
        return Err(migration::elsewhere(coordinator.store().as_ref(), &format!("lease `{job}`"), state).await);
    }
    let journals = Journals::new(coordinator);
    let (journal, now) = journals.read(&job).await?;
    let mark = record.slot.map(|mark| mark.slot);
    let newest = mark.max(journal.settled_until());
    if newest.is_none_or(|newest| newest.0 <= now) {
        let newest = newest.map_or("none".into(), slot_text);
        let now = slot_text(Slot(now));
        let message = format!(
            "no slot of `{job}` is ahead of the store's clock, which shows {now}; the newest is {newest}. Nothing changed"
        );
        return Err(Error::new(Kind::Invalid, message));
    }
    let exit = order(common, &settings, args, Asked::Rewind, "rewound").await?;
    // After the record, which decides: what is left of the journal until then keeps slots back, and lets none run twice.
    journals.rewind(&job).await.map_err(|error| {
        let message = format!("`{job}` was set back, but its journal still has slots to come; run this again");
        Error::new(Kind::Indeterminate, message).with_source(error)
    })?;
    Ok(exit)
}
