//! The store's clock, expiry and hints. If these are broken, a lease is granted too early, or never.

use crate::bench::{done, ensure, fresh_key, fresh_name};
use crate::{Bench, Broken, Verdict};
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::store::{Range, Store, Watching};
use leasehold_core::{Acquired, Ask, HolderId, Key, Kind, Outcome, Released, Revision, Shelf, Timestamp, Ttl};
use std::time::Duration;

/// How late anything may be on a busy machine.
const SLACK: Duration = Duration::from_secs(10);
const LOOKS: usize = 50;

fn grain(store: &dyn Store) -> Duration {
    store.capabilities().clock.grain()
}

pub(crate) async fn time_never_goes_back(bench: Bench) -> Verdict {
    let stores = [bench.open().await?, bench.open().await?];
    let grain = grain(&*stores[0]);
    let key = fresh_key("time")?;
    let mut latest = Timestamp::from_millis(0);
    let mut revision: Option<Revision> = None;
    for look in 0..LOOKS {
        let store = &stores[look % 2];
        let now = match look % 3 {
            0 => store.read(&key).await?.now,
            1 => store.list(Shelf::Probe, Range::new(None, 1)).await?.now,
            _ => {
                let (next, now) = done(store.swap(&key, revision.as_ref(), b"x").await?, "a swap")?;
                revision = Some(next);
                now
            }
        };
        let back = latest.saturating_since(now);
        ensure!(back <= grain, "the clock went back by {back:?}, more than its grain of {grain:?}");
        latest = latest.max(now);
    }
    Ok(())
}

pub(crate) async fn time_moves_on(bench: Bench) -> Verdict {
    let store = bench.open().await?;
    let (grain, key, clock) = (grain(&*store), fresh_key("time")?, SystemClock);
    let wait = grain * 2 + Duration::from_millis(50);
    let began = clock.now();
    let first = store.read(&key).await?.now;
    let between = clock.now();
    clock.sleep_until(between + wait).await;
    let asked = clock.now();
    let second = store.read(&key).await?.now;
    let (least, most) = (asked.saturating_since(between), clock.now().saturating_since(began));
    let passed = second.saturating_since(first);
    // The store's clock may be adjusted while we look, hence the tenth.
    let (least, most) = (least.saturating_sub(grain) * 9 / 10, (most + grain) * 11 / 10);
    ensure!(
        (least..=most + Duration::from_millis(2)).contains(&passed),
        "in {least:?} to {most:?} of this machine's time, {passed:?} passed in the store"
    );
    Ok(())
}

pub(crate) async fn a_watch_hints_at_changes(bench: Bench) -> Verdict {
    let (writer, watcher) = (bench.open().await?, bench.open().await?);
    let key = fresh_key("watch")?;
    let mut revision: Option<Revision> = None;
    // The first write may be made in another way than the later ones.
    for turn in ["first", "second"] {
        let mut watch = watcher.watch(&key).await?;
        // Asked only now: a store may find out by trying that a pooler in between passes no hints on.
        if watcher.capabilities().watch == Watching::None {
            return Ok(());
        }
        revision = Some(done(writer.swap(&key, revision.as_ref(), b"x").await?, "a swap")?.0);
        let hinted = tokio::select! {
            () = watch.hint() => true,
            () = SystemClock.sleep_until(SystemClock.now() + SLACK) => false,
        };
        ensure!(hinted, "the store says that it hints, and did not at the {turn} swap");
    }
    Ok(())
}

pub(crate) async fn a_lease_can_be_acquired_after_its_ttl_and_not_before(bench: Bench) -> Verdict {
    let shortest = Ttl::MIN.get() + grain(&*bench.open().await?) * 3;
    // A store whose answer takes longer than the shortest lease lasts, as on a busy disk, breaks no promise.
    for factor in [1, 4, 16] {
        match expiry(&bench, Ttl::new(shortest * factor)?).await {
            Err(error) if error.kind() == Kind::Lost => {}
            tried => return tried?,
        }
    }
    Err(Broken(format!(
        "three times a lease was granted only after it had run out, at last one of {:?}",
        shortest * 16
    )))
}

/// The verdict, or the error of a call. One of kind `Lost` says that a lease was granted after it had run out.
async fn expiry(bench: &Bench, ttl: Ttl) -> leasehold_core::Result<Verdict> {
    let (first, second) = (bench.coordinator().await?, bench.coordinator().await?);
    let lease = fresh_name("expiry")?;
    let clock = SystemClock;
    let Acquired::Granted(grant) = first.acquire(&lease, &Ask::new(HolderId::new(None), ttl)).await? else {
        return Ok(Err(Broken("a lease that nobody ever held was refused".into())));
    };
    let give_up = clock.now() + ttl.get() + SLACK;
    let next = loop {
        match second.acquire(&lease, &Ask::new(HolderId::new(None), ttl)).await? {
            Acquired::Granted(next) => break next,
            Acquired::Refused { .. } if clock.now() < give_up => {
                clock.sleep_until(clock.now() + Duration::from_millis(25)).await;
            }
            Acquired::Refused { .. } => {
                return Ok(Err(Broken(format!("a lease of {ttl} could not be acquired {SLACK:?} after it expired"))));
            }
        }
    };
    let granted = clock.now();
    let released = first.release(&grant, Outcome::Succeeded).await?;
    let record = second.store().read(&Key::new(Shelf::Lease, &lease)).await?.value;
    let (old, new) = (grant.token().epoch, next.token().epoch);
    Ok((|| {
        ensure!(granted >= grant.trust_until(), "a lease was granted again while its holder could still trust it");
        ensure!(new > old, "after a tenure that ran out, epoch {new} follows {old}");
        ensure!(matches!(released, Released::Lost(_)), "the holder whose lease ran out released it: {released:?}");
        ensure!(record.is_some(), "the record of a lease is gone");
        Ok(())
    })())
}
