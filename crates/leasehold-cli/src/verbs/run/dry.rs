//! `run --dry-run`: whether it would run now, decided by the same rules on the same records. It writes nothing.

use super::plan::Plan;
use super::slot::SlotPlan;
use super::take::Seats;
use crate::context::Context;
use crate::exit::Exit;
use crate::view;
use leasehold_core::lease::protocol::{Decision, Refusal, Request, SlotClaim, decide};
use leasehold_core::{Coordinator, HolderId, LeaseName, Lineage, Result};
use leasehold_work::schedule::{Candidate, Journals, Plan as DuePlan};
use serde_json::json;

/// Which lease it would get, and under which epoch; or why none.
type DryRun = std::result::Result<(LeaseName, u64), String>;

pub async fn run(context: &Context, plan: &Plan<'_>) -> Result<Exit> {
    let found = match context.in_use("run it there").await? {
        Some(coordinator) => look(coordinator, plan).await?,
        // Its first run makes the store.
        None => Ok((plan.leases[0].clone(), 1)),
    };
    let (would_run, lease, epoch, why) = match &found {
        Ok((lease, epoch)) => (true, lease, Some(*epoch), None),
        Err(why) => (false, &plan.leases[0], None, Some(why.as_str())),
    };
    context.print(
        || json!({ "would_run": would_run, "name": lease.as_str(), "epoch": epoch, "why": why }),
        || match (epoch, why) {
            (Some(epoch), _) => format!("would run under `{lease}`, epoch {epoch}\n"),
            (None, why) => format!("would not run: {}\n", why.unwrap_or_default()),
        },
    )?;
    Ok(if would_run { Exit::Done } else { Exit::Held })
}

async fn look(coordinator: &Coordinator, plan: &Plan<'_>) -> Result<DryRun> {
    let first = coordinator.inspect(&plan.leases[0]).await?;
    let slot = match candidate(coordinator, plan, &first).await? {
        Ok(slot) => slot,
        Err(why) => return Ok(Err(why)),
    };
    let mut refused = None;
    for lease in &plan.leases {
        let seen = coordinator.inspect(lease).await?;
        let line = |refusal: &Refusal| view::refusal_line(lease, refusal, seen.now);
        // A pause of the first seat is a pause of all.
        if let (Seats::OfOneLease, Some(mark)) = (plan.seats, &first.record.paused) {
            return Ok(Err(view::refusal_line(&first.lease, &Refusal::Paused(mark.clone()), seen.now)));
        }
        match decide(&seen.record, &request(plan, slot), seen.now) {
            Decision::Write(next) => return Ok(Ok((lease.clone(), next.epoch.get()))),
            Decision::AlreadyApplied => {}
            Decision::Refuse(refusal) => refused = refused.or_else(|| Some(line(&refusal))),
        }
    }
    Ok(Err(refused.unwrap_or_default()))
}

/// The slot that would be claimed; or why none is due.
async fn candidate(
    coordinator: &Coordinator,
    plan: &Plan<'_>,
    seen: &leasehold_core::Inspection,
) -> Result<std::result::Result<Option<SlotClaim>, String>> {
    let found = match &plan.slot {
        SlotPlan::Unscheduled => None,
        SlotPlan::At(slot) | SlotPlan::Named(slot) => {
            Some(Candidate { slot: *slot, gives_up: None, is_recovery: false })
        }
        SlotPlan::Newest(schedule, policy, _) => {
            let (journal, _) = Journals::new(coordinator.clone()).read(&seen.lease).await?;
            let due = DuePlan::of(schedule, &seen.record, &journal, *policy, seen.now);
            match due.candidates(&seen.record).first() {
                Some(first) => Some(*first),
                None => return Ok(Err(super::slot::nothing_due(schedule, &seen.lease, seen, &journal))),
            }
        }
    };
    Ok(Ok(plan.slot.claim(found)))
}

fn request(plan: &Plan<'_>, slot: Option<SlotClaim>) -> Request {
    let (holder, ttl) = (HolderId::new(plan.settings.label.value.clone()), plan.settings.ttl.value);
    Request::Acquire { lineage: Lineage::random(), holder, ttl, slot, spacing: plan.spacing, requested: None }
}
