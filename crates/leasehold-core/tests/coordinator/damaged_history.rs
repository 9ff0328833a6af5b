//! An archive that is damaged, half erased or older or newer than its record: nobody is stopped, what is left is shown, and
//! what is missing is named.

use crate::history::{epochs, held_back, record, tenures};
use crate::support::faults::{Call, Fault, Gate};
use crate::{Bench, bench, name};
use leasehold_core::lease::protocol::Order;
use leasehold_core::store::{Change, Range, Versioned};
use leasehold_core::{
    Acquired, Ask, Coordinator, Epoch, History, Key, Kind, LeaseName, Operated, Outcome, Reason, Retention, Shelf,
    Store, TRANSFERS_KEPT, Ttl,
};
use std::sync::Arc;

async fn segments(bench: &Bench) -> Vec<(LeaseName, Versioned)> {
    bench.store.inner.list(Shelf::History, Range::new(None, 1_000)).await.unwrap().entries
}

/// Overwrites a segment with something else.
async fn damage(bench: &Bench, segment: usize) -> LeaseName {
    let (name, value) = segments(bench).await.swap_remove(segment);
    let key = Key::new(Shelf::History, &name);
    bench.store.inner.write(&Change::put(&key, Some(&value.revision), b"rubbish")).await.unwrap();
    name
}

async fn history(bench: &Bench) -> History {
    let record = bench.record().await;
    bench.leases.history(&name(), &record).await.unwrap()
}

fn shown(history: &History) -> Vec<u64> {
    history.transfers.iter().map(|transfer| transfer.epoch.get()).collect()
}

#[tokio::test]
async fn archiving_continues_beside_a_damaged_segment_which_is_left_as_it_is() {
    let bench = bench();
    tenures(&bench.leases, 1_000, 100).await;
    let last = segments(&bench).await.len() - 1;
    let damaged = damage(&bench, last).await;
    tenures(&bench.leases, 2_000, 400).await;
    assert!(bench.record().await.transfers.len() <= TRANSFERS_KEPT + 1, "the record does not grow");
    let known = history(&bench).await;
    let missing: Vec<u64> = (1..=500).filter(|epoch| !shown(&known).contains(epoch)).collect();
    assert!((1..=16).contains(&missing.len()), "only what was in it is missing: {missing:?}");
    let [told] = &known.damaged[..] else { panic!("{:?}", known.damaged) };
    assert_eq!(told.kind(), Kind::Corrupt);
    assert!(told.to_string().contains(damaged.as_str()), "{told}");
    let (_, value) = segments(&bench).await.into_iter().find(|(name, _)| *name == damaged).unwrap();
    assert_eq!(value.bytes, b"rubbish", "it was left as it is");
}

#[tokio::test]
async fn a_segment_that_was_damaged_before_the_record_dropped_it_is_written_beside() {
    let bench = bench();
    bench.store.plan(|call, _| if call == Call::Archive { Fault::LostReply } else { Fault::None });
    tenures(&bench.leases, 1_000, TRANSFERS_KEPT + 4).await;
    bench.store.heal();
    assert_eq!(bench.record().await.archived, Epoch::ZERO, "nothing was answered, so nothing was dropped");
    damage(&bench, 0).await;
    tenures(&bench.leases, 2_000, 64).await;
    let known = history(&bench).await;
    assert_eq!(shown(&known), (1..=TRANSFERS_KEPT as u64 + 4 + 64).collect::<Vec<_>>());
    assert_eq!(known.damaged.len(), 1, "{:?}", known.damaged);
}

#[tokio::test]
async fn a_damaged_segment_hides_no_other_and_a_move_leaves_it_behind_and_names_it() {
    let bench = bench();
    tenures(&bench.leases, 1_000, 100).await;
    let record = bench.record().await;
    let damaged = damage(&bench, 2).await;
    let known = history(&bench).await;
    assert_eq!(shown(&known), (1..32).chain(48..=100).collect::<Vec<_>>());
    let [told] = &known.damaged[..] else { panic!("{:?}", known.damaged) };
    assert!(told.to_string().contains("epochs 32 to 47"), "{told}");
    let there = crate::bench();
    let left = bench.leases.copy_history(&name(), &record, &there.leases).await.unwrap();
    assert!(left[0].to_string().contains(damaged.as_str()), "{left:?}");
    let known = there.leases.history(&name(), &record).await.unwrap();
    assert_eq!(shown(&known), (1..32).chain(48..=100).collect::<Vec<_>>());
    let [told] = &known.damaged[..] else { panic!("{:?}", known.damaged) };
    assert!(told.to_string().contains("epochs 32 to 47 are missing"), "{told}");
}

#[tokio::test]
async fn a_damaged_segment_is_erased_when_its_time_has_come() {
    let bench = bench();
    let leases = bench.leases.clone().with_retention(Retention { transfers: 64, age: None });
    tenures(&leases, 1_000, 50).await;
    let damaged = damage(&bench, 1).await;
    tenures(&leases, 2_000, 400).await;
    assert!(segments(&bench).await.iter().all(|(name, _)| *name != damaged));
    let known = history(&bench).await;
    assert!(known.damaged.is_empty(), "{:?}", known.damaged);
    assert_eq!(shown(&known).last(), Some(&450));
}

/// However its archive fails, a record stays small enough to be written, and says that something was forgotten.
#[tokio::test]
async fn a_record_that_cannot_be_archived_stays_small() {
    for kind in [Kind::Corrupt, Kind::Unavailable] {
        let bench = bench();
        tenures(&bench.leases, 1_000, 1).await;
        bench.store.plan(move |call, _| if call == Call::Archive { Fault::Fails(kind) } else { Fault::None });
        let why = "w".repeat(500);
        for _ in 0..400 {
            let (who, why) = ("ann".parse().unwrap(), why.parse().unwrap());
            let ordered = bench.leases.operate(&name(), who, why, Order::Revoke).await;
            assert!(matches!(ordered, Ok(Operated::Done(_))), "{ordered:?}");
        }
        bench.store.heal();
        tenures(&bench.leases, 2_000, 100).await;
        let known = history(&bench).await;
        assert_eq!(shown(&known).last(), Some(&501));
        let [told] = &known.damaged[..] else { panic!("{:?}", known.damaged) };
        assert!(told.to_string().starts_with("epochs "), "{told}");
    }
}

#[tokio::test]
async fn what_was_forgotten_is_unknown() {
    let answer = held_back(3 * TRANSFERS_KEPT, async |bench| {
        damage(bench, 0).await;
        tenures(&bench.leases, 9_000, 40).await;
    })
    .await;
    assert_eq!(answer.unwrap_err().kind(), Kind::Indeterminate);
}

/// The record alone comes from a backup; the archive has gone on, and knows of an order that the record never had.
#[tokio::test]
async fn a_record_that_was_restored_below_its_archive_is_not_told_what_came_after_it() {
    let bench = bench();
    tenures(&bench.leases, 1_000, 3).await;
    let key = Key::new(Shelf::Lease, &name());
    let old = bench.store.inner.read(&key).await.unwrap().value.unwrap().bytes;
    let gate = Gate::default();
    bench.store.next(Call::Swap, &[Fault::Held(gate.clone(), Box::new(Fault::LostReply))]);
    let leases = bench.leases.clone();
    let ordering = tokio::spawn(async move {
        leases.operate(&name(), "ann".parse().unwrap(), "drill".parse().unwrap(), Order::Revoke).await
    });
    gate.reached().await;
    bench.store.heal();
    tenures(&bench.leases, 2_000, 140).await;
    restore(&bench, &old).await;
    let past = Epoch::new(1_000).unwrap();
    bench.operate(Order::Advance { past, lineage: None }).await.unwrap();
    tenures(&bench.leases, 5_000, 100).await;
    gate.open();
    let ordered = ordering.await.unwrap();
    let Ok(Operated::Done(carried)) = ordered else {
        panic!("it is made again, for this record never had it: {ordered:?}")
    };
    let record = &carried.record;
    assert_eq!(record.epoch.get(), 1_102);
    assert_eq!(record.transfers.last().unwrap().reason, Reason::Revoked);
    assert!(record.transfers.windows(2).all(|pair| pair[0].epoch < pair[1].epoch), "{:?}", record.transfers);
}

async fn restore(bench: &Bench, old: &[u8]) {
    let key = Key::new(Shelf::Lease, &name());
    let now = bench.store.inner.read(&key).await.unwrap().value.unwrap().revision;
    bench.store.inner.write(&Change::put(&key, Some(&now), old)).await.unwrap();
}

/// What the archive has of another line of the same epochs proves nothing.
#[tokio::test]
async fn a_reply_that_only_two_lines_of_epochs_could_tell_is_unknown() {
    let answer = held_back(0, async |bench| {
        let key = Key::new(Shelf::Lease, &name());
        let old = bench.store.inner.read(&key).await.unwrap().value.unwrap().bytes;
        tenures(&bench.leases, 2_000, 140).await;
        restore(bench, &old).await;
        tenures(&bench.leases, 7_000, 100).await;
    })
    .await;
    assert_eq!(answer.unwrap_err().kind(), Kind::Indeterminate);
}

/// Whoever acquires for others leaves the archive to them: their renewals and releases say how far it went.
#[tokio::test]
async fn grants_that_are_handed_on_are_archived_once() {
    let bench = bench();
    let store: Arc<dyn Store> = bench.store.clone();
    let (scheduler, runs) = (Coordinator::new(store.clone()).for_others(), Coordinator::new(store));
    bench.store.heal();
    let mut written = 0;
    for turn in 1..=100_u64 {
        let ask = Ask::new(crate::support::holder(u128::from(turn)), Ttl::MAX);
        let Acquired::Granted(grant) = scheduler.acquire(&name(), &ask).await.unwrap() else { panic!("it is free") };
        let before: Vec<_> = segments(&bench).await.into_iter().map(|(_, value)| value.revision).collect();
        let adopted = runs.adopt(grant.token()).await.unwrap();
        // Its task has its turn here.
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
        runs.release(&adopted, Outcome::Succeeded).await.unwrap();
        let after = segments(&bench).await;
        written += after.iter().filter(|(_, value)| !before.contains(&value.revision)).count();
    }
    assert_eq!(epochs(&runs).await, (1..=100).collect::<Vec<_>>());
    assert!(record(&runs).await.transfers.len() <= 20);
    assert!((6..=7).contains(&written), "once for every 16: {written}");
}

/// The listing begins at the oldest segment that is left, however many were erased before it.
#[tokio::test]
async fn what_was_erased_is_not_listed_again() {
    let bench = bench();
    let leases = bench.leases.clone().with_retention(Retention { transfers: 64, age: None });
    tenures(&leases, 1_000, 800).await;
    let (name, value) = segments(&bench).await.pop().unwrap();
    let text = String::from_utf8(value.bytes).unwrap();
    let oldest: u64 = text.split("\"oldest\":").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
    let number: u64 = name.as_str().rsplit('/').next().unwrap().parse().unwrap();
    assert!(number - oldest <= 10, "{oldest} of {number}");
}
