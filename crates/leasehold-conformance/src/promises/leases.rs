//! Leases carried by the store. If these are broken, a fenced-off holder's writes count again.

use crate::bench::{done, ensure, fresh_name};
use crate::{Bench, Broken, Verdict};
use leasehold_core::lease::protocol::Order;
use leasehold_core::{
    Acquired, Ask, Coordinator, Epoch, Grant, HolderId, Key, Kind, LeaseName, Operated, Outcome, Ownership, Released,
    Shelf, Timestamp, Ttl, codec,
};
use std::sync::Arc;
use tokio::sync::Barrier;

const LONG: Ttl = Ttl::MAX;

/// Acquires a lease that must be free.
async fn take(leases: &Coordinator, lease: &LeaseName) -> Result<Grant, Broken> {
    take_as(leases, lease, HolderId::new(None)).await
}

async fn take_as(leases: &Coordinator, lease: &LeaseName, holder: HolderId) -> Result<Grant, Broken> {
    match leases.acquire(lease, &Ask::new(holder, LONG)).await? {
        Acquired::Granted(grant) => Ok(*grant),
        Acquired::Refused { refusal, .. } => Err(Broken(format!("a free lease was refused: {refusal:?}"))),
    }
}

/// Lets the present tenure run out, by moving its deadline into the past.
pub(super) async fn run_out(bench: &Bench, lease: &LeaseName) -> Result<(), Broken> {
    let (key, store) = (Key::new(Shelf::Lease, lease), bench.direct().await?);
    let Some(value) = store.read(&key).await?.value else {
        return Err(Broken(format!("the record of `{lease}` is gone")));
    };
    let mut record: Ownership = codec::decode("ownership", &value.bytes, lease.as_str())?;
    if let Some(tenure) = &mut record.tenure {
        tenure.deadline = Timestamp::from_millis(tenure.granted_at.as_millis().min(1));
    }
    let bytes = codec::encode("ownership", &record)?;
    done(store.swap(&key, Some(&value.revision), &bytes).await?, "a swap that nobody contends")?;
    Ok(())
}

pub(crate) async fn release_keeps_the_epoch(bench: Bench) -> Verdict {
    let leases = bench.coordinator().await?;
    let lease = fresh_name("release")?;
    let grant = take(&leases, &lease).await?;
    ensure!(leases.release(&grant, Outcome::Succeeded).await? == Released::Now, "the holder could not release");
    let record = bench.coordinator().await?.inspect(&lease).await?.record;
    ensure!(
        record.epoch == grant.token().epoch && record.tenure.is_none(),
        "after the release of epoch {} the record has epoch {} and {:?}",
        grant.token().epoch,
        record.epoch,
        record.tenure
    );
    Ok(())
}

pub(crate) async fn epochs_strictly_rise(bench: Bench) -> Verdict {
    let lease = fresh_name("rise")?;
    let mut last = Epoch::ZERO;
    let mut leases = bench.coordinator().await?;
    for turn in 0..bench.effort.tenures {
        if turn % 50 == 0 {
            leases = bench.coordinator().await?;
        }
        let grant = take(&leases, &lease).await?;
        let epoch = grant.token().epoch;
        ensure!(epoch > last, "epoch {epoch} was granted after {last}");
        last = epoch;
        match turn % 3 {
            0 => {
                ensure!(leases.release(&grant, Outcome::Failed).await? == Released::Now, "the holder could not release")
            }
            1 => run_out(&bench, &lease).await?,
            _ => {
                let order = leases.operate(&lease, "a tester".parse()?, "conformance".parse()?, Order::Revoke).await?;
                ensure!(matches!(order, Operated::Done(_)), "an operator could not revoke: {order:?}");
                last = leases.inspect(&lease).await?.record.epoch;
                ensure!(last > epoch, "revoking epoch {epoch} left the record at {last}");
            }
        }
    }
    Ok(())
}

pub(crate) async fn two_runs_with_one_label_are_distinguished(bench: Bench) -> Verdict {
    let (first, second) = (bench.coordinator().await?, bench.coordinator().await?);
    let lease = fresh_name("label")?;
    let run = || -> Result<HolderId, Broken> { Ok(HolderId::new(Some("worker".parse()?))) };
    let old = take_as(&first, &lease, run()?).await?;
    run_out(&bench, &lease).await?;
    let new = take_as(&second, &lease, run()?).await?;
    match first.release(&old, Outcome::Succeeded).await? {
        Released::Lost(_) => {}
        other => ensure!(false, "a replaced run released its namesake's lease: {other:?}"),
    }
    let record = second.inspect(&lease).await?.record;
    ensure!(record.is_held_by(new.token().claim()), "the new run lost its lease to its namesake's release");
    Ok(())
}

pub(crate) async fn a_zombie_cannot_renew(bench: Bench) -> Verdict {
    let (first, second) = (bench.coordinator().await?, bench.coordinator().await?);
    let lease = fresh_name("zombie")?;
    let mut zombie = take(&first, &lease).await?;
    run_out(&bench, &lease).await?;
    let new = take(&second, &lease).await?;
    let before = second.inspect(&lease).await?.record;
    match first.renew(&mut zombie, None).await {
        Err(e) => ensure!(e.kind() == Kind::Lost, "a zombie's renewal gave another error: {e}"),
        Ok(()) => ensure!(false, "epoch {} was renewed after {}", zombie.token().epoch, new.token().epoch),
    }
    ensure!(second.inspect(&lease).await?.record == before, "a zombie's refused renewal changed the record");
    Ok(())
}

pub(crate) async fn one_of_many_gets_the_lease(bench: Bench) -> Verdict {
    let lease = fresh_name("many")?;
    // Ends with this future: a caller that gives up clears the store afterwards.
    let mut clients = tokio::task::JoinSet::new();
    // All at once: a client that asked before the others would meet no contention.
    let start = Arc::new(Barrier::new(bench.effort.clients));
    for _ in 0..bench.effort.clients {
        let (leases, lease, start) = (bench.coordinator().await?, lease.clone(), start.clone());
        clients.spawn(async move {
            start.wait().await;
            leases.acquire(&lease, &Ask::new(HolderId::new(None), LONG)).await
        });
    }
    let mut granted = Vec::new();
    while let Some(client) = clients.join_next().await {
        match client.map_err(|e| Broken(format!("a client panicked: {e}")))? {
            Ok(Acquired::Granted(grant)) => granted.push(grant.token().clone()),
            Ok(Acquired::Refused { .. }) => {}
            Err(e) if e.is_retryable() => {}
            Err(e) => return Err(e.into()),
        }
    }
    ensure!(granted.len() == 1, "{} clients were granted one lease: {granted:?}", granted.len());
    Ok(())
}
