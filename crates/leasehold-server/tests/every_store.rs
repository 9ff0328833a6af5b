//! The suite of verbs behind a server, over every store: on its real server where one can be had, and on the same stand-ins as
//! the store's own tests otherwise. One test for each store, so that a failure names it.
//!
//! The promises about leases are those of `leasehold_conformance::VERBS`. Those about items are below.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use leasehold_conformance::{Bench, Effort, VERBS, exercise_each};
use leasehold_core::store::Store;
use leasehold_core::{HolderId, Kind, Ttl};
use leasehold_testbed::{
    BUCKET, Postgres, Transport, aws_credentials, azurite, durable_worker, dynalite, etcd, firestore_stand_in, mariadb,
    moto, nats, postgres, redis, serve_firestore_if_asked,
};
use leasehold_work::queue::{Added, Claimer, FollowUp, ItemName, NewItem, Payload, Queue, State};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use support::Site;

/// For stores that take several milliseconds for a request.
const LIGHTER: Effort = Effort { clients: 8, swaps_each: 12, tenures: 20 };
/// How many items are worked on at once, and by how many.
const ITEMS: usize = 16;
const WORKERS: usize = 4;
/// No worker waits for longer than this for what is there.
const PATIENCE: Duration = Duration::from_secs(60);

/// The store of this URL behind a server, put to every promise.
async fn keeps_every_promise(url: String, effort: Effort) {
    let behind = leasehold_stores::open(&url.parse().unwrap()).await.unwrap();
    let site = Arc::new(Site::start(behind.clone()).await);
    let key = site.key("*", "read,hold,work,operate").await;
    let one = site.store(&key).await;
    let shared = site.clone();
    let bench = Bench::new(effort, move || {
        let (site, key) = (shared.clone(), key.clone());
        async move { Ok(site.store(&key).await) }
    });
    exercise_each(VERBS, &bench.in_front_of(behind)).await.assert_kept();
    every_item_is_completed_once(one.clone()).await;
    a_claim_that_expired_completes_nothing(one).await;
    drop(site);
}

fn queue(store: &Arc<dyn Store>, name: &str) -> Queue {
    Queue::new(store.clone(), name.parse().unwrap())
}

fn payload(text: &str) -> Payload {
    Payload::new(text).unwrap()
}

fn follow_up(name: ItemName) -> FollowUp {
    FollowUp { name, payload: payload("next"), priority: Default::default(), delay_ms: 0, attempts: Default::default() }
}

/// Many workers at once; each item adds another when it is completed, and a second addition of a key adds nothing.
async fn every_item_is_completed_once(store: Arc<dyn Store>) {
    let queue = queue(&store, "mail");
    let item = |at: usize| NewItem { key: Some(format!("{at}").parse().unwrap()), ..NewItem::default() };
    let added = queue.add_all((0..ITEMS).map(item).collect()).await.unwrap();
    assert!(added.iter().all(|added| matches!(added, Added::New(_))), "{added:?}");
    assert!(matches!(queue.add(item(0)).await.unwrap(), Added::Duplicate(_)));
    let workers: Vec<_> = (0..WORKERS).map(|_| tokio::spawn(work_off(queue.clone()))).collect();
    let mut completed: BTreeMap<String, usize> = BTreeMap::new();
    for worker in workers {
        for id in worker.await.unwrap() {
            *completed.entry(id).or_default() += 1;
        }
    }
    let expected = (0..ITEMS).flat_map(|at| [format!("k.{at}"), format!("k.{at}-next")]).map(|id| (id, 1)).collect();
    assert_eq!(completed, expected);
}

/// Completes items until there are no more.
async fn work_off(queue: Queue) -> Vec<String> {
    let mut claimer = Claimer::new(queue.clone(), None, "90s".parse().unwrap()).unwrap();
    let mut completed = Vec::new();
    while !queue.is_finished().await.unwrap() {
        let Some(mut grant) = claimer.next_within(Duration::from_secs(1)).await.unwrap() else { continue };
        queue.renew(&mut grant).await.unwrap();
        let id = grant.name().id.to_string();
        let is_first = !id.ends_with("-next");
        let next = is_first.then(|| follow_up(queue.item(format!("{id}-next").parse().unwrap())));
        queue.complete(&grant, None, next.into_iter().collect()).await.unwrap();
        completed.push(id);
    }
    completed
}

/// A worker that was away for longer than its claim lasted: another one has the item, and what the first one does is refused.
async fn a_claim_that_expired_completes_nothing(store: Arc<dyn Store>) {
    let queue = queue(&store, "slow");
    let added = queue.add(NewItem { payload: payload("x"), ..NewItem::default() }).await.unwrap();
    let short = Ttl::MIN.get() + store.capabilities().clock.grain() * 2;
    let id = &added.name().id;
    let mut late =
        queue.claim_item(id, HolderId::new(None), Ttl::new(short).unwrap()).await.unwrap().expect("it is free");
    let mut claimer = Claimer::new(queue.clone(), None, "90s".parse().unwrap()).unwrap();
    let next = claimer.next_within(PATIENCE).await.unwrap().expect("the claim runs out");
    assert_eq!((next.name(), next.token().epoch), (added.name(), late.token().epoch.next().unwrap()));
    assert_eq!(queue.renew(&mut late).await.unwrap_err().kind(), Kind::Lost);
    let stray = queue.item("k.stray".parse().unwrap());
    let refused = queue.complete(&late, Some(payload("late")), vec![follow_up(stray.clone())]).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Fenced, "{refused}");
    queue.complete(&next, Some(payload("in time")), Vec::new()).await.unwrap();
    let item = queue.inspect(id).await.unwrap().item;
    assert!(matches!(item.state, State::Done { .. }), "{:?}", item.state);
    assert_eq!(item.result, Some(payload("in time")));
    let missing = queue.inspect(&stray.id).await.expect_err("a refused completion adds nothing");
    assert!(missing.kind() == Kind::Invalid && missing.to_string().contains("there is no item"), "{missing}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_on_sqlite_keeps_every_promise() {
    let folder = tempfile::tempdir().unwrap();
    keeps_every_promise(format!("sqlite:{}/x.db", folder.path().display()), Effort::LIGHT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_on_a_folder_keeps_every_promise() {
    let folder = tempfile::tempdir().unwrap();
    keeps_every_promise(format!("dir:{}/store", folder.path().display()), Effort::LIGHT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_on_postgres_keeps_every_promise() {
    let server = postgres();
    keeps_every_promise(Postgres::url(server.port()), Effort::LIGHT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_on_mysql_keeps_every_promise() {
    let server = mariadb();
    keeps_every_promise(format!("mysql://root@127.0.0.1:{}/leases", server.port()), Effort::LIGHT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_on_redis_keeps_every_promise() {
    let server = redis();
    keeps_every_promise(format!("redis://127.0.0.1:{}", server.port()), Effort::LIGHT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_on_etcd_keeps_every_promise() {
    let server = etcd();
    keeps_every_promise(format!("etcd://127.0.0.1:{}", server.port()), Effort::LIGHT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_on_nats_keeps_every_promise() {
    let server = nats();
    keeps_every_promise(format!("nats://127.0.0.1:{}", server.port()), Effort::LIGHT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_on_dynamodb_keeps_every_promise() {
    let server = dynalite(0);
    let credentials = aws_credentials(server.folder(), "AKIAEXAMPLE", "secret");
    let options = format!("endpoint=http://127.0.0.1:{}&credentials={}", server.port(), credentials.display());
    keeps_every_promise(format!("dynamodb://us-east-1/leases?{options}"), LIGHTER).await;
}

/// Not a test of its own: the stand-in runs here, in a process that is started for it and that can be killed.
#[test]
fn the_firestore_stand_in_serves() {
    serve_firestore_if_asked();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_on_firestore_keeps_every_promise() {
    let server = firestore_stand_in("the_firestore_stand_in_serves");
    keeps_every_promise(format!("firestore://demo/leases?emulator=127.0.0.1:{}", server.port()), LIGHTER).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_on_s3_keeps_every_promise() {
    let server = moto();
    let url = format!("s3://id:secret@{BUCKET}/some/prefix?endpoint=http://127.0.0.1:{}", server.port());
    keeps_every_promise(url, LIGHTER).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_on_azure_keeps_every_promise() {
    let server = azurite();
    let endpoint = format!("http://127.0.0.1:{}", server.port());
    keeps_every_promise(format!("az://{BUCKET}/leases?account=devstoreaccount1&endpoint={endpoint}"), LIGHTER).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_on_durable_objects_keeps_every_promise() {
    let server = durable_worker(Some("token"), Transport::Plain);
    keeps_every_promise(format!("do+http://:token@127.0.0.1:{}", server.port()), LIGHTER).await;
}
