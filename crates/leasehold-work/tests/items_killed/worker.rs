//! The processes that are killed: a producer, a worker, and one that is stopped with an item in its hands.

use crate::mortal::{Fate, Mortal, say};
use crate::{PARENTS, QUEUE, QueueLocation, runtime};
use leasehold_core::lease::protocol::Report;
use leasehold_core::{Kind, Label, Ttl};
use leasehold_stores::open;
use leasehold_work::queue::{Attempts, Claimer, DedupeKey, FollowUp, ItemId, NewItem, Payload, Queue};
use leasehold_work::spool::{Spool, SpoolClaimer};
use std::path::Path;
use std::sync::Arc;

const TTL: &str = "1s";
/// Many die with one item in their hands; none shall become a dead letter.
const MOST: u32 = 1_000;

pub fn main(words: &[String]) {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["adder", at, first, last, step, nth] => {
            let (first, last) = (first.parse().unwrap(), last.parse().unwrap());
            let fate = Fate::new(step, nth.parse().unwrap());
            match QueueLocation::parse(at) {
                QueueLocation::Store(url) => runtime().block_on(add(queue(&url, fate).await_in(), first, last)),
                QueueLocation::Spool(path) => add_files(&spool(&path, fate), first, last),
            }
        }
        ["worker", at, step, nth, seed] => {
            let fate = Fate::new(step, nth.parse().unwrap());
            let seed: u64 = seed.parse().unwrap();
            match QueueLocation::parse(at) {
                QueueLocation::Store(url) => runtime().block_on(work(queue(&url, fate).await_in(), seed)),
                QueueLocation::Spool(path) => work_files(&spool(&path, fate), seed),
            }
        }
        ["zombie", at] => match QueueLocation::parse(at) {
            QueueLocation::Store(url) => runtime().block_on(sleep_on(queue(&url, Fate::new("", 0)).await_in())),
            QueueLocation::Spool(path) => sleep_on_a_file(&spool(&path, Fate::new("", 0))),
        },
        _ => panic!("bad words: {words:?}"),
    }
}

/// How a queue is opened, once there is a runtime.
struct Opening {
    url: String,
    fate: Arc<Fate>,
}

fn queue(url: &str, fate: Arc<Fate>) -> Opening {
    Opening { url: url.into(), fate }
}

impl Opening {
    async fn await_in(self) -> Queue {
        let store = open(&self.url.parse().unwrap()).await.unwrap();
        Queue::new(Arc::new(Mortal { store, fate: self.fate }), QUEUE.parse().unwrap())
    }
}

fn spool(path: &Path, fate: Arc<Fate>) -> Spool {
    Spool::open(path).unwrap().with_observer(fate)
}

fn key(n: u64) -> DedupeKey {
    format!("n{n}").parse().unwrap()
}

fn ttl() -> Ttl {
    TTL.parse().unwrap()
}

/// The number of an item that was added by a producer.
fn number(id: &ItemId) -> Option<u64> {
    id.as_str().strip_prefix("k.n")?.parse().ok()
}

fn is_parent(id: &ItemId) -> bool {
    number(id).is_some_and(|n| n % PARENTS == 0)
}

async fn add(queue: impl Future<Output = Queue>, first: u64, last: u64) {
    let queue = queue.await;
    let attempts = Attempts { most: MOST, backoff_ms: 1 };
    let new = |n: u64| NewItem {
        payload: Payload::new(n.to_string()).unwrap(),
        attempts,
        key: Some(key(n)),
        ..NewItem::default()
    };
    queue.add_all((first..last).map(new).collect()).await.unwrap();
}

fn add_files(spool: &Spool, first: u64, last: u64) {
    for n in first..last {
        let new = NewItem {
            attempts: Attempts { most: MOST, ..Attempts::default() },
            key: Some(key(n)),
            ..NewItem::default()
        };
        match spool.add(&new, &mut n.to_string().as_bytes()) {
            // Cut off between its key and its place: the key alone is no item, and is given up after a minute.
            Err(error) if error.kind() == Kind::Contended => {
                std::fs::remove_file(spool.root().join("keys").join(key(n).as_str())).unwrap();
                spool.add(&new, &mut n.to_string().as_bytes()).unwrap();
            }
            other => drop(other.unwrap()),
        }
    }
}

async fn work(queue: impl Future<Output = Queue>, seed: u64) {
    let queue = queue.await;
    let mut claimer = Claimer::new(queue.clone(), None, ttl()).unwrap();
    for turn in seed.. {
        let mut grant = claimer.next().await.unwrap();
        let (id, epoch) = (grant.name().id.clone(), grant.token().epoch);
        say(&format!("claimed {id} {epoch}"));
        if turn % 3 == 0 && queue.renew(&mut grant).await.is_err() {
            continue;
        }
        if turn % 7 == 0 {
            let report = Report { marker: Some("half".parse().unwrap()), checkpoint: None };
            let _ = queue.progress(grant.token(), report).await;
        }
        if turn % 11 == 0 {
            let _ = queue.fail(&grant, "again".parse().unwrap(), None, false).await;
            continue;
        }
        let attempts = Attempts { most: MOST, backoff_ms: 1 };
        let child = |id: &ItemId| FollowUp {
            name: queue.item(ItemId::keyed(&format!("child-{id}").parse().unwrap())),
            payload: Payload::default(),
            priority: "7".parse().unwrap(),
            delay_ms: 0,
            attempts,
        };
        let follow_ups = if is_parent(&id) { vec![child(&id)] } else { Vec::new() };
        let result = Some(Payload::result("by a worker").unwrap());
        match queue.complete(&grant, result, follow_ups).await {
            Ok(_) => say(&format!("accepted {id} {epoch}")),
            Err(error) => assert_eq!(error.kind(), Kind::Fenced, "{error}"),
        }
    }
}

fn work_files(spool: &Spool, seed: u64) {
    let label: Label = "worker".parse().unwrap();
    let mut claimer = SpoolClaimer::new(spool.clone(), &label, ttl()).unwrap();
    let runtime = runtime();
    for turn in seed.. {
        let mut grant = runtime.block_on(claimer.next()).unwrap();
        let (id, epoch) = (grant.name().id.clone(), grant.token().epoch);
        say(&format!("claimed {id} {epoch}"));
        if turn % 3 == 0 && spool.renew(&mut grant).is_err() {
            continue;
        }
        if turn % 11 == 0 {
            // Not at once: it has to be brought in again.
            let pause = std::time::Duration::from_millis(1);
            let _ = spool.fail(&grant, &"again".parse().unwrap(), Some(pause), false);
            continue;
        }
        let child = || NewItem {
            payload: Payload::default(),
            attempts: Attempts { most: MOST, ..Attempts::default() },
            ..NewItem::default()
        };
        let follow_ups = if is_parent(&id) { vec![child()] } else { Vec::new() };
        let result = Payload::result("by a worker").unwrap();
        match spool.complete(&grant, Some(&result), &follow_ups) {
            Ok(_) => say(&format!("accepted {id} {epoch}")),
            Err(error) => assert_eq!(error.kind(), Kind::Fenced, "{error}"),
        }
    }
}

fn wait_to_be_told() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

async fn sleep_on(queue: impl Future<Output = Queue>) {
    let queue = queue.await;
    let mut claimer = Claimer::new(queue.clone(), None, ttl()).unwrap();
    let mut grant = claimer.next().await.unwrap();
    say(&format!("claimed {} {}", grant.name().id, grant.token().epoch));
    wait_to_be_told();
    let lost = queue.renew(&mut grant).await.unwrap_err();
    say(&format!("renewal {}", lost.kind().as_str()));
    let child = FollowUp {
        name: queue.item("k.from-a-zombie".parse().unwrap()),
        payload: Payload::default(),
        priority: Default::default(),
        delay_ms: 0,
        attempts: Attempts::default(),
    };
    let late = Some(Payload::result("zombie").unwrap());
    let refused = queue.complete(&grant, late, vec![child]).await.unwrap_err();
    say(&format!("completion {}", refused.kind().as_str()));
}

fn sleep_on_a_file(spool: &Spool) {
    let mut claimer = SpoolClaimer::new(spool.clone(), &"zombie".parse().unwrap(), ttl()).unwrap();
    let mut grant = claimer.claim().unwrap().unwrap();
    say(&format!("claimed {} {}", grant.name().id, grant.token().epoch));
    wait_to_be_told();
    say(&format!("renewal {}", spool.renew(&mut grant).unwrap_err().kind().as_str()));
    let child = NewItem { payload: Payload::default(), ..NewItem::default() };
    let refused = spool.complete(&grant, Some(&Payload::result("zombie").unwrap()), &[child]).unwrap_err();
    say(&format!("completion {}", refused.kind().as_str()));
}
