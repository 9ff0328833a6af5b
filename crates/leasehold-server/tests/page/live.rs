//! What an open page is told of, however much else there is.

use crate::scene::{acquire, holder, name, queue};
use crate::stage::{Client, Stage};
use leasehold_server::page::budget;
use leasehold_work::queue::NewItem;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// Much less than the time after which every page is told to look again.
const SOON: Duration = Duration::from_secs(7);

async fn until(stream: &mut TcpStream, event: &str) {
    let (mut text, mut bytes) = (String::new(), [0; 4096]);
    while !text.contains(&format!("event: {event}\n")) {
        let read = stream.read(&mut bytes).await.unwrap();
        assert!(read > 0, "the stream ended: {text}");
        text.push_str(&String::from_utf8_lossy(&bytes[..read]));
    }
}

#[tokio::test]
async fn what_an_open_page_is_about_is_noticed_however_many_others_there_are() {
    let stage = Stage::start().await;
    let leases = stage.leases();
    // More than the namespace's own look compares.
    for n in 0..budget::WATCHED + 60 {
        acquire(&leases, &format!("many/{n:05}"), holder("box", "many", 1), "1h").await;
    }
    queue(&stage, "a").add_all(vec![NewItem::default(); budget::WATCHED + 60]).await.unwrap();
    let last = queue(&stage, "z");
    let item = last.add(NewItem::default()).await.unwrap().name().id.clone();
    let grant = acquire(&leases, "zz", holder("box", "z", 1), "1h").await;
    let key = stage.key("ada", "read", &["*"], None).await;
    let mut client = Client::signed_in(&stage, &key).await;
    let page = client.get("/ns/default/lease/zz").await.body;
    assert!(page.contains(" data-about=\"lease/zz\""), "{page}");
    assert!(!client.get("/ns/default/leases").await.body.contains("data-about"));
    let mut streams = Vec::new();
    for about in ["lease/zz", "queue/z", &format!("item/z/{item}")] {
        let mut stream = client.open(&format!("/ns/default/changes?about={about}")).await;
        until(&mut stream, "floor").await;
        streams.push((about.to_owned(), stream));
    }
    leases.release(&grant, leasehold_core::Outcome::Succeeded).await.unwrap();
    last.claim_item(&item, holder("box", "w", 1), "10m".parse().unwrap()).await.unwrap().unwrap();
    assert!(leases.inspect(&name("zz")).await.unwrap().record.tenure.is_none());
    for (about, mut stream) in streams {
        let told = tokio::time::timeout(SOON, until(&mut stream, "changed")).await;
        assert!(told.is_ok(), "{about} has changed, and nobody is told");
    }
}

#[tokio::test]
async fn nobody_is_told_of_changes_to_what_they_may_not_see() {
    let stage = Stage::start().await;
    let leases = stage.leases();
    for n in 0..budget::WATCHED + 60 {
        acquire(&leases, &format!("many/{n:05}"), holder("box", "many", 1), "1h").await;
    }
    acquire(&leases, "zz", holder("box", "z", 1), "1h").await;
    let client = Client::signed_in(&stage, &stage.key("bob", "read", &["many/*"], None).await).await;
    let mut stream = client.open("/ns/default/changes?about=lease/zz").await;
    until(&mut stream, "floor").await;
    let reads = stage.counts.of("read");
    let other = client.open("/ns/default/changes?about=lease/%00&about=nothing").await;
    until(&mut { other }, "floor").await;
    assert_eq!(stage.counts.of("read"), reads, "a record is read for nobody");
}
