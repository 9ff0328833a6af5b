//! Which servers, schedulers and workers there are, and when each last reported.

use crate::scene::{MINUTE, morning, name, process, processes, queue, server};
use crate::stage::{Client, Stage};
use leasehold_core::{Key, Shelf};
use leasehold_work::presence::{Presence, Role, Via, reported};
use leasehold_work::queue::NewItem;

/// The row of a process.
fn row<'a>(page: &'a str, process: &str) -> Option<&'a str> {
    page.split(&format!("id=\"p-{process}-")).nth(1).map(|row| row.split("</tr>").next().unwrap())
}

#[tokio::test]
async fn health_lists_processes_and_marks_the_silent_ones() {
    let stage = Stage::start().await;
    morning(&stage).await;
    processes(&stage).await;
    let key = stage.key("ada", "read", &["*"], None).await;
    let mut client = Client::signed_in(&stage, &key).await;
    let page = client.get("/ns/default/health").await.body;
    let silent = row(&page, "worker-worker-2").unwrap_or_else(|| panic!("{page}"));
    assert!(silent.contains(">silent</span>") && silent.contains(">7m"), "{silent}");
    for (process, says) in [
        ("worker-worker-1", "/ns/default/queue/mail"),
        ("worker-gpu-box-1", "thumbnails"),
        ("scheduler-scheduler-1", "scheduler-1, pid"),
        ("server", "server</th>"),
    ] {
        let row = row(&page, process).unwrap_or_else(|| panic!("no {process}: {page}"));
        assert!(row.contains(says) && !row.contains(">silent</span>"), "{process}: {row}");
    }
    assert!(page.find("p-worker-worker-2").unwrap() > page.find("p-worker-gpu-box-1").unwrap(), "silent ones are last");
    stage.clock.advance(MINUTE * 60 * 24);
    // A session ends before that.
    let mut client = Client::signed_in(&stage, &key).await;
    let page = client.get("/ns/default/health").await.body;
    assert!(page.contains("None has reported within the last day"), "{page}");
}

#[tokio::test]
async fn a_key_sees_workers_of_the_queues_that_it_is_for() {
    let stage = Stage::start().await;
    for name in ["mine", "theirs"] {
        queue(&stage, name).add(NewItem::default()).await.unwrap();
        process(&stage, Role::Worker, &format!("box-{name}"), Some(name)).await;
    }
    process(&stage, Role::Scheduler, "scheduler-1", None).await;
    let mut client = Client::signed_in(&stage, &stage.key("b", "read", &["mine"], None).await).await;
    let page = client.get("/ns/default/health").await.body;
    assert!(page.contains("box-mine") && !page.contains("box-theirs"), "{page}");
    assert!(!page.contains("scheduler-1") && row(&page, "server").is_none(), "{page}");
}

#[tokio::test]
async fn a_process_behind_a_server_is_listed_with_its_key() {
    let stage = Stage::start().await;
    let leases = stage.leases();
    let mut own = Presence::own(Role::Worker, Some("mail".to_owned()));
    "sandbox-1".clone_into(&mut own.host);
    let key = Key::new(Shelf::Presence, &name("worker/sandbox-1/00"));
    let via = Via { label: "<b>ci</b>".parse().unwrap(), key: "k3m7q2xa".parse().unwrap(), account: None };
    let now = leases.inspect(&name("any")).await.unwrap().now;
    let own = reported(&own.encode().unwrap(), &key, via, now).unwrap();
    leases.store().document(&key, None, &own.encode().unwrap()).await.unwrap();
    let mut client = Client::signed_in(&stage, &stage.key("ada", "read", &["*"], None).await).await;
    let page = client.get("/ns/default/health").await.body;
    let row = row(&page, "worker-sandbox-1").unwrap_or_else(|| panic!("{page}"));
    assert!(row.contains("with key &#60;b&#62;ci&#60;/b&#62; (k3m7q2xa)") && !row.contains("silent"), "{row}");
}

#[tokio::test]
async fn a_server_that_ends_takes_its_record_away() {
    let stage = Stage::start().await;
    let mut client = Client::signed_in(&stage, &stage.key("ada", "read", &["*"], None).await).await;
    let mut servers = async || client.get("/ns/default/health").await.body.matches("id=\"p-server-").count();
    let (first, second) = (server(&stage).await, server(&stage).await);
    assert_eq!(servers().await, 2);
    first.end().await;
    assert_eq!(servers().await, 1);
    second.end().await;
    assert_eq!(servers().await, 0);
}
