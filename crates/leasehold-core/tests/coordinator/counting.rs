//! Counters, and lists with damaged records.

use crate::support::faults::{Call, Fault};
use crate::{ask, bench, granted, name};
use leasehold_core::distribution::REQUESTS;
use leasehold_core::lease::protocol::Order;
use leasehold_core::store::Change;
use leasehold_core::{
    Distribution, EndedRun, Epoch, Event, FENCED_KEPT, FencedWrite, Key, Kind, Ownership, Shelf, Store, Who, codec,
};
use std::time::Duration;

#[tokio::test]
async fn every_event_has_its_own_counter() {
    let bench = bench();
    for (times, event) in Event::ALL.into_iter().enumerate() {
        for _ in 0..times {
            bench.leases.count(&name(), event).await.unwrap();
        }
    }
    let counters = bench.leases.counters(&name()).await.unwrap();
    for (times, event) in Event::ALL.into_iter().enumerate() {
        assert_eq!(counters.get(event), times as u64, "{}", event.as_str());
    }
    let (all, more) = bench.leases.list_counters(None, 10).await.unwrap();
    let all: Vec<_> = all.into_iter().map(|(lease, counters)| (lease, counters.unwrap())).collect();
    assert_eq!((all, more), (vec![(name(), counters)], false));
    assert_eq!(bench.record().await, Ownership::default(), "counting must not touch the lease");
}

#[tokio::test]
async fn counting_survives_contention_and_reports_an_absent_store() {
    let bench = bench();
    bench.store.next(Call::Swap, &[Fault::Mismatch, Fault::Mismatch]);
    bench.leases.count(&name(), Event::Granted).await.unwrap();
    assert_eq!(bench.leases.counters(&name()).await.unwrap().get(Event::Granted), 1);
    bench.store.plan(|_, _| Fault::Fails(Kind::Unavailable));
    assert_eq!(bench.leases.count(&name(), Event::Granted).await.unwrap_err().kind(), Kind::Unavailable);
}

#[tokio::test]
async fn a_run_is_counted_with_how_long_it_and_its_renewals_took() {
    let bench = bench();
    let mut renewals = Distribution::default();
    renewals.add(REQUESTS, Duration::from_millis(40));
    let run = |event, seconds, renewals| EndedRun {
        event: Some(event),
        epoch: None,
        took: Some(Duration::from_secs(seconds)),
        renewals,
    };
    bench.leases.count_run(&name(), &run(Event::Succeeded, 2, renewals.clone())).await.unwrap();
    let first = bench.leases.counters(&name()).await.unwrap();
    bench.leases.count_run(&name(), &run(Event::Failed, 70, renewals)).await.unwrap();
    let both = bench.leases.counters(&name()).await.unwrap();
    assert_eq!((both.get(Event::Succeeded), both.get(Event::Failed), both.get(Event::Granted)), (1, 1, 0));
    assert_eq!((both.durations.count(), both.durations.sum()), (2, Duration::from_secs(72)));
    assert_eq!((both.renewals.count(), both.renewals.worst()), (2, Duration::from_millis(40)));
    assert!(first.last_success.is_some() && both.last_success == first.last_success, "{both:?}");
    assert!(both.last_run.is_some() && both.last_run <= both.last_success, "{both:?}");
}

#[tokio::test]
async fn a_run_that_an_operator_ended_is_counted_apart() {
    let bench = bench();
    let lost = |grant: &leasehold_core::Grant| EndedRun {
        event: Some(Event::Lost),
        epoch: Some(grant.token().epoch),
        ..EndedRun::default()
    };
    let revoked = granted(bench.leases.acquire(&name(), &ask(1)).await);
    bench.operate(Order::Revoke).await.unwrap();
    bench.leases.count_run(&name(), &lost(&revoked)).await.unwrap();
    let expired = granted(bench.leases.acquire(&name(), &ask(2)).await);
    bench.leases.count_run(&name(), &lost(&expired)).await.unwrap();
    let counters = bench.leases.counters(&name()).await.unwrap();
    assert_eq!((counters.get(Event::Evicted), counters.get(Event::Lost)), (1, 1));
}

#[tokio::test]
async fn a_full_counter_stays_full() {
    let bench = bench();
    let key = Key::new(Shelf::Counters, &name());
    let full = std::collections::BTreeMap::from([("granted", u64::MAX)]);
    bench.store.inner.write(&Change::put(&key, None, &codec::encode("counters", &full).unwrap())).await.unwrap();
    bench.leases.count(&name(), Event::Granted).await.unwrap();
    assert_eq!(bench.leases.counters(&name()).await.unwrap().get(Event::Granted), u64::MAX);
}

#[tokio::test]
async fn one_damaged_record_does_not_hide_the_others() {
    let bench = bench();
    granted(bench.leases.acquire(&"a".parse().unwrap(), &ask(1)).await);
    let key = Key::new(Shelf::Lease, &"b".parse().unwrap());
    bench.store.inner.write(&Change::put(&key, None, b"rubbish")).await.unwrap();
    granted(bench.leases.acquire(&"c".parse().unwrap(), &ask(2)).await);
    let listing = bench.leases.list(None, 10).await.unwrap();
    let kinds: Vec<_> =
        listing.entries.iter().map(|(name, r)| (name.as_str(), r.as_ref().err().map(|e| e.kind()))).collect();
    assert_eq!(kinds, [("a", None), ("b", Some(Kind::Corrupt)), ("c", None)]);
    let page = bench.leases.list(Some(&"a".parse().unwrap()), 1).await.unwrap();
    assert_eq!((page.entries[0].0.as_str(), page.more), ("b", true));
}

#[tokio::test]
async fn where_stale_writes_were_refused_is_kept_with_the_stores_time() {
    let bench = bench();
    let write = |held| FencedWrite::new("file:out", Epoch::new(held).unwrap(), Epoch::new(9).unwrap(), None);
    for held in [1, 2, 1] {
        bench.leases.count_fenced(&name(), &write(held)).await.unwrap();
    }
    let counters = bench.leases.counters(&name()).await.unwrap();
    assert_eq!(counters.get(Event::Fenced), 3);
    let marks: Vec<_> = counters.fenced_writes().iter().map(|mark| (mark.write.clone(), mark.times)).collect();
    assert_eq!(marks, [(write(2), 1), (write(1), 2)]);
    let now = bench.leases.inspect(&name()).await.unwrap().now;
    assert!(
        counters.fenced_writes().iter().all(|mark| mark.at <= now && mark.at.as_millis() + 60_000 > now.as_millis())
    );
}

#[tokio::test]
async fn a_counters_record_whose_parts_are_all_at_their_limits_can_be_written() {
    let bench = bench();
    let last = Epoch::new((1 << 53) - 1).unwrap();
    for event in Event::ALL {
        bench.leases.count_many(&name(), event, u64::MAX).await.unwrap();
    }
    let mut all = Distribution::default();
    (0..64).for_each(|power| all.add(REQUESTS, Duration::from_micros(1 << power)));
    let run = EndedRun { event: Some(Event::Succeeded), epoch: None, took: Some(Duration::MAX), renewals: all };
    bench.leases.count_run(&name(), &run).await.unwrap();
    for n in 0..FENCED_KEPT + 3 {
        // Each byte of these takes two in the record.
        let resource = format!("{n:02}{}", "\"".repeat(500));
        let by = Some(Who::lossy(&"\\".repeat(500), "-"));
        bench.leases.count_fenced(&name(), &FencedWrite::new(&resource, last, last, by)).await.unwrap();
    }
    let counters = bench.leases.counters(&name()).await.unwrap();
    let oldest = counters.fenced_writes().first().unwrap();
    assert_eq!((counters.fenced_writes().len(), &oldest.write.resource.as_str()[..3]), (FENCED_KEPT, "03\""));
    assert!(codec::encode("counters", &counters).unwrap().len() < codec::MAX_RECORD_BYTES / 4);
}
