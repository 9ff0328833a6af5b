//! What rows and drawings say at a glance.

use crate::scene::{MINUTE, acquire, holder, queue};
use crate::stage::{Client, Stage};
use leasehold_core::Outcome;
use leasehold_work::queue::{ItemId, NewItem};
use std::time::Duration;

/// The part of a page from this on.
fn row<'a>(page: &'a str, id: &str) -> &'a str {
    let row = page.split(&format!("id=\"{id}\"")).nth(1).unwrap_or_else(|| panic!("no {id} in {page}"));
    row.split("</tr>").next().unwrap()
}

#[tokio::test]
async fn a_lease_that_failed_last_time_says_so_in_the_listing() {
    let stage = Stage::start().await;
    let leases = stage.leases();
    for (name, outcome) in [("bad", Outcome::Failed), ("good", Outcome::Succeeded)] {
        let grant = acquire(&leases, name, holder("box-1", "a", 1), "1h").await;
        leases.release(&grant, outcome).await.unwrap();
    }
    let mut client = Client::signed_in(&stage, &stage.key("ada", "read", &["*"], None).await).await;
    let page = client.get("/ns/default/leases").await.body;
    assert!(row(&page, "l-bad").contains("failed last time") && !row(&page, "l-good").contains("failed"), "{page}");
}

#[tokio::test]
async fn the_ticks_of_a_short_drawing_differ() {
    let stage = Stage::start().await;
    let leases = stage.leases();
    let mut client = Client::signed_in(&stage, &stage.key("ada", "read", &["*"], None).await).await;
    for (name, lasts, form) in [("short", MINUTE, "clock"), ("long", MINUTE * 50, "tick")] {
        let grant = acquire(&leases, name, holder("box-1", "a", 1), "2h").await;
        stage.clock.advance(lasts);
        leases.release(&grant, Outcome::Succeeded).await.unwrap();
        let page = client.get(&format!("/ns/default/lease/{name}")).await.body;
        let ticks = page.split("class=\"ticks\">").nth(1).unwrap().split("</div>").next().unwrap();
        assert_eq!(ticks.matches(&format!("data-as=\"{form}\"")).count(), 5, "{ticks}");
        let mut texts: Vec<&str> = ticks.split("</time>").filter_map(|tick| tick.rsplit('>').next()).collect();
        texts.retain(|text| !text.is_empty());
        texts.dedup();
        assert_eq!(texts.len(), 5, "{ticks}");
    }
}

#[tokio::test]
async fn an_open_item_names_who_has_it_and_a_priority_that_is_not_the_usual_one() {
    let stage = Stage::start().await;
    let mail = queue(&stage, "mail");
    let add = async |priority: &str, delay| {
        let new = NewItem { priority: priority.parse().unwrap(), delay, ..NewItem::default() };
        mail.add(new).await.unwrap().name().id.clone()
    };
    let (usual, urgent) = (add("5", Duration::ZERO).await, add("9", Duration::ZERO).await);
    let later = add("5", MINUTE * 5).await;
    let claimed = add("5", Duration::ZERO).await;
    mail.claim_item(&claimed, holder("box-1", "mailer", 7), "1h".parse().unwrap()).await.unwrap().unwrap();
    let mut client = Client::signed_in(&stage, &stage.key("ada", "read", &["*"], None).await).await;
    let page = client.get("/ns/default/queue/mail").await.body;
    let row = |id: &ItemId| row(&page, &format!("i-{id}"));
    assert!(row(&urgent).contains("priority 9") && page.matches("priority").count() == 1, "{page}");
    assert!(row(&usual).contains("class=\"holder\"></td>"), "{page}");
    assert!(row(&later).contains("delayed") && row(&later).contains(">in "), "{page}");
    assert!(row(&claimed).contains("mailer (box-1, pid 7)"), "{page}");
}
