//! A crowd at a store that takes its time, in virtual time: what is costly is modelled, nobody waits, and the machine that
//! runs it does not matter.

use crate::support::virtual_time::{Task, Timeline};
use async_trait::async_trait;
use leasehold_core::clock::Clock;
use leasehold_core::store::{Capabilities, Change, Page, Range, Reading, Store, Survey, Swap, Watch};
use leasehold_core::{Acquired, Ask, Coordinator, HolderId, Key, LeaseName, MemoryStore, Outcome, Result, Shelf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;

/// How long the crowd may take to find its pace.
const WARM_UP: Duration = Duration::from_millis(1_200);
const CROWD: usize = 64;

/// What a call costs the two processors that clients and server share, in microseconds; and the disk.
#[derive(Debug, Clone, Copy)]
struct Costs {
    read: u64,
    swap: u64,
    disk: u64,
    watch: u64,
    /// For each one who is told.
    hint: u64,
    /// Whether grants are hinted at as well.
    all_is_news: bool,
}

const STORES: [(&str, Costs); 4] = [
    ("like redis", Costs { read: 60, swap: 100, disk: 300, watch: 60, hint: 20, all_is_news: false }),
    ("like postgres", Costs { read: 120, swap: 150, disk: 300, watch: 400, hint: 60, all_is_news: false }),
    ("like nats", Costs { read: 100, swap: 100, disk: 50, watch: 300, hint: 40, all_is_news: true }),
    ("like etcd", Costs { read: 1_000, swap: 1_500, disk: 800, watch: 1_200, hint: 300, all_is_news: true }),
];

/// A store behind two processors, first come, first served.
#[derive(Debug)]
struct Busy {
    inner: MemoryStore,
    time: Arc<Timeline>,
    costs: Costs,
    /// When each processor is free.
    processors: Mutex<[Duration; 2]>,
    watchers: Mutex<Vec<mpsc::Sender<()>>>,
}

impl Busy {
    async fn work(&self, micros: u64) {
        let done = {
            let mut free = self.processors.lock().unwrap();
            let at = usize::from(free[1] < free[0]);
            free[at] = free[at].max(self.time.elapsed()) + Duration::from_micros(micros);
            free[at]
        };
        self.time.pass_until(done).await;
    }

    async fn tell(&self) {
        let watchers = {
            let mut watchers = self.watchers.lock().unwrap();
            watchers.retain(|watcher| !watcher.is_closed());
            watchers.clone()
        };
        for watcher in watchers {
            self.work(self.costs.hint).await;
            let _ = watcher.try_send(());
        }
    }
}

#[async_trait]
impl Store for Busy {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        self.work(self.costs.read / 2).await;
        let reading = self.inner.read(key).await;
        self.work(self.costs.read / 2).await;
        reading
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        self.work(self.costs.swap / 2).await;
        let swapped = self.inner.write(change).await;
        if let Ok(Swap::Done { .. }) = &swapped {
            self.time.pass_until(self.time.elapsed() + Duration::from_micros(self.costs.disk)).await;
            if change.notify || self.costs.all_is_news {
                self.tell().await;
            }
        }
        self.work(self.costs.swap / 2).await;
        swapped
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        self.inner.list(shelf, range).await
    }

    async fn watch(&self, _key: &Key) -> Result<Watch> {
        let (sender, watch) = Watch::channel();
        self.work(self.costs.watch).await;
        self.watchers.lock().unwrap().push(sender);
        Ok(watch)
    }

    async fn survey(&self) -> Result<Survey> {
        self.inner.survey().await
    }
}

/// How often each of so many had the one lease, each for so long, in the time after they had found their pace.
fn turns(costs: Costs, contenders: usize, hold: Duration, measured: Duration) -> Vec<u32> {
    let time = Arc::new(Timeline::default());
    let inner = MemoryStore::with_clock(time.clone());
    let store = Busy { inner, time: time.clone(), costs, processors: Mutex::default(), watchers: Mutex::default() };
    let (store, turns) = (Arc::new(store), Arc::new(Mutex::new(vec![0; contenders])));
    let contend = |at: usize| -> Task {
        let (store, time, turns) = (store.clone(), time.clone(), turns.clone());
        Box::pin(async move {
            // Each is a process of its own: they share the store alone.
            let leases = Coordinator::with_clock(store, time.clone());
            let seat: [LeaseName; 1] = ["seat".parse().unwrap()];
            loop {
                let ask = Ask::new(HolderId::new(None), "90s".parse().unwrap());
                let acquired = leases.acquire_within(&seat, &ask, Duration::from_secs(600)).await.unwrap();
                let Acquired::Granted(grant) = acquired else { panic!("the wait failed: {acquired:?}") };
                time.sleep_until(time.now() + hold).await;
                leases.release(&grant, Outcome::Succeeded).await.unwrap();
                if time.elapsed() > WARM_UP {
                    turns.lock().unwrap()[at] += 1;
                }
            }
        })
    };
    time.run((0..contenders).map(contend).collect(), WARM_UP + measured);
    let turns = turns.lock().unwrap();
    turns.clone()
}

#[test]
fn among_many_a_lease_is_passed_on_at_least_half_as_fast_as_between_two() {
    let measured = Duration::from_secs(6);
    for (store, costs) in STORES {
        let [two, many] = [2, CROWD].map(|count| turns(costs, count, Duration::ZERO, measured).iter().sum::<u32>());
        println!("{store}: {two} between two, {many} among {CROWD}");
        assert!(many * 2 >= two, "{store}: {two} between two, {many} among {CROWD}");
    }
}

#[test]
fn in_a_crowd_nobody_is_favoured_and_the_lease_is_never_idle_for_long() {
    let (hold, measured) = (Duration::from_millis(100), Duration::from_secs(60));
    for (store, costs) in STORES {
        let turns = turns(costs, CROWD, hold, measured);
        let (all, most) = (turns.iter().sum::<u32>(), turns.iter().max().unwrap());
        let without = turns.iter().filter(|turns| **turns == 0).count();
        println!("{store}: {all} turns, at most {most} for one, none for {without}");
        assert!(hold * all >= measured / 5 * 4, "{store}: {all} turns of {hold:?}");
        // Nine turns for each, on average: dealt out by chance, they leave out nobody.
        assert!(without <= CROWD / 8, "{store}: {without} never had it");
    }
}
