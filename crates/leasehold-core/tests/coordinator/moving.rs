//! Namespaces that are moved: nothing comes up behind the mark, and whoever is evicted has lost at once.

use crate::support::faults::{Call, Fault, Gate};
use crate::support::seconds;
use crate::{Bench, TTL, ask, bench, granted, name};
use leasehold_core::lease::protocol::{Holder, Order, Report};
use leasehold_core::migration::{self, Migration};
use leasehold_core::relocation::{Address, Step};
use leasehold_core::{Acquired, Keeper, Kind, Loss, Nonce, Operated, Remedy, Result};
use tokio::task::JoinHandle;

/// A migration of this number, from one folder to another.
fn migration(number: u128, from: &str, to: &str) -> Migration {
    let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
    Migration { number: Nonce::from_u128(number), from, to, by: "ada@box".parse().unwrap() }
}

fn leaving(migration: &Migration) -> Step {
    Step::Leave { to: migration.to.clone() }
}

/// A lease's first write is held back until its namespace has been marked as leaving.
async fn marked_during_the_first_write(bench: &Bench, migration: &Migration) -> (Gate, JoinHandle<Result<Acquired>>) {
    let gate = Gate::default();
    bench.store.next(Call::Swap, &[Fault::Held(gate.clone(), Box::new(Fault::None))]);
    let leases = bench.leases.clone();
    let acquiring = tokio::spawn(async move { leases.acquire(&name(), &ask(1)).await });
    gate.reached().await;
    bench.store.heal();
    migration::leave(bench.store.as_ref(), &leaving(migration), migration).await.unwrap();
    (gate, acquiring)
}

#[tokio::test]
async fn a_name_that_comes_up_while_its_namespace_leaves_is_taken_back() {
    let bench = bench();
    let migration = migration(5, "dir:/old", "dir:/new");
    // The second look at the mark comes after the record was written, so a mark that came in between is seen.
    let (gate, acquiring) = marked_during_the_first_write(&bench, &migration).await;
    gate.open();
    let error = acquiring.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    let ends = Remedy::FinishMigration { from: "dir:/old".parse().unwrap(), to: "dir:/new".parse().unwrap() };
    assert!(error.remedy() == Some(&ends) && error.to_string().contains("by ada@box"), "{error}");
    assert!(bench.record().await.is_unknown(), "nothing was changed, as it says");
    migration::leave(bench.store.as_ref(), &Step::Depart, &migration).await.unwrap();
    let error = bench.acquire(2).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Moved, "{error}");
    assert!(error.to_string().contains("dir:/new"), "{error}");
    assert!(bench.record().await.is_unknown());
}

#[tokio::test]
async fn a_birth_whose_mark_cannot_be_read_leaves_the_lease_to_nobody() {
    // The first read is the record's, the second the mark's before the write.
    let fails_after = |spared: usize, failing: usize| {
        let mut number = 0;
        move |call: Call, _: usize| {
            number += usize::from(call == Call::Read);
            let is_chosen = call == Call::Read && number > spared && number <= spared + failing;
            if is_chosen { Fault::Fails(Kind::Unavailable) } else { Fault::None }
        }
    };
    // It is read again.
    let bench = bench();
    bench.store.plan(fails_after(2, 3));
    granted(bench.acquire(1).await);
    // The write is taken back, and the next contender gets the lease at once.
    let bench = crate::bench();
    bench.store.plan(fails_after(2, 100));
    let error = bench.acquire(1).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    bench.store.heal();
    assert!(bench.record().await.is_unknown(), "nothing was changed, as it says");
    granted(bench.acquire(2).await);
}

#[tokio::test]
async fn a_birth_that_cannot_be_taken_back_is_unknown_and_grants_nothing() {
    let bench = bench();
    let migration = migration(5, "dir:/old", "dir:/new");
    let (gate, acquiring) = marked_during_the_first_write(&bench, &migration).await;
    bench.store.next(Call::Swap, &[Fault::Fails(Kind::Unavailable)]);
    gate.open();
    assert_eq!(acquiring.await.unwrap().unwrap_err().kind(), Kind::Indeterminate);
    bench.store.heal();
    migration::leave(bench.store.as_ref(), &Step::Depart, &migration).await.unwrap();
    // Its record stays, and nobody is granted it.
    bench.clock.advance(seconds(TTL));
    assert_eq!(bench.acquire(2).await.unwrap_err().kind(), Kind::Moved);
    assert_eq!(bench.record().await.epoch.get(), 1);
}

#[tokio::test]
async fn nothing_comes_up_where_another_stores_records_arrive() {
    let bench = bench();
    let migration = migration(5, "dir:/old", "dir:/new");
    migration::arrive(bench.store.as_ref(), &migration).await.unwrap();
    let error = bench.acquire(1).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert!(matches!(error.remedy(), Some(Remedy::FinishMigration { .. })), "{error}");
    assert!(bench.record().await.is_unknown());
    migration::arrived(bench.store.as_ref(), migration.number, migration::Arrival::Abandoned).await.unwrap();
    drop(bench.grant(2).await);
}

#[tokio::test]
async fn who_is_evicted_by_a_migration_has_lost_the_lease_at_once() {
    for last in [Step::Leave { to: "dir:/new".parse().unwrap() }, Step::Depart] {
        let bench = bench();
        let mut grant = bench.grant(1).await;
        let migration = migration(5, "dir:/old", "dir:/new");
        for step in [leaving(&migration), last.clone()] {
            let order = Order::Relocate { migration: migration.number, step, holder: Holder::Evicted };
            let why = "moved".parse().unwrap();
            let operated = bench.leases.operate(&name(), migration.by.clone(), why, order).await.unwrap();
            assert!(matches!(operated, Operated::Done(_)), "{operated:?}");
        }
        let error = bench.leases.renew(&mut grant.clone(), None).await.unwrap_err();
        let kind = if last == Step::Depart { Kind::Moved } else { Kind::Lost };
        assert_eq!(error.kind(), kind, "{error}");
        let error = bench.leases.checkpoint(&mut grant, Report::default()).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        // The keeper does not try again until its trust window ends.
        let keeper = Keeper::start(bench.leases.clone(), grant);
        bench.clock.advance(seconds(TTL) / 2);
        let loss = keeper.lost().await;
        assert!(matches!(loss, Loss::Moved(_)), "{loss:?}");
    }
}

#[tokio::test]
async fn a_namespace_is_moved_by_one_migration_at_a_time() {
    let bench = bench();
    let store = bench.store.as_ref();
    let (one, two) = (migration(1, "dir:/a", "dir:/b"), migration(2, "dir:/a", "dir:/c"));
    migration::leave(store, &leaving(&one), &one).await.unwrap();
    assert_eq!(migration::leave(store, &leaving(&two), &two).await.unwrap_err().kind(), Kind::Invalid);
    migration::leave(store, &leaving(&one), &one).await.unwrap();
    let (arriving, other) = (migration(2, "dir:/z", "dir:/a"), migration(3, "dir:/y", "dir:/a"));
    assert_eq!(migration::arrive(store, &arriving).await.unwrap_err().kind(), Kind::Invalid, "it is leaving");
    migration::leave(store, &Step::Stay, &one).await.unwrap();
    migration::arrive(store, &arriving).await.unwrap();
    migration::arrive(store, &arriving).await.unwrap();
    assert_eq!(migration::arrive(store, &other).await.unwrap_err().kind(), Kind::Invalid);
    migration::arrived(store, arriving.number, migration::Arrival::Complete).await.unwrap();
    let Acquired::Granted(_) = bench.acquire(1).await.unwrap() else { panic!("not granted") };
    drop(granted(bench.leases.acquire(&"other".parse().unwrap(), &ask(2)).await));
}

/// A process that slept cannot make it go on, nor can the same command, run again while it is taken back.
#[tokio::test]
async fn a_migration_that_was_given_up_never_continues() {
    for has_begun in [true, false] {
        let bench = bench();
        let store = bench.store.as_ref();
        let (one, two) = (migration(1, "dir:/a", "dir:/b"), migration(2, "dir:/a", "dir:/b"));
        if has_begun {
            migration::leave(store, &leaving(&one), &one).await.unwrap();
        }
        for _ in 0..2 {
            migration::give_up(store, one.number).await.unwrap();
            for step in [leaving(&one), Step::Depart] {
                let error = migration::leave(store, &step, &one).await.unwrap_err();
                let (from, to) = (Some("dir:/a".parse().unwrap()), Some("dir:/b".parse().unwrap()));
                assert_eq!(error.remedy(), Some(&Remedy::AbortMigration { from, to }), "{error}");
            }
        }
        migration::leave(store, &Step::Stay, &one).await.unwrap();
        assert_eq!(migration::leave(store, &leaving(&one), &one).await.unwrap_err().kind(), Kind::Invalid);
        migration::leave(store, &leaving(&two), &two).await.unwrap();
        migration::leave(store, &Step::Depart, &two).await.unwrap();
        assert_eq!(migration::give_up(store, two.number).await.unwrap_err().kind(), Kind::Invalid, "too late");
    }
}

/// Until the last write of a migration nothing comes into the store that it left, and nothing leaves the one that it goes to.
#[tokio::test]
async fn a_migration_that_is_not_finished_is_in_the_way_of_others() {
    let (old, new) = (bench(), bench());
    let (from, to) = (old.store.as_ref(), new.store.as_ref());
    let there = migration(1, "dir:/a", "dir:/b");
    let (on, back) = (migration(2, "dir:/b", "dir:/c"), migration(3, "dir:/b", "dir:/a"));
    migration::arrive(to, &there).await.unwrap();
    migration::leave(from, &leaving(&there), &there).await.unwrap();
    migration::leave(from, &Step::Depart, &there).await.unwrap();
    let error = migration::leave(to, &leaving(&on), &on).await.unwrap_err();
    let (a, b): (Address, Address) = ("dir:/a".parse().unwrap(), "dir:/b".parse().unwrap());
    assert_eq!(error.remedy(), Some(&Remedy::FinishMigration { from: a.clone(), to: b.clone() }), "{error}");
    migration::arrived(to, there.number, migration::Arrival::Complete).await.unwrap();
    let error = migration::arrive(from, &back).await.unwrap_err();
    assert!(error.to_string().contains("not finished"), "{error}");
    assert_eq!(error.remedy(), Some(&Remedy::CompleteMigration { from: a, to: b }), "{error}");
    migration::finish(from, there.number).await.unwrap();
    migration::arrive(from, &back).await.unwrap();
    migration::leave(to, &leaving(&back), &back).await.unwrap();
    migration::leave(to, &Step::Depart, &back).await.unwrap();
    migration::arrived(from, back.number, migration::Arrival::Complete).await.unwrap();
    migration::finish(to, back.number).await.unwrap();
    // One that wakes up late, and is told that everything is done, changes nothing.
    migration::arrived(to, there.number, migration::Arrival::Complete).await.unwrap();
    migration::finish(from, there.number).await.unwrap();
    drop(old.grant(1).await);
    assert_eq!(new.acquire(1).await.unwrap_err().kind(), Kind::Moved);
}
