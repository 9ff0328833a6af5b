//! How much a queue gets done: counted where every item was seen, and *at least* so much where not.

use crate::scene::{MINUTE, dead_letters, holder, queue};
use crate::stage::{Client, Stage};
use leasehold_work::queue::{NewItem, Queue, Reason};

async fn add(queue: &Queue) -> leasehold_work::queue::ItemId {
    queue.add(NewItem::default()).await.unwrap().name().id.clone()
}

async fn complete(queue: &Queue, count: usize) {
    for _ in 0..count {
        let id = add(queue).await;
        let claim = queue.claim_item(&id, holder("box-1", "w", 1), "10m".parse().unwrap()).await.unwrap().unwrap();
        queue.complete(&claim, None, Vec::new()).await.unwrap();
    }
}

/// The values under the queue's throughput, in their order.
fn throughput(page: &str) -> Vec<String> {
    let part = page.split("id=\"throughput\"").nth(1).unwrap().split("</dl>").next().unwrap();
    let values = part.split("<dd class=\"num\">").skip(1);
    values.map(|value| value.split('<').next().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_short_queue_is_counted_exactly_by_when_attempts_ended() {
    let stage = Stage::start().await;
    let mail = queue(&stage, "mail");
    complete(&mail, 4).await;
    stage.clock.advance(MINUTE * 70);
    complete(&mail, 3).await;
    // An attempt that failed and is tried again counts as one that failed.
    let id = add(&mail).await;
    let claim = mail.claim_item(&id, holder("box-1", "w", 1), "10m".parse().unwrap()).await.unwrap().unwrap();
    mail.fail(&claim, Reason::new("timeout").unwrap(), None, false).await.unwrap();
    stage.clock.advance(MINUTE * 10);
    complete(&mail, 2).await;
    dead_letters(&stage, "mail", "550", 1).await;
    let mut client = Client::signed_in(&stage, &stage.key("ada", "read", &["*"], None).await).await;
    let page = client.get("/ns/default/queue/mail").await.body;
    assert_eq!(throughput(&page), ["2", "5", "1", "2"], "{page}");
    let page = client.get("/ns/default/queues").await.body;
    assert!(
        page.contains("title=\"In the last minute: 2\">5<") && page.contains("title=\"In the last minute: 1\">2<"),
        "{page}"
    );
}

#[tokio::test]
async fn a_long_queue_says_at_least_and_finds_what_ended_lately() {
    let stage = Stage::start().await;
    let long = queue(&stage, "long");
    long.add_all(vec![NewItem::default(); 3_000]).await.unwrap();
    let mut client = Client::signed_in(&stage, &stage.key("ada", "read", &["*"], None).await).await;
    stage.clock.advance(MINUTE * 200);
    let page = client.get("/ns/default/queue/long").await.body;
    assert_eq!(throughput(&page), ["none seen", "none seen", "none seen", "none seen"], "{page}");
    // These are behind 3,000 others, and were added lately.
    complete(&long, 5).await;
    stage.clock.advance(MINUTE * 2);
    complete(&long, 2).await;
    let page = client.get("/ns/default/queue/long").await.body;
    assert_eq!(throughput(&page), ["at least 2", "at least 7", "none seen", "none seen"], "{page}");
    assert!(page.contains("Ends of attempts are as the histories of 1,"), "{page}");
    let page = client.get("/ns/default/queues").await.body;
    assert!(page.contains("title=\"In the last minute: at least 2\">at least 7<"), "{page}");
}

#[tokio::test]
async fn what_ends_at_the_front_of_a_long_line_is_found_too() {
    let stage = Stage::start().await;
    let long = queue(&stage, "long");
    // Long done, so that what follows is not among the first items.
    complete(&long, 1_100).await;
    stage.clock.advance(MINUTE * 600);
    let first = long.add_all(vec![NewItem::default(); 6]).await.unwrap();
    stage.clock.advance(MINUTE / 2);
    long.add_all(vec![NewItem::default(); 20]).await.unwrap();
    stage.clock.advance(MINUTE * 300);
    for added in &first {
        let claim =
            long.claim_item(&added.name().id, holder("box-1", "w", 1), "10m".parse().unwrap()).await.unwrap().unwrap();
        long.complete(&claim, None, Vec::new()).await.unwrap();
    }
    let mut client = Client::signed_in(&stage, &stage.key("ada", "read", &["*"], None).await).await;
    let page = client.get("/ns/default/queue/long").await.body;
    assert_eq!(throughput(&page)[..2], ["at least 6", "at least 6"], "{page}");
}
