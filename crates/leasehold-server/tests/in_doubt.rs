//! What a client may believe when a server decides at another time than it did itself, and when a request arrives twice.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use async_trait::async_trait;
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::store::{Capabilities, Change, ClockSource, Page, Range, Reading, Store, Survey, Swap, Watch};
use leasehold_core::{
    Acquired, Ask, Coordinator, Error, HolderId, Keeper, KeeperState, Key, Kind, LeaseName, MemoryStore, Result, Shelf,
    Timestamp,
};
use leasehold_work::queue::{Claimer, NewItem, Queue};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use support::Site;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A store that tells its time in whole seconds, as web services do.
#[derive(Debug)]
struct Coarse(Arc<MemoryStore>);

fn whole_seconds(now: Timestamp) -> Timestamp {
    Timestamp::from_millis(now.as_millis() / 1000 * 1000)
}

#[async_trait]
impl Store for Coarse {
    fn capabilities(&self) -> Capabilities {
        Capabilities { clock: ClockSource::Store { grain: Duration::from_secs(1) }, ..self.0.capabilities() }
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        let reading = self.0.read(key).await?;
        Ok(Reading { now: whole_seconds(reading.now), ..reading })
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        Ok(match self.0.write(change).await? {
            Swap::Done { revision, now } => Swap::Done { revision, now: whole_seconds(now) },
            Swap::Mismatch => Swap::Mismatch,
        })
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        let page = self.0.list(shelf, range).await?;
        Ok(Page { now: whole_seconds(page.now), ..page })
    }

    async fn watch(&self, key: &Key) -> Result<Watch> {
        self.0.watch(key).await
    }

    async fn survey(&self) -> Result<Survey> {
        self.0.survey().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_by_a_server_is_trusted_no_longer_than_the_record_says() {
    let exact = Arc::new(MemoryStore::default());
    let behind = Arc::new(Coarse(exact.clone()));
    // Each server renews a lease that the other one has renewed last, so that it has to read it.
    let sites = [Site::start(behind.clone()).await, Site::start(behind).await];
    let key = sites[0].key("*", "read,hold").await;
    let mut clients = Vec::new();
    for site in &sites {
        clients.push(Coordinator::new(site.store(&key).await));
    }
    let lease: LeaseName = "x".parse().unwrap();
    let ask = Ask::new(HolderId::new(None), "10s".parse().unwrap());
    let Acquired::Granted(mut grant) = clients[0].acquire(&lease, &ask).await.unwrap() else { panic!("it is free") };
    for turn in 1..8 {
        tokio::time::sleep(Duration::from_millis(130)).await;
        let key = Key::new(Shelf::Lease, &lease);
        // At `known` the store's time was `now` or later.
        let (now, known) = (exact.read(&key).await.unwrap().now, SystemClock.now());
        clients[turn % 2].renew(&mut grant, None).await.unwrap();
        let record = Coordinator::new(exact.clone()).inspect(&lease).await.unwrap().record;
        let (end, deadline) = (now.plus(grant.trust_until().saturating_since(known)), record.tenure.unwrap().deadline);
        assert!(end <= deadline, "trusted until {end:?}, and others may be granted it from {deadline:?} on");
    }
}

/// A network that delivers the write of this number twice, the second time perhaps to another server, gives the second answer, and
/// lets a later call fail.
#[derive(Debug)]
struct Doubling {
    inner: Arc<dyn Store>,
    second: Arc<dyn Store>,
    calls: AtomicU64,
    /// None is every write.
    doubled: Option<u64>,
    failing: u64,
}

impl Doubling {
    fn call(&self) -> Result<u64> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        match call == self.failing {
            true => Err(Error::new(Kind::Unavailable, "no server answers")),
            false => Ok(call),
        }
    }
}

#[async_trait]
impl Store for Doubling {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        self.call()?;
        self.inner.read(key).await
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        let call = self.call()?;
        if self.doubled.is_none_or(|doubled| doubled == call) {
            self.inner.write(change).await?;
            return self.second.write(change).await;
        }
        self.inner.write(change).await
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        self.inner.list(shelf, range).await
    }

    async fn watch(&self, key: &Key) -> Result<Watch> {
        self.inner.watch(key).await
    }

    async fn survey(&self) -> Result<Survey> {
        self.inner.survey().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_have_arrived_twice_is_never_called_surely_not_applied() {
    let site = Site::start(Arc::new(MemoryStore::default())).await;
    let store = site.store(&site.key("*", "read,work").await).await;
    let queue = Queue::new(store.clone(), "mail".parse().unwrap());
    // What fails is the read that is to tell what became of it, then the write that is to confirm it, then nothing.
    for (failing, expected) in [(1, Some(Kind::Indeterminate)), (2, Some(Kind::Indeterminate)), (9, None)] {
        queue.add(NewItem::default()).await.unwrap();
        let grant = Claimer::new(queue.clone(), None, "90s".parse().unwrap()).unwrap().next().await.unwrap();
        let (inner, second, calls) = (store.clone(), store.clone(), AtomicU64::new(0));
        let network = Doubling { inner, second, calls, doubled: Some(0), failing };
        let doubled = Queue::new(Arc::new(network), "mail".parse().unwrap());
        let answer = doubled.complete(&grant, None, Vec::new()).await;
        assert_eq!(answer.as_ref().err().map(Error::kind), expected, "call {failing} fails: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_arrives_twice_is_one_claim_and_its_worker_has_it() {
    let behind = Arc::new(MemoryStore::default());
    let sites = [Site::start(behind.clone()).await, Site::start(behind.clone()).await];
    let key = sites[0].key("*", "read,work").await;
    let (inner, other) = (sites[0].store(&key).await, sites[1].store(&key).await);
    for second in [inner.clone(), other] {
        let network =
            Doubling { inner: inner.clone(), second, calls: AtomicU64::new(0), doubled: None, failing: u64::MAX };
        let [doubled, plain] = [Arc::new(network) as Arc<dyn Store>, inner.clone()]
            .map(|store| Queue::new(store, "mail".parse().unwrap()));
        plain.add(NewItem::default()).await.unwrap();
        let mut claimer = Claimer::new(doubled, None, "90s".parse().unwrap()).unwrap();
        let claimed = tokio::time::timeout(Duration::from_secs(20), claimer.next()).await;
        let grant = claimed.expect("it does not wait for the end of its own claim").unwrap();
        assert_eq!(grant.item().epoch.get(), 1, "it was claimed once");
        // Nobody else has it.
        let mut others = Claimer::new(plain.clone(), None, "90s".parse().unwrap()).unwrap();
        assert!(others.next_within(Duration::ZERO).await.unwrap().is_none());
        plain.complete(&grant, None, Vec::new()).await.unwrap();
    }
}

/// A way to a server that stops, as the process behind it may: what was connected stays so, and nothing comes any more.
struct Front {
    address: SocketAddr,
    is_stopped: watch::Sender<bool>,
}

impl Front {
    async fn start(server: SocketAddr) -> Self {
        let (listener, is_stopped) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), watch::Sender::new(false));
        let address = listener.local_addr().unwrap();
        let stopped = is_stopped.subscribe();
        tokio::spawn(async move {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let mut stopped = stopped.clone();
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(server).await.unwrap();
                    let stopped = async { stopped.wait_for(|is_stopped| *is_stopped).await.map(drop) };
                    tokio::select! {
                        biased;
                        _ = stopped => std::future::pending().await,
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                    }
                });
            }
        });
        Front { address, is_stopped }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_with_a_short_ttl_survives_servers_that_hang() {
    let site = Site::start(Arc::new(MemoryStore::default())).await;
    let key = site.key("*", "hold").await;
    let fronts = [Front::start(site.address).await, Front::start(site.address).await, Front::start(site.address).await];
    let hosts = fronts.each_ref().map(|front| front.address.to_string()).join(",");
    let store =
        leasehold_stores::open(&format!("leasehold+http://:{key}@{hosts}/team").parse().unwrap()).await.unwrap();
    let (leases, behind) = (Coordinator::new(store), Coordinator::new(site.behind.clone()));
    let (lease, ask): (LeaseName, _) = ("x".parse().unwrap(), Ask::new(HolderId::new(None), "4s".parse().unwrap()));
    let Acquired::Granted(grant) = leases.acquire(&lease, &ask).await.unwrap() else { panic!("it is free") };
    let keeper = Keeper::start(leases, *grant);
    fronts[..2].iter().for_each(|front| {
        let _ = front.is_stopped.send_replace(true);
    });
    let deadline = async || behind.inspect(&lease).await.unwrap().record.tenure.unwrap().deadline;
    let (before, mut lost) = (deadline().await, keeper.state());
    let renewed = async {
        while deadline().await < before.plus(Duration::from_secs(8)) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        () = renewed => {}
        state = lost.wait_for(|state| matches!(state, KeeperState::Lost(_))) => panic!("{:?}", state.map(|it| it.clone())),
    }
}
