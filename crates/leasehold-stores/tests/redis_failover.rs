//! What Redis does when a primary is lost: class B is real, waiting for the replicas mends it, and clients follow.

#![allow(clippy::unwrap_used)]

use leasehold_core::store::{Class, Store, Survey, Swap};
use leasehold_core::{Acquired, Ask, Coordinator, Grant, HolderId, Key, Kind, LeaseName, Outcome, Shelf, Ttl};
use leasehold_stores::{StoreUrl, open};
use leasehold_testbed::{Proxy, Server, redis, redis_cli, redis_cluster, redis_replica, redis_sentinel, wait_until};
use std::sync::Arc;
use std::time::Duration;

async fn store(url: &str) -> Arc<dyn Store> {
    open(&url.parse::<StoreUrl>().unwrap()).await.unwrap()
}

async fn leases(url: &str) -> Coordinator {
    Coordinator::new(store(url).await)
}

fn lease() -> LeaseName {
    LeaseName::new("daily").unwrap()
}

fn ask() -> Ask {
    Ask::new(HolderId::new(None), Ttl::new(Duration::from_secs(30)).unwrap())
}

async fn acquire(leases: &Coordinator) -> leasehold_core::Result<Grant> {
    match leases.acquire(&lease(), &ask()).await? {
        Acquired::Granted(grant) => Ok(*grant),
        Acquired::Refused { refusal, .. } => panic!("refused: {refusal:?}"),
    }
}

/// A primary and a replica that gets its copy through the proxy, after one whole tenure that both know.
struct Pair {
    primary: Server,
    replica: Server,
    replication: Proxy,
}

impl Pair {
    async fn start(options: &str) -> (Self, Coordinator) {
        let primary = redis();
        let replication = Proxy::start(primary.port());
        let replica = redis_replica(replication.port(), &[]);
        let client = leases(&format!("redis://127.0.0.1:{}{options}", primary.port())).await;
        let grant = acquire(&client).await.unwrap();
        client.release(&grant, Outcome::Succeeded).await.unwrap();
        let copied = |port| redis_cli(port, &["hget", "leasehold:{default}:lease", "daily"]);
        wait_until("the replica has the record", || copied(replica.port()) == copied(primary.port()));
        (Pair { primary, replica, replication }, client)
    }

    /// The primary dies, and the replica takes its place.
    fn fail_over(&mut self) {
        self.primary.kill();
        assert_eq!(redis_cli(self.replica.port(), &["replicaof", "no", "one"]).trim(), "OK");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_waiting_an_acknowledged_epoch_is_issued_again_after_a_failover() {
    let (mut pair, _) = Pair::start("").await;
    let door = Proxy::start(pair.primary.port());
    let client = leases(&format!("redis://127.0.0.1:{}", door.port())).await;
    pair.replication.freeze();
    let mut lost = acquire(&client).await.unwrap();
    assert_eq!(lost.token().epoch.get(), 2);
    pair.fail_over();
    let other = leases(&format!("redis://127.0.0.1:{}", pair.replica.port())).await;
    let again = acquire(&other).await.unwrap();
    assert_eq!(again.token().epoch, lost.token().epoch, "class B: the same number, twice");
    assert_ne!(again.token().nonce, lost.token().nonce, "the nonce tells the two apart");
    // The first holder is led to the new primary, whose record has the same epoch but is not its own.
    door.retarget(pair.replica.port());
    door.cut();
    let mut kind = Kind::Unavailable;
    for _ in 0..100 {
        kind = client.renew(&mut lost, None).await.expect_err("the other one holds it").kind();
        if kind == Kind::Lost {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(kind, Kind::Lost);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_waiting_no_acknowledged_epoch_is_issued_again_after_a_failover() {
    let (mut pair, client) = Pair::start("?wait_replicas=1&wait_ms=300").await;
    let kept = acquire(&client).await.unwrap();
    assert_eq!(kept.token().epoch.get(), 2);
    client.release(&kept, Outcome::Succeeded).await.unwrap();
    pair.replication.freeze();
    let error = acquire(&client).await.expect_err("the replica did not confirm it");
    assert!(matches!(error.kind(), Kind::Indeterminate | Kind::Unavailable), "{error}");
    // What only the primary has is not shown either: else the write that is unknown would be taken for kept.
    let url = format!("redis://127.0.0.1:{}?wait_replicas=1&wait_ms=300", pair.primary.port());
    let key = Key::new(Shelf::Lease, &lease());
    let error = store(&url).await.read(&key).await.expect_err("the replica did not confirm it");
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().starts_with("0 of 1 replicas of redis://127.0.0.1"), "{error}");
    pair.fail_over();
    let other = leases(&format!("redis://127.0.0.1:{}", pair.replica.port())).await;
    let next = acquire(&other).await.unwrap();
    assert!(next.token().epoch > kept.token().epoch, "every acknowledged epoch is known to the new primary");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_survey_says_a_only_if_every_replica_is_waited_for() {
    let primary = redis();
    let replica = redis_replica(primary.port(), &["--appendfsync", "everysec"]);
    let at = format!("redis://127.0.0.1:{}", primary.port());
    let advice = |survey: Survey, setting: &str| {
        let remark = survey.remarks.into_iter().find(|remark| remark.setting.starts_with(setting));
        remark.unwrap_or_else(|| panic!("nothing on {setting}")).advice
    };
    let survey = store(&at).await.survey().await.unwrap();
    assert_eq!(survey.class, Class::B);
    assert!(advice(survey, "replicas").unwrap().contains("`wait_replicas=1`"));
    let survey = store(&format!("{at}?wait_replicas=1")).await.survey().await.unwrap();
    assert_eq!(survey.class, Class::B, "the replica syncs once a second");
    assert!(advice(survey, "appendfsync of the replica").unwrap().contains("`appendfsync always`"));
    redis_cli(replica.port(), &["config", "set", "appendfsync", "always"]);
    let survey = store(&format!("{at}?wait_replicas=1")).await.survey().await.unwrap();
    assert_eq!(survey.class, Class::A, "{survey:?}");
    redis_cli(primary.port(), &["config", "set", "maxmemory", "100mb"]);
    redis_cli(primary.port(), &["config", "set", "maxmemory-policy", "allkeys-lru"]);
    let survey = store(&format!("{at}?wait_replicas=1")).await.survey().await.unwrap();
    assert_eq!(survey.class, Class::B);
    assert!(advice(survey, "maxmemory-policy").unwrap().contains("noeviction"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_lead_to_the_new_primary() {
    let mut primary = redis();
    let replica = redis_replica(primary.port(), &[]);
    let sentinel = redis_sentinel(primary.port());
    let nowhere = leasehold_testbed::free_port();
    // The first sentinel is away: the next one is asked.
    let at = format!("redis://127.0.0.1:{nowhere},127.0.0.1:{}/mymaster?mode=sentinel", sentinel.port());
    let client = leases(&at).await;
    let first = acquire(&client).await.unwrap();
    client.release(&first, Outcome::Succeeded).await.unwrap();
    let copied = |port| redis_cli(port, &["hget", "leasehold:{default}:lease", "daily"]);
    wait_until("the replica has the record", || copied(replica.port()) == copied(primary.port()));
    wait_until("the sentinel knows the replica", || {
        redis_cli(sentinel.port(), &["sentinel", "replicas", "mymaster"]).contains(&replica.port().to_string())
    });
    assert_eq!(client.store().survey().await.unwrap().class, Class::B);
    primary.kill();
    let deadline = Duration::from_secs(40);
    let second = tokio::time::timeout(deadline, async {
        loop {
            match acquire(&client).await {
                Ok(grant) => return grant,
                // What is sent just as the connection breaks may have been done, as far as the client can know.
                Err(error) => assert!(matches!(error.kind(), Kind::Unavailable | Kind::Indeterminate), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let second = second.await.expect("the client follows the failover");
    assert_eq!(second.token().epoch.get(), 2);
    assert!(redis_cli(replica.port(), &["role"]).starts_with("master"));
    let wrong = at.replace("mymaster", "othermaster");
    let error = store(&wrong).await.read(&Key::new(Shelf::Lease, &lease())).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.to_string().contains("know no primary `othermaster`"), "{error}");
}

/// The slot of the namespace `default`.
const SLOT: &str = "5718";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_is_followed() {
    let nodes = redis_cluster();
    let ids: Vec<String> =
        nodes.iter().map(|node| redis_cli(node.port(), &["cluster", "myid"]).trim().to_owned()).collect();
    let (source, target) = (&nodes[1], &nodes[2]);
    let client = leases(&format!("redis://127.0.0.1:{}?mode=cluster", nodes[0].port())).await;
    let first = acquire(&client).await.unwrap();
    let say = |node: &Server, words: &[&str]| {
        let answer = redis_cli(node.port(), words);
        assert!(matches!(answer.trim(), "OK" | "NOKEY"), "{words:?}: {answer}");
    };
    say(target, &["cluster", "setslot", SLOT, "importing", &ids[1]]);
    say(source, &["cluster", "setslot", SLOT, "migrating", &ids[2]]);
    let port = target.port().to_string();
    for key in ["leasehold:{default}:lease", "leasehold:{default}:lease:names"] {
        say(source, &["migrate", "127.0.0.1", &port, key, "0", "5000"]);
    }
    // The slot is still the source's, but the records are not there any more.
    let mut kept = first.clone();
    client.renew(&mut kept, None).await.unwrap();
    client.release(&kept, Outcome::Succeeded).await.unwrap();
    let second = acquire(&client).await.unwrap();
    assert_eq!(second.token().epoch.get(), 2);
    for node in [target, source, &nodes[0]] {
        say(node, &["cluster", "setslot", SLOT, "node", &ids[2]]);
    }
    client.release(&second, Outcome::Succeeded).await.unwrap();
    assert_eq!(acquire(&client).await.unwrap().token().epoch.get(), 3);
    assert_eq!(redis_cli(source.port(), &["dbsize"]).trim(), "0");
}

#[tokio::test]
async fn a_server_that_cannot_write_says_so_and_surely_wrote_nothing() {
    let server = redis();
    let handle = store(&format!("redis://127.0.0.1:{}", server.port())).await;
    let key = Key::new(Shelf::Lease, &lease());
    for (setting, wrong, right, says) in
        [("maxmemory", "1", "0", "out of memory"), ("min-replicas-to-write", "1", "0", "too few good replicas")]
    {
        redis_cli(server.port(), &["config", "set", setting, wrong]);
        let error = handle.swap(&key, None, b"1").await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable, "{error}");
        assert!(error.to_string().contains(says), "{error}");
        redis_cli(server.port(), &["config", "set", setting, right]);
        assert_eq!(handle.read(&key).await.unwrap().value, None);
    }
    assert!(matches!(handle.swap(&key, None, b"1").await.unwrap(), Swap::Done { .. }));
}
