//! Lost answers, errors and dropped calls. If these are broken, a store's hiccup becomes a grant, or a leak.

use super::leases::run_out;
use crate::bench::{ensure, fresh_name};
use crate::faulty::{Fault, FaultyStore};
use crate::{Bench, Broken, Verdict};
use leasehold_core::store::Store;
use leasehold_core::{Acquired, Ask, Coordinator, HolderId, Kind, LeaseName, Nonce, Outcome, Released, Ttl};
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;

/// More calls than an acquire, a renewal and a release make, faults included.
const MAX_CALLS: u64 = 12;
/// More polls than an acquire needs.
const MAX_POLLS: u32 = 12;

/// The faults that calls of this store can have. Behind a server, what is visible and not durable is the fault of its store.
fn faults(store: &dyn Store) -> impl Iterator<Item = Fault> + use<> {
    let is_served = store.capabilities().by_verbs;
    Fault::ALL.into_iter().filter(move |fault| !(is_served && *fault == Fault::Unsynced))
}

pub(crate) async fn a_lost_reply_is_resolved_by_the_nonce(bench: Bench) -> Verdict {
    // What is only visible through the fault store is not in the store behind it, where the outcome is looked up.
    let store = bench.open().await?;
    for fault in faults(&*store).filter(|fault| *fault != Fault::Refused) {
        let store = bench.open().await?;
        let lease = fresh_name("lost-reply")?;
        // The first call reads the record, the second the namespace's mark, and the third is the swap. A server reads the mark.
        let swap = if store.capabilities().by_verbs { 2 } else { 3 };
        let acquiring = Coordinator::new(Arc::new(FaultyStore::new(store.clone(), fault, swap)));
        let holder = HolderId::new(None);
        let grant = match acquiring.acquire(&lease, &Ask::new(holder.clone(), Ttl::MAX)).await? {
            Acquired::Granted(grant) => grant,
            Acquired::Refused { refusal, .. } => {
                ensure!(false, "{fault:?}: our own grant was taken for somebody else's: {refusal:?}");
                return Ok(());
            }
        };
        let record = Coordinator::new(store.clone()).inspect(&lease).await?.record;
        ensure!(record.epoch.get() == 1, "{fault:?}: one acquisition moved the epoch to {}", record.epoch);
        ensure!(record.is_held_by(grant.token().claim()), "{fault:?}: a grant without a record");
        let releasing = Coordinator::new(Arc::new(FaultyStore::new(store.clone(), fault, 1)));
        let released = releasing.release(&grant, Outcome::Succeeded).await?;
        ensure!(released == Released::Now, "{fault:?}: a release whose answer was lost gave {released:?}");
        let record = Coordinator::new(store).inspect(&lease).await?.record;
        ensure!(record.tenure.is_none(), "{fault:?}: a release was reported and not made");
    }
    Ok(())
}

pub(crate) async fn no_error_is_a_grant(bench: Bench) -> Verdict {
    let store = bench.open().await?;
    let sound = Coordinator::new(store.clone());
    for fault in faults(&*store) {
        for call in 1..=MAX_CALLS {
            let faulty = Arc::new(FaultyStore::new(store.clone(), fault, call));
            let leases = Coordinator::new(faulty.clone());
            let lease = fresh_name("fail-closed")?;
            let holder = HolderId::new(None);
            let nonce = holder.nonce();
            let answer = leases.acquire(&lease, &Ask::new(holder, Ttl::MAX)).await;
            let record = sound.inspect(&lease).await?.record;
            let held = record.tenure.as_ref().is_some_and(|tenure| tenure.holder.nonce() == nonce);
            match answer {
                Ok(Acquired::Granted(mut grant)) => {
                    ensure!(held, "{fault:?} at call {call}: granted without a record");
                    let renewed = leases.renew(&mut grant, None).await;
                    let released = leases.release(&grant, Outcome::Succeeded).await;
                    let free = sound.inspect(&lease).await?.record.tenure.is_none();
                    if let Ok(Released::Now) = released {
                        ensure!(free, "{fault:?} at call {call}: released, and still held (renewal gave {renewed:?})");
                    }
                }
                Ok(Acquired::Refused { refusal, .. }) => {
                    ensure!(false, "{fault:?} at call {call}: a free lease was refused: {refusal:?}");
                }
                Err(e) if e.kind() == Kind::Indeterminate => {}
                Err(e) => ensure!(!held, "{fault:?} at call {call}: held, though the answer was: {e}"),
            }
            if faulty.calls() < call {
                break;
            }
        }
    }
    Ok(())
}

pub(crate) async fn a_dropped_call_leaves_nothing_held_for_ever(bench: Bench) -> Verdict {
    let leases = bench.coordinator().await?;
    for polls in 1..=MAX_POLLS {
        let lease = fresh_name("dropped")?;
        let holder = HolderId::new(None);
        let nonce = holder.nonce();
        let ask = Ask::new(holder, Ttl::MAX);
        let ended = polled(leases.acquire(&lease, &ask), polls).await;
        ensure!(
            comes_in_next(&bench, &leases, &lease, nonce).await?,
            "after {polls} polls nobody else can have the lease"
        );
        if let Some(answer) = ended {
            answer?;
            break;
        }
    }
    Ok(())
}

/// Whether the next one gets the lease, once the dropped call's tenure, if there is one, has run out.
async fn comes_in_next(bench: &Bench, leases: &Coordinator, lease: &LeaseName, dropped: Nonce) -> Result<bool, Broken> {
    // Twice, because a request that was on its way when the call was dropped may arrive after the first look.
    for _ in 0..2 {
        if let Some(tenure) = &leases.inspect(lease).await?.record.tenure {
            ensure!(tenure.holder.nonce() == dropped, "after a dropped call somebody else holds it: {tenure:?}");
            ensure!(
                tenure.deadline <= tenure.granted_at.plus(Ttl::MAX.get()),
                "after a dropped call it is held for longer than its ttl: {tenure:?}"
            );
            run_out(bench, lease).await?;
        }
        let next = Ask::new(HolderId::new(None), Ttl::MAX);
        if let Acquired::Granted(_) = leases.acquire(lease, &next).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Polls a future at most so many times, then drops it: as a caller does who is cancelled at that very point.
async fn polled<F: Future>(future: F, polls: u32) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
