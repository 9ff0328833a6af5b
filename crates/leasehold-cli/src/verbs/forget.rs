//! `forget`: a lease that nobody needs any more leaves a tombstone.

use super::operate::{by, epoch_of, refused};
use crate::args::Forget as Args;
use crate::context::{Context, never_held};
use crate::exit::Exit;
use crate::{output, view};
use leasehold_core::lease::protocol::{Order, Refusal};
use leasehold_core::{Error, Inspection, Kind, LeaseName, Operated, Result, Why, migration};

pub async fn forget(context: &Context, args: &Args) -> Result<Exit> {
    let lease = LeaseName::new(&args.operate.name)?.of_a_lease()?;
    let order = &args.operate.order;
    let (why, who) = (Why::named("--why", &order.why)?, by(order.by.as_deref())?);
    let if_epoch = order.if_epoch.as_deref().map(|epoch| epoch_of("--if-epoch", epoch)).transpose()?;
    let coordinator = context.existing().await?.ok_or_else(|| never_held(&lease))?;
    let seen = coordinator.inspect(&lease).await?;
    if let Some(state) = &seen.record.relocation {
        return Err(migration::elsewhere(coordinator.store().as_ref(), &format!("lease `{lease}`"), state).await);
    }
    if seen.record.is_unknown() {
        return Err(never_held(&lease));
    }
    let epoch = seen.record.epoch;
    let what = format!(
        "forget `{lease}`: its history, progress, checkpoint and counters are dropped for good; its epoch {epoch} and its \
         lineage stay, so that old tokens are refused as before"
    );
    if !args.yes && seen.record.forgotten.is_none() && !output::agreed(&what)? {
        output::say("nothing was forgotten");
        return Ok(Exit::Done);
    }
    let expected = Some(if_epoch.unwrap_or(epoch));
    let record = match coordinator.operate_if(&lease, who, why, expected, Order::Forget { idle: view::IDLE }).await? {
        Operated::Done(carried) => carried.record,
        // What it left behind may still be there.
        Operated::Refused(refusal) if matches!(*refusal, Refusal::Forgotten(_)) => {
            output::say(&format!("{}; nothing changed", view::refusal_line(&lease, &refusal, seen.now)));
            coordinator.erase_leftovers(&lease, &seen.record).await?;
            return Ok(Exit::Done);
        }
        Operated::Refused(refusal) => return Err(refused(&lease, &refusal, seen.now)),
        Operated::HandedOff(_) => return Ok(Exit::Done),
    };
    coordinator.erase_leftovers(&lease, &record).await.map_err(|error| {
        let message =
            format!("`{lease}` is forgotten, but not all of its history and counters are dropped; run this again");
        Error::new(Kind::Indeterminate, message).with_source(error)
    })?;
    let of_a_job = match seen.record.slot {
        Some(_) => format!(
            ". What `leasehold runs {lease}` lists stays. If the job is not scheduled any more, run `leasehold schedule retire {lease}`"
        ),
        None => String::new(),
    };
    context.tell(
        || view::order_json(&Inspection { lease: lease.clone(), record, now: seen.now }, epoch),
        || format!("forgot `{lease}`; if it is used again, its epochs continue from {epoch}{of_a_job}"),
    )
}
