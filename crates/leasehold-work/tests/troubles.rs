//! One item's trouble stays its own, a clock that is set back hides nothing, and the front of the line is looked at before
//! each claim: queues on a store whose clock is set by hand and which fails for the records that it is told to.
#![allow(clippy::unwrap_used)]

use async_trait::async_trait;
use leasehold_core::clock::{Clock, ManualClock, Moment};
use leasehold_core::store::{Capabilities, Change, Next, Page, Range, Reading, Store, Survey, Swap, Watch};
use leasehold_core::{Epoch, Error, HolderId, Key, Kind, LeaseName, MemoryStore, Result, Shelf, Token, Ttl};
use leasehold_work::Backlog;
use leasehold_work::backlog::{Carried, Ordered};
use leasehold_work::queue::protocol::Order;
use leasehold_work::queue::{
    Added, Attempts, Claimed, Claimer, FollowUp, ItemGrant, ItemId, ItemName, NewItem, Payload, Queue, QueueName, State,
};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const TTL: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(3_600);

/// The store's own clock: it can be set back.
#[derive(Debug, Clone)]
struct Wall(Arc<Mutex<Moment>>);

impl Wall {
    fn set(&self, ahead: Duration) {
        *self.0.lock().unwrap() = Moment::from_nanos(0) + ahead;
    }
}

#[async_trait]
impl Clock for Wall {
    fn now(&self) -> Moment {
        *self.0.lock().unwrap()
    }

    async fn sleep_until(&self, _until: Moment) {}
}

/// What goes wrong with a record, and for how many writes.
#[derive(Debug, Clone)]
struct Fault {
    name: String,
    kind: Kind,
    is_for_reads: bool,
    /// Applied, and the answer lost.
    is_applied: bool,
    times: usize,
}

/// A store in memory that fails for some records, and perhaps writes nothing beside.
struct Spotty {
    inner: MemoryStore,
    faults: Mutex<Vec<Fault>>,
    is_one_step: bool,
    listings: Mutex<Vec<usize>>,
    /// What happens before the answer of a write that was applied is lost.
    meanwhile: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
}

impl fmt::Debug for Spotty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Spotty")
    }
}

impl Spotty {
    fn fault(&self, key: &Key, is_read: bool) -> Option<Fault> {
        let mut faults = self.faults.lock().unwrap();
        let fault = faults
            .iter_mut()
            .find(|f| key.shelf == Shelf::Item && key.name.as_str() == f.name && f.is_for_reads >= is_read)?;
        fault.times = fault.times.checked_sub(1)?;
        Some(fault.clone())
    }

    fn fails(&self, name: &ItemName, kind: Kind, is_for_reads: bool) {
        let name = name.key().unwrap().name.to_string();
        self.faults.lock().unwrap().push(Fault { name, kind, is_for_reads, is_applied: false, times: usize::MAX });
    }
}

fn failed(fault: &Fault) -> Error {
    Error::new(fault.kind, "the disk has a bad spot")
}

#[async_trait]
impl Store for Spotty {
    fn capabilities(&self) -> Capabilities {
        Capabilities { writes_along: self.is_one_step, ..self.inner.capabilities() }
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        match self.fault(key, true) {
            Some(fault) => Err(failed(&fault)),
            None => self.inner.read(key).await,
        }
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        change.check(&self.capabilities())?;
        match self.fault(change.key, false).filter(|_| matches!(change.next, Next::Put(_))) {
            Some(fault) => {
                if fault.is_applied {
                    self.inner.write(change).await?;
                    let meanwhile = self.meanwhile.lock().unwrap().take();
                    if let Some(meanwhile) = meanwhile {
                        meanwhile.await;
                    }
                }
                Err(failed(&fault))
            }
            None => self.inner.write(change).await,
        }
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        if shelf == Shelf::Line {
            self.listings.lock().unwrap().push(range.limit);
        }
        self.inner.list(shelf, range).await
    }

    async fn watch(&self, key: &Key) -> Result<Watch> {
        self.inner.watch(key).await
    }

    async fn survey(&self) -> Result<Survey> {
        self.inner.survey().await
    }
}

struct Bench {
    clock: ManualClock,
    wall: Wall,
    store: Arc<Spotty>,
    queue: Queue,
    claimer: Claimer,
}

/// On a store that moves places in line in the same step, and on one that does not.
fn benches() -> [Bench; 2] {
    [true, false].map(|is_one_step| {
        let (clock, wall) = (ManualClock::default(), Wall(Arc::new(Mutex::new(Moment::from_nanos(0)))));
        wall.set(2 * HOUR);
        let inner = MemoryStore::with_clock(Arc::new(wall.clone()));
        let (faults, listings, meanwhile) = (Mutex::default(), Mutex::default(), Mutex::default());
        let store = Arc::new(Spotty { inner, faults, is_one_step, listings, meanwhile });
        let queue = Queue::with_clock(store.clone(), "mail".parse().unwrap(), Arc::new(clock.clone()));
        let claimer = Claimer::new(queue.clone(), None, ttl()).unwrap();
        Bench { clock, wall, store, queue, claimer }
    })
}

fn ttl() -> Ttl {
    Ttl::new(TTL).unwrap()
}

fn item(text: &str) -> NewItem {
    NewItem { payload: Payload::new(text).unwrap(), ..NewItem::default() }
}

fn text(grant: &ItemGrant) -> String {
    grant.item().payload.text().unwrap().to_owned()
}

impl Bench {
    async fn claim(&mut self) -> Option<ItemGrant> {
        match self.claimer.claim().await.unwrap() {
            Claimed::Item(grant) => Some(*grant),
            Claimed::Nothing { .. } => None,
        }
    }

    async fn add(&self, new: NewItem) -> ItemName {
        self.queue.add(new).await.unwrap().name().clone()
    }

    async fn next(&mut self) -> String {
        let grant = self.claim().await.unwrap_or_else(|| panic!("nothing to claim"));
        self.queue.complete(&grant, None, Vec::new()).await.unwrap();
        text(&grant)
    }
}

#[tokio::test]
async fn a_clock_that_is_set_back_hides_no_item_that_need_not_wait() {
    for mut bench in benches() {
        bench.add(item("a")).await;
        bench.add(NewItem { delay: Duration::from_secs(60), ..item("late") }).await;
        let held = {
            bench.add(NewItem { priority: "9".parse().unwrap(), ..item("again") }).await;
            bench.claim().await.unwrap()
        };
        bench.wall.set(HOUR);
        // What was given back, and what failed without a pause, stands in line at once.
        bench.queue.fail(&held, "once more".parse().unwrap(), Some(Duration::ZERO), false).await.unwrap();
        bench.add(item("b")).await;
        assert_eq!(bench.next().await, "again");
        let mut seen = [bench.next().await, bench.next().await];
        seen.sort();
        assert_eq!(seen, ["a", "b"]);
        // One that was to wait does, by the clock as it is.
        assert!(bench.claim().await.is_none());
        bench.wall.set(2 * HOUR + Duration::from_secs(61));
        bench.clock.advance(Duration::from_secs(10));
        assert_eq!(bench.next().await, "late");
    }
}

#[tokio::test]
async fn an_item_that_was_renewed_since_the_clock_was_set_back_is_free_a_ttl_after_its_worker_died() {
    for mut bench in benches() {
        bench.add(item("x")).await;
        let mut grant = bench.claim().await.unwrap();
        bench.wall.set(HOUR);
        // The first renewal after it goes by the time that was known before; the next one knows better.
        for n in 1..3 {
            bench.clock.advance(Duration::from_secs(10));
            bench.wall.set(HOUR + Duration::from_secs(10 * n));
            bench.queue.renew(&mut grant).await.unwrap();
        }
        let until = grant.trust_until();
        assert!(until <= bench.clock.now() + TTL, "it is trusted for longer than its TTL");
        let seen = bench.queue.inspect(&grant.name().id).await.unwrap();
        let State::Claimed(tenure) = &seen.item.state else { panic!("{:?}", seen.item.state) };
        let left = tenure.deadline.saturating_since(seen.now);
        assert!(left <= TTL + Duration::from_secs(1), "{left:?} are left");
        assert!(bench.claim().await.is_none());
        bench.clock.advance(TTL + Duration::from_secs(2));
        bench.wall.set(HOUR + Duration::from_secs(22) + TTL);
        assert_eq!(text(&bench.claim().await.unwrap()), "x");
        assert_eq!(bench.queue.complete(&grant, None, Vec::new()).await.unwrap_err().kind(), Kind::Fenced);
    }
}

/// A clock that was a year ahead for a moment leaves no mark for a year.
#[tokio::test]
async fn what_was_to_wait_by_a_clock_that_was_ahead_waits_no_longer_than_asked() {
    for mut bench in benches() {
        bench.add(item("plain")).await;
        assert_eq!(bench.next().await, "plain");
        // Idle workers have looked at everything before.
        assert!(bench.claim().await.is_none());
        bench.wall.set(9_000 * HOUR);
        bench.add(NewItem { delay: Duration::from_secs(20), ..item("delayed") }).await;
        for text in ["failed", "orphan"] {
            bench.add(item(text)).await;
        }
        let failed = bench.claim().await.unwrap();
        bench.queue.fail(&failed, "once more".parse().unwrap(), Some(Duration::from_secs(20)), false).await.unwrap();
        let orphan = bench.claim().await.unwrap();
        assert_eq!([text(&failed), text(&orphan)], ["failed", "orphan"]);
        let mut now = 2 * HOUR;
        for _ in 0..3 {
            now += Duration::from_secs(3);
            bench.clock.advance(Duration::from_secs(3));
            bench.wall.set(now);
            assert!(bench.claim().await.is_none(), "it did not wait");
        }
        bench.clock.advance(TTL + Duration::from_secs(2));
        bench.wall.set(now + TTL + Duration::from_secs(2));
        let mut seen = [bench.next().await, bench.next().await, bench.next().await];
        seen.sort();
        assert_eq!(seen, ["delayed", "failed", "orphan"]);
        assert_eq!(bench.queue.complete(&orphan, None, Vec::new()).await.unwrap_err().kind(), Kind::Fenced);
    }
}

/// Whatever a worker has listed before: what was acknowledged before its claim began, and goes before, is claimed next.
#[tokio::test]
async fn an_urgent_item_is_the_next_one_after_it_was_acknowledged() {
    for mut bench in benches() {
        bench.queue.add_all((0..40).map(|n| item(&n.to_string())).collect()).await.unwrap();
        assert_eq!(bench.next().await, "0");
        bench.add(NewItem { priority: "9".parse().unwrap(), ..item("urgent") }).await;
        assert_eq!(bench.next().await, "urgent");
        assert_eq!(bench.next().await, "1");
        // Also while others are at some of those in front.
        let held = [bench.claim().await.unwrap(), bench.claim().await.unwrap()];
        assert_eq!([text(&held[0]), text(&held[1])], ["2", "3"]);
        bench.add(NewItem { priority: "6".parse().unwrap(), ..item("soon") }).await;
        assert_eq!(bench.next().await, "soon");
        // And it costs a listing of a few places, not of the line.
        bench.store.listings.lock().unwrap().clear();
        assert_eq!(bench.next().await, "4");
        let listings = bench.store.listings.lock().unwrap().clone();
        assert!(listings.len() == 1 && listings[0] <= 8, "{listings:?}");
    }
}

#[tokio::test]
async fn items_that_were_to_wait_come_by_priority_among_the_others() {
    for mut bench in benches() {
        bench.add(item("plain")).await;
        for (text, priority) in [("low", "1"), ("high", "8"), ("middle", "5")] {
            let delay = Duration::from_secs(5);
            bench.add(NewItem { delay, priority: priority.parse().unwrap(), ..item(text) }).await;
        }
        bench.clock.advance(Duration::from_secs(6));
        bench.wall.set(2 * HOUR + Duration::from_secs(6));
        for expected in ["high", "plain", "middle", "low"] {
            assert_eq!(bench.next().await, expected);
        }
        assert!(bench.claim().await.is_none());
    }
}

/// Whatever the store says of one item, the others are claimed, and the worker is told which one it is, once.
#[tokio::test]
async fn the_trouble_of_one_item_is_named_once_and_stops_nobody() {
    for kind in [Kind::Unavailable, Kind::Indeterminate, Kind::Contended, Kind::Corrupt, Kind::Invalid] {
        // A write without an answer is tried again for as long as the record can be read.
        for is_for_reads in [true, kind == Kind::Indeterminate] {
            for mut bench in benches() {
                let bad = bench.add(NewItem { priority: "9".parse().unwrap(), ..item("bad") }).await;
                for n in 0..10 {
                    bench.add(item(&n.to_string())).await;
                }
                bench.store.fails(&bad, kind, is_for_reads);
                for n in 0..10 {
                    assert_eq!(bench.next().await, n.to_string(), "{kind:?}");
                    bench.clock.advance(Duration::from_secs(10));
                }
                let told = bench.claimer.troubles();
                assert_eq!(told.len(), 1, "{told:?}");
                assert!(told[0].to_string().contains(&bad.to_string()), "{}", told[0]);
                assert!(told[0].to_string().contains("the disk has a bad spot"), "{}", told[0]);
                // It still waits, and whoever ends when there is nothing left is told so.
                let Claimed::Nothing { held_up, .. } = bench.claimer.claim().await.unwrap() else { panic!("claimed") };
                let is_passing = !matches!(kind, Kind::Corrupt | Kind::Invalid);
                assert_eq!(held_up.is_some(), is_passing, "{kind:?}");
                assert!(bench.claimer.troubles().is_empty());
                bench.store.faults.lock().unwrap().clear();
                bench.clock.advance(TTL + Duration::from_secs(60));
                bench.wall.set(3 * HOUR);
                assert_eq!(bench.next().await, "bad", "{kind:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_store_that_takes_no_write_is_the_stores_trouble_and_no_items() {
    for mut bench in benches() {
        for n in 0..20 {
            let name = bench.add(item(&n.to_string())).await;
            bench.store.fails(&name, Kind::Unavailable, false);
        }
        assert_eq!(bench.claimer.claim().await.unwrap_err().kind(), Kind::Unavailable);
        assert!(bench.claimer.troubles().is_empty(), "items were named for the store's trouble");
        // And so is one that allows nothing.
        bench.clock.advance(Duration::from_secs(60));
        bench.store.faults.lock().unwrap().iter_mut().for_each(|fault| fault.kind = Kind::Unsupported);
        assert_eq!(bench.claimer.claim().await.unwrap_err().kind(), Kind::Unsupported);
    }
}

/// An item that is due to be put back in line, and cannot be, does not keep the janitor from the others.
#[tokio::test]
async fn the_janitor_continues_with_the_others() {
    for mut bench in benches() {
        for n in 0..5 {
            bench.add(item(&n.to_string())).await;
        }
        let first = bench.claim().await.unwrap();
        for _ in 1..5 {
            bench.claim().await.unwrap();
        }
        bench.store.fails(first.name(), Kind::Unavailable, true);
        bench.clock.advance(TTL);
        bench.wall.set(3 * HOUR);
        let chores = bench.queue.clean().await.unwrap();
        assert_eq!((chores.requeued, chores.troubles.len()), (4, 1));
        assert!(chores.troubles[0].to_string().contains(&first.name().to_string()), "{:?}", chores.troubles);
    }
}

/// What is no place in line, and no item, hides nothing behind it.
#[tokio::test]
async fn stray_records_hide_nothing() {
    for mut bench in benches() {
        bench.add(item("a")).await;
        let store: Arc<dyn Store> = bench.store.clone();
        for shelf in [Shelf::Line, Shelf::Item] {
            for name in ["mail/0/stray", "mail/00-stray", "mail/-d/x"] {
                let key = Key::new(shelf, &LeaseName::new(name).unwrap());
                store.swap(&key, None, b"stray").await.unwrap();
            }
        }
        let (mut found, mut after) = (0, None);
        loop {
            let page = bench.queue.list(after.as_ref(), 2).await.unwrap();
            found += page.entries.len();
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        assert_eq!(found, 1);
        assert_eq!(bench.next().await, "a");
    }
}

/// An addition whose answer was lost is confirmed by a new write; and it is never denied while it is unknown.
#[tokio::test]
async fn an_addition_without_an_answer_is_confirmed_by_another_write() {
    for mut bench in benches() {
        let id = ItemId::keyed(&"a".parse().unwrap());
        let name = bench.queue.item(id.clone());
        let new = || NewItem { key: Some("a".parse().unwrap()), ..item("x") };
        let fault = |is_applied, times| Fault {
            name: name.key().unwrap().name.to_string(),
            kind: Kind::Indeterminate,
            is_for_reads: false,
            is_applied,
            times,
        };
        bench.store.faults.lock().unwrap().push(fault(true, 1));
        assert!(matches!(bench.queue.add(new()).await.unwrap(), Added::New(_)));
        let stored = async |bench: &Bench| bench.store.read(&name.key().unwrap()).await.unwrap().value.unwrap();
        let first = stored(&bench).await;
        // A second one of the same key changes nothing; that the first one lasts is confirmed by a write of the same.
        assert!(matches!(bench.queue.add(new()).await.unwrap(), Added::Duplicate(_)));
        let second = stored(&bench).await;
        assert_eq!(second.bytes, first.bytes);
        assert_ne!(second.revision, first.revision);
        assert_eq!(bench.next().await, "x");
        bench.store.faults.lock().unwrap().clear();
        // Written, no answer, and then the store is away: unknown, and not "surely not added".
        let key = ItemId::keyed(&"b".parse().unwrap());
        let name = bench.queue.item(key).key().unwrap().name.to_string();
        bench.store.faults.lock().unwrap().push(Fault { name: name.clone(), ..fault(true, 1) });
        let away = Fault { name, kind: Kind::Unavailable, is_for_reads: true, ..fault(false, usize::MAX) };
        bench.store.faults.lock().unwrap().push(away);
        let added = bench.queue.add(NewItem { key: Some("b".parse().unwrap()), ..item("y") }).await;
        assert_eq!(added.unwrap_err().kind(), Kind::Indeterminate);
    }
}

/// While the answer is lost, the item is claimed by others, after whoever it was handed off to has failed.
#[tokio::test]
async fn an_order_whose_answer_was_lost_is_recognized_by_what_it_did_itself() {
    let to = HolderId::new(None);
    let past = Epoch::new(7).unwrap();
    let hand_off = Order::HandOff { to: to.clone(), ttl: ttl() };
    for (order, began) in
        [(Order::Retry { past: None }, Some(1)), (Order::Retry { past: Some(past) }, Some(8)), (hand_off, None)]
    {
        for bench in benches() {
            let name = bench.add(item("x")).await;
            let lost = Fault {
                name: name.key().unwrap().name.to_string(),
                kind: Kind::Indeterminate,
                is_for_reads: false,
                is_applied: true,
                times: 1,
            };
            bench.store.faults.lock().unwrap().push(lost);
            let Bench { queue, store, mut claimer, .. } = bench;
            let (others, id, nonce) = (queue.clone(), name.id.clone(), to.nonce());
            *store.meanwhile.lock().unwrap() = Some(Box::pin(async move {
                let item = others.inspect(&id).await.unwrap().item;
                if began.is_none() {
                    let lease = others.item(id).lease().unwrap();
                    let token = Token { lease, lineage: item.lineage, epoch: item.epoch, nonce, seq: 0 };
                    let grant = others.by_token(&token).await.unwrap();
                    others.fail(&grant, "no".parse().unwrap(), Some(Duration::ZERO), false).await.unwrap();
                }
                assert!(matches!(claimer.claim().await.unwrap(), Claimed::Item(_)));
            }));
            let (by, why) = ("ann".parse().unwrap(), "drill".parse().unwrap());
            let ordered = Ordered { by, why, if_epoch: None, order: order.clone() };
            match (Backlog::operate(&queue, &name.id, ordered).await, began) {
                (Ok(Carried { seen, epoch, .. }), Some(began)) => {
                    assert_eq!((epoch.get(), seen.epoch().get()), (began, began + 1));
                }
                // Its token would have the epoch of who has it now.
                (Err(error), None) => {
                    assert_eq!(error.kind(), Kind::Lost, "{error}");
                    assert!(error.to_string().contains("was handed off as ordered"), "{error}");
                }
                (answer, _) => panic!("{answer:?}"),
            }
        }
    }
}

/// Follow-ups that do not fit fail the completion, and nothing else.
#[tokio::test]
async fn follow_ups_that_do_not_fit_are_refused_and_the_item_can_still_be_completed() {
    for mut bench in benches() {
        bench.add(item("x")).await;
        let grant = bench.claim().await.unwrap();
        let queue: QueueName = "next".parse().unwrap();
        let follow_up = |n: usize| FollowUp {
            name: ItemName { queue: queue.clone(), id: ItemId::keyed(&n.to_string().parse().unwrap()) },
            payload: Payload::new(vec![0xff; Payload::MAX_BYTES]).unwrap(),
            priority: Default::default(),
            delay_ms: 0,
            attempts: Attempts::default(),
        };
        let error = bench.queue.complete(&grant, None, (0..2).map(follow_up).collect()).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.to_string().contains("leave fewer or smaller follow-ups"), "{error}");
        bench.queue.complete(&grant, None, vec![follow_up(0)]).await.unwrap();
    }
}
