//! A fleet: three servers on one store, and many clients that reach them through a bad network.
//!
//! Servers are processes that are killed and started again, and so is the store. The clients acquire, renew and release a handful
//! of leases and work on items, through proxies that cut, delay, and deliver late and twice. What each was told is checked at the
//! end (`check.rs`): no double grant, no epoch reused, no item lost or completed twice, nobody told that its lease is lost within
//! its trust window. Holders that renew in time are never lost while one server and the store live.
//!
//! `LEASEHOLD_FLEET_CLIENTS=200` makes it 200 clients. The seed is printed; `LEASEHOLD_FLEET_SEED` gives it again.

#![allow(clippy::unwrap_used, reason = "a test")]

mod check;
mod clients;
mod servers;

use check::{Log, Stored, Verdict, verdicts};
use clients::{Client, Phase, QUEUE, Random, acquired, leases_of};
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_core::store::Store;
use leasehold_core::{Coordinator, Keeper, KeeperState, Nonce, Outcome};
use leasehold_stores::{StoreUrl, open};
use leasehold_testbed::{Fate, Odds, Server, UnreliableProxy, etcd, postgres, redis};
use leasehold_work::queue::{Queue, State};
use servers::{Backend, Flaw, NAMESPACE, key, server};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::Duration;
use tokio::sync::watch;

const CLIENTS: &str = "LEASEHOLD_FLEET_CLIENTS";
const SEED: &str = "LEASEHOLD_FLEET_SEED";
const SERVERS: usize = 3;
/// The clients of an ordinary run, and of one that must be found out.
const MANY: u64 = 40;
const FEW: u64 = 24;
/// How long the holders that must never be lost hold for at a time. Longer than it takes a client to turn to another server.
const DECENT: Duration = Duration::from_secs(8);
/// How often single servers are killed.
const KILLS: u64 = 8;
/// How long so many clients may take to end everything when all is well again.
fn patience(clients: u64) -> Duration {
    Duration::from_millis(1_500 * clients.max(MANY))
}

/// Three servers, the network in front of them, and the store behind them.
struct Fleet {
    store: StoreUrl,
    key: String,
    backend: Backend,
    servers: Vec<Server>,
    proxies: Arc<Vec<UnreliableProxy>>,
    random: Random,
}

/// What a run gave.
struct Run {
    log: Log,
    found: Vec<(Verdict, String)>,
}

impl Run {
    fn has(&self, verdict: Verdict) -> bool {
        self.found.iter().any(|(found, _)| *found == verdict)
    }
}

impl Fleet {
    async fn start(backend: Backend, flaw: Flaw, odds: Odds) -> Self {
        let seed = std::env::var(SEED).ok().map(|text| text.parse().unwrap());
        let seed = seed.unwrap_or_else(|| u64::from_str_radix(&Nonce::random().to_string()[..8], 16).unwrap());
        println!("{SEED}={seed}");
        let store = backend.url();
        let key = key(&store).await;
        let servers: Vec<Server> = (0..SERVERS).map(|_| server(&store, flaw)).collect();
        let ports: Vec<u16> = servers.iter().map(Server::port).collect();
        let proxy = |at: usize| {
            let targets = (0..SERVERS).map(|next| ports[(at + next) % SERVERS]).collect();
            UnreliableProxy::start(targets, odds, seed.wrapping_add(at as u64))
        };
        let proxies = Arc::new((0..SERVERS).map(proxy).collect());
        Fleet { store, key, backend, servers, proxies, random: Random(seed) }
    }

    /// A client of the servers, through the proxies, that tries this one first.
    async fn client(&self, first: usize) -> Arc<dyn Store> {
        let host = |at: usize| format!("127.0.0.1:{}", self.proxies[(first + at) % SERVERS].port());
        let hosts: Vec<String> = (0..SERVERS).map(host).collect();
        let url = format!("leasehold+http://:{}@{}/{NAMESPACE}", self.key, hosts.join(","));
        let url: StoreUrl = url.parse().unwrap();
        loop {
            match open(&url).await {
                Ok(store) => return store,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        }
    }

    /// The store itself.
    async fn direct(&self) -> Arc<dyn Store> {
        open(&self.store.in_namespace(NAMESPACE.parse().unwrap())).await.unwrap()
    }

    /// One server after the other is killed, and started again before the next one is.
    fn kill_single_servers(&mut self) {
        for _ in 0..KILLS {
            let at = self.random.below(SERVERS as u64) as usize;
            self.servers[at].kill();
            sleep(Duration::from_millis(300 + self.random.below(700)));
            self.servers[at].restart();
            sleep(Duration::from_millis(self.random.below(600)));
        }
    }

    /// The store is killed and started again; all servers are; and all of it at once.
    fn kill_everything(&mut self) {
        self.backend.kill();
        sleep(Duration::from_millis(self.random.below(1000)));
        self.backend.restart();
        sleep(Duration::from_millis(500));
        for with_the_store in [false, true] {
            self.servers.iter_mut().for_each(Server::kill);
            if with_the_store {
                self.backend.kill();
                sleep(Duration::from_millis(self.random.below(500)));
                self.backend.restart();
            }
            self.servers.iter_mut().for_each(Server::restart);
            sleep(Duration::from_millis(1000));
        }
    }

    /// What is in the store at the end.
    async fn stored(&self, log: &Log, clients: u64) -> Stored {
        let (direct, mut stored) = (self.direct().await, Stored::default());
        let queue = Queue::new(direct.clone(), QUEUE.parse().unwrap());
        for id in &log.added {
            let Ok(found) = queue.inspect(&id.parse().unwrap()).await else { continue };
            if let State::Done { .. } = found.item.state {
                let result = found.item.result.map(|result| String::from_utf8(result.bytes().to_vec()).unwrap());
                stored.done.insert(id.clone(), result.unwrap_or_default());
            }
        }
        let leases = Coordinator::new(direct);
        for lease in (0..leases_of(clients)).map(|number| format!("lease-{number}")) {
            let record = leases.inspect(&lease.parse().unwrap()).await.unwrap().record;
            stored.epochs.insert(lease, record.epoch.get());
        }
        stored
    }
}

/// Runs so many clients while `storm` happens to the fleet, then lets them end.
async fn run<S>(mut fleet: Fleet, clients: u64, storm: S) -> Run
where
    S: AsyncFnOnce(Fleet) -> Fleet,
{
    let log = Arc::new(Mutex::new(Log::default()));
    let (phase, phases) = watch::channel(Phase::Storm);
    let mut running = tokio::task::JoinSet::new();
    for number in 0..clients {
        let store = fleet.client(number as usize % SERVERS).await;
        let client = Client::new(number, store, fleet.random.below(u64::MAX), log.clone(), leases_of(clients));
        running.spawn(client.run(phases.clone()));
    }
    fleet = storm(fleet).await;
    fleet.proxies.iter().for_each(|proxy| proxy.set(Odds::CALM));
    phase.send(Phase::Calm).unwrap();
    let ended = async {
        while let Some(client) = running.join_next().await {
            client.unwrap()
        }
    };
    // What is not done by then is found to be lost.
    let is_late = tokio::time::timeout(patience(clients), ended).await.is_err();
    running.shutdown().await;
    let log = log.lock().unwrap().clone();
    let mut found = verdicts(&log, &fleet.stored(&log, clients).await);
    if is_late {
        found.push((Verdict::ItemLost, format!("the clients were not done after {:?}", patience(clients))));
    }
    let (tenures, items) = (log.tenures.len(), log.added.len());
    println!("{clients} clients: {tenures} tenures, {items} items, {} completions", log.completions.len());
    Run { log, found }
}

/// Blocking work of the fleet's own, while the clients go on.
async fn blocking(mut fleet: Fleet, work: impl FnOnce(&mut Fleet) + Send + 'static) -> Fleet {
    tokio::task::spawn_blocking(move || {
        work(&mut fleet);
        fleet
    })
    .await
    .unwrap()
}

/// Everything happens, and no promise is broken.
async fn survives(backend: Backend) {
    let clients = std::env::var(CLIENTS).map_or(MANY, |text| text.parse().unwrap());
    let fleet = Fleet::start(backend, Flaw::None, Odds::BAD).await;
    let proxies = fleet.proxies.clone();
    let run = run(fleet, clients, async |fleet| {
        let mut healthy = Vec::new();
        for at in 0..SERVERS {
            let leases = Coordinator::new(fleet.client(at).await);
            let grant = acquired(&leases, &format!("healthy-{at}"), DECENT).await.unwrap();
            healthy.push((leases.clone(), grant.token().epoch, Keeper::start(leases, grant)));
        }
        let began = SystemClock.now();
        let fleet = blocking(fleet, |fleet| fleet.kill_single_servers()).await;
        // Without renewals they would have been lost.
        tokio::time::sleep(DECENT.saturating_sub(SystemClock.now().saturating_since(began))).await;
        for (leases, epoch, keeper) in healthy {
            let state = keeper.state().borrow().clone();
            assert!(matches!(state, KeeperState::Held { .. }), "{state:?}, last trouble: {:?}", keeper.trouble());
            let grant = keeper.stop().await;
            assert_eq!(grant.token().epoch, epoch, "held from beginning to end");
            let _ = leases.release(&grant, Outcome::Succeeded).await;
        }
        blocking(fleet, |fleet| fleet.kill_everything()).await
    })
    .await;
    assert_eq!(run.found, []);
    assert!(run.log.tenures.len() as u64 > clients, "leases changed hands: {}", run.log.tenures.len());
    assert!(run.log.completions.len() >= run.log.added.len());
    for fate in [Fate::CutRequest, Fate::CutBeforeAnswer, Fate::CutAnswer, Fate::Delay, Fate::Late, Fate::Double] {
        let count: u64 = proxies.iter().map(|proxy| proxy.count(fate)).sum();
        assert!(count > 0, "no request met the fate {fate:?}");
        println!("{fate:?}: {count}");
    }
}

/// A run with a flaw, and nothing else.
async fn flawed(flaw: Flaw, odds: Odds) -> Run {
    let fleet = Fleet::start(Backend::Redis(redis()), flaw, odds).await;
    run(fleet, FEW, async |fleet| {
        tokio::time::sleep(Duration::from_secs(4)).await;
        fleet
    })
    .await
}

/// Not a test of its own: a server of a fleet runs here, in a process that is started for it and that can be killed.
#[test]
fn a_server_of_the_fleet_serves() {
    servers::serve_if_asked();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_on_postgres_keeps_its_promises() {
    survives(Backend::Postgres(postgres())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_on_redis_keeps_its_promises() {
    survives(Backend::Redis(redis())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_on_etcd_keeps_its_promises() {
    survives(Backend::Etcd(etcd())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_write_over_other_grants_are_found_out() {
    let run = flawed(Flaw::Careless, Odds::CALM).await;
    assert!(run.has(Verdict::EpochReused) && run.has(Verdict::DoubleGrant), "{:?}", run.found);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_forget_items_are_found_out() {
    let run = flawed(Flaw::Forgetful, Odds::CALM).await;
    assert!(run.has(Verdict::ItemLost), "{:?}", run.found);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_gives_old_answers_is_found_out() {
    let run = flawed(Flaw::None, Odds::CALM.with(Fate::OldAnswer, 200)).await;
    assert!(run.has(Verdict::EpochReused) || run.has(Verdict::DoubleGrant), "{:?}", run.found);
}
