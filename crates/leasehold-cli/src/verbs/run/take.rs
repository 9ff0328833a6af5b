//! Taking the lease, and a flock if one is asked for, as the busy policy says.

use super::Plan;
use leasehold_core::clock::{Clock, Moment, SystemClock};
use leasehold_core::lease::protocol::Refusal;
use leasehold_core::{
    Acquired, Ask, Coordinator, Error, Grant, HolderId, Kind, LeaseName, Outcome, Resolver, Result, Timestamp,
};
use rustix::fs::FlockOperation;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often a flock that is waited for is tried, because nothing notifies when it is free.
const FLOCK_POLL: Duration = Duration::from_secs(1);

/// What to do when the lease is held.
#[derive(Debug, Clone, Copy)]
pub enum Busy {
    /// Skip the run.
    Skip,
    /// Wait for it, this long at most.
    Wait(Duration),
    /// Try once more after this long.
    RetryAfter(Duration),
}

/// Whether the names are seats of one lease, so that a pause of the first holds for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seats {
    /// Every name is a seat of the same lease.
    OfOneLease,
    /// Each name is a lease of its own.
    Apart,
}

/// The result of trying to acquire.
pub enum Taken {
    /// The lease, and the flock if one was asked for.
    Granted(Box<Grant>, Option<File>),
    /// Neither: somebody holds the lease.
    Refused(LeaseName, Box<Refusal>, Timestamp),
    /// Neither: somebody has flocked this.
    FlockHeld(PathBuf),
}

/// Takes it. `ask` always has the nonce of the request that is under way, so that a caller that gives up knows what to take
/// back.
pub async fn take(coordinator: &Coordinator, plan: &Plan<'_>, ask: &mut Ask) -> Result<Taken> {
    if let Some(token) = &plan.adopt {
        coordinator.resolve(token).await?.in_force(token)?;
        let mut grant = coordinator.adopt(token).await?;
        // It may have been waiting to be taken up for most of its time.
        coordinator.renew(&mut grant, None).await?;
        return Ok(Taken::Granted(Box::new(grant), None));
    }
    let give_up = match plan.busy {
        Busy::Wait(limit) => SystemClock.now() + limit,
        Busy::Skip | Busy::RetryAfter(_) => SystemClock.now(),
    };
    let mut retries = u32::from(matches!(plan.busy, Busy::RetryAfter(_)));
    loop {
        let busy = match once(coordinator, plan, ask, give_up).await? {
            taken @ Taken::Granted(..) => return Ok(taken),
            busy => busy,
        };
        let left = give_up.saturating_since(SystemClock.now());
        let pause = match (plan.busy, &busy) {
            (Busy::RetryAfter(pause), _) if retries > 0 => pause,
            // Only a flock is waited for here: the lease has been waited for already.
            (Busy::Wait(_), Taken::FlockHeld(_)) if !left.is_zero() => left.min(FLOCK_POLL),
            // A seat was granted and given back, because a pause came in between.
            (Busy::Wait(_), Taken::Refused(_, refusal, _)) if !left.is_zero() && is_paused(refusal) => {
                left.min(FLOCK_POLL)
            }
            _ => return Ok(busy),
        };
        retries = retries.saturating_sub(1);
        SystemClock.sleep_until(SystemClock.now() + pause).await;
        // A nonce that was granted and given back serves no second tenure.
        ask.holder = HolderId::new(plan.settings.label.value.clone());
    }
}

const fn is_paused(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::Paused(_))
}

async fn once(coordinator: &Coordinator, plan: &Plan<'_>, ask: &Ask, give_up: Moment) -> Result<Taken> {
    let left = give_up.saturating_since(SystemClock.now());
    // A slot that is claimed and given back again keeps newer ones out meanwhile.
    if ask.slot.is_some() && flock(plan.flock.as_deref())?.is_none() {
        return Ok(Taken::FlockHeld(plan.flock.clone().unwrap_or_default()));
    }
    let acquired = match (plan.seats, plan.busy) {
        (Seats::OfOneLease, _) => coordinator.acquire_seat(&plan.leases, ask, left).await?,
        (Seats::Apart, Busy::Wait(_)) => coordinator.acquire_within(&plan.leases, ask, left).await?,
        (Seats::Apart, Busy::Skip | Busy::RetryAfter(_)) => coordinator.acquire_any(&plan.leases, ask).await?,
    };
    match acquired {
        Acquired::Refused { lease, refusal, now } => Ok(Taken::Refused(lease, refusal, now)),
        Acquired::Granted(grant) => match flock(plan.flock.as_deref()) {
            Ok(Some(file)) => Ok(Taken::Granted(grant, file)),
            Ok(None) => {
                coordinator.release(&grant, Outcome::NotStarted).await?;
                Ok(Taken::FlockHeld(plan.flock.clone().unwrap_or_default()))
            }
            Err(error) => {
                coordinator.release(&grant, Outcome::Failed).await?;
                Err(error)
            }
        },
    }
}

/// `Ok(None)` when somebody else has it; `Ok(Some(None))` when none is asked for. The command inherits it, so that it
/// is held for as long as any process of the command lives.
#[allow(clippy::option_option)]
fn flock(path: Option<&Path>) -> Result<Option<Option<File>>> {
    let Some(path) = path else { return Ok(Some(None)) };
    let cannot =
        |e: std::io::Error| Error::new(Kind::Unsupported, format!("cannot flock `{}`", path.display())).with_source(e);
    let file = File::options().create(true).append(true).open(path).map_err(cannot)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {
            rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).map_err(|e| cannot(e.into()))?;
            Ok(Some(Some(file)))
        }
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(cannot(error.into())),
    }
}
